//! Who holds locks and waits for them: one [`Owner`] a transaction.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::compact::CompactSet;
use super::version_cache::VersionCache;
use super::{LockMode, SessionToken};
use crate::csn::TrxId;
use crate::error::{Error, Result};
use crate::redo::Failure;

/// Interrupts a transaction's lock wait from another thread (KILL QUERY). Stays set until cleared,
/// so that an interrupt which comes just before the wait begins is not lost.
#[derive(Default)]
pub struct Interrupt {
    set: AtomicBool,
    /// Who waits with this interrupt at the moment.
    sleeper: Mutex<Option<Arc<Owner>>>,
}

impl Interrupt {
    /// Makes the present lock wait, or the next one, fail with [`Error::Interrupted`]; and a
    /// reading that comes to the next leaf without having found anything, or has to pass a thousand
    /// versions of a row.
    pub fn interrupt(&self) {
        self.set.store(true, Ordering::SeqCst);
        let sleeper = self.sleeper.lock().clone();
        if let Some(owner) = sleeper {
            owner.look_again();
        }
    }

    /// Forgets an interrupt: the statement it was meant for is over.
    pub fn clear(&self) {
        self.set.store(false, Ordering::SeqCst);
    }

    /// Whether an interrupt is pending. Long operations look at it now and then.
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Relaxed)
    }
}

/// A key lock in an owner's list.
pub(super) struct HeldKey {
    pub tree: u32,
    pub key: Box<[u8]>,
}

/// What an owner must release at its end.
#[derive(Default)]
pub(super) struct Held {
    pub keys: Vec<HeldKey>,
    pub ranges: bool,
    pub compact: Option<CompactSet>,
    pub end_waiters: Vec<(Arc<Owner>, u64)>,
    ended: bool,
}

impl Held {
    /// Whether the owner has released everything for good.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    No,
    Yes,
    Granted,
    Condemned,
}

pub(super) struct WaitState {
    state: Waiting,
    /// Number of the present or last wait.
    number: u64,
    /// Another one has got in front since the embedder learned whom this one waits for.
    passed: bool,
}

/// The lock that an owner waits for, for reports.
#[derive(Clone)]
pub(crate) struct Requested {
    pub tree: u32,
    pub key: Box<[u8]>,
    /// Unknown for a key's queue: that knows it.
    pub mode: LockMode,
    /// Those whose end ends the wait; none for a key's queue.
    pub until_end_of: Vec<Arc<Owner>>,
    pub since: SystemTime,
}

/// A transaction as the lock system knows it.
pub struct Owner {
    number: u64,
    trx_id: AtomicU64,
    undo_records: AtomicU64,
    interrupt: Arc<Interrupt>,
    pub(super) held: Mutex<Held>,
    /// One of the sets in [`super::CompactLocks`] is its own.
    pub(super) keeps_locks: AtomicBool,
    pub(super) wait: Mutex<WaitState>,
    pub(super) wake: Condvar,
    requested: Mutex<Option<Requested>>,
    /// See [`super::observer`].
    session: Mutex<Option<SessionToken>>,
    /// What reports call the session by; 0: none runs it.
    session_number: AtomicU64,
    /// The embedder has said that it will be rolled back.
    gives_way: AtomicBool,
    /// Why its rollback can't be finished.
    blocked: OnceLock<Error>,
    /// What its versions of some rows lie over.
    pub(crate) version_cache: VersionCache,
}

/// An owner whose session has a name, until this is dropped.
pub(crate) struct Named(Arc<Owner>);

impl Drop for Named {
    /// Returns only when no observer is looking at the session any more.
    fn drop(&mut self) {
        *self.0.session.lock() = None;
    }
}

impl Owner {
    /// A new owner; `number` must be unique among the living.
    pub fn new(number: u64, interrupt: Arc<Interrupt>) -> Arc<Owner> {
        Arc::new(Owner::of_number(number, interrupt))
    }

    /// Makes a new owner, in the memory of one that has ended and that no other thread knows.
    pub(crate) fn renew(&mut self, number: u64, interrupt: &Arc<Interrupt>) {
        debug_assert!(self.has_ended(), "an owner's locks are released before it is another");
        *self = Owner::of_number(number, Arc::clone(interrupt));
    }

    fn of_number(number: u64, interrupt: Arc<Interrupt>) -> Owner {
        Owner {
            number,
            trx_id: AtomicU64::new(0),
            undo_records: AtomicU64::new(0),
            interrupt,
            held: Mutex::default(),
            keeps_locks: AtomicBool::new(false),
            wait: Mutex::new(WaitState { state: Waiting::No, number: 0, passed: false }),
            wake: Condvar::new(),
            requested: Mutex::default(),
            session: Mutex::default(),
            session_number: AtomicU64::new(0),
            gives_way: AtomicBool::new(false),
            blocked: OnceLock::new(),
            version_cache: VersionCache::default(),
        }
    }

    /// Whether it holds no lock but those on what it has written.
    pub(crate) fn holds_nothing(&self) -> bool {
        let held = self.held.lock();
        held.keys.is_empty() && !held.ranges && held.compact.is_none()
    }

    /// Unique among the living.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What reports call its session by; 0: none runs it.
    pub fn session_number(&self) -> u64 {
        self.session_number.load(Ordering::Relaxed)
    }

    pub fn set_session_number(&self, number: u64) {
        self.session_number.store(number, Ordering::Relaxed);
    }

    /// The transaction's id, once it has one.
    pub fn trx_id(&self) -> TrxId {
        TrxId(self.trx_id.load(Ordering::Acquire))
    }

    /// Sets the transaction's id.
    pub fn set_trx_id(&self, id: TrxId) {
        debug_assert_eq!(self.trx_id(), TrxId::NONE, "a transaction has one id");
        self.trx_id.store(id.0, Ordering::Release);
    }

    /// Undo records written so far: the weight when a deadlock's victim is chosen.
    pub fn undo_records(&self) -> u64 {
        self.undo_records.load(Ordering::Relaxed)
    }

    /// Sets how many undo records there are.
    pub fn set_undo_records(&self, n: u64) {
        self.undo_records.store(n, Ordering::Relaxed);
    }

    /// The transaction's interrupt.
    pub fn interrupt(&self) -> &Arc<Interrupt> {
        &self.interrupt
    }

    /// Whether the owner has released everything for good.
    pub fn has_ended(&self) -> bool {
        self.held.lock().ended
    }

    /// Notes that its rollback can't be finished, and why: it will release its locks, and what it
    /// still has written is not to be waited for.
    pub(crate) fn set_blocked(&self, why: Error) {
        let _ = self.blocked.set(why);
    }

    /// Why its rollback can't be finished, if that is so.
    pub(crate) fn blocked(&self) -> Option<&Error> {
        self.blocked.get()
    }

    /// Key locks held or waited for.
    pub fn key_locks(&self) -> usize {
        self.held.lock().keys.len()
    }

    /// The lock waited for, if one is.
    pub(crate) fn requested(&self) -> Option<Requested> {
        self.requested.lock().clone()
    }

    pub(super) fn set_requested(&self, requested: Option<Requested>) {
        *self.requested.lock() = requested;
    }

    /// Names the session, as long as the answer lives: from here on its waits are reported, and who
    /// waits for it.
    pub(crate) fn name_session(self: &Arc<Self>, session: SessionToken) -> Named {
        *self.session.lock() = Some(session);
        Named(Arc::clone(self))
    }

    pub(super) fn session(&self) -> Option<SessionToken> {
        *self.session.lock()
    }

    /// Calls `tell` with the session's name, which stays until that returns; it answers whether
    /// this owner will be rolled back.
    pub(super) fn with_session(&self, tell: impl FnOnce(Option<SessionToken>) -> bool) {
        let session = self.session.lock();
        if tell(*session) {
            self.gives_way.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the embedder has said that it will be rolled back.
    pub(super) fn gives_way(&self) -> bool {
        self.gives_way.load(Ordering::Relaxed)
    }

    /// Begins a wait and returns its number. From here on a grant with this number counts.
    pub(super) fn announce_wait(&self) -> u64 {
        let mut wait = self.wait.lock();
        debug_assert_ne!(wait.state, Waiting::Yes, "one wait at a time");
        wait.state = Waiting::Yes;
        wait.passed = false;
        wait.number += 1;
        wait.number
    }

    /// Ends an announced wait that need not be.
    pub(super) fn finish_wait(&self, number: u64) {
        let mut wait = self.wait.lock();
        debug_assert_eq!(wait.number, number);
        debug_assert_ne!(wait.state, Waiting::No, "a wait ends once");
        wait.state = Waiting::No;
    }

    /// Ends wait `number` with success; a late grant for an earlier wait does nothing.
    pub(super) fn grant(&self, number: u64) {
        let mut wait = self.wait.lock();
        if wait.number == number && wait.state == Waiting::Yes {
            wait.state = Waiting::Granted;
            drop(wait);
            self.wake.notify_all();
        }
    }

    /// Ends the present wait, if there is one, with [`Error::Deadlock`].
    pub(super) fn condemn(&self) {
        let mut wait = self.wait.lock();
        if wait.state == Waiting::Yes {
            wait.state = Waiting::Condemned;
            drop(wait);
            self.wake.notify_all();
        }
    }

    /// Has the present wait, if there is one, reported once more: another owner has got in front.
    pub(super) fn pass(&self) {
        let mut wait = self.wait.lock();
        if wait.state == Waiting::Yes {
            wait.passed = true;
            drop(wait);
            self.wake.notify_all();
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.wait.lock().state == Waiting::Yes
    }

    /// Has the sleeper look at what ends its wait from outside, its interrupt and the failure of
    /// the log. It looks under its mutex before it sleeps: taking the mutex here means that it
    /// either saw what has been set or is asleep by now.
    pub(super) fn look_again(&self) {
        drop(self.wait.lock());
        self.wake.notify_all();
    }

    /// Sleeps until the announced wait ends, which a `failure` does too. `tell` is called, with
    /// nothing held, each time this owner has been passed.
    pub(super) fn park(
        self: &Arc<Self>,
        timeout: Duration,
        failure: &Failure,
        mut tell: impl FnMut(),
    ) -> Result<()> {
        let deadline = Instant::now().checked_add(timeout);
        *self.interrupt.sleeper.lock() = Some(Arc::clone(self));
        let mut wait = self.wait.lock();
        let outcome = loop {
            match wait.state {
                Waiting::Granted => break Ok(()),
                Waiting::Condemned => break Err(Error::Deadlock),
                Waiting::No => unreachable!("parked without an announced wait"),
                Waiting::Yes => {}
            }
            if self.interrupt.set.load(Ordering::SeqCst) {
                break Err(Error::Interrupted);
            }
            if let Err(error) = failure.check() {
                break Err(error);
            }
            if std::mem::take(&mut wait.passed) {
                MutexGuard::unlocked(&mut wait, &mut tell);
                continue;
            }
            match deadline {
                None => self.wake.wait(&mut wait),
                Some(deadline) => {
                    if self.wake.wait_until(&mut wait, deadline).timed_out()
                        && wait.state == Waiting::Yes
                    {
                        break Err(Error::LockWaitTimeout);
                    }
                }
            }
        };
        drop(wait);
        *self.interrupt.sleeper.lock() = None;
        outcome
    }

    /// Leaves the waiting state; true if a grant came in (perhaps together with a timeout).
    pub(super) fn end_wait(&self) -> bool {
        let mut wait = self.wait.lock();
        std::mem::replace(&mut wait.state, Waiting::No) == Waiting::Granted
    }

    /// Asks to be granted `number` when this owner ends; false if it has ended.
    pub(super) fn notify_at_end(&self, waiter: &Arc<Owner>, number: u64) -> bool {
        let mut held = self.held.lock();
        if held.ended {
            return false;
        }
        held.end_waiters.push((Arc::clone(waiter), number));
        true
    }

    /// Takes back what [`Self::notify_at_end`] was asked.
    pub(super) fn notify_no_more(&self, waiter: &Owner) {
        self.held.lock().end_waiters.retain(|(other, _)| other.number != waiter.number);
    }

    /// Adds a key lock to the list; false if the owner has ended.
    pub(super) fn remember(held: &mut Held, tree: u32, key: &[u8]) -> bool {
        if held.ended {
            return false;
        }
        debug_assert!(
            held.keys.iter().rev().take(8).all(|held| held.tree != tree || *held.key != *key),
            "a lock is remembered once"
        );
        held.keys.push(HeldKey { tree, key: key.into() });
        true
    }

    pub(super) fn forget(&self, tree: u32, key: &[u8]) {
        let mut held = self.held.lock();
        if let Some(at) = held.keys.iter().rposition(|l| l.tree == tree && *l.key == *key) {
            held.keys.swap_remove(at);
        }
    }

    pub(super) fn end(&self) -> Held {
        let mut held = self.held.lock();
        let all = std::mem::take(&mut *held);
        held.ended = true;
        all
    }
}
