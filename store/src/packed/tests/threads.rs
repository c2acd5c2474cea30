//! Readers beside batches, the cleaner, checkpoints and trims.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::super::*;
use super::model::{PAGE, Random, SPACE, create, image, page_of};
use crate::storage::SimStorage;

const PAGES: u32 = 3000;

/// A read gives a version that was durable when it began, or one that was being written.
#[test]
fn readers_see_a_version_of_their_time() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let versions = || (0..PAGES).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
    let (durable, begun, is_over) = (versions(), versions(), AtomicBool::new(false));
    let read = |seed: u64| {
        let (mut random, mut page, mut count) = (Random::new(seed), vec![0; PAGE], 0u32);
        while !is_over.load(Ordering::Acquire) || count < 100 {
            let no = random.below(PAGES as usize);
            let least = durable[no].load(Ordering::Acquire);
            let found = match random.below(3) {
                0 => packed.image(SPACE, no as u32).unwrap().is_some_and(|image| {
                    image.codec.decode(&image.bytes, &mut page).unwrap();
                    true
                }),
                1 => read_window(&packed, no as u32, &mut page),
                _ => packed.read(SPACE, no as u32, &mut page).unwrap() == Found::Page,
            };
            let most = begun[no].load(Ordering::Acquire);
            let version = match found {
                true => u32::from_le_bytes(page[PAGE - 4..].try_into().unwrap()),
                false => 0,
            };
            assert!((least..=most).contains(&version), "{version} of page {no}: {least} to {most}");
            assert!(!found || page == page_of(no as u32, version), "page {no}");
            count += 1;
        }
    };
    let write = || {
        let _over = Over(&is_over);
        let mut random = Random::new(7);
        for version in 1..150 {
            let first = random.below(PAGES as usize) as u32;
            let numbers: Vec<u32> = (0..40).map(|at| (first + at * 53) % PAGES).collect();
            let images: Vec<Image> = numbers.iter().map(|no| image(*no, version)).collect();
            let note = |versions: &[AtomicU32]| {
                numbers
                    .iter()
                    .for_each(|no| versions[*no as usize].store(version, Ordering::Release))
            };
            note(&begun);
            packed.write(Stream::Flushed, &images).unwrap();
            note(&durable);
            packed.trim_map(random.below(3));
            if version % 5 == 0 {
                packed.checkpoint().unwrap();
            }
            if let Some(victim) = packed.victim() {
                packed.clean(victim).unwrap();
            }
            packed.reserve(version % 60).unwrap();
            assert!(packed.usage().live_bytes <= packed.usage().file_bytes);
        }
    };
    std::thread::scope(|scope| {
        let (read, write) = (&read, &write);
        for seed in 0..3 {
            scope.spawn(move || read(seed));
        }
        scope.spawn(write);
    });
}

/// Ends the readers, also if the writer panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Reads a page through a window, as the pool does.
fn read_window(packed: &PackedFile, no: u32, page: &mut [u8]) -> bool {
    let merging = Merging { gap_max: 4096, len_max: 64 << 10 };
    let (windows, _) = packed.windows(&[(SPACE, no), (SPACE, no ^ 1)], merging).unwrap();
    for window in &windows {
        let Some(at) = window.pages.iter().position(|wanted| wanted.no == no) else { continue };
        let mut bytes = crate::storage::AlignedBuf::zeroed(window.len);
        let is_read = packed.io_file().read_at(&mut bytes, window.offset).is_ok();
        if is_read && packed.decode_in(window, &bytes, at, page).unwrap() {
            return true;
        }
    }
    packed.read(SPACE, no, page).unwrap() == Found::Page
}
