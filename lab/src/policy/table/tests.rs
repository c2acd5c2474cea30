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

    /// No policy says "hit" for a page it never saw, holds more than its capacity, or beats the
    /// optimum.
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

#[test]
fn sizes_are_pages_or_shares_of_the_trace() {
    let capacity = |text: &str| text.parse::<Size>().map(|size| size.capacity(1000));
    assert_eq!(capacity("25%"), Ok(250));
    assert_eq!(capacity("0.1%"), Ok(4));
    assert_eq!(capacity("2000"), Ok(2000));
    for wrong in ["", "%", "0", "-3", "0%", "101%", "NaN%", "many"] {
        let error = capacity(wrong).unwrap_err();
        assert!(error.contains("a number of pages is wanted"), "{error}");
    }
}

fn by_hand(ratios: &[[f64; 3]]) -> Table {
    let row = |(at, ratios): (usize, &[f64; 3])| Row {
        trace: ["a", "a", "b"][at].into(),
        traces: 1,
        pages: 100,
        capacity: 10 * (at + 1),
        miss_ratios: ratios.to_vec(),
    };
    Table {
        policies: ["tide", "lru", "optimum"].map(String::from).to_vec(),
        rows: ratios.iter().enumerate().map(row).collect(),
    }
}

#[test]
fn the_optimum_is_no_rival_and_equal_is_equal() {
    let table = by_hand(&[[0.3, 0.2, 0.1], [0.0, 0.0, 0.0], [0.1, 0.2, 0.1]]);
    let against: Vec<_> =
        table.rows.iter().map(|row| table.against_best(&row.miss_ratios).unwrap()).collect();
    assert!((against[0] - 0.5).abs() < 1e-9, "{against:?}");
    assert_eq!(against[1..], [0.0, -0.5]);
    assert!((table.mean_of("lru").unwrap() - 0.4 / 3.0).abs() < 1e-9);
    assert_eq!(table.mean_of("clock"), None);
    let text = table.markdown();
    assert!(text.contains("| a | 10 | 30.00 | 20.00 | 10.00 | +50.0 % |"), "{text}");
    assert!(text.contains("| a | 15.00 | 10.00 lru | +50.0 % |"), "{text}");
    assert!(text.contains("2 of 3 rows are within 2 %"), "{text}");
}

#[test]
fn tables_of_several_seeds_become_their_mean() {
    let one = by_hand(&[[0.3, 0.2, 0.1], [0.0, 0.0, 0.0], [0.1, 0.2, 0.1]]);
    let other = by_hand(&[[0.1, 0.2, 0.1], [0.0, 0.0, 0.0], [0.3, 0.2, 0.1]]);
    let mean = mean(&[one, other]).unwrap();
    assert_eq!(mean.rows[0].traces, 2);
    assert!((mean.rows[0].miss_ratios[0] - 0.2).abs() < 1e-9);
    assert_eq!(super::mean(&[]), None);
}

#[test]
fn the_table_is_the_same_whichever_thread_is_first() {
    let traces = [generate::uniform(60, 2000, 1), generate::looping(50, 20, 1)];
    let (policies, sizes) = (["lru", "tide", "optimum"], [Size::Percent(10.0), Size::Pages(30)]);
    let table = measure(&traces, &policies, &sizes, |_, _| ());
    assert_eq!(table.rows.len(), 4);
    for (at, row) in table.rows.iter().enumerate() {
        let trace = &traces[at / 2];
        assert_eq!(row.trace, trace.name);
        assert_eq!(row.capacity, sizes[at % 2].capacity(trace.distinct_pages()));
        for (name, ratio) in policies.iter().zip(&row.miss_ratios) {
            let mut policy = make(name, row.capacity, trace).unwrap();
            let outcome = replay(policy.as_mut(), trace, trace.requests.len() / 4);
            assert_eq!(*ratio, outcome.miss_ratio(), "{name} on {}", trace.name);
        }
    }
}

#[test]
fn a_page_made_anew_is_not_read() {
    let mut trace = trace(&[1, 2, 3, 1]);
    trace.requests[1].created = true;
    let outcome = replay(make("lru", 4, &trace).unwrap().as_mut(), &trace, 0);
    assert_eq!((outcome.requests, outcome.misses), (4, 2));
}
