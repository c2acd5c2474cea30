//! Purge of a deletion that an active transaction has overwritten: finds the undo record of the
//! overwriting change, which gets [`MARK_PRIOR_PURGED`].
//!
//! The transaction may have changed the row a million times since. So only its newest versions are
//! passed under the latch on the entry's leaf. The others are walked without a latch, and without
//! keeping DROP TABLE out; the transaction may take back what is walked through, and other
//! transactions may use the pages. So purge looks again under the latch at the record that such a
//! walk has found: there the transaction cannot take the entry back, and the record must begin
//! there and still say that it overwrote that very deletion.
//!
//! If no record was cut meanwhile, or several walks agree, purge concludes that no transaction
//! overwrote the row. That is wrong only if bytes in the middle of a record look like a record; the
//! price is one entry with a delete-mark that stays.

use super::system::TrxSystem;
use crate::btree::LeafMut;
use crate::csn::TrxId;
use crate::error::{Error, Result};
use crate::format::entry::{DELETED, Entry, RollPointer};
use crate::mtr::Mtr;
use crate::pause::{self, PausePoint};
use crate::undo::log::set_marks;
use crate::undo::record::{Body, MARK_PRIOR_PURGED, MARK_UNDONE, Record};

/// Versions that are passed under the leaf's latch.
const LATCHED_VERSIONS: usize = 32;
/// Versions that are passed without it before it is asked whether purge is to stop.
const UNASKED_VERSIONS: usize = 1024;
/// Walks without a finding, until that is believed though records were taken back meanwhile.
const WALKS: u32 = 3;

/// A delete mark on an entry.
#[derive(Clone, Copy)]
pub(super) struct Deletion<'a> {
    /// Whose it is: committed.
    pub id: TrxId,
    /// Its undo record.
    pub at: RollPointer,
    pub tree: u32,
    pub key: &'a [u8],
}

/// A way back through an active transaction's versions that is too long to be gone with a latch in
/// hand.
pub(super) struct Walk {
    /// The transaction.
    by: TrxId,
    from: RollPointer,
    /// The transaction's undo log's stream, and what was cut off there when the way began.
    stream: u32,
    cuts: u64,
    /// Walks before this one.
    walks: u32,
}

/// Where it has led.
pub(super) struct Walked {
    walk: Walk,
    outcome: Outcome,
}

enum Outcome {
    /// To this record.
    Overwriter(RollPointer),
    /// Behind the transaction's versions is another one.
    Nobody,
    /// Nowhere: records have been taken back.
    Gone,
}

/// What a record says.
enum Look {
    /// It is the one, and has these marks.
    Overwriter(u8),
    /// It replaced a version by this transaction, which leads there.
    Other(TrxId, RollPointer),
}

impl TrxSystem {
    /// Marks the record that overwrote `deletion`, if it is the transaction's that wrote `entry`
    /// and is active; returns the way that must be walked first. The leaf's latch keeps the
    /// transaction from taking the change back meanwhile. `walked` is what came of that way the
    /// last time.
    pub(super) fn mark_overwriter<'a>(
        &'a self,
        mtr: Mtr<'a>,
        _latched: &LeafMut<'_>,
        entry: &Entry<'_>,
        deletion: Deletion<'_>,
        walked: Option<Walked>,
    ) -> Result<Option<Walk>> {
        let walked = walked.filter(|walked| walked.walk.by == entry.trx_id);
        let mut walks = 0;
        if let Some(Walked { walk, outcome }) = walked {
            walks = walk.walks + 1;
            let has_cut = self.undo.cuts(walk.stream) != walk.cuts;
            match outcome {
                Outcome::Nobody if !has_cut || walks >= WALKS => return Ok(None),
                Outcome::Overwriter(at) => {
                    let still = |record: Record<'_>| match look(&record, deletion) {
                        Some(Look::Overwriter(marks)) if marks & MARK_UNDONE == 0 => Some(marks),
                        _ => None,
                    };
                    if let Some(marks) = self.undo.read_if_there(at, still)?.flatten() {
                        return self.mark(mtr, at, marks).map(|()| None);
                    }
                    if !has_cut {
                        let why = "an undo record that has vanished";
                        return Err(self.undo.corrupt(at.page, why));
                    }
                }
                Outcome::Nobody | Outcome::Gone => {}
            }
        }
        let mut from = entry.roll;
        for _ in 0..LATCHED_VERSIONS {
            if from.is_none() {
                return Ok(None);
            }
            match self.look_at(from, deletion)? {
                Look::Overwriter(marks) => return self.mark(mtr, from, marks).map(|()| None),
                Look::Other(id, roll) if id == entry.trx_id => from = roll,
                Look::Other(..) => return Ok(None),
            }
        }
        if from.is_none() {
            return Ok(None);
        }
        let stream = self.undo.stream_of(from)?;
        let cuts = self.undo.cuts(stream);
        Ok(Some(Walk { by: entry.trx_id, from, stream, cuts, walks }))
    }

    fn mark<'a>(&'a self, mut mtr: Mtr<'a>, at: RollPointer, marks: u8) -> Result<()> {
        let page = mtr.exclusive(self.undo.space(), at.page)?;
        set_marks(&mut mtr, page, at, marks | MARK_PRIOR_PURGED);
        mtr.commit();
        Ok(())
    }

    /// Goes a way, no latch held. [`Error::Interrupted`] if purge is to stop.
    pub(super) fn walk_to_overwriter(
        &self,
        walk: Walk,
        deletion: Deletion<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Walked> {
        let has_cut = || self.undo.cuts(walk.stream) != walk.cuts;
        let mut at = walk.from;
        for passed in 0_usize.. {
            if passed.is_multiple_of(UNASKED_VERSIONS) && stop() {
                return Err(Error::Interrupted);
            }
            let outcome = match self.look_at(at, deletion) {
                Ok(Look::Overwriter(_)) => Outcome::Overwriter(at),
                Ok(Look::Other(id, roll)) if id == walk.by && !roll.is_none() => {
                    at = roll;
                    continue;
                }
                Ok(Look::Other(..)) => Outcome::Nobody,
                Err(_) if has_cut() => Outcome::Gone,
                Err(error) => return Err(error),
            };
            pause::reach(PausePoint::OverwriterFound);
            return Ok(Walked { walk, outcome });
        }
        unreachable!("a chain of versions has an end")
    }

    fn look_at(&self, roll: RollPointer, deletion: Deletion<'_>) -> Result<Look> {
        pause::reach(PausePoint::VersionPassed);
        let no_version = || self.undo.corrupt(roll.page, "a roll pointer that leads to no version");
        self.undo.read(roll, |record| look(&record, deletion).ok_or_else(no_version))
    }
}

/// What a record says; `None` if it is about another entry, or about none.
fn look(record: &Record<'_>, deletion: Deletion<'_>) -> Option<Look> {
    let (Body::Update(place, prior) | Body::Delete(place, prior)) = record.body else {
        return None;
    };
    if place.tree != deletion.tree || place.key != deletion.key {
        return None;
    }
    let is_it =
        prior.trx_id == deletion.id && prior.roll == deletion.at && prior.flags & DELETED != 0;
    Some(match is_it {
        true => Look::Overwriter(record.marks),
        false => Look::Other(prior.trx_id, prior.roll),
    })
}
