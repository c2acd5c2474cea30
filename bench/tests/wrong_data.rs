//! A store that lies has no figures.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tidepool_bench::row::{Key, Row};
use tidepool_bench::store::{EachRow, Kind, Session, Snapshot, Store};
use tidepool_bench::task::{ROWS_MIN, Task};
use tidepool_bench::workload::Workload;
use tidepool_bench::{Error, Result};

type Rows = Arc<Mutex<BTreeMap<Key, Vec<u8>>>>;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Lie {
    None,
    /// Reads of one row give another's value.
    OtherRow,
    /// Reads say that a row is not there.
    Missing,
    /// Scans leave a row out.
    Skipped,
    /// Updates are forgotten when the store is closed.
    Forgotten,
    /// A snapshot shows what is committed later.
    Fresh,
}

/// A map in memory.
struct Map {
    rows: Rows,
    at_load: Rows,
    lie: Lie,
}

impl Store for Map {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(MapSession(self)))
    }

    fn close(self: Box<Self>) -> Result<()> {
        if self.lie == Lie::Forgotten {
            let loaded = self.at_load.lock().unwrap().clone();
            *self.rows.lock().unwrap() = loaded;
        }
        Ok(())
    }
}

struct MapSession<'a>(&'a Map);

impl MapSession<'_> {
    fn read(&self, rows: &BTreeMap<Key, Vec<u8>>, key: &Key, value: &mut Vec<u8>) -> bool {
        let number = u64::from_be_bytes(*key);
        let key = match self.0.lie {
            Lie::OtherRow if number == 100 => 101_u64.to_be_bytes(),
            Lie::Missing if number == 100 => return false,
            _ => *key,
        };
        rows.get(&key).inspect(|found| value.clone_from(found)).is_some()
    }
}

impl Session for MapSession<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        Ok(self.read(&self.0.rows.lock().unwrap(), key, value))
    }

    fn scan(&mut self, from: &Key, rows: usize, each: &mut EachRow<'_>) -> Result<()> {
        for (key, value) in self.0.rows.lock().unwrap().range(*from..).take(rows) {
            if self.0.lie == Lie::Skipped && u64::from_be_bytes(*key) == 100 {
                continue;
            }
            each(key, value)?;
        }
        Ok(())
    }

    fn insert(&mut self, rows: &[Row]) -> Result<()> {
        self.update(rows)?;
        *self.0.at_load.lock().unwrap() = self.0.rows.lock().unwrap().clone();
        Ok(())
    }

    fn update(&mut self, rows: &[Row]) -> Result<()> {
        let mut map = self.0.rows.lock().unwrap();
        map.extend(rows.iter().map(|row| (row.key, row.value.clone())));
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot + '_>> {
        let seen = match self.0.lie {
            Lie::Fresh => self.0.rows.clone(),
            _ => Arc::new(Mutex::new(self.0.rows.lock().unwrap().clone())),
        };
        Ok(Box::new(MapSnapshot { seen, session: MapSession(self.0) }))
    }
}

struct MapSnapshot<'a> {
    seen: Rows,
    session: MapSession<'a>,
}

impl Snapshot for MapSnapshot<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        Ok(self.session.read(&self.seen.lock().unwrap(), key, value))
    }
}

fn outcome(lie: Lie, workload: Workload) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let task = Task {
        // It has no name: it is not in the program.
        store: Kind::Tidepool,
        workload,
        dir: dir.path().into(),
        rows: ROWS_MIN,
        value_bytes: 32,
        threads: 2,
        seconds: 0.05,
        memory_bytes: 0,
    };
    let (rows, at_load) = (Rows::default(), Rows::default());
    let open = || {
        let map = Map { rows: rows.clone(), at_load: at_load.clone(), lie };
        Ok(Box::new(map) as Box<dyn Store>)
    };
    task.run_on(&open).map(drop)
}

fn assert_found(lie: Lie, workload: Workload) {
    match outcome(lie, workload) {
        Err(Error::WrongData(text)) => assert!(text.contains("row "), "{text}"),
        other => panic!("{lie:?}, {workload:?}: {other:?}"),
    }
}

#[test]
fn an_honest_store_passes() {
    for workload in Workload::ALL {
        outcome(Lie::None, workload).unwrap_or_else(|error| panic!("{workload:?}: {error}"));
    }
}

#[test]
fn a_wrong_value_is_found() {
    for workload in [Workload::Reads, Workload::ReadsTogether, Workload::Mix] {
        assert_found(Lie::OtherRow, workload);
    }
}

#[test]
fn a_missing_row_is_found() {
    for workload in [Workload::Reads, Workload::ReadsThreads] {
        assert_found(Lie::Missing, workload);
    }
}

#[test]
fn a_scan_with_a_gap_is_found() {
    for workload in [Workload::Scans, Workload::LoadInOrder, Workload::LoadAtRandom] {
        assert_found(Lie::Skipped, workload);
    }
}

#[test]
fn a_lost_update_is_found() {
    for workload in [Workload::Commits, Workload::CommitsThreads, Workload::Updates] {
        assert_found(Lie::Forgotten, workload);
    }
}

#[test]
fn a_snapshot_that_moves_is_found() {
    assert_found(Lie::Fresh, Workload::UpdatesHeld);
}
