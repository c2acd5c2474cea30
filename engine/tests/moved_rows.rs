//! Rows that move along an index all the time, also to where others have just been, while others
//! scan it with locks: none is missed, and none is met twice.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tidepool::storage::SimStorage;
use tidepool::{
    Cursor, Db, Error, IndexDef, Isolation, LockMode, LockWait, Options, ReadRequest, Result, Seek,
    Table, TableDef, Transaction, TransactionOptions,
};

const ROWS: u16 = 60;
const MOVERS: u64 = 4;
const SCANNERS: u64 = 4;
/// Statements of each scanner.
const SCANS: usize = 150;
const CLUSTERED: usize = Table::CLUSTERED;
const BY_PLACE: usize = 1;

/// The places in the index that rows move between.
#[derive(Clone, Copy, Debug)]
enum Places {
    /// Many, each for any number of rows: a key is one row's for ever.
    Shared,
    /// Few, each for one row: a row soon comes to where another has been.
    Single,
}

impl Places {
    fn count(self) -> u16 {
        match self {
            Places::Shared => 3000,
            Places::Single => 90,
        }
    }

    /// Key of a row in the index by place; the value names the row.
    fn key(self, place: u16, row: u16) -> Vec<u8> {
        let mut key = place.to_be_bytes().to_vec();
        if matches!(self, Places::Shared) {
            key.extend(row.to_be_bytes());
        }
        key
    }
}

fn open(places: Places) -> (Db, Arc<Table>) {
    let options = Options {
        page_size: 4096,
        buffer_pool_size_bytes: 16 << 20,
        lock_wait_timeout: Duration::from_secs(20),
        ..Options::default()
    };
    let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
    let def = TableDef::new([IndexDef::unique("primary"), IndexDef::unique("by_place")]);
    let table = db.create_table("t", &def).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for row in 0..ROWS {
        let place = row * (places.count() / ROWS);
        trx.insert(&table, CLUSTERED, &row.to_be_bytes(), &place.to_be_bytes()).unwrap();
        trx.insert(&table, BY_PLACE, &places.key(place, row), &row.to_be_bytes()).unwrap();
    }
    trx.commit().unwrap();
    (db, table)
}

/// Moves a row, as an UPDATE by the index does: its entry there is locked first. False if it has
/// moved since.
fn move_row(
    trx: &mut Transaction,
    table: &Arc<Table>,
    places: Places,
    random: &mut StdRng,
) -> Result<bool> {
    let (row, to) = (random.random_range(0..ROWS), random.random_range(0..places.count()));
    let (key, wait, mut value) = (row.to_be_bytes(), LockWait::Wait, Vec::new());
    trx.begin_statement();
    assert!(trx.read(
        table,
        CLUSTERED,
        ReadRequest::new(&key, &mut value).locked(LockMode::None, wait)
    )?);
    trx.end_statement();
    let from = u16::from_be_bytes(value[..].try_into().expect("two bytes"));
    let (old, new) = (places.key(from, row), places.key(to, row));
    let lock = LockMode::Exclusive;
    trx.begin_statement();
    let mut there = Vec::new();
    let is_there =
        trx.read(table, BY_PLACE, ReadRequest::new(&old, &mut there).locked(lock, wait))?
            && there == key;
    if is_there && from != to {
        assert!(trx.read(table, CLUSTERED, ReadRequest::presence(&key).locked(lock, wait))?);
        trx.update(table, CLUSTERED, &key, &to.to_be_bytes())?;
        trx.move_away(table, BY_PLACE, &old)?;
        trx.insert(table, BY_PLACE, &new, &key)?;
    }
    trx.end_statement();
    trx.commit()?;
    Ok(is_there)
}

/// How a statement reads the index.
#[derive(Clone, Copy, Debug)]
enum How {
    Forward,
    Backward,
    /// In pieces, each a separate reading, in any order.
    Pieces,
}

/// The rows that one statement meets, with their places.
fn scan(
    trx: &mut Transaction,
    table: &Arc<Table>,
    (places, how): (Places, How),
    random: &mut StdRng,
) -> Result<Vec<u16>> {
    const PIECES: u16 = 6;
    let mut pieces: Vec<u16> = (0..PIECES).collect();
    pieces.shuffle(random);
    let pieces = if matches!(how, How::Pieces) { pieces } else { vec![0] };
    let mode = if random.random_bool(0.5) { LockMode::Exclusive } else { LockMode::Shared };
    let mut met = Vec::new();
    for piece in &pieces {
        let mut cursor = Cursor::new(table.clone(), BY_PLACE, mode, LockWait::Wait);
        let mut more = match how {
            How::Forward => cursor.first(trx)?,
            How::Backward => cursor.last(trx)?,
            How::Pieces => {
                let width = places.count() / PIECES;
                let end = places.key((piece + 1) * width, 0);
                cursor.set_end(Bound::Excluded(&end));
                cursor.seek(trx, &places.key(piece * width, 0), Seek::AtOrAfter)?
            }
        };
        while more {
            let row = u16::from_be_bytes(cursor.value().try_into().expect("two bytes"));
            let mut value = Vec::new();
            let key = row.to_be_bytes();
            let there = trx.read(
                table,
                CLUSTERED,
                ReadRequest::new(&key, &mut value).locked(mode, LockWait::Wait),
            )?;
            assert!(there && value == cursor.key()[..2], "row {row} is elsewhere");
            met.push(row);
            more = match how {
                How::Backward => cursor.prev(trx)?,
                _ => cursor.next(trx)?,
            };
        }
    }
    Ok(met)
}

#[test]
fn a_statement_meets_each_row_once_or_fails() {
    let cases = [Places::Shared, Places::Single].map(|places| {
        [Isolation::RepeatableRead, Isolation::ReadCommitted].map(|isolation| (places, isolation))
    });
    for (places, isolation) in cases.into_iter().flatten() {
        let (db, table) = open(places);
        let stop = AtomicBool::new(false);
        let (moves, scans) = (AtomicU64::new(0), AtomicU64::new(0));
        let (missed, moved, deadlocks) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for seed in 0..MOVERS {
                let (db, table, stop, moves) = (&db, &table, &stop, &moves);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed);
                    let isolation = Isolation::ReadCommitted;
                    let mut trx = db.begin(TransactionOptions { isolation, read_only: false });
                    while !stop.load(Ordering::Relaxed) {
                        match move_row(&mut trx, table, places, &mut random) {
                            Ok(moved) => moves.fetch_add(moved.into(), Ordering::Relaxed),
                            Err(
                                Error::Deadlock | Error::RecordChanged | Error::DuplicateKey { .. },
                            ) => {
                                trx.rollback().unwrap();
                                0
                            }
                            Err(error) => panic!("{error}"),
                        };
                        // A load, not a flood: most scans meet a few moves.
                        std::thread::sleep(Duration::from_micros(random.random_range(0..1000)));
                    }
                });
            }
            let scanners: Vec<_> = (0..SCANNERS)
                .map(|seed| {
                    let (db, table, scans) = (&db, &table, &scans);
                    let (missed, moved, deadlocks) = (&missed, &moved, &deadlocks);
                    scope.spawn(move || {
                        let mut random = StdRng::seed_from_u64(100 + seed);
                        let mut trx = db.begin(TransactionOptions { isolation, read_only: false });
                        for _ in 0..SCANS {
                            let how = match random.random_range(0..3) {
                                0 => How::Forward,
                                1 => How::Backward,
                                _ => How::Pieces,
                            };
                            trx.begin_statement();
                            let met = scan(&mut trx, table, (places, how), &mut random);
                            trx.end_statement();
                            match met {
                                Ok(mut met) => {
                                    scans.fetch_add(1, Ordering::Relaxed);
                                    met.sort_unstable();
                                    if met != (0..ROWS).collect::<Vec<_>>() {
                                        missed.fetch_add(1, Ordering::Relaxed);
                                    }
                                }
                                Err(Error::RecordChanged) => {
                                    moved.fetch_add(1, Ordering::Relaxed);
                                }
                                Err(Error::Deadlock) => {
                                    deadlocks.fetch_add(1, Ordering::Relaxed);
                                }
                                Err(error) => panic!("{error}"),
                            }
                            trx.rollback().unwrap();
                            std::thread::yield_now();
                        }
                    })
                })
                .collect();
            scanners.into_iter().for_each(|scanner| scanner.join().unwrap());
            stop.store(true, Ordering::Relaxed);
        });
        let [moves, scans, missed, moved, deadlocks] =
            [moves, scans, missed, moved, deadlocks].map(AtomicU64::into_inner);
        eprintln!(
            "{places:?}, {isolation:?}: {moves} moves; {scans} scans, \
             {missed} not of each row once; {moved} ended because a row had moved, {deadlocks} by deadlocks"
        );
        assert_eq!(missed, 0, "of {scans} scans at {isolation:?}, {places:?}");
        assert!(scans > 0 && moved > 0, "{scans} scans, {moved} errors");
        db.close().unwrap();
    }
}
