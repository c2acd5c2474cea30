//! Group commit: who waits for a sync of the log, and who does it.
//!
//! The first to come becomes the leader and syncs for everyone whose frames are in the log by then.
//! Those who come while it syncs wait. When the leader is done it wakes the waiters that its sync
//! covered, and hands the lead to exactly one of the others; so a sync wakes no thread in vain, and
//! the next one begins at once and covers all that gathered meanwhile.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, Thread};

use parking_lot::Mutex;
use tidepool_pool::{Lsn, lend};

/// Not woken yet.
const WAITING: u32 = 0;
/// The sync is done, or has failed.
const DONE: u32 = 1;
/// This thread is to lead the next sync.
const LEAD: u32 = 2;

struct Waiter {
    thread: Thread,
    state: AtomicU32,
}

thread_local! {
    static WAITER: RefCell<Arc<Waiter>> = RefCell::new(Waiter::new());
}

impl Waiter {
    fn new() -> Arc<Waiter> {
        Arc::new(Waiter { thread: thread::current(), state: AtomicU32::new(WAITING) })
    }
}

/// The queue before the sync. Its mutex is a leaf.
#[derive(Default)]
pub struct Group {
    state: Mutex<GroupState>,
}

#[derive(Default)]
struct GroupState {
    leading: bool,
    waiters: Vec<(Lsn, Arc<Waiter>)>,
}

/// What [`Group::enter`] decided.
#[derive(Debug, PartialEq, Eq)]
pub enum Role {
    /// The caller must sync, then call [`Group::finish`].
    Leader,
    /// Somebody else's sync ended; look again.
    Follower,
}

impl Group {
    /// Takes the lead, or waits until the sync that covers `lsn` has ended. `is_done` is asked
    /// under the mutex, so that a sync that ended just now is not waited for.
    pub fn enter(&self, lsn: Lsn, is_done: impl Fn() -> bool) -> Role {
        let waiter = {
            let mut group = self.state.lock();
            if is_done() {
                return Role::Follower;
            }
            if !group.leading {
                group.leading = true;
                return Role::Leader;
            }
            let waiter = lend(&WAITER, Waiter::new, |waiter| waiter.clone());
            waiter.state.store(WAITING, Ordering::Relaxed);
            group.waiters.push((lsn, waiter.clone()));
            waiter
        };
        loop {
            match waiter.state.load(Ordering::Acquire) {
                WAITING => thread::park(),
                LEAD => return Role::Leader,
                _ => return Role::Follower,
            }
        }
    }

    /// Ends the leader's sync: wakes whom it covered (all, if `failed`), and passes on the lead.
    pub fn finish(&self, flushed: Lsn, failed: bool) {
        let mut woken = Vec::new();
        let next = {
            let mut group = self.state.lock();
            assert!(group.leading, "the leader passes on the lead that it has");
            group.waiters.retain(|(lsn, waiter)| {
                let done = failed || *lsn <= flushed;
                if done {
                    woken.push(waiter.clone());
                }
                !done
            });
            let next = group.waiters.pop();
            group.leading = next.is_some();
            next
        };
        // The next leader first: its sync can begin while the others are being woken.
        if let Some((_, waiter)) = next {
            wake(&waiter, LEAD);
        }
        for waiter in woken {
            wake(&waiter, DONE);
        }
    }
}

fn wake(waiter: &Waiter, state: u32) {
    waiter.state.store(state, Ordering::Release);
    waiter.thread.unpark();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;

    /// A log whose sync takes a while and covers what was appended when it began.
    #[derive(Default)]
    struct Log {
        group: Group,
        next: AtomicU64,
        flushed: AtomicU64,
        syncs: AtomicU64,
        syncing: AtomicU32,
    }

    impl Log {
        fn commit(&self) {
            let lsn = self.next.fetch_add(1, Ordering::SeqCst) + 1;
            let done = || self.flushed.load(Ordering::SeqCst) >= lsn;
            while !done() {
                if self.group.enter(Lsn(lsn), done) == Role::Leader {
                    assert_eq!(
                        self.syncing.fetch_add(1, Ordering::SeqCst),
                        0,
                        "one sync at a time"
                    );
                    let covered = self.next.load(Ordering::SeqCst);
                    thread::sleep(Duration::from_micros(200));
                    self.flushed.store(covered, Ordering::SeqCst);
                    self.syncs.fetch_add(1, Ordering::SeqCst);
                    self.syncing.store(0, Ordering::SeqCst);
                    self.group.finish(Lsn(covered), false);
                }
            }
        }
    }

    #[test]
    fn a_sync_is_shared_by_all_who_wait() {
        let log = Log::default();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..200).for_each(|_| log.commit()));
            }
        });
        let syncs = log.syncs.load(Ordering::SeqCst);
        assert!(syncs <= 1000, "{syncs} syncs for 1600 commits of 8 threads");
        assert!(log.group.state.lock().waiters.is_empty());
        assert!(!log.group.state.lock().leading);
    }
}
