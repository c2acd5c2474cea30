//! Locks that are held or waited for.

use std::collections::HashMap;

use super::{shown_id, shown_lock};
use crate::catalog::Catalog;
use crate::db::Db;
use crate::lock::report::{Covers, LockRecord};
use crate::lock::{LockMode, Owner};

/// Memory that a report's locks may take, bytes: as InnoDB's, so that a transaction with millions
/// of them is no danger.
const MEMORY_MAX_BYTES: usize = 16 << 20;

/// A lock that is held or waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockReport {
    /// Unique among these, except by chance.
    pub id: String,
    /// By whom: as [`TransactionReport::id`](super::TransactionReport::id).
    pub trx: u64,
    /// How.
    pub mode: LockMode,
    /// Whether it is held; else it is waited for.
    pub granted: bool,
    /// The table and the index; none if the table was dropped a moment ago.
    pub index: Option<(String, String)>,
    /// What it covers.
    pub covers: Covers,
    /// Whom a request waits for, those before it in the queue first.
    pub blocking: Vec<u64>,
}

/// All locks at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocksReport {
    /// In order of tree, key, and place in the queue.
    pub locks: Vec<LockReport>,
    /// Whether there are more, left out for the memory they would take.
    pub is_truncated: bool,
}

impl Db {
    /// All explicit locks, and those waited for. What a transaction has written is locked without
    /// being among these, until another one waits for it.
    pub fn locks(&self) -> LocksReport {
        let (mut records, is_truncated) = self.trx_system().locks.records(MEMORY_MAX_BYTES);
        // Who waits for the end of others, because of their ranges, is in no queue.
        for one in self.inner.observe() {
            let Some(wanted) = one.owner.requested() else { continue };
            if !wanted.until_end_of.is_empty() {
                records.push(LockRecord {
                    owner: one.owner,
                    tree: wanted.tree,
                    mode: wanted.mode,
                    granted: false,
                    covers: Covers::Key(wanted.key),
                    blockers: wanted.until_end_of,
                });
            }
        }
        // Stable: the order in a queue stays.
        records.sort_by(|a, b| (a.tree, a.covers.low()).cmp(&(b.tree, b.covers.low())));
        let names = if records.is_empty() { HashMap::new() } else { self.index_names() };
        let ids =
            |owners: &[std::sync::Arc<Owner>]| owners.iter().map(|one| shown_id(one)).collect();
        let locks = records
            .into_iter()
            .map(|record| LockReport {
                id: shown_lock(&record.owner, record.tree, record.covers.low()),
                trx: shown_id(&record.owner),
                mode: record.mode,
                granted: record.granted,
                index: names.get(&record.tree).cloned(),
                blocking: ids(&record.blockers),
                covers: record.covers,
            })
            .collect();
        LocksReport { locks, is_truncated }
    }

    /// Table and index of every tree.
    pub(super) fn index_names(&self) -> HashMap<u32, (String, String)> {
        index_names(self.catalog())
    }
}

/// Table and index of every tree.
pub(super) fn index_names(catalog: &Catalog) -> HashMap<u32, (String, String)> {
    let mut names = HashMap::new();
    for (table, record) in catalog.tables() {
        for (tree, def) in record.trees.iter().zip(&record.def.indexes) {
            names.insert(tree.tree, (table.clone(), def.name.clone()));
        }
    }
    names
}
