//! Every explicit lock at this moment, for reports.
//!
//! The shards of the table of key locks are looked at one after the other, each under its own mutex
//! and no longer than it takes to copy what it holds; then the ranges. A lock that moves between
//! two looks may be missed or come twice. The implicit locks of written entries are in no table,
//! and not among these, until somebody waits for one.

use std::sync::Arc;

use super::{LockMode, Locks, Owner};

/// A lock that is held or waited for.
#[derive(Clone)]
pub struct LockRecord {
    /// By whom.
    pub owner: Arc<Owner>,
    /// In which tree.
    pub tree: u32,
    pub mode: LockMode,
    /// Whether it is held; else it is waited for.
    pub granted: bool,
    pub covers: Covers,
    /// Whom a request waits for, the first in the queue first.
    pub blockers: Vec<Arc<Owner>>,
}

/// What a lock covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Covers {
    /// One key.
    Key(Box<[u8]>),
    /// All keys from the first to the last, these included; no last one: to the end of the tree.
    Range(Box<[u8]>, Option<Box<[u8]>>),
}

impl Covers {
    /// The first key.
    pub fn low(&self) -> &[u8] {
        match self {
            Covers::Key(key) | Covers::Range(key, _) => key,
        }
    }

    /// Memory that the keys take, bytes.
    fn size_bytes(&self) -> usize {
        match self {
            Covers::Key(key) => key.len(),
            Covers::Range(low, high) => low.len() + high.as_ref().map_or(0, |key| key.len()),
        }
    }
}

/// Locks, up to a bound on the memory that their copies take.
pub struct LockRecords {
    records: Vec<LockRecord>,
    room_bytes: usize,
    is_truncated: bool,
}

impl LockRecords {
    /// Takes a record, unless there is no more room.
    pub(super) fn push(&mut self, record: LockRecord) {
        let size = size_of::<LockRecord>() + record.covers.size_bytes() + record.blockers.len() * 8;
        match self.room_bytes.checked_sub(size) {
            Some(room) => {
                self.room_bytes = room;
                self.records.push(record);
            }
            None => self.is_truncated = true,
        }
    }

    /// Whether nothing more is taken.
    pub(super) fn is_full(&self) -> bool {
        self.is_truncated
    }
}

impl Locks {
    /// The locks of keys, then those of ranges; and whether `memory_bytes` were too few for all of
    /// them.
    pub fn records(&self, memory_bytes: usize) -> (Vec<LockRecord>, bool) {
        let mut out =
            LockRecords { records: Vec::new(), room_bytes: memory_bytes, is_truncated: false };
        self.keys.report(&mut out);
        self.ranges.report(&mut out);
        (out.records, out.is_truncated)
    }
}
