//! The tier inside a pool: what it gives is what was written last, whatever happens in between.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tidepool_store::packed::{self, PackedFile, Settings};

use super::*;
use crate::config::PoolConfig;
use crate::frames::EXTENT_BYTES;
use crate::page::{self, Lsn, PageId, PageSize};
use crate::pool::Pool;
use crate::replacement::hooked::{Call, with_hook};
use crate::shrink_throttle::ShrinkUrgency;
use crate::statement;
use crate::storage::{Fault, FaultKind, SimStorage, Storage, StorageFile, StorageOp};

thread_local! {
    /// What happens before the policy's capacity is set.
    static MEANWHILE: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

const PAGE: usize = 4096;
const EXTENT: u64 = EXTENT_BYTES as u64;
const EXTENT_PAGES: u32 = (EXTENT_BYTES / PAGE) as u32;
const NAME: &str = "16.tpd";

struct Fixture {
    sim: SimStorage,
    pool: Arc<Pool>,
    space: Arc<Space>,
    lsn: AtomicU64,
}

fn settings() -> Settings {
    let page_size = PageSize::new(PAGE).unwrap();
    Settings { page_size, instance: [1; 16], space: 16, random: 5 }
}

fn fixture(extents: u64, background: bool) -> Fixture {
    let sim = SimStorage::new(3);
    let file = sim.create(NAME).unwrap();
    fixture_of(sim, file, extents, background)
}

fn fixture_of(
    sim: SimStorage,
    file: Arc<dyn StorageFile>,
    extents: u64,
    background: bool,
) -> Fixture {
    let file = PackedFile::create(file, settings()).unwrap();
    let config = PoolConfig {
        page_size: settings().page_size,
        size_bytes: extents * EXTENT,
        max_size_bytes: 32 * EXTENT,
        huge_pages: false,
        background,
        ..PoolConfig::default()
    };
    let pool = Pool::new(config, Arc::new(sim.clone())).unwrap();
    let space = pool.open_space(16, file).unwrap();
    Fixture { sim, pool, space, lsn: AtomicU64::new(100) }
}

/// What a page holds after its `change`-th change: it shrinks to a third or so.
fn fill(bytes: &mut [u8], no: u32, change: u64) {
    page::set_page_id(bytes, PageId::new(16, no));
    let mut state = u64::from(no) << 32 | change | 1;
    for (at, word) in bytes[32..].chunks_exact_mut(8).enumerate() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let value = if at % 3 == 0 { state } else { change };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

impl Fixture {
    fn write(&self, no: u32, change: u64) -> crate::Result<()> {
        statement::begin();
        let mut page = self.pool.exclusive(&self.space, no, Access::Normal)?;
        fill(page.bytes_mut(), no, change);
        let start = self.lsn.fetch_add(10, Ordering::Relaxed);
        self.pool.mark_dirty(&mut page, Lsn(start), Lsn(start + 10));
        Ok(())
    }

    /// Panics unless the page holds this change; 0: it was never written.
    fn check(&self, no: u32, change: u64, access: Access) -> crate::Result<()> {
        statement::begin();
        let page = self.pool.shared(&self.space, no, access)?;
        let mut expected = vec![0; PAGE];
        if change > 0 {
            fill(&mut expected, no, change);
        }
        assert_eq!(page[32..], expected[32..], "page {no}");
        Ok(())
    }

    fn resize(&self, extents: u64) {
        self.pool.set_size(extents * EXTENT, ShrinkUrgency::Immediate);
        while self.pool.run_resize_step() {}
    }

    fn reopen(&mut self) {
        self.pool.close_space(&self.space, false).unwrap();
        let file = self.sim.open(NAME).unwrap();
        let file = PackedFile::open(file, settings(), packed::Access::ReadWrite, 0).unwrap();
        self.space = self.pool.open_space(16, file).unwrap();
    }
}

#[derive(Clone, Debug)]
enum Op {
    Read(u32, Access),
    Write(u32),
    /// A number of pages from here on, for reading or for writing.
    ReadMany(u32, u32),
    WriteMany(u32, u32),
    Share(u32),
    Resize(u64),
    ResizeStep,
    Clean,
    Flush,
    Evict,
    Prefetch(u32),
    Reopen,
    FailWrites(u64),
}

const PAGES: u32 = 6 * EXTENT_PAGES;

fn op() -> impl Strategy<Value = Op> {
    let access = prop_oneof![4 => Just(Access::Normal), 1 => Just(Access::Scan)];
    prop_oneof![
        10 => (0..PAGES, access).prop_map(|(no, access)| Op::Read(no, access)),
        10 => (0..PAGES).prop_map(Op::Write),
        8 => (0..PAGES, 1..900u32).prop_map(|(no, pages)| Op::ReadMany(no, pages)),
        4 => (0..PAGES, 1..500u32).prop_map(|(no, pages)| Op::WriteMany(no, pages)),
        4 => (0..900u32).prop_map(Op::Share),
        2 => (2..7u64).prop_map(Op::Resize),
        2 => Just(Op::ResizeStep),
        2 => Just(Op::Clean),
        2 => Just(Op::Flush),
        3 => Just(Op::Evict),
        2 => (0..PAGES).prop_map(Op::Prefetch),
        1 => Just(Op::Reopen),
        1 => (1..4u64).prop_map(Op::FailWrites),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// After any operations in any order, every page is what was last written, and the tier's
    /// books are right.
    #[test]
    fn every_page_is_what_was_last_written(ops in proptest::collection::vec(op(), 20..120)) {
        let mut it = fixture(3, false);
        it.pool.set_tier_share(500);
        let mut changes: BTreeMap<u32, u64> = BTreeMap::new();
        for (at, op) in (1..).zip(ops) {
            let change_of =
                |changes: &BTreeMap<u32, u64>, no| changes.get(&no).copied().unwrap_or(0);
            match op {
                // A pool that can't write may have no frame.
                Op::Read(no, access) => _ = it.check(no, change_of(&changes, no), access),
                Op::ReadMany(no, pages) => {
                    for no in no..(no + pages).min(PAGES) {
                        let _ = it.check(no, change_of(&changes, no), Access::Normal);
                    }
                }
                Op::Write(no) => {
                    if it.write(no, at).is_ok() {
                        changes.insert(no, at);
                    }
                }
                Op::WriteMany(no, pages) => {
                    for no in no..(no + pages).min(PAGES) {
                        if it.write(no, at).is_ok() {
                            changes.insert(no, at);
                        }
                    }
                }
                Op::Share(share) => it.pool.set_tier_share(share),
                Op::Resize(extents) => it.resize(extents),
                Op::ResizeStep => _ = it.pool.run_resize_step(),
                Op::Clean => _ = it.pool.run_cleaner_step(),
                Op::Flush => _ = it.pool.flush_all(),
                Op::Evict => _ = it.pool.run_evictor_step(),
                Op::Prefetch(no) => {
                    let pages: Vec<u32> = (no..no + 20).collect();
                    it.pool.prefetch(&it.space, &pages, Access::Normal);
                }
                Op::Reopen => {
                    if it.pool.flush_all().is_ok() {
                        it.reopen();
                    }
                }
                Op::FailWrites(times) => it.sim.inject(
                    Fault::new(StorageOp::Write, FaultKind::Io).on(NAME).times(times),
                ),
            }
            it.pool.tier.check();
        }
        it.pool.flush_all().or_else(|_| it.pool.flush_all()).or_else(|_| it.pool.flush_all()).ok();
        for no in 0..PAGES {
            it.check(no, changes.get(&no).copied().unwrap_or(0), Access::Normal).unwrap();
        }
        it.pool.tier.check();
    }
}

/// A pool of 4 MiB whose pages, 8 MiB of them, are all written and on the disk.
fn filled() -> (Fixture, u32) {
    let it = fixture(2, false);
    let pages = 4 * EXTENT_PAGES;
    for no in 0..pages {
        it.write(no, 1).unwrap();
    }
    it.pool.flush_all().unwrap();
    (it, pages)
}

/// Reads all pages several times; how many of the last round were read from the file.
fn reads_of_last_round(it: &Fixture, pages: u32, rounds: u32) -> u64 {
    let mut before = 0;
    for _ in 0..rounds {
        before = it.pool.stats().reads;
        for no in 0..pages {
            it.check(no, 1, Access::Normal).unwrap();
            // A pool without threads has its evictor here.
            it.pool.run_evictor_step();
        }
    }
    it.pool.stats().reads - before
}

#[test]
fn a_pool_reads_less_with_a_tier() {
    let (it, pages) = filled();
    let without = reads_of_last_round(&it, pages, 3);
    it.pool.set_tier_share(800);
    let with = reads_of_last_round(&it, pages, 6);
    it.pool.tier.check();
    let stats = it.pool.tier_stats();
    assert!(with * 4 < without, "{with} of {without}, {stats:?}");
    let taken = stats.frames * PAGE as u64;
    assert!(stats.image_bytes * 10 >= taken * 9, "a tenth of the slabs is lost: {stats:?}");
    assert!(stats.index_bytes <= stats.images * 24, "{stats:?}");
}

#[test]
fn scans_and_unused_prefetches_do_not_come_in() {
    let (it, pages) = filled();
    it.pool.set_tier_share(500);
    let before = it.pool.tier_stats();
    for no in 0..pages {
        it.check(no, 1, Access::Scan).unwrap();
        it.pool.run_evictor_step();
    }
    for no in (0..pages).step_by(20) {
        it.pool.prefetch(&it.space, &(no..no + 20).collect::<Vec<_>>(), Access::Normal);
        it.pool.run_evictor_step();
    }
    // Pages that queries wrote before leave their frames during the scan.
    let came = it.pool.tier_stats().inserted - before.inserted;
    let written_before = u64::from(2 * EXTENT_PAGES);
    assert!(came <= written_before, "{came} images came in");
}

#[test]
fn a_tier_that_is_turned_off_gives_all_of_its_frames_back() {
    let (it, pages) = filled();
    it.pool.set_tier_share(700);
    reads_of_last_round(&it, pages, 3);
    assert!(it.pool.tier_stats().frames > 500);
    it.pool.set_compressed_tier(CompressedTier::Off);
    let stats = it.pool.tier_stats();
    assert_eq!((stats.frames, stats.images, stats.image_bytes), (0, 0, 0));
    assert_eq!(it.pool.compressed_tier(), CompressedTier::Off);
    reads_of_last_round(&it, pages, 2);
    assert_eq!(it.pool.tier_stats().frames, 0);
}

#[test]
fn a_smaller_pool_has_a_smaller_tier_at_once() {
    let (it, pages) = filled();
    it.resize(6);
    it.pool.set_tier_share(700);
    reads_of_last_round(&it, pages, 4);
    let before = it.pool.tier_stats().frames;
    it.resize(3);
    let after = it.pool.tier_stats().frames;
    assert!(after <= before * 6 / 10, "{before} frames, then {after}");
    assert!(it.pool.resident_bytes() <= 3 * EXTENT);
    it.pool.tier.check();
}

#[test]
fn an_image_that_memory_spoilt_is_read_from_the_file() {
    let (it, pages) = filled();
    it.pool.set_tier_share(800);
    reads_of_last_round(&it, pages, 4);
    for shard in &it.pool.tier.shards {
        shard.lock().spoil(&it.pool.core.frames);
    }
    reads_of_last_round(&it, pages, 1);
    it.pool.tier.check();
}

#[test]
fn a_space_that_is_opened_again_has_no_old_images() {
    let (mut it, pages) = filled();
    it.pool.set_tier_share(800);
    reads_of_last_round(&it, pages, 4);
    it.pool.close_space(&it.space, false).unwrap();
    // Another file in its place, as after a restore of the table.
    it.sim.remove(NAME).unwrap();
    let file = PackedFile::create(it.sim.create(NAME).unwrap(), settings()).unwrap();
    it.space = it.pool.open_space(16, file).unwrap();
    for no in 0..pages {
        it.check(no, 0, Access::Normal).unwrap();
    }
}

/// A file whose reads take a while.
struct SlowReads(Arc<dyn StorageFile>);

impl StorageFile for SlowReads {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> crate::storage::Result<()> {
        std::thread::sleep(std::time::Duration::from_millis(5));
        self.0.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> crate::storage::Result<()> {
        self.0.write_at(bytes, offset)
    }

    fn sync_data(&self) -> crate::storage::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> crate::storage::Result<u64> {
        self.0.len()
    }

    fn set_len(&self, len: u64) -> crate::storage::Result<()> {
        self.0.set_len(len)
    }

    fn io_alignment(&self) -> usize {
        self.0.io_alignment()
    }
}

#[test]
fn the_tier_grows_by_itself_where_reads_are_slow() {
    let sim = SimStorage::new(3);
    let file = Arc::new(SlowReads(sim.create(NAME).unwrap()));
    let it = fixture_of(sim, file, 2, true);
    it.pool.tier_sizing.measured.lock().seems_idle = Some(0.9);
    let pages = 4 * EXTENT_PAGES;
    for no in 0..pages {
        it.write(no, 1).unwrap();
    }
    it.pool.flush_all().unwrap();
    let began = Instant::now();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let (it, stop) = (&it, &stop);
            scope.spawn(move || {
                for at in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let no = hash(u64::from(thread) << 40 | at) % u64::from(pages);
                    it.check(no as u32, 1, Access::Normal).unwrap();
                }
            });
        }
        while it.pool.tier_stats().hits < 500 && began.elapsed().as_secs() < 120 {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (stats, decisions) = (it.pool.tier_stats(), it.pool.tier_decisions());
    assert!(stats.hits >= 500, "{stats:?}, {decisions:?}");
    let first = decisions.first().expect("a decision gave the tier its share");
    assert_eq!(first.from_bytes, 0);
    assert!(first.reason.contains("a read"), "{}", first.reason);
}

/// Readers, writers, the threads of the pool, and a share and a size that change all the time.
#[test]
fn threads_see_what_was_last_written() {
    let it = fixture(3, true);
    let pages = 5 * EXTENT_PAGES;
    let changes: Vec<AtomicU64> = (0..pages).map(|_| AtomicU64::new(0)).collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u32 {
            let (it, changes, stop) = (&it, &changes, &stop);
            scope.spawn(move || {
                let mut state = u64::from(thread) + 1;
                let mut random = move || {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state
                };
                while !stop.load(Ordering::Relaxed) {
                    // No two threads have a page in common.
                    let no = (random() % u64::from(pages / 3)) as u32 * 3 + thread;
                    let change = &changes[no as usize];
                    if random() % 4 == 0 {
                        let next = change.load(Ordering::Relaxed) + 1;
                        it.write(no, next).unwrap();
                        change.store(next, Ordering::Relaxed);
                    } else {
                        it.check(no, change.load(Ordering::Relaxed), Access::Normal).unwrap();
                    }
                }
            });
        }
        for round in 0..40u64 {
            it.pool.set_tier_share((round * 173 % 800) as u32);
            it.pool.set_size((2 + round % 3) * EXTENT, ShrinkUrgency::Immediate);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(it.pool.tier_stats().hits > 0);
    it.pool.flush_all().unwrap();
    for no in 0..pages {
        it.check(no, changes[no as usize].load(Ordering::Relaxed), Access::Normal).unwrap();
    }
    // The books are right when no thread of the pool works any more.
    it.pool.shutdown();
    it.pool.tier.check();
}

/// The limit changes while another thread is about to set what followed from the one before.
#[test]
fn the_policy_counts_on_the_frames_of_the_newest_limit() {
    let applied = Arc::new(AtomicU64::new(0));
    let hook = {
        let applied = applied.clone();
        move |call: Call| {
            let Call::SetCapacity(frames) = call else { return };
            if let Some(meanwhile) = MEANWHILE.take() {
                meanwhile();
            }
            applied.store(frames.into(), Ordering::Relaxed);
        }
    };
    let it = with_hook(hook, || fixture(8, false));
    let is_late = Arc::new(AtomicU64::new(0));
    let meanwhile = {
        let (pool, is_late) = (it.pool.clone(), is_late.clone());
        move || {
            pool.core.frames.set_limit(2 * EXTENT_PAGES);
            // A thread would wait for the mutex.
            match pool.tier.fitting.try_lock().is_some() {
                true => pool.tier.fit_replacement(),
                false => is_late.store(1, Ordering::Relaxed),
            }
        }
    };
    MEANWHILE.set(Some(Box::new(meanwhile)));
    it.pool.tier.set_share(250);
    assert!(MEANWHILE.take().is_none(), "the test did nothing: the capacity was never set");
    assert_eq!(it.pool.core.frames.limit(), 2 * EXTENT_PAGES);
    if is_late.load(Ordering::Relaxed) == 1 {
        it.pool.tier.fit_replacement();
    }
    let for_pages = it.pool.core.frames.limit() * 3 / 4;
    assert_eq!(applied.load(Ordering::Relaxed), u64::from(for_pages));
}
