//! What is acknowledged: the tables, their rows, and the transactions that are prepared.

use std::collections::{BTreeMap, BTreeSet};

pub use crate::scan::Rows;

/// Model's identity of a table: survives a rename, not a truncation.
pub type TableNo = u64;

/// What a transaction has written: what each key now has.
pub type Writes = BTreeMap<(TableNo, Vec<u8>), Option<Vec<u8>>>;

/// What is acknowledged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Model {
    pub names: BTreeMap<String, TableNo>,
    pub rows: BTreeMap<TableNo, Rows>,
    /// Tables that have the second index.
    pub indexed: BTreeSet<TableNo>,
    /// Prepared transactions without a session, by identifier.
    pub prepared: BTreeMap<Vec<u8>, Writes>,
}

impl Model {
    pub fn apply(&mut self, writes: &Writes) {
        for ((no, key), value) in writes {
            let rows = self.rows.get_mut(no).expect("a table in use is not dropped");
            match value {
                Some(value) => rows.insert(key.clone(), value.clone()),
                None => rows.remove(key),
            };
        }
    }
}

/// The entry of a row in the second index: its key backward, so that it comes in another order.
pub fn second_key(key: &[u8]) -> Vec<u8> {
    key.iter().rev().copied().collect()
}
