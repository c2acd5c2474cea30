//! Faults at the seams: roots that land though their write failed, bytes that a killed process
//! left, headers that are lost, segments that are cut while the cleaner is about to read them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::entry::Object;
use super::super::geometry::{BLOCK, ROOT_BLOCKS};
use super::super::root::{Root, Slot};
use super::super::run::RunHeader;
use super::super::*;
use super::model::{FILE, Model, PAGE, SPACE, create, image, page_of, reopen, settings, write};
use crate::storage::{Fault, FaultKind, SimStorage, Storage, StorageError, StorageFile, StorageOp};

const PAGES: u32 = 1035;

/// Images of `pages` that do not shrink: 15 of them with a header fill a segment.
fn whole(pages: std::ops::Range<u32>, version: u32) -> Vec<(u32, u32)> {
    pages.map(|no| (no, version * 3 + (3 - no % 3))).collect()
}

/// A file whose next write of a root fails once it is armed, and may land all the same.
struct Failing {
    file: Arc<dyn StorageFile>,
    is_armed: Arc<AtomicBool>,
    lands: bool,
}

impl StorageFile for Failing {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> crate::storage::Result<()> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> crate::storage::Result<()> {
        let is_root = offset < ROOT_BLOCKS * BLOCK as u64;
        let fails = is_root && self.is_armed.swap(false, Ordering::Relaxed);
        if !fails || self.lands {
            self.file.write_at(bytes, offset)?;
        }
        match fails {
            true => {
                let why = std::io::Error::other("armed");
                Err(StorageError::at(StorageOp::Write, self.name(), offset, why))
            }
            false => Ok(()),
        }
    }

    fn sync_data(&self) -> crate::storage::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> crate::storage::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> crate::storage::Result<()> {
        self.file.set_len(len)
    }

    fn io_alignment(&self) -> usize {
        self.file.io_alignment()
    }
}

fn create_failing(disk: &SimStorage, is_armed: Arc<AtomicBool>, lands: bool) -> PackedFile {
    let file = Arc::new(Failing { file: disk.create(FILE).unwrap(), is_armed, lands });
    PackedFile::create(file, settings(1)).unwrap()
}

/// A life with a root that fails, and what comes after it, until the power is cut.
fn life_with_failed_root(disk: &SimStorage, model: &mut Model, how: StorageOp) -> Result<()> {
    let is_armed = Arc::new(AtomicBool::new(false));
    let packed = create_failing(disk, is_armed.clone(), true);
    disk.sync_dir("").unwrap();
    // Two leaves, and an older state of the segments between their nodes and the end of the chain.
    for version in 1..3 {
        write(&packed, model, &whole(1015..PAGES, version))?;
    }
    packed.checkpoint()?;
    write(&packed, model, &whole(1000..1024, 5))?;
    packed.checkpoint()?;
    write(&packed, model, &[(1003, 50), (1007, 50)])?;
    // A segment that is empty, and that no stream may fill before a root.
    for version in 6..9 {
        write(&packed, model, &whole(1000..1015, version))?;
    }
    match how {
        StorageOp::Write => is_armed.store(true, Ordering::Relaxed),
        _ => disk.inject(Fault::new(StorageOp::Sync, FaultKind::Io).skip(1)),
    }
    match packed.checkpoint() {
        Err(Error::Storage(error)) if error.op == how => {}
        Err(error) => return Err(error),
        Ok(()) => panic!("its root fails"),
    }
    if how == StorageOp::Sync {
        // No later sync of the file can be believed.
        let refused = write(&packed, &mut model.clone(), &[(1001, 60)]).unwrap_err();
        assert!(refused.is_failed_sync(), "{refused}");
        assert!(packed.checkpoint().unwrap_err().is_failed_sync());
        disk.sync_dir("")?;
        return Ok(());
    }
    // A node more must be written, so the next attempt differs from the one that failed.
    let segments = packed.writer.lock().segments.count();
    for segment in 0..segments {
        packed.clean(Victim { segment, live_units: 1, units: 1, age: 0 })?;
    }
    for version in 61..63 {
        write(&packed, model, &[(1001, version), (1002, version), (1033, version)])?;
        packed.checkpoint()?;
    }
    Ok(())
}

/// Batches of two streams after a start, and another start.
fn go_on(disk: &SimStorage, packed: PackedFile, model: &mut Model, what: &str) {
    for version in 70..73 {
        write(&packed, model, &whole(1000..1016, version)).unwrap();
        let moved = [(1020, version), (1021, version)];
        let images = moved.map(|(no, version)| image(no, version));
        packed.write(Stream::Moved, &images).unwrap();
        model.durable(&moved);
    }
    let known = packed.usage().sequence;
    drop(packed);
    let file = disk.open(FILE).unwrap();
    let packed = PackedFile::open(file, settings(10), Access::ReadWrite, known)
        .unwrap_or_else(|error| panic!("{what}, and then: {error}"));
    model.check(&packed, PAGES, what);
}

/// Nothing is written over what a root leads to whose write failed: it may be on the disk.
#[test]
fn a_root_that_failed_and_is_there_all_the_same_leads_to_whole_nodes() {
    for how in [StorageOp::Write, StorageOp::Sync] {
        let first = {
            let disk = SimStorage::new(3);
            create(&disk, 1);
            disk.operation_count()
        };
        let whole = SimStorage::new(3);
        life_with_failed_root(&whole, &mut Model::default(), how).unwrap();
        for at in first + 1..=whole.operation_count() {
            let disk = SimStorage::new(3);
            disk.crash_at(at);
            let mut model = Model { first: 995, ..Model::default() };
            let outcome = life_with_failed_root(&disk, &mut model, how);
            assert!(outcome.is_err() || at == whole.operation_count());
            for outcome in 0..6 {
                let disk = disk.crash_with(outcome);
                let what = format!("{how:?} fails, cut at {at}, outcome {outcome}");
                let packed = reopen(&disk, 9).unwrap_or_else(|error| panic!("{what}: {error}"));
                let mut model = model.clone();
                model.check(&packed, PAGES, &what);
                if outcome < 2 {
                    go_on(&disk, packed, &mut model, &what);
                }
            }
        }
    }
}

/// Runs of a checkpoint go on from the root before one that failed. If that one is there all the
/// same, what they say of the streams does not fit it: a start does not follow them.
#[test]
fn a_start_does_not_follow_the_runs_of_a_checkpoint_without_its_root() {
    let disk = SimStorage::new(1);
    let is_armed = Arc::new(AtomicBool::new(false));
    let packed = create_failing(&disk, is_armed.clone(), true);
    disk.sync_dir("").unwrap();
    let mut model = Model { first: 995, ..Model::default() };
    write(&packed, &mut model, &whole(1000..1030, 1)).unwrap();
    packed.checkpoint().unwrap();
    write(&packed, &mut model, &whole(1000..1015, 2)).unwrap();
    is_armed.store(true, Ordering::Relaxed);
    packed.checkpoint().unwrap_err();
    let mut blocks = crate::storage::AlignedBuf::zeroed(ROOT_BLOCKS as usize * BLOCK);
    packed.file.read_at(&mut blocks, 0).unwrap();
    let roots = blocks.chunks(BLOCK).filter_map(|block| match Root::decode(block) {
        Slot::Root(root) => Some(*root),
        _ => None,
    });
    let landed = roots.max_by_key(|root| root.number).unwrap();
    {
        let mut writer = packed.writer.lock();
        assert_eq!(landed.number, writer.next_root - 2);
        let moved = landed.tails[1];
        assert!(!writer.segments.is_pinned(moved.next));
        writer.chain.tails[0].next = moved.next;
    }
    // The failed root is written again, and synced. The runs of the next attempt are durable, its
    // root is not.
    disk.crash_at(disk.operation_count() + 5);
    packed.checkpoint().unwrap_err();
    for outcome in 0..20 {
        let disk = disk.crash_with(outcome);
        let what = format!("outcome {outcome}");
        let packed = reopen(&disk, 9).unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut model = model.clone();
        model.check(&packed, PAGES, &what);
        go_on(&disk, packed, &mut model, &what);
    }
}

/// On a full disk the runs of a checkpoint lie where no chain leads. If their root fails, they
/// never counted, and nothing says that they did.
#[test]
fn runs_that_no_chain_leads_to_are_not_missed() {
    let disk = SimStorage::new(1);
    let is_armed = Arc::new(AtomicBool::new(false));
    let packed = create_failing(&disk, is_armed.clone(), false);
    disk.sync_dir("").unwrap();
    let mut model = Model::default();
    write(&packed, &mut model, &whole(0..12, 1)).unwrap();
    packed.reserve(100).unwrap();
    write(&packed, &mut model, &whole(0..15, 2)).unwrap();
    {
        // The stream's segment is full, and the next ones can't be had.
        let mut writer = packed.writer.lock();
        let count = writer.segments.count();
        let tail = &mut writer.chain.tails[0];
        let blocks = packed.geometry.blocks_of(tail.segment.unwrap());
        (tail.filled, tail.next, tail.after) = (blocks, count + 90, count + 91);
    }
    disk.set_capacity(Some(disk.used_bytes()));
    for _ in 0..2 {
        is_armed.store(true, Ordering::Relaxed);
        packed.checkpoint().unwrap_err();
    }
    let known = packed.usage().sequence;
    let disk = disk.crash();
    let file = disk.open(FILE).unwrap();
    let packed = PackedFile::open(file, settings(2), Access::ReadWrite, known).unwrap();
    model.check(&packed, 20, "after the failed roots");
}

/// The same, if the root lands: nothing is written over the runs, also if they lie where the stream
/// was to go on.
#[test]
fn runs_that_no_chain_leads_to_stay_if_a_root_may_lead_to_them() {
    let life = |disk: &SimStorage, model: &mut Model| -> Result<()> {
        let is_armed = Arc::new(AtomicBool::new(false));
        let packed = create_failing(disk, is_armed.clone(), true);
        disk.sync_dir("").unwrap();
        write(&packed, model, &whole(1020..1035, 1))?;
        packed.reserve(100)?;
        write(&packed, model, &whole(1000..1024, 2))?;
        packed.checkpoint()?;
        write(&packed, model, &whole(1000..1020, 3))?;
        let segments = {
            let mut writer = packed.writer.lock();
            let count = writer.segments.count();
            let tails = writer.chain.tails;
            let idle = writer.segments.choose_any(&tails, &[]).unwrap();
            let tail = &mut writer.chain.tails[0];
            let blocks = packed.geometry.blocks_of(tail.segment.unwrap());
            (tail.filled, tail.next, tail.after) = (blocks, count + 90, idle);
            count
        };
        disk.set_capacity(Some(disk.used_bytes()));
        is_armed.store(true, Ordering::Relaxed);
        match packed.checkpoint() {
            Err(Error::Storage(error)) if error.to_string().contains("armed") => {}
            outcome => return outcome,
        }
        // The next runs of the map do not fit behind those, and differ from them.
        {
            let mut writer = packed.writer.lock();
            let tail = &mut writer.chain.tails[0];
            tail.filled = packed.geometry.blocks_of(tail.segment.unwrap());
        }
        for segment in 0..segments {
            packed.clean(Victim { segment, live_units: 1, units: 1, age: 0 })?;
        }
        write(&packed, model, &[(1001, 61), (1033, 61)])?;
        packed.checkpoint()
    };
    let first = {
        let disk = SimStorage::new(3);
        create(&disk, 1);
        disk.operation_count()
    };
    let whole = SimStorage::new(3);
    life(&whole, &mut Model::default()).unwrap();
    for at in first + 1..=whole.operation_count() {
        let disk = SimStorage::new(3);
        disk.crash_at(at);
        let mut model = Model { first: 995, ..Model::default() };
        let _ = life(&disk, &mut model);
        for outcome in 0..6 {
            let disk = disk.crash_with(outcome);
            let what = format!("cut at {at}, outcome {outcome}");
            let packed = reopen(&disk, 9).unwrap_or_else(|error| panic!("{what}: {error}"));
            model.clone().check(&packed, PAGES, &what);
        }
    }
}

/// What a killed process wrote and did not sync counts only once it is durable.
#[test]
fn what_a_killed_process_left_is_durable_before_it_counts() {
    let life = |disk: &SimStorage, model: &mut Model| -> Result<()> {
        let packed = create(disk, 1);
        for version in 1..6 {
            write(&packed, model, &whole(0..20, version))?;
            if version == 3 {
                packed.checkpoint()?;
            }
        }
        Ok(())
    };
    let whole_life = SimStorage::new(5);
    life(&whole_life, &mut Model::default()).unwrap();
    let first = {
        let disk = SimStorage::new(5);
        create(&disk, 1);
        disk.operation_count()
    };
    for killed_at in first + 1..=whole_life.operation_count() {
        for cut_after in 1..6 {
            let disk = SimStorage::new(5);
            let mut model = Model::default();
            disk.kill_at(killed_at);
            life(&disk, &mut model).unwrap_err();
            let disk = disk.kill();
            disk.crash_at(disk.operation_count() + cut_after);
            let next_life = reopen(&disk, 2).map(|packed| {
                model.check(&packed, 20, "after the kill");
                for version in 10..15 {
                    let pages = version % 15..20;
                    if write(&packed, &mut model, &whole(pages, version)).is_err() {
                        break;
                    }
                }
            });
            assert!(next_life.is_ok() || cut_after == 1, "opening syncs, and nothing else");
            for outcome in 0..4 {
                let disk = disk.crash_with(outcome);
                let what = format!("killed at {killed_at}, cut {cut_after} later, {outcome}");
                let packed = reopen(&disk, 3).unwrap_or_else(|error| panic!("{what}: {error}"));
                model.clone().check(&packed, 20, &what);
            }
        }
    }
}

/// Places and headers of all runs in the file, in their order.
pub(super) fn runs_of(disk: &SimStorage) -> Vec<(u64, RunHeader, Vec<run::Change>)> {
    let file = disk.open(FILE).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let blocks = (ROOT_BLOCKS as usize * BLOCK..bytes.len()).step_by(BLOCK);
    let mut runs: Vec<_> = blocks
        .filter_map(|at| {
            RunHeader::decode(&bytes[at..]).map(|(header, changes, _)| (at as u64, header, changes))
        })
        .collect();
    runs.sort_by_key(|(_, header, _)| header.sequence);
    runs
}

/// A start that knows of no run finds out that any run's header is lost, if a later batch was
/// durable: also if the run filled its segment, and if batches have several runs.
#[test]
fn a_lost_header_does_not_hide_the_runs_behind_it() {
    for batch in [5, 15, 20, 31, 70] {
        let disk = SimStorage::with_alignment(1, 1);
        let packed = create(&disk, 1);
        let mut model = Model::default();
        for version in 1..6 {
            write(&packed, &mut model, &whole(0..batch, version)).unwrap();
            if version == 1 {
                packed.checkpoint().unwrap();
            }
        }
        drop(packed);
        let runs = runs_of(&disk);
        let last_batch = runs.last().unwrap().1.synced;
        let root = runs.iter().filter(|(_, header, _)| header.kind == run::RunKind::Map);
        let root = root.max_by_key(|(_, header, _)| header.sequence).unwrap().1.sequence;
        let mut tried = 0;
        for (offset, header, _) in runs {
            if header.sequence <= root || header.sequence > last_batch {
                continue;
            }
            tried += 1;
            let disk = disk.kill();
            disk.corrupt(FILE, offset + 20, 1);
            let error = reopen(&disk, 2).err().unwrap_or_else(|| {
                panic!("batches of {batch}: nothing says that run {} is lost", header.sequence)
            });
            let (error, why) = (error.to_string(), format!("it has lost run {}", header.sequence));
            assert!(error.contains(&why), "{error}");
            let (_, offsets) = error.split_once("can go on, ").expect("it says where");
            let names = |named: &str| named.trim_end_matches(':').parse() == Ok(offset);
            assert!(offsets.split([',', ' ']).any(names), "run at {offset}: {error}");
        }
        assert!(tried >= 3, "{tried}");
    }
}

/// The cleaner is called with a victim that is none any more.
#[test]
fn a_victim_that_was_cut_off_or_filled_again_is_left_alone() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let mut model = Model::default();
    write(&packed, &mut model, &whole(0..400, 1)).unwrap();
    packed.checkpoint().unwrap();
    let segments = packed.writer.lock().segments.count();
    packed.forget_from(SPACE, 0).unwrap();
    (0..400).for_each(|no| model.durable(&[(no, 0)]));
    write(&packed, &mut model, &[(1, 7)]).unwrap();
    for _ in 0..3 {
        while let Some(victim) = packed.victim() {
            packed.clean(victim).unwrap();
        }
        packed.checkpoint().unwrap();
    }
    assert!(packed.writer.lock().segments.count() < segments);
    for segment in (0..segments).chain([u32::MAX]) {
        packed.clean(Victim { segment, live_units: 9, units: 1024, age: 0 }).unwrap();
    }
    model.check(&packed, 400, "after the cleaner");
}

/// Behind the runs of a segment lie those of when it was filled before: they say nothing.
#[test]
fn the_cleaner_follows_the_runs_of_one_filling() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let mut segment = vec![0; packed.geometry.bytes_of(0) as usize];
    let entry = Entry { unit: 300, len: 10, codec: Codec::Lz4, seal: Seal::NONE, crc: 3, run: 7 };
    let runs = [(0, 8, Stream::Flushed), (2, 9, Stream::Flushed), (4, 5, Stream::MovedAgain)];
    for (block, sequence, stream) in runs {
        let header = RunHeader {
            kind: run::RunKind::Pages,
            stream,
            file: packed.number,
            epoch: 1,
            sequence,
            previous: 2,
            synced: sequence - 1,
            blocks: 2,
            next: 3,
            after: 4,
        };
        let change = (Object::Page { space: SPACE, no: block as u32 }, Some(entry));
        header.encode(&[change], &mut segment[block * BLOCK..]);
    }
    let (stream, named) = packed.named(&segment);
    assert_eq!(stream, Stream::Flushed);
    let numbers: Vec<Object> = named.into_iter().map(|(object, _)| object).collect();
    assert_eq!(numbers, [0, 2].map(|no| Object::Page { space: SPACE, no }));
}

/// A leaf that can't be read keeps its own pages from being moved, and no others.
#[test]
fn the_cleaner_goes_on_past_a_leaf_that_cannot_be_read() {
    let disk = SimStorage::with_alignment(1, 1);
    let packed = create(&disk, 1);
    let images: Vec<Image> = [5, 6, 2000, 2001].iter().map(|no| image(*no, 1)).collect();
    packed.write(Stream::Flushed, &images).unwrap();
    packed.checkpoint().unwrap();
    let segment = packed.geometry.segment_at(packed.find(SPACE, 5).unwrap().unwrap().offset());
    // Another segment is being filled by now.
    for version in 100..140 {
        packed.write(Stream::Flushed, &[image(40, version * 3 + 2)]).unwrap();
    }
    packed.checkpoint().unwrap();
    let leaf = Object::Node { space: SPACE, level: 0, index: 1 };
    let mut at = None;
    for (_, _, changes) in runs_of(&disk) {
        let found = changes.into_iter().find(|(object, _)| *object == leaf);
        at = found.and_then(|(_, entry)| entry).or(at);
    }
    packed.trim_map(0);
    disk.corrupt(FILE, at.unwrap().offset() + 9, 1);
    let victim = Victim { segment, live_units: 1, units: 1024, age: 0 };
    let error = packed.clean(victim).unwrap().stuck.unwrap();
    assert!(error.to_string().contains("node 1 at level 0 of the map of space 7"), "{error}");
    for no in [5, 6] {
        let entry = packed.find(SPACE, no).unwrap().unwrap();
        assert_ne!(packed.geometry.segment_at(entry.offset()), segment, "page {no} has moved");
        let mut page = vec![0; PAGE];
        assert_eq!(packed.read(SPACE, no, &mut page).unwrap(), Found::Page);
        assert!(page == page_of(no, 1));
    }
    assert!(packed.find(SPACE, 2000).is_err());
}

#[test]
fn much_of_the_map_to_be_written_makes_a_checkpoint_due() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    for (leaves, is_due) in [(0..8000, false), (8000..8400, true)] {
        let images: Vec<Image> =
            leaves.map(|leaf| Image::plain((SPACE, leaf << 10), Codec::Raw, vec![1])).collect();
        packed.write(Stream::Flushed, &images).unwrap();
        assert_eq!(packed.wants_checkpoint(), is_due);
    }
    packed.checkpoint().unwrap();
    assert!(!packed.wants_checkpoint());
}
