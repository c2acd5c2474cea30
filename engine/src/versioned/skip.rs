//! Skip pointers in chains of versions, for views that stay open while a row is changed all the
//! time.
//!
//! A version's undo record leads to the version before. A view that is thousands of changes old
//! would follow that many records. So one of [`INTERVAL`] records of updates, on average, has a
//! *skip pointer*: it names the newest older record of the entry that has one too, and who wrote
//! the version which that record undoes. A reader that does not see that version goes there at
//! once: a view that does not see a version sees none between it and a newer one that it does not
//! see either. A record with a skip pointer has the whole prior value, so the reader needs no value
//! of the version that it comes to.
//!
//! # When a skip pointer may be followed
//! Purge frees the undo of a transaction once every view sees it. A reader follows the pointer only
//! if its view does not see the writer of the target's version, so the target is still there. That
//! holds however old the pointer is, and even if the target was freed while the pointer was being
//! made. Its page may have another record by then: one of another entry ends the search.

use crate::format::entry::{Entry, RollPointer};
use crate::trx::TrxSystem;
use crate::undo::record::{Body, Skip};

/// One record in this many has a skip pointer, on average.
const INTERVAL: u64 = 64;
/// A search for the target gives up after this many versions, since the writer has latched a leaf.
/// One in ten million comes that far.
const STEPS_MAX: u64 = 16 * INTERVAL;

/// The skip pointer of the undo record at `at`, which undoes a change of `prior`; `None` if the
/// record is to have none. The leaf of the entry, which has this tree and key, is latched; the page
/// of the new record is not.
pub(super) fn skip_pointer(
    system: &TrxSystem,
    (tree, key): (u32, &[u8]),
    prior: &Entry<'_>,
    at: RollPointer,
) -> Option<Skip> {
    if prior.roll.is_none() || !is_chosen(at) {
        return None;
    }
    let common = system.views.common(&system.csn)?;
    if common.sees(&system.csn, prior.trx_id) {
        return None;
    }
    let mut version = Skip { trx_id: prior.trx_id, roll: prior.roll };
    for _ in 0..STEPS_MAX {
        let read = system.undo.read(version.roll, |record| match record.body {
            Body::Update(place, before) | Body::Delete(place, before)
                if (place.tree, place.key) == (tree, key) =>
            {
                let older = Skip { trx_id: before.trx_id, roll: before.roll };
                Ok((record.skip.is_some(), older))
            }
            _ => Ok((false, Skip::NONE)),
        });
        // A chain with a record that can't be read is read one by one, up to there.
        let Ok((has_skip, older)) = read else { break };
        if has_skip {
            return Some(version);
        }
        if older.roll.is_none() || common.sees(&system.csn, older.trx_id) {
            break;
        }
        version = older;
    }
    // The first of the chain that is needed.
    Some(Skip::NONE)
}

/// By the bits of the record's place, so that no writer keeps count.
fn is_chosen(at: RollPointer) -> bool {
    let place = u64::from(at.page) << 16 | u64::from(at.offset);
    // Knuth's multiplicative hash: the high bits depend on all bits of the place.
    (place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32).is_multiple_of(interval())
}

#[cfg(not(test))]
fn interval() -> u64 {
    INTERVAL
}

/// Tests have many skip pointers in short chains, unless they set another interval.
#[cfg(test)]
fn interval() -> u64 {
    of_thread::INTERVAL.get()
}

#[cfg(test)]
pub(crate) mod of_thread {
    use std::cell::Cell;

    thread_local! {
        pub(super) static INTERVAL: Cell<u64> = const { Cell::new(3) };
    }

    /// For the records that the calling thread writes from now on.
    pub(crate) fn set_interval(interval: Interval) {
        INTERVAL.set(match interval {
            Interval::Shipped => super::INTERVAL,
            Interval::Never => u64::MAX,
        });
    }

    pub(crate) enum Interval {
        /// As outside of tests.
        Shipped,
        /// No record has a skip pointer.
        Never,
    }
}
