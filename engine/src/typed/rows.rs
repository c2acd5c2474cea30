//! Rows of a typed table are read, put and removed.
//!
//! A write reads the row under an exclusive lock, and compares the entries that the indexes have of
//! it with those that they are to have. Entries that stay are not touched: they are neither written
//! nor locked.

use super::TypedTable;
use super::codec_error::CodecError;
use super::index::{Index, KeptIndex};
use super::key::{EncodeKey, KeyBound, KeyCodec, decode_whole, key_bytes};
use super::range::{Bounds, bounds};
use super::value::Encoding;
use crate::db::Transaction;
use crate::error::{Error, Result};
use crate::lock::{LockMode, LockWait};
use crate::table::Table;
use crate::versioned::ReadRequest;
use std::ops::RangeBounds;
use std::sync::Arc;

/// An error of this row of a table.
pub(super) fn codec_error(table: &str, row_key: &[u8], why: CodecError) -> Error {
    Error::Codec {
        table: table.into(),
        key: row_key.escape_ascii().to_string(),
        why: why.to_string(),
    }
}

/// What a write finds where it puts a row.
enum Found {
    Nothing,
    /// The row's bytes. It is locked.
    Row(Vec<u8>),
}

impl<K: KeyCodec, V: 'static, E: Encoding<V>> TypedTable<K, V, E> {
    /// The table that the rows are in, for its figures and its numbers
    /// ([`Table::reserve_auto_increment`]).
    pub fn table(&self) -> &Arc<Table> {
        &self.rows.table
    }

    /// The value of a key; `None` if there is none.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::TypedTable;
    /// let prices = TypedTable::<String, u32>::open_or_create(&db, "prices", &[])?;
    /// db.write(|trx| prices.put(trx, "apple", &3))?;
    /// assert_eq!(db.read(|trx| prices.get(trx, "apple"))?, Some(3));
    /// assert_eq!(db.read(|trx| prices.get(trx, "lemon"))?, None);
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`]; [`Error::Codec`] if the value's bytes are none.
    pub fn get<Q: EncodeKey<K> + ?Sized>(
        &self,
        trx: &mut Transaction,
        key: &Q,
    ) -> Result<Option<V>> {
        let key = key_bytes(key);
        let value = trx.get(&self.rows.table, &key)?;
        value.map(|value| self.decode_value(&key, &value)).transpose()
    }

    /// The same for a value that the transaction will change: see [`Transaction::get_for_update`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::TypedTable;
    /// let visits = TypedTable::<String, u64>::open_or_create(&db, "visits", &[])?;
    /// db.write(|trx| {
    ///     let before = visits.get_for_update(trx, "home")?.unwrap_or(0);
    ///     visits.put(trx, "home", &(before + 1))
    /// })?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TypedTable::get`], and those of locking.
    pub fn get_for_update<Q: EncodeKey<K> + ?Sized>(
        &self,
        trx: &mut Transaction,
        key: &Q,
    ) -> Result<Option<V>> {
        let key = key_bytes(key);
        let value = trx.get_for_update(&self.rows.table, &key)?;
        value.map(|value| self.decode_value(&key, &value)).transpose()
    }

    /// Whether there is a row of this key.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::TypedTable;
    /// let seen = TypedTable::<String, ()>::open_or_create(&db, "seen", &[])?;
    /// assert!(!db.read(|trx| seen.contains(trx, "apple"))?);
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn contains<Q: EncodeKey<K> + ?Sized>(
        &self,
        trx: &mut Transaction,
        key: &Q,
    ) -> Result<bool> {
        trx.read(&self.rows.table, Table::CLUSTERED, ReadRequest::presence(&key_bytes(key)))
    }

    /// Gives a key a value, in place of the one that it has.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::TypedTable;
    /// let readings = TypedTable::<(String, i64), f64>::open_or_create(&db, "readings", &[])?;
    /// db.write(|trx| readings.put(trx, &("cellar", 1700), &11.5))?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::put`]. [`Error::NotUnique`] if another row has the same key in a unique
    /// index, [`Error::Codec`] if the value can't be encoded, or the one before not decoded.
    /// Nothing is changed then.
    pub fn put<Q: EncodeKey<K> + ?Sized>(
        &self,
        trx: &mut Transaction,
        key: &Q,
        value: &V,
    ) -> Result<()> {
        let (row_key, row) = self.encode(key, value)?;
        if self.rows.indexes.is_empty() {
            return trx.put(&self.rows.table, &row_key, &row);
        }
        let key = self.decode_key(&row_key)?;
        let new = self.entry_keys((&key, &row_key), value);
        trx.all_or_nothing(|trx| {
            let table = &self.rows.table;
            let found = match self.lock_row(trx, &row_key)? {
                Found::Nothing => insert_or_lock(trx, table, &row_key, &row)?,
                found => found,
            };
            match found {
                Found::Nothing => self.change_entries(trx, &row_key, None, Some(&new)),
                Found::Row(old) => {
                    let old = self.decode_value(&row_key, &old)?;
                    let old = self.entry_keys((&key, &row_key), &old);
                    trx.update(table, Table::CLUSTERED, &row_key, &row)?;
                    self.change_entries(trx, &row_key, Some(&old), Some(&new))
                }
            }
        })
    }

    /// Gives a key a value if it has none; whether it had none.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::TypedTable;
    /// let owners = TypedTable::<u64, String>::open_or_create(&db, "owners", &[])?;
    /// assert!(db.write(|trx| owners.insert(trx, &7, &"Nora".into()))?);
    /// assert!(!db.write(|trx| owners.insert(trx, &7, &"Emil".into()))?);
    /// assert_eq!(db.read(|trx| owners.get(trx, &7))?.unwrap(), "Nora");
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TypedTable::put`].
    pub fn insert<Q: EncodeKey<K> + ?Sized>(
        &self,
        trx: &mut Transaction,
        key: &Q,
        value: &V,
    ) -> Result<bool> {
        let (row_key, row) = self.encode(key, value)?;
        let entries = match self.rows.indexes.is_empty() {
            true => None,
            false => Some(self.entry_keys((&self.decode_key(&row_key)?, &row_key), value)),
        };
        trx.all_or_nothing(|trx| {
            match trx.insert(&self.rows.table, Table::CLUSTERED, &row_key, &row) {
                Ok(()) => {}
                Err(Error::DuplicateKey { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
            self.change_entries(trx, &row_key, None, entries.as_deref())?;
            Ok(true)
        })
    }

    /// Replaces a key's value by what `change` makes of it, which gets `None` if there is none.
    /// Gives the new value. `change` may be called again, as [`Db::write`](crate::Db::write) does.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::TypedTable;
    /// let visits = TypedTable::<String, u64>::open_or_create(&db, "visits", &[])?;
    /// let count = || db.write(|trx| visits.modify(trx, "home", |old| old.unwrap_or(0) + 1));
    /// assert_eq!((count()?, count()?), (1, 2));
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TypedTable::get_for_update`] and [`TypedTable::put`].
    pub fn modify<Q: EncodeKey<K> + ?Sized>(
        &self,
        trx: &mut Transaction,
        key: &Q,
        change: impl FnOnce(Option<V>) -> V,
    ) -> Result<V> {
        let value = change(self.get_for_update(trx, key)?);
        self.put(trx, key, &value)?;
        Ok(value)
    }

    /// Removes a row; whether there was one.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::TypedTable;
    /// let seen = TypedTable::<String, ()>::open_or_create(&db, "seen", &[])?;
    /// db.write(|trx| seen.put(trx, "apple", &()))?;
    /// assert!(db.write(|trx| seen.remove(trx, "apple"))?);
    /// assert!(!db.write(|trx| seen.remove(trx, "apple"))?);
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::remove`]; [`Error::Codec`] if the row has indexes and can't be decoded.
    /// Nothing is removed then.
    pub fn remove<Q: EncodeKey<K> + ?Sized>(&self, trx: &mut Transaction, key: &Q) -> Result<bool> {
        self.remove_row(trx, &key_bytes(key))
    }

    /// Removes all rows of a range of keys, and returns how many there were.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::TypedTable;
    /// let readings = TypedTable::<(String, i64), f64>::open_or_create(&db, "readings", &[])?;
    /// db.write(|trx| {
    ///     readings.put(trx, &("cellar", 1700), &11.5)?;
    ///     readings.put(trx, &("cellar", 1800), &11.0)?;
    ///     readings.put(trx, &("roof", 1700), &20.0)
    /// })?;
    /// let cellar = ("cellar",);
    /// assert_eq!(db.write(|trx| readings.remove_range(trx, cellar..=cellar))?, 2);
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TypedTable::remove`]. What was removed before stays so until the transaction is rolled
    /// back.
    pub fn remove_range<Q: KeyBound<K>>(
        &self,
        trx: &mut Transaction,
        keys: impl RangeBounds<Q>,
    ) -> Result<u64> {
        let keys: Bounds = bounds(&keys);
        let table = &self.rows.table;
        if self.rows.indexes.is_empty() {
            return trx.remove_range(table, keys);
        }
        let mut rows = trx.range(table, keys).locked(LockMode::Exclusive, LockWait::Wait);
        let mut removed = 0;
        while let Some((row_key, _)) = rows.next()? {
            let row_key = row_key.to_vec();
            removed += u64::from(self.remove_row(rows.transaction(), &row_key)?);
        }
        Ok(removed)
    }

    /// The row that has this key in an index; of several, the one with the least key. `None` if
    /// there is none. See [`Index`] for an example.
    ///
    /// # Errors
    /// As [`TypedRange::next`](super::TypedRange).
    pub fn get_by<I: KeyCodec, Q: EncodeKey<I> + ?Sized>(
        &self,
        trx: &mut Transaction,
        index: &Index<K, V, I>,
        key: &Q,
    ) -> Result<Option<(K, V)>> {
        self.all_by(trx, index, key_bytes(key)).next().transpose()
    }

    /// Removes a row and its entries; whether there was one.
    fn remove_row(&self, trx: &mut Transaction, row_key: &[u8]) -> Result<bool> {
        let table = &self.rows.table;
        if self.rows.indexes.is_empty() {
            return trx.remove(table, row_key);
        }
        trx.all_or_nothing(|trx| {
            let Found::Row(row) = self.lock_row(trx, row_key)? else { return Ok(false) };
            let (key, value) = (self.decode_key(row_key)?, self.decode_value(row_key, &row)?);
            let entries = self.entry_keys((&key, row_key), &value);
            trx.delete(table, Table::CLUSTERED, row_key)?;
            self.change_entries(trx, row_key, Some(&entries), None)?;
            Ok(true)
        })
    }

    /// Reads a row under an exclusive lock.
    fn lock_row(&self, trx: &mut Transaction, row_key: &[u8]) -> Result<Found> {
        let mut row = Vec::new();
        let request = ReadRequest::new(row_key, &mut row);
        let request = request.locked(LockMode::Exclusive, LockWait::Wait);
        let found = trx.read(&self.rows.table, Table::CLUSTERED, request)?;
        Ok(if found { Found::Row(row) } else { Found::Nothing })
    }

    /// The keys that the indexes have of a row, in the order of the indexes. `key`: the row's key
    /// and its bytes. Comes before the row is written: a function of the program may panic, and
    /// what it leaves must not be a row without its entries.
    fn entry_keys(&self, (key, row_key): (&K, &[u8]), value: &V) -> Vec<Vec<u8>> {
        self.rows.indexes.iter().map(|index| index.entry_key(key, value, row_key)).collect()
    }

    /// Brings the indexes from what they have of a row to what they are to have.
    fn change_entries(
        &self,
        trx: &mut Transaction,
        row_key: &[u8],
        before: Option<&[Vec<u8>]>,
        after: Option<&[Vec<u8>]>,
    ) -> Result<()> {
        for (at, index) in self.rows.indexes.iter().enumerate() {
            let (old, new) = (before.map(|keys| &keys[at]), after.map(|keys| &keys[at]));
            if old == new {
                continue;
            }
            if let Some(old) = old {
                self.remove_entry(trx, index, old, new.is_some())?;
            }
            if let Some(new) = new {
                self.add_entry(trx, index, new, row_key)?;
            }
        }
        Ok(())
    }

    /// `moves`: whether the row goes on under another key.
    fn remove_entry(
        &self,
        trx: &mut Transaction,
        index: &KeptIndex<K, V>,
        key: &[u8],
        moves: bool,
    ) -> Result<()> {
        let (table, at) = (&self.rows.table, index.position);
        let removed = match moves {
            true => trx.move_away(table, at, key),
            false => trx.delete(table, at, key),
        };
        match removed {
            Err(Error::NotFound) => Err(Error::index_differs(&table.name(), &index.name, key)),
            removed => removed,
        }
    }

    fn add_entry(
        &self,
        trx: &mut Transaction,
        index: &KeptIndex<K, V>,
        key: &[u8],
        row_key: &[u8],
    ) -> Result<()> {
        let (table, value) = (&self.rows.table, index.entry_value(row_key));
        match trx.insert(table, index.position, key, value) {
            Err(Error::DuplicateKey { .. }) if index.unique => {
                Err(Error::not_unique(&table.name(), &index.name, key))
            }
            Err(Error::DuplicateKey { .. }) => {
                Err(Error::index_differs(&table.name(), &index.name, key))
            }
            added => added,
        }
    }

    /// The bytes of a row.
    fn encode<Q: EncodeKey<K> + ?Sized>(&self, key: &Q, value: &V) -> Result<(Vec<u8>, Vec<u8>)> {
        let (key, mut row) = (key_bytes(key), Vec::new());
        let encoded = E::encode(value, &mut row);
        encoded.map_err(|why| codec_error(&self.rows.table.name(), &key, why))?;
        Ok((key, row))
    }

    pub(super) fn decode_key(&self, row_key: &[u8]) -> Result<K> {
        decode_whole(row_key).map_err(|why| codec_error(&self.rows.table.name(), row_key, why))
    }

    pub(super) fn decode_value(&self, row_key: &[u8], row: &[u8]) -> Result<V> {
        E::decode(row).map_err(|why| codec_error(&self.rows.table.name(), row_key, why))
    }
}

/// Inserts a row where there was none; one that another transaction has inserted in between is
/// locked, and given.
fn insert_or_lock(
    trx: &mut Transaction,
    table: &Arc<Table>,
    row_key: &[u8],
    row: &[u8],
) -> Result<Found> {
    match trx.insert_or_lock(table, Table::CLUSTERED, row_key, row, LockMode::Exclusive) {
        Ok(()) => Ok(Found::Nothing),
        Err(Error::DuplicateKey { value, .. }) => Ok(Found::Row(value)),
        Err(error) => Err(error),
    }
}
