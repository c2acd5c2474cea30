//! Updates at random over data four times the pool: what cleaner and evictor can keep up with.
//!
//! `cargo bench -p tidepool-pool --bench churn [-- directory]`; the directory says which disk.

#[path = "../tests/packed/mod.rs"]
mod packed;

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tidepool_pool::storage::{FileOptions, FileStorage, Storage};
use tidepool_pool::{Access, Lsn, PageId, Pool, PoolConfig, page};

const POOL_BYTES: u64 = 64 << 20;
const PAGES: u64 = 16384;
const TIME: Duration = Duration::from_secs(3);

fn main() {
    let dir = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let dir = tempfile::tempdir_in(dir.unwrap_or_else(|| ".".to_owned())).unwrap();
    let storage: Arc<dyn Storage> =
        Arc::new(FileStorage::new(dir.path(), FileOptions::default()).unwrap());
    let file = storage.create("16.tpd").unwrap();
    let config = PoolConfig { size_bytes: POOL_BYTES, ..PoolConfig::default() };
    let pool = Pool::new(config, storage).unwrap();
    let space = pool.open_space(16, packed::create(file, 16, 16384)).unwrap();
    println!(
        "{:>9}{:>14}{:>12}{:>11}{:>14}",
        "writes %", "accesses/s", "flushed/s", "wait_free", "longest ms"
    );
    for write_pct in [0, 10, 50] {
        let lsn = Mutex::new(pool.stats().write_requests * 10 + 1);
        let before = pool.stats();
        let start = Instant::now();
        let results: Vec<(u64, Duration)> = std::thread::scope(|scope| {
            let work = |thread: u64| {
                let (pool, space, lsn) = (&pool, &space, &lsn);
                move || {
                    let mut state = (thread + 1) * 0x9e37_79b9;
                    let (mut accesses, mut longest) = (0, Duration::ZERO);
                    while start.elapsed() < TIME {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        let no = (state % PAGES) as u32;
                        let began = Instant::now();
                        if state >> 32 & 0xff < write_pct * 256 / 100 {
                            let mut guard = pool.exclusive(space, no, Access::Normal).unwrap();
                            page::set_page_id(guard.bytes_mut(), PageId::new(16, no));
                            let mut lsn = lsn.lock().unwrap();
                            pool.mark_dirty(&mut guard, Lsn(*lsn), Lsn(*lsn + 10));
                            *lsn += 10;
                        } else {
                            pool.shared(space, no, Access::Normal).unwrap();
                        }
                        longest = longest.max(began.elapsed());
                        accesses += 1;
                    }
                    (accesses, longest)
                }
            };
            let threads: Vec<_> = (0..8).map(|thread| scope.spawn(work(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let (seconds, after) = (start.elapsed().as_secs_f64(), pool.stats());
        println!(
            "{write_pct:>9}{:>14.0}{:>12.0}{:>11}{:>14.1}",
            results.iter().map(|result| result.0).sum::<u64>() as f64 / seconds,
            (after.pages_flushed - before.pages_flushed) as f64 / seconds,
            after.wait_free - before.wait_free,
            results.iter().map(|result| result.1).max().unwrap().as_secs_f64() * 1000.0,
        );
    }
}
