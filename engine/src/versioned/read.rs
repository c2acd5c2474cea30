//! Which version a reader sees, and its value.

use tidepool_pool::PageId;

use super::entry::{DELETED, Entry, OVERFLOW, OverflowReference};
use super::{VersionedTree, corrupt_entry};
use crate::btree::{LeafRef, Seek};
use crate::error::{Error, Result};
use crate::lock::{LockMode, LockWait};
use crate::overflow;
use crate::pause::{self, PausePoint};
use crate::trx::csn::TrxId;
use crate::trx::view::ReadView;
use crate::trx::{Isolation, Transaction, TrxSystem};
use crate::undo::RollPointer;
use crate::undo::record::Body;

/// Versions that are passed under the leaf's latch. The rest of a long chain, which an old view makes purge keep, is walked without:
/// every one may take a read from the disk.
const LATCHED_VERSIONS: usize = 32;

/// The outcome of looking for the version that a view sees.
pub(super) enum Version {
    /// It is this, with these flags; none if there is none or it is a delete-mark.
    Found(Option<u8>),
    /// It is farther back: to be had by [`TrxSystem::walk`], without a latch.
    Older(Walk),
}

/// A version that is not the one yet.
pub(super) struct Walk {
    trx_id: TrxId,
    roll: RollPointer,
}

impl TrxSystem {
    /// Puts the newest version of `payload` that `view` sees into `value`, or one from where a [`Walk`] goes on. The leaf must be latched.
    #[expect(clippy::too_many_arguments, reason = "an entry, and who looks at it")]
    pub(super) fn visible_version(
        &self,
        tree: &VersionedTree,
        view: &ReadView,
        own: TrxId,
        key: impl Fn() -> Vec<u8>,
        page: PageId,
        slot: usize,
        payload: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Version> {
        let newest = Entry::decode(payload).ok_or_else(|| corrupt_entry(page, slot))?;
        let Entry { flags, trx_id, roll, value: newest_value } = newest;
        value.clear();
        if trx_id == own || view.sees(&self.csn, trx_id) {
            if flags & DELETED != 0 {
                return Ok(Version::Found(None));
            }
            value.extend_from_slice(newest_value);
            return Ok(Version::Found(Some(flags)));
        }
        let key = key();
        value.extend_from_slice(newest_value);
        let mut walk = Walk { trx_id, roll };
        let mut passed = 0;
        // What an active transaction has written is taken back under the leaf's latch, and only so. Behind that, all is committed, and
        // purge keeps it: `view` is an open one, and does not see it.
        while passed < LATCHED_VERSIONS || self.csn.is_active(walk.trx_id) {
            if let Some(found) = self.pass(tree, view, own, &key, &mut walk, value)? {
                return Ok(Version::Found(found));
            }
            passed += 1;
        }
        Ok(Version::Older(walk))
    }

    /// Goes on from where [`Self::visible_version`] has left off, no latch held; the flags of the version then in `value`, or none if there
    /// is none or it is a delete-mark. `view` must have been open all the time.
    pub(super) fn walk(
        &self,
        tree: &VersionedTree,
        view: &ReadView,
        own: TrxId,
        key: &[u8],
        mut walk: Walk,
        value: &mut Vec<u8>,
    ) -> Result<Option<u8>> {
        loop {
            if let Some(found) = self.pass(tree, view, own, key, &mut walk, value)? {
                return Ok(found);
            }
        }
    }

    /// From a version to the one before. What [`Self::walk`] gives, if that is it, or there is none.
    fn pass(
        &self,
        tree: &VersionedTree,
        view: &ReadView,
        own: TrxId,
        key: &[u8],
        walk: &mut Walk,
        value: &mut Vec<u8>,
    ) -> Result<Option<Option<u8>>> {
        let roll = walk.roll;
        if roll.is_none() {
            return Ok(Some(None));
        }
        pause::reach(PausePoint::VersionPassed);
        let flags = self.undo.read(roll, |record| {
            let (Body::Update(place, prior) | Body::Delete(place, prior)) = record.body else {
                let why = "a roll pointer leads to a record of no older version";
                return Err(self.undo.corrupt(roll.page, why));
            };
            if place.tree != tree.id() || place.key != key {
                let why = "a roll pointer leads to a record of another entry";
                return Err(self.undo.corrupt(roll.page, why));
            }
            prior.value.restore(value).ok_or_else(|| {
                self.undo.corrupt(roll.page, "an undo record does not fit the version it undoes")
            })?;
            *walk = Walk { trx_id: prior.trx_id, roll: prior.roll };
            Ok(prior.flags)
        })?;
        let is_it = walk.trx_id == own || view.sees(&self.csn, walk.trx_id);
        Ok(is_it.then(|| (flags & DELETED == 0).then_some(flags)))
    }
}

impl VersionedTree {
    /// Replaces an overflow reference by the value it stands for.
    pub(super) fn complete(&self, flags: u8, value: &mut Vec<u8>) -> Result<()> {
        if flags & OVERFLOW == 0 {
            return Ok(());
        }
        let reference = OverflowReference::of(flags, value);
        let reference =
            reference.filter(|r| r.head.len() as u64 <= r.total_len).ok_or_else(|| {
                let file = self.tree.space().file().name().to_string();
                Error::corrupt(file, self.tree.root(), "an overflow reference cut short")
            })?;
        let (first, rest) =
            (reference.first_page, reference.total_len - reference.head.len() as u64);
        let mut whole = reference.head.to_vec();
        // Not more than a page ahead of what is really there: the length may be damaged.
        whole.reserve(usize::try_from(rest).unwrap_or(0).min(16 << 20));
        overflow::read(self.tree.env(), self.tree.space(), self.id(), first, rest, &mut whole)?;
        *value = whole;
        Ok(())
    }
}

impl Transaction {
    /// Looks for the version that `view` sees of the entry with this key, which is in `leaf` if there is one.
    pub(super) fn visible_in(
        &self,
        leaf: &LeafRef<'_>,
        tree: &VersionedTree,
        view: &ReadView,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Version> {
        let Ok(slot) = leaf.find_covered(key) else { return Ok(Version::Found(None)) };
        self.system.visible_version(
            tree,
            view,
            self.id(),
            || key.to_vec(),
            leaf.page_id(),
            slot,
            leaf.payload_at(slot),
            value,
        )
    }

    /// Reads the entry with this key into `value`; false if there is none.
    ///
    /// With [`LockMode::None`]: as the transaction's view sees it, without any lock. Else: locks the entry and gives its
    /// newest version; with [`LockWait::SkipLocked`], an entry that is locked is not there. In SERIALIZABLE, the
    /// absence of the entry is locked as well.
    pub fn get(
        &mut self,
        tree: &VersionedTree,
        key: &[u8],
        mode: LockMode,
        wait: LockWait,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        self.check_running()?;
        if mode != LockMode::None {
            let found = self.locking_get(tree, key, mode, wait, value);
            return found.map_err(|error| self.note(error));
        }
        let view = self.read_view();
        let dirty = self.isolation() == Isolation::ReadUncommitted;
        let version = {
            let leaf = tree.tree.leaf_shared(Seek::Key(key), self.access)?;
            match self.visible_in(&leaf, tree, &view, key, value)? {
                // A rollback frees the chain of an uncommitted version, but not before it has taken it out of the leaf.
                Version::Found(Some(flags)) if dirty => {
                    tree.complete(flags, value)?;
                    Version::Found(Some(0))
                }
                version => version,
            }
        };
        let flags = match version {
            Version::Found(flags) => flags,
            Version::Older(walk) => self.system.walk(tree, &view, self.id(), key, walk, value)?,
        };
        let Some(flags) = flags else { return Ok(false) };
        // The view keeps the chain of what it sees.
        tree.complete(flags, value)?;
        Ok(true)
    }
}
