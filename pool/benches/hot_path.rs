//! What an access to a resident page costs.
//!
//! `cargo bench -p tidepool-pool --bench hot_path`. Nanoseconds of a thread's CPU time an access,
//! the best of nine runs; "one page" has all threads on the same page, "spread" each on pages drawn
//! at random. Runs with the advisor's sampled on and off take turns; a statement is begun every
//! third access, as a point select's. First with the default replacement policy, then with
//! `midpoint`.

#[path = "../tests/packed/mod.rs"]
mod packed;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tidepool_pool::storage::{SimStorage, Storage};
use tidepool_pool::{
    Access, Lsn, MidpointConfig, PageView, Pool, PoolConfig, ReplacementConfig, Space, statement,
};

const PAGES: u32 = 4096;
const ROUNDS: u32 = 1_000_000;

fn main() {
    println!(
        "{:<10}{:<12}{:>9}{:>12}{:>12}{:>12}{:>12}",
        "", "", "threads", "one page", "unsampled", "spread", "unsampled"
    );
    measure("tide", ReplacementConfig::default());
    measure("midpoint", ReplacementConfig::Midpoint(MidpointConfig::default()));
}

fn measure(policy: &str, replacement: ReplacementConfig) {
    let sim = SimStorage::new(1);
    let storage: Arc<dyn Storage> = Arc::new(sim);
    let file = storage.create("16.tpd").unwrap();
    let config = PoolConfig { size_bytes: 128 << 20, replacement, ..PoolConfig::default() };
    let pool = Pool::new(config, storage).unwrap();
    let space = pool.open_space(16, packed::create(file, 16, 16384)).unwrap();
    for no in 0..PAGES {
        let mut guard = pool.new_page(&space, no).unwrap();
        pool.mark_dirty(&mut guard, Lsn(no as u64 + 1), Lsn(no as u64 + 2));
    }
    let shared = |pool: &Pool, space: &Space, no: u32| {
        black_box(pool.shared(space, no, Access::Normal).unwrap()[100]);
    };
    let optimistic = |pool: &Pool, space: &Space, no: u32| {
        let page = pool.optimistic(space, no, Access::Normal).unwrap();
        black_box(page.u32_at(100).unwrap());
        page.validate().ok();
    };
    let exclusive = |pool: &Pool, space: &Space, no: u32| {
        let mut page = pool.exclusive(space, no, Access::Normal).unwrap();
        page.bytes_mut()[100] = black_box(1);
    };
    for threads in [1, 2] {
        report(&format!("{policy:<10}shared"), &pool, &space, threads, shared);
        report(&format!("{policy:<10}optimistic"), &pool, &space, threads, optimistic);
        report(&format!("{policy:<10}exclusive"), &pool, &space, threads, exclusive);
    }
}

fn report(
    name: &str,
    pool: &Pool,
    space: &Space,
    threads: u32,
    access: impl Fn(&Pool, &Space, u32) + Sync,
) {
    let [one, spread] = [1, PAGES].map(|pages| {
        let run = || {
            std::thread::scope(|scope| {
                let work = |thread: u32| {
                    let access = &access;
                    move || {
                        let start = cpu_time_ns();
                        let mut state = thread.wrapping_mul(747_796_405) + 1;
                        for round in 0..ROUNDS {
                            if round % 3 == 0 {
                                statement::begin();
                            }
                            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                            access(pool, space, (state >> 12) % pages);
                        }
                        (cpu_time_ns() - start) as f64 / ROUNDS as f64
                    }
                };
                let all: Vec<_> = (0..threads).map(|thread| scope.spawn(work(thread))).collect();
                all.into_iter().map(|thread| thread.join().unwrap()).sum::<f64>() / threads as f64
            })
        };
        let mut best = [f64::MAX; 2];
        for (best_of, sampled) in [(0, true), (1, false)].into_iter().cycle().take(6) {
            let best = &mut best[best_of];
            pool.set_advice(sampled).unwrap();
            // The sampler's sample gets smaller until the advisor's work is within its bound.
            let settled = Instant::now() + Duration::from_millis(if sampled { 1500 } else { 0 });
            while Instant::now() < settled {
                run();
            }
            *best = (0..3).map(|_| run()).fold(*best, f64::min);
        }
        best
    });
    let [[one, one_off], [spread, spread_off]] = [one, spread];
    println!("{name:<22}{threads:>9}{one:>12.1}{one_off:>12.1}{spread:>12.1}{spread_off:>12.1}");
}

fn cpu_time_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
