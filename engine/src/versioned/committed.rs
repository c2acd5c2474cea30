//! The version of an entry that was committed last, for readers that have the entry's bytes and no
//! latch: while no transaction writes.

use super::read::version_before;
use crate::csn::TrxId;
use crate::error::{Error, Result};
use crate::format::entry::{DELETED, Entry};
use crate::lock::version_cache::Before;
use crate::trx::TrxSystem;
use crate::trx::view::ReadView;

/// Puts the newest committed version of the entry with this tree and key into `value`, a long one
/// as its reference. Gives its flags; none if there is no such version, or it is a delete-mark.
///
/// # Errors
/// The payload is no entry, or undo that it needs can't be read.
pub(crate) fn committed_version(
    system: &TrxSystem,
    place: (u32, &[u8]),
    payload: &[u8],
    value: &mut Vec<u8>,
) -> Result<Option<u8>> {
    let entry = Entry::decode(payload).ok_or_else(|| {
        Error::Storage("no entry of a versioned tree, though its page is whole".into())
    })?;
    value.clear();
    value.extend_from_slice(entry.value);
    let mut at = Before::of(&entry);
    while !is_committed(system, at.trx_id) {
        match version_before(system, place, at, value)? {
            Some((before, _)) => at = before,
            None => return Ok(None),
        }
    }
    Ok((at.flags & DELETED == 0).then_some(at.flags))
}

fn is_committed(system: &TrxSystem, id: TrxId) -> bool {
    id == TrxId::NONE || ReadView::COMMITTED.sees(&system.csn, id)
}
