//! Where the pages of a space are in its file, for tests that harm them.

// Each test uses some of it.
#![allow(dead_code)]

use std::ops::Range;
use std::path::Path;

use tidepool::storage::{AlignedBuf, FileOptions, FileStorage, Storage};
use tidepool_pool::PageSize;
pub use tidepool_pool::packed::Access;
use tidepool_pool::packed::{Codec, Image, PackedFile, Settings, Stream};
use tidepool_pool::page::stamp_checksum;

/// The spaces of the catalog and of undo.
pub const SYSTEM: u32 = 0;
pub const UNDO: u32 = 1;

/// The name of the file of a space.
pub fn file_name(space: u32) -> String {
    match space {
        SYSTEM => "system.tpd".into(),
        UNDO => "undo.tpd".into(),
        _ => format!("tables/{space:08x}.tpd"),
    }
}

/// A data directory on real files.
pub fn files_in(dir: &Path) -> FileStorage {
    let options = FileOptions { direct_io: false, ..FileOptions::default() };
    FileStorage::new(dir, options).unwrap()
}

/// Page size and uuid of a data directory: in `redo/control`, at bytes 12 and 16 of the newest slot
/// that is whole (`docs/internals/format/redo.md`).
fn identity(storage: &dyn Storage) -> (PageSize, [u8; 16]) {
    let control = storage.open("redo/control").unwrap();
    let mut slots = AlignedBuf::zeroed(2 * 4096);
    control.read_at(&mut slots, 0).unwrap();
    let is_whole = |slot: &&[u8]| crc32c::crc32c(&slot[..4092]).to_le_bytes() == slot[4092..4096];
    let sequence = |slot: &&[u8]| u64::from_le_bytes(slot[32..40].try_into().unwrap());
    let newest = slots.chunks(4096).filter(is_whole).max_by_key(sequence).expect("a whole slot");
    let page_size = u32::from_le_bytes(newest[12..16].try_into().unwrap());
    (PageSize::new(page_size as usize).unwrap(), newest[16..32].try_into().unwrap())
}

/// Opens the file of a space beside the engine.
pub fn open(storage: &dyn Storage, space: u32, access: Access) -> PackedFile {
    let (page_size, instance) = identity(storage);
    let file = storage.open(&file_name(space)).unwrap();
    let settings = Settings { page_size, instance, space, random: 7 };
    PackedFile::open(file, settings, access, 0).unwrap()
}

/// The bytes of the file that are the image of a page.
pub type Place = Range<usize>;

/// Where the images of pages are. (A caller asks before it spoils any: for who does not know which
/// run was durable, a spoilt image may end the file.)
pub fn places(storage: &dyn Storage, space: u32, pages: &[u32]) -> Vec<Place> {
    let file = open(storage, space, Access::ReadOnly);
    let place = |no: &u32| {
        let entry = file.find(space, *no).unwrap();
        let entry = entry.unwrap_or_else(|| panic!("page {no} of space {space} has an image"));
        let start = entry.offset() as usize;
        start..start + entry.len as usize
    };
    pages.iter().map(place).collect()
}

/// The pages that have an image.
pub fn page_numbers(storage: &dyn Storage, space: u32) -> Vec<u32> {
    let file = open(storage, space, Access::ReadOnly);
    let next = |from: u32| file.next_page(space, from).unwrap();
    std::iter::successors(next(0), |no| next(no + 1)).collect()
}

/// A page.
pub fn read_page(storage: &dyn Storage, space: u32, no: u32) -> Vec<u8> {
    let mut page = vec![0; identity(storage).0.bytes()];
    open(storage, space, Access::ReadOnly).read(space, no, &mut page).unwrap();
    page
}

/// All pages of the space; those without an image are zeroes.
pub fn pages(storage: &dyn Storage, space: u32) -> Vec<Vec<u8>> {
    let file = open(storage, space, Access::ReadOnly);
    let page_size = identity(storage).0.bytes();
    let page = |no| {
        let mut page = vec![0; page_size];
        file.read(space, no, &mut page).unwrap();
        page
    };
    (0..file.end(space).unwrap()).map(page).collect()
}

/// Changes the bytes of the file that are the image of a page.
pub fn change_image(storage: &dyn Storage, space: u32, no: u32, change: impl FnOnce(&mut [u8])) {
    change_bytes(storage, space, &places(storage, space, &[no])[0], change);
}

/// Changes bytes of the file of a space.
pub fn change_bytes(
    storage: &dyn Storage,
    space: u32,
    place: &Place,
    change: impl FnOnce(&mut [u8]),
) {
    let file = storage.open(&file_name(space)).unwrap();
    let start = place.start / 4096 * 4096;
    let mut blocks = AlignedBuf::zeroed(place.end.next_multiple_of(4096) - start);
    file.read_at(&mut blocks, start as u64).unwrap();
    change(&mut blocks[place.start - start..place.end - start]);
    file.write_at(&blocks, start as u64).unwrap();
    file.sync_data().unwrap();
}

/// Flips a bit in the middle of the image of each of these pages.
pub fn flip(storage: &dyn Storage, space: u32, pages: &[u32]) {
    for place in places(storage, space, pages) {
        change_bytes(storage, space, &place, |image| image[image.len() / 2] ^= 0x10);
    }
}

/// Puts a page into the file, as a faulty program would that knows of checksums; one of no bytes
/// is free from then on.
pub fn write_page(storage: &dyn Storage, space: u32, no: u32, bytes: Vec<u8>) {
    let file = open(storage, space, Access::ReadWrite);
    file.write(Stream::Flushed, &[Image::plain((space, no), Codec::Raw, bytes)]).unwrap();
    file.checkpoint().unwrap();
}

/// Changes a page, and gives it the checksum of its new bytes.
pub fn change_page(storage: &dyn Storage, space: u32, no: u32, change: impl FnOnce(&mut [u8])) {
    let mut page = read_page(storage, space, no);
    change(&mut page);
    stamp_checksum(&mut page);
    write_page(storage, space, no, page);
}
