//! What is saved of files that can't be opened, beside what was in them.

use std::collections::BTreeMap;

use super::super::geometry::{BLOCK, ROOT_BLOCKS};
use super::super::run::{RunHeader, RunKind};
use super::super::*;
use super::model::{FILE, PAGE, SPACE, create, free, page_of, settings};
use crate::page::{self, Lsn, PageId};
use crate::storage::{AlignedBuf, SimStorage, Storage};

/// More than a leaf of the map has.
const PAGES: u32 = 1200;

/// A page whose LSN grows with its version.
fn page(no: u32, version: u32) -> Vec<u8> {
    let mut bytes = page_of(no, version);
    page::set_page_lsn(&mut bytes, Lsn(u64::from(version)));
    page::stamp_checksum(&mut bytes);
    bytes
}

fn image(no: u32, version: u32) -> Image {
    let mut bytes = Vec::new();
    let codec = Codec::Lz4.encode(&page(no, version), &mut bytes);
    Image::plain((SPACE, no), codec, bytes)
}

/// Versions by page.
type Truth = BTreeMap<u32, u32>;

/// A file with a map of several leaves, images of many ages, and runs since the newest root.
fn filled() -> (SimStorage, Truth, u64) {
    let disk = SimStorage::with_alignment(1, 1);
    let packed = create(&disk, 1);
    let mut truth = Truth::new();
    for version in 1..30u32 {
        let numbers = (0..100).map(|at| (version * 151 + at * 13) % PAGES);
        let batch: Vec<Image> = numbers.map(|no| image(no, version)).collect();
        packed.write(Stream::Flushed, &batch).unwrap();
        truth.extend(batch.iter().map(|image| (image.no, version)));
        if version % 9 == 0 {
            packed.checkpoint().unwrap();
            while let Some(victim) = packed.victim().filter(|victim| victim.share() < 0.6) {
                packed.clean(victim).unwrap();
            }
        }
    }
    let freed: Vec<Image> = (1190..PAGES).map(free).collect();
    packed.write(Stream::Flushed, &freed).unwrap();
    truth.split_off(&1190);
    (disk, truth, packed.usage().sequence)
}

fn bytes_of(disk: &SimStorage) -> Vec<u8> {
    let file = disk.open(FILE).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Zeroes blocks of a copy of the disk.
fn without(disk: &SimStorage, blocks: std::ops::Range<u64>) -> SimStorage {
    let disk = disk.kill();
    let zeroes = AlignedBuf::zeroed((blocks.end - blocks.start) as usize * BLOCK);
    disk.open(FILE).unwrap().write_at(&zeroes, blocks.start * BLOCK as u64).unwrap();
    disk
}

fn rescue(disk: &SimStorage, known: u64) -> (PackedFile, Vec<String>) {
    PackedFile::rescue(disk.open(FILE).unwrap(), settings(9), known).unwrap()
}

fn is_refused(disk: &SimStorage, known: u64) -> bool {
    PackedFile::open(disk.open(FILE).unwrap(), settings(9), Access::ReadOnly, known).is_err()
}

/// What came of each page.
#[derive(Debug, Default)]
struct Saved {
    right: u32,
    /// Pages that are of an older version than the last.
    older: Vec<u32>,
    /// Pages that are free or were never written, and should be there.
    missing: Vec<u32>,
    damaged: Vec<u32>,
    /// Pages that should be free, and are not.
    extra: Vec<u32>,
}

fn compare(packed: &PackedFile, truth: &Truth) -> Saved {
    let (mut saved, mut bytes) = (Saved::default(), vec![0; PAGE]);
    for no in 0..PAGES {
        match (packed.read(SPACE, no, &mut bytes), truth.get(&no)) {
            (Ok(Found::Nothing), None) => saved.right += 1,
            (Ok(Found::Nothing), Some(_)) => saved.missing.push(no),
            (Ok(Found::Page), wanted) => {
                page::verify(&bytes, PageId::new(SPACE, no)).unwrap();
                let version = page::page_lsn(&bytes).0 as u32;
                match wanted {
                    Some(wanted) if *wanted == version => saved.right += 1,
                    Some(wanted) if *wanted > version => saved.older.push(no),
                    Some(wanted) => panic!("page {no}: {version} is newer than {wanted}"),
                    None => saved.extra.push(no),
                }
            }
            (Err(Error::Corrupt { .. }), _) => saved.damaged.push(no),
            (Err(error), _) => panic!("{error}"),
        }
    }
    saved
}

#[test]
fn of_a_whole_file_all_is_saved_and_nothing_is_wrong() {
    let (disk, truth, known) = filled();
    let (packed, notes) = rescue(&disk, known);
    assert_eq!((compare(&packed, &truth).right, notes), (PAGES, vec![]));
    assert!(packed.write(Stream::Flushed, &[image(1, 99)]).is_err(), "it is for reading only");
}

#[test]
fn without_a_root_the_runs_are_enough() {
    let (disk, truth, known) = filled();
    let disk = without(&disk, 0..ROOT_BLOCKS);
    assert!(is_refused(&disk, known));
    let (packed, notes) = rescue(&disk, known);
    let saved = compare(&packed, &truth);
    assert_eq!(saved.right, PAGES, "{saved:?}");
    assert_eq!(notes, ["none of its roots is whole: its pages are found by its runs"]);
    // Another space's and another directory's files are none of ours.
    let other = Settings { space: 8, ..settings(9) };
    let (packed, notes) = PackedFile::rescue(disk.open(FILE).unwrap(), other, 0).unwrap();
    assert!(packed.spaces().is_empty() && notes[1].contains("pages of other spaces"), "{notes:?}");
    assert_eq!(packed.end(8).unwrap(), 0);
}

#[test]
fn with_the_newest_root_gone_the_older_one_and_the_runs_are_enough() {
    let (disk, truth, known) = filled();
    for slot in [0..2, 2..4] {
        let disk = without(&disk, slot);
        let (packed, _) = rescue(&disk, known);
        let saved = compare(&packed, &truth);
        assert_eq!(saved.right, PAGES, "{saved:?}");
    }
}

#[test]
fn a_file_of_something_else_is_refused() {
    let (disk, ..) = filled();
    let rescue = |settings| {
        let rescued = PackedFile::rescue(disk.open(FILE).unwrap(), settings, 0);
        rescued.err().expect("refused").to_string()
    };
    let ours = settings(1);
    let error = rescue(Settings { space: 8, ..ours });
    assert!(error.starts_with("t: it is of space 7, expected 8: the file was renamed"), "{error}");
    let error = rescue(Settings { instance: [6; 16], ..ours });
    assert!(error.starts_with("t: it belongs to another data directory: put back"), "{error}");
    disk.open(FILE).unwrap().set_len(0).unwrap();
    let error = rescue(ours);
    assert!(
        error.starts_with("t: none of its roots is whole, and no run of it is left"),
        "{error}"
    );
}

/// Offsets of the headers of runs of one kind, and what they say.
fn headers(disk: &SimStorage, kind: RunKind) -> Vec<(usize, RunHeader, Vec<u32>)> {
    let bytes = bytes_of(disk);
    let header = |at: usize| {
        let (header, changes, _) = RunHeader::decode(&bytes[at..])?;
        let page = |object: &Object| match *object {
            Object::Page { no, .. } => Some(no),
            _ => None,
        };
        let pages = changes.iter().filter_map(|(object, _)| page(object)).collect();
        (header.kind == kind).then_some((at, header, pages))
    };
    (ROOT_BLOCKS as usize * BLOCK..bytes.len()).step_by(BLOCK).filter_map(header).collect()
}

/// Map nodes and tables, each run of them spoilt in turn, and all of them.
#[test]
fn a_spoilt_map_costs_no_page() {
    let (disk, truth, known) = filled();
    let runs = headers(&disk, RunKind::Map);
    let spoil = |disk: &SimStorage, (at, header, _): &(usize, RunHeader, Vec<u32>)| {
        for byte in (0..header.blocks as usize * BLOCK).step_by(40).skip(2) {
            disk.corrupt(FILE, (at + byte) as u64, 1);
        }
    };
    let mut refused = 0;
    for run in &runs {
        let disk = disk.kill();
        spoil(&disk, run);
        refused += u32::from(is_refused(&disk, known));
        let (packed, _) = rescue(&disk, known);
        let saved = compare(&packed, &truth);
        assert_eq!(saved.right, PAGES, "run {}: {saved:?}", run.1.sequence);
    }
    assert!(refused > 0);
    let disk = disk.kill();
    runs.iter().for_each(|run| spoil(&disk, run));
    let (packed, notes) = rescue(&disk, known);
    assert_eq!(compare(&packed, &truth).right, PAGES);
    assert!(notes.iter().any(|note| note.starts_with("a part of its map is damaged")), "{notes:?}");
}

/// A flipped bit anywhere in the header of a run costs one page at most; with no map, too.
#[test]
fn a_bit_of_a_header_costs_one_page_at_most() {
    let (disk, truth, known) = filled();
    let runs = headers(&disk, RunKind::Pages);
    for roots_are_gone in [false, true] {
        for (at, header, pages) in runs.iter().rev().take(3) {
            for byte in [0usize, 5, 9, 17, 25, 37, 41, 45, 57, 64, 70, 72, 77, 84, 90, 92 + 56] {
                let disk = match roots_are_gone {
                    false => disk.kill(),
                    true => without(&disk, 0..ROOT_BLOCKS),
                };
                disk.corrupt(FILE, (at + byte) as u64, 1);
                let (packed, notes) = rescue(&disk, known);
                let saved = compare(&packed, &truth);
                let what = format!("run {}, byte {byte}: {saved:?} {notes:?}", header.sequence);
                // Nothing but the header said that a page is free.
                let freed = pages.iter().filter(|no| !truth.contains_key(no)).count() as u32;
                assert!(saved.right + 1 + freed >= PAGES, "{what}");
                let noted = notes.iter().any(|note| note.contains("headers of runs are damaged"));
                assert!(noted || saved.right == PAGES, "{what}");
            }
        }
    }
}

/// A header that is gone as a whole: the file is refused if the run is newer than the root, and
/// what is lost is on its pages alone, and is said.
#[test]
fn a_lost_header_costs_its_own_pages_and_is_noted() {
    let (disk, truth, known) = filled();
    let mut refused = 0;
    // The newest ones, and some of before the root.
    let runs = headers(&disk, RunKind::Pages);
    let newest = runs.iter().map(|(_, header, _)| header.sequence).max().unwrap();
    for (at, header, pages) in runs {
        if header.sequence + 6 < newest && !header.sequence.is_multiple_of(4) {
            continue;
        }
        let len = super::super::run::header_bytes(pages.len()).div_ceil(BLOCK) as u64;
        let block = (at / BLOCK) as u64;
        let disk = without(&disk, block..block + len);
        let was_refused = is_refused(&disk, known);
        refused += u32::from(was_refused);
        let (packed, notes) = rescue(&disk, known);
        let saved = compare(&packed, &truth);
        let lost = [saved.older, saved.missing, saved.damaged, saved.extra].concat();
        assert!(lost.iter().all(|no| pages.contains(no)), "run {}: {lost:?}", header.sequence);
        let noted = notes.iter().any(|note| note.contains(&format!("run {}", header.sequence)));
        assert_eq!(noted, was_refused, "run {}: {notes:?}", header.sequence);
        // The first image may begin in the header's last block.
        assert!(was_refused || lost.len() <= 4, "the map leads to them: {lost:?}");
    }
    assert!(refused > 2);
}

/// An image that is spoilt is not replaced by an older one, which would pass for the newest.
#[test]
fn a_spoilt_image_is_damage_and_no_older_version() {
    let (disk, truth, known) = filled();
    for roots_are_gone in [false, true] {
        let disk = match roots_are_gone {
            false => disk.kill(),
            true => without(&disk, 0..ROOT_BLOCKS),
        };
        let (packed, _) = rescue(&disk, known);
        let spoilt: Vec<u32> = truth.keys().copied().step_by(47).collect();
        for no in &spoilt {
            let entry = packed.find(SPACE, *no).unwrap().unwrap();
            disk.corrupt(FILE, entry.offset() + u64::from(entry.len) / 2, 1);
        }
        let (packed, notes) = rescue(&disk, known);
        let saved = compare(&packed, &truth);
        assert_eq!(saved.damaged, spoilt);
        assert_eq!(saved.right as usize + spoilt.len(), PAGES as usize, "{saved:?}");
        let note = format!("the images of {} pages are damaged", spoilt.len());
        assert!(notes.contains(&note), "{notes:?}");
    }
}

#[test]
fn of_a_file_cut_short_the_rest_is_saved() {
    let (disk, truth, known) = filled();
    let len = bytes_of(&disk).len() as u64;
    for cut in (ROOT_BLOCKS * BLOCK as u64..len).step_by(11 * BLOCK) {
        let disk = disk.kill();
        disk.open(FILE).unwrap().set_len(cut).unwrap();
        let Ok((packed, notes)) = PackedFile::rescue(disk.open(FILE).unwrap(), settings(9), known)
        else {
            continue;
        };
        let saved = compare(&packed, &truth);
        assert!(saved.right == PAGES || !notes.is_empty(), "cut at {cut}: {saved:?}");
        if cut > len / 2 {
            assert!(saved.right > PAGES / 4, "cut at {cut}: {saved:?}");
        }
    }
}

/// A batch that a power cut made void, and a life that went on without it: its numbers are given
/// again, and its images are no newer.
#[test]
fn runs_that_never_counted_displace_no_later_ones() {
    for seed in 0..24 {
        let disk = SimStorage::new(seed);
        let packed = create(&disk, 1);
        let mut truth = Truth::new();
        let write = |packed: &PackedFile, truth: &mut Truth, version: u32| -> Result<()> {
            // The lost batch has many runs, later ones have few: so its numbers reach further.
            let pages = if version > 6 { 10 } else { 390 };
            let numbers = (0..pages).map(|at| (version * 31 + at * 7) % 400);
            let batch: Vec<Image> = numbers.map(|no| image(no, version)).collect();
            packed.write(Stream::Flushed, &batch)?;
            truth.extend(batch.iter().map(|image| (image.no, version)));
            Ok(())
        };
        for version in 1..6 {
            write(&packed, &mut truth, version).unwrap();
        }
        disk.crash_at(disk.operation_count() + 4 + seed % 8);
        let _ = write(&packed, &mut truth.clone(), 6);
        let disk = disk.crash();
        let packed = super::model::reopen(&disk, 2).unwrap();
        // The first runs of the batch may have counted.
        let mut bytes = vec![0; PAGE];
        for (no, version) in &mut truth {
            assert_eq!(packed.read(SPACE, *no, &mut bytes).unwrap(), Found::Page);
            *version = page::page_lsn(&bytes).0 as u32;
        }
        for version in 7..9 {
            write(&packed, &mut truth, version).unwrap();
        }
        let known = packed.usage().sequence;
        drop(packed);
        for roots_are_gone in [false, true] {
            let disk = match roots_are_gone {
                false => disk.kill(),
                true => without(&disk, 0..ROOT_BLOCKS),
            };
            let (packed, notes) = rescue(&disk, known);
            for (no, version) in &truth {
                if packed.read(SPACE, *no, &mut bytes).is_err() {
                    // Its image in the lost batch was torn: it passes for damage.
                    assert!(*version < 6, "seed {seed}, page {no}: {notes:?}");
                    continue;
                }
                let found = page::page_lsn(&bytes).0 as u32;
                // A page of the lost batch may come back: it is newer than what went before it, and
                // the redo log has all that it lacks. It must not displace a later one.
                let is_right = found == *version || found == 6 && *version < 6;
                assert!(is_right, "seed {seed}, page {no}: {found}, not {version}: {notes:?}");
            }
        }
    }
}
