//! Filling an empty tree with entries that come in the order of their keys.
//!
//! Leaves are filled from left to right, each in one mini-transaction that also makes the next one
//! and puts it into the parent:
//! ```text
//! before   … │ full │ empty, no upper fence
//! after    … │ full │ full │ empty, no upper fence
//! ```
//! So an entry is written, and logged, once; and at every moment there is a valid tree, which a
//! crash leaves to be freed or used like any other.
//!
//! # How full
//! Cells are stored without the common prefix of the leaf's fences, so how much room they take
//! depends on the upper fence, and that on the key behind the leaf's last one. So each entry waits
//! until the next one is known: if it does not fit the leaf with the fence that the next key would
//! give, the leaf ends before it.

use super::Tree;
use super::descent::Exclusive;
use super::reshape::NodeInit;
use super::split::fill_limit;
use super::structure::insert_child;
use crate::error::Result;
use crate::format::node::{self, Node, Seek, cell_size, common_prefix_len, shortest_separator};
use crate::mtr::Mtr;
use crate::page_op::CellList;
use crate::space::Allocation;
use tidepool_pool::Access;

/// Entries that wait for their leaf.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    /// End of each key and of each payload in `bytes`.
    ends: Vec<(usize, usize)>,
}

impl Pending {
    fn push(&mut self, key: &[u8], payload: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        self.ends.push((key_end, self.bytes.len()));
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn entry(&self, at: usize) -> (&[u8], &[u8]) {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before].1);
        let (key_end, end) = self.ends[at];
        (&self.bytes[start..key_end], &self.bytes[key_end..end])
    }

    fn last_key(&self) -> Option<&[u8]> {
        self.ends.len().checked_sub(1).map(|last| self.entry(last).0)
    }

    /// Bytes that the cells and their slots take in a leaf whose keys share `prefix_len` bytes.
    fn size(&self, prefix_len: usize) -> usize {
        self.bytes.len() + self.ends.len() * cell_size(0, 0) - self.ends.len() * prefix_len
    }
}

/// Fills a tree that was empty; no other thread may use it. [`finish`](Self::finish) ends it.
pub struct Loader {
    tree: Tree,
    /// Lower fence of the last leaf, which is empty.
    lower: Vec<u8>,
    /// What that leaf gets, if it is cut before `newest`.
    pending: Pending,
    /// The last entry pushed; none before the first.
    newest: Option<(Vec<u8>, Vec<u8>)>,
}

impl Loader {
    /// Begins to fill `tree`, a new one.
    pub fn new(tree: &Tree) -> Self {
        Self { tree: tree.clone(), lower: Vec::new(), pending: Pending::default(), newest: None }
    }

    /// The entry that was added last: its key and its payload.
    pub fn newest(&self) -> Option<(&[u8], &[u8])> {
        self.newest.as_ref().map(|(key, payload)| (&key[..], &payload[..]))
    }

    /// Adds an entry, whose key is greater than all before. After an error the tree is fit for
    /// nothing but to be freed.
    pub fn push(&mut self, key: &[u8], payload: &[u8]) -> Result<()> {
        self.tree.check_lengths(key.len(), payload.len())?;
        let Some((newest, newest_payload)) = self.newest.take() else {
            self.newest = Some((key.to_vec(), payload.to_vec()));
            return Ok(());
        };
        assert!(*newest < *key, "keys must ascend");
        if !self.takes(newest.len() + newest_payload.len(), shortest_separator(&newest, key)) {
            self.cut_before(&newest)?;
        }
        self.pending.push(&newest, &newest_payload);
        let (mut newest, mut newest_payload) = (newest, newest_payload);
        newest.clear();
        newest.extend_from_slice(key);
        newest_payload.clear();
        newest_payload.extend_from_slice(payload);
        self.newest = Some((newest, newest_payload));
        Ok(())
    }

    /// Writes what is left. The tree is complete then.
    pub fn finish(mut self) -> Result<()> {
        let Some((newest, newest_payload)) = self.newest.take() else { return Ok(()) };
        // The last leaf has no upper fence, so its keys share nothing that could be left out.
        if !self.takes(newest.len() + newest_payload.len(), &[]) {
            self.cut_before(&newest)?;
        }
        self.pending.push(&newest, &newest_payload);
        let cells = self.cells(0);
        let mut mtr = Mtr::begin(&self.tree.env)?;
        let leaf = self.tree.descend::<Exclusive>(Seek::Last, 0, Access::Normal)?;
        let leaf = leaf.expect("every tree has leaves");
        self.check_last(leaf.page_id().no, &Node::trusted(&leaf))?;
        let leaf = mtr.adopt(leaf);
        mtr.apply(leaf, &cells.op());
        mtr.commit();
        Ok(())
    }

    /// Whether the last leaf, if it ends at `upper`, has room for an entry of this length beside
    /// those that wait. There always is room for the first: the limits on keys and payloads see to
    /// that.
    fn takes(&self, len: usize, upper: &[u8]) -> bool {
        if self.pending.ends.is_empty() {
            return true;
        }
        let prefix_len = common_prefix_len(&self.lower, upper);
        let cells = self.pending.size(prefix_len) + cell_size(0, len) - prefix_len;
        let room = self.tree.env.page_size() - node::SLOTS - self.lower.len() - upper.len();
        cells <= fill_limit(room, cells, self.pending.ends.len() + 1)
    }

    fn cells(&self, prefix_len: usize) -> CellList {
        let mut cells = CellList::new();
        for at in 0..self.pending.ends.len() {
            let (key, payload) = self.pending.entry(at);
            cells.push(&key[prefix_len..], &[], payload);
        }
        cells
    }

    /// Writes the entries that wait to the last leaf, which ends before `next`, and makes a new
    /// last leaf.
    fn cut_before(&mut self, next: &[u8]) -> Result<()> {
        let last = self.pending.last_key().expect("a leaf is cut when there is something in it");
        let separator = shortest_separator(last, next).to_vec();
        while !self.try_cut(&separator)? {}
        assert!(self.lower < separator, "leaves are made in the order of their keys");
        self.pending.clear();
        self.lower = separator;
        Ok(())
    }

    /// False if there was no room in the parent, or no parent: there is now.
    fn try_cut(&self, separator: &[u8]) -> Result<bool> {
        let tree = &self.tree;
        let mut mtr = Mtr::begin(&tree.env)?;
        let Some(parent) = tree.descend::<Exclusive>(Seek::Last, 1, Access::Normal)? else {
            tree.push_root_down(mtr)?;
            return Ok(false);
        };
        let parent_node = Node::trusted(&parent);
        let count = parent_node.count();
        if !parent_node.fits(separator.len(), size_of::<u32>()) {
            drop((parent, mtr));
            tree.make_room_above(separator)?;
            return Ok(false);
        }
        let parent_prefix = parent_node.prefix_len();
        let no = parent_node.child(count);
        let no =
            no.ok_or_else(|| tree.corrupt(parent.page_id().no, "an inner node lacks a child"))?;
        let leaf = tree.env.pool().exclusive(&tree.space, no, Access::Normal)?;
        tree.check_node(&leaf, no, 0)?;
        self.check_last(no, &Node::trusted(&leaf))?;

        let prefix_len = common_prefix_len(&self.lower, separator);
        let cells = self.cells(prefix_len);
        let init = NodeInit {
            tree_id: tree.id,
            level: 0,
            first_child: 0,
            lower: self.lower.clone(),
            upper: Some(separator.to_vec()),
        };
        let next_init = NodeInit { lower: separator.to_vec(), upper: None, ..init.clone() };
        let mut allocation = Allocation::reserve(&mut mtr, &tree.space, no, 1)?;
        let leaf = mtr.adopt(leaf);
        let parent = mtr.adopt(parent);
        let (next_no, next) = allocation.take(&mut mtr);
        mtr.apply(leaf, &init.op());
        mtr.apply(leaf, &cells.op());
        mtr.apply(next, &next_init.op());
        insert_child(&mut mtr, parent, count, &separator[parent_prefix..], next_no);
        mtr.commit();
        Ok(true)
    }

    fn check_last(&self, no: u32, leaf: &Node<'_>) -> Result<()> {
        let is_it = leaf.count() == 0
            && leaf.upper_fence().is_none()
            && leaf.lower_fence() == &self.lower[..];
        if is_it { Ok(()) } else { Err(self.tree.corrupt(no, "no empty last leaf of a new tree")) }
    }
}

#[cfg(test)]
mod tests {
    use super::Loader;
    use crate::btree::tests::{Model, fixture, put, remove, verify};
    use rand::prelude::*;
    use rand::rngs::StdRng;

    fn load(entries: &Model, frames: u64, page_size: usize) -> crate::btree::Tree {
        let tree = fixture::tree(frames, page_size);
        let mut loader = Loader::new(&tree);
        for (key, payload) in entries {
            loader.push(key, payload).unwrap();
        }
        loader.finish().unwrap();
        verify(&tree, entries);
        tree
    }

    #[test]
    fn any_entries_come_to_a_sound_tree_that_can_be_changed() {
        for seed in 0..40 {
            let mut random = StdRng::seed_from_u64(seed);
            let (count, key_max) = (random.random_range(0..3000), random.random_range(2..300));
            let shared = vec![b'x'; random.random_range(0..200)];
            let mut model = Model::new();
            for _ in 0..count {
                let mut key = if random.random_bool(0.7) { shared.clone() } else { Vec::new() };
                let len = random.random_range(1..key_max);
                key.extend((0..len).map(|_| random.random_range(0..4u8)));
                model.insert(key, vec![7; random.random_range(0..60)]);
            }
            let tree = load(&model, 2048, 4096 << (seed % 5));
            for _ in 0..300 {
                let key: Vec<u8> = (0..random.random_range(1..key_max))
                    .map(|_| random.random_range(0..4u8))
                    .collect();
                put(&tree, &key, b"later").unwrap();
                model.insert(key, b"later".to_vec());
            }
            verify(&tree, &model);
            let keys: Vec<_> = model.keys().cloned().collect();
            for key in keys.choose_multiple(&mut random, keys.len() / 2) {
                assert!(remove(&tree, key).unwrap());
                model.remove(key);
            }
            verify(&tree, &model);
            assert!(tree.free_all().unwrap() > 0);
        }
    }

    #[test]
    fn the_longest_entries_fit() {
        for page_size in [4096, 16384, 65536] {
            longest_entries(page_size);
        }
    }

    fn longest_entries(page_size: usize) {
        let key_len = crate::format::node::max_key_len(page_size);
        let payload_len = crate::format::node::max_payload_len(page_size, key_len);
        let mut model = Model::new();
        for n in 0..200u32 {
            // Some share all but their end, some nothing.
            let mut key = vec![if n % 3 == 0 { n as u8 } else { 0 }; key_len];
            key[key_len - 4..].copy_from_slice(&n.to_be_bytes());
            model.insert(key, vec![n as u8; payload_len]);
        }
        load(&model, 2048, page_size);
    }

    #[test]
    fn leaves_are_filled() {
        let model: Model =
            (0..20_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![1; 13])).collect();
        let tree = load(&model, 2048, 4096);
        let statistics = tree.statistics().unwrap();
        let used = statistics.entry_bytes as f64 / (statistics.leaf_pages * 4096) as f64;
        assert!(used > 0.6, "{used}: {statistics:?}");
        let by_cells = (20_000 * (10 + 13 + 2)) as f64 / (statistics.leaf_pages * 4096) as f64;
        assert!(by_cells > 0.85, "{by_cells}: {statistics:?}");
    }
}
