//! A table as an ordered map, and transactions that run again after a conflict.
//!
//! Everything here is made of [`Transaction`]'s operations and [`Cursor`]s. The keys and values of
//! [`get`](Transaction::get), [`put`](Transaction::put) and [`remove`](Transaction::remove) are
//! those of the table's clustered index. Entries of other indexes are written by
//! [`Transaction::insert`] and [`Transaction::delete`]; [`Range::of_index`] reads them.
//!
//! # A range from both ends
//! A [`Range`] has a cursor at each end. Both stay where they are between calls, so the range ends
//! where they meet: an entry that one of them has given, the other does not give.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use super::{Counter, Cursor, Db, Seek, Transaction};
use crate::error::{Error, Result};
use crate::lock::{LockMode, LockWait};
use crate::table::Table;
use crate::trx::TransactionOptions;
use crate::versioned::{ReadRequest, Written};

/// How often [`Db::write`] runs a transaction that meets conflicts.
const ATTEMPTS: u32 = 100;
/// How long it rests before the second attempt; twice as long before each further one, up to the
/// second figure.
const REST: Duration = Duration::from_micros(50);
const REST_MAX: Duration = Duration::from_millis(10);

impl Db {
    /// Runs `body` in a transaction and commits it. If the body fails, everything is undone. If it
    /// or the commit fails by a conflict ([`Error::is_retryable`]), it runs again, in a new
    /// transaction, up to a hundred times. So it must not have effects elsewhere.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// let count = db.write(|trx| {
    ///     trx.put(&fruit, b"apple", b"red")?;
    ///     trx.put(&fruit, b"lemon", b"yellow")?;
    ///     trx.range::<&[u8]>(&fruit, ..).count()
    /// })?;
    /// assert_eq!(count, 2);
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the body; after the last attempt, the conflict.
    pub fn write<T>(&self, mut body: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        let mut trx = self.begin(TransactionOptions::default());
        let mut rest = REST;
        for attempt in 1.. {
            let result = body(&mut trx).and_then(|value| trx.commit().map(|()| value));
            match result {
                Err(error) if error.is_retryable() && attempt < ATTEMPTS => {
                    trx.rollback()?;
                    std::thread::sleep(rest);
                    rest = (2 * rest).min(REST_MAX);
                }
                Err(error) => {
                    trx.rollback()?;
                    return Err(error);
                }
                result => return result,
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Runs `body` in a transaction that only reads, all of it from one snapshot.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// let apple = db.read(|trx| trx.get(&fruit, b"apple"))?;
    /// assert_eq!(apple, None);
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the body.
    pub fn read<T>(&self, body: impl FnOnce(&mut Transaction) -> Result<T>) -> Result<T> {
        let options = TransactionOptions { read_only: true, ..TransactionOptions::default() };
        body(&mut self.begin(options))
    }
}

impl Transaction {
    /// The value of a key; `None` if there is none.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// db.write(|trx| trx.put(&fruit, b"apple", b"red"))?;
    /// assert_eq!(db.read(|trx| trx.get(&fruit, b"apple"))?.unwrap(), b"red");
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::read`].
    pub fn get(&mut self, table: &Arc<Table>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        let found = self.read(table, Table::CLUSTERED, ReadRequest::new(key, &mut value))?;
        Ok(found.then_some(value))
    }

    /// The same for a value that the transaction will change. A value that is there is locked, so no
    /// other transaction changes it. Where there is none, another transaction may insert one; then
    /// a write of the key fails with [`Error::RecordChanged`], after which [`Db::write`] runs the
    /// transaction again. (At READ COMMITTED and below nothing guards a key without a value.)
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// db.write(|trx| {
    ///     let mut basket = trx.get_for_update(&fruit, b"basket")?.unwrap_or_default();
    ///     basket.push(b'*');
    ///     trx.put(&fruit, b"basket", &basket)
    /// })?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::read`].
    pub fn get_for_update(&mut self, table: &Arc<Table>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = self.get_locked(table, key)?;
        if found.is_some() {
            return Ok(found);
        }
        // There is no lock on what is not there. With a snapshot from before the second look, the
        // write finds out if there is a value by then.
        self.ensure_view();
        self.get_locked(table, key)
    }

    fn get_locked(&mut self, table: &Arc<Table>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        let request = ReadRequest::new(key, &mut value);
        let request = request.locked(LockMode::Exclusive, LockWait::Wait);
        let found = self.read(table, Table::CLUSTERED, request)?;
        Ok(found.then_some(value))
    }

    /// Gives a key a value, in place of the one that it has.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// db.write(|trx| {
    ///     trx.put(&fruit, b"apple", b"green")?;
    ///     trx.put(&fruit, b"apple", b"red")
    /// })?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`] and [`Transaction::update`], except those about whether the key
    /// has a value.
    pub fn put(&mut self, table: &Arc<Table>, key: &[u8], value: &[u8]) -> Result<()> {
        let slot = self.begin_write(table, Table::CLUSTERED, key)?;
        let put = table.tree(Table::CLUSTERED).put(self.core(), key, value);
        match self.unless_closed(put)? {
            Written::New => self.count_row(slot, 1, Counter::RowsInserted),
            Written::Existing => self.count_row(slot, 0, Counter::RowsUpdated),
        }
        Ok(())
    }

    /// Removes a key; whether it had a value.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// db.write(|trx| trx.put(&fruit, b"apple", b"red"))?;
    /// assert!(db.write(|trx| trx.remove(&fruit, b"apple"))?);
    /// assert!(!db.write(|trx| trx.remove(&fruit, b"apple"))?);
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::delete`], except [`Error::NotFound`].
    pub fn remove(&mut self, table: &Arc<Table>, key: &[u8]) -> Result<bool> {
        match self.delete(table, Table::CLUSTERED, key) {
            Ok(()) => Ok(true),
            Err(Error::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes all keys of a range, and returns how many there were.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// db.write(|trx| {
    ///     trx.put(&fruit, b"apple", b"red")?;
    ///     trx.put(&fruit, b"lemon", b"yellow")
    /// })?;
    /// assert_eq!(db.write(|trx| trx.remove_range(&fruit, "a".."b"))?, 1);
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Range::next`] and [`Transaction::remove`]. What was removed before stays so until the
    /// transaction is rolled back.
    pub fn remove_range<K: AsRef<[u8]>>(
        &mut self,
        table: &Arc<Table>,
        keys: impl RangeBounds<K>,
    ) -> Result<u64> {
        let mut cursor =
            Cursor::new(table.clone(), Table::CLUSTERED, LockMode::Exclusive, LockWait::Wait);
        let (from, to) = (owned(keys.start_bound()), owned(keys.end_bound()));
        let mut removed = 0;
        let mut more = go_to_start(&mut cursor, self, &from, &to)?;
        while more && contains(&from, &to, cursor.key()) {
            let key = cursor.key().to_vec();
            self.delete(table, Table::CLUSTERED, &key)?;
            removed += 1;
            more = cursor.next(self)?;
        }
        Ok(removed)
    }

    /// The entries of a range of keys of the clustered index, in order, from either end. See
    /// [`Range`] for other indexes, and for locks.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// db.write(|trx| {
    ///     for name in ["apple", "lemon", "plum"] {
    ///         trx.put(&fruit, name.as_bytes(), b"")?;
    ///     }
    ///     Ok(())
    /// })?;
    /// db.read(|trx| {
    ///     let mut range = trx.range(&fruit, "b"..);
    ///     assert_eq!(range.next()?.unwrap().0, b"lemon");
    ///     assert_eq!(range.next_back()?.unwrap().0, b"plum");
    ///     assert_eq!(range.next()?, None);
    ///     Ok(())
    /// })?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub fn range<K: AsRef<[u8]>>(
        &mut self,
        table: &Arc<Table>,
        keys: impl RangeBounds<K>,
    ) -> Range<'_> {
        Range::new(self, table, (owned(keys.start_bound()), owned(keys.end_bound())))
    }

    /// The entries whose keys begin with `prefix`, as [`Transaction::range`] gives them.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// db.write(|trx| {
    ///     trx.put(&fruit, b"citrus/lemon", b"yellow")?;
    ///     trx.put(&fruit, b"plum", b"blue")
    /// })?;
    /// assert_eq!(db.read(|trx| trx.prefix(&fruit, "citrus/").count())?, 1);
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub fn prefix(&mut self, table: &Arc<Table>, prefix: impl AsRef<[u8]>) -> Range<'_> {
        Range::new(self, table, beginning_with(prefix.as_ref().to_vec()))
    }
}

/// Entries of an index in the order of their keys, from either end: of [`Transaction::range`] and
/// [`Transaction::prefix`].
///
/// The keys and values are lent: each lives until the next one is asked for. So this is no
/// [`Iterator`]; `while let Some((key, value)) = range.next()? { … }` reads it.
pub struct Range<'trx> {
    trx: &'trx mut Transaction,
    table: Arc<Table>,
    index: usize,
    lock: LockMode,
    wait: LockWait,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    front: Option<Cursor>,
    back: Option<Cursor>,
    /// The ends have met, or a call has failed.
    is_over: bool,
}

impl<'trx> Range<'trx> {
    fn new(
        trx: &'trx mut Transaction,
        table: &Arc<Table>,
        (from, to): (Bound<Vec<u8>>, Bound<Vec<u8>>),
    ) -> Range<'trx> {
        Range {
            trx,
            table: table.clone(),
            index: Table::CLUSTERED,
            lock: LockMode::None,
            wait: LockWait::Wait,
            from,
            to,
            front: None,
            back: None,
            is_over: false,
        }
    }

    /// Reads another index than the clustered one: that at this position of the table's definition.
    /// Before the first entry: the range begins anew.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// use tidepool::Error;
    /// let missing = db.read(|trx| trx.range::<&[u8]>(&fruit, ..).of_index(1).count());
    /// assert!(matches!(missing, Err(Error::NoIndex { index: 1, count: 1, .. })));
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub fn of_index(self, index: usize) -> Range<'trx> {
        Range { index, front: None, back: None, ..self }
    }

    /// Locks each entry before it is given. Before the first entry: the range begins anew.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// use tidepool::{LockMode, LockWait};
    /// db.write(|trx| {
    ///     // What others have locked is passed over.
    ///     let all = trx.range::<&[u8]>(&fruit, ..);
    ///     let mut free = all.locked(LockMode::Exclusive, LockWait::SkipLocked);
    ///     assert_eq!(free.next()?, None);
    ///     Ok(())
    /// })?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub fn locked(self, lock: LockMode, wait: LockWait) -> Range<'trx> {
        Range { lock, wait, front: None, back: None, ..self }
    }

    /// The next entry from the front: its key and its value. `None` at the end.
    ///
    /// # Errors
    /// Those of reading; [`Error::NoIndex`] if there is no such index. The range is over then.
    #[expect(clippy::should_implement_trait, reason = "it lends, which an Iterator can't")]
    pub fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.step(End::Front)
    }

    /// The next entry from the back.
    ///
    /// # Errors
    /// As [`Range::next`].
    pub fn next_back(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.step(End::Back)
    }

    /// The key and the value of the next entry from the front, to keep.
    ///
    /// # Errors
    /// As [`Range::next`].
    pub fn next_owned(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        Ok(self.next()?.map(|(key, value)| (key.to_vec(), value.to_vec())))
    }

    /// How many entries are left.
    ///
    /// # Errors
    /// As [`Range::next`].
    pub fn count(mut self) -> Result<u64> {
        let mut count = 0;
        while self.next()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// The transaction that the range reads in.
    pub(crate) fn transaction(&mut self) -> &mut Transaction {
        self.trx
    }

    fn step(&mut self, end: End) -> Result<Option<(&[u8], &[u8])>> {
        if self.is_over {
            return Ok(None);
        }
        // If the step fails, so it stays.
        self.is_over = true;
        let found = self.advance(end)?;
        self.is_over = !found;
        let cursor = if end == End::Front { &self.front } else { &self.back };
        Ok(cursor.as_ref().filter(|_| found).map(|cursor| (cursor.key(), cursor.value())))
    }

    /// Moves the cursor at an end; false if no entry is left between the two.
    fn advance(&mut self, end: End) -> Result<bool> {
        let (mine, other) = match end {
            End::Front => (&mut self.front, &self.back),
            End::Back => (&mut self.back, &self.front),
        };
        let found = match mine {
            Some(cursor) if end == End::Front => cursor.next(self.trx)?,
            Some(cursor) => cursor.prev(self.trx)?,
            None => {
                let cursor = Cursor::new(self.table.clone(), self.index, self.lock, self.wait);
                let cursor = mine.insert(cursor);
                match end {
                    End::Front => go_to_start(cursor, self.trx, &self.from, &self.to)?,
                    End::Back => go_to_end(cursor, self.trx, &self.from, &self.to)?,
                }
            }
        };
        let Some(key) = mine.as_ref().filter(|_| found).map(Cursor::key) else { return Ok(false) };
        let other = other.as_ref().map(Cursor::key);
        Ok(contains(&self.from, &self.to, key)
            && other.is_none_or(|other| if end == End::Front { key < other } else { key > other }))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Front,
    Back,
}

fn owned<K: AsRef<[u8]>>(bound: Bound<&K>) -> Bound<Vec<u8>> {
    bound.map(|key| key.as_ref().to_vec())
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Puts a cursor on the first entry that is not before `from`.
fn go_to_start(
    cursor: &mut Cursor,
    trx: &mut Transaction,
    from: &Bound<Vec<u8>>,
    to: &Bound<Vec<u8>>,
) -> Result<bool> {
    cursor.set_end(borrowed(to));
    match from {
        Bound::Included(key) => cursor.seek(trx, key, Seek::AtOrAfter),
        Bound::Excluded(key) => cursor.seek(trx, key, Seek::After),
        Bound::Unbounded => cursor.first(trx),
    }
}

/// Puts a cursor on the last entry that is not behind `to`.
fn go_to_end(
    cursor: &mut Cursor,
    trx: &mut Transaction,
    from: &Bound<Vec<u8>>,
    to: &Bound<Vec<u8>>,
) -> Result<bool> {
    cursor.set_end(borrowed(from));
    match to {
        Bound::Included(key) => cursor.seek(trx, key, Seek::AtOrBefore),
        Bound::Excluded(key) => cursor.seek(trx, key, Seek::Before),
        Bound::Unbounded => cursor.last(trx),
    }
}

fn contains(from: &Bound<Vec<u8>>, to: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    (borrowed(from), borrowed(to)).contains(key)
}

/// The range of all keys that begin with `prefix`.
pub(crate) fn beginning_with(prefix: Vec<u8>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let end = prefix_end(&prefix).map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(prefix), end)
}

/// The least key that is greater than all keys that begin with `prefix`; `None`: there is none.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
