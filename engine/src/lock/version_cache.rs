//! Shortcuts through the version chains of an active transaction, for rows that it has changed very
//! often.
//!
//! A snapshot read must get behind all versions that an unfinished transaction has made of a row,
//! one undo record after the other. The first reader that gets there leaves the version it found
//! with the transaction's [`Owner`](crate::lock::Owner); later readers begin there.
//!
//! # Why an entry stays true
//! As long as the row's newest version is that transaction's, no other can have changed what lies
//! behind its oldest one. A rollback to a savepoint may give up the row, and the transaction may
//! write it again later, over another version. So such a rollback clears the cache
//! ([`VersionCache::forget`]), and refuses what readers are about to add. A rollback of the whole
//! transaction only takes versions away from the front.
//!
//! The mutex is taken under a leaf's latch, and nothing is taken under it.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::csn::TrxId;
use crate::format::entry::{Entry, RollPointer};

/// Rows of one transaction that are remembered.
const ROWS_MAX: usize = 16;

/// The newest version of an entry that is not the transaction's, less its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Before {
    pub flags: u8,
    pub trx_id: TrxId,
    pub roll: RollPointer,
    /// A skip pointer led here: neither its value nor its flags are known, and its undo record has
    /// a skip pointer, too.
    pub is_skipped_to: bool,
}

impl Before {
    /// The newest version of an entry.
    pub fn of(entry: &Entry<'_>) -> Before {
        Before::new(entry.flags, entry.trx_id, entry.roll)
    }

    /// A version whose value is known.
    pub fn new(flags: u8, trx_id: TrxId, roll: RollPointer) -> Before {
        Before { flags, trx_id, roll, is_skipped_to: false }
    }
}

struct Row {
    tree: u32,
    key: Vec<u8>,
    /// None if the transaction has inserted the entry.
    before: Option<Before>,
    value: Vec<u8>,
}

#[derive(Default)]
struct Rows {
    /// How often everything was forgotten.
    epoch: u64,
    list: VecDeque<Row>,
}

/// The rows of one transaction, the one left first in front.
#[derive(Default)]
pub(crate) struct VersionCache(Mutex<Rows>);

impl VersionCache {
    /// To be had before the walk whose outcome is left.
    pub(crate) fn epoch(&self) -> u64 {
        self.0.lock().epoch
    }

    /// What lies behind the transaction's versions, if somebody has left it; puts its value into
    /// `value`. To be asked under the latch on the entry's leaf, the newest version being the
    /// transaction's.
    pub(crate) fn get(&self, tree: u32, key: &[u8], value: &mut Vec<u8>) -> Option<Option<Before>> {
        let rows = self.0.lock();
        let row = rows.list.iter().find(|row| row.tree == tree && row.key == key)?;
        value.clear();
        value.extend_from_slice(&row.value);
        Some(row.before)
    }

    /// Leaves what was found by a walk that began at `epoch`.
    pub(crate) fn leave(
        &self,
        epoch: u64,
        tree: u32,
        key: &[u8],
        before: Option<Before>,
        value: &[u8],
    ) {
        let mut rows = self.0.lock();
        let is_there = rows.list.iter().any(|row| row.tree == tree && row.key == key);
        if rows.epoch != epoch || is_there {
            return;
        }
        if rows.list.len() == ROWS_MAX {
            rows.list.pop_front();
        }
        let value = if before.is_some() { value.to_vec() } else { Vec::new() };
        rows.list.push_back(Row { tree, key: key.to_vec(), before, value });
    }

    /// The transaction has rolled back to a savepoint, and has not gone on yet.
    pub(crate) fn forget(&self) {
        let mut rows = self.0.lock();
        rows.epoch += 1;
        rows.list.clear();
    }
}
