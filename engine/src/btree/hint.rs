//! A leaf found again without a descent.
//!
//! Who has just read an entry and lets go of its leaf is often back a moment later, for the entry's
//! neighbour or to change the entry itself. A [`LeafHint`] is where it was: a page and a slot. It
//! holds nothing and promises nothing; by then the leaf may have been split, merged, evicted, or be
//! a page of something else.
//!
//! # Why it can be believed
//! Whatever a page that says it is a leaf of this tree has between its fences is nowhere else in
//! the tree: splits and merges move a range from one leaf to another with both latched exclusively,
//! and a page that leaves the tree is formatted as free in the same mini-transaction. So for a page
//! that is latched it is enough to ask what it is and which range it has; the answer needs neither
//! its parent nor its version. (The leaves of a dropped tree are not formatted, but no thread asks
//! for that tree any more.)
//!
//! The page is latched only if it is in the pool and the latch is free: a wrong guess never reads a
//! page and never waits.

use super::Tree;
use super::leaf::{LeafMut, LeafRef};
use crate::format::node::Node;
use tidepool_pool::Access;

/// Where an entry was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafHint {
    tree_id: u32,
    page_no: u32,
    slot: usize,
}

impl LeafHint {
    /// Whether the entry was one of this tree.
    #[inline]
    pub fn is_of(&self, tree: &Tree) -> bool {
        self.tree_id == tree.id
    }
}

impl LeafRef<'_> {
    /// The present place of an entry.
    #[inline]
    pub fn hint(&self, slot: usize) -> LeafHint {
        LeafHint { tree_id: self.node().tree_id(), page_no: self.page_id().no, slot }
    }
}

impl Tree {
    /// Latches the leaf of the hint for reading, if it is the one that holds `key`, or what is just
    /// before `key`; with the slot of `key`, as by [`LeafRef::find`]. Where that can't be had at
    /// once there is none, and a descent is due.
    #[inline]
    pub fn hinted_shared(
        &self,
        hint: LeafHint,
        key: &[u8],
        before: bool,
        access: Access,
    ) -> Option<(LeafRef<'_>, Result<usize, usize>)> {
        if !hint.is_of(self) {
            return None;
        }
        let guard = self.env.pool().try_shared(&self.space, hint.page_no, access)?;
        let found = self.find_in(&guard, hint, key, before)?;
        Some((LeafRef::new(guard), found))
    }

    /// Latches the leaf of the hint for changing, if it is the one that `key` belongs to; with the
    /// slot of `key`.
    #[inline]
    pub fn hinted_exclusive(
        &self,
        hint: LeafHint,
        key: &[u8],
    ) -> Option<(LeafMut<'_>, Result<usize, usize>)> {
        if !hint.is_of(self) {
            return None;
        }
        let guard = self.env.pool().try_exclusive(&self.space, hint.page_no, Access::Normal)?;
        let found = self.find_in(&guard, hint, key, false)?;
        Some((LeafMut::new(guard), found))
    }

    /// The slot of `key` in a latched page; none if the page is not the leaf for it.
    #[inline]
    fn find_in(
        &self,
        page: &[u8],
        hint: LeafHint,
        key: &[u8],
        before: bool,
    ) -> Option<Result<usize, usize>> {
        self.check_node(page, hint.page_no, 0).ok()?;
        let node = Node::trusted(page);
        // The key is there, which shows as well as the fences do that it belongs there.
        let is_at = node.is_at(hint.slot, key);
        let is_in_range = match before {
            false => is_at || node.covers(key),
            true => node.lower_fence() < key && node.upper_fence().is_none_or(|upper| key <= upper),
        };
        match is_at {
            true if is_in_range => Some(Ok(hint.slot)),
            _ => is_in_range.then(|| node.find(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::btree::Seek;
    use crate::btree::tests::{Model, fixture, get, number_key, put, remove, verify};

    fn hint_of(tree: &Tree, key: &[u8]) -> LeafHint {
        let leaf = tree.leaf_shared(Seek::Key(key), Access::Normal).unwrap();
        leaf.hint(leaf.find(key).unwrap_or_else(|slot| slot))
    }

    fn page_of(tree: &Tree, seek: Seek<'_>) -> u32 {
        tree.leaf_shared(seek, Access::Normal).unwrap().page_id().no
    }

    /// Splits, merges, a root that grows and shrinks: at any time a hint leads to the leaf that a
    /// descent leads to, or nowhere.
    #[test]
    fn an_old_hint_leads_to_the_right_leaf_or_nowhere() {
        let tree = fixture::tree(256, 4096);
        let mut rng = StdRng::seed_from_u64(7);
        let mut model = Model::new();
        let mut hints: BTreeMap<u64, LeafHint> = BTreeMap::new();
        let (mut found, mut refused) = (0, 0);
        for round in 0..u64::from(crate::test_cases(12)) * 1000 {
            let n = rng.random_range(0..1_500);
            let key = number_key(n);
            if rng.random_ratio(if round / 2_000 % 2 == 0 { 4 } else { 1 }, 5) {
                let payload = vec![n as u8; rng.random_range(0..200)];
                put(&tree, &key, &payload).unwrap();
                model.insert(key, payload);
            } else {
                remove(&tree, &key).unwrap();
                model.remove(&key);
            }
            let noted = rng.random_range(0..1_500);
            hints.insert(noted, hint_of(&tree, &number_key(noted)));
            // Of the key noted, and of another.
            let (&noted, &hint) = hints.iter().nth(round as usize % hints.len()).unwrap();
            for n in [noted, rng.random_range(0..1_500)] {
                let key = number_key(n);
                for (seek, before) in [(Seek::Key(&key[..]), false), (Seek::Before(&key[..]), true)]
                {
                    match tree.hinted_shared(hint, &key, before, Access::Normal) {
                        Some((leaf, slot)) => {
                            assert_eq!(slot, leaf.find(&key));
                            let no = leaf.page_id().no;
                            drop(leaf);
                            assert_eq!(no, page_of(&tree, seek), "{seek:?}");
                            found += 1;
                        }
                        None => refused += 1,
                    }
                }
                if let Some((leaf, slot)) = tree.hinted_exclusive(hint, &key) {
                    assert_eq!(slot, leaf.find(&key));
                    let payload = slot.ok().map(|slot| leaf.payload_at(slot).to_vec());
                    drop(leaf);
                    assert_eq!(payload, get(&tree, &key).unwrap());
                }
            }
        }
        assert!(found > 1000 && refused > 1000, "{found} found, {refused} refused");
        verify(&tree, &model);
    }

    #[test]
    fn a_hint_of_another_tree_or_a_latched_page_leads_nowhere() {
        let tree = fixture::tree(64, 4096);
        put(&tree, &number_key(1), b"p").unwrap();
        let hint = hint_of(&tree, &number_key(1));
        let key = number_key(1);
        let hinted = |hint| tree.hinted_shared(hint, &key, false, Access::Normal);
        assert!(hinted(hint).is_some());
        for hint in [
            LeafHint { tree_id: hint.tree_id + 1, ..hint },
            LeafHint { page_no: 0, ..hint },
            LeafHint { page_no: 1 << 30, ..hint },
        ] {
            assert!(hinted(hint).is_none());
            assert!(tree.hinted_exclusive(hint, &key).is_none());
        }
        let reader = tree.leaf_shared(Seek::Key(&key), Access::Normal).unwrap();
        assert!(hinted(hint).is_some());
        assert!(tree.hinted_exclusive(hint, &key).is_none());
        drop(reader);
        let writer = tree.leaf_exclusive(&key).unwrap();
        assert!(hinted(hint).is_none());
        drop(writer);
        // A slot that is not there any more is no harm.
        let high = LeafHint { slot: 1000, ..hint };
        assert!(hinted(high).is_some_and(|(_, slot)| slot == Ok(0)));
    }
}
