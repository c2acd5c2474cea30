//! The version of an entry that was committed last, for those who have the entry's bytes and no
//! latch: while nobody
//! writes.

use crate::csn::TrxId;
use crate::error::{Error, Result};
use crate::format::entry::{DELETED, Entry};
use crate::lock::overwritten::Before;
use crate::trx::TrxSystem;
use crate::trx::view::ReadView;

impl TrxSystem {
    /// Puts the newest committed version of an entry into `value`, a long one as its reference; its
    /// flags, or none if
    /// there is no such version, or it is a delete-mark.
    ///
    /// # Errors
    /// The payload is no entry, or undo that it needs can't be read.
    pub(crate) fn committed_version(
        &self,
        tree: u32,
        key: &[u8],
        payload: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<u8>> {
        let entry = Entry::decode(payload).ok_or_else(|| {
            Error::Storage("no entry of a versioned tree, though its page is whole".into())
        })?;
        value.clear();
        value.extend_from_slice(entry.value);
        let mut at = Before { flags: entry.flags, trx_id: entry.trx_id, roll: entry.roll };
        while !self.is_committed(at.trx_id) {
            match self.before(tree, key, at, value)? {
                Some(before) => at = before,
                None => return Ok(None),
            }
        }
        Ok((at.flags & DELETED == 0).then_some(at.flags))
    }

    fn is_committed(&self, id: TrxId) -> bool {
        id == TrxId::NONE || ReadView::COMMITTED.sees(&self.csn, id)
    }
}
