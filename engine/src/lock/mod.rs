//! Transactional locks: on keys, on key ranges, and the waiting for them.
//!
//! # What is locked how
//! - **A write takes no lock-table entry.** The entry it wrote carries its transaction id, and
//!   while that id is active the entry is exclusively locked (*implicit* lock). Somebody who must
//!   wait for it turns it into an explicit one first, on the holder's behalf, so that waiters queue
//!   in order and each release wakes one. The other way round, a write of an entry that the
//!   transaction had locked by reading it takes the explicit lock out again, if none waits in its
//!   queue. When a savepoint's rollback takes the write back, the entry no longer says that it is
//!   locked: the explicit lock comes back, under the leaf's latch.
//! - **Key locks** ([`keys::KeyLocks`]): shared or exclusive on (tree, key), first come, first
//!   served. Taken by locking reads and by transactions that had to wait. A writer looks for them
//!   while it holds the leaf's exclusive latch; when the shard of the table is empty, which is the
//!   rule, that is one load.
//! - **Compact locks** ([`compact::CompactLocks`]): the key locks of an owner that has a thousand
//!   in the table already and meets no other's at the key: a few bytes each, which a transaction
//!   that must wait for them makes key locks.
//! - **Range locks** ([`ranges::RangeLocks`]): shared or exclusive on closed key ranges of a tree,
//!   for SERIALIZABLE scans. They cover the gaps, so no phantom appears. A writer tests them only
//!   if any exist.
//!
//! The memory of all of them has a bound, which the buffer pool's size gives: a transaction that
//! asks for more ends with [`Error::TooManyLocks`].
//!
//! All are held until the transaction ends, except a key lock given up by [`Locks::unlock`] (a row
//! that a scan locked and then did not want).
//!
//! # Why nothing is missed
//! Lock tests happen under the leaf latch that protects the entry: a reader that grants itself a
//! lock holds the latch shared, a writer holds it exclusively, so one of the two sees the other.
//! Two readers, which may hold it both, meet under the mutex of the key's shard. No thread waits
//! for a lock while holding a latch: the operation lets go, waits, and begins anew.
//!
//! "See the holder, then park" loses no wake-up: a waiter gives the holder the explicit lock and
//! enqueues behind it, both under the holder's [`Owner`] mutex, and the holder sets `ended` under
//! it before it releases; the waiter's own state is set to waiting before it can be granted, and a
//! grant carries the number of the wait it ends. A write that takes its explicit lock out again
//! does so under the leaf's latch, so no thread is between seeing the holder and enqueueing
//! meanwhile.
//!
//! # Deadlocks
//! A wait enters itself in the wait-for graph *after* it has enqueued, then looks for a cycle
//! through itself. Edges are not stored but read from the queues. The last of a cycle to enter sees
//! the whole cycle. The victim is a member that the embedder wants rolled back anyway
//! ([`observer`], which learns of it before), else the one with the fewest undo records; the one
//! that asks, if equal.
//!
//! # When the log has failed
//! Writing has stopped for good, and so no locks are released any more by a commit or a
//! rollback that writes. Waits end with the log's error ([`crate::redo::Failure`]), those under way
//! (`sleepers`) and those to come. What is granted stays granted.
//!
//! # Order of the mutexes
//! graph → `Owner::held` → key-lock shard → range shard → compact locks → `Owner::wait`;
//! `Owner::requested` is taken alone, or under the graph. Of two owners' `held`, that of the lower
//! number comes first. All are leaves below page latches: a page latch may be held when one is
//! taken, never the reverse. The list of sleepers comes before `Owner::wait` and after all else,
//! the log's mutexes too: a failure of the log reads it. `Owner::session` is taken with nothing
//! held, and the embedder's observer is called under it.

pub mod compact;
pub(crate) mod deadlock;
pub(crate) mod fresh;
pub mod keys;
pub mod observer;
pub mod owner;
pub mod ranges;
pub(crate) mod reach;
pub mod report;
mod sleepers;
pub(crate) mod version_cache;
pub mod wait;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

pub use compact::CompactLocks;
use compact::{Insertion, RoomForLocks};
pub use keys::KeyLocks;
pub use observer::{SessionToken, WaitObserver};
pub(crate) use owner::Requested;
pub use owner::{Interrupt, Owner};
pub use ranges::RangeLocks;

use crate::error::{Error, Result};
use crate::redo::Failure;
use sleepers::Sleepers;

/// How a read locks what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum LockMode {
    /// Not at all: a consistent read.
    #[default]
    None,
    /// Against writers.
    Shared,
    /// Against writers and locking readers.
    Exclusive,
}

impl LockMode {
    /// Whether two owners may not hold these at once.
    pub fn conflicts(self, other: LockMode) -> bool {
        match (self, other) {
            (LockMode::None, _) | (_, LockMode::None) => false,
            (a, b) => a == LockMode::Exclusive || b == LockMode::Exclusive,
        }
    }
}

/// What to do when a lock is held by another transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LockWait {
    /// Wait, up to the lock wait timeout.
    #[default]
    Wait,
    /// Fail with [`Error::LockNoWait`].
    NoWait,
    /// Treat the entry as if it did not exist.
    SkipLocked,
}

/// Counters of the lock system.
#[derive(Debug, Default)]
pub struct LockCounters {
    /// Waits begun.
    pub waits: AtomicU64,
    /// Waits that timed out.
    pub timeouts: AtomicU64,
    /// Deadlocks resolved.
    pub deadlocks: AtomicU64,
    /// Time waited, in microseconds.
    pub wait_micros: AtomicU64,
    /// Waits at the moment.
    pub waiting: AtomicU64,
}

/// How much memory locks may take at the moment, bytes.
type Room = Box<dyn Fn() -> u64 + Send + Sync>;

/// The lock system of an engine.
#[derive(Default)]
pub struct Locks {
    /// Key locks.
    pub keys: KeyLocks,
    /// Range locks.
    pub ranges: RangeLocks,
    /// Further key locks of those who have many.
    pub compact: CompactLocks,
    graph: wait::WaitGraph,
    no_detection: AtomicBool,
    observer: OnceLock<Box<dyn WaitObserver>>,
    /// The newest ones.
    pub(crate) deadlocks: deadlock::Deadlocks,
    failure: Arc<Failure>,
    /// None: as much as they ask for.
    room: Option<Room>,
    sleepers: Arc<Sleepers>,
    pub counters: LockCounters,
}

impl Locks {
    /// A lock system whose waits end when `failure` says that writing has stopped. `room` is asked
    /// how many bytes compact locks and ranges may take, of all transactions together.
    pub fn new(failure: Arc<Failure>, room: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let locks = Self { failure, room: Some(Box::new(room)), ..Self::default() };
        let sleepers = Arc::clone(&locks.sleepers);
        locks.failure.wake_at_failure(move || sleepers.wake_all());
        locks
    }

    /// Whether deadlocks are looked for (the default); if not, the timeout ends them.
    pub fn set_deadlock_detect(&self, detect: bool) {
        self.no_detection.store(!detect, Ordering::Relaxed);
    }

    /// Notes deadlocks with the statements that their members are at.
    fn note(&self, deadlocks: Vec<deadlock::Deadlock>) {
        for mut deadlock in deadlocks {
            if let Some(observer) = self.observer.get() {
                for member in deadlock.circle.iter_mut().filter(|member| member.session != 0) {
                    member.statement = observer.statement_of(member.session);
                }
            }
            self.deadlocks.add(deadlock);
        }
    }

    /// How many bytes the sets of compact locks may take.
    fn room_for_compact(&self) -> u64 {
        let room = self.room.as_ref().map_or(u64::MAX, |room| room());
        room.saturating_sub(self.ranges.memory_bytes())
    }

    /// [`Error::TooManyLocks`] if locks have taken all the memory that they may. Queued key locks
    /// don't count: an owner has a thousand at most.
    pub fn check_room(&self) -> Result<()> {
        let bytes = self.ranges.memory_bytes() + self.compact.memory_bytes();
        match &self.room {
            Some(room) if bytes > room() => Err(Error::TooManyLocks(bytes)),
            _ => Ok(()),
        }
    }

    /// Memory of the locks held, about, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.keys.memory_bytes() + self.ranges.memory_bytes() + self.compact.memory_bytes()
    }

    /// Waits until the wait that `owner` has announced (by [`Locks::acquire`] answering
    /// [`keys::Acquire::MustWait`]) ends in a grant. Any other end withdraws the request.
    pub fn wait_for_key(
        &self,
        owner: &Arc<Owner>,
        tree: u32,
        key: &[u8],
        timeout: Duration,
    ) -> Result<()> {
        let target = wait::Target::Key { tree, key: key.into() };
        let requested = Requested {
            tree,
            key: key.into(),
            mode: LockMode::None,
            until_end_of: Vec::new(),
            since: SystemTime::now(),
        };
        self.wait(owner, target, requested, timeout)
    }

    /// Waits until one of `others` ends, whose range locks forbid `owner` a lock of this `mode` on
    /// `key`. An owner that has ended already counts.
    pub fn wait_for_end(
        &self,
        owner: &Arc<Owner>,
        others: Vec<Arc<Owner>>,
        (tree, key, mode): (u32, &[u8], LockMode),
        timeout: Duration,
    ) -> Result<()> {
        let number = owner.announce_wait();
        let mut ended = others.is_empty();
        for other in &others {
            ended |= !other.notify_at_end(owner, number);
        }
        let outcome = if ended {
            owner.finish_wait(number);
            Ok(())
        } else {
            let requested = Requested {
                tree,
                key: key.into(),
                mode,
                until_end_of: others.clone(),
                since: SystemTime::now(),
            };
            self.wait(owner, wait::Target::End(others.clone()), requested, timeout)
        };
        // One that stays for hours must not collect all who have once waited for it.
        others.iter().for_each(|other| other.notify_no_more(owner));
        outcome
    }

    fn wait(
        &self,
        owner: &Arc<Owner>,
        target: wait::Target,
        requested: Requested,
        timeout: Duration,
    ) -> Result<()> {
        let outcome =
            self.failure.check().and_then(|()| self.sleep(owner, &target, requested, timeout));
        let granted = owner.end_wait();
        if let (Err(_), wait::Target::Key { tree, key }) = (&outcome, &target)
            && !granted
        {
            self.keys.withdraw(owner, *tree, key);
        }
        outcome
    }

    fn sleep(
        &self,
        owner: &Arc<Owner>,
        target: &wait::Target,
        requested: Requested,
        timeout: Duration,
    ) -> Result<()> {
        let started = std::time::Instant::now();
        owner.set_requested(Some(requested));
        self.counters.waits.fetch_add(1, Ordering::Relaxed);
        self.counters.waiting.fetch_add(1, Ordering::Relaxed);
        // Before the graph is looked at: a transaction that must be rolled back anyway is the best
        // victim.
        self.tell(owner, target);
        let wait::Entered { victims, deadlocks } = match self.no_detection.load(Ordering::Relaxed) {
            true => wait::Entered::default(),
            false => self.graph.enter(owner, target.clone(), &self.keys),
        };
        // While the victims still wait, and are at the statements that have brought them here.
        self.note(deadlocks);
        self.counters.deadlocks.fetch_add(victims.len() as u64, Ordering::Relaxed);
        let me = victims.iter().any(|victim| victim.number() == owner.number());
        let outcome = if me {
            Err(Error::Deadlock)
        } else {
            victims.iter().for_each(|victim| victim.condemn());
            self.sleepers.enter(owner);
            let outcome = owner.park(timeout, &self.failure, || self.tell(owner, target));
            self.sleepers.leave(owner);
            outcome
        };
        self.graph.leave(owner);
        owner.set_requested(None);
        if matches!(outcome, Err(Error::LockWaitTimeout)) {
            self.counters.timeouts.fetch_add(1, Ordering::Relaxed);
        }
        self.counters.waiting.fetch_sub(1, Ordering::Relaxed);
        let micros = started.elapsed().as_micros() as u64;
        self.counters.wait_micros.fetch_add(micros, Ordering::Relaxed);
        outcome
    }

    /// Whether `owner` holds a lock on the key that is at least as strong as `mode`, other than by
    /// having written the entry.
    pub fn holds(&self, owner: &Owner, tree: u32, key: &[u8], mode: LockMode) -> bool {
        self.compact.keeps(owner, tree, key, mode) || self.keys.holds(owner, tree, key, mode)
    }

    /// Gives up one key's lock before the transaction's end.
    pub fn unlock(&self, owner: &Arc<Owner>, tree: u32, key: &[u8]) {
        // Somebody who waits for it has made it explicit.
        let was_compact = self.compact.remove(owner, tree, key);
        if !was_compact || self.keys.holds(owner, tree, key, LockMode::Shared) {
            self.keys.unlock(owner, tree, key);
        }
    }

    /// Keeps `owner`'s exclusive lock on an entry that is about to lose its implicit one, under the
    /// leaf's latch; false if it has ended.
    pub(crate) fn keep(&self, owner: &Arc<Owner>, tree: u32, key: &[u8]) -> bool {
        match owner.key_locks() < compact::QUEUED_LOCKS_MAX {
            true => self.keys.make_explicit(owner, tree, key),
            false => {
                let place = self.compact.place_of(tree, key);
                let mut held = owner.held.lock();
                let lock = (place, LockMode::Exclusive);
                let kept = self.compact.insert(owner, &mut held, lock, RoomForLocks::Always);
                matches!(kept, Insertion::Locked)
            }
        }
    }

    /// Releases everything `owner` holds and wakes the threads that wait for its end. To be called
    /// after the transaction's outcome is published.
    pub fn release_all(&self, owner: &Arc<Owner>) {
        let held = owner.end();
        // First: who has waited for one of the others would find this owner again.
        if held.compact.is_some() {
            self.compact.release(owner);
        }
        for lock in held.keys {
            self.keys.release(owner, lock.tree, &lock.key);
        }
        if held.ranges {
            self.ranges.release(owner);
        }
        for (waiter, number) in held.end_waiters {
            waiter.grant(number);
        }
    }
}
