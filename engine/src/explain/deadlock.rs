//! The newest deadlocks.

use std::collections::HashMap;
use std::fmt;
use std::time::SystemTime;

use super::shown_number;
use crate::db::Db;
use crate::lock::deadlock::{Deadlock, Logger};

/// Bytes of a key that are shown.
const KEY_SHOWN: usize = 64;
/// Characters of a statement that are shown.
const STATEMENT_SHOWN: usize = 300;

/// A circle of transactions that waited for one another.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadlockReport {
    /// Which one since the open, from 1.
    pub number: u64,
    /// When it was found.
    pub at: SystemTime,
    /// Each waited for a lock that the next held or had asked for before it, the last for one of
    /// the first's. The first is the one whose wait closed the circle.
    pub transactions: Vec<DeadlockedTransaction>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadlockedTransaction {
    /// As [`TransactionReport::id`](super::TransactionReport::id).
    pub id: u64,
    /// The table and the index of the lock that it waited for; none if the table is gone.
    pub index: Option<(String, String)>,
    /// The key of that lock.
    pub key: Box<[u8]>,
    /// Undo records that it had written: the one with the fewest is rolled back.
    pub undo_records: u64,
    /// Whether it was rolled back.
    pub is_victim: bool,
    /// What the layer above knows its session by; none for one that no session runs.
    pub session: Option<u64>,
    /// The statement that its session was at, if the layer above knows.
    pub statement: Option<String>,
}

impl Db {
    /// The newest deadlocks since the open, the newest first: 32 at most.
    pub fn deadlocks(&self) -> Vec<DeadlockReport> {
        let deadlocks = self.trx_system().locks.deadlocks.newest();
        if deadlocks.is_empty() {
            return Vec::new();
        }
        let names = self.index_names();
        deadlocks.into_iter().map(|deadlock| report(deadlock, &names)).collect()
    }

    /// Changes whether each deadlock is written to the log (it is not, by default).
    pub fn set_log_deadlocks(&self, value: bool) {
        let weak = self.downgrade();
        self.trx_system().locks.deadlocks.set_logger(value.then(|| {
            Box::new(move |deadlock: &Deadlock| {
                let Some(db) = weak.upgrade() else { return };
                let report = report(deadlock.clone(), &db.index_names());
                tracing::info!("deadlock {}: {}", report.number, report.circle());
            }) as Logger
        }));
    }
}

fn report(deadlock: Deadlock, names: &HashMap<u32, (String, String)>) -> DeadlockReport {
    let members = deadlock.circle.into_iter();
    let transactions = members.map(|member| {
        let (tree, key) = member.wanted.unzip();
        DeadlockedTransaction {
            id: shown_number(member.trx_id, member.number),
            index: tree.and_then(|tree| names.get(&tree).cloned()),
            key: key.unwrap_or_default(),
            undo_records: member.undo_records,
            is_victim: member.is_victim,
            session: (member.session != 0).then_some(member.session),
            statement: member.statement,
        }
    });
    let transactions = transactions.collect();
    DeadlockReport { number: deadlock.number, at: deadlock.at, transactions }
}

impl DeadlockReport {
    /// A line for each transaction.
    fn circle(&self) -> String {
        let lines = self.transactions.iter().map(|one| format!("{one}\n"));
        format!("each waited for the next, the last for the first\n{}", lines.collect::<String>())
    }
}

impl fmt::Display for DeadlockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age_s = self.at.elapsed().unwrap_or_default().as_secs();
        write!(f, "{age_s} s ago; {}", self.circle())
    }
}

impl fmt::Display for DeadlockedTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transaction {}, ", self.id)?;
        if let Some(session) = self.session {
            write!(f, "connection {session}, ")?;
        }
        write!(f, "{} undo records, ", self.undo_records)?;
        match &self.index {
            Some((table, index)) => write!(f, "waited for a lock in {table}, index {index}")?,
            None => write!(f, "waited for a lock in a table that is gone")?,
        }
        f.write_str(", key ")?;
        self.key.iter().take(KEY_SHOWN).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(if self.key.len() > KEY_SHOWN { "…" } else { "" })?;
        if let Some(statement) = &self.statement {
            let shown: String = statement.chars().take(STATEMENT_SHOWN).collect();
            let rest = if shown.len() < statement.len() { "…" } else { "" };
            write!(f, ", by {shown}{rest}")?;
        }
        f.write_str(if self.is_victim { ": rolled back" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimStorage;
    use crate::{Error, IndexDef, Options, TableDef, TransactionOptions};
    use std::sync::Arc;

    #[test]
    fn the_newest_deadlock_is_told_with_its_victim() {
        let options = Options { memory_guard: false, ..Options::small() };
        let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
        let table = db.create_table("shop/t", &TableDef::new([IndexDef::unique("key")])).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        for key in [b"a", b"b"] {
            trx.insert(&table, 0, key, b"0").unwrap();
        }
        trx.commit().unwrap();
        assert_eq!(db.deadlocks(), []);

        let mut first = db.begin(TransactionOptions::default());
        let mut second = db.begin(TransactionOptions::default());
        first.update(&table, 0, b"a", b"1").unwrap();
        second.update(&table, 0, b"b", b"2").unwrap();
        second.insert(&table, 0, b"c", b"2").unwrap();
        let outcomes = std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let outcome = first.update(&table, 0, b"b", b"1");
                // Not before that may the other go on.
                first.rollback().unwrap();
                outcome
            });
            while db.status().get("row_lock_current_waits") != Some(1) {
                std::thread::yield_now();
            }
            let outcome = second.update(&table, 0, b"a", b"2");
            (waits.join().unwrap(), outcome)
        });
        // The first has written less.
        assert_eq!(outcomes, (Err(Error::Deadlock), Ok(())));
        let report = db.deadlocks().remove(0);
        assert_eq!(report.number, 1);
        let seen: Vec<_> = report
            .transactions
            .iter()
            .map(|one| (one.index.clone().unwrap(), &*one.key, one.undo_records, one.is_victim))
            .collect();
        let index = ("shop/t".to_string(), "key".to_string());
        assert_eq!(seen, [(index.clone(), &b"a"[..], 2, false), (index, &b"b"[..], 1, true)]);
        let text = report.to_string();
        assert!(text.contains("in shop/t, index key, key 62: rolled back\n"), "{text}");
        second.rollback().unwrap();
        drop((first, second, table));
        db.drop_table("shop/t").unwrap();
        let text = db.deadlocks()[0].to_string();
        assert!(text.contains("in a table that is gone, key 61\n"), "{text}");
    }
}
