//! The pool on a simulated disk: power cuts at every operation, kills, failing writes and syncs.
//! One of its spaces has a mirror.
//!
//! The property: whatever happened, every page that recovery finds is whole, is one of the versions
//! that the page ever had, and is at least as new as the last checkpoint demands; and so is its
//! second copy, unless a power cut tore that in a write behind the page's own. Redo (here: a map
//! of all versions) can do the rest; then the next life begins on the same disk.
//!
//! `TIDEPOOL_CRASH_SEEDS` says how many seeds; a failure names its seed.

mod packed;

use std::collections::BTreeMap;
use std::sync::Arc;

use tidepool_pool::packed::{Access as FileAccess, PackedFile, Settings};
use tidepool_pool::storage::{AlignedBuf, Fault, FaultKind, SimStorage, Storage, StorageOp};
use tidepool_pool::{Access, Error, Lsn, Mirror, PageId, PageSize, Pool, PoolConfig, Space, page};

const SIZE: usize = 4096;
const SPACES: [u32; 2] = [16, 17];
const PAGES: u32 = 40;

fn page_size() -> PageSize {
    PageSize::new(SIZE).unwrap()
}

fn file_name(space: u32) -> String {
    format!("{space}.tpd")
}

/// The space that has a mirror, and the mirror's file.
const MIRRORED: u32 = 16;
const MIRROR_FILE: &str = "mirror.tpd";

/// Some of its pages have a second copy.
fn slot_of(no: u32, _: PageSize) -> Option<u32> {
    (no % 3 != 1).then_some(no)
}

fn mirror(storage: &dyn Storage) -> Result<Mirror, Error> {
    Ok(Mirror::new(storage.open(MIRROR_FILE)?, page_size(), slot_of))
}

/// A small generator, so that the test needs nothing but its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What the redo log would know.
#[derive(Default)]
struct Redo {
    next: u64,
    /// Page → page LSN → value.
    versions: BTreeMap<PageId, BTreeMap<u64, u8>>,
    checkpoint: u64,
    /// The newest run of each file, as they were noted before the checkpoint.
    newest_runs: BTreeMap<u32, u64>,
    /// How often the files were opened.
    openings: u64,
}

impl Redo {
    /// Opens the file of a space.
    fn open(&mut self, storage: &dyn Storage, space: u32) -> Result<PackedFile, Error> {
        self.openings += 1;
        let settings = Settings {
            page_size: page_size(),
            instance: *b"a data directory",
            space,
            random: self.openings,
        };
        let known = self.newest_runs.get(&space).copied().unwrap_or(0);
        let file = storage.open(&file_name(space))?;
        PackedFile::open(file, settings, FileAccess::ReadWrite, known).map_err(Error::of_file)
    }
}

struct Life {
    pool: Arc<Pool>,
    spaces: Vec<Arc<Space>>,
}

impl Life {
    fn begin(storage: Arc<dyn Storage>, redo: &mut Redo) -> Result<Life, Error> {
        let config = PoolConfig {
            page_size: page_size(),
            size_bytes: 24 * SIZE as u64,
            flush_batch_pages: 6,
            background: false,
            ..PoolConfig::default()
        };
        let pool = Pool::new(config, storage.clone())?;
        let mut spaces = Vec::new();
        for id in SPACES {
            let file = redo.open(&*storage, id)?;
            let mirror = if id == MIRRORED { Some(mirror(&*storage)?) } else { None };
            let space = pool.open_mirrored_space(id, file, mirror)?;
            space.note_page_count(PAGES);
            spaces.push(space);
        }
        Ok(Life { pool, spaces })
    }

    fn write(&self, redo: &mut Redo, id: PageId, value: u8) -> Result<(), Error> {
        let space = &self.spaces[(id.space - SPACES[0]) as usize];
        let mut guard = self.pool.exclusive(space, id.no, Access::Normal)?;
        let bytes = guard.bytes_mut();
        page::set_page_id(bytes, id);
        bytes[32..].fill(value);
        let (start, end) = (redo.next, redo.next + 10);
        redo.next = end;
        self.pool.mark_dirty(&mut guard, Lsn(start), Lsn(end));
        redo.versions.entry(id).or_default().insert(end, value);
        Ok(())
    }

    /// Changes and flushes at random until done, or until the power fails.
    fn run(&self, redo: &mut Redo, random: &mut Random, steps: u64, sim: &SimStorage) {
        for _ in 0..steps {
            let id =
                PageId::new(SPACES[random.below(2) as usize], random.below(PAGES as u64) as u32);
            let result = match random.below(20) {
                0..15 => self.write(redo, id, random.below(255) as u8 + 1),
                15 => self.pool.flush_up_to(Lsn(redo.next), 1 + random.below(9) as usize).map(drop),
                16 => self.pool.run_cleaner_step().map(drop),
                17 => {
                    self.pool.set_checkpoint_pressure(Lsn(redo.next / 2));
                    self.pool.run_cleaner_step().map(drop)
                }
                18 => {
                    self.pool.prefetch(
                        &self.spaces[0],
                        &[id.no, id.no + 1, id.no + 2],
                        Access::Scan,
                    );
                    Ok(())
                }
                _ => {
                    redo.checkpoint = self.pool.oldest_dirty_lsn().map_or(redo.next, |lsn| lsn.0);
                    redo.newest_runs = self.pool.newest_runs().into_iter().collect();
                    Ok(())
                }
            };
            match result {
                Ok(()) => {}
                Err(_) if sim.is_down() => return,
                // The disk fails, or its code panics, which costs no page.
                Err(Error::Storage(_) | Error::Panicked(_) | Error::NoFreeFrame { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn make(sim: &SimStorage) {
    for id in SPACES {
        packed::create(sim.create(&file_name(id)).unwrap(), id, SIZE);
    }
    let mirror = sim.create(MIRROR_FILE).unwrap();
    mirror.set_len(u64::from(PAGES) * SIZE as u64).unwrap();
    mirror.sync_data().unwrap();
    sim.sync_dir("").unwrap();
}

/// Checks every page, makes the mirror the same as its space, and redoes what is missing as the
/// start of a new life.
fn recover(sim: &SimStorage, redo: &mut Redo, seed: u64) -> Life {
    let mut missing = Vec::new();
    for space in SPACES {
        let file = redo.open(sim, space).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        for no in 0..PAGES {
            let id = PageId::new(space, no);
            let mut bytes = AlignedBuf::zeroed(SIZE);
            file.read(space, no, &mut bytes).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            page::verify(&bytes, id).unwrap_or_else(|why| panic!("seed {seed}: {id}: {why}"));
            if space == MIRRORED {
                check_second_copy(sim, redo, (id, &bytes), seed);
            }
            let lsn = page::page_lsn(&bytes).0;
            let none = BTreeMap::new();
            let versions = redo.versions.get(&id).unwrap_or(&none);
            if lsn > 0 {
                let value = versions.get(&lsn);
                assert!(value.is_some(), "seed {seed}: {id} has LSN {lsn}, which never was");
                assert!(bytes[32..].iter().all(|byte| Some(byte) == value), "seed {seed}: {id}");
            }
            for (&later, &value) in versions.range(lsn + 1..) {
                assert!(
                    later > redo.checkpoint,
                    "seed {seed}: {id} has LSN {lsn}, but {later} was before the checkpoint {}",
                    redo.checkpoint
                );
                missing.push((later, id, value));
            }
        }
    }
    // As redo does: in LSN order, changing nothing but what is older.
    missing.sort();
    let life = Life::begin(Arc::new(sim.clone()), redo).unwrap();
    for (end, id, value) in missing {
        let space = &life.spaces[(id.space - SPACES[0]) as usize];
        let mut guard = life.pool.exclusive(space, id.no, Access::Normal).unwrap();
        let bytes = guard.bytes_mut();
        page::set_page_id(bytes, id);
        bytes[32..].fill(value);
        life.pool.mark_dirty(&mut guard, Lsn(end - 10), Lsn(end));
    }
    life
}

/// The second copy of a page is one of its versions, and no older than the checkpoint demands,
/// unless a write tore it. Then it is made the same as the page.
fn check_second_copy(sim: &SimStorage, redo: &Redo, (id, page): (PageId, &[u8]), seed: u64) {
    let mirror = mirror(sim).unwrap();
    let mut copy = AlignedBuf::zeroed(SIZE);
    if mirror.read(id, &mut copy) {
        let lsn = page::page_lsn(&copy).0;
        let value = redo.versions[&id].get(&lsn);
        assert!(copy[32..].iter().all(|byte| Some(byte) == value), "seed {seed}: copy of {id}");
        let newest = redo.versions[&id].range(..=redo.checkpoint).next_back();
        let newest = newest.map_or(0, |(lsn, _)| *lsn);
        assert!(lsn >= newest, "seed {seed}: the copy of {id} has LSN {lsn}, older than {newest}");
    } else if mirror.offset_of(id.no).is_some() {
        let was_written = page::is_zero(page);
        let must =
            redo.versions.get(&id).is_some_and(|all| all.range(..=redo.checkpoint).count() > 0);
        assert!(!was_written || !must, "seed {seed}: {id} is lost in both files");
    }
    if !page::is_zero(page) {
        mirror.write(id.no, page).unwrap();
        mirror.file().sync_data().unwrap();
    }
}

#[test]
fn no_page_is_ever_lost() {
    let seeds: u64 =
        std::env::var("TIDEPOOL_CRASH_SEEDS").map_or(150, |seeds| seeds.parse().expect("a number"));
    let first: u64 = std::env::var("TIDEPOOL_CRASH_FIRST_SEED")
        .map_or(0, |seed| seed.parse().expect("a number"));
    // Seeds with writes, and with writes that a checkpoint relies on.
    let (mut written, mut relied_on) = (0, 0);
    for seed in first..first + seeds {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
        let mut sim = SimStorage::new(seed);
        make(&sim);
        let mut redo = Redo { next: 10, ..Redo::default() };
        let mut life = Life::begin(Arc::new(sim.clone()), &mut redo).unwrap();
        for _ in 0..4 {
            if random.below(2) == 0 {
                sim.set_error_chance(StorageOp::Write, FaultKind::Io, 40_000);
            }
            if random.below(4) == 0 {
                sim.set_error_chance(StorageOp::Write, FaultKind::Panic, 20_000);
            }
            if random.below(4) == 0 {
                let kind = if random.below(2) == 0 { FaultKind::Io } else { FaultKind::Panic };
                sim.inject(Fault::new(StorageOp::Sync, kind).skip(random.below(40)));
            }
            sim.crash_at(sim.operation_count() + 1 + random.below(300));
            let steps = 50 + random.below(400);
            life.run(&mut redo, &mut random, steps, &sim);
            drop(life);
            sim = match random.below(3) {
                0 if !sim.is_down() => sim.kill(),
                _ => sim.crash(),
            };
            life = recover(&sim, &mut redo, seed);
        }
        life.pool.flush_all().unwrap();
        assert_eq!(life.pool.oldest_dirty_lsn(), None);
        written += u64::from(!redo.versions.is_empty());
        let mut versions = redo.versions.values();
        let is_relied_on = versions.any(|of| of.range(..=redo.checkpoint).count() > 0);
        relied_on += u64::from(is_relied_on);
    }
    println!("{seeds} seeds, {written} with writes, {relied_on} with a checkpoint behind them");
    assert!(written == seeds && relied_on * 2 >= seeds, "{written}, {relied_on} of {seeds}");
}

/// A page with one version, dirty, on a separate disk.
fn one_dirty_page() -> (SimStorage, Life, Redo) {
    let sim = SimStorage::new(1);
    make(&sim);
    let mut redo = Redo { next: 10, ..Redo::default() };
    let life = Life::begin(Arc::new(sim.clone()), &mut redo).unwrap();
    life.write(&mut redo, PageId::new(16, 3), 7).unwrap();
    (sim, life, redo)
}

#[test]
fn a_failed_write_leaves_the_page_dirty_and_is_tried_again() {
    let (sim, life, mut redo) = one_dirty_page();
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).on("16").times(3));
    let error = life.pool.flush_all().unwrap_err();
    assert!(matches!(&error, Error::Storage(error) if &*error.file == "16.tpd"), "{error}");
    assert_eq!(life.pool.oldest_dirty_lsn(), Some(Lsn(10)));
    assert_eq!(life.pool.stats().write_errors, 1);
    // Others are written all the same.
    for no in 10..30 {
        life.write(&mut redo, PageId::new(17, no), 9).unwrap();
        let _ = life.pool.flush_up_to(Lsn::MAX, 1);
    }
    let failures = std::iter::from_fn(|| life.pool.flush_all().err()).count();
    assert!(failures <= 2, "{failures}");
    assert_eq!(life.pool.oldest_dirty_lsn(), None);
    let stats = life.pool.stats();
    assert_eq!((stats.write_errors, stats.pages_dirty), (3, 0));
}

/// A page is written when both copies are.
#[test]
fn a_failed_write_of_the_second_copy_leaves_the_page_dirty() {
    for kind in [FaultKind::Io, FaultKind::Panic] {
        let (sim, life, mut redo) = one_dirty_page();
        life.write(&mut redo, PageId::new(17, 3), 8).unwrap();
        // It has none.
        life.write(&mut redo, PageId::new(16, 4), 8).unwrap();
        sim.inject(Fault::new(StorageOp::Write, kind).on(MIRROR_FILE));
        life.pool.flush_all().unwrap_err();
        let stats = life.pool.stats();
        assert_eq!((stats.pages_dirty, stats.pages_flushed, stats.mirror_pages_written), (1, 2, 0));
        assert_eq!(life.pool.oldest_dirty_lsn(), Some(Lsn(10)));
        life.pool.flush_all().unwrap();
        let stats = life.pool.stats();
        assert_eq!((stats.pages_dirty, stats.pages_flushed, stats.mirror_pages_written), (0, 3, 1));
        recover(&sim.kill(), &mut redo, 0);
    }
}

#[test]
fn a_batch_is_one_write_and_one_sync_of_each_file() {
    let (sim, life, mut redo) = one_dirty_page();
    life.pool.flush_all().unwrap();
    // So that no file grows.
    life.spaces.iter().for_each(|space| space.file().reserve(100).unwrap());
    let mut operations_to_flush = |pages: &[(u32, u32)]| {
        for &(space, no) in pages {
            life.write(&mut redo, PageId::new(space, no), 9).unwrap();
        }
        let before = sim.operation_count();
        life.pool.flush_up_to(Lsn::MAX, 64).unwrap();
        sim.operation_count() - before
    };
    assert_eq!(operations_to_flush(&[(17, 4), (17, 20), (17, 8)]), 2);
    assert_eq!(operations_to_flush(&[(16, 4), (16, 10), (17, 8)]), 4, "none has a second copy");
    assert_eq!(operations_to_flush(&[(16, 4), (16, 5), (17, 8)]), 6, "one has");
}

#[test]
fn a_failed_sync_ends_all_writing_but_not_reading() {
    let kinds = [FaultKind::Io, FaultKind::Panic].into_iter();
    for (kind, file) in kinds.flat_map(|kind| [(kind, "16"), (kind, MIRROR_FILE)]) {
        let (sim, life, mut redo) = one_dirty_page();
        sim.inject(Fault::new(StorageOp::Sync, kind).on(file));
        life.pool.flush_all().unwrap_err();
        let before = sim.operation_count();
        life.write(&mut redo, PageId::new(17, 5), 1).unwrap();
        assert!(life.pool.flush_all().is_err());
        assert_eq!(sim.operation_count(), before);
        let read = |no| life.pool.shared(&life.spaces[0], no, Access::Normal).unwrap()[100];
        assert_eq!((read(3), read(20)), (7, 0));
        drop(life);
        recover(&sim.crash(), &mut redo, 0).pool.flush_all().unwrap();
    }
}

#[test]
fn a_write_that_panics_leaves_the_page_dirty_and_is_tried_again() {
    let (sim, life, mut redo) = one_dirty_page();
    life.write(&mut redo, PageId::new(17, 3), 8).unwrap();
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Panic).on("16"));
    let error = life.pool.flush_all().unwrap_err();
    assert!(matches!(error, Error::Panicked(_)), "{error}");
    assert_eq!(life.pool.oldest_dirty_lsn(), Some(Lsn(10)));
    // And so it is behind any number of other batches.
    for no in 10..30 {
        life.write(&mut redo, PageId::new(17, no), 9).unwrap();
        sim.inject(Fault::new(StorageOp::Write, FaultKind::Panic).on("16"));
        let _ = life.pool.flush_up_to(Lsn::MAX, 2);
    }
    drop(life);
    let life = recover(&sim.crash(), &mut redo, 0);
    life.pool.flush_all().unwrap();
    assert_eq!(life.pool.stats().pages_dirty, 0);
}

#[test]
fn an_unreadable_page_is_an_error_until_it_is_readable() {
    for kind in [FaultKind::Io, FaultKind::Panic] {
        let (sim, life, mut redo) = one_dirty_page();
        for no in [8, 9] {
            life.write(&mut redo, PageId::new(17, no), 5).unwrap();
        }
        life.pool.flush_all().unwrap();
        drop(life);
        let life = Life::begin(Arc::new(sim.clone()), &mut redo).unwrap();
        let read = |no| life.pool.shared(&life.spaces[1], no, Access::Normal);
        sim.inject(Fault::new(StorageOp::Read, kind).on("17"));
        let error = read(8).unwrap_err();
        assert!(matches!(error, Error::Storage(_) | Error::Panicked(_)), "{error}");
        assert_eq!(read(8).unwrap()[100], 5);
        // Read-ahead keeps the error to itself.
        sim.inject(Fault::new(StorageOp::Read, kind).on("17"));
        life.pool.prefetch(&life.spaces[1], &[9], Access::Normal);
        assert_eq!(read(9).unwrap()[100], 5);
        assert_eq!(life.pool.stats().read_errors, 2);
    }
}

#[test]
fn a_pool_that_cannot_write_says_why_it_has_no_frame() {
    let (sim, life, mut redo) = one_dirty_page();
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).always());
    let error = (0..PAGES)
        .find_map(|no| life.write(&mut redo, PageId::new(17, no), 1).err())
        .expect("more pages than frames");
    assert!(matches!(error, Error::Storage(_)), "{error}");
    sim.clear_faults();
    life.write(&mut redo, PageId::new(17, 39), 1).unwrap();
    life.pool.flush_all().unwrap();
}

/// It has no redo log to wait for any more, and the directory may be somebody else's.
#[test]
fn a_pool_that_was_shut_down_writes_nothing() {
    let (sim, life, mut redo) = one_dirty_page();
    life.pool.shutdown();
    life.pool.clear_write_ahead();
    let before = sim.operation_count();
    assert!(matches!(life.pool.flush_all(), Err(Error::ShutDown)));
    let error = (0..PAGES)
        .find_map(|no| life.write(&mut redo, PageId::new(17, no), 1).err())
        .expect("more pages than frames");
    assert!(matches!(error, Error::ShutDown), "{error}");
    assert_eq!(sim.operation_count(), before);
    let read = life.pool.shared(&life.spaces[0], 3, Access::Normal).unwrap()[100];
    assert_eq!(read, 7, "it serves what it has");
}

/// Flips a bit of the newest image of a page.
fn spoil(sim: &SimStorage, life: &Life, id: PageId) {
    let space = &life.spaces[(id.space - SPACES[0]) as usize];
    let image = space.file().find(id.space, id.no).unwrap().unwrap();
    sim.corrupt(&file_name(id.space), image.offset() + 5, 1);
}

/// Rot in a page must not be "healed" with what it held before its last write.
#[test]
fn rot_is_reported_rather_than_undone() {
    let (sim, life, mut redo) = one_dirty_page();
    let id = PageId::new(17, 8);
    for value in [1, 2] {
        life.write(&mut redo, id, value).unwrap();
        life.pool.flush_all().unwrap();
    }
    redo.newest_runs = life.pool.newest_runs().into_iter().collect();
    spoil(&sim, &life, id);
    drop(life);
    let life = Life::begin(Arc::new(sim.clone()), &mut redo).unwrap();
    let error = life.pool.shared(&life.spaces[1], id.no, Access::Normal).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

/// Where there is a second copy it is read, and goes home.
#[test]
fn rot_in_a_page_that_has_a_second_copy_is_made_good() {
    let (sim, life, mut redo) = one_dirty_page();
    let id = PageId::new(16, 3);
    life.pool.flush_all().unwrap();
    redo.newest_runs = life.pool.newest_runs().into_iter().collect();
    spoil(&sim, &life, id);
    drop(life);
    let life = Life::begin(Arc::new(sim.clone()), &mut redo).unwrap();
    assert_eq!(life.pool.shared(&life.spaces[0], id.no, Access::Normal).unwrap()[100], 7);
    drop(life);
    let mut bytes = AlignedBuf::zeroed(SIZE);
    redo.open(&sim.crash(), 16).unwrap().read(16, id.no, &mut bytes).unwrap();
    assert_eq!(bytes[100], 7);
}
