//! Skip pointers: old views of a row that is changed all the time read what they saw, and pass few
//! of its versions.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::undo::records_read_by_thread;
use crate::versioned::skip_pointers::{Interval, set_interval};

/// Views that stay open, each with the value that it must see.
type Views = Vec<(TransactionCore, Option<Vec<u8>>)>;

fn check(engine: &Engine, views: &mut Views, when: &str) {
    let tree = &engine.trees[0];
    for (n, (view, seen)) in views.iter_mut().enumerate() {
        assert_eq!(&get(view, tree, b"k"), seen, "view {n}, {when}");
        let expected: Vec<_> = seen.iter().map(|value| (b"k".to_vec(), value.clone())).collect();
        for direction in [Direction::Forward, Direction::Backward] {
            assert_eq!(scan_all(view, tree, direction).unwrap(), expected, "view {n}, {when}");
        }
    }
}

fn value(random: &mut StdRng, n: u32) -> Vec<u8> {
    let len = match random.random_range(0..20) {
        // In overflow pages.
        0 => random.random_range(9000..20_000),
        _ => random.random_range(0..60),
    };
    let mut value = n.to_le_bytes().to_vec();
    value.resize(4 + len, random.random_range(0..3));
    value
}

/// One change of the row, be it there or not. Gives its value then.
fn change(
    engine: &Engine,
    trx: &mut TransactionCore,
    now: Option<&[u8]>,
    (random, n): (&mut StdRng, u32),
) -> Option<Vec<u8>> {
    let tree = &engine.trees[0];
    let new = value(random, n);
    match now {
        None => tree.insert(trx, b"k", &new, LockMode::None).unwrap(),
        Some(_) if random.random_ratio(1, 10) => {
            tree.delete(trx, b"k").unwrap();
            return None;
        }
        Some(_) => tree.update(trx, b"k", &new).unwrap(),
    }
    Some(new)
}

#[test]
fn old_views_see_what_they_saw_whatever_the_row_becomes() {
    for seed in 0..crate::test_cases(12) as u64 {
        let mut random = StdRng::seed_from_u64(seed);
        let engine = engine();
        let (mut views, mut committed): (Views, _) = (Vec::new(), None);
        for n in 0..400u32 {
            if random.random_ratio(1, 12) {
                let mut view = engine.begin(RepeatableRead);
                view.ensure_view();
                views.push((view, committed.clone()));
            }
            if random.random_ratio(1, 30) && !views.is_empty() {
                drop(views.swap_remove(random.random_range(0..views.len())));
            }
            let mut writer = engine.begin(ReadCommitted);
            let mut now: Option<Vec<u8>> = committed.clone();
            for part in 0..random.random_range(1..6) {
                let savepoint = writer.savepoint();
                let next =
                    change(&engine, &mut writer, now.as_deref(), (&mut random, n * 8 + part));
                match random.random_ratio(1, 6) {
                    true => drop(writer.rollback_to(savepoint).unwrap()),
                    false => now = next,
                }
            }
            if random.random_ratio(1, 8) {
                check(&engine, &mut views, &format!("seed {seed}, beside a writer at {n}"));
            }
            match random.random_ratio(1, 5) {
                true => writer.rollback().unwrap(),
                false => {
                    writer.commit().unwrap();
                    committed = now;
                }
            }
            if random.random_ratio(1, 20) {
                engine.system.purge_step(5).unwrap();
            }
            if n % 20 == 0 {
                check(&engine, &mut views, &format!("seed {seed}, at {n}"));
            }
        }
        check(&engine, &mut views, &format!("seed {seed}, at the end"));
        drop(views);
        engine.settle().unwrap();
        engine.check_settled().unwrap();
    }
}

/// How many undo records a view reads that is this many versions old.
fn records_read(versions: u32) -> u64 {
    let engine = engine();
    put(&engine, b"k", b"seen");
    let mut old = engine.begin(RepeatableRead);
    old.ensure_view();
    for n in 0..versions {
        put(&engine, b"k", &n.to_le_bytes().repeat(1 + n as usize % 20));
    }
    let before = records_read_by_thread();
    assert_eq!(get(&mut old, &engine.trees[0], b"k").unwrap(), b"seen");
    records_read_by_thread() - before
}

#[test]
fn a_view_passes_few_of_many_versions() {
    const VERSIONS: u32 = 14_000;
    set_interval(Interval::Shipped);
    let read = records_read(VERSIONS);
    assert!(read < u64::from(VERSIONS) / 64 * 2 + 4 * 64, "{read} records");
    set_interval(Interval::Never);
    assert!(records_read(VERSIONS) >= u64::from(VERSIONS));
}
