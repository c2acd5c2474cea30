//! An opening that fails while threads are at work already.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tidepool_pool::PageType;
use tidepool_pool::storage::{Fault, FaultKind, IoOp, SimStorage, StorageOp};

use super::*;
use crate::files::*;
use crate::mtr::Mtr;
use crate::page_op::PageOp;
use crate::test_storage::{Hooked, Hooks, watched_lock};

const PAGE_SIZE: usize = 4096;
/// Pages of the first table: more than the pool has.
const PAGES: u32 = 60;

fn options() -> EnvOptions {
    EnvOptions {
        page_size: PAGE_SIZE,
        buffer_pool_size_bytes: 20 * PAGE_SIZE as u64,
        ..EnvOptions::small()
    }
}

/// A slow disk that counts the batches of writes which end after the directory's lock was released.
#[derive(Default)]
struct Watched {
    released: Arc<AtomicBool>,
    late: AtomicU32,
}

impl Hooks for Watched {
    fn locked(&self, lock: StorageLock) -> StorageLock {
        watched_lock(lock, &self.released)
    }

    fn batch(&self, disk: &SimStorage, ops: &mut [IoOp<'_>]) {
        std::thread::sleep(Duration::from_millis(20));
        disk.run_batch(ops);
        if self.released.load(Ordering::SeqCst) {
            self.late.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn nothing_is_written_after_an_opening_has_failed() {
    let disk = SimStorage::new(1);
    let env = Env::open(Arc::new(disk.clone()), &options()).unwrap();
    for (id, pages) in [(FIRST_TABLE_SPACE, PAGES), (FIRST_TABLE_SPACE + 1, 1)] {
        let space = env.create_space(id).unwrap();
        space.grow_to(pages).unwrap();
        for no in 0..pages {
            let mut mtr = Mtr::begin(&env).unwrap();
            let page = mtr.new_page(&space, no).unwrap();
            mtr.apply(page, &PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 1 });
            mtr.commit();
        }
    }
    env.redo().flush().unwrap();
    drop(env);
    let disk = disk.kill();
    // Recovery gets there when the cleaner has much to do.
    disk.inject(Fault::new(StorageOp::Sync, FaultKind::Io).on("tables/00000011"));
    let watched = Hooked::new(disk, Watched::default());
    let error = Env::open(watched.clone(), &EnvOptions { background: true, ..options() })
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("cannot sync 'tables/00000011.tpd'"), "{error}");
    assert!(watched.hooks.released.load(Ordering::SeqCst));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(watched.hooks.late.load(Ordering::SeqCst), 0);
}

/// A disk that takes a while for each write and thereby lets other threads in.
struct SlowWrites;

impl Hooks for SlowWrites {
    fn write(
        &self,
        file: &dyn tidepool_pool::storage::StorageFile,
        bytes: &[u8],
        offset: u64,
    ) -> tidepool_pool::storage::Result<()> {
        std::thread::sleep(Duration::from_millis(2));
        file.write_at(bytes, offset)
    }
}

/// As a backup does, which opens the files that it finds.
#[test]
fn a_space_that_is_being_made_is_opened_once() {
    let disk = SimStorage::new(1);
    let env = Env::open(Hooked::new(disk, SlowWrites), &options()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for id in FIRST_TABLE_SPACE..FIRST_TABLE_SPACE + 20 {
            let (env, stop) = (&env, &stop);
            let looked = scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) && env.space(id).is_err() {
                    std::thread::yield_now();
                }
            });
            let made = env.create_space(id);
            stop.store(made.is_err(), Ordering::Relaxed);
            made.unwrap();
            looked.join().unwrap();
        }
    });
}
