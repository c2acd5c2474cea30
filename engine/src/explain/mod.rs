//! The engine explains itself: reports of what it holds and does at this moment, as plain records.
//!
//! # Contents
//! - [`buffer_pool`]: the pool's size and state in one record; the decisions that led to it;
//! - [`by_index`]: which index has how many pages in memory, hot, cold and dirty;
//! - [`table_files`]: what the file of each table takes on disk;
//! - [`transactions`]: who is at work, and what each waits for;
//! - [`locks`]: who holds and wants which lock;
//! - [`deadlock`]: the newest circle of waits.
//!
//! # Locking
//! A report stops nothing. It is made of racy reads and of short looks at one part after another,
//! so its records need not be of the very same instant. No lock is held while a caller gets a
//! record: everything is copied first.

pub mod buffer_pool;
pub mod by_index;
pub mod deadlock;
pub mod locks;
pub mod table_files;
pub mod transactions;

pub use crate::lock::report::Covers;
pub use buffer_pool::{BufferPoolReport, MemoryDecision};
pub use by_index::{CachedIndex, Owner};
pub use deadlock::{DeadlockReport, DeadlockedTransaction};
pub use locks::{LockReport, LocksReport};
pub use table_files::TableFile;
pub use transactions::{TransactionReport, TransactionState};

use crate::lock::Owner as LockOwner;
use crate::trx::TrxId;

/// What a transaction goes by in reports: its id, or, before it has one, a number above all ids.
pub(crate) fn shown_id(owner: &LockOwner) -> u64 {
    shown_number(owner.trx_id(), owner.number())
}

fn shown_number(trx_id: TrxId, number: u64) -> u64 {
    match trx_id.0 {
        0 => NUMBERS_ABOVE_IDS | number,
        id => id,
    }
}

/// Transaction ids have 48 bits.
const NUMBERS_ABOVE_IDS: u64 = 1 << 48;

/// What a lock goes by in reports: who, in which tree, and the key's hash (FNV-1a).
pub(crate) fn shown_lock(owner: &LockOwner, tree: u32, key: &[u8]) -> String {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{}:{tree}:{hash:016x}", shown_id(owner))
}
