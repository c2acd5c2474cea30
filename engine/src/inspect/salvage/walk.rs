//! A tree from its root, around what is broken; and what an entry's value is.

use tidepool_pool::storage::AlignedBuf;
use tidepool_pool::{PageId, PageType, page};

use super::rescue::{Hidden, rescue};
use super::{EntryFn, Gap, SalvageTable, Salvaged};
use crate::error::Result;
use crate::files::space_file_name;
use crate::format::entry::{DELETED, Entry, OVERFLOW, OverflowReference};
use crate::format::node::{Node, page_type_at};
use crate::inspect::{InspectProgress, Inspection, ProgressFn};
use crate::overflow;
use crate::versioned::committed_version;

/// No tree is higher; a root that says so is none.
const LEVELS_MAX: usize = 64;

pub(super) fn salvage(
    inspection: &Inspection,
    table: &SalvageTable,
    see: EntryFn<'_>,
    progress: ProgressFn<'_>,
) -> Result<Salvaged> {
    let file = space_file_name(table.space);
    let total_bytes = inspection.storage.open(&file).and_then(|file| file.len()).unwrap_or(0);
    let mut told = |leaves: u64| {
        let done_bytes = (leaves * inspection.page_size().bytes() as u64).min(total_bytes);
        progress(InspectProgress { what: &table.name, done_bytes, total_bytes });
    };
    let mut walk = Walk {
        inspection,
        space: table.space,
        tree: table.clustered.map(|(tree, _)| tree),
        found: Salvaged::default(),
        hidden: Vec::new(),
        see,
        told: &mut told,
        value: Vec::new(),
    };
    walk.found.notes = inspection.rescue_notes(table.space);
    walk.found.is_rescued = !walk.found.notes.is_empty();
    walk.found.lacks_changes = table.lost_changes;
    match table.clustered {
        Some((_, root)) => walk.subtree(root, None, &Range::whole())?,
        None => walk.hidden.push(Hidden {
            range: Range::whole(),
            page: None,
            why: "its root is not known".into(),
        }),
    }
    if !walk.hidden.is_empty() {
        rescue(&mut walk)?;
    }
    let mut found = walk.found;
    found.gaps.sort_by(|a, b| a.lower.cmp(&b.lower));
    Ok(found)
}

/// The keys of a node.
#[derive(Debug, Clone)]
pub(super) struct Range {
    pub lower: Vec<u8>,
    pub upper: Option<Vec<u8>>,
}

impl Range {
    pub fn whole() -> Range {
        Range { lower: Vec::new(), upper: None }
    }

    pub fn of(node: Node<'_>) -> Range {
        Range { lower: node.lower_fence().into(), upper: node.upper_fence().map(Into::into) }
    }

    /// Whether it has all of the other one.
    pub fn holds(&self, other: &Range) -> bool {
        self.lower <= other.lower
            && match (&self.upper, &other.upper) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(mine), Some(other)) => other <= mine,
            }
    }
}

/// A walk over a tree.
pub(super) struct Walk<'w> {
    pub inspection: &'w Inspection,
    pub space: u32,
    /// Its id, if it is known.
    pub tree: Option<u32>,
    pub found: Salvaged,
    /// Subtrees whose root can't be read.
    pub hidden: Vec<Hidden>,
    see: EntryFn<'w>,
    told: &'w mut dyn FnMut(u64),
    value: Vec<u8>,
}

impl Walk<'_> {
    fn subtree(&mut self, no: u32, level: Option<usize>, range: &Range) -> Result<()> {
        let mut bytes = AlignedBuf::zeroed(self.inspection.page_size().bytes());
        if let Err(why) = self.node(no, level, range, &mut bytes) {
            match level {
                Some(0) => self.gap(range.clone(), Some(no), why),
                _ => self.hidden.push(Hidden { range: range.clone(), page: Some(no), why }),
            }
            return Ok(());
        }
        let node = Node::new(&bytes).expect("checked");
        if node.level() == 0 {
            return self.leaf(node);
        }
        for index in 0..=node.count() {
            let child = node.child(index).expect("checked");
            let lower = match index {
                0 => range.lower.clone(),
                _ => node.key(index - 1),
            };
            let upper = match index < node.count() {
                true => Some(node.key(index)),
                false => range.upper.clone(),
            };
            self.subtree(child, Some(node.level() - 1), &Range { lower, upper })?;
        }
        Ok(())
    }

    /// Reads a node that is to have this level (a root's is not known) and these keys.
    fn node(
        &self,
        no: u32,
        level: Option<usize>,
        range: &Range,
        bytes: &mut [u8],
    ) -> Result<(), String> {
        self.inspection.trusted_page(PageId::new(self.space, no), bytes)?;
        let node = self.whole_node(bytes)?;
        if level.is_some_and(|level| level != node.level()) || node.level() > LEVELS_MAX {
            return Err(format!("a node of level {}", node.level()));
        }
        if node.lower_fence() != range.lower || node.upper_fence() != range.upper.as_deref() {
            return Err("its fences differ from the separators in its parent".into());
        }
        Ok(())
    }

    /// A node of this tree, if all of it is in order.
    pub fn whole_node<'p>(&self, bytes: &'p [u8]) -> Result<Node<'p>, String> {
        let node = Node::new(bytes)?;
        if node.page_type() != page_type_at(node.level() as u16) {
            return Err(format!("page type {}, not a node of a tree", node.page_type().0));
        }
        if self.tree.is_some_and(|tree| tree != node.tree_id()) {
            return Err(format!("a page of tree {}", node.tree_id()));
        }
        node.verify()?;
        let is_leaf = node.level() == 0;
        match is_leaf || (0..=node.count()).all(|index| node.child(index).is_some()) {
            true => Ok(node),
            false => Err("an inner node lacks a child".into()),
        }
    }

    /// Gives the entries of a leaf.
    pub fn leaf(&mut self, leaf: Node<'_>) -> Result<()> {
        let mut key = Vec::new();
        for slot in 0..leaf.count() {
            leaf.key_into(slot, &mut key);
            let mut value = std::mem::take(&mut self.value);
            match self.version(leaf.tree_id(), &key, leaf.payload(slot), &mut value) {
                Ok(true) => {
                    self.found.entries += 1;
                    (self.see)(&key, &value)?;
                }
                Ok(false) => {}
                Err(why) => self.found.lose(&key, why),
            }
            self.value = value;
        }
        self.found.leaves += 1;
        (self.told)(self.found.leaves);
        Ok(())
    }

    pub fn gap(&mut self, range: Range, page: Option<u32>, why: String) {
        self.found.gaps.push(Gap { lower: range.lower, upper: range.upper, page, why });
    }

    /// Puts the value of an entry into `value`; false if the entry is deleted.
    fn version(
        &mut self,
        tree: u32,
        key: &[u8],
        payload: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, String> {
        value.clear();
        let flags = match self.inspection.db_with_undo() {
            Some(db) => {
                let found = committed_version(db.trx_system(), (tree, key), payload, value);
                match found.map_err(|error| error.to_string())? {
                    Some(flags) => flags,
                    None => return Ok(false),
                }
            }
            None => {
                let entry = Entry::decode(payload).ok_or("no entry of a versioned tree")?;
                self.found.unsure_entries +=
                    u64::from(!entry.is_settled() && entry.flags & DELETED == 0);
                value.extend_from_slice(entry.value);
                entry.flags
            }
        };
        if flags & DELETED != 0 {
            return Ok(false);
        }
        if flags & OVERFLOW != 0 {
            *value = self.long_value(tree, flags, value)?;
        }
        Ok(true)
    }

    /// The whole of a long value.
    fn long_value(&self, tree: u32, flags: u8, value: &[u8]) -> Result<Vec<u8>, String> {
        let reference = OverflowReference::of(flags, value).ok_or("a reference cut short")?;
        let mut whole = reference.head.to_vec();
        let mut bytes = AlignedBuf::zeroed(self.inspection.page_size().bytes());
        let mut no = reference.first_page;
        while (whole.len() as u64) < reference.total_len {
            let at = |why: String| format!("{}: page {no}: {why}", space_file_name(self.space));
            let id = PageId::new(self.space, no);
            self.inspection.trusted_page(id, &mut bytes).map_err(at)?;
            if page::page_type(&bytes) != PageType::OVERFLOW || page::tree_id(&bytes) != tree {
                return Err(at("no page of this long value".into()));
            }
            let (next, data) =
                overflow::parts(&bytes).ok_or("").map_err(|_| at("too long".into()))?;
            let missing = reference.total_len - whole.len() as u64;
            if data.is_empty() || data.len() as u64 > missing {
                return Err(at(format!("{} bytes of a value, {missing} expected", data.len())));
            }
            whole.extend_from_slice(data);
            no = next;
        }
        Ok(whole)
    }
}
