//! The moment at which the loop kills the server: any, or as one of the engine's threads is about
//! to write or to sync.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use rand::Rng;
use rand::rngs::StdRng;

use super::schema;
use crate::crash_points::calls::{Call, Tracer};
use crate::server::{Server, connect_to_socket};

/// How long the server may live on after the load's end, until its thread makes the call.
const PATIENCE: Duration = Duration::from_secs(4);

/// When the server is killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moment {
    /// At any time.
    #[default]
    Any,
    /// In the thread that writes pages.
    PageWriter,
    /// In the thread that empties segments of data files and writes their checkpoints.
    Upkeep,
    /// In a backup's thread.
    Backup,
}

impl Moment {
    /// The moment of this name.
    ///
    /// # Errors
    /// If there is none; it names those that there are.
    pub fn by_name(name: &str) -> Result<Moment, String> {
        match name {
            "any" => Ok(Moment::Any),
            "page-writer" => Ok(Moment::PageWriter),
            "upkeep" => Ok(Moment::Upkeep),
            "backup" => Ok(Moment::Backup),
            _ => Err(format!("{name}: it is any, page-writer, upkeep or backup")),
        }
    }

    /// Kills the server, `load` after now at the earliest. Returns whether it died in the thread;
    /// if that makes no such call in time, it is killed all the same.
    ///
    /// # Panics
    /// If `strace` does not attach to the thread.
    pub fn kill(self, server: &mut Server, load: Duration, rng: &mut StdRng) -> bool {
        sleep(load);
        let mut backup: Option<Backup> = None;
        let thread = match self {
            Moment::Any => None,
            Moment::PageWriter => engine_thread(server, "tp-cleaner"),
            Moment::Upkeep => engine_thread(server, "tidepool-upkeep"),
            Moment::Backup => Some(backup.insert(Backup::prepare(server)).thread),
        };
        let was_seen_to_die = thread.is_some_and(|thread| {
            // Each kind of call of a thread is counted by itself.
            let name = self.calls()[rng.random_range(0..self.calls().len())];
            let number = rng.random_range(1..=self.calls_max());
            let call = Call { name: name.into(), number, text: String::new() };
            let tracer = Tracer::kill_at(thread, &call, &server.dir().join("strace"));
            if let Some(backup) = &backup {
                backup.start.send(()).expect("the backup's client waits");
            }
            let began = Instant::now();
            while server.exited().is_none() && began.elapsed() < PATIENCE {
                if backup.as_ref().is_some_and(|backup| backup.client.is_finished()) {
                    break;
                }
                sleep(Duration::from_millis(5));
            }
            drop(tracer);
            server.exited().is_some()
        });
        // A client may lose its connection before the server is seen to be gone.
        let has_ended = backup.as_ref().is_some_and(|backup| backup.client.is_finished());
        server.kill9();
        let Some(backup) = backup else { return was_seen_to_die };
        let has_lost_server = backup.client.join().expect("the backup's client doesn't panic");
        // What there is of the copy is of no use.
        let _ = fs::remove_dir_all(backup_dir(server));
        was_seen_to_die || has_ended && has_lost_server
    }

    /// The calls that the thread writes and syncs by.
    fn calls(self) -> &'static [&'static str] {
        match self {
            Moment::Any => &[],
            Moment::PageWriter => &["fdatasync", "io_uring_enter"],
            Moment::Upkeep => &["fdatasync", "pwrite64"],
            Moment::Backup => &["pwrite64", "fdatasync", "openat"],
        }
    }

    /// The number of the call that the server dies at is drawn up to this one. A backup of the
    /// loop's tables, and a page writer whose pool is large, make few.
    fn calls_max(self) -> u32 {
        match self {
            Moment::Any | Moment::Upkeep => 40,
            Moment::PageWriter | Moment::Backup => 8,
        }
    }
}

fn backup_dir(server: &Server) -> PathBuf {
    server.dir().join("backup")
}

/// A backup in another connection, which begins when `start` says so.
struct Backup {
    /// The server's thread that makes it.
    thread: u32,
    start: Sender<()>,
    /// Returns whether the connection was lost.
    client: JoinHandle<bool>,
}

impl Backup {
    fn prepare(server: &Server) -> Backup {
        let mut conn =
            connect_to_socket(server.socket(), schema::DATABASE).expect("the server runs");
        let thread: Option<u32> = conn
            .query_first(
                "SELECT TID FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID()",
            )
            .expect("the server answers");
        let dir = backup_dir(server);
        let (start, started) = channel();
        let client = thread::spawn(move || {
            let statement = format!("SET GLOBAL tidepool_backup_to = '{}'", dir.display());
            started.recv().is_ok()
                && matches!(conn.query_drop(statement), Err(mysql::Error::IoError(_)))
        });
        Backup { thread: thread.expect("the connection has a thread"), start, client }
    }
}

/// The server's thread of this name.
fn engine_thread(server: &Server, name: &str) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{}/task", server.pid()?)).ok()?;
    threads.flatten().find_map(|thread| {
        let comm = fs::read_to_string(thread.path().join("comm")).ok()?;
        (comm.trim_end() == name).then(|| thread.file_name().to_str()?.parse().ok()).flatten()
    })
}
