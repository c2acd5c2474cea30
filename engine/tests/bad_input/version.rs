//! Directories of another page size or of a newer format.

use std::fs;
use std::os::unix::fs::FileExt;
use tidepool::{Db, Options};

use crate::fixture::{directory, only_a_fails, open_error, options};
use crate::packed;

#[test]
fn page_size_mismatch() {
    let dir = directory();
    let error = Db::open(dir.path(), Options { page_size: 4096, ..options() }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "redo/control: the data directory has pages of 16384 bytes, but 4096 were asked for: set the page size to 16384, or use another data directory"
    );
    // 0 takes what is there.
    Db::open(dir.path(), Options { page_size: 0, ..options() }).unwrap();
}

#[test]
fn newer_format_version_of_a_table() {
    let dir = directory();
    packed::change_page(&packed::files_in(dir.path()), 16, 0, |page| {
        page[40..44].copy_from_slice(&9u32.to_le_bytes());
    });
    only_a_fails(
        dir.path(),
        "tables/00000010.tpd: written in format version 9, this program reads version 3: use the version of Tidepool that wrote it",
    );
}

#[test]
fn newer_format_version_of_the_directory() {
    let dir = directory();
    packed::change_page(&packed::files_in(dir.path()), packed::SYSTEM, 0, |page| {
        page[40..44].copy_from_slice(&9u32.to_le_bytes());
    });
    assert_eq!(
        open_error(dir.path()),
        "system.tpd: written in format version 9, this program reads version 3: use the version of Tidepool that wrote it"
    );
}

#[test]
fn newer_format_version_of_the_redo_log() {
    let dir = directory();
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(dir.path().join("redo/control"))
        .unwrap();
    for slot in [0, 4096] {
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, slot).unwrap();
        block[8..12].copy_from_slice(&9u32.to_le_bytes());
        let crc = crc32c::crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&block, slot).unwrap();
    }
    assert_eq!(
        open_error(dir.path()),
        "redo/control: format version 9, but this program reads only version 5: use the version of Tidepool that wrote it"
    );
}
