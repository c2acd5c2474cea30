//! Estimates for a query optimizer: sizes of the trees, and of key ranges.

use super::Table;
use crate::error::Result;
use crate::versioned::entry::Entry;
use std::ops::Bound;
use std::sync::atomic::Ordering;

/// Sizes of a table, from a sample of its pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableStatistics {
    /// Rows.
    pub rows: u64,
    /// For each index.
    pub indexes: Vec<IndexStatistics>,
    /// Size of the file, in bytes.
    pub file_size_bytes: u64,
    /// Of it, what no tree uses, in bytes.
    pub free_size_bytes: u64,
}

/// Sizes of an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexStatistics {
    /// Entries; those deleted but not purged are among them.
    pub entries: u64,
    /// Leaf pages.
    pub leaf_pages: u64,
    /// Leaf pages, in bytes.
    pub data_size_bytes: u64,
    /// Of these, what entries take, in bytes.
    pub entry_size_bytes: u64,
    /// Levels of the tree, the leaves included.
    pub levels: u32,
}

impl Table {
    /// Samples every index. The row count is what is known from counting, not from the sample.
    pub fn statistics(&self) -> Result<TableStatistics> {
        let _inside = self.visit()?;
        let page_size = self.env.page_size() as u64;
        let mut out = TableStatistics { rows: self.rows(), ..TableStatistics::default() };
        for tree in &self.trees {
            let sampled = tree.tree().statistics()?;
            out.indexes.push(IndexStatistics {
                entries: sampled.entries,
                leaf_pages: sampled.leaf_pages,
                data_size_bytes: sampled.leaf_pages * page_size,
                entry_size_bytes: sampled.entry_bytes,
                levels: sampled.depth as u32,
            });
        }
        out.file_size_bytes = self.space.file().len()?;
        let used: u64 = out.indexes.iter().map(|index| index.data_size_bytes).sum();
        out.free_size_bytes = out.file_size_bytes.saturating_sub(used);
        Ok(out)
    }

    /// Estimated number of entries of an index between two keys, from the shape of the tree: a few page accesses.
    pub fn estimate_range(&self, index: usize, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> Result<u64> {
        let _inside = self.visit()?;
        self.tree(index).tree().estimate_range(lo, hi)
    }

    /// Shows a random sample of an index's leaves, each as its keys in order and the number of leaves that it stands for. For
    /// estimates of how many keys share a prefix. Deleted entries are left out.
    pub fn sample_leaves(
        &self,
        index: usize,
        count: usize,
        visit: &mut dyn FnMut(&[Vec<u8>], f64),
    ) -> Result<()> {
        let _inside = self.visit()?;
        let mut keys = Vec::new();
        self.tree(index).tree().sample_leaves(count, &mut |leaf, stands_for| {
            keys.clear();
            let live =
                |slot: &usize| Entry::decode(leaf.payload(*slot)).is_some_and(|e| !e.is_deleted());
            keys.extend((0..leaf.count()).filter(live).map(|slot| leaf.key(slot)));
            visit(&keys, stands_for);
            Ok(())
        })
    }

    /// Takes the row count from a sample: after a crash, when the counted one is lost.
    pub(crate) fn estimate_rows(&self) -> Result<()> {
        let sampled = self.tree(Table::CLUSTERED).tree().statistics()?;
        self.rows.store(sampled.entries.min(i64::MAX as u64) as i64, Ordering::Relaxed);
        Ok(())
    }
}
