//! The pool on a simulated disk: power cuts at every operation, kills, failing writes and syncs.
//!
//! The property: whatever happened, every page that recovery finds is whole, is one of the versions
//! that the page ever had, and is at least as new as the last checkpoint demands. Redo (here: a map
//! of all versions) can do the rest; then the next life begins on the same disk.
//!
//! `TIDEPOOL_CRASH_SEEDS` says how many seeds; a failure names its seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidepool_pool::storage::{
    AlignedBuf, Fault, FaultKind, SimStorage, Storage, StorageFile, StorageOp,
};
use tidepool_pool::{
    Access, Doublewrite, Error, Lsn, PageId, PageSize, Pool, PoolConfig, Space, page,
};

const SIZE: usize = 4096;
const SPACES: [u32; 2] = [16, 17];
const PAGES: u32 = 40;

fn page_size() -> PageSize {
    PageSize::new(SIZE).unwrap()
}

fn file_name(space: u32) -> String {
    format!("{space}.tpd")
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
}

struct Life {
    pool: Arc<Pool>,
    spaces: Vec<Arc<Space>>,
}

impl Life {
    fn begin(storage: Arc<dyn Storage>) -> Result<Life, Error> {
        let config = PoolConfig {
            page_size: page_size(),
            size_bytes: 24 * SIZE as u64,
            flush_batch_pages: 6,
            background: false,
            ..PoolConfig::default()
        };
        let pool = Pool::new(config, storage.clone())?;
        let spaces = SPACES
            .iter()
            .map(|&id| pool.open_space(id, storage.open(&file_name(id))?))
            .collect::<Result<_, Error>>()?;
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
                    Ok(())
                }
            };
            if result.is_err() && sim.is_down() {
                return;
            }
        }
    }
}

fn make(sim: &SimStorage) {
    for id in SPACES {
        let file = sim.create(&file_name(id)).unwrap();
        file.set_len(PAGES as u64 * SIZE as u64).unwrap();
        file.sync_data().unwrap();
    }
    sim.sync_dir("").unwrap();
}

/// Heals torn pages, checks every page, and redoes what is missing as the start of a new life.
fn recover(sim: &SimStorage, redo: &mut Redo, seed: u64) -> Life {
    let files: Vec<Arc<dyn StorageFile>> =
        SPACES.iter().map(|&id| sim.open(&file_name(id)).unwrap()).collect();
    let file = |id: PageId| Some(files[(id.space - SPACES[0]) as usize].clone());
    Doublewrite::recover(sim, page_size(), Lsn(redo.checkpoint), file).unwrap();
    let mut missing = Vec::new();
    for space in SPACES {
        for no in 0..PAGES {
            let id = PageId::new(space, no);
            let mut bytes = AlignedBuf::zeroed(SIZE);
            file(id).unwrap().read_at(&mut bytes, no as u64 * SIZE as u64).unwrap();
            page::verify(&bytes, id).unwrap_or_else(|why| panic!("seed {seed}: {id}: {why}"));
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
    let life = Life::begin(Arc::new(sim.clone())).unwrap();
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

#[test]
fn no_page_is_ever_lost() {
    let seeds: u64 =
        std::env::var("TIDEPOOL_CRASH_SEEDS").map_or(150, |seeds| seeds.parse().expect("a number"));
    let first: u64 = std::env::var("TIDEPOOL_CRASH_FIRST_SEED")
        .map_or(0, |seed| seed.parse().expect("a number"));
    for seed in first..first + seeds {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
        let mut sim = SimStorage::new(seed);
        make(&sim);
        let mut redo = Redo { next: 10, ..Redo::default() };
        let mut life = Life::begin(Arc::new(sim.clone())).unwrap();
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
    }
}

/// A page with one version, dirty, on a disk of its own.
fn one_dirty_page() -> (SimStorage, Life, Redo) {
    let sim = SimStorage::new(1);
    make(&sim);
    let life = Life::begin(Arc::new(sim.clone())).unwrap();
    let mut redo = Redo { next: 10, ..Redo::default() };
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
    // Others are written all the same, and the failed one's only image stays in the file.
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

/// Pages that failed, so many that there is no room for more, are newer than others that have not
/// been tried.
#[test]
fn failed_pages_are_tried_again_though_others_are_older() {
    let (sim, life, mut redo) = one_dirty_page();
    for no in 0..3 {
        life.write(&mut redo, PageId::new(17, no), 1).unwrap();
    }
    let older = [(0, 3), (1, 0), (1, 1), (1, 2)];
    let older = older
        .map(|(space, no)| life.pool.exclusive(&life.spaces[space], no, Access::Normal).unwrap());
    for no in 10..18 {
        life.write(&mut redo, PageId::new(16, no), 2).unwrap();
    }
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).on("16").always());
    assert_eq!(life.pool.flush_up_to(Lsn::MAX, 4).unwrap(), 0, "they are in use");
    while life.pool.stats().write_errors < 6 {
        life.pool.flush_up_to(Lsn::MAX, 4).unwrap_err();
    }
    drop(older);
    // That they are tried can be seen by whoever waits for it.
    for _ in 0..3 {
        let errors = life.pool.stats().write_errors;
        life.pool.flush_up_to(Lsn::MAX, 4).unwrap_err();
        assert!(life.pool.stats().write_errors > errors);
    }
    sim.clear_faults();
    life.pool.flush_all().unwrap();
    assert_eq!(life.pool.oldest_dirty_lsn(), None);
}

#[test]
fn neighbouring_pages_go_home_with_one_write() {
    let (sim, life, mut redo) = one_dirty_page();
    life.pool.flush_all().unwrap();
    let mut operations_to_flush = |pages: [u32; 6]| {
        for no in pages {
            life.write(&mut redo, PageId::new(16, no), 9).unwrap();
        }
        let before = sim.operation_count();
        life.pool.flush_all().unwrap();
        sim.operation_count() - before
    };
    let scattered = operations_to_flush([4, 6, 8, 10, 12, 14]);
    // Made dirty in another order than they lie in the file; in two batches.
    assert_eq!(operations_to_flush([13, 10, 12, 11, 15, 14]), scattered - 4);
    // A write that fails is tried page by page, and holds up only the page that fails alone too.
    for no in 10..14 {
        life.write(&mut redo, PageId::new(16, no), 8).unwrap();
    }
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).on("16").times(2));
    let flushed = life.pool.stats().pages_flushed;
    life.pool.flush_up_to(Lsn::MAX, 64).unwrap_err();
    let stats = life.pool.stats();
    assert_eq!((stats.pages_flushed - flushed, stats.write_errors, stats.pages_dirty), (3, 1, 1));
    life.pool.flush_all().unwrap();
    assert_eq!(life.pool.oldest_dirty_lsn(), None);
}

#[test]
fn a_failed_sync_ends_all_writing_but_not_reading() {
    for kind in [FaultKind::Io, FaultKind::Panic] {
        let (sim, life, mut redo) = one_dirty_page();
        sim.inject(Fault::new(StorageOp::Sync, kind).on("16"));
        life.pool.flush_all().unwrap_err();
        let before = sim.operation_count();
        life.write(&mut redo, PageId::new(17, 5), 1).unwrap();
        assert!(life.pool.flush_all().is_err());
        assert_eq!(sim.operation_count(), before, "not even the doublewrite file is touched");
        let read = |no| life.pool.shared(&life.spaces[0], no, Access::Normal).unwrap()[100];
        assert_eq!((read(3), read(20)), (7, 0));
        // The next start heals what was torn.
        drop(life);
        recover(&sim.crash(), &mut redo, 0).pool.flush_all().unwrap();
    }
}

#[test]
fn a_failed_doublewrite_sync_costs_only_the_file() {
    for kind in [FaultKind::Io, FaultKind::Panic] {
        let (sim, life, mut redo) = one_dirty_page();
        sim.inject(Fault::new(StorageOp::Sync, kind).on("doublewrite").skip(1));
        assert!(life.pool.flush_all().is_err());
        assert_eq!(life.pool.oldest_dirty_lsn(), Some(Lsn(10)));
        life.pool.flush_all().unwrap();
        life.write(&mut redo, PageId::new(16, 4), 1).unwrap();
        life.pool.flush_all().unwrap();
        assert!(!sim.exists("doublewrite.tpd.new").unwrap());
    }
}

#[test]
fn a_successor_that_never_took_the_doublewrite_files_place_is_removed() {
    for doublewrite in [true, false] {
        let (sim, life, mut redo) = one_dirty_page();
        sim.inject(Fault::new(StorageOp::Sync, FaultKind::Io).on("doublewrite").skip(1));
        life.pool.flush_all().unwrap_err();
        sim.inject(Fault::new(StorageOp::Rename, FaultKind::Io).on("doublewrite"));
        life.pool.flush_all().unwrap_err();
        drop(life);
        let sim = sim.kill();
        assert!(sim.exists("doublewrite.tpd.new").unwrap());
        match doublewrite {
            true => recover(&sim, &mut redo, 0).pool.flush_all().unwrap(),
            false => Doublewrite::remove(&sim).unwrap(),
        }
        assert!(!sim.exists("doublewrite.tpd.new").unwrap());
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
    // It may be torn, so its image outlives any number of batches.
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
        let (sim, life, _) = one_dirty_page();
        sim.inject(Fault::new(StorageOp::Read, kind).on("16"));
        let error = life.pool.shared(&life.spaces[0], 8, Access::Normal).unwrap_err();
        assert!(matches!(error, Error::Storage(_) | Error::Panicked(_)), "{error}");
        assert_eq!(life.pool.shared(&life.spaces[0], 8, Access::Normal).unwrap()[0], 0);
        // Read-ahead keeps the error to itself.
        sim.inject(Fault::new(StorageOp::Read, kind).on("16"));
        life.pool.prefetch(&life.spaces[0], &[9], Access::Normal);
        assert_eq!(life.pool.shared(&life.spaces[0], 9, Access::Normal).unwrap()[0], 0);
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

/// Flips a bit of the page, and expects recovery, with a log from there on, to leave it, and the
/// pool to report it.
fn expect_rot_is_reported(sim: &SimStorage, id: PageId, checkpoint: Lsn) {
    sim.corrupt(&file_name(id.space), page_size().offset_of(id.no) + 500, 1);
    let file = sim.open(&file_name(id.space)).unwrap();
    let file_of = |other: PageId| (other.space == id.space).then(|| file.clone());
    assert_eq!(Doublewrite::recover(sim, page_size(), checkpoint, file_of).unwrap(), []);
    let life = Life::begin(Arc::new(sim.clone())).unwrap();
    let space = &life.spaces[(id.space - SPACES[0]) as usize];
    let error = life.pool.shared(space, id.no, Access::Normal).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

/// The page that `with_an_older_image` leaves an older image of.
const TWICE_WRITTEN: PageId = PageId { space: 16, no: 8 };

/// Behind the images of the last batches lies an image of a page that is older than the page.
fn with_an_older_image() -> (SimStorage, Redo) {
    let (sim, life, mut redo) = one_dirty_page();
    for no in [6, 7, 8, 4] {
        life.write(&mut redo, PageId::new(16, no), 1).unwrap();
    }
    life.pool.flush_all().unwrap();
    life.write(&mut redo, TWICE_WRITTEN, 2).unwrap();
    life.pool.flush_all().unwrap();
    // Both halves are overwritten by shorter batches.
    for no in 0..4 {
        life.write(&mut redo, PageId::new(17, no), 1).unwrap();
        life.pool.flush_all().unwrap();
    }
    assert_eq!(life.pool.oldest_dirty_lsn(), None);
    redo.checkpoint = redo.next;
    let file = sim.open("doublewrite.tpd").unwrap();
    let mut all = AlignedBuf::zeroed(file.len().unwrap() as usize);
    file.read_at(&mut all, 0).unwrap();
    let mut images = all.chunks_exact(SIZE).filter(|image| page::page_id(image) == TWICE_WRITTEN);
    assert_eq!(images.next().unwrap()[100], 1);
    assert!(images.next().is_none());
    (sim, redo)
}

/// Rot in a page must not be "healed" with what it held before its last write.
#[test]
fn rot_is_reported_rather_than_undone() {
    let (sim, _) = with_an_older_image();
    expect_rot_is_reported(&sim, TWICE_WRITTEN, Lsn(0));
}

/// A power cut in a write of the doublewrite file: the header is there, the images behind it are
/// not.
#[test]
fn an_older_image_behind_a_new_header_undoes_nothing() {
    let (sim, redo) = with_an_older_image();
    let file = sim.open("doublewrite.tpd").unwrap();
    for half in [0, file.len().unwrap() / 2] {
        let mut header = AlignedBuf::zeroed(SIZE);
        file.read_at(&mut header, half).unwrap();
        header[24..28].copy_from_slice(&5u32.to_le_bytes());
        let checksum = crc32c::crc32c(&header[12..28]);
        header[8..12].copy_from_slice(&checksum.to_le_bytes());
        file.write_at(&header, half).unwrap();
    }
    expect_rot_is_reported(&sim, TWICE_WRITTEN, Lsn(redo.checkpoint));
    // A log that reaches back to the image makes the page of it.
    let home = sim.open(&file_name(16)).unwrap();
    let file_of = |id: PageId| (id.space == 16).then(|| home.clone());
    let healed = Doublewrite::recover(&sim, page_size(), Lsn(0), file_of);
    assert_eq!(healed.unwrap(), [TWICE_WRITTEN]);
    let mut bytes = AlignedBuf::zeroed(SIZE);
    home.read_at(&mut bytes, page_size().offset_of(TWICE_WRITTEN.no)).unwrap();
    assert_eq!(bytes[100], 1);
}

/// The same, with the older image in a half that the next runs do not come to overwrite.
#[test]
fn rot_is_not_undone_by_an_earlier_run_either() {
    let (sim, life, mut redo) = one_dirty_page();
    life.pool.flush_all().unwrap();
    life.write(&mut redo, PageId::new(16, 3), 8).unwrap();
    life.pool.flush_all().unwrap();
    drop(life);
    for (id, value) in [(PageId::new(16, 3), 9), (PageId::new(17, 0), 1)] {
        let life = Life::begin(Arc::new(sim.clone())).unwrap();
        life.write(&mut redo, id, value).unwrap();
        life.pool.flush_all().unwrap();
    }
    expect_rot_is_reported(&sim, PageId::new(16, 3), Lsn(0));
}

/// As a device tells of sectors that the power cut tore: the batch never got home.
#[test]
fn images_that_cannot_be_read_count_as_torn() {
    let (sim, life, mut redo) = one_dirty_page();
    for no in [4, 5, 6] {
        life.write(&mut redo, PageId::new(16, no), 1).unwrap();
    }
    life.pool.flush_all().unwrap();
    drop(life);
    let file = sim.open(&file_name(16)).unwrap();
    let flip = || sim.corrupt(&file_name(16), page_size().offset_of(4) + 500, 1);
    let recover = |fault: Fault| {
        flip();
        sim.inject(fault.on("doublewrite"));
        let healed = Doublewrite::recover(&sim, page_size(), Lsn(0), |_| Some(file.clone()));
        sim.clear_faults();
        healed.unwrap()
    };
    let fault = || Fault::new(StorageOp::Read, FaultKind::Io);
    assert_eq!(recover(fault().always()), []);
    flip();
    // The header of the first half, which has nothing; that of the second.
    assert_eq!(recover(fault().times(2)), [PageId::new(16, 4)]);
    assert_eq!(recover(fault().skip(1).times(2)), []);
    flip();
    // The images at once, and of them the first.
    assert_eq!(recover(fault().skip(2).times(2)), [PageId::new(16, 4)]);
}
