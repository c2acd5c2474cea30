//! The newest deadlock.

use std::fmt;
use std::time::SystemTime;

use super::shown_number;
use crate::db::Db;

/// Bytes of a key that are shown.
const KEY_SHOWN: usize = 64;

/// A circle of transactions that waited for one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadlockReport {
    /// When it was found.
    pub at: SystemTime,
    /// Each waited for the next, the last for the first. The first is the one whose wait closed the
    /// circle.
    pub transactions: Vec<DeadlockedTransaction>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

impl Db {
    /// The newest deadlock since the open, if there was one.
    pub fn latest_deadlock(&self) -> Option<DeadlockReport> {
        let deadlock = self.trx_system().locks.latest_deadlock()?;
        let names = self.index_names();
        let members = deadlock.circle.into_iter();
        let transactions = members.map(|member| {
            let (tree, key) = member.wanted.unzip();
            DeadlockedTransaction {
                id: shown_number(member.trx_id, member.number),
                index: tree.and_then(|tree| names.get(&tree).cloned()),
                key: key.unwrap_or_default(),
                undo_records: member.undo_records,
                is_victim: member.is_victim,
            }
        });
        Some(DeadlockReport { at: deadlock.at, transactions: transactions.collect() })
    }
}

impl fmt::Display for DeadlockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age_s = self.at.elapsed().unwrap_or_default().as_secs();
        writeln!(f, "{age_s} s ago; each waited for the next, the last for the first")?;
        for one in &self.transactions {
            write!(f, "transaction {}, {} undo records, ", one.id, one.undo_records)?;
            match &one.index {
                Some((table, index)) => write!(f, "waited for a lock in {table}, index {index}")?,
                None => write!(f, "waited for a lock in a table that is gone")?,
            }
            f.write_str(", key ")?;
            one.key.iter().take(KEY_SHOWN).try_for_each(|byte| write!(f, "{byte:02x}"))?;
            f.write_str(if one.key.len() > KEY_SHOWN { "…" } else { "" })?;
            writeln!(f, "{}", if one.is_victim { ": rolled back" } else { "" })?;
        }
        Ok(())
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
        assert_eq!(db.latest_deadlock(), None);

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
        let report = db.latest_deadlock().unwrap();
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
        let text = db.latest_deadlock().unwrap().to_string();
        assert!(text.contains("in a table that is gone, key 61\n"), "{text}");
    }
}
