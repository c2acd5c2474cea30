//! Rollback: undo records applied backward.
//!
//! Each step is one mini-transaction that restores one entry *and* cuts its record off the log, so
//! a crash at any point leaves a log from which the rollback goes on. Overflow chains take several:
//! the chain's own steps keep it complete from its head, and the record that names the head is cut
//! together with the freeing of the head.
//!
//! What a failing disk makes of it is in [`super::retry`] and [`super::blocked_rollback`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use super::core::TransactionCore;
use super::savepoint::void_savepoint;
use super::system::{Orphan, TrxSystem};
use crate::btree::Tree;
use crate::csn::TrxId;
use crate::error::{Error, Result};
use crate::format::entry::Entry;
use crate::format::entry::RollPointer;
use crate::lock::Owner;
use crate::mtr::{Mtr, PageHandle};
use crate::options::ForceRecovery;
use crate::overflow;
use crate::pause::{self, PausePoint};
use crate::space::Allocation;
use crate::undo::log::{UndoLog, UndoPosition, marks_of, set_chain, set_marks};
use crate::undo::record::{
    Body, MARK_PRIOR_PURGED, MARK_REMOVED, MARK_UNDONE, Place, PriorValue, Record,
};

/// A record, copied out of its page.
pub(super) enum Step {
    Insert(OwnedPlace),
    Restore {
        place: OwnedPlace,
        marks: u8,
        chain: u32,
        prior: OwnedPrior,
    },
    Chain {
        space: u32,
        tree: u32,
        head: u32,
    },
    /// Nothing outside of the log.
    Nothing,
}

pub(super) struct OwnedPlace {
    tree: u32,
    space: u32,
    root: u32,
    key: Vec<u8>,
}

impl OwnedPlace {
    fn new(place: &Place<'_>) -> Self {
        let Place { tree, space, root, key } = *place;
        OwnedPlace { tree, space, root, key: key.to_vec() }
    }

    fn as_place(&self) -> Place<'_> {
        Place { tree: self.tree, space: self.space, root: self.root, key: &self.key }
    }
}

pub(super) struct OwnedPrior {
    flags: u8,
    trx_id: TrxId,
    roll: RollPointer,
    value: OwnedValue,
}

enum OwnedValue {
    Same,
    Whole(Vec<u8>),
    Middle(usize, usize, Vec<u8>),
}

impl OwnedValue {
    fn restore(&self, value: &mut Vec<u8>) -> Option<()> {
        match self {
            OwnedValue::Same => PriorValue::Same.restore(value),
            OwnedValue::Whole(bytes) => PriorValue::Whole(bytes).restore(value),
            OwnedValue::Middle(front, back, middle) => {
                PriorValue::Middle { front: *front, back: *back, middle }.restore(value)
            }
        }
    }
}

pub(super) fn step_of(record: &Record<'_>) -> Option<Step> {
    Some(match &record.body {
        Body::Log(_) => return None,
        _ if record.marks & MARK_UNDONE != 0 => Step::Nothing,
        Body::Insert(place) => Step::Insert(OwnedPlace::new(place)),
        Body::Update(place, prior) | Body::Delete(place, prior) => Step::Restore {
            place: OwnedPlace::new(place),
            marks: record.marks,
            chain: record.chain,
            prior: OwnedPrior {
                flags: prior.flags,
                trx_id: prior.trx_id,
                roll: prior.roll,
                value: match prior.value {
                    PriorValue::Same => OwnedValue::Same,
                    PriorValue::Whole(bytes) => OwnedValue::Whole(bytes.to_vec()),
                    PriorValue::Middle { front, back, middle } => {
                        OwnedValue::Middle(front, back, middle.to_vec())
                    }
                },
            },
        },
        Body::Chain { space, tree } => {
            Step::Chain { space: *space, tree: *tree, head: record.chain }
        }
        Body::Xid(_) => Step::Nothing,
    })
}

/// The record that a step undoes.
#[derive(Clone, Copy)]
pub(super) struct Undone {
    pub at: RollPointer,
    /// It is not the newest: it stays, with a mark.
    pub stays: bool,
}

/// A row that a step undoes a change of.
#[derive(Clone, Copy)]
struct Row<'a> {
    tree: &'a Tree,
    key: &'a [u8],
    /// If given, it lives on, and gets an explicit lock in the place of the implicit one.
    owner: Option<&'a Arc<Owner>>,
}

/// Steps of a background rollback before it lets DROP TABLE in, and looks whether it is to stop.
pub(super) const STEPS_A_TURN: usize = 64;

/// A rollback taken up. If an error, or a panic, keeps it from being finished, it is left to be
/// tried again, after all others: else its locks would stay for good.
struct LeftRollback<'a> {
    system: &'a TrxSystem,
    orphan: Option<Orphan>,
}

impl Drop for LeftRollback<'_> {
    fn drop(&mut self) {
        if let Some(orphan) = self.orphan.take() {
            self.system.doomed.lock().insert(0, orphan);
        }
    }
}

/// Trees used by one rollback.
#[derive(Default)]
pub(super) struct Trees {
    open: HashMap<u32, Option<Tree>>,
    /// Entries that are there again, less those that are gone; one with a delete mark is not there.
    entries: EntriesAdded,
}

impl Trees {
    fn add(&mut self, tree: &Tree, entries: i64) {
        if entries != 0 {
            *self.entries.entry(tree.id()).or_default() += entries;
        }
    }
}

/// By tree: how many entries something has added to it, negative if it took some away.
pub(crate) type EntriesAdded = HashMap<u32, i64>;

impl TrxSystem {
    /// Rolls back to `to`, for a session that waits for it. `owner`, if given, lives on: the
    /// entries that lose its implicit lock get an explicit one. Gives what that adds to each tree.
    pub(super) fn roll_back_to(
        &self,
        log: &mut UndoLog,
        to: UndoPosition,
        owner: Option<&Arc<Owner>>,
    ) -> Result<EntriesAdded> {
        let mut trees = Trees::default();
        self.with_retries(|progress| {
            // A file that could not be opened may be there now.
            trees.open.clear();
            while self.roll_back_step(log, to, &mut trees, owner)? {
                progress();
            }
            Ok(())
        })?;
        Ok(trees.entries)
    }

    /// Rolls everything back and ends the log, for a session that waits for it; the locks are still
    /// to be released.
    pub(super) fn roll_back(&self, log: &mut UndoLog) -> Result<()> {
        self.with_retries(|_| log.begin_rollback(&self.undo))?;
        self.roll_back_to(log, UndoPosition::START, None)?;
        self.with_retries(|_| self.end_rollback(log))
    }

    /// Ends a log that nothing is left in.
    fn end_rollback(&self, log: &mut UndoLog) -> Result<()> {
        log.finish_rollback(&self.undo)?;
        self.csn.rolled_back(log.trx_id());
        Ok(())
    }

    /// Undoes the newest record behind `to`; false if there is none.
    fn roll_back_step(
        &self,
        log: &mut UndoLog,
        to: UndoPosition,
        trees: &mut Trees,
        owner: Option<&Arc<Owner>>,
    ) -> Result<bool> {
        log.trim(&self.undo, to)?;
        if log.is_at(to) {
            return Ok(false);
        }
        if to != UndoPosition::START && log.records() <= to.records() {
            return Err(void_savepoint());
        }
        let (at, step) = log.newest(&self.undo, |at, record| (at, step_of(&record)))?;
        let step = step.ok_or_else(|| {
            self.undo.corrupt(at.page, "an undo log is shorter than its transaction")
        })?;
        pause::reach(PausePoint::UndoRecordRead);
        self.undo_step(log, Undone { at, stays: false }, &step, trees, owner)?;
        Ok(true)
    }

    /// Undoes a record, or a part of that: then it is as it was, except its marks.
    pub(super) fn undo_step(
        &self,
        log: &mut UndoLog,
        record: Undone,
        step: &Step,
        trees: &mut Trees,
        owner: Option<&Arc<Owner>>,
    ) -> Result<()> {
        match step {
            Step::Nothing => self.finish(log, record),
            Step::Chain { space, tree, head } => self.undo_chain(log, record, *space, *tree, *head),
            Step::Insert(place) => match self.tree_of(trees, place)? {
                Some(tree) => {
                    self.undo_insert(log, record, &tree, &place.key)?;
                    trees.add(&tree, -1);
                    Ok(())
                }
                None => self.finish(log, record),
            },
            Step::Restore { place, marks, chain, prior } => match self.tree_of(trees, place)? {
                None => self.finish(log, record),
                Some(tree) if marks & MARK_PRIOR_PURGED == 0 => {
                    let row = Row { tree: &tree, key: &place.key, owner };
                    let added = self.undo_change(log, record, row, prior)?;
                    trees.add(&tree, added);
                    Ok(())
                }
                Some(tree) => {
                    if marks & MARK_REMOVED == 0 {
                        let row = Row { tree: &tree, key: &place.key, owner };
                        let added = self.remove_for_good(log, record, row, (*marks, *chain))?;
                        trees.add(&tree, added);
                    }
                    match (*chain, marks & MARK_REMOVED) {
                        (0, 0) => Ok(()),
                        (0, _) => self.finish(log, record),
                        (head, _) => self.undo_chain(log, record, place.space, place.tree, head),
                    }
                }
            },
        }
    }

    fn tree_of(&self, trees: &mut Trees, place: &OwnedPlace) -> Result<Option<Tree>> {
        if let Some(tree) = trees.open.get(&place.tree) {
            return Ok(tree.clone());
        }
        let tree = self.tree_at(&place.as_place())?;
        trees.open.insert(place.tree, tree.clone());
        Ok(tree)
    }

    /// Notes that nothing of the record is left to be undone.
    fn finish(&self, log: &mut UndoLog, record: Undone) -> Result<()> {
        let mut mtr = Mtr::begin(&self.env)?;
        let page = log.latch(&self.undo, &mut mtr, record.at)?;
        self.note_undone(log, &mut mtr, page, record);
        mtr.commit();
        Ok(())
    }

    fn undo_chain(
        &self,
        log: &mut UndoLog,
        record: Undone,
        space: u32,
        tree: u32,
        head: u32,
    ) -> Result<()> {
        let space = match head {
            0 => None,
            _ => self.env.space_unless_dropped(space)?,
        };
        let Some(space) = space else { return self.finish(log, record) };
        overflow::free_tail(&self.env, &space, tree, head)?;
        let mut mtr = Mtr::begin(&self.env)?;
        let page = log.latch(&self.undo, &mut mtr, record.at)?;
        let mut allocation = Allocation::holding(&mut mtr, &space, &[head])?;
        self.note_undone(log, &mut mtr, page, record);
        overflow::free_head(&mut mtr, &mut allocation, &space, head);
        mtr.commit();
        Ok(())
    }

    fn undo_insert(
        &self,
        log: &mut UndoLog,
        record: Undone,
        tree: &Tree,
        key: &[u8],
    ) -> Result<()> {
        let mut mtr = Mtr::begin(&self.env)?;
        let leaf = tree.leaf_exclusive(key)?;
        let slot = self.own_entry(&leaf, key, log.trx_id())?;
        let page = log.latch(&self.undo, &mut mtr, record.at)?;
        let leaf = leaf.remove(&mut mtr, slot);
        self.note_undone(log, &mut mtr, page, record);
        let underfull = leaf.is_underfull(&mtr);
        mtr.commit();
        if underfull {
            tree.merge_if_possible(key);
        }
        Ok(())
    }

    /// Restores the version before; says how many entries that adds. If purge has passed that one
    /// since the record was read, nothing is done: the step is to begin anew.
    fn undo_change(
        &self,
        log: &mut UndoLog,
        record: Undone,
        Row { tree, key, owner }: Row<'_>,
        prior: &OwnedPrior,
    ) -> Result<i64> {
        let (mut value, mut payload) = (Vec::new(), Vec::new());
        loop {
            let mut mtr = Mtr::begin(&self.env)?;
            let leaf = tree.leaf_exclusive(key)?;
            let slot = self.own_entry(&leaf, key, log.trx_id())?;
            let entry = Entry::decode(leaf.payload_at(slot)).expect("checked");
            if entry.roll != record.at {
                return Err(self
                    .undo
                    .corrupt(record.at.page, "an entry does not lead to its newest undo record"));
            }
            value.clear();
            value.extend_from_slice(entry.value);
            prior.value.restore(&mut value).ok_or_else(|| {
                self.undo
                    .corrupt(record.at.page, "an undo record does not fit the entry it is about")
            })?;
            payload.clear();
            let (flags, trx_id, roll) = (prior.flags, prior.trx_id, prior.roll);
            let before = Entry { flags, trx_id, roll, value: &value };
            let added = i64::from(entry.is_deleted()) - i64::from(before.is_deleted());
            before.encode(&mut payload);
            if !leaf.fits_replaced(slot, payload.len()) {
                drop((leaf, mtr));
                // A rollback has to end even if the disk is full.
                self.env.with_ballast(|| tree.make_room(key, payload.len()))?;
                continue;
            }
            let page = log.latch(&self.undo, &mut mtr, record.at)?;
            // Purge sets the mark under the leaf's latch: what the record says now stays true.
            if marks_of(&mtr, page, record.at) & MARK_PRIOR_PURGED != 0 {
                return Ok(0);
            }
            if let Some(owner) = owner
                && trx_id != log.trx_id()
            {
                self.keep_locked(owner, tree, key);
            }
            leaf.replace(&mut mtr, slot, &payload);
            self.note_undone(log, &mut mtr, page, record);
            mtr.commit();
            return Ok(added);
        }
    }

    /// Gives `owner` an explicit lock on an entry that is about to lose its implicit one: under
    /// the leaf's latch, so that no thread finds it without a lock.
    fn keep_locked(&self, owner: &Arc<Owner>, tree: &Tree, key: &[u8]) {
        let alive = self.locks.keep(owner, tree.id(), key);
        debug_assert!(alive, "a transaction that has ended rolls back to a savepoint");
    }

    /// Undoes a change whose prior version, a delete-marked one, purge has passed: removes the
    /// entry; says how many that adds. If the prior version had a chain, the record stays until
    /// that is freed.
    fn remove_for_good(
        &self,
        log: &mut UndoLog,
        record: Undone,
        Row { tree, key, owner }: Row<'_>,
        (marks, chain): (u8, u32),
    ) -> Result<i64> {
        let mut mtr = Mtr::begin(&self.env)?;
        let leaf = tree.leaf_exclusive(key)?;
        let slot = self.own_entry(&leaf, key, log.trx_id())?;
        let was_deleted =
            Entry::decode(leaf.payload_at(slot)).is_some_and(|entry| entry.is_deleted());
        let page = log.latch(&self.undo, &mut mtr, record.at)?;
        if let Some(owner) = owner {
            // A SERIALIZABLE read may have locked that the key is absent.
            self.keep_locked(owner, tree, key);
        }
        let leaf = leaf.remove(&mut mtr, slot);
        if chain == 0 {
            self.note_undone(log, &mut mtr, page, record);
        } else {
            set_marks(&mut mtr, page, record.at, marks | MARK_REMOVED);
        }
        let underfull = leaf.is_underfull(&mtr);
        mtr.commit();
        if underfull {
            tree.merge_if_possible(key);
        }
        Ok(i64::from(was_deleted) - 1)
    }

    /// The slot of an entry that `id` must have written.
    fn own_entry(&self, leaf: &crate::btree::LeafMut<'_>, key: &[u8], id: TrxId) -> Result<usize> {
        let slot = leaf.find(key).ok().filter(|&slot| {
            Entry::decode(leaf.payload_at(slot)).is_some_and(|entry| entry.trx_id == id)
        });
        slot.ok_or_else(|| {
            let page = leaf.page_id();
            Error::corrupt(
                crate::files::space_file_name(page.space),
                page.no,
                format!("an entry that transaction {} wrote is missing", id.0),
            )
        })
    }

    /// Leaves a rollback to the background.
    pub(super) fn doom(&self, orphan: Orphan) {
        self.doomed.lock().push(orphan);
    }

    /// As [`Self::roll_back`], but letting DROP TABLE in now and then, and without patience. False
    /// if it stopped half-way, as `stop` asked for.
    fn roll_back_in_turns(&self, orphan: &mut Orphan, stop: &dyn Fn() -> bool) -> Result<bool> {
        let Orphan { log, retries, .. } = orphan;
        log.begin_rollback(&self.undo)?;
        loop {
            {
                let _tables = self.enter_tables();
                let mut trees = Trees::default();
                for _ in 0..STEPS_A_TURN {
                    if !self.roll_back_step(log, UndoPosition::START, &mut trees, None)? {
                        self.end_rollback(log)?;
                        return Ok(true);
                    }
                    retries.succeeded();
                }
            }
            if stop() {
                return Ok(false);
            }
        }
    }

    /// Finishes one rollback that recovery, or a failure, has left, even one that rests. False if
    /// there is none. After an error, it can be tried again.
    pub fn rollback_step(&self) -> Result<bool> {
        if self.leaves_unfinished() {
            return Ok(false);
        }
        let next = self.doomed.lock().pop();
        next.map_or(Ok(false), |orphan| self.go_on(orphan, &|| false))
    }

    /// As [`Self::rollback_step`], but passes over those that rest, and leaves off when `stop` says
    /// so: what is undone is cut off the log, so a later step, of this life or the next, goes on
    /// from there.
    pub(super) fn rollback_step_unless(&self, stop: &dyn Fn() -> bool) -> Result<bool> {
        if self.leaves_unfinished() {
            return Ok(false);
        }
        let now = Instant::now();
        let next = {
            let mut doomed = self.doomed.lock();
            let at = doomed.iter().rposition(|orphan| !orphan.retries.rests(now));
            at.map(|at| doomed.remove(at))
        };
        next.map_or(Ok(false), |orphan| self.go_on(orphan, stop))
    }

    /// Whether what earlier lives left unfinished stays so.
    fn leaves_unfinished(&self) -> bool {
        self.env.force_recovery() >= ForceRecovery::NoRollback
    }

    fn go_on(&self, orphan: Orphan, stop: &dyn Fn() -> bool) -> Result<bool> {
        let mut left = LeftRollback { system: self, orphan: Some(orphan) };
        let orphan = left.orphan.as_mut().expect("it was just put there");
        let is_done = self.roll_back_in_turns(orphan, stop).or_else(|error| {
            orphan.retries.failed(Instant::now(), self.retry_pause());
            self.block_if_it_lasts(orphan, error, stop)
        })?;
        let orphan = left.orphan.take().expect("it is there until now");
        match is_done {
            true => self.rolled_back(&orphan),
            false => self.doomed.lock().push(orphan),
        }
        Ok(true)
    }

    /// Nothing of the transaction is left.
    fn rolled_back(&self, orphan: &Orphan) {
        self.forget_xid(&orphan.xid);
        self.leave(&orphan.owner);
        self.counters.count_rollback();
    }

    /// Finishes the rollbacks that recovery has left of transactions on one tree, and of no others.
    /// (A transaction that also changed others is known by its last change.) Before the background
    /// begins.
    pub fn roll_back_recovered_of(&self, tree: u32) -> Result<()> {
        let orphans = std::mem::take(&mut *self.doomed.lock());
        let mut outcome = Ok(());
        for mut orphan in orphans {
            // If that can't be read, it is the background's trouble.
            let is_it =
                matches!(self.newest_tree(&mut orphan.log), Ok(Some(newest)) if newest == tree);
            if is_it && outcome.is_ok() {
                outcome = self
                    .with_retries(|_| self.roll_back_in_turns(&mut orphan, &|| false).map(drop));
                if outcome.is_ok() {
                    self.rolled_back(&orphan);
                    continue;
                }
            }
            self.doom(orphan);
        }
        outcome
    }

    /// The tree that the newest record of a log is about; none if there is no record, or it is
    /// about none.
    fn newest_tree(&self, log: &mut UndoLog) -> Result<Option<u32>> {
        log.trim(&self.undo, UndoPosition::START)?;
        if log.is_at(UndoPosition::START) {
            return Ok(None);
        }
        log.newest(&self.undo, |_, record| record.tree())
    }

    /// Frees the chain that the record at `at` names, of a committed log; the record forgets it.
    pub(super) fn free_recorded_chain(
        &self,
        at: RollPointer,
        stream: u32,
        tree: &Tree,
        head: u32,
    ) -> Result<()> {
        overflow::free_tail(&self.env, tree.space(), tree.id(), head)?;
        let mut mtr = Mtr::begin(&self.env)?;
        let page = self.undo.exclusive(&mut mtr, at.page, stream)?;
        let mut allocation = Allocation::holding(&mut mtr, tree.space(), &[head])?;
        set_chain(&mut mtr, page, at, 0);
        overflow::free_head(&mut mtr, &mut allocation, tree.space(), head);
        mtr.commit();
        Ok(())
    }

    /// XIDs of prepared transactions without a session.
    pub fn recovered_xids(&self) -> Vec<Vec<u8>> {
        self.prepared.lock().keys().cloned().collect()
    }

    /// The spaces that a prepared transaction without a session has changed, from its undo log;
    /// none if there is no such transaction.
    pub fn spaces_of_prepared(&self, xid: &[u8]) -> Result<HashSet<u32>> {
        match self.prepared.lock().get(xid) {
            Some(orphan) => orphan.log.spaces(&self.undo),
            None => Ok(HashSet::new()),
        }
    }

    /// Takes over a prepared transaction that has no session.
    pub fn take_prepared(self: &Arc<Self>, xid: &[u8]) -> Option<TransactionCore> {
        let orphan = self.prepared.lock().remove(xid)?;
        Some(TransactionCore::adopt(Arc::clone(self), orphan))
    }

    /// The transaction prepared under `xid` (empty: none) has ended: another may take it.
    pub(super) fn forget_xid(&self, xid: &[u8]) {
        if !xid.is_empty() {
            self.xids.lock().remove(xid);
        }
    }

    /// The XID in a prepared log: its newest record.
    pub(super) fn xid_of(&self, orphan: &Orphan) -> Result<Vec<u8>> {
        orphan.log.newest_shared(&self.undo, |at, record| match record.body {
            Body::Xid(xid) => Ok(xid.to_vec()),
            _ => Err(self.undo.corrupt(at.page, "a prepared transaction without an XID")),
        })?
    }

    /// A record has been undone, in the mini-transaction that has latched its page.
    fn note_undone(&self, log: &mut UndoLog, mtr: &mut Mtr<'_>, page: PageHandle, record: Undone) {
        match record.stays {
            false => log.cut(&self.undo, mtr, page, record.at),
            true => {
                set_marks(mtr, page, record.at, marks_of(mtr, page, record.at) | MARK_UNDONE);
            }
        }
    }
}
