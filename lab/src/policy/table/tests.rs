use super::*;
use crate::policy::generate;
use crate::policy::trace::Request;
use proptest::prelude::*;

fn trace(pages: &[u64]) -> Trace {
    let request = |(at, &page): (usize, &u64)| Request {
        page,
        at_us: at as u64,
        statement: at as u64,
        scan: false,
        created: false,
    };
    Trace::new("t", pages.iter().enumerate().map(request).collect())
}

/// The fewest misses possible, by trying everything: only for tiny traces.
fn fewest_misses(pages: &[u64], capacity: usize, resident: &mut Vec<u64>) -> u64 {
    let Some((&page, rest)) = pages.split_first() else { return 0 };
    if resident.contains(&page) {
        return fewest_misses(rest, capacity, resident);
    }
    let mut best = fewest_misses(rest, capacity, resident);
    if resident.len() < capacity {
        resident.push(page);
        best = best.min(fewest_misses(rest, capacity, resident));
        resident.pop();
    } else {
        for slot in 0..resident.len() {
            let victim = std::mem::replace(&mut resident[slot], page);
            best = best.min(fewest_misses(rest, capacity, resident));
            resident[slot] = victim;
        }
    }
    best + 1
}

proptest! {
    #[test]
    fn belady_is_the_optimum(pages in prop::collection::vec(0u64..5, 0..11), capacity in 1usize..4) {
        let trace = trace(&pages);
        let outcome = replay(make("optimum", capacity, &trace).unwrap().as_mut(), &trace, 0);
        prop_assert_eq!(outcome.misses, fewest_misses(&pages, capacity, &mut Vec::new()));
    }

    /// No policy says "hit" for a page it never saw, holds more than its capacity, or beats the optimum.
    #[test]
    fn policies_are_sane(raw in prop::collection::vec((0u64..40, 0u64..30, any::<bool>()), 0..400), capacity in 4usize..30) {
        let requests: Vec<_> = raw.iter().enumerate().map(|(at, &(page, statement, scan))| {
            Request { page, at_us: at as u64 * 10_000, statement, scan, created: false }
        }).collect();
        let trace = Trace::new("t", requests);
        let optimum = replay(make("optimum", capacity, &trace).unwrap().as_mut(), &trace, 0).misses;
        for name in NAMES {
            let mut policy = make(name, capacity, &trace).unwrap();
            let mut seen = std::collections::HashSet::new();
            let mut misses = 0;
            for request in &trace.requests {
                let hit = policy.request(request);
                prop_assert!(!hit || seen.contains(&request.page), "{} invents hits", name);
                prop_assert!(policy.resident() <= capacity, "{} holds too much", name);
                seen.insert(request.page);
                misses += u64::from(!hit);
            }
            prop_assert!(misses >= optimum, "{} beats the optimum", name);
        }
    }
}

#[test]
fn what_fits_is_read_once_by_every_policy() {
    let pages: Vec<u64> = (0..20).chain(0..20).chain(0..20).collect();
    let trace = trace(&pages);
    for name in NAMES {
        let outcome = replay(make(name, 20, &trace).unwrap().as_mut(), &trace, 0);
        let expected = if name == "w-tinylfu" { 20..=25 } else { 20..=20 };
        assert!(expected.contains(&outcome.misses), "{name}: {}", outcome.misses);
    }
}

#[test]
fn lru_has_no_hit_in_a_loop_and_the_default_has() {
    let trace = generate::looping(200, 10, 1);
    let run = |name| replay(make(name, 100, &trace).unwrap().as_mut(), &trace, 400).miss_ratio();
    assert_eq!(run("lru"), 1.0);
    assert!(run("tide") < 0.65, "{}", run("tide"));
}

#[test]
fn a_dump_does_not_wash_out_the_default_announced_or_not() {
    for announced in [true, false] {
        let trace = generate::beside_a_dump(500, 60_000, announced, 1);
        let foreground = |name: &str| {
            let mut policy = make(name, 588, &trace).unwrap();
            let (mut misses, mut asked) = (0, 0);
            for (at, request) in trace.requests.iter().enumerate() {
                let hit = policy.request(request);
                if request.page < 1 << 40 && at > trace.requests.len() / 2 {
                    asked += 1;
                    misses += u64::from(!hit);
                }
            }
            misses as f64 / asked as f64
        };
        assert!(foreground("tide") < 0.001, "announced {announced}: {}", foreground("tide"));
        assert!(foreground("lru") > 0.1);
    }
}
