//! Many locks, and many who want one.

use std::collections::BTreeSet;
use std::time::Instant;

use super::*;

/// As a join leaves them. If each were compared with all others, this would take minutes, and so
/// would every write meanwhile.
#[test]
fn many_ranges_of_one_owner_cost_no_more_each() {
    const RANGES: u32 = 200_000;
    let ranges = RangeLocks::default();
    let (a, b) = (owner(1), owner(2));
    let start = Instant::now();
    for n in 0..RANGES {
        let key = n.wrapping_mul(2_654_435_761).to_be_bytes();
        ranges.acquire(&a, 1, &key, Some(&key), LockMode::Shared).ok().unwrap();
        assert_eq!(ranges.blockers(&b, 1, &key, LockMode::Exclusive).len(), 1);
        assert!(ranges.blockers(&b, 1, &key, LockMode::Shared).is_empty());
    }
    assert_eq!(ranges.len(), RANGES as usize);
    ranges.release(&a);
    assert!(ranges.is_empty() && start.elapsed() < Duration::from_secs(60));
}

/// Whom `from` waits for, by way of others too. Of those that are not in the graph yet it is not
/// known whom they wait for.
fn waited_for(
    from: u64,
    known: &BTreeSet<u64>,
    blockers: impl Fn(u64) -> Vec<Arc<Owner>>,
) -> BTreeSet<u64> {
    let (mut found, mut todo) = (BTreeSet::new(), vec![from]);
    while let Some(next) = todo.pop() {
        for number in blockers(next).iter().map(|owner| owner.number()) {
            if found.insert(number) && known.contains(&number) {
                todo.push(number);
            }
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::test_cases(300)))]
    #[test]
    fn looking_at_the_nearest_finds_all_that_are_waited_for(
        requests in prop::collection::vec((0u64..8, any::<bool>()), 1..20), known: u8,
    ) {
        let locks = Locks::default();
        let owners: Vec<_> = (0..8).map(owner).collect();
        let mut waiting = BTreeSet::new();
        for (who, exclusive) in requests {
            let mode = if exclusive { LockMode::Exclusive } else { LockMode::Shared };
            if !waiting.contains(&who) {
                let me = &owners[who as usize];
                let answer = locks.acquire(me, (1, b"k"), mode, None, true);
                if answer == Acquire::MustWait {
                    waiting.insert(who);
                }
            }
        }
        let known: BTreeSet<u64> =
            waiting.iter().copied().filter(|who| known >> who & 1 == 1).collect();
        for &me in &waiting {
            let all = |who: u64| locks.keys.blockers(&owners[who as usize], 1, b"k");
            let nearest = |who: u64| {
                let is_known = |other: &Owner| known.contains(&other.number());
                locks.keys.nearest_blockers(&owners[who as usize], 1, b"k", is_known)
            };
            prop_assert_eq!(waited_for(me, &known, nearest), waited_for(me, &known, all));
        }
    }
}

/// Each new one looks for a circle, with the graph's mutex in hand. If each of those in front of it
/// were asked for all in front of that one, this would take minutes.
#[test]
fn many_who_wait_for_one_key_cost_little_each() {
    let locks = Locks::default();
    let start = Instant::now();
    for one in (0..1500).map(owner) {
        let answer = locks.acquire(&one, (1, b"k"), LockMode::Exclusive, None, true);
        if answer == Acquire::MustWait {
            let target = wait::Target::Key { tree: 1, key: b"k"[..].into() };
            assert!(locks.graph.enter(&one, target, &locks.keys).victims.is_empty());
        }
    }
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn many_locks_leave_no_room_behind() {
    const LOCKS: u32 = 600_000;
    const OWNERS: u32 = LOCKS / QUEUED_LOCKS_MAX as u32;
    let locks = Locks::default();
    let owners: Vec<_> = (0..OWNERS).map(|n| owner(n.into())).collect();
    let stays = |n: u32| (n % OWNERS).is_multiple_of(1000);
    for n in 0..LOCKS {
        let key = (1, &n.to_be_bytes()[..]);
        let answer =
            locks.acquire(&owners[(n % OWNERS) as usize], key, LockMode::Shared, None, true);
        assert_eq!(answer, Acquire::Granted(true));
    }
    assert!(locks.keys.slots() >= LOCKS as usize);
    for (_, one) in (0..).zip(&owners).filter(|(n, _)| !stays(*n)) {
        locks.release_all(one);
    }
    assert!(locks.keys.slots() < LOCKS as usize / 8, "{}", locks.keys.slots());
    for n in (0..LOCKS).filter(|n| stays(*n)) {
        let one = &owners[(n % OWNERS) as usize];
        assert!(locks.keys.holds(one, 1, &n.to_be_bytes(), LockMode::Shared));
    }
    owners.iter().for_each(|one| locks.release_all(one));
    assert!(locks.keys.is_empty());
}
