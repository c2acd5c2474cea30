//! A close while others are still at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use tidepool_pool::storage::{Result as StorageResult, SimStorage, StorageFile};

use super::*;
use crate::files::FIRST_TABLE_SPACE;
use crate::redo::control::CONTROL_FILE;
use crate::test_storage::{Hooked, Hooks, watched_lock};

/// How long a write is held up if the lock is not released.
const HELD_UP: Duration = Duration::from_millis(300);

/// A disk on which somebody commits while the close writes the control file, and whose log takes
/// its time then.
#[derive(Default)]
struct Watched {
    env: Mutex<Option<Arc<Env>>>,
    straggler: Mutex<Option<JoinHandle<()>>>,
    is_closing: AtomicBool,
    began: AtomicBool,
    released: Arc<AtomicBool>,
    late: AtomicU32,
}

fn wait_for(flag: &AtomicBool, most: Duration) {
    let since = Instant::now();
    while !flag.load(Ordering::SeqCst) && since.elapsed() < most {
        sleep(Duration::from_millis(1));
    }
}

impl Hooks for Watched {
    fn locked(&self, lock: StorageLock) -> StorageLock {
        watched_lock(lock, &self.released)
    }

    fn write(&self, file: &dyn StorageFile, bytes: &[u8], offset: u64) -> StorageResult<()> {
        if file.name() == CONTROL_FILE
            && let Some(env) = self.env.lock().take()
        {
            let commits = move || {
                let end = env.log_file_change(LogRecord::SpaceUnlist(FIRST_TABLE_SPACE)).unwrap();
                let _ = env.flush_log(end);
            };
            self.is_closing.store(true, Ordering::SeqCst);
            *self.straggler.lock() = Some(std::thread::spawn(commits));
            wait_for(&self.began, Duration::from_secs(10));
        } else if self.is_closing.load(Ordering::SeqCst) {
            self.began.store(true, Ordering::SeqCst);
            wait_for(&self.released, HELD_UP);
            self.late.fetch_add(self.released.load(Ordering::SeqCst).into(), Ordering::SeqCst);
        }
        file.write_at(bytes, offset)
    }
}

/// Another process may have the directory by then, and its log go on in the same block.
#[test]
fn the_log_is_not_written_after_a_close() {
    let disk = Hooked::new(SimStorage::new(1), Watched::default());
    let env = Env::open(disk.clone(), &EnvOptions::small()).unwrap();
    env.redo().flush().unwrap();
    *disk.hooks.env.lock() = Some(env.clone());
    env.close().unwrap_err();
    assert!(disk.hooks.released.load(Ordering::SeqCst));
    let straggler = disk.hooks.straggler.lock().take();
    straggler.expect("somebody commits").join().unwrap();
    assert!(disk.hooks.began.load(Ordering::SeqCst));
    assert_eq!(disk.hooks.late.load(Ordering::SeqCst), 0);
}
