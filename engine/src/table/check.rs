//! CHECK of a table: every tree is walked and verified page by page, while others use it.
//!
//! What this layer can tell: that the pages are whole, the nodes in order, and each entry's payload
//! well-formed. That the indexes of a row agree is for the layer above, which knows what the bytes
//! mean: it compares them by cursors in one transaction's snapshot.

use super::Table;
use crate::catalog::TableDef;
use crate::error::{Error, Result};
use crate::format::entry::Entry;
use crate::format::node::Node;
use crate::overflow;
use crate::space::{self, PageSet};
use parking_lot::RwLockReadGuard;
use std::cell::{Cell, RefCell};

/// Problems that are reported of the long values of an index.
const LONG_VALUE_PROBLEMS_MAX: usize = 100;

/// How far a check has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckProgress {
    /// Index being walked.
    pub index: usize,
    /// Its entries seen so far.
    pub entries: u64,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// For each index, what was counted in it up to the first problem.
    pub indexes: Vec<IndexCheck>,
    /// What is wrong, each naming file and page.
    pub problems: Vec<String>,
}

/// What a check counted in an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Walks and verifies every tree, with the names that its indexes have in `def`. `progress` is
    /// called for each leaf, nothing of the table held; if it says false, the check ends with
    /// [`Error::Interrupted`]. Of each tree the first problem is reported.
    pub(crate) fn check_trees(
        &self,
        def: &TableDef,
        progress: &mut dyn FnMut(CheckProgress) -> bool,
    ) -> Result<CheckReport> {
        self.check_all(def, None, progress)
    }

    /// As [`Table::check_trees`], and walks the chains of long values too, to their ends; notes in
    /// `reached` the pages that all of this leads to. While no thread uses the table and nothing is
    /// purged: a chain that is being freed would look broken.
    pub(crate) fn check_pages(
        &self,
        reached: &mut PageSet,
        progress: &mut dyn FnMut(CheckProgress) -> bool,
    ) -> Result<CheckReport> {
        self.check_all(self.def(), Some(reached), progress)
    }

    fn check_all(
        &self,
        def: &TableDef,
        mut reached: Option<&mut PageSet>,
        progress: &mut dyn FnMut(CheckProgress) -> bool,
    ) -> Result<CheckReport> {
        let mut inside = self.visit()?;
        let mut report = CheckReport::default();
        for index in 0..self.index_count() {
            let mut found = IndexCheck::default();
            let chains = reached.as_deref_mut().map(|reached| Chains::new(self, index, reached));
            let outcome =
                self.check_index(index, &mut found, &mut inside, chains.as_ref(), progress);
            if let Some(chains) = chains {
                report.problems.append(&mut chains.problems.into_inner());
            }
            match outcome {
                Ok(()) => {}
                Err(error) if error.is_of_files() => {
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
        chains: Option<&Chains<'_>>,
        progress: &mut dyn FnMut(CheckProgress) -> bool,
    ) -> Result<()> {
        let (file, tree) = (self.space.name(), self.tree(index).tree());
        let entries = Cell::new(0);
        let mut pause = || {
            if let Some(chains) = chains {
                chains.walk()?;
            }
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
                if let (Some(chains), Some(long)) = (chains, entry.overflow()) {
                    chains.add(leaf.key(slot), long.first_page);
                }
            }
            entries.set(found.entries);
            Ok(())
        };
        let walked = tree.check_pausing(&mut look, &mut pause)?;
        found.pages = walked.leaf_pages + walked.inner_pages;
        if let Some(chains) = chains {
            let mut reached = chains.reached.borrow_mut();
            walked.pages.iter().for_each(|&no| reached.insert(no));
        }
        Ok(())
    }

    /// Compares what a check has reached with what is allocated; see [`space::check_allocated`].
    pub(crate) fn compare_allocation(&self, reached: &PageSet) -> Result<u64> {
        let _inside = self.visit()?;
        space::check_allocated(&self.env, &self.space, reached)
    }

    /// Pages that are allocated, but that nothing leads to. To be asked only while no thread uses
    /// the table and purge has nothing left to do; what is on its way otherwise looks lost.
    pub fn unreachable_pages(&self) -> Result<Vec<u32>> {
        let _inside = self.visit()?;
        let mut reached = PageSet::default();
        reached.insert(0);
        for versioned in &self.trees {
            let (tree, mut chains) = (versioned.tree(), Vec::new());
            let walked = tree.check(&mut |leaf, first| {
                let entries =
                    (first..leaf.count()).filter_map(|slot| Entry::decode(leaf.payload(slot)));
                chains.extend(entries.filter_map(|entry| Some(entry.overflow()?.first_page)));
                Ok(())
            })?;
            walked.pages.iter().for_each(|&no| reached.insert(no));
            for head in chains {
                let pages = overflow::pages(&self.env, &self.space, tree.id(), head)?;
                pages.iter().for_each(|&no| reached.insert(no));
            }
        }
        let page_size = self.env.page_size();
        let allocated = space::allocated_pages(&self.env, &self.space)?.into_iter();
        let lost = |no: &u32| !reached.contains(*no) && *no != space::bitmap_of(*no, page_size);
        Ok(allocated.filter(lost).collect())
    }
}

/// The long values of an index that is being checked: noted under a leaf's latch, walked without
/// it.
struct Chains<'a> {
    table: &'a Table,
    index: usize,
    reached: RefCell<&'a mut PageSet>,
    /// Key and first page of those that are still to be walked.
    noted: RefCell<Vec<(Vec<u8>, u32)>>,
    problems: RefCell<Vec<String>>,
}

impl<'a> Chains<'a> {
    fn new(table: &'a Table, index: usize, reached: &'a mut PageSet) -> Self {
        let (noted, problems) = Default::default();
        Self { table, index, reached: RefCell::new(reached), noted, problems }
    }

    fn add(&self, key: Vec<u8>, first_page: u32) {
        self.noted.borrow_mut().push((key, first_page));
    }

    fn walk(&self) -> Result<()> {
        let (env, space) = (&self.table.env, &self.table.space);
        let tree = self.table.tree(self.index).tree().id();
        let mut reached = self.reached.borrow_mut();
        for (key, head) in self.noted.borrow_mut().drain(..) {
            let see = |no| {
                let is_new = !reached.contains(no);
                reached.insert(no);
                is_new
            };
            match overflow::for_each_page(env, space, tree, head, see) {
                Ok(()) => {}
                Err(error) if error.is_of_files() => {
                    let mut problems = self.problems.borrow_mut();
                    if problems.len() < LONG_VALUE_PROBLEMS_MAX {
                        let index = &self.table.def().indexes[self.index].name;
                        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
                        problems.push(format!("index '{index}': long value of key {key}: {error}"));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
