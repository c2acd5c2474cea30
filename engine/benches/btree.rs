//! Trees in memory: point lookups, inserts and scans, without transactions.
//!
//! `cargo bench -p tidepool-engine --bench btree`. The data directory lies on a simulated disk, so
//! nothing but the engine is measured.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use tidepool::internals::{Env, EnvOptions, Mtr, Seek, Tree, create_space};
use tidepool_pool::Access;
use tidepool_pool::storage::SimStorage;

const ROWS: u64 = 1_000_000;
const PAYLOAD: [u8; 120] = [7; 120];

fn new_tree() -> Tree {
    let options = EnvOptions {
        buffer_pool_size_bytes: 1 << 30,
        redo_capacity_bytes: 1 << 30,
        background: true,
        ..EnvOptions::small()
    };
    let env = Env::open(Arc::new(SimStorage::new(1)), &options).unwrap();
    let space = env.create_space(16).unwrap();
    let mut mtr = Mtr::begin(&env).unwrap();
    create_space(&mut mtr, &env, &space).unwrap();
    mtr.commit();
    let mut mtr = Mtr::begin(&env).unwrap();
    let root = Tree::create(&mut mtr, &space, 1).unwrap();
    mtr.commit();
    Tree::open(&env, &space, root, 1)
}

fn insert(tree: &Tree, key: &[u8]) {
    loop {
        let mut mtr = Mtr::begin(tree.env()).unwrap();
        let leaf = tree.leaf_exclusive(key).unwrap();
        let Err(slot) = leaf.find_covered(key) else { return };
        if leaf.fits(key.len(), PAYLOAD.len()) {
            leaf.insert(&mut mtr, slot, key, &PAYLOAD);
            mtr.commit();
            return;
        }
        drop((leaf, mtr));
        tree.make_room(key, PAYLOAD.len()).unwrap();
    }
}

/// Numbers 0 .. 2^32 in an order that looks random, each once.
fn scrambled(n: u64) -> u64 {
    n.wrapping_mul(2_654_435_761) % (1 << 32)
}

fn benches(c: &mut Criterion) {
    let mut group = c.benchmark_group("btree");
    group.throughput(Throughput::Elements(1));

    let tree = new_tree();
    (0..ROWS).for_each(|n| insert(&tree, &n.to_be_bytes()));
    let mut n = 0;
    group.bench_function("lookup, 8-byte keys, 1M rows", |b| {
        b.iter(|| {
            n += 1;
            let key = (scrambled(n) % ROWS).to_be_bytes();
            let leaf = tree.leaf_shared(Seek::Key(&key), Access::Normal).unwrap();
            let slot = leaf.find_covered(&key).unwrap();
            black_box(leaf.payload_at(slot)[0])
        });
    });
    group.bench_function("lookup, the same key", |b| {
        let key = 500_000u64.to_be_bytes();
        b.iter(|| {
            let leaf = tree.leaf_shared(Seek::Key(&key), Access::Normal).unwrap();
            let slot = leaf.find_covered(black_box(&key)).unwrap();
            black_box(leaf.payload_at(slot)[0])
        });
    });
    group.bench_function("update in place", |b| {
        let mut payload = PAYLOAD;
        b.iter(|| {
            n += 1;
            let key = (scrambled(n) % ROWS).to_be_bytes();
            let mut mtr = Mtr::begin(tree.env()).unwrap();
            let leaf = tree.leaf_exclusive(&key).unwrap();
            let slot = leaf.find_covered(&key).unwrap();
            payload[60] = payload[60].wrapping_add(1);
            leaf.replace(&mut mtr, slot, &payload);
            mtr.commit();
        });
    });

    group.throughput(Throughput::Elements(10_000));
    group.bench_function("scan 10,000 rows", |b| {
        let mut key = Vec::new();
        b.iter(|| {
            let mut from = 300_000u64.to_be_bytes().to_vec();
            let (mut seen, mut sum) = (0, 0);
            while seen < 10_000 {
                let leaf = tree.leaf_shared(Seek::Key(&from), Access::Scan).unwrap();
                for slot in 0..leaf.count() {
                    leaf.key_at(slot, &mut key);
                    sum += usize::from(leaf.payload_at(slot)[5]) + key.len();
                    seen += 1;
                }
                from.clear();
                from.extend_from_slice(leaf.upper_fence().unwrap());
            }
            sum
        });
    });

    group.sample_size(10);
    group.throughput(Throughput::Elements(100_000));
    group.bench_function("insert 100,000 ascending", |b| {
        let insert_all = |tree: Tree| {
            (0..100_000u64).for_each(|n| insert(&tree, &n.to_be_bytes()));
            tree
        };
        b.iter_batched(new_tree, insert_all, BatchSize::PerIteration);
    });
    group.bench_function("insert 100,000 scrambled", |b| {
        let insert_all = |tree: Tree| {
            (0..100_000u64).for_each(|n| insert(&tree, &scrambled(n).to_be_bytes()));
            tree
        };
        b.iter_batched(new_tree, insert_all, BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);
