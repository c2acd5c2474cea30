//! CHECK of a table: every tree is walked and verified page by page, while others use it.
//!
//! What this layer can tell: that the pages are whole, the nodes in order, and each entry's payload well-formed. That the
//! indexes of a row agree is for the layer above, which knows what the bytes mean: it compares them by cursors in
//! one transaction's snapshot.

use super::Table;
use crate::catalog::TableDef;
use crate::error::{Error, Result};
use crate::format::entry::Entry;
use crate::format::node::Node;
use crate::overflow;
use crate::space;
use parking_lot::RwLockReadGuard;
use std::cell::Cell;
use std::collections::HashSet;

/// How far a check has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckProgress {
    /// Index being walked.
    pub index: usize,
    /// Its entries seen so far.
    pub entries: u64,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// For each index, what was counted in it up to the first problem.
    pub indexes: Vec<IndexCheck>,
    /// What is wrong, each naming file and page.
    pub problems: Vec<String>,
}

/// What a check counted in an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexCheck {
    /// Entries, the delete-marked ones included.
    pub entries: u64,
    /// Entries that are deleted, but not purged yet, or by a transaction not yet committed.
    pub delete_marked: u64,
    /// Pages of the tree.
    pub pages: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Table {
    /// Walks and verifies every tree, with the names that its indexes have in `def`. `progress` is called for each leaf, nothing of the table held; if
    /// it says false, the check ends with [`Error::Interrupted`]. Of each tree the first problem is reported.
    pub(crate) fn check_trees(
        &self,
        def: &TableDef,
        progress: &mut dyn FnMut(CheckProgress) -> bool,
    ) -> Result<CheckReport> {
        let mut inside = self.visit()?;
        let mut report = CheckReport::default();
        for index in 0..self.index_count() {
            let mut found = IndexCheck::default();
            match self.check_index(index, &mut found, &mut inside, progress) {
                Ok(()) => {}
                Err(error @ (Error::Corrupt { .. } | Error::Format { .. } | Error::Storage(_))) => {
                    let name = def.indexes.get(index).map_or("?", |index| &index.name);
                    report.problems.push(format!("index '{name}': {error}"));
                }
                Err(error) => return Err(error),
            }
            report.indexes.push(found);
        }
        Ok(report)
    }

    fn check_index(
        &self,
        index: usize,
        found: &mut IndexCheck,
        inside: &mut RwLockReadGuard<'_, ()>,
        progress: &mut dyn FnMut(CheckProgress) -> bool,
    ) -> Result<()> {
        let (file, tree) = (self.space.file().name(), self.tree(index).tree());
        let entries = Cell::new(0);
        let mut pause = || {
            let so_far = CheckProgress { index, entries: entries.get() };
            // Who is asked may drop the table, or be waited for by somebody who does.
            match RwLockReadGuard::unlocked(inside, || progress(so_far)) {
                true => self.check_there(),
                false => Err(Error::Interrupted),
            }
        };
        let mut look = |leaf: Node<'_>, first| {
            for slot in first..leaf.count() {
                let entry = Entry::decode(leaf.payload(slot)).ok_or_else(|| {
                    let no = u32::from_le_bytes(leaf.page()[4..8].try_into().expect("four bytes"));
                    Error::corrupt(file, no, format!("entry {slot} is malformed"))
                })?;
                found.entries += 1;
                found.delete_marked += u64::from(entry.is_deleted());
            }
            entries.set(found.entries);
            Ok(())
        };
        let walked = tree.check_pausing(&mut look, &mut pause)?;
        found.pages = walked.leaf_pages + walked.inner_pages;
        Ok(())
    }

    /// Pages that are allocated, but that nothing leads to. To be asked only while nobody uses the table and purge has nothing
    /// left to do; what is on its way otherwise looks lost.
    pub fn unreachable_pages(&self) -> Result<Vec<u32>> {
        let _inside = self.visit()?;
        let mut reached = HashSet::from([0]);
        for versioned in &self.trees {
            let (tree, mut chains) = (versioned.tree(), Vec::new());
            let walked = tree.check(&mut |leaf, first| {
                let entries =
                    (first..leaf.count()).filter_map(|slot| Entry::decode(leaf.payload(slot)));
                chains.extend(entries.filter_map(|entry| Some(entry.overflow()?.first_page)));
                Ok(())
            })?;
            reached.extend(walked.pages);
            for head in chains {
                reached.extend(overflow::pages(&self.env, &self.space, tree.id(), head)?);
            }
        }
        let page_size = self.env.page_size();
        let allocated = space::allocated_pages(&self.env, &self.space)?.into_iter();
        let lost = |no: &u32| !reached.contains(no) && *no != space::bitmap_of(*no, page_size);
        Ok(allocated.filter(lost).collect())
    }
}
