//! What the pool, backups and tools ask of a file: windows, images, ends of spaces, cuts of spaces,
//! opening for reading.

use super::super::*;
use super::model::{FILE, Model, PAGE, SPACE, create, image, page_of, reopen, settings};
use crate::storage::{Fault, FaultKind, IoOp, SimStorage, Storage, StorageOp};

/// Pages 0, 2, 4 … below `pages`, in an order by chance.
fn with_even_pages(disk: &SimStorage, pages: u32) -> PackedFile {
    let packed = create(disk, 1);
    for at in 0..pages / 2 {
        let no = (at * 37 % (pages / 2)) * 2;
        packed.write(Stream::Flushed, &[image(no, no + 1)]).unwrap();
    }
    packed
}

#[test]
fn windows_have_each_image_and_are_no_longer_than_asked() {
    let disk = SimStorage::new(1);
    let packed = with_even_pages(&disk, 100);
    let pages: Vec<(u32, u32)> = (0..100).map(|no| (SPACE, (no * 61) % 100)).collect();
    for (gap_max, len_max) in [(0, 0), (0, 64 << 10), (8 << 10, 32 << 10), (1 << 20, 1 << 30)] {
        let (windows, absent) = packed.windows(&pages, Merging { gap_max, len_max }).unwrap();
        let odd: Vec<usize> = (0..100).filter(|at| pages[*at].1 % 2 == 1).collect();
        assert_eq!(absent, odd);
        let mut buffers: Vec<_> =
            windows.iter().map(|window| crate::storage::AlignedBuf::zeroed(window.len)).collect();
        let mut ops: Vec<IoOp<'_>> = windows
            .iter()
            .zip(&mut buffers)
            .map(|(window, buffer)| IoOp::read(packed.io_file(), buffer, window.offset))
            .collect();
        disk.run_batch(&mut ops);
        ops.into_iter().for_each(|op| op.result.unwrap());
        let (mut found, mut page) = (Vec::new(), vec![0; PAGE]);
        for (window, bytes) in windows.iter().zip(&buffers) {
            assert!(window.pages.len() == 1 || window.len <= len_max, "{} bytes", window.len);
            for (at, wanted) in window.pages.iter().enumerate() {
                assert!(packed.decode_in(window, bytes, at, &mut page).unwrap());
                assert_eq!((wanted.space, wanted.no), pages[wanted.index]);
                assert!(page == page_of(wanted.no, wanted.no + 1), "page {}", wanted.no);
                found.push(wanted.no);
            }
        }
        assert!(windows.is_sorted_by_key(|window| window.offset));
        assert_eq!(windows.len() == 1, len_max == 1 << 30, "{} windows", windows.len());
        found.sort_unstable();
        assert_eq!(found, (0..50).map(|at| at * 2).collect::<Vec<u32>>());
    }
}

#[test]
fn an_image_that_has_moved_is_not_in_its_window() {
    let disk = SimStorage::new(1);
    let packed = with_even_pages(&disk, 20);
    let merging = Merging { gap_max: 0, len_max: 0 };
    let (windows, _) = packed.windows(&[(SPACE, 4)], merging).unwrap();
    let (window, mut page) = (&windows[0], vec![0; PAGE]);
    let mut bytes = crate::storage::AlignedBuf::zeroed(window.len);
    packed.io_file().read_at(&mut bytes, window.offset).unwrap();
    let at = (window.pages[0].entry.offset() - window.offset) as usize;
    bytes[at] ^= 1;
    assert!(!packed.decode_in(window, &bytes, 0, &mut page).unwrap());
    assert_eq!(packed.read(SPACE, 4, &mut page).unwrap(), Found::Page);
}

/// All images from a page on, or what is wrong with the first that is spoilt.
fn images(packed: &PackedFile, from: u32, bytes_max: usize) -> Result<Vec<Image>> {
    let piece = packed.images_since(SPACE, from, Since { run: 0, bytes_max })?;
    match piece.spoilt.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(piece.images),
    }
}

#[test]
fn images_come_as_they_are_stored_and_in_the_order_of_pages() {
    let disk = SimStorage::with_alignment(1, 1);
    let packed = with_even_pages(&disk, 100);
    let same = |image: &Image| {
        let mut page = vec![0; PAGE];
        image.codec.decode(&image.bytes, &mut page).unwrap();
        assert!(page == page_of(image.no, image.no + 1), "page {}", image.no);
    };
    same(&packed.image(SPACE, 6).unwrap().unwrap());
    assert_eq!(packed.image(SPACE, 7).unwrap(), None);
    let (mut numbers, mut from) = (Vec::new(), 1);
    loop {
        let images = images(&packed, from, 9000).unwrap();
        let Some(last) = images.last() else { break };
        from = last.no + 1;
        let bytes: usize = images.iter().map(|image| image.bytes.len()).sum();
        assert!(images.len() > 1 && bytes <= 9000 || from == 99);
        images.iter().for_each(same);
        numbers.extend(images.iter().map(|image| image.no));
    }
    assert_eq!(numbers, (1..50).map(|at| at * 2).collect::<Vec<u32>>());
    assert_eq!(images(&packed, 0, 0).unwrap().len(), 1, "at least one");
    let spoilt = packed.find(SPACE, 6).unwrap().unwrap();
    disk.corrupt(FILE, spoilt.offset(), 1);
    let error = images(&packed, 0, 1 << 20).unwrap_err();
    assert!(error.to_string().starts_with("t: page 6 of space 7 is corrupt"), "{error}");
    assert!(packed.image(SPACE, 6).is_err());
}

#[test]
fn images_since_a_run_are_those_of_later_runs_beside_the_list_of_all() {
    let disk = SimStorage::with_alignment(1, 1);
    let packed = with_even_pages(&disk, 100);
    packed.checkpoint().unwrap();
    let run = packed.usage().sequence;
    for no in [4, 5, 60] {
        packed.write(Stream::Flushed, &[image(no, 900)]).unwrap();
    }
    packed.forget_from(SPACE, 90).unwrap();
    let since = |run, bytes_max| packed.images_since(SPACE, 0, Since { run, bytes_max }).unwrap();
    let numbers = |piece: &Piece| piece.images.iter().map(|image| image.no).collect::<Vec<_>>();
    let changed = since(run, 1 << 20);
    assert_eq!((numbers(&changed), changed.next), (vec![4, 5, 60], None));
    assert_eq!(changed.present[..3], [(0, 1), (2, 1), (4, 3)]);
    assert_eq!(changed.present.last(), Some(&(88, 1)));
    let count: u32 = changed.present.iter().map(|(_, count)| count).sum();
    assert_eq!(count, 46);
    // In pieces: the pages between the images belong to one of them.
    let first = since(run, 1);
    assert_eq!((numbers(&first), first.next), (vec![4], Some(5)));
    assert_eq!(first.present, [(0, 1), (2, 1), (4, 1)]);
    // A spoilt image is listed with the others.
    let spoilt = packed.find(SPACE, 5).unwrap().unwrap();
    disk.corrupt(FILE, spoilt.offset(), 1);
    let piece = since(run, 1 << 20);
    assert_eq!(numbers(&piece), [4, 60]);
    assert_eq!(piece.spoilt.iter().map(|(no, _)| *no).collect::<Vec<_>>(), [5]);
    assert_eq!(since(0, 1 << 20).images.len(), 45);
}

#[test]
fn the_end_of_a_space_follows_its_last_image() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let write = |space, no| {
        packed.write(Stream::Flushed, &[Image { space, ..image(no, 1) }]).unwrap();
    };
    assert_eq!(packed.end(SPACE).unwrap(), 0);
    for (no, end) in [(5, 6), (3, 6), (1023, 1024), (1024, 1025), (1 << 30, (1 << 30) + 1)] {
        write(SPACE, no);
        assert_eq!(packed.end(SPACE).unwrap(), end);
    }
    write(SPACE + 5, 2);
    assert_eq!(packed.spaces(), [SPACE, SPACE + 5]);
    packed.checkpoint().unwrap();
    packed.trim_map(0);
    for (no, end) in [(1 << 30, 1025), (1024, 1024), (4, 4), (1, 0)] {
        packed.forget_from(SPACE, no).unwrap();
        assert_eq!(packed.end(SPACE).unwrap(), end);
        packed.trim_map(0);
    }
    assert_eq!(packed.spaces(), [SPACE + 5]);
    packed.checkpoint().unwrap();
    drop(packed);
    let packed = reopen(&disk, 2).unwrap();
    assert_eq!((packed.end(SPACE).unwrap(), packed.end(SPACE + 5).unwrap()), (0, 3));
    assert_eq!(packed.spaces(), [SPACE + 5]);
}

#[test]
fn a_cut_of_a_large_space_frees_its_pages_in_several_runs() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let images: Vec<Image> = (0..9000).map(|no| image(no, 1)).collect();
    packed.write(Stream::Flushed, &images).unwrap();
    packed.forget_from(SPACE, 10).unwrap();
    drop(packed);
    let packed = reopen(&disk, 2).unwrap();
    assert_eq!(packed.end(SPACE).unwrap(), 10);
    assert_eq!(packed.next_page(SPACE, 10).unwrap(), None);
    assert_eq!(packed.next_page(SPACE, 9).unwrap(), Some(9));
}

#[test]
fn a_file_that_is_opened_for_reading_is_not_changed() {
    let disk = SimStorage::new(1);
    drop(with_even_pages(&disk, 20));
    let before = disk.operation_count();
    let file = disk.open(FILE).unwrap();
    let packed = PackedFile::open(file, settings(2), Access::ReadOnly, 0).unwrap();
    let mut page = vec![0; PAGE];
    assert_eq!(packed.read(SPACE, 2, &mut page).unwrap(), Found::Page);
    packed.usage();
    let refused = [
        packed.write(Stream::Flushed, &[image(0, 3)]),
        packed.checkpoint(),
        packed.clean(Victim { segment: 0, live_units: 1, units: 1024, age: 0 }).map(drop),
        packed.forget_from(SPACE, 0),
    ];
    for outcome in refused {
        let why = "t: it is opened for reading only: open the directory for writing";
        assert_eq!(outcome.unwrap_err().to_string(), why);
    }
    assert_eq!(disk.operation_count(), before);
}

/// As after 2^32 − 3 runs.
#[test]
fn runs_go_on_beyond_32_bits() {
    let disk = SimStorage::new(1);
    let packed = create(&disk, 1);
    let mut model = Model::default();
    {
        let chain = &mut packed.writer.lock().chain;
        chain.sequence = u64::from(u32::MAX) - 3;
        chain.synced = chain.sequence;
    }
    packed.writer.lock().since_checkpoint = 1;
    packed.checkpoint().unwrap();
    for version in 1..30 {
        packed.write(Stream::Flushed, &[image(version % 7, version)]).unwrap();
        model.durable(&[(version % 7, version)]);
        match version {
            9 => packed.checkpoint().unwrap(),
            20 => drop(packed.victim().map(|victim| packed.clean(victim).unwrap())),
            _ => {}
        }
    }
    let known = packed.usage().sequence;
    assert!(known > u64::from(u32::MAX) + 20);
    drop(packed);
    let file = disk.open(FILE).unwrap();
    let packed = PackedFile::open(file, settings(2), Access::ReadWrite, known).unwrap();
    model.check(&packed, 10, "after a restart");
    assert_eq!(packed.usage().sequence, known);
}

/// A failed sync is final for its file alone, whichever threads sync.
#[test]
fn a_file_whose_sync_failed_takes_no_change() {
    for threads in [Threads::Caller, Threads::SideBySide] {
        let disk = SimStorage::new(1);
        let files: Vec<PackedFile> = (0..20u64)
            .map(|at| {
                let settings = settings(at);
                PackedFile::create(disk.create(&format!("f{at}")).unwrap(), settings).unwrap()
            })
            .collect();
        disk.inject(Fault::new(StorageOp::Sync, FaultKind::Io).on("f7"));
        disk.inject(Fault::new(StorageOp::Write, FaultKind::Io).on("f5"));
        let prepared = files.iter().map(|file| file.prepare(Stream::Flushed, &[image(1, 1)]));
        let outcomes = write_all(&disk, prepared.map(Result::unwrap).collect(), threads);
        for (at, (file, outcome)) in files.iter().zip(&outcomes).enumerate() {
            assert_eq!(outcome.is_err(), at == 5 || at == 7, "file {at}");
            let is_final = outcome.as_ref().is_err_and(Error::is_failed_sync);
            assert_eq!(is_final, at == 7);
            assert_eq!(file.write(Stream::Flushed, &[image(2, 1)]).is_err(), is_final);
            assert_eq!(file.find(SPACE, 1).unwrap().is_some(), outcome.is_ok());
        }
    }
}

/// A write that panics counts as failed: the checkpoint is taken back, and the next one is whole.
#[test]
fn a_checkpoint_whose_write_panics_is_written_again() {
    // That of the map, and that of the root.
    for skipped in 0..2 {
        let disk = SimStorage::new(1);
        let file = PackedFile::create(disk.create("f").unwrap(), settings(1)).unwrap();
        for no in 0..3 {
            file.write(Stream::Flushed, &[image(no, 1)]).unwrap();
            file.checkpoint().unwrap();
        }
        file.write(Stream::Flushed, &[image(1, 2)]).unwrap();
        disk.inject(Fault::new(StorageOp::Write, FaultKind::Panic).skip(skipped).on("f"));
        assert!(matches!(file.checkpoint(), Err(Error::Storage(_))), "write {skipped}");
        file.write(Stream::Flushed, &[image(2, 2)]).unwrap();
        file.checkpoint().unwrap();
        drop(file);
        let file = disk.open("f").unwrap();
        let file = PackedFile::open(file, settings(2), Access::ReadWrite, 0).unwrap();
        assert!((0..3).all(|no| file.find(SPACE, no).unwrap().is_some()));
    }
}
