//! Spoilt bytes, lost writes, writes in a wrong place, and old bytes that come back: every read is
//! right, or an error.

use super::super::geometry::{BLOCK, ROOT_BLOCKS, UNIT};
use super::super::*;
use super::model::{FILE, Model, PAGE, SPACE, create, image, page_of, reopen, settings};
use crate::storage::{SimStorage, Storage};

const PAGES: u32 = 50;

fn filled() -> (SimStorage, Model) {
    let disk = SimStorage::with_alignment(1, 1);
    let packed = create(&disk, 1);
    let mut model = Model::default();
    for version in 1..12 {
        let images: Vec<(u32, u32)> =
            (0..30).map(|at| ((at * 7 + version) % PAGES, version)).collect();
        let batch: Vec<Image> = images.iter().map(|(no, version)| image(*no, *version)).collect();
        packed.write(Stream::Flushed, &batch).unwrap();
        model.durable(&images);
        if version == 6 {
            packed.checkpoint().unwrap();
        }
    }
    model.sequence = packed.usage().sequence;
    (disk, model)
}

fn bytes_of(disk: &SimStorage) -> Vec<u8> {
    let file = disk.open(FILE).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Every page is right, or an error names it; or the file is refused as a whole.
fn right_or_reported(disk: &SimStorage, model: &Model, what: &str) -> (u32, u32) {
    // As the catalog knows it: without that, nothing distinguishes a damaged run at the end from
    // one that a crash cut off.
    let open =
        PackedFile::open(disk.open(FILE).unwrap(), settings(9), Access::ReadWrite, model.sequence);
    let Ok(packed) = open else { return (0, PAGES) };
    let (mut right, mut reported) = (0, 0);
    let mut bytes = vec![0; PAGE];
    for no in 0..PAGES {
        match packed.read(SPACE, no, &mut bytes) {
            Ok(_) => {
                let version = model.durable.get(&no).copied().unwrap_or(0);
                let want = if version == 0 { vec![0; PAGE] } else { page_of(no, version) };
                assert!(bytes == want, "{what}: page {no} is wrong, and nothing says so");
                right += 1;
            }
            Err(Error::Corrupt { .. }) => reported += 1,
            Err(error) => panic!("{what}: {error}"),
        }
    }
    (right, reported)
}

#[test]
fn no_byte_of_the_file_is_trusted() {
    let (disk, model) = filled();
    let len = bytes_of(&disk).len();
    let mut refused = 0;
    for at in (0..len).step_by(487) {
        let disk = disk.kill();
        disk.corrupt(FILE, at as u64, 0x10);
        let (_, reported) = right_or_reported(&disk, &model, &format!("byte {at}"));
        refused += u32::from(reported == PAGES);
    }
    assert!(refused > 0, "the header of a run is among the bytes");
}

#[test]
fn one_block_of_a_root_may_rot() {
    let (disk, model) = filled();
    for block in 0..ROOT_BLOCKS {
        let disk = disk.kill();
        disk.corrupt(FILE, block * BLOCK as u64 + 50, 1);
        assert_eq!(right_or_reported(&disk, &model, "a root").0, PAGES, "block {block}");
    }
}

/// The root before it is whole, but the file has had runs since the newest.
#[test]
fn the_loss_of_the_newest_root_is_reported() {
    let (disk, model) = filled();
    // Root 2 is in the first two blocks.
    for block in [0, 1] {
        disk.corrupt(FILE, block * BLOCK as u64 + 50, 1);
    }
    for known in [0, model.sequence] {
        let open =
            PackedFile::open(disk.open(FILE).unwrap(), settings(9), Access::ReadWrite, known);
        assert!(open.is_err(), "known: {known}");
    }
}

/// As after a write that a disk acknowledged and lost: the bytes of before are there.
#[test]
fn an_older_state_of_any_block_is_found_out() {
    let (disk, _) = filled();
    let old = bytes_of(&disk);
    let packed = reopen(&disk, 3).unwrap();
    let mut model = filled().1;
    for version in 20..60 {
        let images: Vec<(u32, u32)> = (0..PAGES).map(|no| (no, version)).collect();
        let batch: Vec<Image> = images.iter().map(|(no, version)| image(*no, *version)).collect();
        packed.write(Stream::Flushed, &batch).unwrap();
        model.durable(&images);
        packed.checkpoint().unwrap();
    }
    model.sequence = packed.usage().sequence;
    drop(packed);
    let new = bytes_of(&disk);
    assert_eq!(right_or_reported(&disk.kill(), &model, "nothing lost"), (PAGES, 0));
    let (mut differing, mut noticed) = (0, 0);
    for at in (ROOT_BLOCKS as usize * BLOCK..old.len().min(new.len())).step_by(BLOCK) {
        let block = &old[at..at + BLOCK];
        if *block == new[at..at + BLOCK] {
            continue;
        }
        differing += 1;
        let disk = disk.kill();
        disk.open(FILE).unwrap().write_at(block, at as u64).unwrap();
        noticed += u32::from(right_or_reported(&disk, &model, &format!("block at {at}")).1 > 0);
    }
    assert!(differing > 20 && noticed > 0, "{noticed} of {differing}");
}

/// A block that lies where another one should.
#[test]
fn a_block_in_a_wrong_place_is_found_out() {
    let (disk, model) = filled();
    let bytes = bytes_of(&disk);
    let blocks = bytes.len() / BLOCK;
    for at in ROOT_BLOCKS as usize..blocks {
        let from = (at * 7 + 3) % blocks;
        let disk = disk.kill();
        let block = &bytes[from * BLOCK..(from + 1) * BLOCK];
        disk.open(FILE).unwrap().write_at(block, (at * BLOCK) as u64).unwrap();
        right_or_reported(&disk, &model, &format!("block {from} at {at}"));
    }
}

#[test]
fn a_file_that_is_cut_short_is_refused_or_its_pages_are() {
    let (disk, model) = filled();
    let len = bytes_of(&disk).len() as u64;
    for cut in (0..len).step_by(BLOCK) {
        let disk = disk.kill();
        disk.open(FILE).unwrap().set_len(cut).unwrap();
        right_or_reported(&disk, &model, &format!("cut at {cut}"));
    }
}

/// Files of another space, directory or page size are refused with a reason.
#[test]
fn a_file_of_something_else_is_refused() {
    let (disk, _) = filled();
    let open =
        |settings| match PackedFile::open(disk.open(FILE).unwrap(), settings, Access::ReadWrite, 0)
        {
            Ok(_) => panic!("opened"),
            Err(error) => error.to_string(),
        };
    let ours = settings(1);
    let error = open(Settings { space: 8, ..ours });
    assert!(error.starts_with("t: it is of space 7, expected 8: the file was renamed"), "{error}");
    let error = open(Settings { instance: [6; 16], ..ours });
    assert!(error.starts_with("t: it belongs to another data directory: put back"), "{error}");
    let error = open(Settings { page_size: crate::page::PageSize::DEFAULT, ..ours });
    assert!(error.starts_with("t: it has pages of 4096 bytes, the data directory has 16384"));
}

/// An older copy of the whole file is whole in itself: only what the caller knows of it shows that.
#[test]
fn an_older_copy_of_the_file_is_refused() {
    let (disk, model) = filled();
    let old = bytes_of(&disk);
    let packed = reopen(&disk, 3).unwrap();
    packed.write(Stream::Flushed, &[image(1, 50)]).unwrap();
    let sequence = packed.usage().sequence;
    drop(packed);
    disk.open(FILE).unwrap().write_at(&old, 0).unwrap();
    assert_eq!(right_or_reported(&disk, &model, "for who knows no better").0, PAGES);
    let error =
        PackedFile::open(disk.open(FILE).unwrap(), settings(4), Access::ReadWrite, sequence)
            .err()
            .unwrap();
    let why = format!("its newest run is {}, but run {sequence} was durable", sequence - 1);
    assert!(error.to_string().contains(&why), "{error}");
}

#[test]
fn an_image_that_is_spoilt_is_not_moved() {
    let (disk, _) = filled();
    let packed = reopen(&disk, 2).unwrap();
    packed.checkpoint().unwrap();
    let entry = packed.find(SPACE, 3).unwrap().unwrap();
    disk.corrupt(FILE, entry.unit * UNIT as u64 + 5, 1);
    let segment = packed.geometry.segment_at(entry.offset());
    // Another segment is being filled by now.
    for version in 100..140 {
        packed.write(Stream::Flushed, &[image(40, version * 3 + 2)]).unwrap();
    }
    packed.checkpoint().unwrap();
    let live_units = packed.writer.lock().segments.live_units(segment);
    let cleaned = packed.clean(Victim { segment, live_units, units: 1024, age: 0 }).unwrap();
    assert_eq!(
        cleaned.stuck.unwrap().to_string(),
        format!(
            "t: page 3 of space 7 is corrupt: its image can't be moved: the {} bytes at offset {} \
             are not those that run {} wrote there: {}",
            entry.len,
            entry.offset(),
            entry.run,
            Remedy::Restore
        )
    );
    assert_eq!(packed.writer.lock().segments.live_units(segment), entry.units());
}
