//! How long commits wait, and how many share a sync: threads that each change a page and flush the
//! log.
//!
//! `cargo bench -p tidepool-engine --bench commit_latency -- <directory> [threads] [seconds]
//! [bytes] [mode]`
//!
//! `mode`: 1 = write and sync at each commit (default), 2 = write only, 0 = neither.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool::internals::{Env, EnvOptions, FIRST_TABLE_SPACE, Mtr, PageOp};
use tidepool_pool::storage::{FileOptions, FileStorage};
use tidepool_pool::{PAGE_HEADER_SIZE, PageType};

const PAGES_PER_THREAD: u32 = 500;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Cargo adds `--bench`.
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let number = |i: usize, default| args.get(i).map_or(Ok(default), |text| text.parse::<usize>());
    let dir = Path::new(args.first().ok_or("say in which directory")?);
    let (threads, seconds) = (number(1, 8)?, number(2, 5)?);
    let (bytes, mode) = (number(3, 300)?, number(4, 1)?);
    std::fs::create_dir_all(dir)?;
    let storage = Arc::new(FileStorage::new(dir, FileOptions::default())?);
    let options = EnvOptions { redo_capacity_bytes: 256 << 20, ..EnvOptions::default() };
    let env = Env::open(storage, &options)?;
    let space = match env.space(FIRST_TABLE_SPACE) {
        Ok(space) => space,
        Err(_) => env.create_space(FIRST_TABLE_SPACE)?,
    };
    let pages = threads as u32 * PAGES_PER_THREAD;
    space.grow_to(pages)?;
    for no in 0..pages {
        let mut mtr = Mtr::begin(&env)?;
        let page = mtr.new_page(&space, no)?;
        mtr.apply(page, &PageOp::Format { page_type: PageType::OVERFLOW, tree_id: 1 });
        mtr.commit();
    }
    env.checkpoint_all()?;

    let before = env.redo().stats();
    let until = Instant::now() + Duration::from_secs(seconds as u64);
    let mut latencies: Vec<Duration> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads as u32)
            .map(|thread| {
                let (env, space) = (&env, &space);
                scope.spawn(move || {
                    let mut latencies = Vec::new();
                    let mut turn = 0u32;
                    while Instant::now() < until {
                        let began = Instant::now();
                        let no = thread * PAGES_PER_THREAD + turn % PAGES_PER_THREAD;
                        let mut mtr = Mtr::begin(env).expect("begin");
                        let page = mtr.exclusive(space, no).expect("latch");
                        let body = vec![turn as u8; bytes];
                        mtr.apply(
                            page,
                            &PageOp::Write { offset: PAGE_HEADER_SIZE as u32, bytes: &body },
                        );
                        let lsn = mtr.commit();
                        match mode {
                            1 => env.redo().flush_to(lsn).expect("flush"),
                            2 => env.redo().write_to(lsn).expect("write"),
                            _ => {}
                        }
                        latencies.push(began.elapsed());
                        turn += 1;
                    }
                    latencies
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("worker")).collect()
    });
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    let after = env.redo().stats();
    let commits = latencies.len() as f64;
    println!(
        "{threads} threads: {:.0} commits/s, p50 {:?}, p95 {:?}, p99 {:?}, max {:?}",
        commits / seconds as f64,
        at(0.5),
        at(0.95),
        at(0.99),
        at(1.0)
    );
    println!(
        "{:.3} syncs and {:.3} writes a commit, {:.0} bytes of log a commit, {:.0} written; \
         {} capacity waits, {} buffer waits, {} checkpoints",
        (after.syncs - before.syncs) as f64 / commits,
        (after.writes - before.writes) as f64 / commits,
        (after.next_lsn - before.next_lsn) as f64 / commits,
        (after.written_bytes - before.written_bytes) as f64 / commits,
        after.capacity_waits - before.capacity_waits,
        after.buffer_waits - before.buffer_waits,
        after.checkpoints - before.checkpoints,
    );
    env.close()?;
    Ok(())
}
