//! Whole trees against a `BTreeMap`, alone and under many threads.

mod concurrent;
mod crash;
mod nodes;

use super::Tree;
use super::estimate::TreeStatistics;
use crate::env::Env;
use crate::error::Result;
use crate::format::{node, space_header};
use crate::mtr::Mtr;
use crate::space;
use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use tidepool_pool::{Access, Space};

pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) const SPACE_ID: u32 = 16;
const TREE_ID: u32 = 9;

/// Makes a space with an empty tree in it.
pub(crate) fn new_tree(env: &Arc<Env>, space: &Arc<Space>) -> Result<Tree> {
    let mut mtr = Mtr::begin(env)?;
    space::create(&mut mtr, env, space)?;
    mtr.commit();
    let mut mtr = Mtr::begin(env)?;
    let root = Tree::create(&mut mtr, space, TREE_ID)?;
    mtr.commit();
    Ok(Tree::open(env, space, root, TREE_ID))
}

/// Inserts or replaces, as a writer of the layer above would.
pub(crate) fn put(tree: &Tree, key: &[u8], payload: &[u8]) -> Result<()> {
    loop {
        let mut mtr = Mtr::begin(tree.env())?;
        let leaf = tree.leaf_exclusive(key)?;
        match leaf.find_covered(key) {
            Ok(slot) if leaf.fits_replaced(slot, payload.len()) => {
                leaf.replace(&mut mtr, slot, payload);
            }
            Err(slot) if leaf.fits(key.len(), payload.len()) => {
                leaf.insert(&mut mtr, slot, key, payload);
            }
            _ => {
                drop((leaf, mtr));
                tree.make_room(key, payload.len())?;
                continue;
            }
        }
        mtr.commit();
        return Ok(());
    }
}

/// Removes an entry and merges what became too small; says whether it was there.
pub(crate) fn remove(tree: &Tree, key: &[u8]) -> Result<bool> {
    let mut mtr = Mtr::begin(tree.env())?;
    let leaf = tree.leaf_exclusive(key)?;
    let Ok(slot) = leaf.find_covered(key) else { return Ok(false) };
    let leaf = leaf.remove(&mut mtr, slot);
    let underfull = leaf.is_underfull(&mtr);
    mtr.commit();
    if underfull {
        tree.try_merge(key)?;
    }
    Ok(true)
}

pub(crate) fn get(tree: &Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let leaf = tree.leaf_shared(node::Seek::Key(key), Access::Normal)?;
    Ok(leaf.find(key).ok().map(|slot| leaf.payload_at(slot).to_vec()))
}

/// All entries in key order, leaf by leaf.
pub(crate) fn scan(tree: &Tree) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut entries = Vec::new();
    let mut from = Some(Vec::new());
    while let Some(fence) = from {
        let leaf = tree.leaf_shared(node::Seek::Key(&fence), Access::Scan)?;
        let first = leaf.find(&fence).unwrap_or_else(|slot| slot);
        for slot in first..leaf.count() {
            let mut key = Vec::new();
            leaf.key_at(slot, &mut key);
            entries.push((key, leaf.payload_at(slot).to_vec()));
        }
        from = leaf.upper_fence().map(<[u8]>::to_vec);
    }
    Ok(entries)
}

/// All entries in descending order.
pub(crate) fn scan_backward(tree: &Tree) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut entries = Vec::new();
    let mut before: Option<Vec<u8>> = None;
    loop {
        let leaf = match &before {
            None => tree.leaf_shared(node::Seek::Last, Access::Scan)?,
            Some(fence) => tree.leaf_before(fence, Access::Scan)?,
        };
        let end = before.as_ref().map_or(leaf.count(), |key| leaf.find(key).unwrap_or_else(|s| s));
        for slot in (0..end).rev() {
            let mut key = Vec::new();
            leaf.key_at(slot, &mut key);
            entries.push((key, leaf.payload_at(slot).to_vec()));
        }
        if leaf.lower_fence().is_empty() {
            return Ok(entries);
        }
        before = Some(leaf.lower_fence().to_vec());
    }
}

/// Everything a tree says of itself is what the model says, and every page is accounted for.
pub(crate) fn verify(tree: &Tree, model: &Model) {
    let mut keys = model.iter();
    let report = tree
        .check(&mut |leaf, first| {
            for slot in first..leaf.count() {
                let (key, payload) = keys.next().expect("no entry that the model has not");
                assert_eq!(&leaf.key(slot), key);
                assert_eq!(leaf.payload(slot), payload);
            }
            Ok(())
        })
        .unwrap();
    assert!(keys.next().is_none(), "entries are missing");
    assert_eq!(report.entries, model.len() as u64);
    verify_allocation(tree, report.pages);
    let expected: Vec<_> = model.iter().map(|(k, p)| (k.clone(), p.clone())).collect();
    assert!(scan(tree).unwrap() == expected);
    assert!(scan_backward(tree).unwrap().into_iter().rev().eq(expected));
    assert_eq!(tree.greatest_key().unwrap().as_ref(), model.keys().next_back());
}

/// The tree's pages are all that is allocated in its space, besides header and bitmap.
pub(crate) fn verify_allocation(tree: &Tree, mut pages: Vec<u32>) {
    pages.extend([0, 1]);
    pages.sort_unstable();
    assert_eq!(space::allocated_pages(tree.env(), tree.space()).unwrap(), pages);
}

pub(crate) fn number_key(n: u64) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

fn filled(tree: &Tree, keys: impl Iterator<Item = u64>, payload_len: usize) -> Model {
    let mut model = Model::new();
    for n in keys {
        let (key, payload) = (number_key(n), vec![n as u8; payload_len]);
        put(tree, &key, &payload).unwrap();
        model.insert(key, payload);
    }
    model
}

#[test]
fn an_empty_tree_is_one_leaf() {
    let tree = fixture::tree(64, 4096);
    verify(&tree, &Model::new());
    let statistics = TreeStatistics { depth: 1, leaf_pages: 1, entries: 0, entry_bytes: 0 };
    assert_eq!(tree.statistics().unwrap(), statistics);
    assert_eq!(get(&tree, b"anything").unwrap(), None);
}

#[test]
fn ascending_inserts_fill_their_pages() {
    let tree = fixture::tree(256, 4096);
    let model = filled(&tree, 0..20_000, 100);
    verify(&tree, &model);
    let report = tree.check(&mut |_, _| Ok(())).unwrap();
    let room = report.leaf_pages * (4096 - 64 - 16);
    let percent = report.entry_bytes * 100 / room;
    assert!(percent >= 90, "{percent} % full");
}

#[test]
fn a_tree_shrinks_to_one_leaf_again() {
    let tree = fixture::tree(256, 4096);
    let mut model = filled(&tree, (0..8_000).map(|n| n * 7919 % 8_000), 30);
    verify(&tree, &model);
    // From the front, from the back, and what is left from the middle.
    let front = (0..3_000).chain((5_000..8_000).rev()).chain(3_000..5_000);
    for (done, n) in front.enumerate() {
        assert!(remove(&tree, &number_key(n)).unwrap());
        model.remove(&number_key(n));
        if done % 1_999 == 0 {
            verify(&tree, &model);
        }
    }
    verify(&tree, &model);
    assert_eq!(tree.depth().unwrap(), 1);
}

#[test]
fn the_greatest_key_is_found_behind_empty_leaves() {
    let tree = fixture::tree(256, 4096);
    let keys: Vec<_> = filled(&tree, 0..2_000, 30).into_keys().collect();
    for key in keys.iter().rev() {
        assert_eq!(tree.greatest_key().unwrap().as_ref(), Some(key));
        // As `remove` does it, but what is too small stays.
        let mut mtr = Mtr::begin(tree.env()).unwrap();
        let leaf = tree.leaf_exclusive(key).unwrap();
        let slot = leaf.find_covered(key).unwrap();
        leaf.remove(&mut mtr, slot);
        mtr.commit();
    }
    assert!(tree.depth().unwrap() > 1);
    assert_eq!(tree.greatest_key().unwrap(), None);
}

#[test]
fn freed_pages_are_used_again() {
    let tree = fixture::tree(256, 4096);
    for _ in 0..3 {
        let model = filled(&tree, 0..5_000, 30);
        for key in model.keys() {
            remove(&tree, key).unwrap();
        }
    }
    let header = space_header::read(tree.env().pool(), tree.space()).unwrap();
    assert!(header.size_pages < 120, "{} pages", header.size_pages);
}

#[test]
fn the_longest_keys_and_payloads_fit() {
    let page_size = 4096;
    let tree = fixture::tree(256, page_size);
    let mut model = Model::new();
    for n in 0..60u32 {
        let mut key = vec![b'k'; node::max_key_len(page_size)];
        let end = key.len() - 2;
        key[end..].copy_from_slice(&((n * 37 % 60) as u16).to_be_bytes());
        let payload = vec![n as u8; node::max_payload_len(page_size, key.len())];
        put(&tree, &key, &payload).unwrap();
        model.insert(key, payload);
        let key = vec![n as u8];
        let payload = vec![n as u8; node::max_payload_len(page_size, key.len())];
        put(&tree, &key, &payload).unwrap();
        model.insert(key, payload);
    }
    verify(&tree, &model);
    let too_long = node::max_payload_len(page_size, 1) + 1;
    assert!(matches!(
        tree.make_room(b"k", too_long),
        Err(crate::Error::ValueTooLong { len: 1984, max: 1983 })
    ));
    assert!(matches!(
        tree.make_room(&vec![0; node::max_key_len(page_size) + 1], 1),
        Err(crate::Error::KeyTooLong { len: 897, max: 896 })
    ));
}

/// Leaves that are left behind by ascending or descending inserts, or filled by a loader, hold what
/// fits.
#[test]
fn large_entries_fill_their_leaves_too() {
    for (payload_len, to_a_leaf) in [(8000, 2), (7500, 2), (5200, 3), (4000, 4), (2200, 7)] {
        let payload = vec![1; payload_len];
        let keys: Vec<[u8; 4]> = (0..420u32).map(u32::to_be_bytes).collect();
        let leaves = |fill: &dyn Fn(&Tree)| {
            let tree = fixture::tree(2048, 16384);
            fill(&tree);
            verify(&tree, &keys.iter().map(|key| (key.to_vec(), payload.clone())).collect());
            tree.statistics().unwrap().leaf_pages
        };
        let up = leaves(&|tree| keys.iter().for_each(|key| put(tree, key, &payload).unwrap()));
        let down =
            leaves(&|tree| keys.iter().rev().for_each(|key| put(tree, key, &payload).unwrap()));
        let loaded = leaves(&|tree| {
            let mut loader = super::load::Loader::new(tree);
            keys.iter().for_each(|key| loader.push(key, &payload).unwrap());
            loader.finish().unwrap();
        });
        let best = 420 / to_a_leaf;
        for leaves in [up, down, loaded] {
            assert!(
                (best..=best + 1).contains(&leaves),
                "{payload_len}: {up} up, {down} down, {loaded} loaded, {best} would do"
            );
        }
    }
}

#[test]
fn a_dropped_tree_leaves_nothing() {
    let tree = fixture::tree(256, 4096);
    filled(&tree, 0..20_000, 20);
    tree.free_all().unwrap();
    assert_eq!(space::allocated_pages(tree.env(), tree.space()).unwrap(), [0, 1]);
}

#[test]
fn ranges_are_estimated() {
    let tree = fixture::tree(2048, 4096);
    let mut numbers: Vec<u64> = (0..50_000).collect();
    numbers.shuffle(&mut StdRng::seed_from_u64(1));
    filled(&tree, numbers.into_iter(), 40);
    for (lo, hi) in [
        (0, 50_000),
        (10, 20),
        (100, 103),
        (777, 1_500),
        (20_000, 45_000),
        (49_990, 60_000),
        (5, 5),
    ] {
        let (low, high) = (number_key(lo), number_key(hi));
        let found = tree.estimate_range(Bound::Included(&low), Bound::Excluded(&high)).unwrap();
        let exact = hi.min(50_000) - lo;
        let off = found.abs_diff(exact);
        let allowed = if exact < 200 { 0 } else { exact / 8 };
        assert!(off <= allowed, "{found} estimated for {exact}");
        for max in [0, 1, 200, u64::MAX] {
            assert_eq!(tree.count_range(&low, &high, max).unwrap(), exact.min(max));
        }
    }
    let all = tree.estimate_range(Bound::Unbounded, Bound::Unbounded).unwrap();
    assert!(all.abs_diff(50_000) < 6_000, "{all}");
    let (low, high) = (number_key(10), number_key(20));
    let between = |lo, hi| tree.estimate_range(lo, hi).unwrap();
    assert_eq!(between(Bound::Excluded(&low), Bound::Included(&high)), 10);
    assert_eq!(between(Bound::Included(&high), Bound::Included(&low)), 0);
    let statistics = tree.statistics().unwrap();
    assert_eq!(statistics.depth, 3);
    assert!(statistics.entries.abs_diff(50_000) < 8_000, "{statistics:?}");
}

#[test]
fn scans_read_ahead_by_the_parents_child_list() {
    let tree = fixture::tree(2048, 4096);
    filled(&tree, 0..50_000, 40);
    let leaves = tree.check(&mut |_, _| Ok(())).unwrap().leaf_pages as usize;
    let ahead =
        |seek, backward, pages| tree.read_ahead(seek, backward, pages, Access::Scan).unwrap();
    assert_eq!(ahead(node::Seek::First, false, 10), 10);
    assert_eq!(ahead(node::Seek::First, false, 100_000), leaves - 1);
    assert_eq!(ahead(node::Seek::Last, true, 100_000), leaves - 1);
    assert_eq!(ahead(node::Seek::Last, false, 8), 0);
    assert_eq!(ahead(node::Seek::First, true, 8), 0);
}

#[test]
fn pages_that_a_file_gained_since_it_was_opened_are_read_ahead() {
    let tree = fixture::tree(256, 4096);
    filled(&tree, 0..50_000, 40);
    let read_ahead = || tree.env().pool().stats().read_ahead;
    let before = read_ahead();
    tree.read_ahead(node::Seek::First, false, 10, Access::Scan).unwrap();
    assert!(read_ahead() >= before + 9, "{} of 10", read_ahead() - before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::test_cases(24)))]

    #[test]
    fn a_tree_behaves_as_a_sorted_map(
        changes in prop::collection::vec(
            (any::<bool>(), prop::collection::vec(0u8..8, 0..6), 0usize..600, any::<u8>()), 1..600),
        long in prop::collection::vec(0usize..700, 0..4),
    ) {
        let tree = fixture::tree(64, 4096);
        let mut model = Model::new();
        for (index, (is_put, key, len, byte)) in changes.into_iter().enumerate() {
            // Some keys are long, so that separators and fences are.
            let key = match long.get(index % 16) {
                Some(&long) => [vec![b'x'; long], key].concat(),
                None => key,
            };
            if is_put || index % 3 == 0 {
                put(&tree, &key, &vec![byte; len]).unwrap();
                model.insert(key, vec![byte; len]);
            } else {
                prop_assert_eq!(remove(&tree, &key).unwrap(), model.remove(&key).is_some());
            }
        }
        verify(&tree, &model);
        for key in model.keys() {
            let found = get(&tree, key).unwrap();
            prop_assert_eq!(found.as_ref(), model.get(key));
        }
    }
}

pub(crate) mod fixture {
    use super::*;
    use crate::env::EnvOptions;
    use tidepool_pool::storage::SimStorage;

    pub(crate) fn options(frames: u64, page_size: usize) -> EnvOptions {
        EnvOptions {
            page_size,
            buffer_pool_size_bytes: frames * page_size as u64,
            ..EnvOptions::small()
        }
    }

    /// An environment on simulated storage, and an empty space in it.
    pub(crate) fn space(options: &EnvOptions) -> (Arc<Env>, Arc<Space>) {
        let env = Env::open(Arc::new(SimStorage::new(1)), options).unwrap();
        let space = env.create_space(SPACE_ID).unwrap();
        (env, space)
    }

    /// A tree on simulated storage, in a pool of `frames` pages without background threads.
    pub(crate) fn tree(frames: u64, page_size: usize) -> Tree {
        let (env, space) = space(&options(frames, page_size));
        new_tree(&env, &space).unwrap()
    }

    /// The same with threads that clean, evict and take checkpoints.
    pub(crate) fn tree_in_background(frames: u64, page_size: usize) -> Tree {
        let (env, space) = space(&EnvOptions { background: true, ..options(frames, page_size) });
        new_tree(&env, &space).unwrap()
    }
}
