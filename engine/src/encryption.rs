//! Encryption at rest: which files are encrypted, and with which key.
//!
//! # Who decides
//! A table says `Yes` or `No` in its definition, or leaves it to [`EncryptTables`]. A file knows
//! its key by itself (its root says so), so that recovery encrypts what it writes before there is a
//! catalog. The catalog's entry says what the file should be; the background makes it so.
//!
//! # The engine's own files
//! `undo.tpd` has rows of all tables. It is encrypted from the moment that a table is. `system.tpd`
//! and the mirrors are not: they have definitions, which the server's own files have as well.
//!
//! # What stays readable
//! Which pages a file has, how long their images are, and when they were written; names of tables,
//! columns and indexes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tidepool_pool::encryption::{KeyError, Keyring, Keys, PageKey};

use crate::error::{Error, Result};

/// The key of tables that name none, and of the engine's own files.
pub const DEFAULT_KEY_ID: u32 = 1;

/// Whether tables are encrypted that do not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum EncryptTables {
    /// They are not.
    #[default]
    Off,
    /// They are.
    On,
    /// They are, and no table may be made that is not.
    Force,
}

impl EncryptTables {
    const ALL: [EncryptTables; 3] = [EncryptTables::Off, EncryptTables::On, EncryptTables::Force];
}

/// What a table says of its encryption.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum EncryptionChoice {
    /// Nothing: [`EncryptTables`] decides.
    #[default]
    Default,
    /// It is encrypted.
    Yes,
    /// It is not.
    No,
}

/// What a table's definition says of its encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableEncryption {
    /// Whether.
    pub choice: EncryptionChoice,
    /// With which key, if so.
    pub key_id: u32,
}

impl Default for TableEncryption {
    fn default() -> Self {
        Self { choice: EncryptionChoice::Default, key_id: DEFAULT_KEY_ID }
    }
}

/// Where the keys of a database come from.
#[derive(Clone)]
pub struct KeySource(pub Arc<dyn Keyring>);

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySource(..)")
    }
}

impl PartialEq for KeySource {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What an open database encrypts.
#[derive(Debug)]
pub struct Encryption {
    keys: Option<Arc<Keys>>,
    tables: AtomicU8,
}

impl Encryption {
    pub(crate) fn new(keys: Option<Arc<Keys>>, tables: EncryptTables) -> Encryption {
        Encryption { keys, tables: AtomicU8::new(tables as u8) }
    }

    /// Whether tables are encrypted that do not say.
    pub fn tables(&self) -> EncryptTables {
        EncryptTables::ALL[usize::from(self.tables.load(Ordering::Relaxed))]
    }

    pub(crate) fn set_tables(&self, tables: EncryptTables) {
        self.tables.store(tables as u8, Ordering::Relaxed);
    }

    /// The key that a table should be encrypted with; `None`: it should not.
    pub(crate) fn key_id_of(&self, table: &TableEncryption) -> Option<u32> {
        let is_encrypted = match table.choice {
            EncryptionChoice::Default => self.tables() != EncryptTables::Off,
            EncryptionChoice::Yes => true,
            EncryptionChoice::No => false,
        };
        is_encrypted.then_some(table.key_id)
    }

    /// The key for a table that is being made.
    ///
    /// # Errors
    /// [`Error::Key`] if it can't be had, [`Error::InvalidOption`] if the table may not be so.
    pub(crate) fn key_for_new(&self, table: &TableEncryption) -> Result<Option<Arc<PageKey>>> {
        if table.choice == EncryptionChoice::No && self.tables() == EncryptTables::Force {
            return Err(Error::InvalidOption(
                "a table that is not encrypted, although encrypt_tables is FORCE: leave \
                 ENCRYPTED=NO out, or set encrypt_tables to ON"
                    .into(),
            ));
        }
        self.key_id_of(table).map(|id| self.newest(id)).transpose()
    }

    /// A version of a key, which something is encrypted with.
    pub(crate) fn version(&self, id: u32, version: u32) -> Result<Arc<PageKey>> {
        let Some(keys) = &self.keys else {
            let why = "there are no keys: load a key management plugin, or give the database a \
                       keyring";
            return Err(Error::no_key(format!("version {version} of encryption key {id}: {why}")));
        };
        keys.page_key(id, version).map_err(key_error)
    }

    /// The newest version of a key.
    pub(crate) fn newest(&self, id: u32) -> Result<Arc<PageKey>> {
        let Some(keys) = &self.keys else {
            let why = "there are no keys: load a key management plugin, or give the database a \
                       keyring";
            return Err(Error::no_key(format!("encryption key {id}: {why}")));
        };
        keys.newest_page_key(id).map_err(key_error)
    }
}

/// The engine's error for a key that can't be had.
pub(crate) fn key_error(error: KeyError) -> Error {
    Error::no_key(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_does_not_say_follows_the_option() {
        let encryption = Encryption::new(None, EncryptTables::Off);
        let of = |choice| TableEncryption { choice, key_id: 4 };
        let key_of = |choice| encryption.key_id_of(&of(choice));
        assert_eq!(key_of(EncryptionChoice::Default), None);
        assert_eq!(key_of(EncryptionChoice::Yes), Some(4));
        encryption.set_tables(EncryptTables::On);
        assert_eq!(key_of(EncryptionChoice::Default), Some(4));
        assert_eq!(key_of(EncryptionChoice::No), None);
        assert_eq!(encryption.key_for_new(&of(EncryptionChoice::No)).unwrap(), None);
        encryption.set_tables(EncryptTables::Force);
        let refused = encryption.key_for_new(&of(EncryptionChoice::No)).unwrap_err();
        assert!(refused.to_string().contains("FORCE"), "{refused}");
        let missing = encryption.key_for_new(&of(EncryptionChoice::Yes)).unwrap_err();
        assert!(missing.to_string().contains("encryption key 4"), "{missing}");
    }
}
