use std::sync::Arc;

use super::curve::REQUESTS_PER_SECOND_MAX;
use super::*;
use crate::access_sampling::Touch;
use crate::config::PoolConfig;
use crate::page::{Lsn, PageId, PageSize};
use crate::pool::Pool;
use crate::replacement::Access;
use crate::space::Space;
use crate::statement;
use crate::storage::{SimStorage, Storage};
use crate::test_files;
use crate::trace::{Trace, TraceRequest};

/// Numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Sysbench's Pareto: four fifths of the draws are in the first fifth, again and again.
    fn pareto(&mut self, end: u64) -> u64 {
        let share = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (end as f64 * share.powf(0.2_f64.ln() / 0.8_f64.ln())) as u64 % end
    }
}

/// Point selects: a root, one of a few inner pages, a leaf; 5000 statements a second.
fn point_selects(pages: u64, statements: u64, mut leaf: impl FnMut(&mut Random) -> u64) -> Trace {
    let mut random = Random(1);
    let mut requests = Vec::new();
    for statement in 0..statements {
        let leaf = leaf(&mut random);
        for page in [pages + pages / 500 + 1, pages + leaf / 500, leaf] {
            let page = PageId::new(17, page as u32).to_u64();
            let at_us = statement * 200;
            requests.push(TraceRequest { page, at_us, statement, ..TraceRequest::default() });
        }
    }
    Trace::new("point selects", requests)
}

/// A loop over all pages beside skewed selects, with pages made anew at the end of the file.
fn mixed(pages: u64, statements: u64) -> Trace {
    let mut trace = point_selects(pages, statements, |random| random.pareto(pages));
    let mut made = pages * 2;
    for (statement, three) in trace.requests.chunks_mut(3).enumerate() {
        let turn = statement as u64;
        if turn.is_multiple_of(4) {
            let (page, statement) = (turn / 4 % (pages / 2) + pages * 4, u64::MAX);
            three[0] = TraceRequest { page, statement, scan: true, ..three[0] };
        } else if turn.is_multiple_of(7) {
            made += 1;
            three[2] = TraceRequest { page: made, created: true, ..three[2] };
        }
    }
    trace
}

#[test]
fn predictions_are_near_what_the_whole_policy_does() {
    let pages = 12_000;
    let uniform = point_selects(pages, 100_000, |random| random.below(pages));
    let pareto = point_selects(pages, 100_000, |random| random.pareto(pages));
    for (name, trace) in
        [("uniform", uniform), ("pareto", pareto), ("mixed", mixed(pages, 100_000))]
    {
        let config = ReplacementConfig::default();
        let rows = compare(&config, 4000, &trace, trace.requests.len() / 3).unwrap();
        assert_eq!(rows.len(), SIZE_FACTORS.len());
        assert!(rows.is_sorted_by(|a, b| a.predicted <= b.predicted), "{name}: {rows:#?}");
        let errors = || rows.iter().map(|row| (row.predicted - row.measured).abs());
        let mean = errors().sum::<f64>() / rows.len() as f64;
        let worst = errors().fold(0.0, f64::max);
        assert!(mean <= 0.015 && worst <= 0.04, "{name}: mean {mean:.4}, {rows:#?}");
        let span = rows[8].measured - rows[0].measured;
        assert!(span > 0.08, "{name} distinguishes sizes: {span}");
    }
}

fn event(page: u64, at_us: u64, statement: u32) -> Event {
    Event { page, at_us, statement, touch: Touch::Normal, count: 1 }
}

/// `seconds` of requests, `each_second` a second, for pages that `next` draws.
fn run(curve: &mut Curve, seconds: u64, each_second: u64, mut next: impl FnMut() -> u64) {
    for tenth in 0..seconds * 10 {
        let count = each_second / 10;
        let mut events: Vec<Event> = (0..count)
            .map(|n| event(next(), tenth * 100_000, (tenth * count + n) as u32))
            .filter(|event| curve.sample().holds(event.page))
            .collect();
        curve.drop_certain_hits(&mut events);
        curve.observe(&events);
        curve.account(count, 0.0, 0.1).unwrap();
    }
}

#[test]
fn resizing_the_pool_to_and_fro_leaves_the_evidence_alone() {
    let mut curve = Curve::new(&ReplacementConfig::default(), 2000).unwrap();
    let mut random = Random(3);
    run(&mut curve, 60, 5000, || random.below(10_000));
    let sizes = [700.0, 1000.0, 2000.0, 5000.0, 7900.0];
    let before = sizes.map(|size| curve.miss_ratio(size).unwrap());
    for frames in [2400, 3000, 2500, 1500, 1300, 1900, 2000] {
        curve.set_present(frames).unwrap();
    }
    assert_eq!(sizes.map(|size| curve.miss_ratio(size).unwrap()), before);
    curve.set_present(2500).unwrap();
    run(&mut curve, 60, 5000, || random.below(10_000));
    for (size, before) in sizes.into_iter().zip(before) {
        let now = curve.miss_ratio(size).unwrap();
        assert!((now - before).abs() < 0.03, "{size}: {before} became {now}");
    }
    // A size that was out of reach is now known, or held to be no better than what is known.
    let beyond = curve.miss_ratio(10_000.0).unwrap();
    assert!(beyond <= curve.miss_ratio(7900.0).unwrap() && beyond < 0.15, "{beyond}");
}

#[test]
fn a_load_that_has_ended_leaves_no_trace_after_a_minute() {
    let mut random = Random(3);
    let mut curve = Curve::new(&ReplacementConfig::default(), 4000).unwrap();
    assert_eq!(curve.reads_lately(4000.0), None);
    run(&mut curve, 60, 600, || random.below(3500));
    let reads = curve.reads_lately(1200.0).unwrap();
    assert!(reads > 150.0, "{reads}");
    // A quarter of the pages is used again and again; the decayed curve still knows of the others.
    run(&mut curve, 70, 600, || random.below(800));
    let reads = curve.reads_lately(1200.0).unwrap();
    assert!(reads < COST_PER_SECOND, "{reads}");
    let decayed = curve.miss_ratio(1200.0).unwrap() * curve.requests_per_second();
    assert!(decayed > 10.0 * COST_PER_SECOND, "{decayed}");
    // The largest simulations still hold what was used before: if it is asked for again, they hit
    // and the small ones miss.
    run(&mut curve, 1, 600, || random.below(3500));
    assert!(curve.reads_lately(1200.0).unwrap() > 3.0);
    assert!(curve.reads_lately(8000.0).unwrap() < COST_PER_SECOND);
}

#[test]
fn the_work_keeps_to_its_bound_and_the_curve_stays_right() {
    let mut curve = Curve::new(&ReplacementConfig::default(), 4000).unwrap();
    let mut random = Random(5);
    // A root that half of all requests are for, and far more requests than may be simulated.
    let mut next = || if random.below(2) == 0 { 77 } else { random.below(20_000) };
    run(&mut curve, 3, 200_000, &mut next);
    assert!(curve.simulated_per_second() < REQUESTS_PER_SECOND_MAX * 1.2);
    assert!(curve.sample() < Sample::of_rate(0.3), "{:?}", curve.sample());
    curve.forget();
    run(&mut curve, 3, 200_000, &mut next);
    let hit_ratio = 1.0 - curve.miss_ratio(4000.0).unwrap();
    let expected = 0.5 + 0.5 * 4000.0 / 20_000.0;
    assert!((hit_ratio - expected).abs() < 0.03, "{hit_ratio} for {expected}");
    // When the load has gone, the sample grows again.
    let busy = curve.sample();
    run(&mut curve, 100, 100, &mut next);
    assert!(curve.sample() > busy);
}

#[test]
fn what_is_worth_memory_has_hysteresis() {
    let saved = |saved, misses| Saved { misses, saved, seconds: 10.0 };
    assert!(is_worth_it(saved(100.0, 1e6), false), "ten a second, whatever they are of all");
    assert!(!is_worth_it(saved(60.0, 1e6), false) && is_worth_it(saved(60.0, 1e6), true));
    assert!(is_worth_it(saved(10.0, 1000.0), false), "a hundredth of all");
    assert!(!is_worth_it(saved(10.0, 1001.0), false) && is_worth_it(saved(10.0, 1900.0), true));
    assert!(!is_worth_it(saved(4.0, 4.0), true), "too few to matter");
    assert!(!is_worth_it(Saved::default(), true));
}

/// A pool of 800 frames without threads, and its space.
fn pool(pages: u32) -> (Arc<Pool>, Arc<Space>) {
    let storage: Arc<dyn Storage> = Arc::new(SimStorage::new(1));
    let file = storage.create("16.tpd").unwrap();
    let config = PoolConfig {
        page_size: PageSize::new(4096).unwrap(),
        size_bytes: 800 * 4096,
        background: false,
        ..PoolConfig::default()
    };
    let pool = Pool::new(config, storage).unwrap();
    let space = pool.open_space(16, test_files::create(file, 16, pool.page_size())).unwrap();
    for no in 0..pages {
        let mut guard = pool.new_page(&space, no).unwrap();
        pool.mark_dirty(&mut guard, Lsn(u64::from(no) + 1), Lsn(u64::from(no) + 2));
    }
    pool.flush_space(&space).unwrap();
    (pool, space)
}

/// `seconds` of 500 statements each.
fn read(pool: &Pool, space: &Space, seconds: u32, mut next: impl FnMut() -> u32) {
    for _ in 0..seconds * 10 {
        for _ in 0..50 {
            statement::begin();
            drop(pool.shared(space, next(), Access::Normal).unwrap());
        }
        pool.advance_clock(100);
        pool.run_advisor_step();
    }
}

#[test]
fn advice_for_the_present_size_is_what_the_pool_does() {
    let (pool, space) = pool(3000);
    let mut random = Random(9);
    read(&pool, &space, 60, || random.below(3000) as u32);
    let before = pool.stats();
    read(&pool, &space, 200, || random.below(3000) as u32);
    let after = pool.stats();
    let reads = (after.reads - before.reads) as f64;
    let measured = 1.0 - reads / (after.read_requests - before.read_requests) as f64;
    let advice = pool.advice();
    let row = advice.rows[4];
    assert_eq!((row.size_factor, row.size_bytes), (1.0, pool.stats().pages_total * 4096));
    assert!((row.hit_ratio - measured).abs() < 0.02, "{} for {measured}", row.hit_ratio);
    assert!((row.reads_per_second / (reads / 200.0) - 1.0).abs() < 0.05, "{advice:#?}");
    assert!((advice.requests_per_second - 500.0).abs() < 5.0, "{advice:#?}");
    assert!(advice.rows[8].hit_ratio > 0.98, "four times the size holds all: {advice:#?}");
    assert!(advice.wants_more());
}

#[test]
fn more_memory_is_wanted_while_it_would_be_used() {
    // All fits: no.
    let (fits, space) = pool(600);
    let mut random = Random(9);
    read(&fits, &space, 30, || random.below(600) as u32);
    assert!(!fits.advice().wants_more());

    // Pages that are never read twice: at first that can't be known, then no.
    let (streams, space) = pool(60_000);
    // Not among the pages that were just made.
    let mut position = 5000;
    let mut next = || {
        position += 1;
        position
    };
    read(&streams, &space, 3, &mut next);
    assert!(streams.advice().wants_more());
    read(&streams, &space, 60, &mut next);
    assert!(!streams.advice().wants_more());

    // A set that is a little larger than the pool, of which reads come again: yes.
    read(&streams, &space, 30, || random.below(900) as u32);
    assert!(streams.advice().wants_more());
    // Then only what fits; some minutes later, what was is forgotten.
    read(&streams, &space, 200, || random.below(300) as u32);
    assert!(!streams.advice().wants_more());
}

#[test]
fn without_accesses_there_is_advice_without_reads() {
    let (pool, _) = pool(10);
    pool.advance_clock(2000);
    pool.run_advisor_step();
    let advice = pool.advice();
    assert_eq!(advice.rows.len(), 9);
    assert!(advice.rows.iter().all(|row| row.reads_per_second == 0.0 && row.hit_ratio == 1.0));
    assert!(!advice.wants_more());
}

#[test]
fn turned_off_it_hears_nothing_and_a_full_pool_wants_more() {
    let (pool, space) = pool(3000);
    let mut random = Random(2);
    pool.set_advice(false).unwrap();
    read(&pool, &space, 5, || random.below(3000) as u32);
    let advice = pool.advice();
    assert!(advice.wants_more());
    assert_eq!((advice.sampled_pages, advice.requests_per_second), (0, 0.0));
    pool.set_advice(true).unwrap();
    read(&pool, &space, 5, || random.below(3000) as u32);
    let advice = pool.advice();
    assert!((advice.requests_per_second - 500.0).abs() < 5.0, "{advice:#?}");
    assert!(advice.sampled_pages > 0 && advice.rows[0].hit_ratio < 1.0, "{advice:#?}");
}
