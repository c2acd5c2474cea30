//! The newest deadlock, as it was found: for reports, since nothing of it is left a moment later.

use std::sync::Arc;
use std::time::SystemTime;

use super::owner::Owner;
use crate::csn::TrxId;

/// A circle of waits.
#[derive(Debug, Clone)]
pub(crate) struct Deadlock {
    /// When it was found.
    pub at: SystemTime,
    /// Each waits for the next, the last for the first. The first closed the circle.
    pub circle: Vec<DeadlockMember>,
}

/// One who waited.
#[derive(Debug, Clone)]
pub(crate) struct DeadlockMember {
    /// As [`Owner::number`].
    pub number: u64,
    /// As [`Owner::trx_id`].
    pub trx_id: TrxId,
    /// The tree and the key of the lock; none if the wait was over at that moment.
    pub wanted: Option<(u32, Box<[u8]>)>,
    /// As [`Owner::undo_records`].
    pub undo_records: u64,
    /// Whether it was chosen to be rolled back.
    pub is_victim: bool,
}

impl Deadlock {
    pub(super) fn of(circle: &[Arc<Owner>], victim: u64) -> Deadlock {
        let member = |owner: &Arc<Owner>| DeadlockMember {
            number: owner.number(),
            trx_id: owner.trx_id(),
            wanted: owner.requested().map(|wanted| (wanted.tree, wanted.key)),
            undo_records: owner.undo_records(),
            is_victim: owner.number() == victim,
        };
        Deadlock { at: SystemTime::now(), circle: circle.iter().map(member).collect() }
    }
}
