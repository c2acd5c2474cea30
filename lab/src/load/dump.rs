//! A logical dump of a database, over and over, as a backup beside the OLTP load.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::environment::Environment;
use crate::error::Result;
use crate::process::spawn_tied;

/// `mariadb-dump` of one database in a loop; stopped when dropped.
#[derive(Debug)]
pub struct DumpLoop {
    stop: Arc<AtomicBool>,
    finished: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl DumpLoop {
    /// Starts dumping to nowhere.
    ///
    /// # Errors
    /// If the program is not known.
    pub fn start(environment: &Environment, socket: &Path, database: &str) -> Result<DumpLoop> {
        let program = PathBuf::from(environment.value("DUMP")?);
        let stop = Arc::new(AtomicBool::new(false));
        let finished = Arc::new(AtomicU32::new(0));
        let (stop_2, finished_2) = (stop.clone(), finished.clone());
        let (socket, database) = (format!("--socket={}", socket.display()), database.to_string());
        let thread = thread::spawn(move || {
            while !stop_2.load(Ordering::Relaxed) {
                let mut command = Command::new(&program);
                command
                    .args(["--no-defaults", "--user=root", "--single-transaction", "--quick"])
                    .args([&socket, &database])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
                let Ok(mut child) = spawn_tied(&mut command, &[]) else { return };
                loop {
                    match child.try_wait() {
                        Ok(None) if stop_2.load(Ordering::Relaxed) => {
                            let _ = child.kill();
                            let _ = child.wait();
                            return;
                        }
                        Ok(None) => thread::sleep(Duration::from_millis(20)),
                        Ok(Some(status)) if status.success() => {
                            finished_2.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                        _ => return,
                    }
                }
            }
        });
        Ok(DumpLoop { stop, finished, thread: Some(thread) })
    }

    /// Dumps that ran to their end.
    pub fn finished(&self) -> u32 {
        self.finished.load(Ordering::Relaxed)
    }
}

impl Drop for DumpLoop {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
