//! Backups, which take some time: everything else goes on between their steps, and what comes out
//! is what was committed at their end. Many are incremental, and are combined with their base.

use rand::prelude::*;
use std::sync::Arc;
use tidepool::storage::{SimStorage, Storage};
use tidepool::{Backup, Db, Error, combine_backups};

use crate::life::found_in;
use crate::{Step, World};

/// A backup under way, and where it goes.
pub struct Running {
    backup: Backup,
    target: SimStorage,
    /// The target's disk may become full.
    small: bool,
    incremental: bool,
}

/// Incremental backups after a complete one, at most.
const CHAIN_MAX: usize = 5;

/// The log's disk was full for a moment, and the log went on without the backup.
fn is_left_behind(error: &Error) -> bool {
    matches!(error, Error::Storage(why) if why.contains("was not copied yet"))
}

impl World {
    /// Begins a backup, goes on with it, or ends it.
    pub fn backup(&mut self) -> Step {
        let Some(mut running) = self.backup.take() else { return self.begin_backup() };
        let goes_on = self.random.random_ratio(3, 4);
        if goes_on {
            for _ in 0..self.random.random_range(1..4) {
                if let Err(error) = running.backup.step() {
                    return self.failed(error, running);
                }
            }
            self.backup = Some(running);
            return Ok(());
        }
        let Running { backup, target, small, incremental } = running;
        match backup.finish() {
            Ok(report) => {
                trace!("backup: {report:?}");
                self.counts.backups += 1;
                assert_eq!(report.base.is_some(), incremental);
                if !incremental {
                    self.chain.clear();
                }
                target.set_capacity(None);
                self.chain.push(target);
                self.restore_chain();
                Ok(())
            }
            Err(Error::NoSpace(_)) if small => {
                assert_nothing_left(&target);
                Ok(())
            }
            Err(error) if is_left_behind(&error) => {
                assert_nothing_left(&target);
                Ok(())
            }
            result => self.must(result.map(drop)),
        }
    }

    fn begin_backup(&mut self) -> Step {
        let target = SimStorage::new(self.random.random());
        let small = self.random.random_ratio(1, 6);
        if small {
            target.set_capacity(Some(self.random.random_range(0..2 << 20)));
        }
        let base = self.chain.last().filter(|_| self.chain.len() <= CHAIN_MAX);
        let base = base.filter(|_| self.random.random_ratio(2, 3));
        let incremental = base.is_some();
        let goal: Arc<dyn Storage> = Arc::new(target.clone());
        let begun = match base {
            Some(base) => self.db.begin_backup_since(&base.crash(), goal),
            None => self.db.begin_backup(goal),
        };
        let backup = match begun {
            Err(Error::NoSpace(_)) if small => {
                assert_nothing_left(&target);
                return Ok(());
            }
            result => self.must(result)?,
        };
        trace!("a backup begins: {:?}, incremental: {incremental}", backup.progress());
        self.backup = Some(Running { backup, target, small, incremental });
        Ok(())
    }

    fn failed(&self, error: Error, running: Running) -> Step {
        let full = running.small && matches!(error, Error::NoSpace(_));
        drop(running.backup);
        assert_nothing_left(&running.target);
        if full || is_left_behind(&error) { Ok(()) } else { self.must(Err(error)) }
    }

    /// Opens the newest backup, combined with its base if it is incremental.
    fn restore_chain(&mut self) {
        let [complete] = &self.chain[..] else {
            let seed = self.seed;
            let newest = self.chain.last().expect("a backup was made");
            let refused = Db::open_on(Arc::new(newest.crash()), self.options()).unwrap_err();
            assert!(refused.to_string().contains("tidepool combine"), "{refused}");
            let parts: Vec<Arc<dyn Storage>> =
                self.chain.iter().map(|part| shared(&part.crash())).collect();
            let target = SimStorage::new(self.random.random());
            if self.random.random_ratio(1, 4) {
                target.crash_at(self.random.random_range(1..100));
                if combine_backups(&parts, shared(&target), &mut |_| true).is_err() {
                    let cut = target.crash();
                    assert!(Db::open_on(shared(&cut), self.options()).is_err() || is_new(&cut));
                }
            }
            let target = SimStorage::new(self.random.random());
            combine_backups(&parts, shared(&target), &mut |_| true)
                .unwrap_or_else(|error| panic!("seed {seed}: backups do not combine: {error}"));
            self.counts.combined += 1;
            if self.random.random_ratio(1, 4) {
                // What was combined can be the base as well.
                self.chain = vec![target.clone()];
            }
            self.restore(&target);
            return;
        };
        let complete = complete.clone();
        self.restore(&complete);
    }

    /// Opens what a backup has made, after a power cut, or two.
    fn restore(&mut self, target: &SimStorage) {
        let mut sim = target.crash();
        if self.random.random() {
            sim.crash_at(sim.operation_count() + self.random.random_range(1..60));
            let _ = Db::open_on(Arc::new(sim.clone()), self.options());
            sim = sim.crash();
        }
        let seed = self.seed;
        let db = Db::open_on(Arc::new(sim.clone()), self.options())
            .unwrap_or_else(|error| panic!("seed {seed}: a backup does not open: {error}"));
        assert!(!sim.exists("tables/orphans").unwrap(), "seed {seed}: set aside in a backup");
        let names: Vec<_> = self.model.names.keys().cloned().collect();
        assert_eq!(db.table_names().unwrap(), names, "seed {seed}: tables of a backup");
        let xids: Vec<_> = self.model.prepared.keys().cloned().collect();
        assert_eq!(db.recovered_xids(), xids, "seed {seed}: prepared in a backup");
        let found = found_in(seed, &db, &self.model).unwrap();
        assert_eq!(found, self.model, "seed {seed}: rows of a backup");
        for name in &names {
            let report = db.open_table(name).unwrap().check(&db, &mut |_| true).unwrap();
            assert!(report.is_clean(), "seed {seed}: {name} of a backup: {:?}", report.problems);
        }
        db.close().unwrap();
    }
}

fn shared(storage: &SimStorage) -> Arc<dyn Storage> {
    Arc::new(storage.clone())
}

/// Whether nothing of a backup has come there yet: what was opened is a new data directory.
fn is_new(storage: &SimStorage) -> bool {
    !storage.exists(tidepool::UNFINISHED_MARK).unwrap()
}

/// The mark stays, so that what is left is never taken for a new directory.
const LEFT_BY_DESIGN: [&str; 4] = ["redo", "tables", "lock", tidepool::UNFINISHED_MARK];

fn assert_nothing_left(target: &SimStorage) {
    for dir in ["", "redo", "tables"] {
        let Ok(names) = target.list(dir) else { continue };
        let left: Vec<_> =
            names.iter().filter(|name| !LEFT_BY_DESIGN.contains(&&***name)).collect();
        assert!(left.is_empty(), "left of a failed backup: {dir}/{left:?}");
    }
}
