//! Threads that read and write while the size goes up and down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidepool_pool::storage::{FileOptions, FileStorage};
use tidepool_pool::{Access, Error, Lsn, PageView, ShrinkUrgency};

use crate::fixture::{EXTENT, EXTENT_PAGES, Fixture, SIZE, change_of, fill, fixture};

const PAGES: u32 = 10 * EXTENT_PAGES;
/// How much longer than asked for it may take until pages have moved.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the threads share.
struct Crowd<'a> {
    it: &'a Fixture,
    /// The newest change to each page that a writer has finished.
    newest: &'a [AtomicU64],
    stop: &'a AtomicBool,
}

/// Asks the threads beside to stop when it is dropped, also by a panic: the end of a scope waits
/// for them.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

impl Crowd<'_> {
    /// Calls `body` with random pages, and the newest change that each of them must have, until
    /// asked to stop.
    fn until_stopped(&self, seed: u64, mut body: impl FnMut(u32, u64, &mut u64)) {
        let mut state = seed;
        while !self.stop.load(Ordering::Relaxed) {
            let no = (random(&mut state) % PAGES as u64) as u32;
            let before = self.newest[no as usize].load(Ordering::Acquire);
            body(no, before, &mut state);
        }
    }

    fn read_latched(&self, seed: u64) {
        self.until_stopped(seed, |no, before, _| {
            let page = self.it.pool.shared(&self.it.space, no, Access::Normal).unwrap();
            assert!(change_of(&page, no) >= before, "an older page {no}");
        });
    }

    fn read_optimistically(&self, seed: u64) {
        self.until_stopped(seed, |no, before, state| {
            let page = self.it.pool.optimistic(&self.it.space, no, Access::Normal).unwrap();
            let mut words = Vec::new();
            if page.copy_to(32, 8, &mut words).is_err() {
                return;
            }
            // Give it some time to move.
            if random(state).is_multiple_of(16) {
                std::thread::yield_now();
            }
            for offset in (32..SIZE).step_by(4096 + 8) {
                page.copy_to(offset, 8, &mut words).unwrap();
            }
            if page.validate().is_ok() {
                let first = u64::from_le_bytes(words[..8].try_into().unwrap());
                assert!(words.chunks(8).all(|chunk| chunk == first.to_le_bytes()));
                assert!(first == 0 || first >> 40 == no as u64);
                assert!(first & 0xff_ffff_ffff >= before);
            }
        });
    }

    fn write(&self, seed: u64) {
        self.until_stopped(seed, |no, _, _| {
            let mut page = self.it.pool.exclusive(&self.it.space, no, Access::Normal).unwrap();
            let change = change_of(&page, no) + 1;
            fill(&mut page, no, change);
            let start = self.it.lsn.fetch_add(10, Ordering::Relaxed);
            self.it.pool.mark_dirty(&mut page, Lsn(start), Lsn(start + 10));
            self.newest[no as usize].fetch_max(change, Ordering::Release);
        });
    }

    /// Writes the space out, over and over.
    fn flush(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            match self.it.pool.flush_space(&self.it.space) {
                Ok(()) | Err(Error::PagesInUse { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Sets one size after the other for `time`, or longer until some have been waited for and
    /// pages have moved.
    fn resize(&self, time: Duration) {
        let (mut state, mut settled) = (99, 0);
        let began = Instant::now();
        let has_moved = || self.it.pool.resize_status().pages_moved > 0;
        while began.elapsed() < time || settled == 0 || !has_moved() {
            assert!(began.elapsed() < time + PATIENCE, "{:?}", self.it.pool.resize_status());
            let urgency = match random(&mut state) % 2 {
                0 => ShrinkUrgency::Immediate,
                _ => ShrinkUrgency::Background,
            };
            self.it.pool.set_size((1 + random(&mut state) % 9) * EXTENT, urgency);
            if random(&mut state).is_multiple_of(3) {
                self.it.settle();
                settled += 1;
                let status = self.it.pool.resize_status();
                assert!(status.resident_bytes <= status.target_bytes, "{status:?}");
            } else {
                std::thread::sleep(Duration::from_micros(random(&mut state) % 3000));
            }
        }
    }
}

/// No reader, latched or optimistic, believes a page that it should not, and no change is lost.
#[test]
fn queries_do_not_notice() {
    let directory = tempfile::tempdir().unwrap();
    let options = FileOptions { direct_io: false, ..FileOptions::default() };
    let storage = FileStorage::new(directory.path(), options).unwrap();
    let it = fixture(Arc::new(storage), 8, PAGES, true);
    let newest: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let seconds = std::env::var("TIDEPOOL_STRESS_SECONDS")
        .map_or(3.0, |seconds| seconds.parse().expect("a number"));
    let crowd = Crowd { it: &it, newest: &newest, stop: &stop };
    std::thread::scope(|scope| {
        for seed in 1..3u64 {
            let crowd = &crowd;
            scope.spawn(move || crowd.read_latched(seed * 0x9e37_79b9));
            scope.spawn(move || crowd.read_optimistically(seed * 0x1234_5677));
            scope.spawn(move || crowd.write(seed * 0x7777_1111));
        }
        scope.spawn(|| crowd.flush());
        let _stop = StopOnDrop(&stop);
        crowd.resize(Duration::from_secs_f64(seconds));
    });
    for no in 0..PAGES {
        assert_eq!(it.read(no), newest[no as usize].load(Ordering::Relaxed));
    }
    it.pool.flush_all().unwrap();
    it.pool.close_space(&it.space, false).unwrap();
    assert_eq!(it.pool.stats().pages_data, 0);
}
