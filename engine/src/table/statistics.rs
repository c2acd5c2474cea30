//! Estimates for a query optimizer: sizes of the trees, and of key ranges. And what the table's
//! file takes.

use super::Table;
use crate::error::Result;
use crate::format::entry::Entry;
use std::ops::Bound;
use tidepool_pool::packed::PackedFile;

/// Sizes of a table, from a sample of its pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStatistics {
    /// Rows, estimated.
    pub rows: u64,
    /// For each index.
    pub indexes: Vec<IndexStatistics>,
}

/// What the file of a table takes on disk. Pages that were changed since they were last written
/// count as they were then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileUsage {
    /// Length of the file, in bytes.
    pub file_bytes: u64,
    /// Of it, segments that hold an image or are being filled, in bytes.
    pub occupied_bytes: u64,
    /// Of these, images that are in use, in bytes: of pages, and of the map that leads to them.
    pub live_bytes: u64,
}

impl FileUsage {
    /// What `file` takes.
    pub(crate) fn of(file: &PackedFile) -> FileUsage {
        let usage = file.usage();
        FileUsage {
            file_bytes: usage.file_bytes,
            occupied_bytes: usage.occupied_bytes,
            live_bytes: usage.live_bytes,
        }
    }

    /// Bytes of the file in which no image in use lies.
    pub fn dead_bytes(&self) -> u64 {
        self.file_bytes.saturating_sub(self.live_bytes)
    }
}

/// Sizes of an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexStatistics {
    /// Entries; those deleted but not purged are among them.
    pub entries: u64,
    /// Leaf pages, estimated.
    pub leaf_pages: u64,
    /// Leaf pages, in bytes.
    pub data_size_bytes: u64,
    /// Of these, what entries take, in bytes.
    pub entry_size_bytes: u64,
    /// Levels of the tree, the leaves included.
    pub levels: u32,
}

/// What [`Table::sample_keys`] shows: the level of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sampled {
    /// Keys of entries.
    Entries = 0,
    /// Bounds between leaves; none if there is one leaf.
    Bounds = 1,
}

impl Table {
    /// Samples every index. The row count is what is known from counting, and from the sample only
    /// if it was estimated before: then it is so anew.
    pub fn statistics(&self) -> Result<TableStatistics> {
        let _inside = self.visit()?;
        let page_size = self.env.page_size() as u64;
        let mut out = TableStatistics::default();
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
        if self.has_estimated_rows() {
            self.take_estimate(out.indexes[Table::CLUSTERED].entries);
        }
        out.rows = self.rows();
        Ok(out)
    }

    /// What the table's file takes on disk now. Reads nothing.
    pub fn file_usage(&self) -> Result<FileUsage> {
        let _inside = self.visit()?;
        Ok(FileUsage::of(self.space.file()))
    }

    /// Estimated number of entries of an index between two keys, from the shape of the tree: a few
    /// page accesses. [`Error::NoIndex`](crate::Error::NoIndex) if there is no such index.
    pub fn estimate_range(&self, index: usize, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> Result<u64> {
        self.check_has_index(index)?;
        let _inside = self.visit()?;
        self.tree(index).tree().estimate_range(lo, hi)
    }

    /// How many entries an index has from key `lo` up to `hi`, without that, but at most `max`: in
    /// any version, so also those that are not committed, and those that are deleted and not purged
    /// yet. If there are none, no view sees one.
    /// [`Error::NoIndex`](crate::Error::NoIndex) if there is no such index.
    pub fn count_traces(&self, index: usize, lo: &[u8], hi: &[u8], max: u64) -> Result<u64> {
        self.check_has_index(index)?;
        let _inside = self.visit()?;
        self.tree(index).tree().count_range(lo, hi, max)
    }

    /// Shows the keys of leaves of an index ([`Sampled::Entries`]), or the bounds between them, of
    /// a random sample: lists of neighbours, in order, each with the number of such lists that it
    /// stands for. For estimates of how many keys share a prefix.
    ///
    /// A bound is greater than all keys before it and no greater than those behind, and as short as
    /// that allows: where it differs from the key before it, so does the key behind. The bound to
    /// what follows ends a list of entries, too: pages are split where keys differ most, so that
    /// the greatest differences are there and nowhere else. Deleted entries are left out.
    pub fn sample_keys(
        &self,
        index: usize,
        sampled: Sampled,
        count: usize,
        visit: &mut dyn FnMut(&[Vec<u8>], f64),
    ) -> Result<()> {
        self.check_has_index(index)?;
        let inside = self.visit()?;
        let (level, mut lists) = (sampled as usize, Vec::new());
        self.tree(index).tree().sample_nodes(level, count, &mut |node, stands_for| {
            let live = |slot: &usize| {
                let entry = || Entry::decode(node.payload(*slot));
                sampled == Sampled::Bounds || entry().is_some_and(|entry| !entry.is_deleted())
            };
            let keys = (0..node.count()).filter(live).map(|slot| node.key(slot));
            let keys: Vec<_> = keys.chain(node.upper_fence().map(<[u8]>::to_vec)).collect();
            lists.push((keys, stands_for));
            Ok(())
        })?;
        // Who is shown them may write to the table, or drop it.
        drop(inside);
        lists.iter().for_each(|(keys, stands_for)| visit(keys, *stands_for));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, IndexDef, Options, TableDef, TransactionOptions};
    use std::sync::Arc;
    use tidepool_pool::storage::SimStorage;

    /// Groups of many leaves: where one ends a leaf ends, too, so that among the entries of a leaf
    /// no change is ever seen.
    #[test]
    fn ends_of_large_groups_are_seen() {
        const GROUPS: u8 = 10;
        let options = Options {
            buffer_pool_size_bytes: 8 << 20,
            redo_capacity_bytes: 8 << 20,
            background: false,
            ..Options::default()
        };
        let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
        let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        let mut lists = Vec::new();
        let mut show = |sampled| {
            lists.clear();
            let mut take = |keys: &[Vec<u8>], stands_for| lists.push((keys.to_vec(), stands_for));
            table.sample_keys(0, sampled, 5, &mut take).unwrap();
            lists.clone()
        };
        assert_eq!(show(Sampled::Entries), [(vec![], 1.0)]);
        assert_eq!(show(Sampled::Bounds), []);
        for n in 0..2_000_u32 {
            for group in 0..GROUPS {
                let key = [&[group; 20][..], &n.to_be_bytes()].concat();
                trx.insert(&table, 0, &key, &[7; 40]).unwrap();
            }
        }
        trx.commit().unwrap();

        let changes =
            |keys: &[Vec<u8>]| keys.windows(2).filter(|two| two[0][0] != two[1][0]).count();
        let bounds = show(Sampled::Bounds);
        assert_eq!(bounds.len(), 1, "the tree's root");
        assert_eq!((changes(&bounds[0].0), bounds[0].1), (usize::from(GROUPS) - 1, 1.0));
        let entries = show(Sampled::Entries);
        assert_eq!(entries.len(), 5);
        let leaves = bounds[0].0.len() + 1;
        for (keys, stands_for) in &entries {
            assert!(keys.is_sorted(), "the bound comes last");
            assert_eq!(*stands_for, leaves as f64);
        }
        db.close().unwrap();
    }
}
