//! Ranges of rows, in the order of their keys or of an index, from either end.
//!
//! A range by an index reads the index's entries, and looks each row up. Both are of one snapshot,
//! except at READ COMMITTED and below, where each call has its own: there a row that is gone by
//! then, or has another key in the index, is left out.

use super::TypedTable;
use super::codec_error::CodecError;
use super::index::{Index, KeptIndex};
use super::key::{KeyBound, KeyCodec, KeyPrefix};
use super::rows::codec_error;
use super::value::{Encoding, LendValue, OwnCodec};
use crate::db::{Range, Transaction, beginning_with, prefix_end};
use crate::error::{Error, Result};
use crate::lock::{LockMode, LockWait};
use crate::table::Table;
use crate::versioned::ReadRequest;
use std::ops::{Bound, RangeBounds};

/// A range of bytes.
pub(super) type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The range of bytes of a range of keys. A bound may be the beginning of keys: as one that belongs
/// to the range it stands for all of these keys, as another one for none.
pub(super) fn bounds<K, Q: KeyBound<K>>(keys: &impl RangeBounds<Q>) -> Bounds {
    let bytes = |key: &Q| {
        let mut bytes = Vec::new();
        key.encode_bound(&mut bytes);
        bytes
    };
    let from = match keys.start_bound().map(bytes) {
        Bound::Excluded(key) => match prefix_end(&key) {
            Some(end) => Bound::Included(end),
            None => return nothing(),
        },
        from => from,
    };
    let to = match keys.end_bound().map(bytes) {
        Bound::Included(key) => beginning_with(key).1,
        to => to,
    };
    (from, to)
}

/// A range without a key.
fn nothing() -> Bounds {
    (Bound::Unbounded, Bound::Excluded(Vec::new()))
}

/// Rows of a [`TypedTable`] in the order of their keys, or of an index; an [`Iterator`] from either
/// end.
///
/// A row whose bytes are none of the table's types is an [`Error::Codec`], and the iteration may go
/// on behind it. After any other error it is over.
pub struct TypedRange<'t, K, V, E = OwnCodec> {
    table: &'t TypedTable<K, V, E>,
    range: Range<'t>,
    by: By<'t, K, V>,
    lock: LockMode,
    wait: LockWait,
    /// The index's entry, and the row that it is of.
    entry: Vec<u8>,
    row_key: Vec<u8>,
    row: Vec<u8>,
    is_over: bool,
}

/// What the rows are read by.
enum By<'t, K, V> {
    Key,
    Index(&'t KeptIndex<K, V>),
    /// The first call says so.
    UnknownIndex(String),
}

#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

impl<K: KeyCodec, V: 'static, E: Encoding<V>> TypedTable<K, V, E> {
    /// All rows.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::TypedTable;
    /// let squares = TypedTable::<u32, u64>::open_or_create(&db, "squares", &[])?;
    /// db.write(|trx| (1..=3).try_for_each(|n| squares.put(trx, &n, &u64::from(n * n))))?;
    /// db.read(|trx| {
    ///     for row in squares.iter(trx) {
    ///         let (n, square) = row?;
    ///         assert_eq!(square, u64::from(n * n));
    ///     }
    ///     assert_eq!(squares.iter(trx).next_back().transpose()?, Some((3, 9)));
    ///     Ok(())
    /// })?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub fn iter<'t>(&'t self, trx: &'t mut Transaction) -> TypedRange<'t, K, V, E> {
        self.by_key(trx, (Bound::Unbounded, Bound::Unbounded))
    }

    /// The rows of a range of keys. Of keys that are tuples, a bound may have the first elements
    /// alone.
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
    /// db.read(|trx| {
    ///     assert_eq!(readings.range(trx, ("cellar", 1750)..).count(), 2);
    ///     assert_eq!(readings.range(trx, ..=("cellar",)).count(), 2);
    ///     assert_eq!(readings.range(trx, ..("cellar",)).count(), 0);
    ///     Ok(())
    /// })?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub fn range<'t, Q: KeyBound<K>>(
        &'t self,
        trx: &'t mut Transaction,
        keys: impl RangeBounds<Q>,
    ) -> TypedRange<'t, K, V, E> {
        self.by_key(trx, bounds(&keys))
    }

    /// The rows whose keys begin so: with these elements of a tuple, or these bytes of a string.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::TypedTable;
    /// let cities = TypedTable::<(String, String), u32>::open_or_create(&db, "cities", &[])?;
    /// db.write(|trx| {
    ///     cities.put(trx, &("de", "Berlin"), &3_878_100)?;
    ///     cities.put(trx, &("de", "Bremen"), &577_000)?;
    ///     cities.put(trx, &("fr", "Paris"), &2_102_650)
    /// })?;
    /// db.read(|trx| {
    ///     assert_eq!(cities.prefix(trx, &("de",)).count(), 2);
    ///     assert_eq!(cities.prefix(trx, &("de", "Br")).count(), 1);
    ///     Ok(())
    /// })?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub fn prefix<'t, P: KeyPrefix<K> + ?Sized>(
        &'t self,
        trx: &'t mut Transaction,
        prefix: &P,
    ) -> TypedRange<'t, K, V, E> {
        self.by_key(trx, beginning_with(prefix_bytes(prefix)))
    }

    /// The rows whose keys in an index are in a range, in the order of the index. Of keys that are
    /// tuples, a bound may have the first elements alone. See [`Index`] for an example.
    pub fn range_by<'t, I: KeyCodec, Q: KeyBound<I>>(
        &'t self,
        trx: &'t mut Transaction,
        index: &Index<K, V, I>,
        keys: impl RangeBounds<Q>,
    ) -> TypedRange<'t, K, V, E> {
        self.by_index(trx, index, bounds(&keys))
    }

    /// The rows whose keys in an index begin so, in the order of the index. See the
    /// [module](super) for an example.
    pub fn prefix_by<'t, I: KeyCodec, P: KeyPrefix<I> + ?Sized>(
        &'t self,
        trx: &'t mut Transaction,
        index: &Index<K, V, I>,
        prefix: &P,
    ) -> TypedRange<'t, K, V, E> {
        self.by_index(trx, index, beginning_with(prefix_bytes(prefix)))
    }

    /// All rows in the order of an index.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::{Index, TypedTable};
    /// let by_price = Index::new("price", |_: &String, price: &u32| *price);
    /// let prices = TypedTable::open_or_create(&db, "prices", &[&by_price])?;
    /// db.write(|trx| {
    ///     prices.put(trx, "apple", &3)?;
    ///     prices.put(trx, "lemon", &2)
    /// })?;
    /// let dearest = db.read(|trx| prices.iter_by(trx, &by_price).next_back().transpose())?;
    /// assert_eq!(dearest, Some(("apple".into(), 3)));
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub fn iter_by<'t, I: KeyCodec>(
        &'t self,
        trx: &'t mut Transaction,
        index: &Index<K, V, I>,
    ) -> TypedRange<'t, K, V, E> {
        self.by_index(trx, index, (Bound::Unbounded, Bound::Unbounded))
    }

    /// The rows that have this key in an index.
    pub(super) fn all_by<'t, I: KeyCodec>(
        &'t self,
        trx: &'t mut Transaction,
        index: &Index<K, V, I>,
        key: Vec<u8>,
    ) -> TypedRange<'t, K, V, E> {
        self.by_index(trx, index, beginning_with(key))
    }

    fn by_key<'t>(&'t self, trx: &'t mut Transaction, keys: Bounds) -> TypedRange<'t, K, V, E> {
        let range = trx.range(&self.rows.table, keys);
        TypedRange::new(self, range, By::Key)
    }

    fn by_index<'t, I: KeyCodec>(
        &'t self,
        trx: &'t mut Transaction,
        index: &Index<K, V, I>,
        keys: Bounds,
    ) -> TypedRange<'t, K, V, E> {
        let range = trx.range(&self.rows.table, keys);
        match self.rows.indexes.iter().find(|kept| kept.is_of(index)) {
            Some(kept) => TypedRange::new(self, range.of_index(kept.position), By::Index(kept)),
            None => TypedRange::new(self, range, By::UnknownIndex(index.name().into())),
        }
    }
}

fn prefix_bytes<K, P: KeyPrefix<K> + ?Sized>(prefix: &P) -> Vec<u8> {
    let mut bytes = Vec::new();
    prefix.encode_prefix(&mut bytes);
    bytes
}

impl<'t, K: KeyCodec, V: 'static, E: Encoding<V>> TypedRange<'t, K, V, E> {
    fn new(table: &'t TypedTable<K, V, E>, range: Range<'t>, by: By<'t, K, V>) -> Self {
        let (lock, wait) = (LockMode::None, LockWait::Wait);
        let (entry, row_key, row) = (Vec::new(), Vec::new(), Vec::new());
        TypedRange { table, range, by, lock, wait, entry, row_key, row, is_over: false }
    }

    /// Locks each row, and its entry in the index, before it is given. Before the first row: the
    /// range begins anew.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// use tidepool::typed::TypedTable;
    /// use tidepool::{LockMode, LockWait};
    ///
    /// let jobs = TypedTable::<u64, String>::open_or_create(&db, "jobs", &[])?;
    /// // The oldest job that no other transaction has locked.
    /// let job = db.write(|trx| {
    ///     jobs.iter(trx).locked(LockMode::Exclusive, LockWait::SkipLocked).next().transpose()
    /// })?;
    /// assert_eq!(job, None);
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub fn locked(self, lock: LockMode, wait: LockWait) -> Self {
        TypedRange { range: self.range.locked(lock, wait), lock, wait, ..self }
    }

    /// The next row from the front, its value where its bytes are.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # use tidepool::typed::TypedTable;
    /// let names = TypedTable::<u64, String>::open_or_create(&db, "names", &[])?;
    /// db.write(|trx| names.put(trx, &7, &"Nora".into()))?;
    /// db.read(|trx| {
    ///     let mut rows = names.iter(trx);
    ///     while let Some((id, name)) = rows.next_lent()? {
    ///         let name: &str = name;
    ///         assert_eq!((id, name), (7, "Nora"));
    ///     }
    ///     Ok(())
    /// })?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of reading; [`Error::Codec`] if the row's bytes are none of the table's types.
    pub fn next_lent(&mut self) -> Result<Option<(K, V::Lent<'_>)>>
    where
        V: LendValue,
    {
        self.lend(End::Front)
    }

    /// The next row from the back, its value where its bytes are.
    ///
    /// # Errors
    /// As [`TypedRange::next_lent`].
    pub fn next_back_lent(&mut self) -> Result<Option<(K, V::Lent<'_>)>>
    where
        V: LendValue,
    {
        self.lend(End::Back)
    }

    fn lend(&mut self, end: End) -> Result<Option<(K, V::Lent<'_>)>>
    where
        V: LendValue,
    {
        let table = self.table;
        let Some((row_key, row)) = self.step(end)? else { return Ok(None) };
        let value = V::lend_value(row);
        let value = value.map_err(|why| codec_error(&table.table().name(), row_key, why))?;
        Ok(Some((table.decode_key(row_key)?, value)))
    }

    /// The bytes of the next row.
    fn step(&mut self, end: End) -> Result<Option<(&[u8], &[u8])>> {
        if self.is_over {
            return Ok(None);
        }
        let index = match &self.by {
            By::Key => {
                return match end {
                    End::Front => self.range.next(),
                    End::Back => self.range.next_back(),
                };
            }
            By::Index(index) => *index,
            By::UnknownIndex(name) => {
                self.is_over = true;
                let table = self.table.table().name();
                return Err(Error::InvalidOption(format!(
                    "table '{table}' was opened without this index '{name}': declare it there"
                )));
            }
        };
        let found = self.step_by(index, end);
        self.is_over = matches!(&found, Err(error) if !matches!(error, Error::Codec { .. }));
        Ok(found?.then_some((&self.row_key, &self.row)))
    }

    /// Goes to the next row by an index; false at the end.
    fn step_by(&mut self, index: &KeptIndex<K, V>, end: End) -> Result<bool> {
        while self.next_entry(index, end)? {
            if self.read_row(index)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Goes to the next entry of the index, and gets the key of its row; false at the end.
    fn next_entry(&mut self, index: &KeptIndex<K, V>, end: End) -> Result<bool> {
        let entry = match end {
            End::Front => self.range.next()?,
            End::Back => self.range.next_back()?,
        };
        let Some((key, value)) = entry else { return Ok(false) };
        let row_key = index.row_key(key, value).map_err(|why: CodecError| {
            let why = CodecError::new(format!("in the index '{}': {why}", index.name));
            codec_error(&self.table.table().name(), key, why)
        })?;
        self.row_key.clear();
        self.row_key.extend_from_slice(row_key);
        self.entry.clear();
        self.entry.extend_from_slice(key);
        Ok(true)
    }

    /// Reads the row; false if it must be left out.
    fn read_row(&mut self, index: &KeptIndex<K, V>) -> Result<bool> {
        let table = self.table.table();
        let trx = self.range.transaction();
        let by_statement = trx.isolation().is_by_statement();
        let request = ReadRequest::new(&self.row_key, &mut self.row).locked(self.lock, self.wait);
        let found = trx.read(table, Table::CLUSTERED, request)?;
        if !found && self.lock == LockMode::None && !by_statement {
            return Err(Error::index_differs(&table.name(), &index.name, &self.row_key));
        }
        if !found || !by_statement {
            return Ok(found);
        }
        // Since the entry was read, the row may have got another one.
        let key = self.table.decode_key(&self.row_key)?;
        let value = self.table.decode_value(&self.row_key, &self.row)?;
        Ok(self.entry == index.entry_key(&key, &value, &self.row_key))
    }

    fn decoded(&mut self, end: End) -> Option<Result<(K, V)>> {
        let table = self.table;
        match self.step(end) {
            Ok(None) => None,
            Ok(Some((row_key, row))) => {
                let key = table.decode_key(row_key);
                Some(key.and_then(|key| Ok((key, table.decode_value(row_key, row)?))))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

impl<K: KeyCodec, V: 'static, E: Encoding<V>> Iterator for TypedRange<'_, K, V, E> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Result<(K, V)>> {
        self.decoded(End::Front)
    }
}

impl<K: KeyCodec, V: 'static, E: Encoding<V>> DoubleEndedIterator for TypedRange<'_, K, V, E> {
    fn next_back(&mut self) -> Option<Result<(K, V)>> {
        self.decoded(End::Back)
    }
}
