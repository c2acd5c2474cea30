use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::compact::QUEUED_LOCKS_MAX;
use super::keys::{Acquire, Holders};
use super::owner::Named;
use super::ranges::RANGE_BYTES;
use super::*;

mod crowds;

const LONG: Duration = Duration::from_secs(60);

fn owner(n: u64) -> Arc<Owner> {
    Owner::new(n, Arc::new(Interrupt::default()))
}

fn writer(owner: &Arc<Owner>) -> Holders {
    Holders::Writer(Arc::clone(owner))
}

fn keeper(owner: &Arc<Owner>) -> Holders {
    Holders::Compact(vec![Arc::clone(owner)])
}

/// Who keeps the key so that `owner` may not lock it in this mode.
fn keepers(locks: &Locks, owner: &Owner, (tree, key): (u32, &[u8]), mode: LockMode) -> Vec<u64> {
    locks.compact.holders(owner, tree, key, mode).iter().map(|keeper| keeper.number()).collect()
}

fn waiting(owner: &Arc<Owner>) {
    while !owner.is_waiting() {
        thread::yield_now();
    }
}

/// Acquires as an operation does, which has looked for compact locks: again after each wait.
fn lock(
    locks: &Locks,
    owner: &Arc<Owner>,
    key: &[u8],
    mode: LockMode,
    timeout: Duration,
) -> Result<()> {
    loop {
        let keepers = locks.compact.holders(owner, 1, key, mode);
        let holders = (!keepers.is_empty()).then_some(Holders::Compact(keepers));
        match locks.acquire(owner, (1, key), mode, holders.as_ref(), true) {
            Acquire::Granted(_) => return Ok(()),
            Acquire::MustWait => locks.wait_for_key(owner, 1, key, timeout)?,
            Acquire::Retry => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn shared_locks_go_together_exclusive_ones_do_not() {
    let locks = Locks::default();
    let (a, b, c) = (owner(1), owner(2), owner(3));
    assert!(lock(&locks, &a, b"k", LockMode::Shared, LONG).is_ok());
    assert!(lock(&locks, &b, b"k", LockMode::Shared, LONG).is_ok());
    let answer = locks.acquire(&c, (1, b"k"), LockMode::Exclusive, None, false);
    assert_eq!(answer, Acquire::Conflict);
    // Another tree, another lock.
    let answer = locks.acquire(&c, (2, b"k"), LockMode::Exclusive, None, false);
    assert_eq!(answer, Acquire::Granted(true));
    locks.release_all(&a);
    locks.release_all(&b);
    assert_eq!(locks.keys.acquire_for_write(&c, 1, b"k", false), Acquire::Granted(false));
    locks.release_all(&c);
    assert!(locks.keys.is_empty());
}

#[test]
fn a_lone_holder_strengthens_its_lock_at_once() {
    let locks = Locks::default();
    let (a, b) = (owner(1), owner(2));
    lock(&locks, &a, b"k", LockMode::Shared, LONG).unwrap();
    lock(&locks, &a, b"k", LockMode::Exclusive, LONG).unwrap();
    assert!(locks.keys.holds(&a, 1, b"k", LockMode::Exclusive));
    assert_eq!(locks.acquire(&b, (1, b"k"), LockMode::Shared, None, false), Acquire::Conflict);
    locks.unlock(&a, 1, b"k");
    assert!(locks.keys.is_empty());
    assert_eq!(a.key_locks(), 0);
}

#[test]
fn a_timeout_withdraws_the_request() {
    let locks = Locks::default();
    let (a, b) = (owner(1), owner(2));
    lock(&locks, &a, b"k", LockMode::Exclusive, LONG).unwrap();
    let error = lock(&locks, &b, b"k", LockMode::Shared, Duration::from_millis(5)).unwrap_err();
    assert_eq!(error, Error::LockWaitTimeout);
    assert_eq!(b.key_locks(), 0);
    locks.release_all(&a);
    assert!(locks.keys.is_empty());
    // Zero seconds do not wait at all.
    lock(&locks, &b, b"k", LockMode::Exclusive, LONG).unwrap();
    let c = owner(3);
    let error = lock(&locks, &c, b"k", LockMode::Shared, Duration::ZERO).unwrap_err();
    assert_eq!(error, Error::LockWaitTimeout);
}

#[test]
fn an_interrupt_ends_the_wait_even_if_it_came_first() {
    let locks = Arc::new(Locks::default());
    let (a, b) = (owner(1), owner(2));
    lock(&locks, &a, b"k", LockMode::Exclusive, LONG).unwrap();
    let sleeper = {
        let (locks, b) = (Arc::clone(&locks), Arc::clone(&b));
        thread::spawn(move || lock(&locks, &b, b"k", LockMode::Shared, LONG))
    };
    waiting(&b);
    b.interrupt().interrupt();
    assert_eq!(sleeper.join().unwrap(), Err(Error::Interrupted));
    assert_eq!(lock(&locks, &b, b"k", LockMode::Shared, LONG), Err(Error::Interrupted));
    b.interrupt().clear();
    locks.release_all(&a);
    lock(&locks, &b, b"k", LockMode::Shared, LONG).unwrap();
}

#[test]
fn a_failure_of_the_log_ends_all_waits_and_lets_none_begin() {
    let failure = Arc::new(Failure::default());
    let locks = Arc::new(Locks::new(Arc::clone(&failure), || u64::MAX));
    let (holder, key, end) = (owner(1), owner(2), owner(3));
    lock(&locks, &holder, b"k", LockMode::Exclusive, LONG).unwrap();
    locks.ranges.acquire(&holder, 1, b"r", None, LockMode::Exclusive).ok().unwrap();
    let wait_for_end = {
        let (locks, holder) = (Arc::clone(&locks), Arc::clone(&holder));
        move |me: &Arc<Owner>| {
            let wanted = (1, &b"r"[..], LockMode::Exclusive);
            locks.wait_for_end(me, vec![Arc::clone(&holder)], wanted, LONG)
        }
    };
    let sleepers = thread::scope(|scope| {
        let sleepers = [
            scope.spawn(|| lock(&locks, &key, b"k", LockMode::Shared, LONG)),
            scope.spawn(|| wait_for_end(&end)),
        ];
        [&key, &end].into_iter().for_each(waiting);
        failure.set("a disk is gone");
        sleepers.map(|sleeper| sleeper.join().unwrap())
    });
    let stopped = || Err(Error::Crashed("a disk is gone".into()));
    assert_eq!(sleepers, [stopped(), stopped()]);
    let waits = locks.counters.waits.load(Ordering::Relaxed);
    assert_eq!(lock(&locks, &key, b"k", LockMode::Shared, LONG), stopped());
    assert_eq!(wait_for_end(&end), stopped());
    assert_eq!(locks.counters.waits.load(Ordering::Relaxed), waits);
    // Who is granted a lock has it, and nothing is left of the requests.
    lock(&locks, &holder, b"k", LockMode::Exclusive, LONG).unwrap();
    assert_eq!([&key, &end].map(|owner| (owner.is_waiting(), owner.key_locks())), [(false, 0); 2]);
    locks.release_all(&holder);
    assert!(locks.keys.is_empty());
}

/// Whichever comes first, the failure or the sleep.
#[test]
fn no_sleeper_misses_a_failure_of_the_log() {
    for _ in 0..300 {
        let failure = Arc::new(Failure::default());
        let locks = Locks::new(Arc::clone(&failure), || u64::MAX);
        let (a, b) = (owner(1), owner(2));
        lock(&locks, &a, b"k", LockMode::Exclusive, LONG).unwrap();
        let outcome = thread::scope(|scope| {
            let sleeper = scope.spawn(|| lock(&locks, &b, b"k", LockMode::Exclusive, LONG));
            failure.set("on purpose");
            sleeper.join().unwrap()
        });
        assert_eq!(outcome, Err(Error::Crashed("on purpose".into())));
    }
}

#[test]
fn an_implicit_lock_becomes_explicit_for_whoever_waits() {
    let locks = Arc::new(Locks::default());
    let (a, b) = (owner(1), owner(2));
    let answer = locks.acquire(&b, (1, b"k"), LockMode::Shared, Some(&writer(&a)), true);
    assert_eq!(answer, Acquire::MustWait);
    let holder = {
        let (locks, a, b) = (Arc::clone(&locks), Arc::clone(&a), Arc::clone(&b));
        thread::spawn(move || {
            waiting(&b);
            locks.release_all(&a);
        })
    };
    locks.wait_for_key(&b, 1, b"k", LONG).unwrap();
    holder.join().unwrap();
    assert!(locks.keys.holds(&b, 1, b"k", LockMode::Shared));
    // The holder ended in between: nothing to wait for.
    let c = owner(3);
    let answer = locks.acquire(&c, (1, b"x"), LockMode::Shared, Some(&writer(&a)), true);
    assert_eq!(answer, Acquire::Retry);
    locks.release_all(&b);
    assert!(locks.keys.is_empty());
}

#[test]
fn all_locks_are_told_with_whom_they_wait_for() {
    let locks = Locks::default();
    let (a, b, c) = (owner(1), owner(2), owner(3));
    lock(&locks, &a, b"k", LockMode::Shared, LONG).unwrap();
    lock(&locks, &b, b"k", LockMode::Shared, LONG).unwrap();
    lock(&locks, &a, b"x", LockMode::Exclusive, LONG).unwrap();
    assert!(locks.ranges.acquire(&b, 2, b"a", None, LockMode::Shared).is_ok());
    let answer = locks.acquire(&c, (1, b"k"), LockMode::Exclusive, None, true);
    assert_eq!(answer, Acquire::MustWait);
    let (records, is_truncated) = locks.records(1 << 20);
    assert!(!is_truncated);
    let mut told: Vec<_> = records
        .iter()
        .map(|r| {
            let blockers: Vec<u64> = r.blockers.iter().map(|o| o.number()).collect();
            (r.tree, r.covers.clone(), r.owner.number(), r.mode, r.granted, blockers)
        })
        .collect();
    told.sort_by_key(|r| (r.0, r.1.low().to_vec(), r.2));
    let key = |key: &[u8]| report::Covers::Key(key.into());
    assert_eq!(
        told,
        [
            (1, key(b"k"), 1, LockMode::Shared, true, vec![]),
            (1, key(b"k"), 2, LockMode::Shared, true, vec![]),
            (1, key(b"k"), 3, LockMode::Exclusive, false, vec![1, 2]),
            (1, key(b"x"), 1, LockMode::Exclusive, true, vec![]),
            (2, report::Covers::Range(b"a"[..].into(), None), 2, LockMode::Shared, true, vec![]),
        ]
    );
    // As many as there is room for.
    let (some, is_truncated) = locks.records(size_of::<report::LockRecord>() * 2 + 64);
    assert!(is_truncated && (1..5).contains(&some.len()), "{}", some.len());
    locks.keys.withdraw(&c, 1, b"k");
    [&a, &b, &c].into_iter().for_each(|owner| locks.release_all(owner));
    assert_eq!(locks.records(1 << 20).0.len(), 0);
}

#[test]
fn a_waiter_tells_what_it_waits_for() {
    let locks = Arc::new(Locks::default());
    let (a, b) = (owner(1), owner(2));
    lock(&locks, &a, b"k", LockMode::Exclusive, LONG).unwrap();
    let waiter = {
        let (locks, b) = (Arc::clone(&locks), Arc::clone(&b));
        thread::spawn(move || lock(&locks, &b, b"k", LockMode::Shared, LONG))
    };
    let wanted = loop {
        match b.requested() {
            Some(wanted) => break wanted,
            None => thread::yield_now(),
        }
    };
    assert_eq!((wanted.tree, &*wanted.key, wanted.until_end_of.len()), (1, &b"k"[..], 0));
    locks.release_all(&a);
    waiter.join().unwrap().unwrap();
    assert!(b.requested().is_none());
}

#[test]
fn the_queue_is_served_in_order() {
    let locks = Arc::new(Locks::default());
    let first = owner(1);
    lock(&locks, &first, b"k", LockMode::Exclusive, LONG).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut threads = Vec::new();
    for n in 2..8 {
        let (locks, order, me) = (Arc::clone(&locks), Arc::clone(&order), owner(n));
        let answer = locks.acquire(&me, (1, b"k"), LockMode::Exclusive, None, true);
        assert_eq!(answer, Acquire::MustWait);
        threads.push(thread::spawn(move || {
            locks.wait_for_key(&me, 1, b"k", LONG).unwrap();
            order.lock().push(n);
            locks.release_all(&me);
        }));
    }
    locks.release_all(&first);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*order.lock(), (2..8).collect::<Vec<_>>());
    assert!(locks.keys.is_empty());
}

/// a holds x and wants y, b holds y and wants x.
fn crossed(weight_a: u64, weight_b: u64) -> (Result<()>, Result<()>) {
    let locks = Arc::new(Locks::default());
    let (a, b) = (owner(1), owner(2));
    a.set_undo_records(weight_a);
    b.set_undo_records(weight_b);
    lock(&locks, &a, b"x", LockMode::Exclusive, LONG).unwrap();
    lock(&locks, &b, b"y", LockMode::Exclusive, LONG).unwrap();
    let first = {
        let (locks, a) = (Arc::clone(&locks), Arc::clone(&a));
        thread::spawn(move || {
            let outcome = lock(&locks, &a, b"y", LockMode::Exclusive, LONG);
            locks.release_all(&a);
            outcome
        })
    };
    waiting(&a);
    let second = lock(&locks, &b, b"x", LockMode::Exclusive, LONG);
    locks.release_all(&b);
    let first = first.join().unwrap();
    assert!(locks.keys.is_empty());
    assert_eq!(locks.counters.deadlocks.load(Ordering::Relaxed), 1);
    (first, second)
}

#[test]
fn a_deadlock_costs_the_one_with_the_fewest_undo_records() {
    assert_eq!(crossed(1, 9), (Err(Error::Deadlock), Ok(())));
    assert_eq!(crossed(9, 1), (Ok(()), Err(Error::Deadlock)));
    // Equal: the one that closed the cycle.
    assert_eq!(crossed(5, 5), (Ok(()), Err(Error::Deadlock)));
}

/// (waiter, holder) as reported, and what to do then: interrupt that owner, if any. `answer` is
/// given.
#[derive(Default)]
struct Told {
    pairs: Mutex<Vec<(usize, Option<usize>)>>,
    interrupts: Mutex<Option<Arc<Interrupt>>>,
    answer: bool,
}

struct Observer(Arc<Told>);

impl WaitObserver for Observer {
    fn waits_for(&self, waiter: SessionToken, holder: Option<SessionToken>) -> bool {
        self.0.pairs.lock().push((waiter.0, holder.map(|holder| holder.0)));
        if let Some(interrupt) = self.0.interrupts.lock().take() {
            interrupt.interrupt();
        }
        self.0.answer
    }
}

/// Locks whose waits are noted.
fn observed(answer: bool) -> (Arc<Locks>, Arc<Told>) {
    let (locks, told) = (Arc::new(Locks::default()), Arc::new(Told { answer, ..Told::default() }));
    assert!(locks.set_observer(Box::new(Observer(Arc::clone(&told)))));
    assert!(!locks.set_observer(Box::new(Observer(Arc::clone(&told)))), "there is one already");
    (locks, told)
}

/// An owner whose session is named after its number.
fn named(n: u64) -> (Arc<Owner>, Named) {
    let owner = owner(n);
    let named = owner.name_session(SessionToken(n as usize));
    (owner, named)
}

impl Told {
    fn wait_for(&self, expected: &[(usize, Option<usize>)]) {
        let deadline = std::time::Instant::now() + LONG;
        while *self.pairs.lock() != expected {
            assert!(std::time::Instant::now() < deadline, "{:?}", self.pairs.lock());
            thread::yield_now();
        }
    }
}

/// Locks in a thread, lets go of all then, and gives the outcome.
fn lock_beside(
    locks: &Arc<Locks>,
    owner: &Arc<Owner>,
    key: &'static [u8],
    mode: LockMode,
) -> thread::JoinHandle<Result<()>> {
    let (locks, me) = (Arc::clone(locks), Arc::clone(owner));
    let thread = thread::spawn(move || {
        let outcome = lock(&locks, &me, key, mode, LONG);
        locks.release_all(&me);
        outcome
    });
    waiting(owner);
    thread
}

#[test]
fn a_wait_is_told_with_all_in_front() {
    let (locks, told) = observed(false);
    let ((a, _a), (b, _b), nobody, (d, _d)) = (named(1), named(2), owner(3), named(4));
    lock(&locks, &a, b"k", LockMode::Exclusive, LONG).unwrap();
    // Implicit locks are reported as others are.
    assert_eq!(
        locks.acquire(&b, (1, b"x"), LockMode::Shared, Some(&writer(&a)), true),
        Acquire::MustWait
    );
    assert_eq!(locks.wait_for_key(&b, 1, b"x", Duration::ZERO), Err(Error::LockWaitTimeout));
    told.wait_for(&[(2, Some(1))]);
    told.pairs.lock().clear();
    let second = lock_beside(&locks, &b, b"k", LockMode::Exclusive);
    told.wait_for(&[(2, Some(1))]);
    // One without a name reports nothing, and is reported without one.
    let third = lock_beside(&locks, &nobody, b"k", LockMode::Exclusive);
    let fourth = lock_beside(&locks, &d, b"k", LockMode::Shared);
    told.wait_for(&[(2, Some(1)), (4, Some(1)), (4, Some(2)), (4, None)]);
    // Nothing is reported for those that stay when one in front goes.
    locks.release_all(&a);
    for waiter in [second, third, fourth] {
        assert_eq!(waiter.join().unwrap(), Ok(()));
    }
    assert_eq!(told.pairs.lock().len(), 4);
}

#[test]
fn a_wait_for_a_range_is_told_with_all_who_cover_the_key() {
    let (locks, told) = observed(false);
    let ((a, _a), (b, _b), (c, _c)) = (named(1), named(2), named(3));
    for owner in [&a, &b] {
        assert!(locks.ranges.acquire(owner, 1, b"a", None, LockMode::Shared).is_ok());
    }
    let blockers = locks.ranges.blockers(&c, 1, b"k", LockMode::Exclusive);
    let wanted = (1, &b"k"[..], LockMode::Exclusive);
    let outcome = locks.wait_for_end(&c, blockers, wanted, Duration::ZERO);
    assert_eq!(outcome, Err(Error::LockWaitTimeout));
    told.wait_for(&[(3, Some(1)), (3, Some(2))]);
}

#[test]
fn a_waiter_that_is_passed_tells_again() {
    // Whether the one that passes has its stronger lock at once, or waits for it.
    for others in [0, 1] {
        let (locks, told) = observed(false);
        let ((a, _a), (b, _b), (c, _c), other) = (named(1), named(2), named(3), owner(9));
        lock(&locks, &a, b"k", LockMode::Shared, LONG).unwrap();
        if others == 1 {
            lock(&locks, &other, b"k", LockMode::Shared, LONG).unwrap();
        }
        let writer = lock_beside(&locks, &b, b"k", LockMode::Exclusive);
        let reader = lock_beside(&locks, &c, b"k", LockMode::Shared);
        told.wait_for(if others == 0 {
            &[(2, Some(1)), (3, Some(2))]
        } else {
            &[(2, Some(1)), (2, None), (3, Some(2))]
        });
        told.pairs.lock().clear();
        // What is held is what the reader would share; what is asked for is not.
        let answer = locks.acquire(&a, (1, b"k"), LockMode::Exclusive, None, true);
        let must_wait = others == 1;
        assert_eq!(answer == Acquire::MustWait, must_wait);
        let has_told = |pair| told.pairs.lock().contains(&pair);
        let deadline = std::time::Instant::now() + LONG;
        while !(has_told((3, Some(1))) && has_told((2, Some(1)))) {
            assert!(std::time::Instant::now() < deadline, "{:?}", told.pairs.lock());
            thread::yield_now();
        }
        if must_wait {
            locks.release_all(&other);
            locks.wait_for_key(&a, 1, b"k", LONG).unwrap();
        }
        locks.release_all(&a);
        assert_eq!((writer.join().unwrap(), reader.join().unwrap()), (Ok(()), Ok(())));
        assert!(locks.keys.is_empty());
    }
}

/// As a replica does: the holder, which waits itself, is killed for the one that waits for it.
#[test]
fn the_observer_may_interrupt_the_holder() {
    let (locks, told) = observed(true);
    let (first, (holder, _holder), (waiter, _waiter)) = (owner(1), named(2), named(3));
    lock(&locks, &first, b"x", LockMode::Exclusive, LONG).unwrap();
    lock(&locks, &holder, b"k", LockMode::Exclusive, LONG).unwrap();
    let killed = lock_beside(&locks, &holder, b"x", LockMode::Exclusive);
    told.wait_for(&[(2, None)]);
    *told.interrupts.lock() = Some(Arc::clone(holder.interrupt()));
    lock(&locks, &waiter, b"k", LockMode::Exclusive, LONG).unwrap();
    assert_eq!(killed.join().unwrap(), Err(Error::Interrupted));
    told.wait_for(&[(2, None), (3, Some(2))]);
    // Who holds what it waited for is not concerned.
    assert!(locks.keys.holds(&first, 1, b"x", LockMode::Exclusive));
}

#[test]
fn one_that_will_be_rolled_back_is_the_victim() {
    for (answer, outcome) in [(true, Ok(())), (false, Err(Error::Deadlock))] {
        let (locks, _) = observed(answer);
        let (b, (a, _a)) = (owner(2), named(1));
        // By what it has written it would be spared.
        b.set_undo_records(9);
        lock(&locks, &a, b"x", LockMode::Exclusive, LONG).unwrap();
        lock(&locks, &b, b"y", LockMode::Exclusive, LONG).unwrap();
        let other = lock_beside(&locks, &b, b"x", LockMode::Exclusive);
        assert_eq!(lock(&locks, &a, b"y", LockMode::Exclusive, LONG), outcome);
        locks.release_all(&a);
        assert_eq!(other.join().unwrap().is_ok(), outcome.is_err());
    }
}

#[test]
fn a_name_is_not_forgotten_while_somebody_is_told_it() {
    struct Slow(Arc<(Mutex<bool>, AtomicU64)>);
    impl WaitObserver for Slow {
        fn waits_for(&self, _: SessionToken, holder: Option<SessionToken>) -> bool {
            assert_eq!(holder, Some(SessionToken(1)));
            self.0.1.store(1, Ordering::SeqCst);
            // Until the test lets go, and longer than the other thread would need to end.
            drop(self.0.0.lock());
            thread::sleep(Duration::from_millis(50));
            self.0.1.store(2, Ordering::SeqCst);
            false
        }
    }
    let locks = Arc::new(Locks::default());
    let state = Arc::new((Mutex::new(false), AtomicU64::new(0)));
    locks.set_observer(Box::new(Slow(Arc::clone(&state))));
    let ((a, name), (b, _b)) = (named(1), named(2));
    lock(&locks, &a, b"k", LockMode::Exclusive, LONG).unwrap();
    let gate = state.0.lock();
    let waiter = lock_beside(&locks, &b, b"k", LockMode::Exclusive);
    while state.1.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    drop(gate);
    drop(name);
    assert_eq!(state.1.load(Ordering::SeqCst), 2, "the call is over");
    locks.release_all(&a);
    assert_eq!(waiter.join().unwrap(), Ok(()));
}

#[test]
fn two_shared_holders_that_both_strengthen_are_a_deadlock() {
    let locks = Arc::new(Locks::default());
    let (a, b) = (owner(1), owner(2));
    lock(&locks, &a, b"k", LockMode::Shared, LONG).unwrap();
    lock(&locks, &b, b"k", LockMode::Shared, LONG).unwrap();
    let first = {
        let (locks, a) = (Arc::clone(&locks), Arc::clone(&a));
        thread::spawn(move || lock(&locks, &a, b"k", LockMode::Exclusive, LONG))
    };
    waiting(&a);
    let second = lock(&locks, &b, b"k", LockMode::Exclusive, LONG);
    assert_eq!(second, Err(Error::Deadlock));
    assert!(locks.keys.holds(&b, 1, b"k", LockMode::Shared), "what was held stays held");
    locks.release_all(&b);
    assert_eq!(first.join().unwrap(), Ok(()));
    assert!(locks.keys.holds(&a, 1, b"k", LockMode::Exclusive));
}

#[test]
fn one_wait_may_close_several_cycles() {
    for weight in [0, 9] {
        let locks = Arc::new(Locks::default());
        let (a, b, c) = (owner(1), owner(2), owner(3));
        a.set_undo_records(weight);
        for other in [&b, &c] {
            other.set_undo_records(5);
            lock(&locks, other, b"k", LockMode::Shared, LONG).unwrap();
        }
        lock(&locks, &a, b"y", LockMode::Exclusive, LONG).unwrap();
        lock(&locks, &a, b"z", LockMode::Exclusive, LONG).unwrap();
        let others = [(&b, b"y"), (&c, b"z")].map(|(other, key)| {
            let (locks, me) = (Arc::clone(&locks), Arc::clone(other));
            let thread = thread::spawn(move || {
                let outcome = lock(&locks, &me, key, LockMode::Exclusive, LONG);
                locks.release_all(&me);
                outcome
            });
            waiting(other);
            thread
        });
        let outcome = lock(&locks, &a, b"k", LockMode::Exclusive, LONG);
        locks.release_all(&a);
        let outcomes = others.map(|thread| thread.join().unwrap());
        if weight == 0 {
            assert_eq!((outcome, outcomes), (Err(Error::Deadlock), [Ok(()), Ok(())]));
        } else {
            let deadlock = || Err(Error::Deadlock);
            assert_eq!((outcome, outcomes), (Ok(()), [deadlock(), deadlock()]));
        }
        assert!(locks.keys.is_empty());
    }
}

#[test]
fn a_cycle_through_a_range_is_seen() {
    let locks = Arc::new(Locks::default());
    let (a, b) = (owner(1), owner(2));
    locks.ranges.acquire(&a, 1, b"a", Some(b"m"), LockMode::Shared).ok().unwrap();
    lock(&locks, &b, b"z", LockMode::Exclusive, LONG).unwrap();
    let first = {
        let (locks, a) = (Arc::clone(&locks), Arc::clone(&a));
        thread::spawn(move || lock(&locks, &a, b"z", LockMode::Shared, LONG))
    };
    waiting(&a);
    let blockers = locks.ranges.blockers(&b, 1, b"c", LockMode::Exclusive);
    assert_eq!(blockers.len(), 1);
    assert_eq!(
        locks.wait_for_end(&b, blockers, (1, b"k", LockMode::Exclusive), LONG),
        Err(Error::Deadlock)
    );
    locks.release_all(&b);
    assert_eq!(first.join().unwrap(), Ok(()));
}

#[test]
fn waiting_for_an_end_that_has_come_returns_at_once() {
    let locks = Locks::default();
    let (a, b) = (owner(1), owner(2));
    locks.release_all(&a);
    locks.wait_for_end(&b, vec![Arc::clone(&a)], (1, b"k", LockMode::Shared), LONG).unwrap();
    assert!(!b.is_waiting());
}

#[test]
fn ranges_of_one_owner_melt() {
    let ranges = RangeLocks::default();
    let (a, b) = (owner(1), owner(2));
    for (low, high) in [(b"b", b"d"), (b"d", b"f"), (b"f", b"h"), (b"c", b"e")] {
        ranges.acquire(&a, 1, low, Some(high), LockMode::Shared).ok().unwrap();
    }
    assert_eq!(ranges.len(), 1);
    assert!(ranges.holds(&a, 1, b"b", LockMode::Shared));
    assert!(!ranges.holds(&a, 1, b"b", LockMode::Exclusive));
    assert!(ranges.blockers(&b, 1, b"a", LockMode::Exclusive).is_empty());
    assert_eq!(ranges.blockers(&b, 1, b"h", LockMode::Exclusive).len(), 1);
    assert!(ranges.blockers(&b, 1, b"h", LockMode::Shared).is_empty());
    assert!(ranges.blockers(&b, 1, b"ha", LockMode::Exclusive).is_empty());
    assert!(ranges.blockers(&a, 1, b"c", LockMode::Exclusive).is_empty(), "not its own");
    ranges.acquire(&a, 1, b"g", None, LockMode::Shared).ok().unwrap();
    assert_eq!(ranges.blockers(&b, 1, b"zzz", LockMode::Exclusive).len(), 1);
    assert!(ranges.acquire(&b, 1, b"a", Some(b"b"), LockMode::Exclusive).is_err());
    ranges.acquire(&b, 1, b"a", Some(b"b"), LockMode::Shared).ok().unwrap();
    ranges.release(&a);
    assert_eq!(ranges.len(), 1);
    ranges.release(&b);
    assert!(ranges.is_empty());
}

#[test]
fn a_range_survives_one_of_another_mode_that_covers_part_of_it() {
    let ranges = RangeLocks::default();
    let (a, b) = (owner(1), owner(2));
    for (low, high, mode) in [
        (b"a", b"f", LockMode::Shared),
        (b"e", b"z", LockMode::Exclusive),
        (b"e", b"g", LockMode::Shared),
    ] {
        ranges.acquire(&a, 1, low, Some(high), mode).ok().unwrap();
    }
    for key in [b"a", b"c", b"e", b"g", b"z"] {
        assert_eq!(ranges.blockers(&b, 1, key, LockMode::Exclusive).len(), 1, "{key:?}");
    }
    assert!(ranges.blockers(&b, 1, b"d", LockMode::Shared).is_empty());
    assert_eq!(ranges.blockers(&b, 1, b"f", LockMode::Shared).len(), 1);
    ranges.release(&a);
    assert!(ranges.is_empty());
}

/// Bytes of the keys of all ranges, counted one by one.
fn key_bytes_of_ranges(locks: &Locks) -> usize {
    let (records, _) = locks.records(usize::MAX);
    let len = |record: &report::LockRecord| match &record.covers {
        report::Covers::Range(low, high) => low.len() + high.as_ref().map_or(0, |high| high.len()),
        report::Covers::Key(_) => 0,
    };
    records.iter().map(len).sum()
}

/// Those that a lookup in vain locks: of one key each.
#[test]
fn a_range_takes_the_memory_of_its_keys() {
    let ranges = RangeLocks::default();
    let a = owner(1);
    for n in 0..100u16 {
        let key = [&n.to_be_bytes()[..], &[7; 3000]].concat();
        ranges.acquire(&a, 1, &key, Some(&key), LockMode::Shared).ok().unwrap();
    }
    assert!((600_000..650_000).contains(&ranges.memory_bytes()), "{}", ranges.memory_bytes());
    ranges.acquire(&a, 1, b"", None, LockMode::Shared).ok().unwrap();
    assert!(ranges.memory_bytes() < 1000, "they have melted");
    ranges.release(&a);
    assert_eq!(ranges.memory_bytes(), 0);
}

/// Ends of ranges in the model, as many single bytes; and this one stands for no end.
const ENDS: u8 = 12;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::test_cases(300)))]
    /// Ranges against a model that notes the mode of each key, at the ends and in the gaps between.
    #[test]
    fn range_locks_follow_a_model(
        steps in prop::collection::vec((0usize..3, 0..ENDS, 0..=ENDS, any::<bool>(), 0u8..20), 1..40),
    ) {
        let keys: Vec<Vec<u8>> = (0..ENDS).flat_map(|end| [vec![end], vec![end, 7]]).collect();
        let locks = Locks::default();
        let ranges = &locks.ranges;
        let owners: Vec<_> = (0..3).map(owner).collect();
        let mut model = vec![vec![LockMode::None; keys.len()]; owners.len()];
        for (who, low, high, exclusive, what) in steps {
            if what == 0 {
                ranges.release(&owners[who]);
                model[who].fill(LockMode::None);
                continue;
            }
            let mode = if exclusive { LockMode::Exclusive } else { LockMode::Shared };
            let (low, high) = (vec![low.min(high).min(ENDS - 1)], low.max(high));
            let high = (high < ENDS).then(|| vec![high]);
            let inside = |key: &Vec<u8>| *key >= low && high.as_ref().is_none_or(|high| key <= high);
            let inside: Vec<usize> = (0..keys.len()).filter(|at| inside(&keys[*at])).collect();
            let blocked = (0..owners.len())
                .any(|other| other != who && inside.iter().any(|at| model[other][*at].conflicts(mode)));
            let answer = ranges.acquire(&owners[who], 1, &low, high.as_deref(), mode);
            prop_assert_eq!(answer.is_err(), blocked);
            if !blocked {
                inside.iter().for_each(|at| model[who][*at] = model[who][*at].max(mode));
            }
            let key_bytes = key_bytes_of_ranges(&locks);
            prop_assert_eq!(ranges.memory_bytes() as usize, ranges.len() * RANGE_BYTES + key_bytes);
            for (at, key) in keys.iter().enumerate() {
                for mode in [LockMode::Shared, LockMode::Exclusive] {
                    for me in 0..owners.len() {
                        let others = (0..owners.len()).filter(|other| *other != me);
                        let expected = others.filter(|other| model[*other][at].conflicts(mode)).count();
                        prop_assert_eq!(ranges.blockers(&owners[me], 1, key, mode).len(), expected);
                        prop_assert_eq!(ranges.holds(&owners[me], 1, key, mode), model[me][at] >= mode);
                    }
                }
            }
        }
        owners.iter().for_each(|owner| ranges.release(owner));
        prop_assert!(ranges.is_empty());
        prop_assert_eq!(ranges.memory_bytes(), 0);
    }

    /// The queue's grants against a model: conflicts never granted together, first come first
    /// served.
    #[test]
    fn key_locks_follow_a_model(steps in prop::collection::vec((0u64..5, 0u8..4, any::<bool>()), 1..80)) {
        let locks = Locks::default();
        let owners: Vec<_> = (0..5).map(owner).collect();
        for (who, what, exclusive) in steps {
            let me = &owners[who as usize];
            let mode = if exclusive { LockMode::Exclusive } else { LockMode::Shared };
            if me.is_waiting() {
                // Gives up, as after a timeout.
                me.end_wait();
                locks.keys.withdraw(me, 1, b"k");
            } else if what == 0 {
                locks.unlock(me, 1, b"k");
            } else {
                locks.acquire(me, (1, b"k"), mode, None, what != 1);
            }
            let held: BTreeMap<u64, LockMode> = owners
                .iter()
                .filter_map(|o| {
                    let mode = [LockMode::Exclusive, LockMode::Shared];
                    let mode = mode.into_iter().find(|mode| locks.keys.holds(o, 1, b"k", *mode))?;
                    Some((o.number(), mode))
                })
                .collect();
            for (a, mode_a) in &held {
                for (b, mode_b) in &held {
                    prop_assert!(a == b || !mode_a.conflicts(*mode_b));
                }
            }
            for o in &owners {
                // Every waiter has a reason.
                prop_assert_eq!(o.is_waiting(), !locks.keys.blockers(o, 1, b"k").is_empty());
                prop_assert_eq!(o.key_locks() > 0, o.is_waiting() || held.contains_key(&o.number()));
            }
        }
    }
}

#[test]
fn hot_keys_under_threads_lose_no_wake_up() {
    let locks = Arc::new(Locks::default());
    let inside: Arc<Vec<AtomicU64>> = Arc::new((0..3).map(|_| AtomicU64::new(0)).collect());
    let numbers = Arc::new(AtomicU64::new(1));
    let threads: Vec<_> = (0..6u64)
        .map(|seed| {
            let (locks, inside, numbers) =
                (Arc::clone(&locks), Arc::clone(&inside), Arc::clone(&numbers));
            thread::spawn(move || {
                let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
                for _ in 0..300 {
                    let me = owner(numbers.fetch_add(1, Ordering::Relaxed));
                    let mut mine = Vec::new();
                    for _ in 0..2 {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let at = random % 3;
                        let key = [at as u8];
                        if lock(&locks, &me, &key, LockMode::Exclusive, LONG).is_err() {
                            break;
                        }
                        if !mine.contains(&at) {
                            assert_eq!(inside[at as usize].fetch_add(1, Ordering::SeqCst), 0);
                            mine.push(at);
                        }
                    }
                    for at in mine {
                        inside[at as usize].fetch_sub(1, Ordering::SeqCst);
                    }
                    locks.release_all(&me);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(locks.keys.is_empty());
    assert_eq!(locks.counters.timeouts.load(Ordering::Relaxed), 0);
}

/// A thread that asks for locks on a key in a range must not slip in while the range's owner makes
/// it longer, elsewhere in the tree.
#[test]
fn a_range_is_never_gone_while_it_grows() {
    let locks = Locks::default();
    let (scanner, writer) = (owner(1), owner(2));
    let grow = |to: u32| {
        let from = to.saturating_sub(1).to_be_bytes();
        let to = to.to_be_bytes();
        locks.ranges.acquire(&scanner, 1, &from, Some(&to), LockMode::Shared).ok().unwrap();
    };
    grow(1);
    thread::scope(|scope| {
        let growing = scope.spawn(|| (2..300_000).for_each(grow));
        while !growing.is_finished() {
            let key = 0u32.to_be_bytes();
            let blockers = locks.ranges.blockers(&writer, 1, &key, LockMode::Exclusive);
            assert_eq!(blockers.len(), 1, "the lock was gone for a moment");
            assert!(locks.ranges.holds(&scanner, 1, &key, LockMode::Shared));
        }
    });
    assert_eq!(locks.ranges.len(), 1);
    locks.ranges.release(&scanner);
    assert!(locks.ranges.is_empty());
}

fn numbered(n: usize) -> [u8; 8] {
    (n as u64).to_be_bytes()
}

#[test]
fn the_locks_of_an_owner_of_many_hold_as_its_first_do() {
    let locks = Locks::default();
    let (many, other) = (owner(1), owner(2));
    let all = QUEUED_LOCKS_MAX + 2000;
    for n in 0..all {
        let answer = locks.acquire(&many, (1, &numbered(n)), LockMode::Exclusive, None, true);
        assert_eq!(answer, Acquire::Granted(true));
    }
    assert_eq!((locks.keys.len(), locks.compact.len()), (QUEUED_LOCKS_MAX, all - QUEUED_LOCKS_MAX));
    let last = numbered(all - 1);
    let again = locks.acquire(&many, (1, &last), LockMode::Exclusive, None, true);
    assert_eq!(again, Acquire::Granted(false));
    // A request as a reader's gets the answer; one that has not looked before is sent to look.
    assert_eq!(keepers(&locks, &other, (1, &last), LockMode::Shared), [many.number()]);
    assert!(keepers(&locks, &other, (2, &last), LockMode::Exclusive).is_empty(), "another tree");
    let unaware = locks.acquire(&other, (1, &last), LockMode::Shared, None, true);
    assert_eq!(unaware, Acquire::Retry);
    let aware = locks.acquire(&other, (1, &last), LockMode::Shared, Some(&keeper(&many)), false);
    assert_eq!(aware, Acquire::Conflict);
    assert!(locks.compact.memory_bytes() < 2 * locks.compact.len() as u64, "of keys in a row");
    for n in 0..all {
        let wanted = numbered(n << 20);
        locks.acquire(&many, (3, &wanted), LockMode::Exclusive, None, true);
        assert!(
            n == all - 1
                || keepers(&locks, &other, (3, &numbered((n << 20) + 1)), LockMode::Exclusive)
                    .is_empty()
        );
    }
    assert_eq!(locks.compact.len(), 2 * all - QUEUED_LOCKS_MAX);
    assert!(locks.compact.memory_bytes() < 40 * locks.compact.len() as u64, "of keys far apart");
    locks.unlock(&many, 1, &last);
    assert!(keepers(&locks, &other, (1, &last), LockMode::Exclusive).is_empty());
    locks.release_all(&many);
    locks.release_all(&other);
    assert!(locks.keys.is_empty() && locks.compact.is_empty());
}

#[test]
fn who_waits_for_one_of_many_locks_gets_it_when_it_is_given_up() {
    let locks = Arc::new(Locks::default());
    let many = owner(1);
    for n in 0..QUEUED_LOCKS_MAX + 2 {
        lock(&locks, &many, &numbered(n), LockMode::Exclusive, LONG).unwrap();
    }
    for (end, n) in [(false, QUEUED_LOCKS_MAX), (true, QUEUED_LOCKS_MAX + 1)] {
        let other = owner(n as u64);
        let waiter = thread::spawn({
            let (locks, many, other) = (Arc::clone(&locks), Arc::clone(&many), Arc::clone(&other));
            move || {
                let wanted = (1, &numbered(n)[..]);
                let answer =
                    locks.acquire(&other, wanted, LockMode::Exclusive, Some(&keeper(&many)), true);
                assert_eq!(answer, Acquire::MustWait);
                locks.wait_for_key(&other, 1, &numbered(n), LONG).unwrap();
                locks.release_all(&other);
            }
        });
        waiting(&other);
        match end {
            true => locks.release_all(&many),
            false => locks.unlock(&many, 1, &numbered(n)),
        }
        waiter.join().unwrap();
    }
    assert!(locks.keys.is_empty() && locks.compact.is_empty());
}

/// A reader sees the lock, then its owner gives it up, then others lock the row: the owner must not
/// be found in front of them.
#[test]
fn one_of_many_locks_that_was_given_up_meanwhile_is_not_made_explicit() {
    let locks = Locks::default();
    let (many, reader, late) = (owner(1), owner(2), owner(3));
    for n in 0..QUEUED_LOCKS_MAX + 1 {
        lock(&locks, &many, &numbered(n), LockMode::Exclusive, LONG).unwrap();
    }
    let key = numbered(QUEUED_LOCKS_MAX);
    let seen = Some(keeper(&many));
    assert_eq!(keepers(&locks, &late, (1, &key), LockMode::Exclusive), [1]);
    locks.unlock(&many, 1, &key);
    let answer = locks.acquire(&late, (1, &key), LockMode::Exclusive, seen.as_ref(), true);
    assert_eq!(answer, Acquire::Retry, "no owner has it");
    let answer = locks.acquire(&reader, (1, &key), LockMode::Shared, None, true);
    assert_eq!(answer, Acquire::Granted(true));
    let answer = locks.acquire(&late, (1, &key), LockMode::Exclusive, seen.as_ref(), true);
    assert_eq!(answer, Acquire::Retry, "the reader has it");
    assert!(!locks.keys.holds(&many, 1, &key, LockMode::Shared));
    // Nor is a shared lock made stronger that it has taken since.
    let answer = locks.acquire(&many, (1, &key), LockMode::Shared, None, true);
    assert_eq!(answer, Acquire::Granted(true));
    let answer = locks.acquire(&late, (1, &key), LockMode::Exclusive, seen.as_ref(), true);
    assert_eq!(answer, Acquire::Retry);
    let answer = locks.acquire(&many, (1, &key), LockMode::Exclusive, None, false);
    assert_eq!(answer, Acquire::Conflict);
    [&many, &reader, &late].into_iter().for_each(|owner| locks.release_all(owner));
    assert!(locks.keys.is_empty() && locks.compact.is_empty());
}

#[test]
fn who_has_given_up_waiting_for_an_end_is_forgotten() {
    let locks = Locks::default();
    let holder = owner(1);
    locks.ranges.acquire(&holder, 1, b"a", Some(b"z"), LockMode::Shared).ok().unwrap();
    for n in 2..20 {
        let writer = owner(n);
        let wanted = (1, &b"k"[..], LockMode::Exclusive);
        let outcome =
            locks.wait_for_end(&writer, vec![Arc::clone(&holder)], wanted, Duration::ZERO);
        assert_eq!(outcome, Err(Error::LockWaitTimeout));
        assert_eq!(Arc::strong_count(&writer), 1);
    }
    locks.release_all(&holder);
}

/// A later read that finds one of many locks held has nothing to give up, however it asks.
#[test]
fn one_of_many_locks_is_not_taken_anew() {
    let locks = Locks::default();
    let (many, other) = (owner(1), owner(2));
    for n in 0..QUEUED_LOCKS_MAX + 1 {
        lock(&locks, &many, &numbered(n), LockMode::Exclusive, LONG).unwrap();
    }
    let key = numbered(QUEUED_LOCKS_MAX);
    for is_one_less in [false, true] {
        if is_one_less {
            // From here on new ones go to the table again.
            locks.unlock(&many, 1, &numbered(0));
        }
        for mode in [LockMode::Shared, LockMode::Exclusive] {
            let again = locks.acquire(&many, (1, &key), mode, None, true);
            assert_eq!(again, Acquire::Granted(false), "{mode:?}, {is_one_less}");
        }
    }
    assert_eq!((locks.keys.len(), locks.compact.len()), (QUEUED_LOCKS_MAX - 1, 1));
    assert!(!keepers(&locks, &other, (1, &key), LockMode::Exclusive).is_empty());
    locks.release_all(&many);
    assert!(locks.keys.is_empty() && locks.compact.is_empty());
}

fn owner_of_many(locks: &Locks, number: u64) -> Arc<Owner> {
    let many = owner(number);
    for n in 0..QUEUED_LOCKS_MAX {
        let key = [&number.to_be_bytes()[..], &numbered(n)].concat();
        lock(locks, &many, &key, LockMode::Exclusive, LONG).unwrap();
    }
    many
}

#[test]
fn shared_locks_of_owners_of_many_go_together_and_keep_writers_out() {
    let locks = Arc::new(Locks::default());
    let readers = [owner_of_many(&locks, 1), owner_of_many(&locks, 2)];
    let (writer, key) = (owner(3), b"shared");
    for reader in &readers {
        lock(&locks, reader, key, LockMode::Shared, LONG).unwrap();
        let again = locks.acquire(reader, (1, key), LockMode::Shared, None, true);
        assert_eq!(again, Acquire::Granted(false));
    }
    assert_eq!(locks.compact.len(), 2);
    assert!(keepers(&locks, &writer, (1, key), LockMode::Shared).is_empty());
    assert_eq!(keepers(&locks, &writer, (1, key), LockMode::Exclusive), [1, 2]);
    let unaware = locks.acquire(&writer, (1, key), LockMode::Exclusive, None, true);
    assert_eq!(unaware, Acquire::Retry);
    let waiter = thread::spawn({
        let (locks, writer) = (Arc::clone(&locks), Arc::clone(&writer));
        move || lock(&locks, &writer, key, LockMode::Exclusive, LONG)
    });
    waiting(&writer);
    // Nor does another reader come in front of it.
    let late = locks.acquire(&owner(4), (1, key), LockMode::Shared, None, false);
    assert_eq!(late, Acquire::Conflict);
    locks.release_all(&readers[0]);
    assert!(writer.is_waiting(), "the other still holds it");
    locks.unlock(&readers[1], 1, key);
    waiter.join().unwrap().unwrap();
    assert!(locks.keys.holds(&writer, 1, key, LockMode::Exclusive));
    [&readers[1], &writer].into_iter().for_each(|owner| locks.release_all(owner));
    assert!(locks.keys.is_empty() && locks.compact.is_empty());
}

/// Each of two strengthens the shared lock that both have: one must go.
#[test]
fn a_compact_shared_lock_is_strengthened() {
    let locks = Arc::new(Locks::default());
    let (one, other, key) = (owner_of_many(&locks, 1), owner_of_many(&locks, 2), b"k");
    lock(&locks, &one, key, LockMode::Shared, LONG).unwrap();
    let alone = locks.acquire(&one, (1, key), LockMode::Exclusive, None, true);
    assert_eq!(alone, Acquire::Granted(false), "it was locked before, and stays so");
    assert_eq!(keepers(&locks, &other, (1, key), LockMode::Shared), [1]);
    locks.unlock(&one, 1, key);
    for owner in [&one, &other] {
        lock(&locks, owner, key, LockMode::Shared, LONG).unwrap();
    }
    let first = thread::spawn({
        let (locks, one) = (Arc::clone(&locks), Arc::clone(&one));
        move || {
            let outcome = lock(&locks, &one, key, LockMode::Exclusive, LONG);
            locks.release_all(&one);
            outcome
        }
    });
    waiting(&one);
    let second = lock(&locks, &other, key, LockMode::Exclusive, LONG);
    locks.release_all(&other);
    let mut outcomes = [first.join().unwrap(), second];
    outcomes.sort_by_key(|outcome| outcome.is_ok());
    assert_eq!(outcomes, [Err(Error::Deadlock), Ok(())]);
    assert!(locks.keys.is_empty() && locks.compact.is_empty());
}

#[test]
fn locks_take_as_much_memory_as_they_may() {
    const ROOM: u64 = 1 << 20;
    let locks = Locks::new(Arc::default(), || ROOM);
    let many = owner_of_many(&locks, 1);
    let mut n = 0;
    let refused = loop {
        // Each has a place in memory that it shares with no other.
        match locks.acquire(&many, (1, &numbered(n << 6)), LockMode::Shared, None, true) {
            Acquire::Granted(true) => n += 1,
            other => break other,
        }
    };
    assert_eq!(refused, Acquire::NoRoom);
    assert!(n > 10_000, "{n} locks");
    let before = locks.compact.memory_bytes();
    assert!(before > ROOM / 4 && before <= ROOM, "{before} bytes");
    // A rollback must keep what it keeps.
    assert!(locks.keep(&many, 1, &numbered(n << 6)));
    assert!(locks.compact.memory_bytes() > before);
    let other = owner(2);
    let first = locks.acquire(&other, (1, b"k"), LockMode::Shared, None, true);
    assert_eq!(first, Acquire::Granted(true), "a few are always granted");
    locks.release_all(&many);
    assert_eq!(locks.compact.memory_bytes(), 0);
    locks.check_room().unwrap();
    for n in 0.. {
        let key = numbered(n << 1);
        locks.ranges.acquire(&other, 1, &key, Some(&key), LockMode::Shared).ok().unwrap();
        if let Err(error) = locks.check_room() {
            let Error::TooManyLocks(bytes) = error else { panic!("{error}") };
            assert!(bytes > ROOM && bytes < ROOM + 1024, "{bytes}");
            break;
        }
    }
}

/// Both hold the latch of the key's leaf, which two readers may.
#[test]
fn of_two_readers_that_race_for_a_key_one_gets_it() {
    const KEYS: usize = 3000;
    // Locks that each of the two has before.
    for before in [[QUEUED_LOCKS_MAX, QUEUED_LOCKS_MAX], [QUEUED_LOCKS_MAX, 0]] {
        let locks = Locks::default();
        let granted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        let arrived: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for (me, before) in before.into_iter().enumerate() {
                let (locks, granted, arrived) = (&locks, &granted, &arrived);
                scope.spawn(move || {
                    let reader = owner(1 + me as u64);
                    for n in 0..before {
                        lock(
                            locks,
                            &reader,
                            &[&[me as u8], &numbered(n)[..]].concat(),
                            LockMode::Exclusive,
                            LONG,
                        )
                        .unwrap();
                    }
                    for n in 0..KEYS {
                        arrived[n].fetch_add(1, Ordering::SeqCst);
                        while arrived[n].load(Ordering::SeqCst) < 2 {
                            std::hint::spin_loop();
                        }
                        let key = numbered(n);
                        let answer = loop {
                            let keepers =
                                locks.compact.holders(&reader, 1, &key, LockMode::Exclusive);
                            let holders =
                                (!keepers.is_empty()).then_some(Holders::Compact(keepers));
                            let answer = locks.acquire(
                                &reader,
                                (1, &key),
                                LockMode::Exclusive,
                                holders.as_ref(),
                                false,
                            );
                            if answer != Acquire::Retry {
                                break answer;
                            }
                        };
                        match answer {
                            Acquire::Granted(_) => _ = granted[n].fetch_add(1, Ordering::SeqCst),
                            answer => assert_eq!(answer, Acquire::Conflict),
                        }
                    }
                });
            }
        });
        for (n, granted) in granted.iter().enumerate() {
            assert_eq!(granted.load(Ordering::SeqCst), 1, "key {n}");
        }
    }
}
