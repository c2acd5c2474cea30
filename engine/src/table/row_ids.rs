//! Row ids: keys of the clustered index, eight bytes big-endian, for rows that have no key of their
//! own. Each is greater than all before.
//!
//! No counter is persisted. The first id after the table was opened follows the greatest key that
//! the tree has, under whatever: a row, one deleted and not purged, one whose transaction may yet
//! be rolled back. So an id is given twice only if the process has ended in between, and the first
//! row was rolled back, or deleted and purged: no snapshot, lock or undo record knows it.

use super::Table;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Given instead of an id as long as none is known; no row has it.
const UNKNOWN: u64 = 0;

#[derive(Debug)]
pub(super) struct RowIds {
    next: AtomicU64,
    /// Held by the one who looks for the greatest key: others wait, for what they insert meanwhile
    /// might be missed.
    first: Mutex<()>,
}

impl RowIds {
    pub fn new() -> Self {
        Self { next: AtomicU64::new(UNKNOWN), first: Mutex::new(()) }
    }

    /// Goes on where `old` is.
    pub fn succeed(&self, old: &RowIds) {
        self.next.store(old.next.load(Ordering::Acquire), Ordering::Release);
    }

    /// The next id; `None` if there is none any more. `greatest` finds the greatest one in the
    /// tree.
    pub fn next(&self, greatest: impl FnOnce() -> Result<Option<u64>>) -> Result<Option<u64>> {
        if self.next.load(Ordering::Acquire) == UNKNOWN {
            let _one = self.first.lock();
            if self.next.load(Ordering::Acquire) == UNKNOWN {
                let greatest = greatest()?.unwrap_or(UNKNOWN);
                self.next.store(greatest.saturating_add(1), Ordering::Release);
            }
        }
        // The last number of all is never given: it stays, and says so.
        Ok(self.next.fetch_update(Ordering::AcqRel, Ordering::Acquire, |id| id.checked_add(1)).ok())
    }
}

impl Table {
    /// The key of a new row in a table whose clustered index has such keys and no others.
    pub fn next_row_id(&self) -> Result<[u8; 8]> {
        self.check_there()?;
        let next = self.row_ids.next(|| self.greatest_row_id())?;
        next.map(u64::to_be_bytes).ok_or_else(|| Error::RowIdsUsedUp(self.name()))
    }

    fn greatest_row_id(&self) -> Result<Option<u64>> {
        let _inside = self.visit()?;
        let tree = self.tree(Self::CLUSTERED).tree();
        let Some(key) = tree.greatest_key()? else { return Ok(None) };
        let id = <[u8; 8]>::try_from(&key[..]).map_err(|_| {
            let why = format!("a key of {} bytes where row ids have 8", key.len());
            Error::corrupt(self.space.name(), tree.root(), why)
        })?;
        Ok(Some(u64::from_be_bytes(id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_the_greatest_key() {
        for (greatest, first) in [(None, 1), (Some(7), 8), (Some(u64::MAX - 2), u64::MAX - 1)] {
            let ids = RowIds::new();
            assert_eq!(ids.next(|| Ok(greatest)), Ok(Some(first)));
            let heir = RowIds::new();
            heir.succeed(&ids);
            let second = ids.next(|| panic!("it is known"));
            assert_eq!(second, Ok((first + 1 < u64::MAX).then_some(first + 1)));
            assert_eq!(heir.next(|| panic!("it is known")), second);
        }
    }

    #[test]
    fn the_last_number_is_the_end() {
        let ids = RowIds::new();
        for _ in 0..3 {
            assert_eq!(ids.next(|| Ok(Some(u64::MAX))), Ok(None));
        }
    }

    #[test]
    fn a_failed_look_is_tried_again() {
        let ids = RowIds::new();
        assert_eq!(ids.next(|| Err(Error::NotFound)), Err(Error::NotFound));
        assert_eq!(ids.next(|| Ok(Some(4))), Ok(Some(5)));
    }
}
