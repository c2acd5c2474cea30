//! The payload of an entry in a versioned tree.
//!
//! ```text
//! 0   flags         u8    1 = DELETED (delete-marked: the key is absent, older views may still see it), 2 = OVERFLOW, 4 = SETTLED
//! 1   trx id        u48   the transaction that wrote this version; while it is active, the entry's exclusive lock
//! 7   roll page     u32   undo record that leads to the version before, in space 1; 0 = there is none
//! 11  roll offset   u16
//! 13  value
//! ```
//! A version that is committed, and that every view sees, now and later, needs none of this but the
//! flags: it is *settled*, and its header is one byte.
//! ```text
//! 0   flags         u8    SETTLED, perhaps OVERFLOW; never DELETED, for purge knows a delete-mark by its id and its undo record
//! 1   value
//! ```
//! It decodes to the id of no transaction, which committed before all others and holds no lock, and
//! a roll pointer to nowhere. Whatever replaces or deletes it has a header of 13 bytes again, and
//! so may need room that the leaf does not have; the undo record of the change names the settled
//! version as the one before, and a rollback brings it back. Entries become settled when their leaf
//! is full (`settle`), or are born so where no reader can see the time before them (`crate::db`:
//! indexes added in place, tables that are filled before they are seen).
//!
//! With OVERFLOW the value is `total length u64 | first overflow page u32 | head`, the head being
//! the value's beginning, the chain holding the rest.

use tidepool_pool::PageId;

use crate::csn::TrxId;
use crate::error::Error;
use crate::files::space_file_name;

use super::OpError;
use super::node::{Node, edit};

/// Bytes before the value, if the entry is not settled.
pub const ENTRY_HEADER_SIZE: usize = 13;
/// Bytes before the value of a settled entry.
pub const SETTLED_HEADER_SIZE: usize = 1;
/// Bytes of an overflow reference before the head.
pub const OVERFLOW_REFERENCE_SIZE: usize = 12;

/// The entry is delete-marked.
pub const DELETED: u8 = 1;
/// The value continues in an overflow chain.
pub const OVERFLOW: u8 = 2;
/// Every view sees the entry's version: its header is short.
pub const SETTLED: u8 = 4;

/// Where an undo record is: a page of space 1 and an offset. Page 0 = nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RollPointer {
    /// Page in the undo space.
    pub page: u32,
    /// Offset in the page.
    pub offset: u16,
}

impl RollPointer {
    /// Nowhere: there is no older version.
    pub const NONE: RollPointer = RollPointer { page: 0, offset: 0 };

    /// Whether there is no older version.
    pub fn is_none(self) -> bool {
        self.page == 0
    }

    /// Reads six bytes.
    pub fn read(bytes: &[u8]) -> RollPointer {
        RollPointer {
            page: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            offset: u16::from_le_bytes([bytes[4], bytes[5]]),
        }
    }

    /// Appends six bytes.
    pub fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.page.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
    }
}

/// A decoded payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// [`DELETED`], [`OVERFLOW`], [`SETTLED`].
    pub flags: u8,
    /// Who wrote this version; `TrxId::NONE` if it is settled.
    pub trx_id: TrxId,
    /// Where the version before is; nowhere if this one is settled.
    pub roll: RollPointer,
    /// The value, or the overflow reference.
    pub value: &'a [u8],
}

impl<'a> Entry<'a> {
    /// An entry that is settled from the beginning, its value all in it.
    pub fn settled(value: &'a [u8]) -> Entry<'a> {
        Entry { flags: SETTLED, trx_id: TrxId::NONE, roll: RollPointer::NONE, value }
    }

    /// Reads a payload; none if it cannot be one.
    #[inline]
    pub fn decode(payload: &'a [u8]) -> Option<Entry<'a>> {
        let flags = *payload.first()?;
        let is_settled = flags & SETTLED != 0;
        let size = if is_settled { SETTLED_HEADER_SIZE } else { ENTRY_HEADER_SIZE };
        let (head, value) = payload.split_at_checked(size)?;
        let (trx_id, roll) = if is_settled {
            (TrxId::NONE, RollPointer::NONE)
        } else {
            (TrxId(u64_from_6(&head[1..7])), RollPointer::read(&head[7..13]))
        };
        let too_short = flags & OVERFLOW != 0 && value.len() < OVERFLOW_REFERENCE_SIZE;
        let impossible = flags & !(DELETED | OVERFLOW | SETTLED) != 0
            || flags & (DELETED | SETTLED) == DELETED | SETTLED;
        if impossible || too_short {
            return None;
        }
        Some(Entry { flags, trx_id, roll, value })
    }

    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.flags);
        if !self.is_settled() {
            out.extend_from_slice(&self.trx_id.0.to_le_bytes()[..6]);
            self.roll.write(out);
        }
        out.extend_from_slice(self.value);
        debug_assert!(self.trx_id <= TrxId::MAX, "48 bits of an id are stored");
        debug_assert!(
            !(self.is_settled() && self.is_deleted()),
            "purge finds a delete-mark by its transaction"
        );
    }

    /// Whether every view sees this version, and no older one is needed.
    pub fn is_settled(&self) -> bool {
        self.flags & SETTLED != 0
    }

    /// Whether the entry could be settled if every view saw it.
    pub fn may_settle(&self) -> bool {
        self.flags & (DELETED | SETTLED) == 0
    }

    /// Whether the entry is delete-marked.
    pub fn is_deleted(&self) -> bool {
        self.flags & DELETED != 0
    }

    /// The overflow reference, if the value has one.
    pub fn overflow(&self) -> Option<OverflowReference<'a>> {
        OverflowReference::of(self.flags, self.value)
    }
}

/// Where a long value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverflowReference<'a> {
    /// Length of the whole value.
    pub total_len: u64,
    /// First page of the chain, in the tree's space.
    pub first_page: u32,
    /// The value's first bytes; the chain holds the rest.
    pub head: &'a [u8],
}

impl<'a> OverflowReference<'a> {
    /// Reads a reference from the value of an entry with these flags.
    pub fn of(flags: u8, value: &'a [u8]) -> Option<OverflowReference<'a>> {
        if flags & OVERFLOW == 0 || value.len() < OVERFLOW_REFERENCE_SIZE {
            return None;
        }
        Some(OverflowReference {
            total_len: u64::from_le_bytes(value[..8].try_into().ok()?),
            first_page: u32::from_le_bytes(value[8..12].try_into().ok()?),
            head: &value[OVERFLOW_REFERENCE_SIZE..],
        })
    }

    /// Appends the reference to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.total_len.to_le_bytes());
        out.extend_from_slice(&self.first_page.to_le_bytes());
        out.extend_from_slice(self.head);
    }
}

/// What [`PageOp::SettleCells`](crate::page_op::PageOp::SettleCells) does: settles the entries
/// whose bits are set.
pub(crate) fn settle_cells(page: &mut [u8], slots: &[u8]) -> Result<(), OpError> {
    for slot in (0..slots.len() * 8).filter(|slot| slots[slot / 8] >> (slot % 8) & 1 != 0) {
        let (_, payload) = (Node::new(page).map_err(OpError)?)
            .cell(slot)
            .ok_or(OpError("no such cell to be settled"))?;
        let entry = Entry::decode(payload).filter(Entry::may_settle);
        let entry = entry.ok_or(OpError("an entry that cannot be settled"))?;
        let (flags, value_len) = (entry.flags | SETTLED, entry.value.len());
        edit::replace(page, slot, 0, value_len, &[flags])?;
    }
    Ok(())
}

/// Reads 48 bits, little-endian.
pub(crate) fn u64_from_6(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..6].copy_from_slice(&bytes[..6]);
    u64::from_le_bytes(wide)
}

/// The error for an entry that cannot be one.
pub(crate) fn corrupt_entry(page: PageId, slot: usize) -> Error {
    let why = format!("the entry at slot {slot} is no versioned entry");
    Error::corrupt(space_file_name(page.space), page.no, why)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(crate::test_cases(200)))]
        #[test]
        fn an_entry_survives_its_encoding(
            flags in 0u8..4, id in 0u64..1 << 48, page: u32, offset: u16, value in prop::collection::vec(any::<u8>(), 12..40),
        ) {
            let roll = RollPointer { page, offset };
            let entry = Entry { flags, trx_id: TrxId(id), roll, value: &value };
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), ENTRY_HEADER_SIZE + value.len());
            prop_assert_eq!(Entry::decode(&bytes), Some(entry));
            prop_assert_eq!(entry.may_settle(), !entry.is_deleted());
        }

        #[test]
        fn a_settled_entry_has_a_header_of_one_byte(
            overflow: bool, value in prop::collection::vec(any::<u8>(), 12..40),
        ) {
            let mut entry = Entry::settled(&value);
            entry.flags |= if overflow { OVERFLOW } else { 0 };
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), SETTLED_HEADER_SIZE + value.len());
            prop_assert_eq!(Entry::decode(&bytes), Some(entry));
            prop_assert!(entry.is_settled() && !entry.is_deleted() && !entry.may_settle());
            prop_assert_eq!(entry.overflow().is_some(), overflow);
            bytes[0] |= DELETED;
            prop_assert_eq!(Entry::decode(&bytes), None);
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(entry) = Entry::decode(&bytes) {
                let mut again = Vec::new();
                entry.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }

        #[test]
        fn an_overflow_reference_survives_its_encoding(
            total_len: u64, first_page: u32, head in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let reference = OverflowReference { total_len, first_page, head: &head };
            let mut value = Vec::new();
            reference.encode(&mut value);
            prop_assert_eq!(OverflowReference::of(OVERFLOW, &value), Some(reference));
            prop_assert_eq!(OverflowReference::of(0, &value), None);
        }
    }
}
