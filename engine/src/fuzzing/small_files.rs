//! Targets for the files beside pages and log, and for the catalog's records.

use std::sync::Arc;

use tidepool_pool::storage::{AlignedBuf, SimStorage, Storage};
use tidepool_pool::trace::Trace;

use super::{front, sized};
use crate::catalog::TableRecord;
use crate::db::export::file;
use crate::hot_list::{self, HOT_LIST_FILE, Owner};
use crate::redo::BLOCK_SIZE;
use crate::redo::control::Control;
use crate::redo::file_header::FileHeader;
use crate::sort;

/// Puts the right CRC-32C of the bytes before `at` there.
pub(super) fn stamp(block: &mut [u8], at: usize) {
    let crc = crc32c::crc32c(&block[..at]);
    block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// A disk with one file, whose length is a whole number of blocks.
fn disk_with(name: &str, bytes: &[u8]) -> SimStorage {
    let disk = SimStorage::new(0);
    put_file(&disk, name, bytes);
    disk
}

/// Adds a file, filled with zeroes to a whole number of blocks.
pub(super) fn put_file(disk: &SimStorage, name: &str, bytes: &[u8]) {
    if let Some((dir, _)) = name.rsplit_once('/') {
        let mut made = String::new();
        for part in dir.split('/') {
            made = if made.is_empty() { part.into() } else { format!("{made}/{part}") };
            if !disk.exists(&made).expect("a simulated disk answers") {
                disk.create_dir(&made).expect("a directory can be made");
            }
        }
    }
    let file = disk.create(name).expect("a file can be made");
    if !bytes.is_empty() {
        let padded = sized(bytes, bytes.len().next_multiple_of(512));
        file.write_at(&AlignedBuf::copy_of(&padded), 0).expect("a file can be written");
        file.sync_data().expect("a file can be synced");
    }
}

/// Catalog record: what decodes encodes to the same bytes.
pub fn catalog_record(bytes: &[u8]) {
    if let Ok(record) = TableRecord::decode("t", bytes) {
        assert_eq!(record.encode(), bytes);
    }
}

/// Control file: `stamp u8 | two slots`. What is chosen survives its encoding.
pub fn control(bytes: &[u8]) {
    let ([flags], bytes) = front::<1>(bytes);
    let mut slots = sized(bytes, 2 * BLOCK_SIZE);
    let (first, second) = slots.split_at_mut(BLOCK_SIZE);
    for (bit, slot) in [(1, &mut *first), (2, &mut *second)] {
        if flags & bit != 0 {
            stamp(slot, BLOCK_SIZE - 4);
        }
    }
    let Ok((chosen, _)) = Control::choose(first, second) else { return };
    let mut block = vec![0; BLOCK_SIZE];
    chosen.encode(&mut block);
    assert_eq!(Control::decode(&block).expect("of this version"), Some(chosen));
}

/// Header of a redo file: `stamp u8 | block`.
pub fn redo_header(bytes: &[u8]) {
    let ([flags], bytes) = front::<1>(bytes);
    let mut block = sized(bytes, BLOCK_SIZE);
    if flags & 1 != 0 {
        stamp(&mut block, 508);
    }
    let Ok(header) = FileHeader::decode(&block, "file") else { return };
    let mut again = vec![0; BLOCK_SIZE];
    header.encode(&mut again);
    assert_eq!(FileHeader::decode(&again, "file").ok(), Some(header));
}

/// Hot list: `stamp u8 | file`. What is loaded, saved again, is the same list.
pub fn hot_list(bytes: &[u8]) {
    let ([flags], bytes) = front::<1>(bytes);
    let mut file = sized(bytes, bytes.len().next_multiple_of(BLOCK_SIZE).max(BLOCK_SIZE));
    let owner = Owner { uuid: file[16..32].try_into().expect("16 bytes"), page_size: 4096 };
    if flags & 1 != 0 {
        file[12..16].copy_from_slice(&owner.page_size.to_le_bytes());
        hot_list::stamp(&mut file);
    }
    let disk = disk_with(HOT_LIST_FILE, &file);
    let Ok(Some(list)) = hot_list::load(&disk, owner) else { return };
    assert!(list.count() <= hot_list::PAGES_MAX);
    if list.count() < 100_000 {
        hot_list::save(&disk, owner, &list).expect("a list can be saved");
        assert_eq!(hot_list::load(&disk, owner), Ok(Some(list)));
    }
}

/// Export of a table: `stamp u8 | file`. What is read is not much longer than the file, and its
/// header comes out as it went in.
pub fn table_export(bytes: &[u8]) {
    let ([flags], bytes) = front::<1>(bytes);
    let mut bytes = bytes.to_vec();
    if flags & 1 != 0 {
        file::stamp(&mut bytes);
    }
    let Ok((exported, entries)) = file::read_all(&bytes) else { return };
    let read: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
    let blocks = bytes.len() / 24 + 1;
    assert!(read <= blocks * file::PIECE);
    assert_eq!(file::decode_again(&exported), exported);
}

/// Page trace: what is read, written again, is the same trace.
pub fn trace(bytes: &[u8]) {
    let Ok(trace) = Trace::read_from("t", &mut &bytes[..]) else { return };
    let mut again = Vec::new();
    trace.write_to(&mut again).expect("memory takes all");
    let read = Trace::read_from("t", &mut &again[..]).expect("what was written can be read");
    assert_eq!(read.requests, trace.requests);
}

/// A sorted run: `stamp u8 | length u32 | blocks`. No entry is longer than the run.
pub fn sorted_run(bytes: &[u8]) {
    let ([flags], bytes) = front::<1>(bytes);
    let (len, bytes) = front::<4>(bytes);
    let len = u64::from(u32::from_le_bytes(len)) % (4 * 65536);
    let mut file = sized(bytes, 4 * 65536);
    if flags & 1 != 0 {
        sort::stamp_run(&mut file);
    }
    let disk = disk_with("run", &file);
    let file: Arc<dyn tidepool_pool::storage::StorageFile> = disk.open("run").expect("it is there");
    if let Ok(entries) = sort::read_run(file, len) {
        let bytes: usize = entries.iter().map(|(key, value)| 8 + key.len() + value.len()).sum();
        assert!(bytes as u64 <= len);
    }
}
