//! Room: what is reserved, what a full disk leaves, and where streams go on then.

use super::super::*;
use super::model::{FILE, Model, SPACE, create, free, image, reopen, settings};
use crate::page::PageSize;
use crate::storage::{SimStorage, Storage};

/// An image of a page that does not shrink.
fn whole(no: u32, version: u32) -> Image {
    let image = image(no, version * 3 + (3 - no % 3));
    assert_eq!(image.codec, Codec::Raw);
    image
}

fn used(disk: &SimStorage) -> u64 {
    disk.open(FILE).unwrap().len().unwrap()
}

/// Whatever the sizes of batches, what was reserved finds room on a disk that is full since.
#[test]
fn reserved_pages_find_room_on_a_full_disk() {
    for batch in [1, 7, 100] {
        let disk = SimStorage::new(1);
        let packed = create(&disk, 1);
        packed.write(Stream::Flushed, &[image(0, 1)]).unwrap();
        for pages in [1u32, 30, 100] {
            packed.reserve(pages).unwrap();
            disk.set_capacity(Some(disk.used_bytes()));
            let images: Vec<Image> = (0..pages).map(|no| whole(no, batch)).collect();
            for images in images.chunks(batch as usize) {
                packed.write(Stream::Flushed, images).unwrap();
            }
            disk.set_capacity(None);
        }
    }
}

#[test]
fn a_reserve_that_the_disk_has_no_room_for_changes_nothing() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    packed.write(Stream::Flushed, &[image(0, 1)]).unwrap();
    let before = (used(&disk), packed.usage());
    disk.set_capacity(Some(1 << 20));
    let error = packed.reserve(10_000).unwrap_err();
    assert!(matches!(&error, Error::Storage(error) if error.is_no_space()), "{error}");
    assert_eq!((used(&disk), packed.usage()), before);
    packed.write(Stream::Flushed, &[image(0, 2)]).unwrap();
}

#[test]
fn a_small_file_stays_small() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    for version in 1..100 {
        packed.write(Stream::Flushed, &[image(0, version), image(1, version)]).unwrap();
        if version % 10 == 0 {
            packed.checkpoint().unwrap();
        }
        assert!(used(&disk) <= (16 + 5 * 64) << 10, "{} bytes", used(&disk));
    }
    packed.checkpoint().unwrap();
    println!("{} bytes, {:?}", used(&disk), packed.usage());
    assert!(used(&disk) <= (16 + 3 * 64) << 10, "{} bytes", used(&disk));
}

/// A checkpoint leaves what is reserved, and cuts off what is no longer.
#[test]
fn the_surplus_of_a_reserve_goes_with_a_checkpoint_after_it_was_used() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let checkpoint = |version| {
        packed.write(Stream::Flushed, &[image(0, version)]).unwrap();
        packed.checkpoint().unwrap();
        used(&disk)
    };
    let small = checkpoint(1);
    packed.reserve(1000).unwrap();
    let large = used(&disk);
    assert!(large > small + 1000 * 4096);
    assert!(checkpoint(2) > large - (1 << 20), "what is reserved stays");
    let operations = disk.operation_count();
    packed.reserve(900).unwrap();
    assert_eq!(disk.operation_count(), operations, "there is room already");
    let images: Vec<Image> = (0..900).map(|no| whole(no, 5)).collect();
    packed.write(Stream::Flushed, &images).unwrap();
    let frees: Vec<Image> = (0..900).map(free).collect();
    packed.write(Stream::Flushed, &frees).unwrap();
    checkpoint(3);
    // The segments that the pages were in are idle now, and those of the map's nodes last.
    for version in 4..8 {
        while let Some(victim) = packed.victim() {
            packed.clean(victim).unwrap();
        }
        checkpoint(version);
    }
    assert!(used(&disk) < small + (512 << 10), "{} after {small}", used(&disk));
    packed.reserve(1000).unwrap();
    packed.reserve(0).unwrap();
    checkpoint(8);
    assert!(used(&disk) < small + (512 << 10));
}

/// What is in use lies at the end, and idle segments before it.
#[test]
fn a_file_is_cut_shorter_when_what_its_last_segments_hold_finds_room_before() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    for first in (0..1800).step_by(60) {
        let images: Vec<Image> = (first..first + 60).map(|no| whole(no, 5)).collect();
        packed.write(Stream::Flushed, &images).unwrap();
    }
    let frees: Vec<Image> = (0..1700).map(free).collect();
    packed.write(Stream::Flushed, &frees).unwrap();
    packed.checkpoint().unwrap();
    let before = packed.usage();
    assert!(before.file_bytes > 8 * before.live_bytes, "{before:?}");
    let mut rounds = 0;
    while packed.shorten().unwrap() {
        rounds += 1;
        assert!(rounds < 100, "{:?}", packed.usage());
    }
    let after = packed.usage();
    assert!(after.file_bytes < 2 * after.live_bytes + (4 << 20), "{rounds}: {after:?}");
    assert!(after.file_bytes < before.file_bytes / 2, "{rounds}: {after:?}");
    let check = |packed: &PackedFile| {
        let mut page = vec![0; packed.settings.page_size.bytes()];
        for no in 1700..1800 {
            assert_eq!(packed.read(SPACE, no, &mut page).unwrap(), Found::Page);
            assert_eq!(page, whole(no, 5).bytes);
        }
        assert_eq!(packed.read(SPACE, 5, &mut page).unwrap(), Found::Nothing);
    };
    check(&packed);
    drop(packed);
    check(&reopen(&disk, 2).unwrap());
}

/// The segment that a stream means to go on in lies behind the end of the file, and the disk is
/// full: it goes on in one that is idle.
#[test]
fn a_stream_goes_on_in_an_idle_segment_if_the_file_cannot_grow() {
    for stream in [Stream::Flushed, Stream::Moved] {
        let disk = SimStorage::new(1);
        let packed = create(&disk, 1);
        let mut model = Model::default();
        packed.write(Stream::Flushed, &[image(0, 1)]).unwrap();
        packed.checkpoint().unwrap();
        let count = packed.writer.lock().segments.count();
        packed.reserve(100).unwrap();
        {
            let tail = &mut packed.writer.lock().chain.tails[stream.index()];
            (tail.next, tail.after) = (count + 1000, count + 1001);
        }
        disk.set_capacity(Some(disk.used_bytes()));
        for version in 1..12 {
            let images: Vec<(u32, u32)> =
                (0..9).map(|no| (no, version * 3 + (3 - no % 3))).collect();
            let batch: Vec<Image> =
                images.iter().map(|(no, version)| image(*no, *version)).collect();
            packed.write(stream, &batch).unwrap();
            model.durable(&images);
        }
        drop(packed);
        model.check(&reopen(&disk, 2).unwrap(), 10, "after a restart");
    }
}

/// With pages of every size.
#[test]
fn there_is_room_for_a_checkpoint_on_a_full_disk() {
    for bytes in [4 << 10, 16 << 10, 64 << 10] {
        let page_size = PageSize::new(bytes).unwrap();
        let disk = SimStorage::new(1);
        let file = disk.create(FILE).unwrap();
        let packed = PackedFile::create(file, Settings { page_size, ..settings(1) }).unwrap();
        // Nodes of a thousand entries, in segments of every size.
        disk.set_capacity(Some(8 << 20));
        let mut random = super::model::Random::new(3);
        let (mut refused, mut written) = (0, 0);
        for version in 0..1500u32 {
            let first = random.below(40_000) as u32;
            let images: Vec<Image> = (first..first + 1 + version % 20)
                .map(|no| {
                    let bytes = vec![version as u8; if no % 5 == 0 { bytes } else { bytes / 9 }];
                    // No page is decoded here.
                    let codec = if no % 5 == 0 { Codec::Raw } else { Codec::Lz4 };
                    Image::plain((SPACE, no), codec, bytes)
                })
                .collect();
            match packed.write(Stream::Flushed, &images) {
                Ok(()) => written += 1,
                Err(error) => {
                    assert!(matches!(&error, Error::Storage(error) if error.is_no_space()));
                    refused += 1;
                    packed.checkpoint().unwrap();
                    packed.forget_from(SPACE, random.below(20_000) as u32).unwrap();
                    packed.checkpoint().unwrap();
                }
            }
        }
        assert!(refused > 0 && written > refused, "{refused} of {written}, {bytes}");
    }
}
