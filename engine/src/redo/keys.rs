//! The keys of an encrypted log: which epoch was written with which key.
//!
//! # Frames
//! In an epoch that has a key, the payload of a frame is the byte [`SEALED`], the encrypted
//! records, and a tag of 16 bytes. (No record begins with that byte: one that is not about a page
//! has a type.) The checksum of the frame covers the encrypted bytes, so that where the log ends is
//! found without a key. Frames of an epoch and durable marks are as they are: they say nothing of
//! rows.
//!
//! # Nonces
//! The key of an epoch is derived from 32 random bytes of that epoch, and the nonce of a frame is
//! its LSN. No LSN is given twice in an epoch; and a directory that is copied, or opened twice from
//! one state, begins an epoch with other random bytes.
//!
//! # The file `redo/keys`
//! Two blocks with the same content, each written and synced by itself before the first frame of
//! the epoch can be written. So one of them is whole, and a block that rots costs nothing.
//!
//! ```text
//!    0  magic "TPLOGKEY"
//!    8  format version u32
//!   12  instance uuid, 16 bytes
//!   28  sequence number u32 of the update
//!   32  entries u32
//!   36  entries, 44 bytes each: epoch u32 | key id u32 | key version u32 | random bytes, 32
//! 4092  crc32c u32 of bytes 0..4092
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use tidepool_pool::Lsn;
use tidepool_pool::encryption::{Keys, NumberedKey, SALT_BYTES, TAG_BYTES, fill_random};
use tidepool_pool::storage::{AlignedBuf, Storage};

use super::BLOCK_SIZE;
use super::ring::REDO_DIR;
use crate::encryption::{DEFAULT_KEY_ID, key_error};
use crate::error::{Error, Remedy, Result};

/// The name of the file.
pub const KEYS_FILE: &str = "redo/keys";
/// First byte of a payload that is encrypted.
pub const SEALED: u8 = 3;
/// Bytes by which an encrypted payload is longer.
pub const SEALED_EXTRA: usize = 1 + TAG_BYTES;

const MAGIC: &[u8; 8] = b"TPLOGKEY";
const VERSION: u32 = 1;
const CRC_AT: usize = BLOCK_SIZE - 4;
const ENTRIES_AT: usize = 36;
const ENTRY_BYTES: usize = 12 + SALT_BYTES;
const ENTRIES_MAX: usize = (CRC_AT - ENTRIES_AT) / ENTRY_BYTES;
const COPIES: u64 = 2;

/// The key of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EpochKey {
    epoch: u32,
    id: u32,
    version: u32,
    salt: [u8; SALT_BYTES],
}

/// What a log is encrypted with, and was.
#[derive(Default)]
pub struct LogKeys {
    keys: Option<Arc<Keys>>,
    epochs: Vec<EpochKey>,
    sequence: u32,
    /// Those that were needed, by epoch.
    derived: HashMap<u32, NumberedKey>,
}

impl LogKeys {
    /// Reads which keys a log takes, if it takes some. [`LogKeys::give`] gives it these.
    pub fn load(storage: &dyn Storage, instance: [u8; 16]) -> Result<LogKeys> {
        let mut log_keys = LogKeys::default();
        if !storage.exists(KEYS_FILE)? {
            return Ok(log_keys);
        }
        let file = storage.open(KEYS_FILE)?;
        let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
        let mut is_whole = false;
        for copy in 0..COPIES {
            if file.read_at(&mut block, copy * BLOCK_SIZE as u64).is_err() {
                continue;
            }
            if let Some((sequence, epochs)) = decode(&block, instance)?
                && (!is_whole || sequence > log_keys.sequence)
            {
                is_whole = true;
                (log_keys.sequence, log_keys.epochs) = (sequence, epochs);
            }
        }
        if !is_whole && file.len()? >= COPIES * BLOCK_SIZE as u64 {
            return Err(Error::lost(
                KEYS_FILE,
                "neither of its two copies is whole",
                Remedy::PutBack,
            ));
        }
        Ok(log_keys)
    }

    /// Begins an epoch that is encrypted with the newest version of the default key; durable on
    /// return. Epochs before `oldest`, of which the log has no frame any more, are forgotten.
    pub fn begin(
        &mut self,
        storage: &dyn Storage,
        instance: [u8; 16],
        (oldest, epoch): (u32, u32),
    ) -> Result<NumberedKey> {
        let Some(keys) = self.keys.clone() else {
            return Err(Error::no_key(
                "encrypt_log is set, and there are no keys: load a key management plugin, or give \
                 the database a keyring",
            ));
        };
        let of_log = |error| Error::no_key(format!("encrypt_log is set, {}", key_error(error)));
        let version = keys.newest_version(DEFAULT_KEY_ID).map_err(of_log)?;
        let mut salt = [0; SALT_BYTES];
        fill_random(&mut salt);
        let key = EpochKey { epoch, id: DEFAULT_KEY_ID, version, salt };
        let derived = keys.numbered_key((key.id, version), &salt).map_err(of_log)?;
        self.epochs.retain(|key| key.epoch >= oldest && key.epoch != epoch);
        self.epochs.push(key);
        if self.epochs.len() > ENTRIES_MAX {
            return Err(Error::format(
                KEYS_FILE,
                format!("the log was opened {ENTRIES_MAX} times without a checkpoint"),
                Remedy::StartWithoutLogEncryption,
            ));
        }
        self.sequence += 1;
        self.write(storage, instance)?;
        Ok(derived)
    }

    /// From now on keys come from here.
    pub fn give(&mut self, keys: Option<Arc<Keys>>) {
        self.keys = keys;
    }

    /// Writes the file: both copies, one after the other.
    pub fn write(&self, storage: &dyn Storage, instance: [u8; 16]) -> Result<()> {
        let is_new = !storage.exists(KEYS_FILE)?;
        let file = if is_new { storage.create(KEYS_FILE)? } else { storage.open(KEYS_FILE)? };
        let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
        self.encode(instance, &mut block);
        for copy in 0..COPIES {
            file.write_at(&block, copy * BLOCK_SIZE as u64)?;
            file.sync_data()?;
        }
        if is_new {
            storage.sync_dir(REDO_DIR)?;
        }
        Ok(())
    }

    /// Whether an epoch has a key.
    pub fn is_empty(&self) -> bool {
        self.epochs.is_empty()
    }

    fn encode(&self, instance: [u8; 16], block: &mut [u8]) {
        block.fill(0);
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12..28].copy_from_slice(&instance);
        block[28..32].copy_from_slice(&self.sequence.to_le_bytes());
        block[32..36].copy_from_slice(&(self.epochs.len() as u32).to_le_bytes());
        let entries = block[ENTRIES_AT..CRC_AT].chunks_exact_mut(ENTRY_BYTES);
        for (entry, key) in entries.zip(&self.epochs) {
            entry[..4].copy_from_slice(&key.epoch.to_le_bytes());
            entry[4..8].copy_from_slice(&key.id.to_le_bytes());
            entry[8..12].copy_from_slice(&key.version.to_le_bytes());
            entry[12..].copy_from_slice(&key.salt);
        }
        let crc = crc32c::crc32c(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Opens the payload of the frame at `start`, which was written in `epoch`; the records are in
    /// `out` then.
    pub fn open(
        &mut self,
        (start, epoch): (Lsn, u32),
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let damaged = |why: &str| {
            let why = format!("the frame at LSN {} {why}", start.0);
            Error::lost(REDO_DIR, why, Remedy::RestoreDirectory)
        };
        let Some((sealed, tag)) = payload[1..].split_last_chunk::<TAG_BYTES>() else {
            return Err(damaged("is encrypted and too short"));
        };
        if !self.derived.contains_key(&epoch) {
            let derived = self.derive(epoch)?;
            self.derived.insert(epoch, derived);
        }
        out.clear();
        out.extend_from_slice(sealed);
        let opened = self.derived[&epoch].open(start.0, out, tag);
        opened.map_err(|_| damaged("was changed, or encrypted with another key"))
    }

    fn derive(&self, epoch: u32) -> Result<NumberedKey> {
        let Some(key) = self.epochs.iter().find(|key| key.epoch == epoch) else {
            return Err(Error::lost(
                KEYS_FILE,
                format!("it does not say with which key epoch {epoch} of the log is encrypted"),
                Remedy::PutOwnFile,
            ));
        };
        let of_log = |why: String| Error::no_key(format!("the redo log is encrypted: {why}"));
        let Some(keys) = &self.keys else {
            return Err(of_log(format!(
                "it takes version {} of key {}, and there are no keys",
                key.version, key.id
            )));
        };
        let derived = keys.numbered_key((key.id, key.version), &key.salt);
        derived.map_err(|error| of_log(error.to_string()))
    }
}

/// What a block says; `None` if it is not whole.
fn decode(block: &[u8], instance: [u8; 16]) -> Result<Option<(u32, Vec<EpochKey>)>> {
    let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"));
    if &block[..8] != MAGIC || crc32c::crc32c(&block[..CRC_AT]) != word(CRC_AT) {
        return Ok(None);
    }
    if word(8) != VERSION {
        let why = format!("format version {}, but this program reads only {VERSION}", word(8));
        return Err(Error::format(KEYS_FILE, why, Remedy::UseItsVersion));
    }
    if block[12..28] != instance {
        return Err(Error::format(
            KEYS_FILE,
            "it belongs to another data directory",
            Remedy::PutOwnFile,
        ));
    }
    let count = word(32) as usize;
    if count > ENTRIES_MAX {
        return Ok(None);
    }
    let key = |at: usize| EpochKey {
        epoch: word(at),
        id: word(at + 4),
        version: word(at + 8),
        salt: block[at + 12..at + ENTRY_BYTES].try_into().expect("32 bytes"),
    };
    let entries = (ENTRIES_AT..).step_by(ENTRY_BYTES).take(count).map(key).collect();
    Ok(Some((word(28), entries)))
}

#[cfg(test)]
mod tests {
    use tidepool_pool::encryption::MemoryKeyring;
    use tidepool_pool::storage::SimStorage;

    use super::*;

    const UUID: [u8; 16] = [7; 16];

    fn keys() -> Option<Arc<Keys>> {
        let ring = MemoryKeyring::default();
        ring.insert(DEFAULT_KEY_ID, 1, vec![1; 32]);
        Some(Arc::new(Keys::new(Arc::new(ring))))
    }

    fn disk() -> SimStorage {
        let disk = SimStorage::new(1);
        disk.create_dir(REDO_DIR).unwrap();
        disk
    }

    fn loaded(disk: &SimStorage) -> Result<LogKeys> {
        let mut log = LogKeys::load(disk, UUID)?;
        log.give(keys());
        Ok(log)
    }

    fn sealed(key: &NumberedKey, lsn: u64, records: &[u8]) -> Vec<u8> {
        let mut payload = vec![SEALED];
        payload.extend_from_slice(records);
        let tag = key.seal(lsn, &mut payload[1..]);
        payload.extend_from_slice(&tag);
        payload
    }

    #[test]
    fn frames_of_each_epoch_open_with_its_key_after_a_restart() {
        let disk = disk();
        let mut log = loaded(&disk).unwrap();
        let first = sealed(&log.begin(&disk, UUID, (1, 2)).unwrap(), 4096, b"first");
        let second = sealed(&log.begin(&disk, UUID, (1, 3)).unwrap(), 4096, b"second");
        let mut log = loaded(&disk).unwrap();
        let mut out = Vec::new();
        log.open((Lsn(4096), 2), &first, &mut out).unwrap();
        assert_eq!(out, b"first");
        log.open((Lsn(4096), 3), &second, &mut out).unwrap();
        assert_eq!(out, b"second");
        let error = log.open((Lsn(4097), 3), &second, &mut out).unwrap_err();
        assert!(error.to_string().contains("LSN 4097 was changed"), "{error}");
        assert!(log.open((Lsn(4096), 2), &second, &mut out).is_err());
        let error = log.open((Lsn(4096), 9), &second, &mut out).unwrap_err();
        assert!(error.to_string().contains("epoch 9"), "{error}");
        let mut log = LogKeys::load(&disk, UUID).unwrap();
        let error = log.open((Lsn(4096), 3), &second, &mut out).unwrap_err();
        assert!(matches!(error, Error::Key { .. }), "{error}");
        // Epochs that the log does not have any more are forgotten.
        let mut log = loaded(&disk).unwrap();
        log.begin(&disk, UUID, (3, 4)).unwrap();
        let epochs: Vec<u32> = log.epochs.iter().map(|key| key.epoch).collect();
        assert_eq!(epochs, [3, 4]);
    }

    #[test]
    fn one_spoilt_copy_costs_nothing_and_two_are_an_error() {
        let disk = disk();
        loaded(&disk).unwrap().begin(&disk, UUID, (1, 2)).unwrap();
        let file = disk.open(KEYS_FILE).unwrap();
        let spoil = |copy: u64| {
            let block = AlignedBuf::zeroed(BLOCK_SIZE);
            file.write_at(&block, copy * BLOCK_SIZE as u64).unwrap();
        };
        spoil(0);
        assert!(!loaded(&disk).unwrap().is_empty());
        let error = LogKeys::load(&disk, [8; 16]).err().unwrap();
        assert!(error.to_string().contains("another data directory"), "{error}");
        spoil(1);
        let error = loaded(&disk).err().unwrap();
        assert!(error.to_string().contains("neither of its two copies"), "{error}");
    }
}
