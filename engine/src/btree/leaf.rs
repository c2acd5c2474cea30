//! Latched leaves: what the transaction layer reads and changes.

use crate::format::node::{Node, cell_size};
use crate::mtr::{Mtr, PageHandle};
use crate::page_op::PageOp;
use tidepool_pool::{ExclusiveGuard, PageId, SharedGuard};

/// A leaf latched for reading.
///
/// The latch is short: let go of it before anything that may wait (a lock, the log, another page of
/// the same tree).
pub struct LeafRef<'t> {
    guard: SharedGuard<'t>,
}

/// A leaf latched for changing: a look decides, then the leaf goes into a mini-transaction with its
/// first change.
///
/// The mini-transaction must have begun before the latch was taken, because beginning may wait.
pub struct LeafMut<'t> {
    guard: ExclusiveGuard<'t>,
}

/// A leaf that a mini-transaction holds latched until it commits.
#[derive(Debug, Clone, Copy)]
pub struct LeafHandle {
    page: PageHandle,
}

macro_rules! node_reads {
    () => {
        /// The leaf as a node.
        #[inline]
        pub fn node(&self) -> Node<'_> {
            Node::trusted(&self.guard)
        }

        /// The leaf's address.
        pub fn page_id(&self) -> PageId {
            self.guard.page_id()
        }

        /// Number of entries.
        pub fn count(&self) -> usize {
            self.node().count()
        }

        /// Slot of `key` (`Ok`), or the slot to insert it at (`Err`). Takes keys outside the leaf's
        /// range too.
        #[inline]
        pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
            self.node().find(key)
        }

        /// The same for a key within the leaf's range, such as the one that led to it; spares a
        /// cache miss.
        #[inline]
        pub fn find_covered(&self, key: &[u8]) -> Result<usize, usize> {
            self.node().find_covered(key)
        }

        /// Replaces `key` by the key at `slot`.
        pub fn key_at(&self, slot: usize, key: &mut Vec<u8>) {
            self.node().key_into(slot, key);
        }

        /// Payload at `slot`.
        #[inline]
        pub fn payload_at(&self, slot: usize) -> &[u8] {
            self.node().payload(slot)
        }

        /// Lower bound, inclusive, of the leaf's range; empty = the leftmost leaf.
        pub fn lower_fence(&self) -> &[u8] {
            self.node().lower_fence()
        }

        /// Upper bound, exclusive, of the leaf's range; `None` = the rightmost leaf.
        pub fn upper_fence(&self) -> Option<&[u8]> {
            self.node().upper_fence()
        }
    };
}

impl<'t> LeafRef<'t> {
    pub(super) fn new(guard: SharedGuard<'t>) -> Self {
        LeafRef { guard }
    }

    node_reads!();
}

impl<'t> LeafMut<'t> {
    pub(super) fn new(guard: ExclusiveGuard<'t>) -> Self {
        LeafMut { guard }
    }

    node_reads!();

    /// Whether a new entry with a key and payload of these lengths fits; if not, `Tree::make_room`.
    pub fn fits(&self, key_len: usize, payload_len: usize) -> bool {
        self.node().fits(key_len, payload_len)
    }

    /// Whether the entry at `slot` fits with a payload of this length; if not, `Tree::make_room`.
    pub fn fits_replaced(&self, slot: usize, payload_len: usize) -> bool {
        self.node().fits_replaced(slot, payload_len)
    }

    /// Keeps the leaf as it is, for reading.
    pub fn downgrade(self) -> LeafRef<'t> {
        LeafRef { guard: self.guard.downgrade() }
    }

    /// Hands the latch to a mini-transaction.
    pub fn attach<'a>(self, mtr: &mut Mtr<'a>) -> LeafHandle
    where
        't: 'a,
    {
        LeafHandle { page: mtr.adopt(self.guard) }
    }

    /// Attaches the leaf and inserts an entry: see [`LeafHandle::insert`].
    pub fn insert<'a>(
        self,
        mtr: &mut Mtr<'a>,
        slot: usize,
        key: &[u8],
        payload: &[u8],
    ) -> LeafHandle
    where
        't: 'a,
    {
        let leaf = self.attach(mtr);
        leaf.insert(mtr, slot, key, payload);
        leaf
    }

    /// Attaches the leaf and replaces a payload: see [`LeafHandle::replace`].
    pub fn replace<'a>(self, mtr: &mut Mtr<'a>, slot: usize, payload: &[u8]) -> LeafHandle
    where
        't: 'a,
    {
        let leaf = self.attach(mtr);
        leaf.replace(mtr, slot, payload);
        leaf
    }

    /// Attaches the leaf and removes an entry: see [`LeafHandle::remove`].
    pub fn remove<'a>(self, mtr: &mut Mtr<'a>, slot: usize) -> LeafHandle
    where
        't: 'a,
    {
        let leaf = self.attach(mtr);
        leaf.remove(mtr, slot);
        leaf
    }
}

impl LeafHandle {
    /// The leaf as a node.
    pub fn node<'m>(&self, mtr: &'m Mtr<'_>) -> Node<'m> {
        Node::trusted(mtr.page(self.page))
    }

    /// Inserts an entry before `slot`, where [`LeafMut::find`] of the same key said it belongs.
    ///
    /// # Panics
    /// When it does not fit ([`LeafMut::fits`]): the caller would lose it.
    pub fn insert(&self, mtr: &mut Mtr<'_>, slot: usize, key: &[u8], payload: &[u8]) {
        let node = self.node(mtr);
        debug_assert!(node.covers(key), "key outside the leaf's range");
        debug_assert_eq!(node.find(key), Err(slot), "inserted where it does not belong");
        let suffix = &key[node.prefix_len()..];
        assert!(cell_size(suffix.len(), payload.len()) <= node.free_bytes(), "entry does not fit");
        mtr.apply(self.page, &PageOp::InsertCell { slot: slot as u16, suffix, payload });
        debug_assert_eq!(self.node(mtr).find(key), Ok(slot), "the key is where it was inserted");
    }

    /// Replaces the payload at `slot`; only the bytes that differ are logged.
    ///
    /// # Panics
    /// When it does not fit ([`LeafMut::fits_replaced`]).
    pub fn replace(&self, mtr: &mut Mtr<'_>, slot: usize, payload: &[u8]) {
        let node = self.node(mtr);
        assert!(node.fits_replaced(slot, payload.len()), "payload does not fit");
        let op = PageOp::replace_payload(slot, node.payload(slot), payload);
        mtr.apply(self.page, &op);
        debug_assert_eq!(self.node(mtr).payload(slot), payload, "the entry was replaced");
    }

    /// Settles the entries whose bits are set, the first of a byte being its lowest: see
    /// [`crate::format::entry`].
    pub fn settle(&self, mtr: &mut Mtr<'_>, slots: &[u8]) {
        mtr.apply(self.page, &PageOp::SettleCells { slots });
    }

    /// Removes the entry at `slot`. A leaf that became small may be merged afterwards:
    /// `Tree::try_merge`.
    pub fn remove(&self, mtr: &mut Mtr<'_>, slot: usize) {
        assert!(slot < self.node(mtr).count(), "the entry is there");
        mtr.apply(self.page, &PageOp::RemoveCell { slot: slot as u16 });
    }

    /// Whether so little is left in the leaf that `Tree::try_merge` is worth a call.
    pub fn is_underfull(&self, mtr: &Mtr<'_>) -> bool {
        self.node(mtr).is_underfull()
    }
}
