//! Writers beside a build: afterwards the new indexes are what the rows ask for.

use std::collections::HashSet;
use std::sync::Arc;

use rand::prelude::*;
use rand::rngs::StdRng;
use tidepool::storage::{Fault, FaultKind, SimStorage, Storage, StorageOp};
use tidepool::{
    Db, Error, IndexChange, LockMode, LockWait, ReadRequest, Result, RoundReport, Savepoint, Table,
    Transaction,
};

use crate::fixture::{
    Changed, Row, agree, begin, built, catch_up, def, delete, edit, entry, feed, feed_row, fill,
    insert, key, next_changed, nothing_is_lost, open, round, update, value, wanted,
};
use crate::scan::scan;

#[test]
fn a_change_has_what_is_written_while_it_goes_on() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..100);
    let names = ["primary", "by value", "unique", "backward"];
    let mut change =
        db.change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", &names)).unwrap();
    change.set_interrupt(begin(&db).interrupt_handle());
    let mut early = begin(&db);
    update(&mut early, &table, &key(1), b"early").unwrap();
    let mut undone = begin(&db);
    update(&mut undone, &table, &key(2), b"undone").unwrap();
    delete(&mut undone, &table, &key(3)).unwrap();
    insert(&mut undone, &table, &key(200), b"undone").unwrap();
    feed(&mut change, &names).unwrap();
    early.commit().unwrap();
    change.build(&mut || true).unwrap();
    undone.rollback().unwrap();
    let mut open_trx = begin(&db);
    delete(&mut open_trx, &table, &key(4)).unwrap();
    let start = open_trx.savepoint();
    delete(&mut open_trx, &table, &key(5)).unwrap();
    open_trx.rollback_to(start).unwrap();
    // Of `early` alone; what is open waits, what was undone before is forgotten.
    let report = |rows, open| RoundReport { rows, writes_open: open, writes_left: open };
    assert_eq!(catch_up(&mut change, &names).unwrap(), report(1, 2));
    assert_eq!(catch_up(&mut change, &names).unwrap(), report(0, 2));
    assert_eq!(change.stop_writes().unwrap_err(), Error::TableBusy("t".into()));
    // It goes on.
    update(&mut open_trx, &table, &key(6), b"late").unwrap();
    open_trx.commit().unwrap();
    // Values change places, and one row has passed through another version.
    let mut swap = begin(&db);
    for (n, new) in [(7, b"x".to_vec()), (8, value(7)), (7, value(8)), (9, b"x".to_vec())] {
        update(&mut swap, &table, &key(n), &new).unwrap();
    }
    update(&mut swap, &table, &key(9), &value(9)).unwrap();
    swap.commit().unwrap();
    change.stop_writes().unwrap();
    let busy = Error::TableBusy("t".into());
    assert_eq!(insert(&mut begin(&db), &table, b"k", b"v").unwrap_err(), busy);
    assert_eq!(catch_up(&mut change, &names).unwrap(), report(4, 0));
    let table = change.commit(&[]).unwrap();
    assert_eq!(agree(&db, &table).len(), 99);
    nothing_is_lost(&db, &table);
    let db = open(&sim.crash());
    assert_eq!(agree(&db, &db.open_table("t").unwrap()).len(), 99);
}

#[test]
fn without_a_last_round_nothing_is_committed() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..10);
    let names = ["primary", "unique"];
    let refused = |change: IndexChange| {
        let error = change.commit(&[]).unwrap_err();
        assert!(matches!(error, Error::InvalidOption(_)), "{error}");
        assert_eq!(table.def(), &def());
    };
    let change = built(&db, "t", &names).unwrap();
    fill(&db, &table, 10..11);
    refused(change);
    // A round that writes may go on beside is none.
    let mut change = built(&db, "t", &names).unwrap();
    catch_up(&mut change, &names).unwrap();
    fill(&db, &table, 11..12);
    refused(change);
    // One that is not ended is none either.
    let mut change = built(&db, "t", &names).unwrap();
    fill(&db, &table, 12..13);
    change.stop_writes().unwrap();
    change.begin_round().unwrap();
    assert!(change.end_round(&mut || true).is_err());
    refused(change);
    let mut change = built(&db, "t", &names).unwrap();
    fill(&db, &table, 13..14);
    change.begin_round().unwrap();
    assert!(change.stop_writes().is_err());
    refused(change);
    fill(&db, &table, 14..15);
    assert_eq!(agree(&db, &table).len(), 15);
    nothing_is_lost(&db, &table);
}

#[test]
fn a_duplicate_by_a_writer_ends_the_change_and_not_the_writer() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..10);
    let names = ["primary", "unique"];
    // With a row from before, and two of one round.
    for written in [&[20][..], &[21, 22]] {
        let mut change = built(&db, "t", &names).unwrap();
        let mut trx = begin(&db);
        for &n in written {
            let twice = if written.len() == 1 { value(3) } else { b"twice".to_vec() };
            insert(&mut trx, &table, &key(n), &twice).unwrap();
        }
        trx.commit().unwrap();
        let twice = if written.len() == 1 { value(3) } else { b"twice".to_vec() };
        let error = catch_up(&mut change, &names).unwrap_err();
        let last = key(written[written.len() - 1]);
        assert_eq!(error, Error::DuplicateKey { index: 1, value: last.clone() });
        let duplicate = change.duplicate().unwrap();
        assert_eq!((&duplicate.key, &duplicate.value), (&twice, &last));
        let mut row = vec![];
        assert!(change.row(&last, &mut row).unwrap());
        assert_eq!(row, twice);
        assert!(change.commit(&[]).is_err());
        let mut trx = begin(&db);
        for &n in written {
            delete(&mut trx, &table, &key(n)).unwrap();
        }
        trx.commit().unwrap();
        nothing_is_lost(&db, &table);
    }
    // One that is undone, or gone before anybody saw it, is none.
    let mut change = built(&db, "t", &names).unwrap();
    let mut trx = begin(&db);
    insert(&mut trx, &table, &key(20), &value(3)).unwrap();
    catch_up(&mut change, &names).unwrap();
    delete(&mut trx, &table, &key(3)).unwrap();
    trx.commit().unwrap();
    let mut trx = begin(&db);
    insert(&mut trx, &table, &key(21), &value(4)).unwrap();
    catch_up(&mut change, &names).unwrap();
    trx.rollback().unwrap();
    change.stop_writes().unwrap();
    catch_up(&mut change, &names).unwrap();
    let table = change.commit(&[]).unwrap();
    assert_eq!(agree(&db, &table).len(), 10);
}

#[test]
fn a_disk_that_fails_the_log_ends_the_change_and_not_the_writer() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..10);
    let names = ["primary", "unique"];
    let mut change =
        db.change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", &names)).unwrap();
    change.set_sort_memory(300_000);
    feed(&mut change, &names).unwrap();
    change.build(&mut || true).unwrap();
    fill(&db, &table, 100..101);
    catch_up(&mut change, &names).unwrap();
    sim.inject(Fault::new(StorageOp::Create, FaultKind::Io).on("sort/"));
    fill(&db, &table, 1000..20_000);
    let error = catch_up(&mut change, &names).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error:?}");
    assert!(change.commit(&[]).is_err());
    assert_eq!(agree(&db, &table).len(), 19_011);
    nothing_is_lost(&db, &table);

    // A log that goes by the disk, and comes back.
    let mut change =
        db.change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", &names)).unwrap();
    change.set_sort_memory(300_000);
    feed(&mut change, &names).unwrap();
    change.build(&mut || true).unwrap();
    assert!(sim.list("sort").unwrap().is_empty());
    catch_up(&mut change, &names).unwrap();
    fill(&db, &table, 50_000..70_000);
    assert_eq!(sim.list("sort").unwrap().len(), 1);
    change.stop_writes().unwrap();
    assert_eq!(catch_up(&mut change, &names).unwrap().rows, 20_000);
    let table = change.commit(&[]).unwrap();
    assert!(sim.list("sort").unwrap().is_empty());
    assert_eq!(db.status().get("memory_sorts"), Some(0));
    assert_eq!(agree(&db, &table).len(), 39_011);
}

/// A writer's statement; false if it was refused, and nothing of it is left.
fn write(
    random: &mut StdRng,
    trx: &mut Transaction,
    table: &Arc<Table>,
    values: u32,
) -> Result<bool> {
    let row = key(random.random_range(0..60));
    let new = value(random.random_range(0..values));
    let start = trx.savepoint();
    let mut old = vec![];
    let request = ReadRequest::new(&row, &mut old).locked(LockMode::Exclusive, LockWait::NoWait);
    let done = trx.read(table, 0, request).and_then(|is_there| match is_there {
        false => insert(trx, table, &row, &new),
        true if random.random_ratio(1, 3) => delete(trx, table, &row),
        // It goes on under another key.
        true if random.random_ratio(1, 4) => {
            trx.move_away(table, 0, &row)?;
            trx.delete(table, 1, &entry("by value", &row, &old).0)?;
            insert(trx, table, &key(random.random_range(60..90)), &new)
        }
        true => update(trx, table, &row, &new),
    });
    match done {
        Ok(()) => Ok(true),
        Err(
            Error::LockNoWait
            | Error::LockWaitTimeout
            | Error::Deadlock
            | Error::RecordChanged
            | Error::DuplicateKey { .. },
        ) => {
            match trx.must_rollback() {
                true => trx.rollback()?,
                false => trx.rollback_to(start)?,
            }
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Whether two rows that are committed have the same value.
fn has_duplicates(db: &Db, table: &Arc<Table>) -> Result<bool> {
    let mut seen = HashSet::new();
    Ok(scan(&mut begin(db), table, 0)?.into_iter().any(|(_, value)| !seen.insert(value)))
}

/// Transactions, a step of one now and then.
pub struct Writers {
    pub random: StdRng,
    sessions: Vec<(Transaction, Vec<Savepoint>)>,
    /// Different values that they write.
    values: u32,
    /// Two committed rows have had the same value.
    duplicates: bool,
    /// Rows written, whether they were committed or not.
    pub writes: u64,
}

impl Writers {
    pub fn new(seed: u64, db: &Db, values: u32) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let sessions = (0..random.random_range(1..5)).map(|_| (begin(db), vec![])).collect();
        Writers { random, sessions, values, duplicates: false, writes: 0 }
    }

    fn step(&mut self, db: &Db, table: &Arc<Table>) -> Result<()> {
        let random = &mut self.random;
        let at = random.random_range(0..self.sessions.len());
        let (trx, savepoints) = &mut self.sessions[at];
        match random.random_range(0..20) {
            0 | 1 => {
                trx.commit()?;
                savepoints.clear();
                self.duplicates |= has_duplicates(db, table)?;
            }
            2 => {
                trx.rollback()?;
                savepoints.clear();
            }
            3 => savepoints.push(trx.savepoint()),
            4 if !savepoints.is_empty() => {
                let to = random.random_range(0..savepoints.len());
                savepoints.truncate(to + 1);
                // It may be void: a deadlock has rolled the transaction back.
                match trx.rollback_to(savepoints[to]) {
                    Err(Error::InvalidOption(_)) => savepoints.clear(),
                    outcome => outcome?,
                }
            }
            5 => drop(db.step_purge()?),
            6 => drop(db.step_cleaner()?),
            _ => self.writes += u64::from(write(random, trx, table, self.values)?),
        }
        Ok(())
    }

    pub fn some(&mut self, db: &Db, table: &Arc<Table>, most: u32) -> Result<()> {
        let steps = self.random.random_range(0..=most);
        (0..steps).try_for_each(|_| self.step(db, table))
    }

    pub fn end_all(&mut self, db: &Db, table: &Arc<Table>) -> Result<()> {
        for (trx, savepoints) in &mut self.sessions {
            match self.random.random_bool(0.5) {
                true => trx.commit()?,
                false => trx.rollback()?,
            }
            savepoints.clear();
            self.duplicates |= has_duplicates(db, table)?;
        }
        Ok(())
    }
}

/// How a change gets rows of the snapshot, and rows that were written since.
pub struct Feeding<'a> {
    pub row: &'a dyn Fn(&mut IndexChange, Row<'_>) -> Result<()>,
    pub edit: &'a dyn Fn(&mut IndexChange, &Changed) -> Result<()>,
}

impl Writers {
    /// Brings a change as far as its commit while the sessions write. In the end they have ended,
    /// and the change has all that they wrote.
    pub fn beside(
        &mut self,
        (db, table): (&Db, &Arc<Table>),
        change: &mut IndexChange,
        feeding: &Feeding<'_>,
    ) -> Result<()> {
        if self.random.random_bool(0.5) {
            change.set_sort_memory(self.random.random_range(300..5000));
        }
        loop {
            self.some(db, table, 3)?;
            let Some((key, value)) = change.next_row()? else { break };
            let (key, value) = (key.to_vec(), value.to_vec());
            (feeding.row)(change, (&key, &value))?;
        }
        // Errors of the writers end the build, too.
        change.build(&mut || self.some(db, table, 20).is_ok())?;
        for _ in 0..self.random.random_range(0..6) {
            self.some(db, table, 40)?;
            change.begin_round()?;
            while let Some(row) = next_changed(change)? {
                (feeding.edit)(change, &row)?;
                self.some(db, table, 3)?;
            }
            change.end_round(&mut || self.some(db, table, 10).is_ok())?;
        }
        self.end_all(db, table)?;
        change.stop_writes()?;
        assert_eq!(round(change, feeding.edit, &mut || true)?.writes_left, 0);
        Ok(())
    }
}

/// Builds beside the writers.
fn build_beside(
    db: &Db,
    table: &Arc<Table>,
    names: &[&str],
    writers: &mut Writers,
) -> Result<Arc<Table>> {
    let mut change = db.change_indexes(&db.open_table("t").unwrap(), &wanted(db, "t", names))?;
    let feeding = Feeding {
        row: &|change, row| feed_row(change, names, row),
        edit: &|change, row| edit(change, names, row),
    };
    writers.beside((db, table), &mut change, &feeding)?;
    change.commit(&[])
}

pub fn thirty_rows(db: &Db) -> Arc<Table> {
    let table = db.create_table("t", &def()).unwrap();
    let mut trx = begin(db);
    for n in 0..30 {
        insert(&mut trx, &table, &key(n), &value(1_000_000 + n)).unwrap();
    }
    trx.commit().unwrap();
    table
}

pub fn cases(default: u64) -> u64 {
    std::env::var("TIDEPOOL_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn an_index_built_beside_random_writers_is_what_the_rows_ask_for() {
    let (mut refused, mut writes, cases) = (0, 0, cases(150));
    for seed in 0..cases {
        let sim = SimStorage::new(seed);
        let db = open(&sim);
        let table = thirty_rows(&db);
        let names: &[&str] = match seed % 3 {
            0 => &["primary", "by value", "backward"],
            _ => &["primary", "unique", "by value", "backward"],
        };
        let is_unique = names.contains(&"unique");
        // Values that are seldom the same, or often.
        let values = if is_unique && seed % 2 == 0 { 1_000_000 } else { 300 };
        let mut writers = Writers::new(seed, &db, values);
        let built = build_beside(&db, &table, names, &mut writers);
        writes += writers.writes;
        let table = match built {
            Ok(table) => table,
            Err(Error::DuplicateKey { .. }) => {
                assert!(is_unique && writers.duplicates, "seed {seed}");
                refused += 1;
                // The writers go on as if there had been no change.
                writers.some(&db, &table, 100).unwrap();
                writers.end_all(&db, &table).unwrap();
                assert_eq!(table.def(), &def());
                table
            }
            Err(error) => panic!("seed {seed}: {error}"),
        };
        drop(writers);
        let rows = agree(&db, &table);
        nothing_is_lost(&db, &table);
        assert!(sim.list("sort").unwrap_or_default().is_empty());
        drop((table, db));
        let db = open(&sim.crash());
        let table = db.open_table("t").unwrap();
        assert_eq!(agree(&db, &table), rows, "seed {seed}");
        nothing_is_lost(&db, &table);
    }
    assert!(writes > cases * 10 && (refused > 0 || cases < 100), "{writes}, {refused} refused");
}

#[test]
fn a_crash_beside_writers_leaves_the_old_or_the_new_indexes() {
    let names = ["primary", "unique", "by value", "backward"];
    let mut new = 0;
    for seed in 0..cases(15) {
        let run = |cut: Option<u64>| {
            let sim = SimStorage::new(seed);
            let db = open(&sim);
            let table = thirty_rows(&db);
            let start = sim.operation_count();
            cut.inspect(|cut| sim.crash_at(start + cut));
            let mut writers = Writers::new(seed, &db, 1_000_000);
            let outcome = build_beside(&db, &table, &names, &mut writers);
            let taken = sim.operation_count() - start;
            (sim, outcome.is_ok(), taken)
        };
        let (_, _, whole) = run(None);
        for cut in [whole / 4, whole / 2, whole - 8, whole - 5, whole - 3] {
            let (sim, done, _) = run(Some(cut));
            let db = open(&sim.crash());
            let table = db.open_table("t").unwrap();
            let found: Vec<_> = table.def().indexes.iter().map(|index| &index.name[..]).collect();
            let is_new = found == names;
            assert!(is_new || found == ["primary", "by value"], "seed {seed}, cut {cut}");
            assert!(is_new || !done, "seed {seed}, cut {cut}");
            new += u32::from(is_new);
            agree(&db, &table);
            nothing_is_lost(&db, &table);
            fill(&db, &table, 1000..1010);
            agree(&db, &table);
        }
    }
    assert!(new > 0, "no crash came behind the commit");
}
