//! A packed file and what it should hold.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::super::geometry::UNIT;
use super::super::run::STREAMS;
use super::super::*;
use crate::encryption::{Keys, MemoryKeyring};
use crate::page::{self, PageId, PageSize};
use crate::storage::{SimStorage, Storage, StorageFile};

pub const FILE: &str = "t";
pub const PAGE: usize = 4096;
pub const SPACE: u32 = 7;

/// Chance from a seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % n
    }
}

/// A page whose bytes follow from its number and version; a third of them do not shrink.
pub fn page_of(no: u32, version: u32) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    let mut random = Random::new(u64::from(no) << 32 | u64::from(version));
    let incompressible =
        if no.wrapping_add(version).is_multiple_of(3) { PAGE } else { 300 + random.below(900) };
    for byte in &mut bytes[page::PAGE_HEADER_SIZE..incompressible] {
        *byte = random.below(256) as u8;
    }
    bytes[PAGE - 4..].copy_from_slice(&version.to_le_bytes());
    page::set_page_id(&mut bytes, PageId::new(SPACE, no));
    page::stamp_checksum(&mut bytes);
    bytes
}

pub fn image(no: u32, version: u32) -> Image {
    let mut bytes = Vec::new();
    let codec = if version.is_multiple_of(2) { Codec::Lz4 } else { Codec::Zstd };
    let codec = codec.encode(&page_of(no, version), &mut bytes);
    Image::plain((SPACE, no), codec, bytes)
}

pub fn free(no: u32) -> Image {
    Image::of_free(SPACE, no)
}

/// Writes a batch of images; the model knows them before, and what has become of them after.
pub fn write(packed: &PackedFile, model: &mut Model, images: &[(u32, u32)]) -> Result<()> {
    let batch: Vec<Image> = images.iter().map(|(no, version)| image(*no, *version)).collect();
    model.perhaps(images);
    packed.write(Stream::Flushed, &batch)?;
    model.durable(images);
    Ok(())
}

pub fn settings(random: u64) -> Settings {
    Settings { page_size: PageSize::new(PAGE).unwrap(), instance: [5; 16], space: SPACE, random }
}

pub fn create(disk: &SimStorage, random: u64) -> PackedFile {
    let packed = PackedFile::create(disk.create(FILE).unwrap(), settings(random)).unwrap();
    packed.read_with_keys(keys());
    disk.sync_dir("").unwrap();
    packed
}

pub fn reopen(disk: &SimStorage, random: u64) -> Result<PackedFile> {
    let file: Arc<dyn StorageFile> = disk.open(FILE).unwrap();
    let packed = PackedFile::open(file, settings(random), Access::ReadWrite, 0)?;
    give_keys(&packed);
    Ok(packed)
}

/// Gives an opened file the keys, to read and to go on writing with.
pub fn give_keys(packed: &PackedFile) {
    packed.read_with_keys(keys());
    if let FileKey::Id(id) = packed.file_key() {
        packed.encrypt_with(Some(keys().newest_page_key(id).unwrap()));
    }
}

/// The key of the test files.
pub const KEY: u32 = 3;

/// Versions 1 to 40 of it.
pub fn keys() -> Arc<Keys> {
    let ring = MemoryKeyring::default();
    (1..=40u8).for_each(|version| ring.insert(KEY, u32::from(version), vec![version; 32]));
    Arc::new(Keys::new(Arc::new(ring)))
}

/// What pages should hold: versions, 0 for a page that is free.
#[derive(Clone, Default)]
pub struct Model {
    /// What is durable.
    pub durable: BTreeMap<u32, u32>,
    /// What a batch that failed or was cut off may have left as well.
    pub perhaps: HashMap<u32, Vec<u32>>,
    /// The newest run that is known to be durable.
    pub sequence: u64,
    /// The first page that is checked.
    pub first: u32,
    /// From one page that is checked to the next; 0: 1.
    pub stride: u32,
}

impl Model {
    /// The number of the page that is checked as number `at`.
    pub fn page(&self, at: u32) -> u32 {
        at * self.stride.max(1)
    }

    pub fn durable(&mut self, images: &[(u32, u32)]) {
        for (no, version) in images {
            self.durable.insert(*no, *version);
            self.perhaps.remove(no);
        }
    }

    pub fn perhaps(&mut self, images: &[(u32, u32)]) {
        for (no, version) in images {
            self.perhaps.entry(*no).or_default().push(*version);
        }
    }

    /// Checks every page from `first` up to `pages`, and makes what was found the truth.
    pub fn check(&mut self, packed: &PackedFile, pages: u32, what: &str) {
        let mut bytes = vec![0; PAGE];
        for no in (self.first..pages).map(|at| self.page(at)).collect::<Vec<_>>() {
            let found = packed
                .read(SPACE, no, &mut bytes)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let version = match found {
                Found::Nothing => 0,
                Found::Page => {
                    page::verify(&bytes, PageId::new(SPACE, no)).unwrap();
                    u32::from_le_bytes(bytes[PAGE - 4..].try_into().unwrap())
                }
            };
            let durable = self.durable.get(&no).copied().unwrap_or(0);
            let perhaps = self.perhaps.remove(&no).unwrap_or_default();
            assert!(
                version == durable || perhaps.contains(&version),
                "{what}: page {no} is of version {version}, not {durable} or one of {perhaps:?}"
            );
            match version {
                0 => assert!(bytes.iter().all(|byte| *byte == 0), "{what}: page {no} is not empty"),
                _ => assert!(bytes == page_of(no, version), "{what}: page {no} has other bytes"),
            }
            self.durable.insert(no, version);
        }
        recount(packed, what);
    }
}

impl Model {
    /// Checks that every page is right or an error; returns whether none was an error. Nothing
    /// becomes the truth.
    pub fn check_reported(&self, packed: &PackedFile, pages: u32, what: &str) -> bool {
        let (mut bytes, mut whole) = (vec![0; PAGE], true);
        for no in 0..pages {
            let version = match packed.read(SPACE, no, &mut bytes) {
                Ok(Found::Nothing) => 0,
                Ok(Found::Page) => u32::from_le_bytes(bytes[PAGE - 4..].try_into().unwrap()),
                Err(Error::Corrupt { .. }) => {
                    whole = false;
                    continue;
                }
                Err(error) => panic!("{what}: {error}"),
            };
            let durable = self.durable.get(&no).copied().unwrap_or(0);
            let perhaps = self.perhaps.get(&no).is_some_and(|perhaps| perhaps.contains(&version));
            assert!(
                version == durable || perhaps,
                "{what}: page {no} is of version {version}, not {durable}, and nothing says so"
            );
            assert!(version == 0 || bytes == page_of(no, version), "{what}: bytes of page {no}");
        }
        whole
    }
}

/// What segments hold by the table is what the map and the tables lead to.
fn recount(packed: &PackedFile, what: &str) {
    let writer = packed.writer.lock();
    let mut live: Vec<u64> = vec![0; writer.segments.count() as usize];
    let mut add = |entry: &Entry| {
        live[packed.geometry.segment_at(entry.offset()) as usize] += u64::from(entry.units());
    };
    let mut from = Some(0);
    while let Some(at) = from
        && let Some(no) = packed.next_page(SPACE, at).unwrap()
    {
        add(&packed.find(SPACE, no).unwrap().unwrap());
        from = no.checked_add(1);
    }
    writer.tables.iter().for_each(|(_, entry)| add(entry));
    let nodes = packed.map.read().nodes_at(&|_| true);
    nodes.iter().for_each(|(_, entry)| add(entry));
    for (segment, live) in (0..).zip(live) {
        let counted = u64::from(writer.segments.live_units(segment));
        assert_eq!(counted, live, "{what}: units of {UNIT} bytes in use in segment {segment}");
    }
}

#[test]
fn a_page_is_found_where_it_was_written_last_and_after_a_restart() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let mut model = Model::default();
    for version in 1..40 {
        let images: Vec<(u32, u32)> = (0..90).map(|at| (at * 37 % 500, version)).collect();
        let batch: Vec<Image> = images.iter().map(|(no, version)| image(*no, *version)).collect();
        packed.write(Stream::Flushed, &batch).unwrap();
        model.durable(&images);
        if version % 7 == 0 {
            packed.checkpoint().unwrap();
        }
    }
    model.check(&packed, 510, "at once");
    drop(packed);
    let packed = reopen(&disk, 2).unwrap();
    model.check(&packed, 510, "after a restart");
}

/// More pages than a node has entries, and spaces of very different size in one file.
#[test]
fn maps_grow_by_levels_and_nodes_that_are_not_dirty_leave_memory() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let pages = [0u32, 1, 1023, 1024, 5000, (1 << 20) - 1, 1 << 20, (1 << 30) + 5, u32::MAX];
    let image_in = |space, no| Image { space, ..image(no, 1) };
    for space in [3, 4000, u32::MAX] {
        for no in pages {
            packed.write(Stream::Flushed, &[image_in(space, no)]).unwrap();
        }
    }
    for round in 0..3 {
        let mut bytes = vec![0; PAGE];
        for space in [3, 4000, u32::MAX] {
            let mut found = Vec::new();
            let mut from = Some(0);
            while let Some(at) = from
                && let Some(no) = packed.next_page(space, at).unwrap()
            {
                assert_eq!(packed.read(space, no, &mut bytes).unwrap(), Found::Page);
                assert!(bytes == page_of(no, 1), "round {round}, page {no} of space {space}");
                found.push(no);
                from = no.checked_add(1);
            }
            assert_eq!(found, pages, "round {round}");
            assert_eq!(packed.read(space, 2, &mut bytes).unwrap(), Found::Nothing);
        }
        packed.checkpoint().unwrap();
        let before = packed.usage().memory_bytes;
        packed.trim_map(0);
        assert!(packed.usage().memory_bytes < before / 10, "round {round}");
        packed.write(Stream::Flushed, &[image_in(3, 5000)]).unwrap();
    }
    let all: Vec<Image> = pages.iter().map(|no| Image { space: 4000, ..free(*no) }).collect();
    packed.write(Stream::Flushed, &all).unwrap();
    packed.checkpoint().unwrap();
    drop(packed);
    let packed = reopen(&disk, 2).unwrap();
    assert_eq!(packed.next_page(4000, 0).unwrap(), None);
    assert_eq!(packed.next_page(3, 6000).unwrap(), Some((1 << 20) - 1));
}

/// Pages that are written again and again: the cleaner keeps the file within its bound, and a file
/// that was emptied gets short.
#[test]
fn room_comes_back() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let (mut model, mut random) = (Model::default(), Random::new(9));
    let mut written = 0;
    let mut moved = 0;
    for version in 1..600 {
        let first = random.below(2000) as u32;
        let images: Vec<(u32, u32)> =
            (0..40).map(|at| ((first + at * 53) % 2000, version)).collect();
        let batch: Vec<Image> = images.iter().map(|(no, version)| image(*no, *version)).collect();
        written += batch.iter().map(|image| image.bytes.len() as u64).sum::<u64>();
        packed.write(Stream::Flushed, &batch).unwrap();
        model.durable(&images);
        if packed.wants_checkpoint() {
            packed.checkpoint().unwrap();
        }
        loop {
            let usage = packed.usage();
            let goal = usage.live_bytes * 14 / 10 + (1 << 20);
            let Some(victim) = packed.victim().filter(|_| usage.occupied_bytes > goal) else {
                break;
            };
            if victim.share() > 0.9 {
                break;
            }
            moved += packed.clean(victim).unwrap().moved_bytes;
        }
    }
    model.check(&packed, 2000, "after the churn");
    packed.checkpoint().unwrap();
    let usage = packed.usage();
    assert!(usage.file_bytes < usage.live_bytes * 17 / 10 + (4 << 20), "{usage:?}");
    assert!(moved < written, "{moved} bytes were moved for {written} that were written");
    let all: Vec<Image> = (0..2000).map(free).collect();
    for batch in all.chunks(300) {
        packed.write(Stream::Flushed, batch).unwrap();
    }
    // The map's nodes are in the segments that were filled last; the cleaner moves them to the
    // first ones.
    for _ in 0..3 {
        packed.write(Stream::Flushed, &[image(0, 1)]).unwrap();
        while let Some(victim) = packed.victim() {
            packed.clean(victim).unwrap();
        }
        packed.checkpoint().unwrap();
    }
    let usage = packed.usage();
    assert!(usage.live_bytes < 16 << 10, "{usage:?}");
    assert!(usage.file_bytes < 1 << 20, "{usage:?}");
}

/// The table of segments takes several segments, none is empty, and the file grows for it.
#[test]
fn a_checkpoint_ends_when_its_tables_make_the_file_grow() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    packed.write(Stream::Flushed, &[image(0, 1)]).unwrap();
    let segments = 80_000;
    {
        let mut writer = packed.writer.lock();
        packed.file.set_len(packed.geometry.offset_of(segments)).unwrap();
        writer.segments.grow(segments);
        // As if each had an image, but those that the streams go on in.
        for segment in 2 * STREAMS as u32 + 1..segments {
            let unit = packed.geometry.offset_of(segment) / UNIT as u64;
            let entry = Entry { unit, len: 1, codec: Codec::Raw, seal: Seal::NONE, crc: 0, run: 1 };
            writer.segments.add(&entry).unwrap();
        }
    }
    packed.checkpoint().unwrap();
    assert!(packed.writer.lock().segments.count() <= segments + 5);
    drop(packed);
    let packed = reopen(&disk, 2).unwrap();
    let mut bytes = vec![0; PAGE];
    assert_eq!(packed.read(SPACE, 0, &mut bytes).unwrap(), Found::Page);
    assert!(bytes == page_of(0, 1));
}

/// A batch that begins in a segment without images in use, and goes on in another one: the first is
/// not filled again before its time.
#[test]
fn a_segment_that_a_batch_has_left_is_no_choice_for_its_next() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let mut model = Model::default();
    // Versions that do not shrink: 16 blocks are a segment.
    let mut write = |stream, pages: std::ops::Range<u32>, version: u32| {
        let images: Vec<(u32, u32)> = pages.map(|no| (no, version * 3 + (3 - no % 3))).collect();
        let batch: Vec<Image> = images.iter().map(|(no, version)| image(*no, *version)).collect();
        packed.write(stream, &batch).unwrap();
        model.durable(&images);
    };
    write(Stream::Moved, 0..3, 1);
    write(Stream::Flushed, 0..3, 2);
    packed.checkpoint().unwrap();
    for (at, version) in (0..8).zip(3..) {
        write(Stream::Moved, at * 20..(at + 1) * 20, version);
    }
    model.check(&packed, 160, "at once");
    drop(packed);
    model.check(&reopen(&disk, 2).unwrap(), 160, "after a restart");
}
