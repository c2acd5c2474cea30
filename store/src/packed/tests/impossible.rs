//! Values that a right checksum covers, and that cannot be: a writer was wrong. They give errors.

use super::super::entry::Object;
use super::super::geometry::{BLOCK, ROOT_BLOCKS};
use super::super::map::{Absent, Map};
use super::super::root::{Root, Slot, Tail};
use super::super::run::{RunHeader, header_bytes};
use super::super::*;
use super::model::{FILE, SPACE, create, image, reopen};
use crate::storage::{SimStorage, Storage};

fn filled() -> SimStorage {
    let disk = SimStorage::with_alignment(1, 1);
    let packed = create(&disk, 1);
    for version in 1..5 {
        let images: Vec<Image> = (0..20).map(|no| image(no, version)).collect();
        packed.write(Stream::Flushed, &images).unwrap();
        if version == 3 {
            packed.checkpoint().unwrap();
        }
    }
    disk
}

fn bytes_of(disk: &SimStorage) -> Vec<u8> {
    let file = disk.open(FILE).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn error_of(disk: &SimStorage) -> String {
    match reopen(disk, 2) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_root_with_tails_where_no_segment_is_gives_an_error() {
    let disk = filled();
    let root = match Root::decode(&bytes_of(&disk)[..BLOCK]) {
        Slot::Root(root) => *root,
        other => panic!("{other:?}"),
    };
    let tail = root.tails[0];
    let tails = [
        Tail { segment: Some(root.segments), ..tail },
        Tail { segment: Some(u32::MAX - 1), ..tail },
        Tail { filled: 10_000, ..tail },
        Tail { filled: 17, segment: Some(0), ..tail },
        Tail { next: u32::MAX, ..tail },
        Tail { after: 1 << 29, ..tail },
    ];
    let changed = |tail| {
        let mut root = root.clone();
        root.tails[0] = tail;
        root
    };
    let mut roots: Vec<Root> = tails.into_iter().map(changed).collect();
    roots.push(Root { segments: u32::MAX, ..root.clone() });
    for root in roots {
        let disk = disk.kill();
        let file = disk.open(FILE).unwrap();
        for copy in 0..2 {
            let at = Root::slot_offset(root.number) + copy * BLOCK as u64;
            file.write_at(&root.encode(), at).unwrap();
        }
        let error = error_of(&disk);
        assert!(error.contains("its root says that streams go on where none can"), "{error}");
    }
    // More segments than its table has.
    let disk = disk.kill();
    let root = Root { segments: root.segments + 1, ..root };
    let file = disk.open(FILE).unwrap();
    file.write_at(&root.encode(), Root::slot_offset(root.number)).unwrap();
    file.write_at(&root.encode(), Root::slot_offset(root.number) + BLOCK as u64).unwrap();
    let error = error_of(&disk);
    let why = "the top of the map is corrupt: its rows do not fit the root, in the ";
    assert!(error.contains(why), "{error}");
}

#[test]
fn a_run_with_images_outside_of_it_gives_an_error() {
    let disk = filled();
    let bytes = bytes_of(&disk);
    let runs = (ROOT_BLOCKS as usize * BLOCK..bytes.len()).step_by(BLOCK);
    let runs = runs.filter_map(|at| Some((at, RunHeader::decode(&bytes[at..])?)));
    let (at, (header, changes, _)) = runs.max_by_key(|(_, (header, ..))| header.sequence).unwrap();
    let entry = changes[0].1.unwrap();
    let end = ((at + header.blocks as usize * BLOCK) / 64) as u64;
    let units = [0, 3, entry.unit - 8, end, end - 1, (1 << 40) - 1];
    for (unit, len) in units.into_iter().map(|unit| (unit, entry.len.max(65))) {
        let disk = disk.kill();
        let mut changes = changes.clone();
        changes[0].1 = Some(Entry { unit, len, ..entry });
        let mut run = bytes[at..][..header_bytes(changes.len())].to_vec();
        header.encode(&changes, &mut run);
        disk.open(FILE).unwrap().write_at(&run, at as u64).unwrap();
        let error = error_of(&disk);
        assert!(error.contains("its image says that it lies elsewhere"), "{error}");
    }
}

/// The cleaner meets such a run too.
#[test]
fn the_cleaner_passes_over_images_that_lie_in_no_segment() {
    let disk = filled();
    let packed = reopen(&disk, 2).unwrap();
    let geometry = packed.geometry;
    let end = geometry.offset_of(1) / 64;
    for (unit, len) in [(0, 10), (end - 1, 65), (end - 1, 1 << 16), ((1 << 40) - 1, 65)] {
        let entry = Entry { unit, len, codec: Codec::Raw, seal: Seal::NONE, crc: 1, run: 1 };
        assert_eq!(geometry.segment_of(&entry), None, "{entry:?}");
    }
    let whole =
        Entry { unit: end - 2, len: 65, codec: Codec::Raw, seal: Seal::NONE, crc: 1, run: 1 };
    assert_eq!(geometry.segment_of(&whole), Some(0));
}

#[test]
fn a_node_that_names_an_image_where_none_can_be_gives_an_error() {
    let node = Entry { unit: 300, len: 24, codec: Codec::Raw, seal: Seal::NONE, crc: 1, run: 1 };
    let mut row = [SPACE.to_le_bytes(), [0; 4]].concat();
    row.extend(Entry::encode(Some(node)));
    let mut map = Map::default();
    map.add_directory(&row).unwrap();
    let absent = map.find(SPACE, 0).unwrap_err();
    let object = Object::Node { space: SPACE, level: 0, index: 0 };
    assert_eq!(absent, Absent { object, entry: node });
    let mut image = vec![0, 0, 0, 0, 1, 0, 0, 0];
    image.extend(Entry::encode(Some(Entry { unit: 3, ..node })));
    assert!(map.install(absent, &image, |entry| entry.unit > 3).is_err());
    map.install(absent, &image, |entry| entry.unit > 2).unwrap();
    assert!(map.find(SPACE, 0).unwrap().is_some());
    assert!(map.add_directory(&row).is_err(), "a space twice");
}

/// A segment of which less is in use than the map says could be filled while images in it are in
/// use: the file takes no change any more.
#[test]
fn a_table_of_segments_that_does_not_fit_the_map_stops_changes() {
    let disk = filled();
    let packed = reopen(&disk, 2).unwrap();
    for no in [1, 2, 3, 4, 5] {
        let entry = packed.find(SPACE, no).unwrap().unwrap();
        packed.writer.lock().segments.remove(&entry).unwrap();
    }
    let freed = packed.forget_from(SPACE, 0).and_then(|()| packed.checkpoint());
    let error = freed.and_then(|()| packed.write(Stream::Flushed, &[image(1, 9)])).unwrap_err();
    assert!(error.to_string().contains("less of a segment is in use than the map says"), "{error}");
    let mut page = vec![0; super::model::PAGE];
    packed.read(SPACE, 1, &mut page).unwrap();
}

#[test]
fn a_file_does_not_grow_beyond_what_entries_can_name() {
    let disk = filled();
    let packed = reopen(&disk, 2).unwrap();
    let most = packed.geometry.segments_max();
    assert!(packed.geometry.offset_of(most) <= 64 << 40);
    let error = packed.grow(&mut packed.writer.lock(), most + 1).unwrap_err();
    let why = "t: it can't grow beyond 64 TiB: divide its table into partitions";
    assert_eq!(error.to_string(), why);
}
