//! Readings of ranges: they give what is in the range and nothing beyond, in both directions, while
//! their transaction writes; and what they cost in pages.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool::storage::SimStorage;
use tidepool::{
    Cursor, Db, IndexDef, LockMode, LockWait, Options, Seek, Table, TableDef, Transaction,
    TransactionOptions,
};

const CLUSTERED: usize = Table::CLUSTERED;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type End = Bound<Vec<u8>>;

fn open(page_size: usize) -> (Db, Arc<Table>) {
    let options = Options { page_size, buffer_pool_size_bytes: 16 << 20, ..Options::default() };
    let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    (db, table)
}

fn begin(db: &Db) -> Transaction {
    db.begin(TransactionOptions::default())
}

/// Short keys and long ones, some of which begin with others.
fn some_key(rng: &mut StdRng) -> Vec<u8> {
    let len = rng.random_range(1..5);
    (0..len).map(|_| rng.random_range(0..6)).collect()
}

/// An end, which most often is not far from the start.
fn some_end(rng: &mut StdRng, from: &[u8]) -> End {
    let mut key = some_key(rng);
    if rng.random_ratio(2, 3) {
        key.splice(..1, from[..1].iter().copied());
    }
    match rng.random_range(0..5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

fn is_within(key: &[u8], end: &End, forward: bool) -> bool {
    match (end, forward) {
        (Bound::Unbounded, _) => true,
        (Bound::Included(end), true) => key <= &end[..],
        (Bound::Excluded(end), true) => key < &end[..],
        (Bound::Included(end), false) => key >= &end[..],
        (Bound::Excluded(end), false) => key > &end[..],
    }
}

/// The neighbour of a key in the model, or the key itself if it is included.
fn neighbour<'m>(model: &'m Model, from: Bound<&[u8]>, forward: bool) -> Option<&'m [u8]> {
    let key = match forward {
        true => model.range::<[u8], _>((from, Bound::Unbounded)).next(),
        false => model.range::<[u8], _>((Bound::Unbounded, from)).next_back(),
    };
    key.map(|(key, _)| &key[..])
}

/// A write of the transaction that reads, near what it reads.
fn write(rng: &mut StdRng, trx: &mut Transaction, table: &Arc<Table>, model: &mut Model) {
    let key = some_key(rng);
    if model.remove(&key).is_some() {
        trx.delete(table, CLUSTERED, &key).unwrap();
    } else {
        let value = vec![7; rng.random_range(0..60)];
        trx.insert(table, CLUSTERED, &key, &value).unwrap();
        model.insert(key, value);
    }
}

#[test]
fn a_reading_ends_where_it_was_set_to() {
    let (db, table) = open(4096);
    let mut rng = StdRng::seed_from_u64(11);
    let mut model = Model::new();
    let mut trx = begin(&db);
    for _ in 0..1500 {
        write(&mut rng, &mut trx, &table, &mut model);
    }
    let wait = LockWait::Wait;
    let mut cursors = [LockMode::None, LockMode::Exclusive]
        .map(|lock| Cursor::new(table.clone(), CLUSTERED, lock, wait));
    let (mut rows, mut ended) = (0, 0);
    for _ in 0..3000 {
        let cursor = &mut cursors[usize::from(rng.random_ratio(1, 4))];
        let from = some_key(&mut rng);
        let end = some_end(&mut rng, &from);
        let forward = rng.random();
        let writes = rng.random_ratio(1, 3);
        cursor.set_end(end.as_ref().map(|end| &end[..]));
        let (seek, first) = match (rng.random(), forward) {
            (true, true) => (Seek::AtOrAfter, Bound::Included(&from[..])),
            (true, false) => (Seek::AtOrBefore, Bound::Included(&from[..])),
            (false, true) => (Seek::After, Bound::Excluded(&from[..])),
            (false, false) => (Seek::Before, Bound::Excluded(&from[..])),
        };
        let mut expected = neighbour(&model, first, forward).map(<[u8]>::to_vec);
        let mut found = cursor.seek(&mut trx, &from, seek).unwrap();
        let mut last = None;
        for _ in 0..rng.random_range(1..120) {
            let wanted = expected.filter(|key| is_within(key, &end, forward));
            assert_eq!(found.then(|| cursor.key()), wanted.as_deref(), "{from:?} to {end:?}");
            let Some(key) = wanted else { break };
            assert_eq!(cursor.value(), &model[&key][..]);
            rows += 1;
            if writes {
                write(&mut rng, &mut trx, &table, &mut model);
            }
            expected = neighbour(&model, Bound::Excluded(&key[..]), forward).map(<[u8]>::to_vec);
            last = Some(key);
            let step = if forward { Cursor::next } else { Cursor::prev };
            found = step(cursor, &mut trx).unwrap();
        }
        if found {
            // Who turns round goes without the end.
            let back = neighbour(&model, Bound::Excluded(cursor.key()), !forward);
            let back = back.map(<[u8]>::to_vec);
            let step = if forward { Cursor::prev } else { Cursor::next };
            let found = step(cursor, &mut trx).unwrap();
            assert_eq!(found.then(|| cursor.key()), back.as_deref());
        } else if last.is_some() {
            ended += 1;
            let step = if forward { Cursor::next } else { Cursor::prev };
            assert!(!step(cursor, &mut trx).unwrap(), "it stays at its end");
        }
    }
    assert!(rows > 20_000 && ended > 500, "{rows} rows, {ended} ends");
    trx.commit().unwrap();
}

/// Pages that reading a range of numbers takes, and the numbers read.
fn pages_of(db: &Db, table: &Arc<Table>, from: u32, rows: u32) -> u64 {
    let mut trx = begin(db);
    let before = db.thread_work().0.pages_accessed;
    let mut cursor = Cursor::new(table.clone(), CLUSTERED, LockMode::None, LockWait::Wait);
    cursor.set_end(Bound::Excluded(&(from + rows).to_be_bytes()));
    let mut more = cursor.seek(&mut trx, &from.to_be_bytes(), Seek::AtOrAfter).unwrap();
    let mut read = 0;
    while more {
        assert_eq!(cursor.key(), (from + read).to_be_bytes());
        read += 1;
        more = cursor.next(&mut trx).unwrap();
    }
    assert_eq!(read, rows);
    db.thread_work().0.pages_accessed - before
}

/// A reading goes down from the root once for each leaf, and comes back to a leaf without that.
#[test]
fn a_range_takes_few_pages() {
    let (db, table) = open(16384);
    let mut trx = begin(&db);
    for n in 0..4000u32 {
        trx.insert(&table, CLUSTERED, &n.to_be_bytes(), &[1; 190]).unwrap();
    }
    trx.commit().unwrap();
    // A root and its leaves, of about 75 rows each.
    assert_eq!(pages_of(&db, &table, 10, 1), 2);
    for from in 0..100 {
        let pages = pages_of(&db, &table, from * 37, 100);
        assert!(pages <= 7, "{pages} pages for 100 rows from {}", from * 37);
    }
    let short: u64 = (0..100).map(|n| pages_of(&db, &table, n * 37, 6)).sum();
    assert!(short <= 230, "{short} pages for 100 ranges of 6 rows");
}
