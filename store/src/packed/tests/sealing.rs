//! Encrypted images: what can be read with which keys, and what is found out.

use std::sync::Arc;

use super::super::entry::{Entry, Object};
use super::super::*;
use super::faults::runs_of;
use super::model::{FILE, KEY, Model, PAGE, SPACE, create, image, keys, page_of, reopen, settings};
use crate::encryption::{Keys, MemoryKeyring, SEAL_BYTES};
use crate::storage::{Fault, FaultKind, SimStorage, Storage, StorageOp};

const ALL: Resealing = Resealing { age: 1, exact: false, images_max: 7 };

fn encrypt(packed: &PackedFile, version: u32) {
    packed.encrypt_with(Some(keys().page_key(KEY, version).unwrap()));
}

fn write(packed: &PackedFile, pages: std::ops::Range<u32>, version: u32) -> Model {
    let mut model = Model::default();
    let images: Vec<Image> = pages.clone().map(|no| image(no, version)).collect();
    packed.write(Stream::Flushed, &images).unwrap();
    model.durable(&pages.map(|no| (no, version)).collect::<Vec<_>>());
    model
}

fn reseal_all(packed: &PackedFile, resealing: Resealing) -> Resealed {
    let (mut sum, mut from) = (Resealed::default(), Some(0));
    while let Some(at) = from {
        let part = packed.reseal(SPACE, at, resealing).unwrap();
        sum.images += part.images;
        sum.read += part.read;
        sum.failed += part.failed;
        sum.failure = sum.failure.or(part.failure);
        sum.oldest = sum.oldest.max(part.oldest);
        from = part.next;
    }
    sum
}

fn bytes_of(disk: &SimStorage) -> Vec<u8> {
    let file = disk.open(FILE).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn entry_of(packed: &PackedFile, no: u32) -> Entry {
    packed.find(SPACE, no).unwrap().unwrap()
}

#[test]
fn encrypted_and_plain_pages_lie_in_one_file_and_are_read_alike() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let mut model = write(&packed, 0..20, 1);
    encrypt(&packed, 1);
    model.durable.extend(write(&packed, 10..40, 2).durable);
    assert_eq!(entry_of(&packed, 5).seal, Seal::NONE);
    assert!(entry_of(&packed, 15).seal.is_sealed());
    assert_eq!(entry_of(&packed, 15).len as usize, image(15, 2).bytes.len() + SEAL_BYTES);
    model.check(&packed, 50, "at once");
    packed.checkpoint().unwrap();
    drop(packed);
    model.check(&reopen(&disk, 2).unwrap(), 50, "after a restart");
}

#[test]
fn no_byte_of_an_encrypted_page_is_in_the_file() {
    const SECRET: &[u8] = b"what no other may read";
    let disk = SimStorage::with_alignment(1, 1);
    let packed = create(&disk, 1);
    let write = |no: u32| {
        let mut page = page_of(no, 1);
        page[PAGE - 100..][..SECRET.len()].copy_from_slice(SECRET);
        packed.write(Stream::Flushed, &[Image::plain((SPACE, no), Codec::Raw, page)]).unwrap();
    };
    let is_in_file = || bytes_of(&disk).windows(SECRET.len()).any(|bytes| bytes == SECRET);
    encrypt(&packed, 1);
    (0..5).for_each(write);
    packed.checkpoint().unwrap();
    assert!(!is_in_file());
    packed.encrypt_with(None);
    write(9);
    assert!(is_in_file(), "the test looks in the right place");
}

#[test]
fn a_missing_key_is_an_error_that_names_it_and_hides_nothing_else() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    write(&packed, 0..4, 1);
    encrypt(&packed, 2);
    write(&packed, 4..8, 1);
    drop(packed);
    let ring = Arc::new(MemoryKeyring::default());
    ring.insert(KEY, 1, vec![1; 32]);
    let with = |keys: Option<Arc<Keys>>| {
        let file = disk.open(FILE).unwrap();
        let packed = PackedFile::open(file, settings(3), Access::ReadOnly, 0).unwrap();
        keys.into_iter().for_each(|keys| packed.read_with_keys(keys));
        packed
    };
    let mut page = vec![0; PAGE];
    for (keys, why) in [
        (None, "page 5 of space 7 is encrypted: it takes version 2 of key 3, and no keys"),
        (Some(Arc::new(Keys::new(ring))), "version 2 of encryption key 3: the keyring does not"),
    ] {
        let packed = with(keys);
        packed.read(SPACE, 1, &mut page).unwrap();
        let error = packed.read(SPACE, 5, &mut page).unwrap_err();
        assert!(matches!(error, Error::Key { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        // The image itself can be copied.
        assert!(packed.image(SPACE, 5).unwrap().unwrap().seal.is_sealed());
    }
}

#[test]
fn another_key_of_the_same_number_is_found_out() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    encrypt(&packed, 1);
    write(&packed, 0..2, 1);
    drop(packed);
    let ring = Arc::new(MemoryKeyring::default());
    ring.insert(KEY, 1, vec![99; 32]);
    let packed =
        PackedFile::open(disk.open(FILE).unwrap(), settings(3), Access::ReadOnly, 0).unwrap();
    packed.read_with_keys(Arc::new(Keys::new(ring)));
    let error = packed.read(SPACE, 0, &mut [0; PAGE]).unwrap_err();
    assert!(error.to_string().contains("version 1 of key 3 is not the one"), "{error}");
}

/// The checksum is right in all of these: somebody made it so.
#[test]
fn an_image_of_another_page_or_with_another_bit_is_found_out() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    encrypt(&packed, 1);
    write(&packed, 0..2, 2);
    let stolen = Image { no: 1, ..packed.image(SPACE, 0).unwrap().unwrap() };
    let mut flipped = packed.image(SPACE, 0).unwrap().unwrap();
    flipped.bytes[100] ^= 4;
    let mut recoded = packed.image(SPACE, 0).unwrap().unwrap();
    recoded.codec = if recoded.codec == Codec::Raw { Codec::Lz4 } else { Codec::Raw };
    for image in [stolen, flipped, recoded] {
        packed.write(Stream::Flushed, std::slice::from_ref(&image)).unwrap();
        let error = packed.read(SPACE, image.no, &mut [0; PAGE]).unwrap_err();
        assert!(error.to_string().contains("was changed or is another page's"), "{error}");
    }
}

#[test]
fn the_cleaner_and_a_copy_move_sealed_images_as_they_are() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    encrypt(&packed, 1);
    let mut model = Model::default();
    for version in 1..30 {
        model.durable.extend(write(&packed, version..version + 20, version).durable);
    }
    let before = packed.image(SPACE, 3).unwrap();
    packed.checkpoint().unwrap();
    let mut cleaned = 0;
    while let Some(victim) = packed.victim()
        && cleaned < 20
    {
        packed.clean(victim).unwrap();
        packed.checkpoint().unwrap();
        cleaned += 1;
    }
    assert!(cleaned > 0);
    assert_eq!(packed.image(SPACE, 3).unwrap(), before);
    model.check(&packed, 60, "cleaned");
    let other = SimStorage::new(2);
    let copy = create(&other, 9);
    let since = Since { run: 0, bytes_max: usize::MAX };
    let piece = packed.images_since(SPACE, 0, since).unwrap();
    copy.write(Stream::Flushed, &piece.images).unwrap();
    model.check(&copy, 60, "copied");
}

#[test]
fn a_newer_version_no_key_and_a_key_seal_all_images_anew() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let mut model = write(&packed, 0..50, 1);
    assert_eq!(reseal_all(&packed, ALL), Resealed::default());
    for version in [Some(1), Some(2), None, Some(17)] {
        packed.encrypt_with(version.map(|version| keys().page_key(KEY, version).unwrap()));
        assert_eq!(reseal_all(&packed, ALL).images, 50);
        let again = Resealed { oldest: version.map(|_| 0), ..Resealed::default() };
        assert_eq!(reseal_all(&packed, ALL), again);
        let seal = version.map_or(Seal::NONE, Seal::of_version);
        assert!((0..50).all(|no| entry_of(&packed, no).seal == seal));
        model.check(&packed, 60, "sealed anew");
    }
    encrypt(&packed, 18);
    let after_two = Resealing { age: 2, ..ALL };
    let left = Resealed { oldest: Some(1), ..Resealed::default() };
    assert_eq!(reseal_all(&packed, after_two), left);
    assert_eq!(reseal_all(&packed, Resealing { age: 0, ..ALL }), left);
    drop(packed);
    let packed = reopen(&disk, 2).unwrap();
    encrypt(&packed, 19);
    assert_eq!(reseal_all(&packed, after_two).images, 50);
    model.check(&packed, 60, "after a restart");
}

/// A batch may have been sealed with the older key, and wait for the writer, when the key changes.
#[test]
fn writers_beside_a_change_of_the_key_leave_no_image_with_the_older_one() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (packed, stop) = (&packed, &stop);
            scope.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let images: Vec<Image> = (0..8).map(|at| image(thread * 8 + at, 1)).collect();
                    packed.write(Stream::Flushed, &images).unwrap();
                }
            });
        }
        for version in 1..=30 {
            encrypt(&packed, version);
            reseal_all(&packed, ALL);
            let seals = (0..16).filter_map(|no| packed.find(SPACE, no).unwrap());
            let age = seals.map(|entry| entry.seal.age(version));
            assert!(age.into_iter().all(|age| age == Some(0)), "version {version}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_file_goes_on_with_its_key_and_takes_no_image_without_it() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    assert_eq!(packed.file_key(), FileKey::Never);
    encrypt(&packed, 1);
    packed.checkpoint().unwrap();
    drop(packed);
    let file = disk.open(FILE).unwrap();
    let packed = PackedFile::open(file, settings(2), Access::ReadWrite, 0).unwrap();
    assert_eq!(packed.file_key(), FileKey::Id(KEY));
    let error = packed.write(Stream::Flushed, &[image(1, 1)]).unwrap_err();
    assert!(error.to_string().contains("encrypted with key 3, and that was not given"), "{error}");
    packed.encrypt_with(None);
    packed.write(Stream::Flushed, &[image(1, 1)]).unwrap();
    packed.checkpoint().unwrap();
    drop(packed);
    assert_eq!(reopen(&disk, 3).unwrap().file_key(), FileKey::NoMore);

    let disk = SimStorage::new(2);
    let file = disk.create(FILE).unwrap();
    let made = PackedFile::create_behind(file, settings(1), (0, FileKey::Id(KEY))).unwrap();
    assert!(made.write(Stream::Flushed, &[image(1, 1)]).is_err());
    made.store_as_given();
    made.write(Stream::Flushed, &[image(1, 1)]).unwrap();
}

#[test]
fn a_file_without_roots_is_rescued_as_far_as_keys_allow() {
    let disk = SimStorage::with_alignment(1, 1);
    let packed = create(&disk, 1);
    encrypt(&packed, 1);
    let mut model = write(&packed, 0..30, 1);
    packed.checkpoint().unwrap();
    model.durable.extend(write(&packed, 0..30, 2).durable);
    drop(packed);
    disk.open(FILE).unwrap().write_at(&[0; 4 * 4096], 0).unwrap();
    let (packed, _) = PackedFile::rescue(disk.open(FILE).unwrap(), settings(4), 0).unwrap();
    let error = packed.read(SPACE, 0, &mut [0; PAGE]).unwrap_err();
    assert!(matches!(error, Error::Key { .. }), "{error}");
    packed.read_with_keys(keys());
    for no in 0..30 {
        let mut page = vec![0; PAGE];
        packed.read(SPACE, no, &mut page).unwrap();
        assert!(page == page_of(no, 2));
    }
}

#[test]
fn versions_that_the_map_takes_for_the_same_are_found_in_the_images() {
    let exact = |age| Resealing { age, exact: true, ..ALL };
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    encrypt(&packed, 1);
    let mut model = write(&packed, 0..50, 1);
    encrypt(&packed, 16);
    let unseen = Resealed { oldest: Some(0), ..Resealed::default() };
    assert_eq!(reseal_all(&packed, ALL), unseen, "modulo 15");
    let seen = Resealed { read: 50, oldest: Some(15), ..Resealed::default() };
    assert_eq!(reseal_all(&packed, exact(16)), seen);
    assert_eq!(reseal_all(&packed, exact(0)), seen);
    assert_eq!(reseal_all(&packed, exact(15)).images, 50);
    let fresh = Resealed { read: 50, oldest: Some(0), ..Resealed::default() };
    assert_eq!(reseal_all(&packed, exact(1)), fresh);
    model.check(&packed, 60, "sealed anew");

    // The same version of another key.
    let ring = Arc::new(MemoryKeyring::default());
    ring.insert(KEY + 1, 16, vec![99; 32]);
    let other = Keys::new(ring).page_key(KEY + 1, 16).unwrap();
    packed.encrypt_with(Some(other));
    assert_eq!(reseal_all(&packed, ALL).images, 0);
    assert_eq!(reseal_all(&packed, exact(1)).images, 50);
}

#[test]
fn what_cant_be_read_is_passed_over_and_the_pages_behind_it_are_sealed_anew() {
    const FAR: u32 = 3 * MAP_PAGES;
    let disk = SimStorage::with_alignment(1, 1);
    let packed = create(&disk, 1);
    encrypt(&packed, 1);
    for first in [0, MAP_PAGES, FAR] {
        let images: Vec<Image> = (first..first + 10).map(|no| image(no, 1)).collect();
        packed.write(Stream::Flushed, &images).unwrap();
    }
    packed.checkpoint().unwrap();
    let spoilt = entry_of(&packed, 3);
    disk.corrupt(FILE, spoilt.offset() + 50, 1);
    encrypt(&packed, 2);
    let sealed = reseal_all(&packed, ALL);
    assert_eq!((sealed.images, sealed.failed), (29, 1));
    let why = sealed.failure.unwrap();
    assert!(why.contains("page 3 of space 7"), "{why}");

    // A node of the map.
    packed.checkpoint().unwrap();
    let node = Object::Node { space: SPACE, level: 0, index: 1 };
    let mut at = None;
    for (_, _, changes) in runs_of(&disk) {
        let found = changes.into_iter().find(|(object, _)| *object == node);
        at = found.and_then(|(_, entry)| entry).or(at);
    }
    packed.trim_map(0);
    disk.corrupt(FILE, at.unwrap().offset() + 9, 1);
    encrypt(&packed, 3);
    let sealed = reseal_all(&packed, ALL);
    assert_eq!((sealed.images, sealed.failed), (19, 2), "{sealed:?}");
    assert_eq!(entry_of(&packed, FAR + 9).seal, Seal::of_version(3));
    let why = sealed.failure.unwrap();
    assert!(why.contains("page 3 of space 7"), "{why}");
}

#[test]
fn a_read_that_fails_costs_its_page_alone() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    encrypt(&packed, 1);
    write(&packed, 0..20, 1);
    encrypt(&packed, 2);
    disk.inject(Fault::new(StorageOp::Read, FaultKind::Io).on(FILE).skip(4));
    let sealed = reseal_all(&packed, ALL);
    assert_eq!((sealed.images, sealed.failed), (19, 1));
    assert_eq!(reseal_all(&packed, ALL).images, 1);
}
