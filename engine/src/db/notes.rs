//! What a crash has left of changes of indexes is freed at the next opening: the trees that the
//! notes in a table's file name, and the catalog does not ([`provisional_trees`]).

use super::Inner;
use crate::catalog::{TableRecord, TreeRecord};
use crate::error::Result;
use crate::table::provisional_trees;

fn has_notes(record: &TableRecord) -> bool {
    record.has_notes && !record.lost_changes
}

impl Inner {
    /// Whether there may be something for [`free_provisional_trees`](Self::free_provisional_trees).
    pub(super) fn has_provisional_trees(&self) -> bool {
        self.catalog.tables().iter().any(|(_, record)| has_notes(record))
    }

    /// Frees what a crash has left of changes of indexes. Before purge and rollbacks begin.
    pub(super) fn free_provisional_trees(&self) -> Result<()> {
        let tables = self.catalog.tables();
        for (name, record) in tables.iter().filter(|(_, record)| has_notes(record)) {
            if let Err(error) = self.clear_notes_of(name, record) {
                self.check_writable()?;
                // The file may be missing, and come back: what is noted there is half freed
                // perhaps.
                let spared = record.trees.iter().map(|tree| tree.tree).collect();
                let limit = self.catalog.tree_id_limit()?;
                self.trx_system.condemn_all_trees_but(record.space, limit, spared);
                tracing::warn!(
                    table = name,
                    %error,
                    "pages of an index that was dropped or not finished stay in use until the \
                     next start"
                );
            }
        }
        Ok(())
    }

    fn clear_notes_of(&self, name: &str, record: &TableRecord) -> Result<()> {
        let (space, _) = self.open_space_of(record)?;
        let notes = provisional_trees::all(&self.env, &space)?;
        let unwanted: Vec<TreeRecord> =
            notes.iter().filter(|note| !record.trees.contains(note)).copied().collect();
        // No reader may enter them, even if they can't be freed now: some of their pages may be
        // free already.
        self.trx_system.condemn_trees(unwanted.iter().map(|tree| tree.tree));
        for note in notes.iter().filter(|note| !unwanted.contains(note)) {
            provisional_trees::forget(&self.env, &space, note.tree)?;
        }
        for note in unwanted {
            provisional_trees::free(&self.env, &space, note)?;
        }
        let record = TableRecord { has_notes: false, ..record.clone() };
        self.catalog.replace(&mut self.definition_trx(), name, record)?;
        Ok(())
    }
}
