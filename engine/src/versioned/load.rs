//! Entries of a tree that no reader can see yet: settled from the beginning, and written without
//! undo.

use super::VersionedTree;
use crate::error::Result;
use crate::format::entry::{Entry, OVERFLOW, OverflowReference};
use crate::mtr::Mtr;
use crate::overflow;
use crate::space::Allocation;

/// No chain begins with the space's header.
const NO_PAGE: u32 = 0;

/// The first page of the chain that a payload names.
fn chain_of(payload: &[u8]) -> Option<u32> {
    Some(Entry::decode(payload)?.overflow()?.first_page)
}

/// Whether an entry's payload is the one that was asked for, where that may leave the pages open.
fn is_payload(present: &[u8], wanted: &[u8]) -> bool {
    if present == wanted {
        return true;
    }
    let reference = |payload| Entry::decode(payload)?.overflow();
    let (Some(present), Some(wanted)) = (reference(present), reference(wanted)) else {
        return false;
    };
    (present.total_len, present.head) == (wanted.total_len, wanted.head)
}

impl VersionedTree {
    /// Appends to `payload` what a settled entry with a key of this length holds, once a value too
    /// long for the leaf is in a chain.
    ///
    /// Nothing leads to that chain before the entry is in the tree: the space must be one that is
    /// dropped as a whole if it does not come to that.
    pub(crate) fn settled_payload(
        &self,
        key_len: usize,
        value: &[u8],
        payload: &mut Vec<u8>,
    ) -> Result<()> {
        if value.len() <= self.inline_max(key_len) {
            Entry::settled(value).encode(payload);
            return Ok(());
        }
        let (env, space) = (self.tree.env(), self.tree.space());
        let (head, rest) = value.split_at(self.overflow_head_len());
        let (first_page, stored) = {
            let mut mtr = Mtr::begin(env)?;
            let mut allocation = Allocation::reserve(&mut mtr, space, self.tree.root(), 1)?;
            let begun = overflow::start(&mut mtr, &mut allocation, self.id(), rest);
            mtr.commit();
            begun
        };
        overflow::extend(env, space, self.id(), first_page, &rest[stored..])?;
        let mut bytes = Vec::new();
        OverflowReference { total_len: value.len() as u64, first_page, head }.encode(&mut bytes);
        let mut entry = Entry::settled(&bytes);
        entry.flags |= OVERFLOW;
        entry.encode(payload);
        Ok(())
    }

    /// Appends to `payload` by what [`edit_settled`](Self::edit_settled) knows the payload of an
    /// entry with this value. Which pages the value is in the caller need not know.
    pub(crate) fn settled_payload_to_remove(
        &self,
        key_len: usize,
        value: &[u8],
        payload: &mut Vec<u8>,
    ) {
        if value.len() <= self.inline_max(key_len) {
            Entry::settled(value).encode(payload);
            return;
        }
        let head = &value[..self.overflow_head_len()];
        let total_len = value.len() as u64;
        let mut bytes = Vec::new();
        OverflowReference { total_len, first_page: NO_PAGE, head }.encode(&mut bytes);
        let mut entry = Entry::settled(&bytes);
        entry.flags |= OVERFLOW;
        entry.encode(payload);
    }

    /// Edits a tree that no transaction can see yet. The entry with this key has the payload `old`
    /// (none: there is no entry). It gets the settled payload `new`; none removes it. False, and
    /// nothing changes, if the tree has anything else under the key. Of a long value only the
    /// length and the head are compared; its chain is freed, for which a crash must take the whole
    /// space.
    pub(crate) fn edit_settled(
        &self,
        key: &[u8],
        old: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        let tree = &self.tree;
        loop {
            let mut mtr = Mtr::begin(tree.env())?;
            let leaf = tree.leaf_exclusive(key)?;
            let found = leaf.find_covered(key);
            let present = found.ok().map(|slot| leaf.payload_at(slot));
            let chain = match (present, old) {
                (None, None) => None,
                (Some(present), Some(old)) if is_payload(present, old) => chain_of(present),
                _ => return Ok(false),
            };
            let fits = match (found, new) {
                (_, None) => true,
                (Ok(slot), Some(new)) => leaf.fits_replaced(slot, new.len()),
                (Err(_), Some(new)) => leaf.fits(key.len(), new.len()),
            };
            if !fits {
                drop((leaf, mtr));
                tree.make_room(key, new.map_or(0, <[u8]>::len))?;
                continue;
            }
            let mut is_underfull = false;
            match (found, new) {
                (Ok(slot), Some(new)) => drop(leaf.replace(&mut mtr, slot, new)),
                (Err(slot), Some(new)) => drop(leaf.insert(&mut mtr, slot, key, new)),
                (Ok(slot), None) => {
                    is_underfull = leaf.remove(&mut mtr, slot).is_underfull(&mtr);
                }
                (Err(_), None) => {}
            }
            mtr.commit();
            if is_underfull {
                tree.merge_if_possible(key);
            }
            if let Some(first_page) = chain {
                overflow::free(tree.env(), tree.space(), self.id(), first_page)?;
            }
            return Ok(true);
        }
    }

    /// The whole value of a payload that [`settled_payload`](Self::settled_payload) has given.
    pub(crate) fn value_of_settled(&self, payload: &[u8]) -> Result<Vec<u8>> {
        let entry = Entry::decode(payload).expect("a settled entry");
        let mut value = entry.value.to_vec();
        self.complete(entry.flags, &mut value)?;
        Ok(value)
    }
}
