//! Many threads on one tree whose pool holds a part of it.

use super::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::sync::atomic::{AtomicBool, Ordering};

/// Each writer owns the keys of its residue class, so it knows what must be there; the scanners
/// check what holds at any time.
#[test]
fn writers_and_scanners_share_a_tree() {
    const WRITERS: u64 = 4;
    let rounds = u64::from(crate::test_cases(12)) * 500;
    let tree = fixture::tree_in_background(96, 4096);
    let done = AtomicBool::new(false);
    let model = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|id| {
                scope.spawn({
                    let tree = &tree;
                    move || write(tree, id, WRITERS, rounds)
                })
            })
            .collect();
        for backward in [false, true] {
            scope.spawn({
                let (tree, done) = (&tree, &done);
                move || {
                    while !done.load(Ordering::Relaxed) {
                        let entries =
                            if backward { scan_backward(tree) } else { scan(tree) }.unwrap();
                        let in_order = |pair: &[(Vec<u8>, Vec<u8>)]| {
                            if backward { pair[0].0 > pair[1].0 } else { pair[0].0 < pair[1].0 }
                        };
                        assert!(entries.windows(2).all(in_order), "out of order");
                        for (key, payload) in &entries {
                            assert!(payload.iter().all(|&byte| byte == key[7]), "a torn entry");
                        }
                    }
                }
            });
        }
        scope.spawn({
            let (tree, done) = (&tree, &done);
            move || {
                while !done.load(Ordering::Relaxed) {
                    tree.check(&mut |_, _| Ok(())).unwrap();
                    tree.statistics().unwrap();
                    let (lo, hi) = (number_key(500), number_key(100_000));
                    tree.estimate_range(Bound::Included(&lo), Bound::Excluded(&hi)).unwrap();
                }
            }
        });
        let model = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        model
    });
    verify(&tree, &model);
}

fn write(tree: &Tree, id: u64, writers: u64, rounds: u64) -> Model {
    let mut rng = StdRng::seed_from_u64(id);
    let mut model = Model::new();
    for round in 0..rounds {
        // The range moves, so that leaves fill and empty for good; phases of growth and of
        // shrinking alternate.
        let n = (rng.random_range(0..2_000) + round / 4) * writers + id;
        let key = number_key(n);
        let is_growing = round / 1_500 % 2 == 0;
        if rng.random_ratio(if is_growing { 4 } else { 1 }, 5) {
            let payload = vec![n as u8; rng.random_range(0..200)];
            put(tree, &key, &payload).unwrap();
            model.insert(key, payload);
        } else {
            assert_eq!(remove(tree, &key).unwrap(), model.remove(&key).is_some());
        }
        if round % 8 == 0
            && let Some((key, payload)) = model.iter().nth(round as usize % 50)
        {
            assert_eq!(get(tree, key).unwrap().as_ref(), Some(payload));
        }
    }
    model
}
