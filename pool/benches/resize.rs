//! How fast a pool shrinks, and what queries notice of it.
//!
//! `cargo bench -p tidepool-pool --bench resize [-- GiB]` (8 by default; it uses that much memory).
//! One thread resizes step by step, another reads the hot half of the pages at random. "CPU" is the
//! resizing thread's own time, which a busy machine does not distort; "first" is when the first
//! extent was back with the kernel.

#[path = "../tests/packed/mod.rs"]
mod packed;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tidepool_pool::storage::{SimStorage, Storage};
use tidepool_pool::{Access, Lsn, PageId, Pool, PoolConfig, ShrinkUrgency, page, statement};

const PAGE: u64 = 16384;

/// Which pages are hot.
#[derive(Clone, Copy)]
enum Hot {
    /// Those in the second half of the extents.
    Together,
    /// Every other page.
    Scattered,
}

impl Hot {
    fn nth(self, n: u64, pages: u64) -> u32 {
        let no = match self {
            Hot::Together => pages / 2 + n % (pages / 2),
            Hot::Scattered => n % (pages / 2) * 2,
        };
        no as u32
    }
}

fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn shrink(what: &str, bytes: u64, to: u64, hot: Hot, dirty_pct: u64) {
    let pages = bytes / PAGE;
    let config = PoolConfig { size_bytes: bytes, background: false, ..PoolConfig::default() };
    let storage = SimStorage::new(1);
    // Pages of zeroes shrink to next to nothing, so it takes little memory.
    let file = packed::create(storage.create("16.tpd").unwrap(), 16, PAGE as usize);
    let pool = Pool::new(config, Arc::new(storage)).unwrap();
    let space = pool.open_space(16, file).unwrap();
    for no in 0..pages {
        let mut guard = pool.exclusive(&space, no as u32, Access::Normal).unwrap();
        if no * 31 % 100 < dirty_pct {
            page::set_page_id(guard.bytes_mut(), PageId::new(16, no as u32));
            pool.mark_dirty(&mut guard, Lsn(no + 1), Lsn(no + 2));
        }
    }
    pool.advance_clock(5000);
    statement::begin();
    for n in 0..pages / 2 {
        black_box(pool.shared(&space, hot.nth(n, pages), Access::Normal).unwrap()[0]);
    }
    let (stop, reads, longest) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = 0x9e37_79b9;
            while !stop.load(Relaxed) {
                let no = hot.nth(next(&mut state) >> 8, pages);
                let began = Instant::now();
                black_box(pool.shared(&space, no, Access::Normal).unwrap()[100]);
                longest.fetch_max(began.elapsed().as_nanos() as u64, Relaxed);
                reads.fetch_add(1, Relaxed);
            }
        });
        let rate = |during: &mut dyn FnMut()| {
            let (began, before) = (Instant::now(), reads.load(Relaxed));
            longest.store(0, Relaxed);
            during();
            let seconds = began.elapsed().as_secs_f64();
            let rate = (reads.load(Relaxed) - before) as f64 / seconds;
            (rate / 1e6, longest.load(Relaxed) as f64 / 1e6)
        };
        let quiet = rate(&mut || std::thread::sleep(Duration::from_millis(500)));
        let (mut first, mut longest_step) = (None, Duration::ZERO);
        let (began, cpu_before) = (Instant::now(), cpu());
        let during = rate(&mut || {
            pool.set_size(to, ShrinkUrgency::Immediate);
            loop {
                let step = Instant::now();
                let more = pool.run_resize_step();
                longest_step = longest_step.max(step.elapsed());
                if first.is_none() && pool.resident_bytes() < bytes {
                    first = Some(began.elapsed());
                }
                if !more {
                    break;
                }
            }
        });
        let (wall, cpu) = (began.elapsed().as_secs_f64(), cpu() - cpu_before);
        stop.store(true, Relaxed);
        let status = pool.resize_status();
        assert_eq!(status.resident_bytes, to, "{status:?}");
        println!(
            "{what:<26}{:>6.2}{:>8.2}{:>8.2}{:>9.2}{:>9}{:>10.1}{:>8}{:>8.2}{:>8.2}{:>9.2}{:>9.2}",
            (bytes - to) as f64 / (1u64 << 30) as f64,
            wall,
            cpu,
            first.unwrap_or_default().as_secs_f64() * 1000.0,
            status.pages_moved,
            status.longest_wait_us as f64,
            longest_step.as_micros(),
            quiet.0,
            during.0,
            quiet.1,
            during.1,
        );
    });
}

fn main() {
    let gib = std::env::args().skip(1).find_map(|arg| arg.parse::<u64>().ok()).unwrap_or(8);
    let bytes = gib << 30;
    println!(
        "{:<26}{:>6}{:>8}{:>8}{:>9}{:>9}{:>10}{:>8}{:>8}{:>8}{:>9}{:>9}",
        "",
        "GiB",
        "wall s",
        "CPU s",
        "first ms",
        "moved",
        "wait us",
        "step us",
        "Mr/s",
        "during",
        "max ms",
        "during"
    );
    shrink("nearly all, clean", bytes, bytes / 32, Hot::Together, 0);
    shrink("half, hot together", bytes, bytes / 2, Hot::Together, 0);
    shrink("half, hot scattered", bytes, bytes / 2, Hot::Scattered, 0);
    shrink("half, scattered, 20% dirty", bytes, bytes / 2, Hot::Scattered, 20);
}
