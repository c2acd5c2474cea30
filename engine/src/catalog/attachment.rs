//! Attachments: bytes that the layer above keeps with a definition, changed at the same moment as
//! the definition.
//!
//! They are for what is long and rarely looked at, the server's file of a table's columns say:
//! nothing of them is in memory, and the catalog's entry of a table is as short as ever. Each
//! belongs to a name and has a kind, a small number that means something to the layer above only.
//! The name is a table's as a rule. It may be another one: several tables together may be what the
//! layer above calls a table (partitions).
//!
//! # On disk
//! A separate versioned tree in the system space, beside the catalog's. The key is the name, a
//! zero byte, and the kind (u8); the value is the bytes. The transaction that changes the catalog's
//! entry changes the attachments.

use crate::env::Env;
use crate::error::{Error, Remedy, Result};
use crate::lock::LockMode;
use crate::mtr::Mtr;
use crate::trx::TransactionCore;
use crate::versioned::{
    Batch, Direction, LongValues, ReadRequest, ScanPosition, ScanRequest, VersionedTree,
};
use std::sync::Arc;
use tidepool_pool::{Access, Space};

/// Tree id of the attachments.
pub(crate) const ATTACHMENT_TREE: u32 = 2;
/// Longest attachment, in bytes.
pub const ATTACHMENT_LEN_MAX: usize = 16 << 20;
/// Kinds are 1 to this.
pub const ATTACHMENT_KIND_MAX: u8 = 15;
/// What a key has behind the name.
pub(super) const KEY_SUFFIX_LEN: usize = 2;
/// Entries read at a time: they may be long.
const SCAN_ROWS: usize = 16;

/// An attachment as a change of a definition leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment<'a> {
    /// Whose: a table's name, or another one.
    pub name: &'a str,
    /// Which of them: 1 to [`ATTACHMENT_KIND_MAX`].
    pub kind: u8,
    /// At most [`ATTACHMENT_LEN_MAX`]; `None`: there is none from here on.
    pub bytes: Option<&'a [u8]>,
}

impl Attachment<'_> {
    /// Checks kind and length.
    pub fn validate(&self) -> Result<()> {
        let refuse = |why: String| {
            Err(Error::InvalidOption(format!("attachment of '{}': {why}", self.name)))
        };
        if self.name.is_empty() || self.kind == 0 || self.kind > ATTACHMENT_KIND_MAX {
            return refuse(format!("kind {}: must be 1 to {ATTACHMENT_KIND_MAX}", self.kind));
        }
        match self.bytes.map_or(0, <[u8]>::len) {
            len if len > ATTACHMENT_LEN_MAX => {
                refuse(format!("{len} bytes: must be at most {ATTACHMENT_LEN_MAX}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks all of a change.
    pub(crate) fn validate_all(attachments: &[Attachment<'_>]) -> Result<()> {
        attachments.iter().try_for_each(Attachment::validate)
    }
}

/// The tree that they are in.
pub(super) struct Attachments {
    tree: VersionedTree,
}

impl Attachments {
    /// Makes the tree; returns its root page.
    pub fn create<'a>(mtr: &mut Mtr<'a>, env: &'a Arc<Env>, system: &'a Arc<Space>) -> Result<u32> {
        VersionedTree::create(mtr, env, system, ATTACHMENT_TREE)
    }

    pub fn open(env: &Arc<Env>, system: &Arc<Space>, root: u32) -> Self {
        Self { tree: VersionedTree::open(env, system, root, ATTACHMENT_TREE, 0) }
    }

    /// Reads one; `None` if there is none.
    pub fn get(&self, trx: &mut TransactionCore, name: &str, kind: u8) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let key = key(name, kind);
        let found = self.tree.read(trx, ReadRequest::new(&key, &mut bytes))?;
        Ok(found.then_some(bytes))
    }

    /// Gives all of them to `each`, by name and kind.
    pub fn for_each(
        &self,
        trx: &mut TransactionCore,
        each: &mut dyn FnMut(&str, u8, &[u8]),
    ) -> Result<()> {
        let (mut position, mut batch) = (ScanPosition::start(), Batch::default());
        let (direction, long_values) = (Direction::Forward, LongValues::Whole);
        let request = ScanRequest { direction, rows: SCAN_ROWS, access: Access::Scan, long_values };
        while !position.at_end() {
            batch.clear();
            self.tree.scan(trx, &mut position, request, &mut batch)?;
            for at in 0..batch.len() {
                let (name, kind) = parts(batch.key(at)).ok_or_else(|| {
                    let why = "the key of an attachment is not a name, a zero and a kind";
                    Error::lost(crate::files::SYSTEM_FILE, why, Remedy::RestoreDirectory)
                })?;
                each(name, kind, batch.value(at));
            }
        }
        Ok(())
    }

    /// Sets, replaces and removes attachments. Bytes that are there already are not written again.
    pub fn set(&self, trx: &mut TransactionCore, attachments: &[Attachment<'_>]) -> Result<()> {
        for attachment in attachments {
            let present = self.get(trx, attachment.name, attachment.kind)?;
            let key = key(attachment.name, attachment.kind);
            match (present, attachment.bytes) {
                (None, None) => {}
                (None, Some(bytes)) => self.tree.insert(trx, &key, bytes, LockMode::None)?,
                (Some(_), None) => self.tree.delete(trx, &key)?,
                (Some(present), Some(bytes)) if present == bytes => {}
                (Some(_), Some(bytes)) => self.tree.update(trx, &key, bytes)?,
            }
        }
        Ok(())
    }

    /// Removes all of a name, or gives them to another one, in place of what that has.
    pub fn move_all(&self, trx: &mut TransactionCore, from: &str, to: Option<&str>) -> Result<()> {
        for kind in 1..=ATTACHMENT_KIND_MAX {
            let present = self.get(trx, from, kind)?;
            if let Some(to) = to {
                self.set(trx, &[Attachment { name: to, kind, bytes: present.as_deref() }])?;
            }
            self.set(trx, &[Attachment { name: from, kind, bytes: None }])?;
        }
        Ok(())
    }
}

fn key(name: &str, kind: u8) -> Vec<u8> {
    [name.as_bytes(), &[0, kind]].concat()
}

/// Name and kind of a key.
pub(crate) fn parts(key: &[u8]) -> Option<(&str, u8)> {
    match key.split_last_chunk::<KEY_SUFFIX_LEN>()? {
        (name, [0, kind]) => Some((std::str::from_utf8(name).ok()?, *kind)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_name_and_the_kind() {
        assert_eq!(parts(&key("shop/orders", 3)), Some(("shop/orders", 3)));
        // A name may have zeros, and end like another one's key.
        assert_eq!(parts(&key("a\0\u{1}", 1)), Some(("a\0\u{1}", 1)));
        assert_ne!(key("a\0\u{1}", 1), key("a", 1));
        assert_eq!(parts(b"x"), None);
        assert_eq!(parts(b"shop"), None);
    }

    #[test]
    fn an_attachment_is_checked() {
        let refusal = |attachment: Attachment<'_>| attachment.validate().unwrap_err().to_string();
        let none = Attachment { name: "t", kind: 0, bytes: None };
        assert_eq!(refusal(none), "invalid option: attachment of 't': kind 0: must be 1 to 15");
        let long = vec![0; ATTACHMENT_LEN_MAX + 1];
        assert_eq!(
            refusal(Attachment { kind: 1, bytes: Some(&long), ..none }),
            "invalid option: attachment of 't': 16777217 bytes: must be at most 16777216"
        );
    }
}
