//! Large reads beside an OLTP load, over and over: a logical dump, as backups do, and a report in
//! the order of a secondary index.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;

use crate::environment::Environment;
use crate::error::Result;
use crate::process::spawn_tied;
use crate::server::connect;

/// What a dump's reader takes at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// `mariadb-dump` of one database in a loop, its output counted and thrown away; stopped when
/// dropped.
#[derive(Debug)]
pub struct DumpLoop {
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    complete: Arc<OnceLock<Complete>>,
    failure: Arc<OnceLock<String>>,
    started: Instant,
    thread: Option<JoinHandle<()>>,
}

/// A dump from its beginning to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Complete {
    /// What it took.
    pub seconds: f64,
    /// Its output.
    pub bytes: u64,
}

impl DumpLoop {
    /// Starts dumping. With `bytes_per_second`, the output is read no faster than that, which slows
    /// the dump down.
    ///
    /// # Errors
    /// If the program is not known.
    pub fn start(
        environment: &Environment,
        socket: &Path,
        database: &str,
        bytes_per_second: Option<f64>,
    ) -> Result<DumpLoop> {
        let program = PathBuf::from(environment.value("DUMP")?);
        let stop = Arc::new(AtomicBool::new(false));
        let bytes = Arc::new(AtomicU64::new(0));
        let (stop_2, bytes_2) = (stop.clone(), bytes.clone());
        let complete = Arc::new(OnceLock::new());
        let complete_2 = complete.clone();
        let failure = Arc::new(OnceLock::new());
        let failure_2 = failure.clone();
        let (socket, database) = (format!("--socket={}", socket.display()), database.to_string());
        let thread = thread::spawn(move || {
            let drain =
                Drain { stop: stop_2, bytes: bytes_2, started: Instant::now(), bytes_per_second };
            while !drain.stop.load(Ordering::Relaxed) {
                let mut command = Command::new(&program);
                command
                    .args(["--no-defaults", "--user=root", "--single-transaction", "--quick"])
                    .args([&socket, &database])
                    .stdin(Stdio::null())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                let (begun, before) = (Instant::now(), drain.bytes.load(Ordering::Relaxed));
                let mut child = match spawn_tied(&mut command, &[]) {
                    Ok(child) => child,
                    Err(error) => {
                        let _ = failure_2.set(error.to_string());
                        return;
                    }
                };
                if let Some(output) = child.stdout.take() {
                    drain.read(output, &mut child);
                }
                let mut said = String::new();
                if let Some(mut errors) = child.stderr.take() {
                    let _ = errors.read_to_string(&mut said);
                }
                if child.wait().is_ok_and(|status| status.success()) {
                    let bytes = drain.bytes.load(Ordering::Relaxed) - before;
                    let seconds = begun.elapsed().as_secs_f64();
                    let _ = complete_2.set(Complete { seconds, bytes });
                } else if !drain.stop.load(Ordering::Relaxed) {
                    let _ = failure_2.set(format!("a dump failed: {}", said.trim()));
                    // A server that is gone fails every dump at once.
                    thread::sleep(Duration::from_millis(100));
                }
            }
        });
        let (started, thread) = (Instant::now(), Some(thread));
        Ok(DumpLoop { stop, bytes, complete, failure, started, thread })
    }

    /// Why this is no load: a dump has failed, or none has written anything yet.
    pub fn failure(&self) -> Option<String> {
        let is_silent = self.bytes.load(Ordering::Relaxed) == 0;
        let silent = is_silent.then(|| "the dump wrote nothing".to_string());
        self.failure.get().cloned().or(silent)
    }

    /// The first dump that has run to its end.
    pub fn complete(&self) -> Option<Complete> {
        self.complete.get().copied()
    }

    /// Bytes of output since the start, a second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes.load(Ordering::Relaxed) as f64 / self.started.elapsed().as_secs_f64()
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

/// Reads a dump's output at its pace.
struct Drain {
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    started: Instant,
    bytes_per_second: Option<f64>,
}

impl Drain {
    /// Returns at the end of the output, or soon after a stop, when the dump is killed.
    fn read(&self, mut output: ChildStdout, child: &mut Child) {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            if self.stop.load(Ordering::Relaxed) {
                let _ = child.kill();
                return;
            }
            match output.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    let total =
                        self.bytes.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
                    if let Some(rate) = self.bytes_per_second {
                        let due = Duration::from_secs_f64(total as f64 / rate.max(1.0));
                        let early = due.saturating_sub(self.started.elapsed());
                        thread::sleep(early.min(Duration::from_millis(200)));
                    }
                }
            }
        }
    }
}

/// `SELECT SUM(LENGTH(c))` over a whole table in the order of its secondary index, in a loop; ends
/// when dropped.
#[derive(Debug)]
pub struct ReportLoop {
    socket: PathBuf,
    connection_id: u32,
    stop: Arc<AtomicBool>,
    failure: Arc<OnceLock<String>>,
    thread: Option<JoinHandle<()>>,
}

impl ReportLoop {
    /// Starts reporting on the table `sbtest1` of a database.
    ///
    /// # Errors
    /// If the server takes no connection.
    pub fn start(socket: &Path, database: &str) -> Result<ReportLoop> {
        let mut conn = connect(socket, database)?;
        let connection_id = conn.connection_id();
        let stop = Arc::new(AtomicBool::new(false));
        let stop_2 = stop.clone();
        let failure = Arc::new(OnceLock::new());
        let failure_2 = failure.clone();
        let thread = thread::spawn(move || {
            while !stop_2.load(Ordering::Relaxed) {
                let report = "SELECT SUM(LENGTH(c)) FROM sbtest1 FORCE INDEX (k_1) WHERE k > 0";
                // Its row is read: an error may come instead.
                if let Err(error) = conn.query_first::<mysql::Row, _>(report) {
                    if !stop_2.load(Ordering::Relaxed) {
                        let _ = failure_2.set(format!("the report failed: {error}"));
                    }
                    return;
                }
            }
        });
        let (socket, thread) = (socket.to_path_buf(), Some(thread));
        Ok(ReportLoop { socket, connection_id, stop, failure, thread })
    }

    /// Why there is no such load any more. (One report may take longer than a run.)
    pub fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }
}

impl Drop for ReportLoop {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Ok(mut conn) = connect(&self.socket, "") {
            let _ = conn.query_drop(format!("KILL {}", self.connection_id));
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
