//! Reports to the embedder which transaction waits for which.
//!
//! An embedder may prescribe an order of commits: a replica commits in the order of its
//! primary. A transaction that waits for its turn to commit is in no wait-for graph of ours; if it
//! holds a lock for which one waits that must commit before it, that is a deadlock which only both
//! together can see. So a transaction whose session has a name ([`SessionToken`]) informs the
//! embedder's [`WaitObserver`] whom it waits for, and the embedder has rolled back whom it must.
//!
//! # When it is called
//! By the waiter's own thread, after its request is in the queue and before it sleeps: a
//! transaction that is in front of it then. In a key's queue others can get in front later, by
//! strengthening a lock that they hold: they mark the waiter as passed and wake it, and it reports
//! again. One that waits for the end of range locks' owners looks anew when one has ended, and
//! reports again if it still has to wait. So every transaction that a waiter waits for is reported.
//!
//! Only those that it waits for itself are reported, not those that these wait for. If they have a
//! place in the embedder's order they tell that themselves. One that has none, and stands between
//! two that have, hides the later from the earlier; the timeout of its wait ends that.
//!
//! # Why what a token stands for is there
//! A holder's token lies in a cell of its [`Owner`], under a mutex that is held while the observer
//! is called with it. The holder's transaction empties the cell before it ends or leaves its
//! session, and so waits for the call. The waiter's own session is the one that is waiting. With
//! that mutex the lock system holds nothing, and takes nothing; a thread that empties a cell does
//! no more under it. So the observer may take what it likes, except what a thread holds that ends a
//! transaction.

use std::sync::Arc;

use super::wait::Target;
use super::{Locks, Owner};

/// A name that an embedder gives to the session of a transaction: a pointer or a number, nothing to
/// this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionToken(pub usize);

/// An embedder that learns which transactions wait for which.
pub trait WaitObserver: Send + Sync {
    /// The transaction of `waiter`, whose thread this is, has to wait for one of `holder`, which
    /// holds a lock or is earlier in its queue; none if that one's session has no name. The same
    /// may be reported several times. A holder's transaction does not end before this returns, so
    /// this must not wait for that, nor use either transaction; interrupting the holder is allowed.
    ///
    /// True if the embedder sees to it that the holder is rolled back: it is then the first choice
    /// when a deadlock needs a victim.
    fn waits_for(&self, waiter: SessionToken, holder: Option<SessionToken>) -> bool;

    /// What the session of this number ([`Transaction::set_session_number`]) executes at this
    /// moment, for the report of a deadlock; `None` if that is not known. It may have ended.
    ///
    /// [`Transaction::set_session_number`]: crate::Transaction::set_session_number
    fn statement_of(&self, session: u64) -> Option<String> {
        let _ = session;
        None
    }
}

impl Locks {
    /// Sets the observer of waits. Once: a second observer is refused.
    pub fn set_observer(&self, observer: Box<dyn WaitObserver>) -> bool {
        self.observer.set(observer).is_ok()
    }

    /// Reports to the observer, if there is one and `waiter`'s session has a name, whom `waiter`
    /// waits for at this moment.
    pub(super) fn tell(&self, waiter: &Arc<Owner>, target: &Target) {
        let Some(observer) = self.observer.get() else { return };
        let Some(me) = waiter.session() else { return };
        let holders = match target {
            Target::Key { tree, key } => self.keys.blockers(waiter, *tree, key),
            Target::End(others) => others.clone(),
        };
        for holder in holders {
            holder.with_session(|token| observer.waits_for(me, token));
        }
    }
}
