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
//! - Another row may have come to the place since, and may have gone again. So of each entry that
//!   was changed after the read point the statement looks at all versions since
//!   ([`RecentVersions`]).
//!
//! An entry that was inserted before the statement came by has been met. So when the statement
//! first meets a version by such a transaction, it notes that its commit is visible from here on
//! ([`crate::lock::reach::Reach::meet`]): only stretches read earlier can have been read too early.
//!
//! # Searches
//! A search ([`TransactionCore::set_searching`]) reads an index by one view, at least as new as the
//! read point, and locks the rows that it finds by their keys. Wherever such a row has moved since,
//! it is in no place that the search has still to read. So no stretches are noted, and the move is
//! an error by itself. The first delete-mark after the read point says what became of the row that
//! was found; later ones are of others that came to its place.
//!
//! # Latches
//! Stretches are noted, and the newest versions of an entry are read, under the leaf's latch. Undo
//! logs are read without any.

use std::collections::BTreeMap;

use tidepool_pool::Access;

use super::VersionedTree;
use super::read::{Ended, VersionQuery, Walk, latched_after};
use crate::btree::Seek;
use crate::csn::TrxId;
use crate::error::{Error, Result};
use crate::format::entry::{DELETED, Entry, RollPointer, corrupt_entry};
use crate::lock::reach::{Meeting, Place, Reading, Stretch};
use crate::lock::version_cache::Before;
use crate::trx::TransactionCore;
use crate::trx::view::ReadView;
use crate::undo::record::{Body, MARK_MOVED};

/// Keys that are kept of what one transaction has written behind a statement.
const KEYS_MAX: usize = 100_000;
/// Undo records that are read between two checks whether the reader was interrupted.
const UNCHECKED_RECORDS: u32 = 1024;

/// Versions that are looked at under the leaf's latch; each may take a read from the disk.
const LATCHED_VERSIONS: u32 = 32;

/// The versions of an entry that were committed after a statement's read point, from the newest on.
pub(super) struct RecentVersions {
    reading: Reading,
    /// The first that was not looked at.
    next: Option<Before>,
    /// Of those looked at, the delete-marks of rows that moved: who made each, and the record of
    /// the deletion.
    departures: Vec<(TrxId, RollPointer)>,
    /// Where to find the newest of them, if that is behind many versions of a transaction that has
    /// not ended: then nothing else is known yet.
    behind: Option<Box<Behind>>,
}

/// A way to the newest version of an entry that is of a transaction that has ended.
struct Behind {
    key: Vec<u8>,
    /// Of the version where the way begins.
    value: Vec<u8>,
    walk: Walk,
    /// Ways before this one that could not be gone to their end.
    walks_in_vain: u32,
}

impl RecentVersions {
    /// Those of an entry whose `newest` version is of a transaction that has ended, or is the
    /// reader's: what to check ([`VersionedTree::check_departures`]) once the latch of its leaf,
    /// which the caller holds, is gone. Meets the transactions that made them.
    #[inline]
    pub(super) fn of(
        trx: &mut TransactionCore,
        newest: Before,
        reading: Reading,
    ) -> Result<Option<RecentVersions>> {
        trx.gave_recent = trx.is_newer_than_statement(newest.trx_id);
        if !trx.gave_recent {
            return Ok(None);
        }
        let mut recent = RecentVersions::new(reading, Some(newest));
        recent.look(trx, LATCHED_VERSIONS)?;
        let has_to_be_checked = recent.next.is_some() || !recent.departures.is_empty();
        Ok(has_to_be_checked.then_some(recent))
    }

    fn new(reading: Reading, next: Option<Before>) -> RecentVersions {
        RecentVersions { reading, next, departures: Vec::new(), behind: None }
    }

    /// Looks at some of the versions. The read point keeps their undo records.
    fn look(&mut self, trx: &mut TransactionCore, versions_max: u32) -> Result<()> {
        for _ in 0..versions_max {
            let newer = self.next.take().filter(|at| trx.is_newer_than_statement(at.trx_id));
            let Some(Before { flags, trx_id, roll, .. }) = newer else { break };
            trx.reach.meet(trx_id);
            if roll.is_none() {
                break;
            }
            let (has_moved, before) = trx.system.undo.read(roll, |record| {
                let before = match &record.body {
                    Body::Update(_, prior) | Body::Delete(_, prior) => {
                        Some(Before::new(prior.flags, prior.trx_id, prior.roll))
                    }
                    _ => None,
                };
                Ok((record.marks & MARK_MOVED != 0, before))
            })?;
            if flags & DELETED != 0 {
                if self.reading == Reading::Found {
                    self.departures.clear();
                }
                if has_moved {
                    self.departures.push((trx_id, roll));
                }
            }
            self.next = before;
        }
        Ok(())
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

    /// The recent versions of an entry that others may have locked, and that the statement passes
    /// over. The leaf is latched.
    pub(super) fn recent_of_passed(
        &self,
        trx: &mut TransactionCore,
        key: &[u8],
        entry: &Entry<'_>,
        reading: Reading,
    ) -> Result<Option<RecentVersions>> {
        self.recent_after(trx, key, entry, reading, 0)
    }

    /// The same, after a number of walks behind a transaction's versions that were in vain.
    fn recent_after(
        &self,
        trx: &mut TransactionCore,
        key: &[u8],
        entry: &Entry<'_>,
        reading: Reading,
        walks_in_vain: u32,
    ) -> Result<Option<RecentVersions>> {
        if !trx.is_newer_than_statement(entry.trx_id) {
            return Ok(None);
        }
        // What is not committed has moved nothing yet.
        let (query, mut value) = (VersionQuery::new(self, trx, ReadView::COMMITTED), Vec::new());
        match query.newest_ended(key, entry, &mut value, latched_after(walks_in_vain))? {
            Ended::Version(None) => Ok(None),
            Ended::Version(Some(newest)) => RecentVersions::of(trx, newest, reading),
            Ended::Further(walk) => {
                let behind = Behind { key: key.to_vec(), value, walk, walks_in_vain };
                let recent = RecentVersions::new(reading, None);
                Ok(Some(RecentVersions { behind: Some(Box::new(behind)), ..recent }))
            }
        }
    }

    /// Goes behind the versions of a transaction that has not ended. No latch is held.
    fn go_behind(
        &self,
        trx: &mut TransactionCore,
        behind: Behind,
        reading: Reading,
    ) -> Result<Option<RecentVersions>> {
        let Behind { key, mut value, walk, walks_in_vain } = behind;
        let query = VersionQuery::new(self, trx, ReadView::COMMITTED);
        if let Some(newest) = query.behind(&key, walk, &mut value)? {
            return newest.map_or(Ok(None), |newest| RecentVersions::of(trx, newest, reading));
        }
        trx.check_interrupt()?;
        let leaf = self.tree.leaf_shared(Seek::Key(&key), Access::Normal)?;
        let Ok(slot) = leaf.find(&key) else { return Ok(None) };
        let entry = Entry::decode(leaf.payload_at(slot))
            .ok_or_else(|| corrupt_entry(leaf.page_id(), slot))?;
        self.recent_after(trx, &key, &entry, reading, walks_in_vain + 1)
    }

    /// The check of an entry that a scan has passed over by what it read without its lock. No latch
    /// may be held.
    pub(super) fn check_passed(
        &self,
        trx: &mut TransactionCore,
        key: &[u8],
        access: Access,
    ) -> Result<()> {
        let leaf = self.tree.leaf_shared(Seek::Key(key), access)?;
        // An insert may have been taken back. Purge leaves what the read point does not see.
        let Ok(slot) = leaf.find(key) else { return Ok(()) };
        let entry = Entry::decode(leaf.payload_at(slot))
            .ok_or_else(|| corrupt_entry(leaf.page_id(), slot))?;
        let recent = self.recent_of_passed(trx, key, &entry, Reading::Scan)?;
        drop(leaf);
        self.check_departures(trx, recent)
    }

    /// An error if a transaction that moved one of these versions away has inserted an entry where
    /// this statement had read before. No latch may be held.
    pub(super) fn check_departures(
        &self,
        trx: &mut TransactionCore,
        recent: Option<RecentVersions>,
    ) -> Result<()> {
        let Some(mut recent) = recent else { return Ok(()) };
        while let Some(behind) = recent.behind.take() {
            match self.go_behind(trx, *behind, recent.reading)? {
                Some(found) => recent = found,
                None => return Ok(()),
            }
        }
        while recent.next.is_some() {
            trx.check_interrupt()?;
            recent.look(trx, UNCHECKED_RECORDS)?;
        }
        let RecentVersions { reading, departures, .. } = recent;
        if reading == Reading::Found && !departures.is_empty() {
            return Err(Error::RecordChanged);
        }
        departures.into_iter().try_for_each(|gone| self.check_departure(trx, gone, reading))
    }

    /// The same of one delete-mark.
    ///
    /// In another tree of the same table only scans count: of a lookup there, an entry of this tree
    /// was the reason.
    fn check_departure(
        &self,
        trx: &mut TransactionCore,
        (writer, roll): (TrxId, RollPointer),
        reading: Reading,
    ) -> Result<()> {
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
    // Of the keys behind: whether it has inserted an entry, and whether it has left one. (A key at
    // which it has also deleted one may be another row's now.)
    let mut keys: BTreeMap<(u32, Vec<u8>), (bool, bool)> = BTreeMap::new();
    let mut records = 0;
    undo.for_each_record(log.stream, log.start, log.record.end, |_, record| {
        records += 1;
        if records % UNCHECKED_RECORDS == 0 {
            trx.check_interrupt()?;
        }
        let (at, inserts, leaves) = match record.body {
            Body::Insert(at) => (at, true, true),
            Body::Update(at, prior) => (at, prior.flags & DELETED != 0, true),
            Body::Delete(at, _) => (at, false, false),
            _ => return Ok(()),
        };
        let is_behind = |stretch: &Stretch| stretch.covers(at.tree, at.key);
        if trx.reach.before(clock).any(is_behind) && keys.len() <= KEYS_MAX {
            let (inserted, left) = keys.entry((at.tree, at.key.to_vec())).or_default();
            *inserted |= inserts;
            *left = leaves;
        }
        Ok(())
    })?;
    // Of more than can be kept, some will have been inserted.
    let is_full = keys.len() > KEYS_MAX;
    let inserted = |state: &(bool, bool)| is_full || *state == (true, true);
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
