//! Encryption at rest: keys, and what is sealed with them.
//!
//! # Keys
//! A program has a [`Keyring`]: keys by number, each in one or more versions. [`Keys`] asks it once
//! for each version, and derives from the bytes the keys that data is sealed with. Bytes of a
//! keyring's key go nowhere else, so the length of that key (16, 24 or 32 bytes) does not matter.
//!
//! # What is sealed
//! [`PageKey`] seals images of pages, with 24 random bytes each. [`NumberedKey`] seals what one
//! life of a program writes in order, by numbers of which none comes twice. Both are AES-256-GCM:
//! what was changed, or moved to another place, is found out.
//!
//! # Invariant
//! No nonce is used twice with one key, whatever is lost in a crash and however often a directory
//! is copied: a page's nonce is random, and a [`NumberedKey`] is derived from random bytes that no
//! other life has.

mod numbered;
mod page_key;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::rand::GetRandomFlags;

pub use numbered::{NumberedKey, SALT_BYTES, TAG_BYTES};
pub use page_key::{NotSealed, PageKey, SEAL_BYTES, key_of};

/// Where keys come from: a service of the server, or the embedding program.
pub trait Keyring: Send + Sync {
    /// The newest version of key `id`.
    ///
    /// # Errors
    /// There is no such key, or it can't be had at present.
    fn newest_version(&self, id: u32) -> Result<u32, KeyError>;

    /// The bytes of a version of a key: 16, 24 or 32 random ones.
    ///
    /// # Errors
    /// There is no such key or version, or it can't be had at present.
    fn key(&self, id: u32, version: u32) -> Result<Vec<u8>, KeyError>;
}

/// A key that can't be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError {
    /// The key.
    pub id: u32,
    /// Its version; `None`: the newest.
    pub version: Option<u32>,
    /// Why, and what to do.
    pub why: String,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version {
            Some(version) => {
                write!(f, "version {version} of encryption key {}: {}", self.id, self.why)
            }
            None => write!(f, "encryption key {}: {}", self.id, self.why),
        }
    }
}

impl std::error::Error for KeyError {}

/// Lengths that a key of a keyring may have.
const KEY_LENS: [usize; 3] = [16, 24, 32];

/// The keys of a program, each derived once.
pub struct Keys {
    keyring: Arc<dyn Keyring>,
    page_keys: RwLock<HashMap<(u32, u32), Arc<PageKey>>>,
}

impl Keys {
    /// Those of a keyring.
    pub fn new(keyring: Arc<dyn Keyring>) -> Keys {
        Keys { keyring, page_keys: RwLock::default() }
    }

    /// The newest version of key `id`, for images of pages.
    pub fn newest_page_key(&self, id: u32) -> Result<Arc<PageKey>, KeyError> {
        let version = self.keyring.newest_version(id)?;
        self.page_key(id, version)
    }

    /// A version of a key, for images of pages. Asks the keyring only the first time.
    pub fn page_key(&self, id: u32, version: u32) -> Result<Arc<PageKey>, KeyError> {
        if let Some(key) = self.page_keys.read().get(&(id, version)) {
            return Ok(key.clone());
        }
        let key = Arc::new(PageKey::derive(&self.bytes(id, version)?, id, version));
        Ok(self.page_keys.write().entry((id, version)).or_insert(key).clone())
    }

    /// The newest version of key `id`: which that is.
    pub fn newest_version(&self, id: u32) -> Result<u32, KeyError> {
        self.keyring.newest_version(id)
    }

    /// The key of one life of a log, from a version of a key and the life's random bytes.
    pub fn numbered_key(
        &self,
        (id, version): (u32, u32),
        salt: &[u8; SALT_BYTES],
    ) -> Result<NumberedKey, KeyError> {
        Ok(NumberedKey::derive(&self.bytes(id, version)?, salt))
    }

    fn bytes(&self, id: u32, version: u32) -> Result<Vec<u8>, KeyError> {
        let bytes = self.keyring.key(id, version)?;
        if !KEY_LENS.contains(&bytes.len()) {
            let why = format!("it has {} bytes: it must have 16, 24 or 32", bytes.len());
            return Err(KeyError { id, version: Some(version), why });
        }
        Ok(bytes)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// Fills `bytes` from the random numbers of the operating system.
///
/// # Panics
/// The system gives none. Nothing can be sealed then, and a nonce that is not random is no choice.
pub fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the operating system gives no random bytes: {error}"),
        }
    }
}

/// A keyring in memory, for tests and for programs that have their keys at hand.
#[derive(Default)]
pub struct MemoryKeyring {
    keys: RwLock<HashMap<(u32, u32), Vec<u8>>>,
}

impl MemoryKeyring {
    /// Adds a version of a key; the newest is the one with the highest number.
    pub fn insert(&self, id: u32, version: u32, key: Vec<u8>) {
        self.keys.write().insert((id, version), key);
    }

    /// Takes a version of a key away.
    pub fn remove(&self, id: u32, version: u32) {
        self.keys.write().remove(&(id, version));
    }
}

impl Keyring for MemoryKeyring {
    fn newest_version(&self, id: u32) -> Result<u32, KeyError> {
        let keys = self.keys.read();
        let versions = keys.keys().filter(|(of, _)| *of == id).map(|(_, version)| *version);
        let why = || "the keyring has no such key: add it".to_owned();
        versions.max().ok_or_else(|| KeyError { id, version: None, why: why() })
    }

    fn key(&self, id: u32, version: u32) -> Result<Vec<u8>, KeyError> {
        let why = || "the keyring does not have it: add it".to_owned();
        let key = self.keys.read().get(&(id, version)).cloned();
        key.ok_or_else(|| KeyError { id, version: Some(version), why: why() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_asked_for_once_and_one_of_another_length_is_refused() {
        let ring = Arc::new(MemoryKeyring::default());
        ring.insert(1, 3, vec![7; 32]);
        ring.insert(2, 1, vec![7; 17]);
        let keys = Keys::new(ring.clone());
        assert_eq!(keys.newest_page_key(1).unwrap().version(), 3);
        ring.remove(1, 3);
        assert!(keys.page_key(1, 3).is_ok());
        let error = keys.page_key(2, 1).unwrap_err().to_string();
        assert!(error.contains("version 1 of encryption key 2: it has 17 bytes"), "{error}");
        assert!(keys.newest_page_key(5).unwrap_err().to_string().contains("encryption key 5"));
    }

    #[test]
    fn random_bytes_differ() {
        let (mut one, mut other) = ([0; 32], [0; 32]);
        fill_random(&mut one);
        fill_random(&mut other);
        assert_ne!(one, other);
    }
}
