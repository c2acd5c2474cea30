//! Power cuts in the middle of splits and merges, from a seed.
//!
//! Every change of an entry is one mini-transaction whose LSN is remembered, so the log's end at
//! the recovery says exactly which entries must be there. And the tree must be whole, and own every
//! page that is allocated: a crash leaks nothing.

use super::*;
use crate::env::EnvOptions;
use crate::error::Error;
use crate::redo::tests::seeds;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tidepool_pool::Lsn;
use tidepool_pool::storage::SimStorage;

/// A change: the key, its new payload or `None` for a removal, and the end of its mini-transaction.
type Change = (Lsn, Vec<u8>, Option<Vec<u8>>);

const ROOT: u32 = 2;

#[test]
fn any_crash_leaves_a_whole_tree() {
    for seed in seeds(30) {
        run(seed);
    }
}

fn run(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let options = fixture::options(rng.random_range(20..80), 4096 << (seed % 5));
    let mut storage = SimStorage::new(seed);
    let mut model = Model::new();
    let mut is_created = false;
    for _life in 0..rng.random_range(1..4) {
        if rng.random_bool(0.8) {
            storage.crash_at(storage.operation_count() + rng.random_range(1..3_000));
        }
        let mut changes = Vec::new();
        let mut created_at = None;
        let result =
            live(&storage, &options, &mut rng, is_created, &model, &mut changes, &mut created_at);
        match result {
            Ok(()) => {}
            Err(error) => assert!(storage.is_down(), "seed {seed}: {error}"),
        }
        storage = match rng.random_bool(0.3) && !storage.is_down() {
            true => storage.kill(),
            false => storage.crash(),
        };
        let env = Env::open(Arc::new(storage.clone()), &options)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let end = env.recovered_lsn();
        is_created |= created_at.is_some_and(|lsn| lsn <= end);
        for (_, key, payload) in changes.into_iter().filter(|(lsn, ..)| *lsn <= end) {
            match payload {
                Some(payload) => model.insert(key, payload),
                None => model.remove(&key),
            };
        }
        if is_created {
            verify(&Tree::open(&env, &env.space(SPACE_ID).unwrap(), ROOT, TREE_ID), &model);
        }
        drop(env);
        storage = storage.kill();
    }
}

fn live(
    storage: &SimStorage,
    options: &EnvOptions,
    rng: &mut StdRng,
    is_created: bool,
    model: &Model,
    changes: &mut Vec<Change>,
    created_at: &mut Option<Lsn>,
) -> Result<(), Error> {
    let env = Env::open(Arc::new(storage.clone()), options)?;
    let tree = if is_created {
        Tree::open(&env, &env.space(SPACE_ID)?, ROOT, TREE_ID)
    } else {
        if let Ok(space) = env.space(SPACE_ID) {
            env.drop_space(space.id())?;
        }
        let tree = new_tree(&env, &env.create_space(SPACE_ID)?)?;
        assert_eq!(tree.root(), ROOT);
        *created_at = Some(env.redo().next_lsn());
        tree
    };
    let mut keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    let payload_max = rng.random_range(1..500);
    let long_key = rng.random_range(0..500);
    for step in 0..rng.random_range(1..2_000) {
        // Growth and shrinking alternate.
        if rng.random_ratio(if step / 300 % 2 == 0 { 9 } else { 2 }, 10) || keys.is_empty() {
            let mut key = rng.random_range(0..5_000u32).to_be_bytes().to_vec();
            if rng.random_ratio(1, 10) {
                key.extend(vec![b'x'; long_key]);
            }
            let payload = vec![rng.random(); rng.random_range(0..payload_max)];
            put(&tree, &key, &payload)?;
            keys.push(key.clone());
            changes.push((env.redo().next_lsn(), key, Some(payload)));
        } else {
            let key = keys.swap_remove(rng.random_range(0..keys.len()));
            let mut mtr = Mtr::begin(&env)?;
            let leaf = tree.leaf_exclusive(&key)?;
            let Ok(slot) = leaf.find(&key) else { continue };
            let leaf = leaf.remove(&mut mtr, slot);
            let is_underfull = leaf.is_underfull(&mtr);
            mtr.commit();
            changes.push((env.redo().next_lsn(), key.clone(), None));
            if is_underfull {
                tree.try_merge(&key)?;
            }
        }
        if rng.random_ratio(1, 40) {
            env.redo().flush()?;
        }
        if rng.random_ratio(1, 60) {
            env.step_checkpoint(std::time::Duration::from_secs(1))?;
        }
    }
    Ok(())
}
