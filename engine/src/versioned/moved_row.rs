//! Whether a row has moved behind a statement's locking reads, to a place that they had read
//! before.
//!
//! # What a statement promises
//! A locking read takes the newest version of each entry that it meets, and below SERIALIZABLE it
//! locks no gaps. So a row can move from a place that the statement has yet to read to one that it
//! has read: it matches all the time, and is met nowhere. The promise is: *a row that matched when
//! the statement began, and has matched ever since, is met, or the statement ends with
//! [`Error::RecordChanged`].* A row that began to match later may be met or not: those are
//! phantoms, which only SERIALIZABLE keeps away.
//!
//! # How the statement finds out
//! - It has a **read point**: a view, opened before the statement first reads something that it
//!   leaves unlocked. The view keeps purge away from the delete-marks that others make from then
//!   on, and from these transactions' undo logs.
//! - It notes the **stretches** of trees that it has read: where each scan began and how far it has
//!   come, and which keys it has looked up in vain.
//! - A row that moves leaves a delete-mark where it was, whose undo record says that it moved. When
//!   the statement meets one that was committed after the read point, it asks the undo log of the
//!   transaction that made it whether that one inserted an entry into a stretch of the same tree,
//!   too. If so, the row may have gone there: the statement ends. If not, the row went where the
//!   statement doesn't look, or went where it is still to come.
//!
//! An entry that was inserted before the statement came by has been met. So when the statement
//! first meets an entry of such a transaction, it notes that its commit is visible from here on
//! ([`crate::lock::reach::Reach::meet`]): only stretches read earlier can have been read too early.
//!
//! # Latches
//! Stretches are noted under the leaf's latch. Undo logs are read without any.

use std::collections::BTreeMap;

use super::VersionedTree;
use crate::csn::TrxId;
use crate::error::{Error, Result};
use crate::format::entry::{DELETED, Entry, RollPointer};
use crate::lock::reach::{Meeting, Place, Reading, Stretch};
use crate::trx::TransactionCore;
use crate::undo::record::{Body, MARK_MOVED};

/// Keys that are kept of what one transaction has written behind a statement.
const KEYS_MAX: usize = 100_000;
/// Undo records that are read between two checks whether the reader was interrupted.
const UNCHECKED_RECORDS: u32 = 1024;

/// A delete-mark that was committed after a statement's read point.
#[derive(Debug, Clone, Copy)]
pub(super) struct Departure {
    writer: TrxId,
    /// The record of the deletion.
    roll: RollPointer,
    reading: Reading,
}

impl Departure {
    /// What to check ([`VersionedTree::check_departure`]) about a delete-mark that is certain, if
    /// another transaction committed it after the statement's read point.
    pub(super) fn of(
        trx: &TransactionCore,
        entry: &Entry<'_>,
        reading: Reading,
    ) -> Option<Departure> {
        debug_assert!(entry.is_deleted());
        let departure = Departure { writer: entry.trx_id, roll: entry.roll, reading };
        trx.is_newer_than_statement(entry.trx_id).then_some(departure)
    }
}

impl VersionedTree {
    /// A locking read has looked up a key that is not there, and has the latch of the leaf that
    /// would hold it.
    pub(super) fn note_absent(&self, trx: &mut TransactionCore, key: &[u8]) {
        // None can have been inserted and committed here between the look and the view.
        trx.open_read_point();
        trx.reach.add_absent(self.place(), key);
    }

    /// An error if the transaction that moved an entry of this tree away has inserted one where
    /// this statement had read before. No latch may be held.
    ///
    /// In another tree of the same table only scans count: of a lookup there, an entry of this tree
    /// was the reason.
    pub(super) fn check_departure(
        &self,
        trx: &mut TransactionCore,
        departure: Departure,
    ) -> Result<()> {
        let Departure { writer, roll, reading } = departure;
        trx.reach.meet(writer);
        if trx.system.undo.read(roll, |record| Ok(record.marks & MARK_MOVED == 0))? {
            return Ok(());
        }
        if let Some(&Meeting::At(clock)) = trx.reach.met.get(&writer) {
            let behind = inserted_behind(trx, writer, roll, clock)?;
            trx.reach.met.insert(writer, Meeting::Behind(behind));
        }
        let Some(Meeting::Behind(behind)) = trx.reach.met.get(&writer) else {
            unreachable!("it has just been found out");
        };
        let own = self.place();
        let both_scan = |other: Reading| (reading, other) == (Reading::Scan, Reading::Scan);
        let may_have_come = |(place, other): &(Place, Reading)| {
            *place == own || place.space == own.space && both_scan(*other)
        };
        if behind.iter().any(may_have_come) { Err(Error::RecordChanged) } else { Ok(()) }
    }
}

/// Where `writer`, one of whose records is at `roll`, has inserted entries into what the statement
/// had read before `clock`.
fn inserted_behind(
    trx: &TransactionCore,
    writer: TrxId,
    roll: RollPointer,
    clock: u64,
) -> Result<Vec<(Place, Reading)>> {
    let mut behind = Vec::new();
    if trx.reach.before(clock).next().is_none() {
        return Ok(behind);
    }
    let undo = &trx.system.undo;
    let log = undo.log_around(roll)?;
    if log.record.trx_id != writer {
        return Err(undo.corrupt(log.start.page, "an undo log of another transaction"));
    }
    // Of the keys behind: whether it has found an entry there, and whether it has left one.
    let mut keys: BTreeMap<(u32, Vec<u8>), (bool, bool)> = BTreeMap::new();
    let mut records = 0;
    undo.for_each_record(log.stream, log.start, log.record.end, |_, record| {
        records += 1;
        if records % UNCHECKED_RECORDS == 0 {
            trx.check_interrupt()?;
        }
        let (at, found, left) = match record.body {
            Body::Insert(at) => (at, false, true),
            Body::Update(at, prior) => (at, prior.flags & DELETED == 0, true),
            Body::Delete(at, _) => (at, true, false),
            _ => return Ok(()),
        };
        let is_behind = |stretch: &Stretch| stretch.covers(at.tree, at.key);
        if trx.reach.before(clock).any(is_behind) && keys.len() <= KEYS_MAX {
            keys.entry((at.tree, at.key.to_vec())).or_insert((found, left)).1 = left;
        }
        Ok(())
    })?;
    // Of more than can be kept, some will have been inserted.
    let is_full = keys.len() > KEYS_MAX;
    let inserted = |state: &(bool, bool)| is_full || *state == (false, true);
    for (tree, key) in keys.iter().filter(|(_, state)| inserted(state)).map(|(key, _)| key) {
        for stretch in trx.reach.before(clock).filter(|stretch| stretch.covers(*tree, key)) {
            let found = (stretch.place, stretch.reading);
            if !behind.contains(&found) {
                behind.push(found);
            }
        }
    }
    Ok(behind)
}
