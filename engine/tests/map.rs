//! A table as an ordered map, against the standard library's; and transactions that run again.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tidepool::storage::SimStorage;
use tidepool::{
    Cursor, Db, Error, IndexDef, LockMode, LockWait, Options, Result, Table, TableDef,
    TransactionOptions,
};

type Pair = (Vec<u8>, Vec<u8>);

fn open() -> (Db, Arc<Table>) {
    let options = Options {
        background: false,
        buffer_pool_size_bytes: 8 << 20,
        redo_capacity_bytes: 8 << 20,
        ..Options::default()
    };
    let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
    let table = db.open_or_create_table("t", &TableDef::map()).unwrap();
    (db, table)
}

#[derive(Clone, Debug)]
enum Op {
    Put(Vec<u8>, u8),
    PutMany(Vec<(Vec<u8>, u8)>),
    Remove(Vec<u8>),
    RemoveRange(Bound<Vec<u8>>, Bound<Vec<u8>>),
    /// Reads a range: a turn at the front for each true, and at the back for each false, and the
    /// rest from the front.
    Range(Bound<Vec<u8>>, Bound<Vec<u8>>, Vec<bool>),
    Prefix(Vec<u8>),
    Undo(Vec<(Vec<u8>, u8)>),
}

/// Few keys, so that they meet; some are prefixes of others, and some end with the greatest byte.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![0u8, 1, 97, 254, 255]), 1..4)
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![
        1 => Just(Bound::Unbounded),
        2 => key().prop_map(Bound::Included),
        2 => key().prop_map(Bound::Excluded),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (key(), any::<u8>()).prop_map(|(key, value)| Op::Put(key, value)),
        2 => prop::collection::vec((key(), any::<u8>()), 0..20).prop_map(Op::PutMany),
        3 => key().prop_map(Op::Remove),
        1 => (bound(), bound()).prop_map(|(from, to)| Op::RemoveRange(from, to)),
        4 => (bound(), bound(), prop::collection::vec(any::<bool>(), 0..40))
            .prop_map(|(from, to, ends)| Op::Range(from, to, ends)),
        2 => prop::collection::vec(prop::sample::select(vec![0u8, 97, 254, 255]), 0..3)
            .prop_map(Op::Prefix),
        1 => prop::collection::vec((key(), any::<u8>()), 1..5).prop_map(Op::Undo),
    ]
}

/// The standard library panics at a range that begins behind its end; the engine's is empty.
fn expected(
    model: &BTreeMap<Vec<u8>, Vec<u8>>,
    from: &Bound<Vec<u8>>,
    to: &Bound<Vec<u8>>,
) -> Vec<Pair> {
    let is_within = |key: &Vec<u8>| {
        use std::ops::RangeBounds;
        (from.clone(), to.clone()).contains(key)
    };
    model.iter().filter(|(key, _)| is_within(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn run(ops: Vec<Op>) -> Result<()> {
    let (db, table) = open();
    let mut model = BTreeMap::new();
    for op in ops {
        match op {
            Op::Put(key, value) => {
                db.write(|trx| trx.put(&table, &key, &[value]))?;
                model.insert(key.clone(), vec![value]);
                assert_eq!(db.read(|trx| trx.get(&table, &key))?, Some(vec![value]));
            }
            Op::PutMany(pairs) => {
                let entries: Vec<_> = pairs.iter().map(|(key, value)| (key, [*value])).collect();
                db.write(|trx| trx.put_many(&table, &entries))?;
                model.extend(pairs.into_iter().map(|(key, value)| (key, vec![value])));
            }
            Op::Remove(key) => {
                let removed = db.write(|trx| trx.remove(&table, &key))?;
                assert_eq!(removed, model.remove(&key).is_some());
                assert_eq!(db.write(|trx| trx.get_for_update(&table, &key))?, None);
            }
            Op::RemoveRange(from, to) => {
                let gone = expected(&model, &from, &to);
                let bounds = (from.as_ref(), to.as_ref());
                let removed = db.write(|trx| trx.remove_range::<Vec<u8>>(&table, bounds))?;
                assert_eq!(removed, gone.len() as u64);
                gone.iter().for_each(|(key, _)| drop(model.remove(key)));
            }
            Op::Range(from, to, ends) => {
                let wanted = expected(&model, &from, &to);
                let bounds = (from.as_ref(), to.as_ref());
                db.read(|trx| {
                    let mut range = trx.range::<Vec<u8>>(&table, bounds);
                    let (mut front, mut back) = (Vec::new(), Vec::new());
                    for is_front in ends {
                        let (found, place) = match is_front {
                            true => (range.next()?, &mut front),
                            false => (range.next_back()?, &mut back),
                        };
                        place.extend(found.map(|(key, value)| (key.to_vec(), value.to_vec())));
                    }
                    while let Some(pair) = range.next_owned()? {
                        front.push(pair);
                    }
                    assert_eq!(range.next_back()?, None);
                    front.extend(back.into_iter().rev());
                    assert_eq!(front, wanted);
                    Ok(())
                })?;
            }
            Op::Prefix(prefix) => {
                let wanted = model.keys().filter(|key| key.starts_with(&prefix)).count();
                let count = db.read(|trx| trx.prefix(&table, &prefix).count())?;
                assert_eq!(count, wanted as u64);
            }
            Op::Undo(pairs) => {
                let failed: Result<()> = db.write(|trx| {
                    for (key, value) in &pairs {
                        trx.put(&table, key, &[*value])?;
                    }
                    // What the transaction has written, it sees.
                    let mut seen = model.clone();
                    seen.extend(pairs.iter().map(|(key, value)| (key.clone(), vec![*value])));
                    assert_eq!(trx.range::<&[u8]>(&table, ..).count()?, seen.len() as u64);
                    Err(Error::NotFound)
                });
                assert_eq!(failed, Err(Error::NotFound));
            }
        }
    }
    let rows = db.read(|trx| trx.range::<&[u8]>(&table, ..).count())?;
    assert_eq!(rows, model.len() as u64);
    db.close()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_table_is_an_ordered_map(ops in prop::collection::vec(op(), 1..80)) {
        run(ops).unwrap();
    }
}

#[test]
fn a_transaction_that_meets_a_conflict_runs_again_and_counts_every_addition() {
    const THREADS: u64 = 4;
    const ADDITIONS: u64 = 200;
    let dir = tempfile::tempdir().unwrap();
    let options = Options { flush_log_at_trx_commit: 0, ..Options::default() };
    let db = Db::open(dir.path(), options).unwrap();
    let table = db.open_or_create_table("counters", &TableDef::map()).unwrap();
    let runs = AtomicU32::new(0);
    let add = |n: u64| {
        db.write(|trx| {
            runs.fetch_add(1, Ordering::Relaxed);
            // The first additions find no value.
            let old = match n % 2 {
                0 => trx.get(&table, b"n")?,
                _ => trx.get_for_update(&table, b"n")?,
            };
            let old = old.map_or(0, |old| {
                u64::from_le_bytes(old.try_into().expect("a counter has eight bytes"))
            });
            trx.put(&table, b"n", &(old + 1).to_le_bytes())
        })
        .unwrap();
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..ADDITIONS).for_each(add));
        }
    });
    let counted = db.read(|trx| trx.get(&table, b"n")).unwrap().unwrap();
    assert_eq!(counted, (THREADS * ADDITIONS).to_le_bytes());
    assert!(runs.into_inner() >= (THREADS * ADDITIONS) as u32);
    db.close().unwrap();
}

#[test]
fn a_value_that_another_transaction_inserts_is_not_overwritten_unseen() {
    let (db, table) = open();
    let mut trx = db.begin(TransactionOptions::default());
    assert_eq!(trx.get_for_update(&table, b"n"), Ok(None));
    db.write(|other| other.put(&table, b"n", b"1")).unwrap();
    assert_eq!(trx.put(&table, b"n", b"1"), Err(Error::RecordChanged));
    trx.rollback().unwrap();
    // One that is there is locked.
    assert_eq!(trx.get_for_update(&table, b"n").unwrap().as_deref(), Some(&b"1"[..]));
    let mut other = db.begin(TransactionOptions::default());
    other.set_lock_wait_timeout(Duration::from_millis(10));
    assert_eq!(other.put(&table, b"n", b"2"), Err(Error::LockWaitTimeout));
    other.rollback().unwrap();
    trx.put(&table, b"n", b"3").unwrap();
    trx.commit().unwrap();
    drop((trx, other));
    db.close().unwrap();
}

/// A put is an insert or an update, in what it counts, what a rollback takes back, and what a
/// snapshot sees; so it is over a removed entry, and with a value beside the tree.
#[test]
fn a_put_is_undone_and_counted_by_what_it_did() {
    let (db, table) = open();
    let long = vec![7; 100_000];
    db.write(|trx| trx.put(&table, b"old", b"1")).unwrap();
    let mut reader = db.begin(TransactionOptions::default());
    assert_eq!(reader.get(&table, b"old").unwrap().as_deref(), Some(&b"1"[..]));
    let mut trx = db.begin(TransactionOptions::default());
    trx.put(&table, b"old", &long).unwrap();
    let savepoint = trx.savepoint();
    trx.put(&table, b"new", &long).unwrap();
    trx.put(&table, b"new", b"2").unwrap();
    assert!(trx.remove(&table, b"old").unwrap());
    trx.put(&table, b"old", b"3").unwrap();
    assert_eq!(trx.get(&table, b"old").unwrap().as_deref(), Some(&b"3"[..]));
    trx.rollback_to(savepoint).unwrap();
    assert_eq!(trx.get(&table, b"old").unwrap().as_ref(), Some(&long));
    assert_eq!(trx.get(&table, b"new").unwrap(), None);
    trx.put(&table, b"new", b"4").unwrap();
    assert_eq!(table.rows(), 1);
    trx.commit().unwrap();
    assert_eq!(table.rows(), 2);
    assert_eq!(reader.get(&table, b"old").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(reader.get(&table, b"new").unwrap(), None);
    assert_eq!(reader.put(&table, b"new", b"5"), Err(Error::RecordChanged));
    reader.rollback().unwrap();
    trx.put(&table, b"third", b"5").unwrap();
    trx.rollback().unwrap();
    assert_eq!(table.rows(), 2);
    drop((trx, reader));
    db.close().unwrap();
}

#[test]
fn an_index_that_the_table_does_not_have_is_an_error() {
    let (db, table) = open();
    let refused = Error::NoIndex { table: "t".into(), index: 1, count: 1 };
    let written = db.write(|trx| trx.insert(&table, 1, b"k", b""));
    assert_eq!(written, Err(refused.clone()));
    assert_eq!(refused.to_string(), "table 't' has no index 1: it has 1, from 0");
    let range = db.read(|trx| trx.range::<&[u8]>(&table, ..).of_index(1).count());
    assert_eq!(range, Err(refused.clone()));
    db.read(|trx| {
        let mut cursor = Cursor::new(table.clone(), 1, LockMode::None, LockWait::Wait);
        assert_eq!(cursor.first(trx), Err(refused));
        trx.unlock(&table, 1, b"k");
        Ok(())
    })
    .unwrap();
    // The clustered one is as before.
    db.write(|trx| trx.put(&table, b"k", b"v")).unwrap();
    assert_eq!(db.read(|trx| trx.get(&table, b"k")).unwrap().unwrap(), b"v");
    db.close().unwrap();
}

#[test]
fn a_range_of_another_index_and_a_table_that_exists() {
    let (db, _) = open();
    let def = TableDef::new([IndexDef::unique("number"), IndexDef::non_unique("owner")]);
    let table = db.open_or_create_table("accounts", &def).unwrap();
    db.write(|trx| {
        for (number, owner) in [(b"1", b"bob"), (b"2", b"ann"), (b"3", b"bob")] {
            trx.put(&table, number, owner)?;
            trx.insert(&table, 1, &[&owner[..], number].concat(), b"")?;
        }
        Ok(())
    })
    .unwrap();
    // As it is, whatever the definition says.
    let again = db.open_or_create_table("accounts", &TableDef::map()).unwrap();
    assert_eq!(again.index_count(), 2);
    db.read(|trx| {
        let mut range = trx.prefix(&again, "bob").of_index(1);
        assert_eq!(range.next()?.unwrap().0, b"bob1");
        assert_eq!(range.next_back()?.unwrap().0, b"bob3");
        assert_eq!(range.next()?, None);
        Ok(())
    })
    .unwrap();
    db.close().unwrap();
    assert_eq!(db.read(|trx| trx.get(&table, b"1")), Err(Error::Closed));
    assert_eq!(db.write(|trx| trx.put(&table, b"1", b"")), Err(Error::Closed));
}

#[test]
fn a_table_is_compressed_as_its_definition_says() {
    use tidepool::PageCompression;
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), Options::default()).unwrap();
    let kinds = [PageCompression::Off, PageCompression::Lz4, PageCompression::Auto];
    for (n, compression) in kinds.into_iter().enumerate() {
        let def = TableDef { compression, ..TableDef::map() };
        let table = db.create_table(&format!("t{n}"), &def).unwrap();
        db.write(|trx| {
            (0..2000u32).try_for_each(|key| {
                let digits = key.wrapping_mul(2_654_435_761).to_string().repeat(2);
                trx.put(&table, &key.to_be_bytes(), digits.as_bytes())
            })
        })
        .unwrap();
    }
    db.close().unwrap();
    // Opened again, each is what it was.
    let db = Db::open(dir.path(), Options::default()).unwrap();
    let live = |name: &str| db.open_table(name).unwrap().file_usage().unwrap().live_bytes;
    let [off, lz4, auto] = ["t0", "t1", "t2"].map(live);
    assert!(off > lz4 + lz4 / 4 && lz4 > auto + auto / 4, "{off}, {lz4} and {auto} bytes");
    assert_eq!(db.table_def("t0").unwrap().compression, PageCompression::Off);
    db.close().unwrap();
}
