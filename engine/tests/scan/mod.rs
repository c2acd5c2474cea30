//! What a transaction sees of a whole index.

use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool::{Cursor, LockMode, LockWait, Result, Table, Transaction};

/// Entries by key.
pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// All entries of an index, read without locks; each key comes once, and in order.
pub fn scan(trx: &mut Transaction, table: &Arc<Table>, index: usize) -> Result<Rows> {
    let mut cursor = Cursor::new(table.clone(), index, LockMode::None, LockWait::Wait);
    let (mut rows, mut more) = (Rows::new(), cursor.first(trx)?);
    while more {
        let is_above = rows.last_key_value().is_none_or(|(last, _)| &last[..] < cursor.key());
        assert!(is_above, "key {:?} comes twice, or too late", cursor.key());
        rows.insert(cursor.key().to_vec(), cursor.value().to_vec());
        more = cursor.next(trx)?;
    }
    Ok(rows)
}
