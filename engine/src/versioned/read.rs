//! Which version a reader sees, and its value.

use std::sync::Arc;

use tidepool_pool::PageId;

use super::{VersionedTree, corrupt_entry};
use crate::btree::{LeafRef, Seek};
use crate::csn::TrxId;
use crate::error::{Error, Result};
use crate::format::entry::{DELETED, Entry, OVERFLOW, OverflowReference};
use crate::lock::overwritten::Before;
use crate::lock::{LockMode, LockWait, Owner};
use crate::overflow;
use crate::pause::{self, PausePoint};
use crate::trx::view::ReadView;
use crate::trx::{Isolation, TransactionCore, TrxSystem};
use crate::undo::record::Body;

/// Versions that are passed under the leaf's latch. The rest of a long chain is walked without: every one may take a read from the disk.
const LATCHED_VERSIONS: usize = 32;
/// Versions that are passed without the latch before it is asked whether the reader is to go on; and, of those of an active transaction,
/// whether it has taken any back.
const UNASKED_VERSIONS: usize = 1024;
/// How often a reader begins anew because that is so; then it holds the latch.
const UNLATCHED_WALKS: usize = 3;

/// The outcome of looking for the version that a view sees.
pub(super) enum Version {
    /// It is this, with these flags; none if there is none or it is a delete-mark.
    Found(Option<u8>),
    /// It is farther back: to be had by [`TrxSystem::walk`], without a latch.
    Older(Walk),
}

/// The outcome of a [`Walk`].
pub(super) enum Walked {
    /// As [`Version::Found`].
    Found(Option<u8>),
    /// The versions have gone meanwhile: the leaf is to be looked at again ([`TransactionCore::version_of`]).
    Gone,
}

/// A version that is not the one yet.
pub(super) struct Walk {
    at: Before,
    /// If that is by a transaction that is active.
    through: Option<Unfinished>,
}

/// A transaction that was active while the leaf was latched, and may take back what is walked through.
struct Unfinished {
    owner: Arc<Owner>,
    /// Of what it has overwritten.
    epoch: u64,
    /// Its undo log's stream, and what was cut off there by then.
    stream: u32,
    cuts: u64,
}

impl TrxSystem {
    /// Puts the newest version of `payload` that `view` sees into `value`, or one from where a [`Walk`] goes on. The leaf must be latched.
    /// With `latched`, what others have written and may take back is all passed here.
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
        latched: bool,
    ) -> Result<Version> {
        let newest = Entry::decode(payload).ok_or_else(|| corrupt_entry(page, slot))?;
        let Entry { flags, trx_id, roll, value: newest_value } = newest;
        self.check_not_in_doubt(trx_id, roll)?;
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
        let mut at = Before { flags, trx_id, roll };
        for _ in 0..LATCHED_VERSIONS {
            match self.pass(tree, view, own, &key, at, value)? {
                Passed::Unseen(before) => at = before,
                Passed::Found(found) => return Ok(Version::Found(found)),
            }
        }
        if at.roll.is_none() {
            return Ok(Version::Found(None));
        }
        // What an active transaction has written is taken back under the leaf's latch, and only so. Behind that, all is committed, and
        // purge keeps it: `view` is an open one, and does not see it.
        let owner = if self.csn.is_active(at.trx_id) { self.owner_of(at.trx_id) } else { None };
        let Some(owner) = owner else { return Ok(Version::Older(Walk { at, through: None })) };
        let before = match owner.overwritten.get(tree.id(), &key, value) {
            Some(before) => before,
            None => {
                let stream = self.undo.stream_of(at.roll)?;
                let (epoch, cuts) = (owner.overwritten.epoch(), self.undo.cuts(stream));
                let through = Unfinished { owner, epoch, stream, cuts };
                if !latched {
                    return Ok(Version::Older(Walk { at, through: Some(through) }));
                }
                let (has_cut, go_on) = (|| false, || Ok(()));
                let passed = self.pass_all(tree, &key, at, &through, has_cut, go_on, value)?;
                passed.expect("nothing is gone")
            }
        };
        let Some(before) = before else { return Ok(Version::Found(None)) };
        Ok(match self.judge(view, own, at.trx_id, before) {
            Passed::Unseen(at) => Version::Older(Walk { at, through: None }),
            Passed::Found(found) => Version::Found(found),
        })
    }

    /// Goes on from where [`Self::visible_version`] has left off, no latch held, and puts the version that `view` sees into `value`. `view`
    /// must have been open all the time. `go_on` is asked now and then, and ends it by an error.
    #[expect(clippy::too_many_arguments, reason = "an entry, and who looks at it")]
    fn walk(
        &self,
        tree: &VersionedTree,
        view: &ReadView,
        own: TrxId,
        key: &[u8],
        walk: Walk,
        value: &mut Vec<u8>,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<Walked> {
        let Walk { mut at, through } = walk;
        if let Some(through) = through {
            let has_cut = || self.undo.cuts(through.stream) != through.cuts;
            match self.pass_all(tree, key, at, &through, has_cut, &go_on, value)? {
                None => return Ok(Walked::Gone),
                Some(None) => return Ok(Walked::Found(None)),
                Some(Some(before)) => match self.judge(view, own, at.trx_id, before) {
                    Passed::Unseen(before) => at = before,
                    Passed::Found(found) => return Ok(Walked::Found(found)),
                },
            }
        }
        for passed in 1.. {
            match self.pass(tree, view, own, key, at, value)? {
                Passed::Unseen(before) => at = before,
                Passed::Found(found) => return Ok(Walked::Found(found)),
            }
            if passed % UNASKED_VERSIONS == 0 {
                go_on()?;
            }
        }
        unreachable!("a chain of versions has an end")
    }

    /// From a version by an active transaction to the newest that is not by it, which is left for others; `Some(None)` if there is none. Or
    /// `None`, if `has_cut` says that it may have taken back what was walked through: then whatever was read there means nothing.
    #[expect(clippy::too_many_arguments, reason = "an entry, and who looks at it")]
    fn pass_all(
        &self,
        tree: &VersionedTree,
        key: &[u8],
        mut at: Before,
        through: &Unfinished,
        has_cut: impl Fn() -> bool,
        go_on: impl Fn() -> Result<()>,
        value: &mut Vec<u8>,
    ) -> Result<Option<Option<Before>>> {
        let (id, mut passed) = (at.trx_id, 0);
        let outcome = loop {
            match self.before(tree.id(), key, at, value) {
                Ok(Some(before)) if before.trx_id == id => at = before,
                outcome => break outcome,
            }
            passed += 1;
            if passed % UNASKED_VERSIONS == 0 {
                go_on()?;
                if has_cut() {
                    return Ok(None);
                }
            }
        };
        if has_cut() {
            return Ok(None);
        }
        let before = outcome?;
        through.owner.overwritten.leave(through.epoch, tree.id(), key, before, value);
        Ok(Some(before))
    }

    /// From a version to the one before.
    fn pass(
        &self,
        tree: &VersionedTree,
        view: &ReadView,
        own: TrxId,
        key: &[u8],
        at: Before,
        value: &mut Vec<u8>,
    ) -> Result<Passed> {
        Ok(match self.before(tree.id(), key, at, value)? {
            None => Passed::Found(None),
            Some(before) => self.judge(view, own, at.trx_id, before),
        })
    }

    /// Whether a version is the one; that behind it, by the transaction `newer`, is not. If that is by the same transaction, neither is
    /// this, even if it has been committed in between.
    fn judge(&self, view: &ReadView, own: TrxId, newer: TrxId, version: Before) -> Passed {
        let Before { flags, trx_id, .. } = version;
        match trx_id != newer && (trx_id == own || view.sees(&self.csn, trx_id)) {
            true => Passed::Found((flags & DELETED == 0).then_some(flags)),
            false => Passed::Unseen(version),
        }
    }

    /// The version before, whose value is made of that of `at`; none if there is none.
    pub(super) fn before(
        &self,
        tree: u32,
        key: &[u8],
        at: Before,
        value: &mut Vec<u8>,
    ) -> Result<Option<Before>> {
        let roll = at.roll;
        if roll.is_none() {
            return Ok(None);
        }
        pause::reach(PausePoint::VersionPassed);
        self.undo.read(roll, |record| {
            let (Body::Update(place, prior) | Body::Delete(place, prior)) = record.body else {
                let why = "a roll pointer leads to a record of no older version";
                return Err(self.undo.corrupt(roll.page, why));
            };
            if place.tree != tree || place.key != key {
                let why = "a roll pointer leads to a record of another entry";
                return Err(self.undo.corrupt(roll.page, why));
            }
            prior.value.restore(value).ok_or_else(|| {
                self.undo.corrupt(roll.page, "an undo record does not fit the version it undoes")
            })?;
            Ok(Some(Before { flags: prior.flags, trx_id: prior.trx_id, roll: prior.roll }))
        })
    }
}

/// What a version that was come to is.
enum Passed {
    /// Newer than the one.
    Unseen(Before),
    /// As [`Version::Found`].
    Found(Option<u8>),
}

impl VersionedTree {
    fn reference<'a>(&self, flags: u8, value: &'a [u8]) -> Result<OverflowReference<'a>> {
        let reference = OverflowReference::of(flags, value);
        reference.filter(|r| r.head.len() as u64 <= r.total_len).ok_or_else(|| {
            let file = self.tree.space().file().name().to_string();
            Error::corrupt(file, self.tree.root(), "an overflow reference cut short")
        })
    }

    /// Replaces an overflow reference by the value it stands for.
    pub(super) fn complete(&self, flags: u8, value: &mut Vec<u8>) -> Result<()> {
        if flags & OVERFLOW == 0 {
            return Ok(());
        }
        let reference = self.reference(flags, value)?;
        let (first, rest) =
            (reference.first_page, reference.total_len - reference.head.len() as u64);
        let mut whole = reference.head.to_vec();
        // Not more than a page ahead of what is really there: the length may be damaged.
        whole.reserve(usize::try_from(rest).unwrap_or(0).min(16 << 20));
        overflow::read(self.tree.env(), self.tree.space(), self.id(), first, rest, &mut whole)?;
        *value = whole;
        Ok(())
    }

    /// Replaces an overflow reference by the beginning of the value, as far as the entry has it. Whether more follows.
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

impl TransactionCore {
    /// Whether a consistent read sees a version by this transaction, which may be itself.
    #[inline]
    pub(super) fn sees(&self, view: &ReadView, id: TrxId) -> bool {
        id == self.id() || view.sees(&self.system.csn, id)
    }

    /// Looks for the version that `view` sees of the entry with this key, which is in `leaf` if there is one.
    fn visible_in(
        &self,
        leaf: &LeafRef<'_>,
        tree: &VersionedTree,
        view: &ReadView,
        key: &[u8],
        value: &mut Vec<u8>,
        latched: bool,
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
            latched,
        )
    }

    /// As [`TrxSystem::walk`], until an interrupt comes: of a row that is changed without end the versions that an old view has to pass may
    /// be millions.
    pub(super) fn walk(
        &self,
        tree: &VersionedTree,
        view: &ReadView,
        key: &[u8],
        walk: Walk,
        value: &mut Vec<u8>,
    ) -> Result<Walked> {
        let go_on = || self.check_interrupt();
        self.system.walk(tree, view, self.id(), key, walk, value, go_on)
    }

    /// Puts the version that `view` sees of the entry with this key into `value`; its flags, or none if there is none or it is a delete-mark.
    pub(super) fn version_of(
        &self,
        tree: &VersionedTree,
        view: &ReadView,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<u8>> {
        let dirty = self.isolation() == Isolation::ReadUncommitted;
        for walks in 0.. {
            let latched = walks == UNLATCHED_WALKS;
            let version = {
                let leaf = tree.tree.leaf_shared(Seek::Key(key), self.access)?;
                match self.visible_in(&leaf, tree, view, key, value, latched)? {
                    // A rollback frees the chain of an uncommitted version, but not before it has taken it out of the leaf.
                    Version::Found(Some(flags)) if dirty => {
                        tree.complete(flags, value)?;
                        Version::Found(Some(flags & !OVERFLOW))
                    }
                    version => version,
                }
            };
            let walked = match version {
                Version::Found(flags) => Walked::Found(flags),
                Version::Older(walk) => self.walk(tree, view, key, walk, value)?,
            };
            if let Walked::Found(flags) = walked {
                return Ok(flags);
            }
        }
        unreachable!("what is passed under the latch is not gone")
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
            let found = self.locking_get(tree, key, mode, wait, Some(value));
            return found.map_err(|error| self.note(error));
        }
        let view = self.read_view();
        let Some(flags) = self.version_of(tree, &view, key, value)? else { return Ok(false) };
        // The view keeps the chain of what it sees.
        tree.complete(flags, value)?;
        Ok(true)
    }

    /// As [`get`](Self::get) without a lock, but of a long value only the beginning, as far as the entry has it: what follows is on pages of
    /// its own. Whether the value was cut; none if there is no entry.
    pub fn get_head(
        &mut self,
        tree: &VersionedTree,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<bool>> {
        self.check_running()?;
        let view = self.read_view();
        let Some(flags) = self.version_of(tree, &view, key, value)? else { return Ok(None) };
        tree.cut(flags, value).map(Some)
    }

    /// As [`get`](Self::get), of an entry of which nothing is asked but whether it is there.
    pub fn find(
        &mut self,
        tree: &VersionedTree,
        key: &[u8],
        mode: LockMode,
        wait: LockWait,
    ) -> Result<bool> {
        self.check_running()?;
        if mode != LockMode::None {
            let found = self.locking_get(tree, key, mode, wait, None);
            return found.map_err(|error| self.note(error));
        }
        let view = self.read_view();
        Ok(self.version_of(tree, &view, key, &mut Vec::new())?.is_some())
    }
}
