//! Which backups were made of a data directory: only these can be the base of an incremental one.
//!
//! # Format
//! One file, `backups`, which takes the place of the one before by a rename; little-endian:
//! ```text
//!  0  magic   "TPBKUPS1"
//!  8  crc32c  u32 of the bytes from 12 to the end of the ids
//! 12  ids     u32
//! 16  ids of backups, 16 bytes each, the newest last
//! ```
//! Zeroes follow up to a whole block. A file that is missing or spoilt knows none: the next backup
//! has to be a complete one.

use tidepool_pool::storage::{AlignedBuf, Storage};

use crate::error::Result;
use crate::files::BACKUPS_FILE;

/// Before it has its name.
const NEW_FILE: &str = "backups.new";
const MAGIC: &[u8; 8] = b"TPBKUPS1";
const CHECKED_AT: usize = 12;
const IDS_AT: usize = 16;
const BLOCK: usize = 4096;
/// As many as one block has room for: the older ones are forgotten.
const IDS_MAX: usize = (BLOCK - IDS_AT) / 16;

/// Whether a backup was made of this data directory.
pub fn knows(storage: &dyn Storage, id: &[u8; 16]) -> Result<bool> {
    Ok(ids(storage)?.contains(id))
}

/// Notes, durably, that a backup was made.
pub fn add(storage: &dyn Storage, id: [u8; 16]) -> Result<()> {
    let mut ids = ids(storage)?;
    ids.push(id);
    let kept = &ids[ids.len().saturating_sub(IDS_MAX)..];
    let mut block = AlignedBuf::zeroed(BLOCK);
    block[..8].copy_from_slice(MAGIC);
    block[CHECKED_AT..IDS_AT].copy_from_slice(&(kept.len() as u32).to_le_bytes());
    let end = IDS_AT + kept.len() * 16;
    block[IDS_AT..end].copy_from_slice(kept.as_flattened());
    let checksum = crc32c::crc32c(&block[CHECKED_AT..end]);
    block[8..CHECKED_AT].copy_from_slice(&checksum.to_le_bytes());
    storage.remove_if_there(NEW_FILE)?;
    let file = storage.create(NEW_FILE)?;
    file.write_at(&block, 0)?;
    file.sync_data()?;
    storage.rename(NEW_FILE, BACKUPS_FILE)?;
    Ok(storage.sync_dir("")?)
}

fn ids(storage: &dyn Storage) -> Result<Vec<[u8; 16]>> {
    let file = match storage.open(BACKUPS_FILE) {
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        file => file?,
    };
    let mut block = AlignedBuf::zeroed(BLOCK);
    match file.read_at(&mut block, 0) {
        Err(error) if !error.is_unexpected_eof() => Err(error.into()),
        _ => Ok(decode(&block).unwrap_or_default()),
    }
}

/// `None` unless it is whole.
fn decode(block: &[u8]) -> Option<Vec<[u8; 16]>> {
    let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"));
    let ids = block.get(IDS_AT..IDS_AT + 16 * word(CHECKED_AT) as usize)?;
    let checked = &block[CHECKED_AT..IDS_AT + ids.len()];
    if block[..8] != *MAGIC || crc32c::crc32c(checked) != word(8) {
        return None;
    }
    Some(ids.as_chunks().0.to_vec())
}

#[cfg(test)]
mod tests {
    use tidepool_pool::storage::SimStorage;

    use super::*;

    #[test]
    fn the_newest_are_known_also_after_a_power_cut() {
        let storage = SimStorage::new(1);
        assert!(!knows(&storage, &[1; 16]).unwrap());
        for id in 0..=IDS_MAX as u128 {
            add(&storage, id.to_le_bytes()).unwrap();
        }
        let storage = storage.crash();
        let known = |id: u128| knows(&storage, &id.to_le_bytes()).unwrap();
        assert_eq!([known(0), known(1), known(IDS_MAX as u128)], [false, true, true]);
        assert!(!known(IDS_MAX as u128 + 1));
        storage.corrupt(BACKUPS_FILE, 100, 1);
        assert!(!known(1), "a spoilt file knows none");
        add(&storage, [7; 16]).unwrap();
        assert!(knows(&storage, &[7; 16]).unwrap());
    }
}
