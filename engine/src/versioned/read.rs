//! Reading one entry: which version the reader sees, and its value.

use std::sync::Arc;

use tidepool_pool::{Access, PageId};

use super::VersionedTree;
use crate::btree::{LeafRef, Seek};
use crate::csn::TrxId;
use crate::error::{Error, Result};
use crate::format::entry::{DELETED, Entry, OVERFLOW, OverflowReference, corrupt_entry};
use crate::lock::version_cache::Before;
use crate::lock::{LockMode, LockWait, Owner};
use crate::overflow;
use crate::pause::{self, PausePoint};
use crate::trx::view::ReadView;
use crate::trx::{Isolation, TransactionCore, TrxSystem};
use crate::undo::record::{Body, Skip};
use crate::undo::watch::Watch;

/// Versions that are passed under the leaf's latch. The rest of a long chain is walked without it:
/// each of these versions may take a read from the disk.
pub(super) const LATCHED_VERSIONS: usize = 32;
/// The most that are, after walks that were in vain: see [`latched_after`].
const LATCHED_VERSIONS_MAX: usize = 256;
/// Versions that are passed without the latch between two checks whether the reader was
/// interrupted.
const UNCHECKED_VERSIONS: usize = 1024;
/// The same, of an active transaction's versions, between two checks whether it has taken back what
/// the walk comes from. So far ahead of a rollback a walk must be not to begin anew.
const UNFINISHED_VERSIONS: usize = 256;

/// How many versions are passed under the latch after this number of walks in vain, each of which
/// had to begin anew because a rollback overtook it. The further a walk is ahead of the rollback
/// when it begins, the less likely that is again.
pub(super) fn latched_after(walks_in_vain: u32) -> usize {
    (LATCHED_VERSIONS << walks_in_vain.min(8)).min(LATCHED_VERSIONS_MAX)
}

/// A read of one entry of an index.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// The entry's key.
    pub key: &'a [u8],
    /// [`LockMode::None`] reads the version of the transaction's snapshot (at SERIALIZABLE such a
    /// read of a table locks as with [`LockMode::Shared`]). The others read the newest committed
    /// version and lock it.
    pub lock: LockMode,
    /// What a locking read does about an entry that another transaction has locked. With
    /// [`LockWait::SkipLocked`] the entry counts as absent.
    pub wait: LockWait,
    /// How the read uses the buffer pool: pages read for a scan do not displace those in use.
    pub access: Access,
    /// What is read of the value, and where it goes.
    pub value: ReadValue<'a>,
}

/// What a read gives of an entry's value.
#[derive(Debug)]
pub enum ReadValue<'a> {
    /// The whole value, in place of what the vector holds.
    Whole(&'a mut Vec<u8>),
    /// Of a value too long for a page, only what the entry itself holds of it (up to 256 bytes):
    /// the rest is on pages that are not read. Reads that lock give the whole value, and so do
    /// reads at READ UNCOMMITTED.
    Prefix {
        /// The value, or its beginning.
        bytes: &'a mut Vec<u8>,
        /// Whether more follows.
        is_cut: &'a mut bool,
    },
    /// Nothing: the read only says whether the entry exists.
    Nothing,
}

impl<'a> ReadRequest<'a> {
    /// A read of the whole value, as the snapshot has it.
    pub fn new(key: &'a [u8], value: &'a mut Vec<u8>) -> Self {
        Self::of(key, ReadValue::Whole(value))
    }

    /// The same, for whether the entry exists.
    pub fn presence(key: &'a [u8]) -> Self {
        Self::of(key, ReadValue::Nothing)
    }

    /// The same, with any part of the value.
    #[inline]
    pub fn of(key: &'a [u8], value: ReadValue<'a>) -> Self {
        let (lock, wait) = (LockMode::None, LockWait::Wait);
        ReadRequest { key, lock, wait, access: Access::Normal, value }
    }

    /// The same read, with a lock.
    #[must_use]
    #[inline]
    pub fn locked(self, lock: LockMode, wait: LockWait) -> Self {
        ReadRequest { lock, wait, ..self }
    }

    /// The same read, with another use of the buffer pool.
    #[must_use]
    #[inline]
    pub fn with_access(self, access: Access) -> Self {
        ReadRequest { access, ..self }
    }
}

/// The outcome of looking for the version that a view sees.
pub(super) enum Version {
    /// The version has these flags; none if the view sees no version, or a delete-mark.
    Found(Option<u8>),
    /// The visible version is further down the chain: call [`VersionQuery::walk`] without the
    /// leaf's latch.
    Older(Walk),
}

/// The outcome of a [`Walk`].
pub(super) enum Walked {
    /// As [`Version::Found`].
    Found(Option<u8>),
    /// Where the walk came from was taken back during it: look at the leaf again
    /// ([`VersionedTree::version_of`]).
    Gone,
}

/// What lies behind the versions of a transaction that has not ended.
pub(super) enum Ended {
    /// This version; none if there is none.
    Version(Option<Before>),
    /// It is far down the chain: call [`VersionQuery::behind`] without the leaf's latch.
    Further(Walk),
}

/// A version newer than the reader's view.
pub(super) struct Walk {
    at: Before,
    /// If an active transaction wrote that version.
    through: Option<Unfinished>,
}

/// A transaction that was active while the leaf was latched, and may take back what is walked
/// through.
struct Unfinished {
    owner: Arc<Owner>,
    /// Of what it has overwritten.
    epoch: u64,
    /// The record that the walk comes from.
    watch: Watch,
}

/// An entry in a leaf that the reader has latched.
#[derive(Clone, Copy)]
pub(super) struct LatchedEntry<'l> {
    pub page: PageId,
    pub slot: usize,
    pub payload: &'l [u8],
}

impl<'l> LatchedEntry<'l> {
    pub(super) fn of(leaf: &'l LeafRef<'_>, slot: usize) -> Self {
        LatchedEntry { page: leaf.page_id(), slot, payload: leaf.payload_at(slot) }
    }
}

/// What was found one step down a chain.
enum Passed {
    /// A version that the view does not see: keep walking.
    Unseen(Before),
    /// As [`Version::Found`].
    Found(Option<u8>),
}

/// Looks for the versions of a tree's entries that a transaction sees by a view.
pub(super) struct VersionQuery<'a> {
    tree: &'a VersionedTree,
    trx: &'a TransactionCore,
    view: ReadView,
    /// The reader's own versions are visible to it.
    own: TrxId,
}

impl<'a> VersionQuery<'a> {
    #[inline]
    pub(super) fn new(tree: &'a VersionedTree, trx: &'a TransactionCore, view: ReadView) -> Self {
        VersionQuery { tree, trx, view, own: trx.id() }
    }

    #[inline]
    fn system(&self) -> &TrxSystem {
        &self.trx.system
    }

    /// Whether a version by this transaction is visible.
    #[inline]
    pub(super) fn sees(&self, id: TrxId) -> bool {
        id == self.own || self.view.sees(&self.system().csn, id)
    }

    /// Puts the newest version that the view sees into `value`, or the one where a [`Walk`] begins,
    /// behind `latched_max` others. `key` gives the entry's key, which is asked for only if the
    /// newest version is not it.
    pub(super) fn visible(
        &self,
        latched: LatchedEntry<'_>,
        key: impl Fn() -> Vec<u8>,
        value: &mut Vec<u8>,
        latched_max: usize,
    ) -> Result<Version> {
        let LatchedEntry { page, slot, payload } = latched;
        let newest = Entry::decode(payload).ok_or_else(|| corrupt_entry(page, slot))?;
        let Entry { flags, trx_id, roll, value: newest_value } = newest;
        self.system().check_not_in_doubt(trx_id, roll)?;
        value.clear();
        if self.sees(trx_id) {
            if flags & DELETED != 0 {
                return Ok(Version::Found(None));
            }
            value.extend_from_slice(newest_value);
            return Ok(Version::Found(Some(flags)));
        }
        value.extend_from_slice(newest_value);
        self.older(&key(), Before::new(flags, trx_id, roll), value, latched_max)
    }

    /// Goes on from the newest version, which the view does not see. The leaf is latched.
    fn older(
        &self,
        key: &[u8],
        newest: Before,
        value: &mut Vec<u8>,
        latched_max: usize,
    ) -> Result<Version> {
        let mut at = newest;
        for _ in 0..latched_max {
            match self.pass(key, at, value)? {
                Passed::Unseen(before) => at = before,
                Passed::Found(found) => return Ok(Version::Found(found)),
            }
        }
        if at.roll.is_none() {
            return Ok(Version::Found(None));
        }
        // An active transaction's versions are taken back under the leaf's latch, and only so.
        // Behind them all versions are committed, and purge keeps them: the view is an open one,
        // and does not see them.
        let Some(owner) = self.active_owner(at.trx_id) else {
            return Ok(Version::Older(Walk { at, through: None }));
        };
        let before = match owner.version_cache.get(self.tree.id(), key, value) {
            Some(before) => before,
            None => {
                let through = Some(self.unfinished(owner, at)?);
                return Ok(Version::Older(Walk { at, through }));
            }
        };
        let Some(before) = before else { return Ok(Version::Found(None)) };
        Ok(match self.judge(at.trx_id, before) {
            Passed::Unseen(at) => Version::Older(Walk { at, through: None }),
            Passed::Found(found) => Version::Found(found),
        })
    }

    /// Goes on from where [`Self::visible`] left off, no latch held, and puts the version that the
    /// view sees into `value`. The view must have been open all the time. An interrupt ends the
    /// walk: for a row that is changed all the time an old view may have to pass millions of
    /// versions.
    pub(super) fn walk(&self, key: &[u8], walk: Walk, value: &mut Vec<u8>) -> Result<Walked> {
        let Walk { mut at, through } = walk;
        if let Some(through) = through {
            match self.pass_unfinished(key, at, through, value)? {
                None => return Ok(Walked::Gone),
                Some(None) => return Ok(Walked::Found(None)),
                Some(Some(before)) => match self.judge(at.trx_id, before) {
                    Passed::Unseen(before) => at = before,
                    Passed::Found(found) => return Ok(Walked::Found(found)),
                },
            }
        }
        for passed in 1.. {
            match self.pass(key, at, value)? {
                Passed::Unseen(before) => at = before,
                Passed::Found(found) => return Ok(Walked::Found(found)),
            }
            if passed % UNCHECKED_VERSIONS == 0 {
                self.trx.check_interrupt()?;
            }
        }
        unreachable!("a chain of versions has an end")
    }

    /// The newest version of an entry that no active transaction wrote; none if there is none, or
    /// the entry has none yet. It is found if it is among the first `latched_max` versions; else
    /// `value` gets that of the version where the [`Walk`] begins. The leaf is latched.
    pub(super) fn newest_ended(
        &self,
        key: &[u8],
        entry: &Entry<'_>,
        value: &mut Vec<u8>,
        latched_max: usize,
    ) -> Result<Ended> {
        let mut at = Before::of(entry);
        let Some(owner) = self.active_owner(at.trx_id) else {
            return Ok(Ended::Version(Some(at)));
        };
        if at.roll.is_none() {
            return Ok(Ended::Version(None));
        }
        if let Some(before) = owner.version_cache.get(self.tree.id(), key, value) {
            return Ok(Ended::Version(before));
        }
        value.clear();
        value.extend_from_slice(entry.value);
        for _ in 0..latched_max {
            match self.before(key, at, value)? {
                Some(before) if before.trx_id == at.trx_id => at = before,
                ended => return Ok(Ended::Version(ended)),
            }
        }
        if at.roll.is_none() {
            return Ok(Ended::Version(None));
        }
        let through = Some(self.unfinished(owner, at)?);
        Ok(Ended::Further(Walk { at, through }))
    }

    /// Goes on from where [`Self::newest_ended`] left off, no latch held; `None` if where it came
    /// from was taken back meanwhile.
    pub(super) fn behind(
        &self,
        key: &[u8],
        walk: Walk,
        value: &mut Vec<u8>,
    ) -> Result<Option<Option<Before>>> {
        let Walk { at, through } = walk;
        match through {
            Some(through) => self.pass_unfinished(key, at, through, value),
            None => Ok(Some(Some(at))),
        }
    }

    fn active_owner(&self, id: TrxId) -> Option<Arc<Owner>> {
        let system = self.system();
        if system.csn.is_active(id) { system.owner_of(id) } else { None }
    }

    fn unfinished(&self, owner: Arc<Owner>, at: Before) -> Result<Unfinished> {
        let epoch = owner.version_cache.epoch();
        Ok(Unfinished { owner, epoch, watch: self.system().undo.watch(at.roll)? })
    }

    /// From a version by an active transaction to the newest one that another transaction wrote,
    /// which is left for later readers; `Some(None)` if there is none. Or `None` if the active
    /// transaction has taken back the version that the walk came from, and maybe what was walked
    /// through: then nothing read there counts. No latch is held.
    ///
    /// As long as a version is there, so are all before it. So the walk notes now and then which
    /// one it has come to, and goes on from there whatever was taken back behind it.
    fn pass_unfinished(
        &self,
        key: &[u8],
        mut at: Before,
        mut through: Unfinished,
        value: &mut Vec<u8>,
    ) -> Result<Option<Option<Before>>> {
        let (id, mut passed) = (at.trx_id, 0);
        let outcome = loop {
            match self.before(key, at, value) {
                Ok(Some(before)) if before.trx_id == id => at = before,
                outcome => break outcome,
            }
            passed += 1;
            if passed % UNFINISHED_VERSIONS == 0 {
                self.trx.check_interrupt()?;
                if !at.roll.is_none() && !through.watch.move_to(at.roll) {
                    return Ok(None);
                }
            }
        };
        if through.watch.is_cut() {
            return Ok(None);
        }
        let before = outcome?;
        through.owner.version_cache.leave(through.epoch, self.tree.id(), key, before, value);
        Ok(Some(before))
    }

    /// From a version that the view does not see to the one before, or past others that it does not
    /// see to one whose undo record has a skip pointer.
    fn pass(&self, key: &[u8], at: Before, value: &mut Vec<u8>) -> Result<Passed> {
        let place = (self.tree.id(), key);
        let Some((before, skip)) = version_before(self.system(), place, at, value)? else {
            return Ok(Passed::Found(None));
        };
        let passed = self.judge(at.trx_id, before);
        let is_unseen = |id: TrxId| id == before.trx_id || !self.sees(id);
        Ok(match (passed, skip) {
            (Passed::Unseen(_), Some(Skip { trx_id, roll }))
                if !roll.is_none() && is_unseen(trx_id) =>
            {
                Passed::Unseen(Before { flags: 0, trx_id, roll, is_skipped_to: true })
            }
            (passed, _) => passed,
        })
    }

    /// Whether the view sees a version. It does not see the one after it, which `newer` wrote. If
    /// `newer` wrote this one as well, the view sees neither, even if `newer` has committed in
    /// between.
    fn judge(&self, newer: TrxId, version: Before) -> Passed {
        let Before { flags, trx_id, .. } = version;
        match trx_id != newer && self.sees(trx_id) {
            true => Passed::Found((flags & DELETED == 0).then_some(flags)),
            false => Passed::Unseen(version),
        }
    }

    fn before(&self, key: &[u8], at: Before, value: &mut Vec<u8>) -> Result<Option<Before>> {
        let before = version_before(self.system(), (self.tree.id(), key), at, value)?;
        Ok(before.map(|(before, _)| before))
    }
}

/// The version before `at` of the entry with this tree and key, and the skip pointer of the record
/// between them; `value` holds the value of `at` and gets that of the version before. None if there
/// is none.
pub(super) fn version_before(
    system: &TrxSystem,
    (tree, key): (u32, &[u8]),
    at: Before,
    value: &mut Vec<u8>,
) -> Result<Option<(Before, Option<Skip>)>> {
    let roll = at.roll;
    if roll.is_none() {
        return Ok(None);
    }
    pause::reach(PausePoint::VersionPassed);
    let undo = &system.undo;
    undo.read(roll, |record| {
        let (Body::Update(place, prior) | Body::Delete(place, prior)) = record.body else {
            let why = "a roll pointer leads to a record of no older version";
            return Err(undo.corrupt(roll.page, why));
        };
        if place.tree != tree || place.key != key {
            let why = "a roll pointer leads to a record of another entry";
            return Err(undo.corrupt(roll.page, why));
        }
        if at.is_skipped_to && record.skip.is_none() {
            let why = "a skip pointer leads to a record without one";
            return Err(undo.corrupt(roll.page, why));
        }
        prior.value.restore(value).ok_or_else(|| {
            undo.corrupt(roll.page, "an undo record does not fit the version it undoes")
        })?;
        Ok(Some((Before::new(prior.flags, prior.trx_id, prior.roll), record.skip)))
    })
}

impl VersionedTree {
    /// Reads an entry; false if there is none.
    ///
    /// Without a lock the read sees what the transaction's view sees. With one it locks the entry
    /// and gives its newest version. In SERIALIZABLE, it locks the absence of the entry as well.
    ///
    /// # Errors
    /// [`Error::MustRollback`], [`Error::ReadOnly`] if the transaction can go no further; of a
    /// locking read, what [`crate::lock`] says; damage of pages.
    pub fn read(&self, trx: &mut TransactionCore, request: ReadRequest<'_>) -> Result<bool> {
        trx.check_running()?;
        if request.lock != LockMode::None {
            let found = self.locking_read(trx, request);
            return found.map_err(|error| trx.note(error));
        }
        let ReadRequest { key, access, value, .. } = request;
        let view = trx.read_view();
        match value {
            ReadValue::Whole(value) => {
                let found = self.version_of(trx, view, (key, access), value)?;
                let Some(flags) = found else { return Ok(false) };
                // The view keeps the overflow chain of what it sees.
                self.complete(flags, value)?;
                Ok(true)
            }
            ReadValue::Prefix { bytes, is_cut } => {
                let found = self.version_of(trx, view, (key, access), bytes)?;
                let Some(flags) = found else { return Ok(false) };
                *is_cut = self.cut(flags, bytes)?;
                Ok(true)
            }
            ReadValue::Nothing => {
                let found = self.version_of(trx, view, (key, access), &mut Vec::new())?;
                Ok(found.is_some())
            }
        }
    }

    /// Puts the version that `view` sees of the entry with this key into `value`. Gives its flags;
    /// none if there is no such version, or it is a delete-mark.
    pub(super) fn version_of(
        &self,
        trx: &TransactionCore,
        view: ReadView,
        (key, access): (&[u8], Access),
        value: &mut Vec<u8>,
    ) -> Result<Option<u8>> {
        let query = VersionQuery::new(self, trx, view);
        for walks_in_vain in 0.. {
            let latched_max = latched_after(walks_in_vain);
            let version = {
                let leaf = self.tree.leaf_shared(Seek::Key(key), access)?;
                let version = match leaf.find_covered(key) {
                    Ok(slot) => {
                        let entry = LatchedEntry::of(&leaf, slot);
                        query.visible(entry, || key.to_vec(), value, latched_max)?
                    }
                    Err(_) => Version::Found(None),
                };
                match version {
                    // A rollback frees the overflow chain of an uncommitted version, but not before
                    // it has taken the version out of the leaf.
                    Version::Found(Some(flags))
                        if trx.isolation() == Isolation::ReadUncommitted =>
                    {
                        self.complete(flags, value)?;
                        Version::Found(Some(flags & !OVERFLOW))
                    }
                    version => version,
                }
            };
            let walked = match version {
                Version::Found(flags) => Walked::Found(flags),
                Version::Older(walk) => query.walk(key, walk, value)?,
            };
            if let Walked::Found(flags) = walked {
                return Ok(flags);
            }
            trx.check_interrupt()?;
        }
        unreachable!("it begins anew as often as it must")
    }

    fn reference<'a>(&self, flags: u8, value: &'a [u8]) -> Result<OverflowReference<'a>> {
        let reference = OverflowReference::of(flags, value);
        reference.filter(|r| r.head.len() as u64 <= r.total_len).ok_or_else(|| {
            let file = self.tree.space().name().to_string();
            Error::corrupt(file, self.tree.root(), "an overflow reference cut short")
        })
    }

    /// Replaces an overflow reference by the value it stands for.
    pub(super) fn complete(&self, flags: u8, value: &mut Vec<u8>) -> Result<()> {
        if flags & OVERFLOW == 0 {
            return Ok(());
        }
        let reference = self.reference(flags, value)?;
        let len = reference.total_len - reference.head.len() as u64;
        let chain = overflow::Chain { tree_id: self.id(), head: reference.first_page, len };
        let mut whole = reference.head.to_vec();
        // Not more than a page ahead of what is really there: the length may be damaged.
        whole.reserve(usize::try_from(len).unwrap_or(0).min(16 << 20));
        overflow::read(self.tree.env(), self.tree.space(), chain, &mut whole)?;
        *value = whole;
        Ok(())
    }

    /// Replaces an overflow reference by the prefix of the value that the entry holds. Gives
    /// whether more follows.
    pub(super) fn cut(&self, flags: u8, value: &mut Vec<u8>) -> Result<bool> {
        if flags & OVERFLOW == 0 {
            return Ok(false);
        }
        let reference = self.reference(flags, value)?;
        let is_cut = (reference.head.len() as u64) < reference.total_len;
        let reference_len = value.len() - reference.head.len();
        value.drain(..reference_len);
        Ok(is_cut)
    }
}
