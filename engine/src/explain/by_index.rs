//! Which index has how many of its pages in memory.
//!
//! One walk over the frames gives a count for each (space, tree); the catalog gives them names.
//! Nothing is latched, and no file is read.

use std::collections::HashMap;

use tidepool_pool::PageType;

use crate::db::Db;
use crate::files::{SYSTEM_SPACE, UNDO_SPACE};

/// Whose pages they are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// An index of a table, its long values included.
    Index {
        /// The table.
        table: String,
        /// The index.
        index: String,
    },
    /// What a table's file has beside its indexes: header, maps of free pages, freed pages, pages
    /// on their way in.
    File {
        /// The table.
        table: String,
    },
    /// The catalog.
    Catalog,
    /// Undo records.
    Undo,
    /// Tables that were dropped or emptied a moment ago, or are just being made.
    Unknown,
}

/// Pages in memory of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedIndex {
    /// Whose.
    pub owner: Owner,
    /// All of them.
    pub pages: u64,
    /// Those that the replacement policy means to keep.
    pub pages_hot: u64,
    /// Those that differ from their file.
    pub pages_dirty: u64,
}

#[derive(Default, Clone, Copy)]
struct Count {
    pages: u64,
    hot: u64,
    dirty: u64,
}

impl Db {
    /// The pages in memory, counted by owner, in the owners' order. Owners without any are left
    /// out.
    pub fn buffer_pool_by_index(&self) -> Vec<CachedIndex> {
        let mut counts: HashMap<(u32, u32), Count> = HashMap::new();
        self.pool().for_each_resident(|page| {
            // A freed page keeps the number of the tree that had it.
            let in_tree = matches!(
                page.page_type,
                PageType::TREE_LEAF | PageType::TREE_INNER | PageType::OVERFLOW
            );
            let tree = if in_tree { page.tree_id } else { 0 };
            let count = counts.entry((page.id.space, tree)).or_default();
            count.pages += 1;
            count.hot += u64::from(page.is_hot);
            count.dirty += u64::from(page.is_dirty);
        });
        let mut rows = Vec::with_capacity(counts.len());
        let mut unknown = Count::default();
        let mut give = |owner: Owner, count: Count| {
            rows.push(CachedIndex {
                owner,
                pages: count.pages,
                pages_hot: count.hot,
                pages_dirty: count.dirty,
            });
        };
        for (table, record) in self.catalog().tables() {
            for (tree, def) in record.trees.iter().zip(&record.def.indexes) {
                if let Some(count) = counts.remove(&(record.space, tree.tree)) {
                    let index = def.name.clone();
                    give(Owner::Index { table: table.clone(), index }, count);
                }
            }
            if let Some(count) = counts.remove(&(record.space, 0)) {
                give(Owner::File { table }, count);
            }
        }
        let (mut catalog, mut undo) = (Count::default(), Count::default());
        for ((space, _), count) in counts {
            let sum = match space {
                SYSTEM_SPACE => &mut catalog,
                UNDO_SPACE => &mut undo,
                _ => &mut unknown,
            };
            sum.pages += count.pages;
            sum.hot += count.hot;
            sum.dirty += count.dirty;
        }
        for (owner, count) in
            [(Owner::Catalog, catalog), (Owner::Undo, undo), (Owner::Unknown, unknown)]
        {
            if count.pages > 0 {
                give(owner, count);
            }
        }
        rows.sort_by(|a, b| a.owner.cmp(&b.owner));
        rows
    }
}
