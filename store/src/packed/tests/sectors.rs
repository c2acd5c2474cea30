//! Bad sectors: places that refuse reads or writes for ever. Each costs what lies there, and
//! nothing else.

use std::ops::Range;

use super::super::geometry::{BLOCK, ROOT_BLOCKS};
use super::super::*;
use super::model::{FILE, Model, PAGE, SPACE, create, image, page_of, reopen, write};
use crate::storage::{Fault, FaultKind, SimStorage, StorageOp};

const PAGES: u32 = 60;

/// Versions of images that do not shrink: 15 of them with a header fill a segment.
fn whole(no: u32, version: u32) -> (u32, u32) {
    (no, version * 3 + (3 - no % 3))
}

fn break_place(disk: &SimStorage, op: StorageOp, place: Range<u64>) {
    disk.inject(Fault::new(op, FaultKind::Io).on(FILE).within(place).always());
}

/// Full segments, in each of which three pages of fifteen are in use: 0, 5, 10 …
fn worn(disk: &SimStorage) -> (PackedFile, Model) {
    let (packed, mut model) = (create(disk, 1), Model::default());
    let first: Vec<(u32, u32)> = (0..PAGES).map(|no| whole(no, 1)).collect();
    write(&packed, &mut model, &first).unwrap();
    packed.checkpoint().unwrap();
    let second: Vec<(u32, u32)> =
        (0..PAGES).filter(|no| no % 5 != 0).map(|no| whole(no, 2)).collect();
    write(&packed, &mut model, &second).unwrap();
    packed.checkpoint().unwrap();
    (packed, model)
}

fn segment_of(packed: &PackedFile, no: u32) -> u32 {
    packed.geometry.segment_of(&packed.find(SPACE, no).unwrap().unwrap()).unwrap()
}

fn reads(packed: &PackedFile, no: u32, version: u32) -> Result<()> {
    let mut page = vec![0; PAGE];
    packed.read(SPACE, no, &mut page).map(|found| {
        assert_eq!(found, Found::Page);
        assert!(page == page_of(no, version), "page {no}");
    })
}

/// What comes of it when it is tried a few times: places that refuse writes are found out one by
/// one.
fn at_last<T>(mut work: impl FnMut() -> Result<T>) -> Result<T> {
    (0..9).find_map(|_| work().ok()).map_or_else(work, Ok)
}

/// Empties segments until none is worn.
fn clean_all(packed: &PackedFile) -> Vec<Cleaned> {
    let mut all = Vec::new();
    while let Some(victim) = packed.victim().filter(|victim| victim.share() < 0.5) {
        all.push(at_last(|| packed.clean(victim)).unwrap());
        assert!(all.len() < 30, "it ends");
    }
    at_last(|| packed.checkpoint()).unwrap();
    all
}

#[test]
fn a_bad_sector_below_dead_images_keeps_no_segment_from_being_emptied() {
    let disk = SimStorage::new(1);
    let (packed, mut model) = (create(&disk, 1), Model::default());
    let first: Vec<(u32, u32)> = (0..PAGES).map(|no| whole(no, 1)).collect();
    write(&packed, &mut model, &first).unwrap();
    packed.checkpoint().unwrap();
    let dead = packed.find(SPACE, 3).unwrap().unwrap();
    let segment = packed.geometry.segment_of(&dead).unwrap();
    let second: Vec<(u32, u32)> =
        (0..PAGES).filter(|no| no % 5 != 0).map(|no| whole(no, 2)).collect();
    write(&packed, &mut model, &second).unwrap();
    packed.checkpoint().unwrap();
    break_place(&disk, StorageOp::Read, dead.offset()..dead.offset() + 512);
    assert_eq!(segment_of(&packed, 0), segment);
    let cleaned = clean_all(&packed);
    assert!(cleaned.iter().all(|cleaned| cleaned.stuck.is_none()), "{cleaned:?}");
    assert!((0..PAGES).all(|no| segment_of(&packed, no) != segment));
    model.check(&packed, PAGES, "after the cleaner");
}

#[test]
fn a_segment_with_an_image_that_cannot_be_moved_is_passed_over() {
    for is_spoilt in [false, true] {
        let disk = SimStorage::with_alignment(1, 1);
        let (packed, mut model) = worn(&disk);
        let stuck = packed.find(SPACE, 5).unwrap().unwrap();
        let segment = packed.geometry.segment_of(&stuck).unwrap();
        match is_spoilt {
            true => disk.corrupt(FILE, stuck.offset() + 100, 1),
            false => {
                break_place(&disk, StorageOp::Read, stuck.offset()..stuck.offset() + 1);
            }
        }
        let cleaned = clean_all(&packed);
        let errors: Vec<&Error> = cleaned.iter().filter_map(|it| it.stuck.as_ref()).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        let (why, offset) = (errors[0].to_string(), format!("offset {}", stuck.offset()));
        let block = format!("offset {}", stuck.offset() / BLOCK as u64 * BLOCK as u64);
        assert!(why.starts_with("t: page 5 of space 7 is corrupt: its image can't be"), "{why}");
        assert!(why.contains(if is_spoilt { &offset } else { &block }), "{why}");
        // All but the one page have moved, in that segment as in the others.
        for no in (0..PAGES).step_by(5) {
            assert_eq!(segment_of(&packed, no) == segment, no == 5, "page {no}");
            let (_, version) = whole(no, 1);
            assert_eq!(reads(&packed, no, version).is_err(), no == 5, "page {no}");
        }
        // Neither the next round nor a shorter file is tried in vain.
        assert!(clean_all(&packed).iter().all(|cleaned| cleaned.stuck.is_none()));
        while packed.shorten().unwrap() {}
        // When the page has another image, the segment can be filled again.
        write(&packed, &mut model, &[(5, 9)]).unwrap();
        packed.checkpoint().unwrap();
        assert_eq!(packed.writer.lock().segments.live_units(segment), 0);
        let tails = packed.writer.lock().chain.tails;
        let is_ahead = tails.iter().any(|tail| tail.next == segment || tail.after == segment);
        let choice = packed.writer.lock().segments.choose_any(&tails, &[]);
        assert!(is_ahead || choice <= Some(segment), "{tails:?}, {choice:?}");
        model.check(&packed, PAGES, "at last");
    }
}

#[test]
fn a_header_that_cannot_be_read_keeps_no_segment_from_being_emptied() {
    let disk = SimStorage::new(1);
    let (packed, mut model) = worn(&disk);
    let entry = packed.find(SPACE, 0).unwrap().unwrap();
    let node = packed.map.read().nodes_at(&|_| true)[0].1;
    // A run's header is in one block with its first image, which is page 0, or a node in memory.
    for first in [entry, node] {
        let start = first.offset() / BLOCK as u64 * BLOCK as u64;
        break_place(&disk, StorageOp::Read, start..start + 512);
    }
    let segments = [entry, node].map(|first| packed.geometry.segment_of(&first).unwrap());
    write(&packed, &mut model, &[(0, 9)]).unwrap();
    // Streams go on elsewhere.
    for version in 10..14 {
        let pages = (1..20).filter(|no| no % 5 != 0);
        let images: Vec<(u32, u32)> = pages.map(|no| whole(no, version)).collect();
        write(&packed, &mut model, &images).unwrap();
        packed.checkpoint().unwrap();
    }
    let cleaned = clean_all(&packed);
    assert!(cleaned.iter().all(|cleaned| cleaned.stuck.is_none()), "{cleaned:?}");
    let left = segments.map(|segment| packed.writer.lock().segments.live_units(segment));
    assert_eq!(left, [0, 0]);
    model.check(&packed, PAGES, "after the cleaner");
}

/// Batches of a stream that meets places that refuse writes: in the segment that it fills (bit 0),
/// the next one (1), the one after that (2).
fn life_on_refusing(
    disk: &SimStorage,
    model: &mut Model,
    (stream, refusing): (Stream, u32),
) -> Result<PackedFile> {
    let (packed, worn) = worn(disk);
    *model = worn;
    model.perhaps(&[(70, 1)]);
    packed.write(stream, &[image(70, 1)])?;
    model.durable(&[(70, 1)]);
    let tail = packed.writer.lock().chain.tails[stream.index()];
    let segments = [tail.segment.unwrap(), tail.next, tail.after];
    for (at, segment) in segments.into_iter().enumerate() {
        if refusing & 1 << at != 0 {
            let start = packed.geometry.offset_of(segment);
            let filled = if at == 0 { u64::from(tail.filled) * BLOCK as u64 } else { 0 };
            let end = start + packed.geometry.bytes_of(segment);
            break_place(disk, StorageOp::Write, start + filled..end);
        }
    }
    for version in 2..8 {
        let images: Vec<(u32, u32)> =
            (version..version + 40).map(|no| whole(no, version)).collect();
        let batch: Vec<Image> = images.iter().map(|(no, version)| image(*no, *version)).collect();
        model.perhaps(&images);
        at_last(|| packed.write(stream, &batch))?;
        model.durable(&images);
    }
    at_last(|| packed.checkpoint())?;
    Ok(packed)
}

#[test]
fn a_stream_leaves_a_place_that_refuses_writes() {
    const ALL: u32 = PAGES + 20;
    for how in [Stream::Flushed, Stream::Moved]
        .into_iter()
        .flat_map(|stream| [0b001, 0b010, 0b100, 0b011, 0b110, 0b111].map(|bits| (stream, bits)))
    {
        let (disk, mut model) = (SimStorage::new(4), Model::default());
        let first = {
            let disk = SimStorage::new(4);
            worn(&disk);
            disk.operation_count()
        };
        let packed = life_on_refusing(&disk, &mut model, how)
            .unwrap_or_else(|error| panic!("{how:?}: {error}"));
        let operations = disk.operation_count();
        clean_all(&packed);
        model.check(&packed, ALL, &format!("{how:?}"));
        let known = packed.usage().sequence;
        drop(packed);
        let packed = reopen(&disk, 2).unwrap_or_else(|error| panic!("{how:?}: {error}"));
        assert!(packed.usage().sequence >= known);
        model.check(&packed, ALL, &format!("{how:?}, opened again"));
        // The power can be cut at any operation.
        for at in (first + 1..operations).step_by(5) {
            let (disk, mut model) = (SimStorage::new(4), Model::default());
            disk.crash_at(at);
            assert!(life_on_refusing(&disk, &mut model, how).is_err());
            for outcome in 0..4 {
                let disk = disk.crash_with(outcome);
                let what = format!("{how:?}, cut at {at}, outcome {outcome}");
                let packed = reopen(&disk, 9).unwrap_or_else(|error| panic!("{what}: {error}"));
                let mut model = model.clone();
                model.check(&packed, ALL, &what);
                // Life goes on there.
                for version in 20..23 {
                    let images: Vec<(u32, u32)> = (0..30).map(|no| whole(no, version)).collect();
                    let written = at_last(|| write(&packed, &mut model, &images));
                    written.unwrap_or_else(|error| panic!("{what}: {error}"));
                }
                drop(packed);
                let packed = reopen(&disk, 10).unwrap_or_else(|error| panic!("{what}: {error}"));
                model.check(&packed, ALL, &what);
            }
        }
    }
}

/// What a backup reads in one piece has bad sectors: below a dead image, and in one in use.
#[test]
fn a_backup_misses_only_the_images_that_cannot_be_read() {
    let disk = SimStorage::new(1);
    let (packed, mut model) = (create(&disk, 1), Model::default());
    let first: Vec<(u32, u32)> = (0..PAGES).map(|no| whole(no, 1)).collect();
    write(&packed, &mut model, &first).unwrap();
    let places = [3, 20].map(|no| packed.find(SPACE, no).unwrap().unwrap().offset());
    write(&packed, &mut model, &[whole(2, 2), whole(3, 2), whole(4, 2)]).unwrap();
    let piece = || packed.images_since(SPACE, 0, Since { run: 0, bytes_max: 1 << 20 }).unwrap();
    for (place, is_dead) in places.into_iter().zip([true, false]) {
        break_place(&disk, StorageOp::Read, place + 1024..place + 2048);
        // Images that share a block with the bad sector.
        let is_hit = |no: &u32| {
            let (start, len) = packed.find(SPACE, *no).unwrap().unwrap().window();
            !is_dead && start < place + 2048 && place + 1024 < start + len as u64
        };
        let missing: Vec<u32> = (0..PAGES).filter(is_hit).collect();
        assert_eq!(missing.len(), if is_dead { 0 } else { 2 });
        let piece = piece();
        let spoilt: Vec<u32> = piece.spoilt.iter().map(|(no, _)| *no).collect();
        assert_eq!(spoilt, missing);
        let found: Vec<u32> = piece.images.iter().map(|image| image.no).collect();
        let expected: Vec<u32> = (0..PAGES).filter(|no| !missing.contains(no)).collect();
        assert_eq!(found, expected);
    }
}

/// The slot of the next root refuses writes: the file takes no change, and no more room either.
#[test]
fn attempts_at_a_root_that_is_refused_take_no_more_room() {
    for seed in 0..4 {
        let disk = SimStorage::new(seed);
        let (packed, mut model) = worn(&disk);
        write(&packed, &mut model, &[(1, 9)]).unwrap();
        break_place(&disk, StorageOp::Write, 0..ROOT_BLOCKS * BLOCK as u64);
        packed.checkpoint().unwrap_err();
        let before = packed.usage();
        for version in 10..40 {
            packed.checkpoint().unwrap_err();
            model.perhaps(&[(2, version)]);
            packed.write(Stream::Flushed, &[image(2, version)]).unwrap_err();
        }
        let after = packed.usage();
        assert_eq!(
            (after.file_bytes, after.occupied_bytes),
            (before.file_bytes, before.occupied_bytes)
        );
        let refusing = disk.kill();
        drop(packed);
        model.clone().check(&reopen(&refusing, 3).unwrap(), PAGES, "while it is refused");
        refusing.clear_faults();
        let packed = reopen(&refusing, 4).unwrap();
        write(&packed, &mut model, &[(2, 50)]).unwrap();
        packed.checkpoint().unwrap();
        drop(packed);
        model.check(&reopen(&refusing, 5).unwrap(), PAGES, "at last");
    }
}
