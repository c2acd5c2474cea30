//! [`Cursor`]: ordered reading of one index, in both directions.
//!
//! # Two ways of reading
//! A *consistent* read fills a batch: 1, then 8, then 64 … visible entries, at most a leaf's,
//! copied under one latch. So a point lookup copies one entry, and a long scan latches each leaf a
//! few times. A reading with an end begins with 8: it is of a range, and copies none beyond. Who
//! says how many are wanted spares it the guessing. A *locking* read goes entry by
//! entry, because each must be locked before the next is looked at, and none ahead of what is asked
//! for: with LIMIT or SKIP LOCKED others would wait for rows, or miss them, that no statement
//! wants. Both find their leaf again by a hint (`btree::LeafHint`), which spares the descent.
//!
//! # What stays between calls
//! No latch, no pin: only the key of the current entry and the rest of the batch. The batch is what
//! the transaction saw when it was filled; [`Transaction`] counts an epoch on with each of its
//! writes to the table, statements and ends, and a batch of another epoch is dropped and read again
//! after the current key. So a cursor never gives an entry that its transaction has deleted since,
//! and always one that it has inserted ahead. Writes to other tables leave the batch: who copies a
//! table row by row would read a leaf for each, otherwise.
//!
//! # Position
//! ```text
//! unpositioned ── first/seek ──▶ on an entry ── next ──▶ past the end ── prev ──▶ the last entry
//! ```
//! `next` of an unpositioned cursor is `first`, `prev` is `last`; past the end `next` stays, and so
//! does `prev` before the beginning.

use super::{Counter, ReadsEpoch, Transaction};
use crate::btree;
use crate::error::Result;
use crate::lock::{LockMode, LockWait};
use crate::table::Table;
use crate::versioned::{
    Batch, Direction, LockRequest, LockedEntry, LongValues, Peek, ScanEnd, ScanPosition,
    ScanRequest,
};
use std::ops::Bound;
use std::sync::Arc;
use tidepool_pool::{Access, statement};

/// Batch sizes grow by this factor, up to the last.
const BATCH_GROWTH: usize = 8;
const BATCH_ROWS_MAX: usize = 512;
/// Memory that a cursor without a position keeps for the next reading, in bytes: that of a batch
/// without long values. A layer above that keeps memory for its rows should keep no
/// more.
pub const ROW_BYTES_KEPT: usize = 128 << 10;
/// Leaves read ahead by a scan, and by another reading after this many batches.
const SCAN_LEAVES_AHEAD: usize = 64;
const LEAVES_AHEAD: usize = 16;
const BATCHES_BEFORE_READ_AHEAD: usize = 6;
/// A reading of more leaves than this part of the pool is a scan.
const LONG_READING_PARTS: u64 = 8;
/// And one whose rows are looked up elsewhere, if they are more than this part of the pool's pages.
/// Each such row may bring another page, and until it counts as a scan those displace what
/// others use: half of the pool's pages, tried before, were enough for a report to push a third of
/// a resident table out.
const LONG_LOOKUPS_PARTS: u64 = 32;

/// Where [`Cursor::seek`] goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// To the key, or the first after it.
    AtOrAfter,
    /// To the first after the key.
    After,
    /// To the key, or the last before it.
    AtOrBefore,
    /// To the last before the key.
    Before,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Unpositioned,
    OnEntry,
    BeforeAll,
    AfterAll,
}

/// Reads the entries of an index in the order of their keys.
pub struct Cursor {
    table: Arc<Table>,
    index: usize,
    lock: LockMode,
    wait: LockWait,
    semi_consistent: bool,
    scan: bool,
    long_values: LongValues,
    /// How many entries a reading is expected to give; 0: unknown.
    expected_rows: usize,
    /// Rows of the reading so far, in how many batches, and in which statement it began.
    rows: u64,
    batches: u64,
    statement: u32,
    place: Place,
    direction: Direction,
    /// Where the reading that begins next is to end.
    end: ScanEnd,
    /// Where the next batch or locking read goes on.
    position: ScanPosition,
    batch: Batch,
    /// Current entry of the batch.
    at: usize,
    /// Rows of the next batch.
    batch_rows: usize,
    /// Batches until the cursor reads the next leaves ahead.
    read_ahead_in: usize,
    /// The table's place among those that the transaction uses, and the epoch that the batch is of.
    slot: usize,
    epoch: ReadsEpoch,
    /// Current entry of a locking read.
    locked: LockedEntry,
    /// Whether the current entry is in `locked`, not in the batch.
    single: bool,
    /// Whether it was read without the lock that it should have, because another transaction has
    /// that.
    peeked: bool,
}

impl Cursor {
    /// A cursor over one index of `table`, unpositioned. `lock` and `wait` say how it reads. Its
    /// first reading fails with [`Error::NoIndex`](crate::Error::NoIndex) if there is no such
    /// index.
    pub fn new(table: Arc<Table>, index: usize, lock: LockMode, wait: LockWait) -> Self {
        Self {
            table,
            index,
            lock,
            wait,
            semi_consistent: false,
            scan: false,
            long_values: LongValues::Whole,
            expected_rows: 0,
            rows: 0,
            batches: 0,
            statement: 0,
            place: Place::Unpositioned,
            direction: Direction::Forward,
            end: ScanEnd::default(),
            position: ScanPosition::start(),
            batch: Batch::default(),
            at: 0,
            batch_rows: 1,
            read_ahead_in: 0,
            slot: 0,
            epoch: ReadsEpoch::default(),
            locked: LockedEntry::default(),
            single: false,
            peeked: false,
        }
    }

    /// The table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Position of the index in the table's definition.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Changes how the cursor reads; it is unpositioned afterwards.
    pub fn set_lock(&mut self, lock: LockMode, wait: LockWait) {
        self.reset();
        (self.lock, self.wait) = (lock, wait);
    }

    /// Says that a locking reading at READ COMMITTED or below is not to wait for entries that
    /// others have locked: such an entry is given as it was committed last, unlocked.
    /// [`is_peeked`](Self::is_peeked) says so, and [`lock_current`](Self::lock_current) is for who
    /// wants it.
    #[inline]
    pub fn set_semi_consistent(&mut self, on: bool) {
        self.semi_consistent = on;
    }

    /// Whether the current entry is one that another transaction has locked, as it was committed
    /// last.
    pub fn is_peeked(&self) -> bool {
        self.is_positioned() && self.single && self.peeked
    }

    /// Reads the current entry again, with a lock and a wait; its neighbour in the reading's
    /// direction, if it is not there any more. False if there is none. Panics unless the current
    /// entry [is peeked](Self::is_peeked).
    pub fn lock_current(&mut self, trx: &mut Transaction) -> Result<bool> {
        assert!(self.is_peeked(), "the current entry is locked");
        self.position.go_on_at(Bound::Included(&self.locked.key));
        let semi_consistent = std::mem::take(&mut self.semi_consistent);
        let found = self.advance(trx);
        self.semi_consistent = semi_consistent;
        found
    }

    /// Says that the whole index is going to be read: pages are read ahead, and do not displace
    /// those in use.
    pub fn set_scan(&mut self, scan: bool) {
        self.scan = scan;
    }

    /// Sets what a consistent reading gives of values too long for a page. Of a value that
    /// [`is_cut`](Self::is_cut), [`Transaction::read`] with the entry's key gives all, before
    /// anything else is done in the transaction.
    #[inline]
    pub fn set_long_values(&mut self, long_values: LongValues) {
        self.long_values = long_values;
    }

    /// Whether the current entry's value is only the beginning of it.
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.is_positioned() && !self.single && self.batch.is_cut(self.at)
    }

    /// Says how many entries a reading is going to be asked for, as far as is known; 0 (at first) =
    /// it is not. A consistent reading then copies as many at once, not a few and ever more. A
    /// wrong guess costs some time, and nothing else.
    pub fn set_expected_rows(&mut self, rows: usize) {
        self.expected_rows = rows;
    }

    /// Says how far the reading that begins next, by a seek, [`first`](Self::first) or
    /// [`last`](Self::last), is to go in its direction. It ends there: entries beyond are not read,
    /// and, by a locking reading, neither locked nor waited for. Only one that locks gaps, at
    /// SERIALIZABLE, gives the first entry beyond, and may go on. Who turns round goes without an
    /// end.
    pub fn set_end(&mut self, end: Bound<&[u8]>) {
        self.end.set(end);
    }

    /// Goes to an entry by key; false (and no position) if there is none.
    pub fn seek(&mut self, trx: &mut Transaction, key: &[u8], seek: Seek) -> Result<bool> {
        let (start, direction) = match seek {
            Seek::AtOrAfter => (Bound::Included(key), Direction::Forward),
            Seek::After => (Bound::Excluded(key), Direction::Forward),
            Seek::AtOrBefore => (Bound::Included(key), Direction::Backward),
            Seek::Before => (Bound::Excluded(key), Direction::Backward),
        };
        self.position.go_on_at(start);
        self.start(trx, direction);
        self.advance(trx)
    }

    /// Goes to the key, or the first after it, as [`Seek::AtOrAfter`] does; looks first in the leaf
    /// of the last read. For who goes from one key to another, often not far, and passes over what
    /// is between.
    pub fn skip_to(&mut self, trx: &mut Transaction, key: &[u8]) -> Result<bool> {
        self.position.go_on_near(key);
        self.start(trx, Direction::Forward);
        self.advance(trx)
    }

    /// Goes to the first entry; false if there is none.
    pub fn first(&mut self, trx: &mut Transaction) -> Result<bool> {
        self.position.go_on_at(Bound::Unbounded);
        self.start(trx, Direction::Forward);
        self.advance(trx)
    }

    /// Goes to the last entry; false if there is none.
    pub fn last(&mut self, trx: &mut Transaction) -> Result<bool> {
        self.position.go_on_at_end();
        self.start(trx, Direction::Backward);
        self.advance(trx)
    }

    /// Goes to the entry after the current one; false if there is none.
    #[inline]
    pub fn next(&mut self, trx: &mut Transaction) -> Result<bool> {
        match self.place {
            Place::OnEntry => self.step(trx, Direction::Forward),
            Place::AfterAll => Ok(false),
            Place::Unpositioned | Place::BeforeAll => self.first(trx),
        }
    }

    /// Goes to the entry before the current one; false if there is none.
    pub fn prev(&mut self, trx: &mut Transaction) -> Result<bool> {
        match self.place {
            Place::OnEntry => self.step(trx, Direction::Backward),
            Place::BeforeAll => Ok(false),
            Place::Unpositioned | Place::AfterAll => self.last(trx),
        }
    }

    /// Whether the cursor is on an entry.
    #[inline]
    pub fn is_positioned(&self) -> bool {
        self.place == Place::OnEntry
    }

    /// Key of the current entry. Panics if there is none.
    #[inline]
    pub fn key(&self) -> &[u8] {
        assert!(self.is_positioned(), "the cursor is on no entry");
        if self.single { &self.locked.key } else { self.batch.key(self.at) }
    }

    /// Value of the current entry. Panics if there is none.
    #[inline]
    pub fn value(&self) -> &[u8] {
        assert!(self.is_positioned(), "the cursor is on no entry");
        if self.single { &self.locked.value } else { self.batch.value(self.at) }
    }

    /// Key and value of the current entry. Panics if there is none.
    #[inline]
    pub fn entry(&self) -> (&[u8], &[u8]) {
        assert!(self.is_positioned(), "the cursor is on no entry");
        match self.single {
            true => (&self.locked.key, &self.locked.value),
            false => self.batch.entry(self.at),
        }
    }

    /// Gives up the position, and the memory that long values have taken.
    pub fn reset(&mut self) {
        self.leave();
        self.batch.clear_and_keep(ROW_BYTES_KEPT);
        self.locked.value.clear();
        self.locked.value.shrink_to(ROW_BYTES_KEPT);
    }

    /// Gives up the position.
    fn leave(&mut self) {
        self.place = Place::Unpositioned;
        self.batch.clear();
    }

    /// A new reading begins at the position.
    fn start(&mut self, trx: &mut Transaction, direction: Direction) {
        trx.enter_call();
        self.leave();
        (self.rows, self.batches, self.statement) = (0, 0, statement::current());
        self.direction = direction;
        self.position.swap_end(&mut self.end);
        let guess = if self.position.has_end() { BATCH_GROWTH } else { 1 };
        self.end.set(Bound::Unbounded);
        self.batch_rows = match (self.scan, self.still_expected()) {
            (true, _) => BATCH_ROWS_MAX,
            (false, 0) => guess,
            (false, rows) => rows,
        };
        self.read_ahead_in = match self.expected_rows {
            _ if self.scan => 0,
            rows if rows > BATCH_ROWS_MAX => 1,
            _ => BATCHES_BEFORE_READ_AHEAD,
        };
    }

    /// How many of the rows that were expected of this reading have not been read yet, at most a
    /// batch's.
    fn still_expected(&self) -> usize {
        let read = usize::try_from(self.rows).unwrap_or(usize::MAX);
        self.expected_rows.saturating_sub(read).min(BATCH_ROWS_MAX)
    }

    /// From the current entry to its neighbour.
    #[inline]
    fn step(&mut self, trx: &mut Transaction, direction: Direction) -> Result<bool> {
        let same_reading = direction == self.direction
            && (self.single || self.epoch == trx.reads_epoch(self.slot));
        if same_reading && !self.single && self.at + 1 < self.batch.len() {
            self.at += 1;
            trx.count(Counter::RowsRead, 1);
            return Ok(true);
        }
        self.step_on(trx, direction, same_reading)
    }

    /// The same, if the neighbour is not in the batch, or may have changed since.
    #[inline(never)]
    fn step_on(
        &mut self,
        trx: &mut Transaction,
        direction: Direction,
        same_reading: bool,
    ) -> Result<bool> {
        if !same_reading {
            // Go on from the key itself: the rest of the batch, and the position behind it, are of
            // another reading.
            let key = if self.single { &self.locked.key } else { self.batch.key(self.at) };
            self.position.go_on_at(Bound::Excluded(key));
            if direction != self.direction {
                self.position.forget_end();
            }
            self.direction = direction;
            if !self.single {
                // Who writes between reads needs no more next time than what was used of this one.
                self.batch_rows = self.batch_rows.min(self.at + 1);
            }
        }
        self.advance(trx)
    }

    /// Reads on at `position`.
    fn advance(&mut self, trx: &mut Transaction) -> Result<bool> {
        self.place = Place::Unpositioned;
        let lock = trx.effective_lock(self.lock);
        self.slot = trx.enlist_to_read(&self.table, self.index, lock)?;
        let found = match lock {
            LockMode::None => self.fill(trx),
            _ => self.lock_next(trx, lock),
        };
        let found = trx.unless_closed(found)?;
        self.place = match (found, self.direction) {
            (true, _) => Place::OnEntry,
            (false, Direction::Forward) => Place::AfterAll,
            (false, Direction::Backward) => Place::BeforeAll,
        };
        if found {
            trx.count(Counter::RowsRead, 1);
        }
        Ok(found)
    }

    /// How leaves are read. A batch is a leaf, or most of one: a reading as long as a good part of
    /// the pool is a scan, though the caller did not announce it.
    fn access(&self) -> Access {
        match self.scan || self.batches > self.pool_pages() / LONG_READING_PARTS {
            true => Access::Scan,
            false => Access::Normal,
        }
    }

    fn pool_pages(&self) -> u64 {
        u64::from(self.table.tree(Table::CLUSTERED).tree().env().pool().page_limit())
    }

    /// How rows that are looked up by the entries that the cursor finds had better be read
    /// ([`ReadRequest::access`](crate::ReadRequest::access)). As by a scan if the cursor was set to
    /// scan, or if the present statement has already read many entries, next to the pool's pages.
    pub fn lookup_access(&self) -> Access {
        let is_long = || {
            // Of the batch only what has been given: more may have been copied than is ever asked
            // for.
            let ahead = if self.single { 0 } else { self.batch.len() - 1 - self.at };
            self.rows - ahead as u64 > self.pool_pages() / LONG_LOOKUPS_PARTS
        };
        let is_of_statement = self.is_positioned() && self.statement == statement::current();
        match is_of_statement && (self.scan || is_long()) {
            true => Access::Scan,
            false => Access::Normal,
        }
    }

    /// Fills the batch; false at the end.
    fn fill(&mut self, trx: &mut Transaction) -> Result<bool> {
        let (direction, rows, access) = (self.direction, self.batch_rows, self.access());
        let request = ScanRequest { direction, rows, access, long_values: self.long_values };
        (self.single, self.at) = (false, 0);
        self.batch.clear();
        let mut leaves = 0;
        while self.batch.is_empty() && !self.position.at_end() {
            if leaves > 0 {
                trx.core().check_interrupt()?;
            }
            leaves += 1;
            let tree = self.table.tree(self.index);
            tree.scan(trx.core(), &mut self.position, request, &mut self.batch)?;
        }
        self.batches += 1;
        self.rows += self.batch.len() as u64;
        self.read_ahead();
        self.batch_rows = match self.still_expected() {
            0 => (self.batch_rows * BATCH_GROWTH).min(BATCH_ROWS_MAX),
            rows => rows,
        };
        self.epoch = trx.reads_epoch(self.slot);
        Ok(!self.batch.is_empty())
    }

    /// Has the leaves read that come next: for a scan from the beginning, else once the reading has
    /// gone on for a while. A batch is a leaf by then, or most of one. A page that can't be read on
    /// the way is an error when the reading comes to it, if it does.
    fn read_ahead(&mut self) {
        if self.batch.is_empty() || self.position.at_end() {
            return;
        }
        if self.read_ahead_in > 0 {
            self.read_ahead_in -= 1;
            return;
        }
        let leaves = if self.scan { SCAN_LEAVES_AHEAD } else { LEAVES_AHEAD };
        let seek = btree::Seek::Key(self.batch.key(self.batch.len() - 1));
        let backward = self.direction == Direction::Backward;
        let found =
            self.table.tree(self.index).tree().read_ahead(seek, backward, leaves, self.access());
        let found = found.unwrap_or_else(|error| {
            tracing::debug!(%error, "leaves cannot be read ahead");
            leaves
        });
        // Half of them later it is time for the next, unless these were the last.
        self.read_ahead_in = if found == leaves { leaves / 2 } else { usize::MAX };
    }

    /// Locks and reads the next entry; false at the end.
    fn lock_next(&mut self, trx: &mut Transaction, lock: LockMode) -> Result<bool> {
        let peeks = self.semi_consistent
            && self.wait != LockWait::SkipLocked
            && trx.isolation().is_by_statement();
        (self.single, self.peeked) = (true, false);
        self.rows += 1;
        let access = if self.scan { Access::Scan } else { Access::Normal };
        let request = LockRequest { direction: self.direction, lock, wait: self.wait, access };
        let tree = self.table.tree(self.index);
        let (position, found) = (&mut self.position, &mut self.locked);
        if peeks {
            let peek = tree.lock_next_or_peek(trx.core(), position, request, found)?;
            self.peeked = peek == Peek::Committed;
            return Ok(peek != Peek::End);
        }
        tree.lock_next(trx.core(), position, request, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_storage::spoil;
    use crate::{
        Db, Error, IndexDef, Isolation, Options, ReadRequest, ReadValue, TableDef,
        TransactionOptions,
    };
    use tidepool_pool::PageId;
    use tidepool_pool::storage::SimStorage;

    #[test]
    fn a_reading_that_finds_nothing_can_be_interrupted() {
        let db = Db::open_on(Arc::new(SimStorage::new(1)), Options::small()).unwrap();
        let def = TableDef::new([IndexDef::unique("primary")]);
        let table = db.create_table("t", &def).unwrap();
        let options = TransactionOptions { isolation: Isolation::ReadCommitted, read_only: false };
        let mut trx = db.begin(options);
        // Some leaves of entries that are deleted, and not purged.
        for n in 0..2000u16 {
            trx.insert(&table, Table::CLUSTERED, &n.to_be_bytes(), &[1; 50]).unwrap();
            trx.delete(&table, Table::CLUSTERED, &n.to_be_bytes()).unwrap();
        }
        trx.commit().unwrap();
        for (lock, semi_consistent) in
            [(LockMode::None, false), (LockMode::Shared, false), (LockMode::Shared, true)]
        {
            let mut cursor = Cursor::new(table.clone(), Table::CLUSTERED, lock, LockWait::Wait);
            cursor.set_semi_consistent(semi_consistent);
            assert_eq!(cursor.first(&mut trx), Ok(false));
            trx.interrupt_handle().interrupt();
            assert_eq!(cursor.first(&mut trx), Err(Error::Interrupted));
            assert_eq!(cursor.last(&mut trx), Err(Error::Interrupted));
            trx.interrupt_handle().clear();
            assert_eq!(cursor.last(&mut trx), Ok(false));
        }
    }

    #[test]
    fn only_writes_to_its_own_table_cost_a_cursor_its_batch() {
        const ROWS: u16 = 2000;
        let db = Db::open_on(Arc::new(SimStorage::new(1)), Options::small()).unwrap();
        let def = TableDef::new([IndexDef::unique("primary")]);
        let (from, to) =
            (db.create_table("from", &def).unwrap(), db.create_table("to", &def).unwrap());
        let options = TransactionOptions { isolation: Isolation::RepeatableRead, read_only: false };
        let mut trx = db.begin(options);
        for n in 0..ROWS {
            trx.insert(&from, Table::CLUSTERED, &n.to_be_bytes(), &[1; 20]).unwrap();
        }
        trx.commit().unwrap();
        let cursor = || Cursor::new(from.clone(), Table::CLUSTERED, LockMode::None, LockWait::Wait);

        let mut copies = cursor();
        let mut found = copies.first(&mut trx).unwrap();
        while found {
            trx.insert(&to, Table::CLUSTERED, copies.key(), copies.value()).unwrap();
            found = copies.next(&mut trx).unwrap();
        }
        assert!((1..ROWS as u64 / 20).contains(&copies.batches), "{} batches", copies.batches);
        assert_eq!(copies.rows, u64::from(ROWS));

        // Each entry found has the next one deleted and one further on inserted: all that is seen,
        // and little is read in vain.
        let mut changes = cursor();
        let (mut seen, mut expected) = (Vec::new(), Vec::new());
        let mut found = changes.first(&mut trx).unwrap();
        for n in (0..ROWS).step_by(2) {
            assert!(found);
            seen.push(changes.key().to_vec());
            expected.push(n.to_be_bytes().to_vec());
            expected.push([&n.to_be_bytes()[..], &[7]].concat());
            trx.delete(&from, Table::CLUSTERED, &(n + 1).to_be_bytes()).unwrap();
            let between = [&n.to_be_bytes()[..], &[7]].concat();
            trx.insert(&from, Table::CLUSTERED, &between, b"").unwrap();
            assert!(changes.next(&mut trx).unwrap());
            seen.push(changes.key().to_vec());
            found = changes.next(&mut trx).unwrap();
        }
        assert!(!found);
        assert_eq!(seen, expected);
        assert!(changes.rows < u64::from(ROWS) * 8, "{} entries read", changes.rows);
    }

    #[test]
    fn who_skips_finds_the_same_and_descends_less() {
        let db = Db::open_on(Arc::new(SimStorage::new(1)), Options::small()).unwrap();
        let def = TableDef::new([IndexDef::unique("primary")]);
        let table = db.create_table("t", &def).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        for n in (0..6000u16).step_by(2) {
            trx.insert(&table, Table::CLUSTERED, &n.to_be_bytes(), &[1; 20]).unwrap();
        }
        trx.commit().unwrap();
        for lock in [LockMode::None, LockMode::Shared] {
            let mut requests = [0; 2];
            for (skips, requests) in [false, true].into_iter().zip(&mut requests) {
                let mut cursor = Cursor::new(table.clone(), 0, lock, LockWait::Wait);
                cursor.set_expected_rows(2);
                let before = db.inner.env.pool().stats().read_requests;
                // Forward by a little and by much, back, and past the end.
                let far = [0, 5, 11, 300, 302, 5000, 5001, 7, 5997, 5999, 6001, 3, 5990, 1001];
                for n in (0..5990).step_by(9).chain(far) {
                    let key = u16::to_be_bytes(n);
                    let found = match skips {
                        true => cursor.skip_to(&mut trx, &key).unwrap(),
                        false => cursor.seek(&mut trx, &key, Seek::AtOrAfter).unwrap(),
                    };
                    let wanted = n.next_multiple_of(2);
                    assert_eq!(found, wanted < 6000, "{n}");
                    if found {
                        assert_eq!(cursor.key(), wanted.to_be_bytes());
                        assert_eq!(cursor.next(&mut trx), Ok(wanted < 5998));
                    }
                }
                *requests = db.inner.env.pool().stats().read_requests - before;
            }
            assert!(requests[1] < requests[0] * 7 / 10, "{requests:?}");
        }
    }

    #[test]
    fn a_cursor_that_is_reset_keeps_no_memory_of_long_values() {
        let db = Db::open_on(Arc::new(SimStorage::new(1)), Options::small()).unwrap();
        let def = TableDef::new([IndexDef::unique("primary")]);
        let table = db.create_table("t", &def).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        trx.insert(&table, Table::CLUSTERED, b"k", &[1; 1 << 20]).unwrap();
        for lock in [LockMode::None, LockMode::Shared] {
            let mut cursor = Cursor::new(table.clone(), Table::CLUSTERED, lock, LockWait::Wait);
            assert!(cursor.first(&mut trx).unwrap());
            assert_eq!(cursor.value().len(), 1 << 20);
            cursor.reset();
            let kept = cursor.batch.memory_bytes()
                + cursor.locked.key.capacity()
                + cursor.locked.value.capacity();
            assert!(kept <= 3 * ROW_BYTES_KEPT, "{kept}");
            assert!(cursor.next(&mut trx).unwrap());
        }
    }

    /// The damage is to the first page of the row's long value.
    #[test]
    fn who_asks_whether_a_row_is_there_does_not_read_it() {
        let options = || Options { page_size: 4096, ..Options::small() };
        let sim = SimStorage::new(1);
        let db = Db::open_on(Arc::new(sim.clone()), options()).unwrap();
        let def = TableDef::new([IndexDef::unique("primary")]);
        let table = db.create_table("t", &def).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        trx.insert(&table, Table::CLUSTERED, b"k", &[1; 10_000]).unwrap();
        trx.commit().unwrap();
        drop((trx, table));
        db.close().unwrap();
        drop(db);
        let sim = sim.kill();
        spoil(&sim, PageId::new(16, 3));

        let db = Db::open_on(Arc::new(sim), options()).unwrap();
        let table = db.open_table("t").unwrap();
        for lock in [LockMode::None, LockMode::Shared] {
            let mut trx = db.begin(TransactionOptions::default());
            let mut ask = |key: &[u8]| {
                trx.read(
                    &table,
                    Table::CLUSTERED,
                    ReadRequest::presence(key).locked(lock, LockWait::Wait),
                )
            };
            assert_eq!((ask(b"j"), ask(b"k")), (Ok(false), Ok(true)));
            let (clustered, wait) = (Table::CLUSTERED, LockWait::Wait);
            let read = trx.read(
                &table,
                clustered,
                ReadRequest::new(b"k", &mut Vec::new()).locked(lock, wait),
            );
            assert!(matches!(read, Err(Error::Corrupt { page: 3, .. })), "{read:?}");
            let mut other = db.begin(TransactionOptions::default());
            let locked = other.read(
                &table,
                clustered,
                ReadRequest::presence(b"k").locked(LockMode::Exclusive, LockWait::NoWait),
            );
            let expected = if lock == LockMode::None { Ok(true) } else { Err(Error::LockNoWait) };
            assert_eq!(locked, expected);
        }
    }

    #[test]
    fn heads_of_long_values_come_with_the_others_and_without_their_pages() {
        const ROWS: u8 = 20;
        let db = Db::open_on(Arc::new(SimStorage::new(1)), Options::small()).unwrap();
        let def = TableDef::new([IndexDef::unique("primary")]);
        let table = db.create_table("t", &def).unwrap();
        let value = |n: u8, version: u8| match n % 2 {
            0 => vec![version; 10],
            _ => [vec![n, version], vec![version; 50_000 + usize::from(n)]].concat(),
        };
        let mut trx = db.begin(TransactionOptions::default());
        for n in 0..ROWS {
            trx.insert(&table, Table::CLUSTERED, &[n], &value(n, 1)).unwrap();
        }
        trx.commit().unwrap();
        let read = |trx: &mut crate::Transaction, lock, version: u8, cuts: u32| {
            let mut cursor = Cursor::new(table.clone(), Table::CLUSTERED, lock, LockWait::Wait);
            cursor.set_long_values(LongValues::Prefix);
            let (mut seen, mut cut, mut whole) = (0, 0, Vec::new());
            while cursor.next(trx).unwrap() {
                let (key, head) = (cursor.key().to_vec(), cursor.value().to_vec());
                let (wanted, none) = (value(key[0], version), LockWait::Wait);
                assert!(wanted.starts_with(&head));
                assert_eq!(cursor.is_cut(), head.len() < wanted.len());
                cut += u32::from(cursor.is_cut());
                let mut is_cut = true;
                let prefix = ReadValue::Prefix { bytes: &mut whole, is_cut: &mut is_cut };
                let request = ReadRequest::of(&key, prefix).locked(lock, none);
                assert!(trx.read(&table, 0, request).unwrap());
                assert_eq!((is_cut, &whole[..]), (cursor.is_cut(), &head[..]));
                assert!(
                    trx.read(&table, 0, ReadRequest::new(&key, &mut whole).locked(lock, none))
                        .unwrap()
                );
                assert_eq!(whole, wanted);
                seen += 1;
            }
            assert_eq!((seen, cut), (ROWS, cuts));
            let prefix = ReadValue::Prefix { bytes: &mut whole, is_cut: &mut false };
            let request = ReadRequest::of(b"no", prefix).locked(lock, LockWait::Wait);
            assert!(!trx.read(&table, 0, request).unwrap());
        };
        let cuts = u32::from(ROWS / 2);
        let mut old = db.begin(TransactionOptions::default());
        read(&mut old, LockMode::None, 1, cuts);
        for n in 0..ROWS {
            trx.update(&table, Table::CLUSTERED, &[n], &value(n, 2)).unwrap();
        }
        read(&mut trx, LockMode::None, 2, cuts);
        read(&mut trx, LockMode::Shared, 2, 0);
        read(&mut old, LockMode::None, 1, cuts);
        let mut dirty = db.begin(TransactionOptions {
            isolation: Isolation::ReadUncommitted,
            ..TransactionOptions::default()
        });
        read(&mut dirty, LockMode::None, 2, 0);
        trx.commit().unwrap();
        read(&mut old, LockMode::None, 1, cuts);
        drop((dirty, old));

        let reads = |long_values: LongValues| {
            let before = db.inner.env.pool().stats().read_requests;
            let mut trx = db.begin(TransactionOptions::default());
            let (lock, wait) = (LockMode::None, LockWait::Wait);
            let mut cursor = Cursor::new(table.clone(), Table::CLUSTERED, lock, wait);
            cursor.set_long_values(long_values);
            while cursor.next(&mut trx).unwrap() {}
            db.inner.env.pool().stats().read_requests - before
        };
        let (prefix, whole) = (reads(LongValues::Prefix), reads(LongValues::Whole));
        assert!(prefix < 10 && whole > 50, "{prefix} {whole}");
    }

    #[test]
    fn who_says_how_many_entries_are_wanted_gets_them_leaf_by_leaf() {
        const ROWS: u16 = 2000;
        let db = Db::open_on(Arc::new(SimStorage::new(1)), Options::small()).unwrap();
        let def = TableDef::new([IndexDef::unique("primary")]);
        let table = db.create_table("t", &def).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        for n in 0..ROWS {
            trx.insert(&table, Table::CLUSTERED, &n.to_be_bytes(), &[1; 20]).unwrap();
        }
        trx.commit().unwrap();
        let read = |trx: &mut Transaction, expected: usize, wanted: u16| {
            let lock = LockMode::None;
            let mut cursor = Cursor::new(table.clone(), Table::CLUSTERED, lock, LockWait::Wait);
            cursor.set_expected_rows(expected);
            assert!(cursor.seek(trx, &500u16.to_be_bytes(), Seek::AtOrAfter).unwrap());
            for n in 500..500 + wanted {
                assert_eq!(cursor.key(), n.to_be_bytes());
                cursor.next(trx).unwrap();
            }
            (cursor.batches, cursor.rows)
        };
        // It looks at one behind those it wants, each time. The leaves hold some 400.
        let (batches, rows) = read(&mut trx, 0, 99);
        assert!(batches >= 4 && rows > 150, "{batches}, {rows}");
        let (batches, rows) = read(&mut trx, 100, 99);
        assert!(batches <= 2 && rows == 100, "{batches}, {rows}");
        let (batches, rows) = read(&mut trx, 1000, 999);
        assert!(batches <= 5 && rows == 1000, "{batches}, {rows}");
        // More than was said.
        let (batches, rows) = read(&mut trx, 10, 99);
        assert!(batches <= 4 && rows >= 100, "{batches}, {rows}");
    }

    /// The damage is to the second parent of leaves, which a scan's reading ahead comes to with its
    /// first row.
    #[test]
    fn what_cannot_be_read_ahead_is_no_error_before_the_reading_comes_to_it() {
        const FILE: &str = "tables/00000010.tpd";
        const ROWS: u32 = 300;
        let options = || Options { page_size: 4096, ..Options::small() };
        let sim = SimStorage::new(1);
        let db = Db::open_on(Arc::new(sim.clone()), options()).unwrap();
        let def = TableDef::new([IndexDef::unique("primary")]);
        let table = db.create_table("t", &def).unwrap();
        // So long that an inner node has few children.
        let key = |n: u32| [&[b'k'; 600][..], &n.to_be_bytes()].concat();
        let mut trx = db.begin(TransactionOptions::default());
        for n in 0..ROWS {
            trx.insert(&table, Table::CLUSTERED, &key(n), b"").unwrap();
        }
        trx.commit().unwrap();
        let mut parents: Vec<(Vec<u8>, u32)> = Vec::new();
        let mut show = |node: crate::format::node::Node<'_>, _: f64| -> Result<()> {
            let no = u32::from_le_bytes(node.page()[4..8].try_into().expect("four bytes"));
            parents.push((node.lower_fence().to_vec(), no));
            Ok(())
        };
        table.tree(Table::CLUSTERED).tree().sample_nodes(1, 1000, &mut show).unwrap();
        parents.sort();
        parents.dedup();
        let (fence, second) = parents[1].clone();
        drop((trx, table));
        db.close().unwrap();
        drop(db);
        let sim = sim.kill();
        spoil(&sim, PageId::new(16, second));

        let db = Db::open_on(Arc::new(sim), options()).unwrap();
        let table = db.open_table("t").unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        let mut cursor = Cursor::new(table, Table::CLUSTERED, LockMode::None, LockWait::Wait);
        cursor.set_scan(true);
        let mut read = 0;
        let error = loop {
            match cursor.next(&mut trx) {
                Ok(found) => assert!(found, "the end, behind {read} rows"),
                Err(error) => break error.to_string(),
            }
            read += 1;
        };
        assert!(error.starts_with(&format!("{FILE}: page {second} is corrupt")), "{error}");
        assert_eq!(read, (0..ROWS).filter(|&n| key(n) < fence).count());
    }
}
