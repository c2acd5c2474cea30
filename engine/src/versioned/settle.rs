//! Settling: entries of a full leaf whose versions every view sees give up their version headers,
//! all but a byte.
//!
//! A write that finds no room in a leaf comes here before it has the leaf split. Often most of the
//! leaf's entries are older than any view and any active transaction, and what their headers take
//! is room enough.
//!
//! # What may be settled
//! A version that its transaction has committed, and that every live view sees and every later one
//! will: then no reader asks for its id any more, be it for what is visible or for an implicit
//! lock, and none walks to the version before it. A transaction that is prepared or being rolled
//! back, also one that recovery has found so, is active until its last entry is restored. The
//! commit is in the log before the settling, so that no crash keeps the one without the other.
//!
//! Rollback needs the id and the roll pointer of entries whose transaction is active, and of no
//! others. Purge needs them of delete-marks, which are never settled; an entry that is none it
//! leaves alone, whatever its header says. The chains of values that were replaced are freed by
//! what undo records say, not by entries.
//!
//! # When it is worth it
//! If it makes room for the new entry, and frees a good part of the page: else it would be
//! done again for each of the next writes, and the leaf split all the same. The entries are judged
//! at run time; what is logged, and done again by recovery, is which slots it was
//! ([`PageOp::SettleCells`](crate::page_op::PageOp::SettleCells)).
//!
//! # Latches
//! The leaf's, exclusively. The views are looked at under it, without waiting.

use std::sync::atomic::Ordering;

use crate::btree::LeafMut;
use crate::error::Result;
use crate::format::entry::{ENTRY_HEADER_SIZE, Entry, SETTLED_HEADER_SIZE, corrupt_entry};
use crate::mtr::Mtr;
use crate::trx::TrxSystem;

/// What an entry gives up.
const SAVED: usize = ENTRY_HEADER_SIZE - SETTLED_HEADER_SIZE;
/// Settling must free this part of the page.
const WORTH_DIVISOR: usize = 16;

/// Makes room in a leaf for an entry with this key and payload length, new or longer than it is, by
/// settling others. If that would not do, nothing is changed and the answer is false.
pub(super) fn settle<'a>(
    system: &TrxSystem,
    mut mtr: Mtr<'a>,
    leaf: LeafMut<'a>,
    key: &[u8],
    payload_len: usize,
) -> Result<bool> {
    let node = leaf.node();
    let found = node.find_covered(key);
    let lacking = match found {
        // It is about to be replaced, and is not to be settled for that.
        Ok(slot) => node.growth_lacking(slot, payload_len),
        Err(_) => node.lacking(key.len(), payload_len),
    };
    let wanted = lacking.max(node.page().len() / WORTH_DIVISOR);
    let mut candidates = Vec::with_capacity(node.count());
    for slot in (0..node.count()).filter(|&slot| found != Ok(slot)) {
        let entry = Entry::decode(node.payload(slot));
        let entry = entry.ok_or_else(|| corrupt_entry(leaf.page_id(), slot))?;
        if entry.may_settle() && !system.is_in_doubt(entry.trx_id, entry.roll) {
            candidates.push((slot, entry.trx_id));
        }
    }
    if candidates.len() * SAVED < wanted {
        return Ok(false);
    }
    let Some(all) = system.views.common(&system.csn) else { return Ok(false) };
    let mut slots = vec![0; node.count().div_ceil(8)];
    let mut settled = 0;
    for (slot, trx_id) in candidates {
        if all.sees(&system.csn, trx_id) {
            slots[slot / 8] |= 1 << (slot % 8);
            settled += 1;
        }
    }
    if settled * SAVED < wanted {
        return Ok(false);
    }
    let leaf = leaf.attach(&mut mtr);
    leaf.settle(&mut mtr, &slots);
    mtr.commit();
    system.counters.settled_entries.fetch_add(settled as u64, Ordering::Relaxed);
    Ok(true)
}
