//! [`Transaction`]: a transaction on tables, as users of the engine have it.
//!
//! It adds to the [`TransactionCore`], which knows trees only, what tables need:
//!
//! * A table is *in use* from a transaction's first operation on it to the transaction's end, so
//!   that no DROP takes it away in between.
//! * It counts the rows that the transaction adds to each table, and operations for the status.
//! * It is reusable. A commit or rollback leaves a new transaction with the same options, so a
//!   session needs only one.

use super::{Counter, Db, Handle};
use crate::error::{Error, Result};
use crate::lock::{Interrupt, LockMode, SessionToken};
use crate::table::presence::ListedPresence;
use crate::table::{Table, WriteNote};
use crate::trx::activity::Phase;
use crate::trx::{Isolation, Savepoint as InnerSavepoint, TransactionCore, TransactionOptions};
use crate::versioned::{Insertion, ReadRequest};
use std::sync::Arc;
use std::time::Duration;
use tidepool_pool::{Lsn, statement};

/// A transaction adds its counters to those of all at its end, and each time one has come this
/// far.
const COUNTS_KEPT: u32 = 1000;

/// A position in a transaction to roll back to: [`Transaction::savepoint`].
#[derive(Debug, Clone, Copy)]
pub struct Savepoint {
    inner: InnerSavepoint,
    /// Number of the transaction's owner.
    owner: u64,
    /// How many tables were in use.
    tables: usize,
}

/// A row for [`Transaction::insert_row`].
#[derive(Debug, Clone, Copy)]
pub struct NewRow<'a> {
    /// Its key in the clustered index.
    pub key: &'a [u8],
    /// Its value there.
    pub value: &'a [u8],
    /// The lock that a row with this key gets, if there is one.
    pub on_duplicate: LockMode,
    /// The table's next auto-increment value once it is opened anew, at least. Until then the next
    /// value is what [`Table::expect_auto_increment`] says, which is for the caller to call.
    pub auto_increment: Option<u64>,
}

/// A table in use, how many rows the transaction has added to it so far, and how often it has begun
/// to write there.
pub(super) struct Used {
    /// As its presence knows it.
    table: Arc<Table>,
    rows: i64,
    writes: u64,
}

impl Used {
    /// The transaction is committed.
    pub(super) fn note_commit(&self) {
        self.table.add_rows(self.rows);
        if self.writes > 0 {
            self.table.note_change();
        }
    }

    pub(super) fn space_id(&self) -> u32 {
        self.table.space_id()
    }
}

/// What a read of one table gives is the same as long as this is: [`Transaction::reads_epoch`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReadsEpoch {
    /// Number of the transaction's owner.
    owner: u64,
    /// Of the transaction: statements, rollbacks, ends.
    trx: u64,
    /// Its own writes to the table.
    writes: u64,
}

/// One session's transaction: it may move between threads, but is used by one at a time.
///
/// An operation that fails leaves the transaction as it was before the operation, and it can go on,
/// with some exceptions: after [`Error::Deadlock`], [`Error::RecordChanged`] and
/// [`Error::TooManyLocks`], and after a failure that could not be undone, all that is left is
/// [`rollback`](Self::rollback); anything else is [`Error::MustRollback`]
/// ([`must_rollback`](Self::must_rollback)). A dropped `Transaction` rolls back; or, prepared, it
/// is detached.
pub struct Transaction {
    /// Before `used`: dropped, it rolls back, which needs the tables.
    core: TransactionCore,
    /// The same for every transaction of this handle.
    interrupt: Arc<Interrupt>,
    used: Vec<Used>,
    db: Arc<Handle>,
    /// Changes with what may change what a read of any table gives: statements, rollbacks, ends.
    reads_epoch: u64,
    lock_wait_timeout: Option<Duration>,
    /// Between `begin_statement` and `end_statement`.
    in_statement: bool,
    /// [`prepare`](Self::prepare) has succeeded.
    prepared: bool,
    /// Counted since it last added to the counters of all.
    counts: [u32; Counter::COUNT],
    options: TransactionOptions,
    /// After `core`: who rolls back is still there, and inside the tables.
    presence: ListedPresence,
}

/// What a prepared transaction without a session keeps until its verdict.
pub(super) struct Detached {
    pub used: Vec<Used>,
    /// Inside the tables that are used.
    _presence: ListedPresence,
}

impl Transaction {
    pub(super) fn new(db: Arc<Handle>, options: TransactionOptions) -> Self {
        let core = db.trx_system().begin(options);
        let interrupt = core.interrupt_handle();
        let (used, counts) = (Vec::new(), [0; Counter::COUNT]);
        let presence = db.presences.join();
        Self {
            db,
            core,
            interrupt,
            used,
            reads_epoch: 0,
            lock_wait_timeout: None,
            in_statement: false,
            prepared: false,
            counts,
            options,
            presence,
        }
    }

    /// Sets the number of the session for reports; 0 = none.
    pub fn set_session_number(&mut self, number: u64) {
        self.presence.activity().set_session_number(number);
    }

    /// Reports this transaction's lock waits, as waiter and as holder, to the observer
    /// ([`Db::set_wait_observer`]) under this token. The engine forgets the token before the
    /// transaction's end, or a [`detach`](Self::detach), returns.
    pub fn set_session_token(&mut self, session: SessionToken) {
        self.core.set_session_token(session);
    }

    /// Shows that the transaction has begun, unless that was shown.
    #[inline]
    fn tell_begin(&mut self) {
        if !self.presence.activity().has_begun() {
            self.presence.activity().begin(&self.core.owner, self.core.isolation());
        }
    }

    /// The transaction's id; 0 before its first write.
    pub fn id(&self) -> u64 {
        self.core.id().0
    }

    /// Its isolation level.
    pub fn isolation(&self) -> Isolation {
        self.core.isolation()
    }

    /// Changes the isolation level, also of transactions that this handle begins later.
    pub fn set_isolation(&mut self, isolation: Isolation) {
        self.reads_epoch += 1;
        self.options.isolation = isolation;
        self.core.set_isolation(isolation);
    }

    /// From here on (or no longer) operations are on behalf of a referential constraint: locking
    /// reads and writes are about what is there now, whatever the isolation level. They fail for no
    /// snapshot, and lock no gaps. Reads without a lock are as ever.
    pub fn set_referential(&mut self, on: bool) {
        self.core.set_referential(on);
    }

    /// From here on (or no longer) reads are those of a search: unlocked ones of an index, by which
    /// a statement finds rows, and locking ones of those rows, by their keys. The unlocked ones see
    /// what was committed when the statement began to read, at every isolation level, and make no
    /// snapshot. A row whose key has changed since, and which the statement so would miss, is
    /// [`Error::RecordChanged`]. Not at SERIALIZABLE.
    pub fn set_searching(&mut self, on: bool) {
        self.core.set_searching(on);
    }

    /// Whether searches of the statement see more than the transaction's snapshot, and may lock
    /// nothing that has changed since. What else the snapshot would have found has changed, too:
    /// to lock it says so.
    pub fn searches_beyond_snapshot(&self) -> bool {
        self.core.searches_beyond_snapshot()
    }

    /// Whether the newest locking read gave a version that may be newer than what searches of the
    /// statement see.
    #[inline]
    pub fn read_is_recent(&self) -> bool {
        self.core.gave_recent
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Whether there is anything to commit.
    pub fn has_writes(&self) -> bool {
        self.core.has_writes()
    }

    /// Whether an earlier error left nothing but a rollback.
    pub fn must_rollback(&self) -> bool {
        self.core.must_rollback()
    }

    /// A statement begins: at READ COMMITTED its reads see what is committed now. However often it
    /// uses a page, to the buffer pool that is one use. Calls outside a statement are each one of
    /// their own.
    pub fn begin_statement(&mut self) {
        self.reads_epoch += 1;
        self.in_statement = true;
        statement::begin();
        self.core.begin_statement();
    }

    /// The statement is over: at READ COMMITTED its view is given up.
    pub fn end_statement(&mut self) {
        self.reads_epoch += 1;
        self.in_statement = false;
        self.core.end_statement();
    }

    /// Takes the snapshot now, not at the first read. Cheap.
    pub fn ensure_view(&mut self) {
        self.tell_begin();
        self.core.ensure_view();
    }

    /// The present position. Costs nothing, and nothing needs to be given back.
    pub fn savepoint(&mut self) -> Savepoint {
        let owner = self.core.owner.number();
        Savepoint { inner: self.core.savepoint(), owner, tables: self.used.len() }
    }

    /// Whether anything was written after `savepoint` that has not been undone, or what was before
    /// it has been.
    pub fn has_written_since(&self, savepoint: &Savepoint) -> bool {
        self.core.has_written_since(savepoint.inner)
    }

    /// Undoes every write after `savepoint`. Locks stay, savepoints taken later are void. A
    /// transaction that [has only read](Self::has_only_read) lets go of the tables that it has used
    /// since. [`Error::InvalidOption`] if the savepoint is void, or of another transaction, be it
    /// an earlier one of this handle: nothing is undone.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        if savepoint.owner != self.core.owner.number() {
            return Err(Error::InvalidOption("a savepoint of another transaction".into()));
        }
        self.reads_epoch += 1;
        let added = self.core.rollback_to(savepoint.inner)?;
        if !added.is_empty() {
            for used in &mut self.used {
                let tree = used.table.tree(Table::CLUSTERED).tree().id();
                used.rows += added.get(&tree).copied().unwrap_or(0);
            }
        }
        if self.has_only_read() {
            self.leave_from(savepoint.tables);
        }
        Ok(())
    }

    /// Whether the transaction has written nothing so far, and holds no lock.
    pub fn has_only_read(&self) -> bool {
        self.core.has_only_read()
    }

    /// How long this session's operations wait for a lock.
    pub fn set_lock_wait_timeout(&mut self, timeout: Duration) {
        self.lock_wait_timeout = Some(timeout);
        self.core.set_lock_wait_timeout(timeout);
    }

    /// Ends this session's lock waits, and readings that find nothing for long, from another
    /// thread.
    pub fn interrupt_handle(&self) -> Arc<Interrupt> {
        self.interrupt.clone()
    }

    /// Listens to the interrupt of another session, which it works for. Before the first operation
    /// only.
    pub fn set_interrupt(&mut self, interrupt: Arc<Interrupt>) {
        self.core.set_interrupt(interrupt.clone());
        self.interrupt = interrupt;
    }

    /// Inserts an entry.
    ///
    /// [`Error::DuplicateKey`] if there is one with this key; it is then locked by this
    /// transaction, so that what it learns about it stays true. [`Error::TableBusy`], as of any
    /// write, while a change of the table's indexes takes no writes: at its end, and all the time
    /// if it only drops some.
    pub fn insert(
        &mut self,
        table: &Arc<Table>,
        index: usize,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        self.insert_or_lock(table, index, key, value, LockMode::Shared)
    }

    /// The same, with the lock that a duplicate gets: exclusive, if the caller will change it. Two
    /// that lock it shared first would each wait for the other.
    pub fn insert_or_lock(
        &mut self,
        table: &Arc<Table>,
        index: usize,
        key: &[u8],
        value: &[u8],
        duplicate: LockMode,
    ) -> Result<()> {
        let slot = self.begin_write(table, index, key)?;
        let inserted = table.tree(index).insert(&mut self.core, key, value, duplicate);
        self.unless_closed(inserted)?;
        if index == Table::CLUSTERED {
            self.count_row(slot, 1, Counter::RowsInserted);
        }
        Ok(())
    }

    /// Inserts an entry into the clustered index, and in the same mini-transaction makes it last
    /// that the table's auto-increment counter goes on behind it. A rollback does not take that
    /// back.
    pub fn insert_row(&mut self, table: &Arc<Table>, row: NewRow<'_>) -> Result<()> {
        let slot = self.begin_write(table, Table::CLUSTERED, row.key)?;
        let numbered = row.auto_increment.map(|next| (table.auto_increment_counter(), next));
        let insertion = Insertion { value: row.value, on_duplicate: row.on_duplicate, numbered };
        let tree = table.tree(Table::CLUSTERED);
        let inserted = tree.insert_numbered(&mut self.core, row.key, insertion);
        self.unless_closed(inserted)?;
        self.count_row(slot, 1, Counter::RowsInserted);
        Ok(())
    }

    /// Gives an entry a new value. [`Error::NotFound`] if there is none with this key.
    pub fn update(
        &mut self,
        table: &Arc<Table>,
        index: usize,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let slot = self.begin_write(table, index, key)?;
        let updated = table.tree(index).update(&mut self.core, key, value);
        self.unless_closed(updated)?;
        if index == Table::CLUSTERED {
            self.count_row(slot, 0, Counter::RowsUpdated);
        }
        Ok(())
    }

    /// Deletes an entry. [`Error::NotFound`] if there is none with this key.
    pub fn delete(&mut self, table: &Arc<Table>, index: usize, key: &[u8]) -> Result<()> {
        let slot = self.begin_write(table, index, key)?;
        let deleted = table.tree(index).delete(&mut self.core, key);
        self.unless_closed(deleted)?;
        if index == Table::CLUSTERED {
            self.count_row(slot, -1, Counter::RowsDeleted);
        }
        Ok(())
    }

    /// Deletes an entry whose row goes on under another key of the index, which the same
    /// transaction inserts as well: a change of the columns that the key is made of. A statement
    /// that reads the index with locks at the same time, and would miss the row at both places,
    /// ends with [`Error::RecordChanged`]. [`Error::NotFound`] if there is no entry with this key.
    pub fn move_away(&mut self, table: &Arc<Table>, index: usize, key: &[u8]) -> Result<()> {
        let slot = self.begin_write(table, index, key)?;
        let moved = table.tree(index).move_away(&mut self.core, key);
        self.unless_closed(moved)?;
        if index == Table::CLUSTERED {
            self.count_row(slot, -1, Counter::RowsDeleted);
        }
        Ok(())
    }

    /// Reads an entry of an index; false if there is none.
    pub fn read(
        &mut self,
        table: &Arc<Table>,
        index: usize,
        request: ReadRequest<'_>,
    ) -> Result<bool> {
        self.enter_call();
        let lock = self.effective_lock(request.lock);
        self.enlist_to_read(table, index, lock)?;
        let request = ReadRequest { lock, ..request };
        let found = table.tree(index).read(&mut self.core, request);
        let found = self.unless_closed(found)?;
        self.count(Counter::RowsRead, found.into());
        Ok(found)
    }

    /// Leaves the tables from this place in `used` on.
    fn leave_from(&mut self, first: usize) {
        if first < self.used.len() {
            self.presence.leave(self.used.drain(first..).map(|used| used.table));
            self.presence.activity().set_tables(self.used.len());
        }
    }

    /// Lets go of the tables that it has read, and keeps its snapshot.
    pub(super) fn leave_tables(&mut self) {
        debug_assert!(self.has_only_read());
        self.reads_epoch += 1;
        self.leave_from(0);
    }

    /// Reads an entry by the snapshot, without entering the table: who asks sees to it that the
    /// table stays.
    pub(super) fn read_in_change(
        &mut self,
        table: &Table,
        index: usize,
        request: ReadRequest<'_>,
    ) -> Result<bool> {
        self.enter_call();
        self.db.check_open()?;
        let found = table.tree(index).read(&mut self.core, request);
        self.unless_closed(found)
    }

    /// Gives up the lock that a locking read of this transaction took on an entry which it did not
    /// want after all. Locks of written entries stay, and so do all at REPEATABLE READ and above.
    pub fn unlock(&mut self, table: &Arc<Table>, index: usize, key: &[u8]) {
        if self.isolation().is_by_statement() && index < table.index_count() {
            table.tree(index).unlock(&mut self.core, key);
        }
    }

    /// Commits, durably according to `flush_log_at_trx_commit`; one that is prepared, durably
    /// whatever that says. The handle then is a new transaction.
    ///
    /// If the log cannot be made durable ([`Error::Crashed`]), the engine has stopped writing, and
    /// only a restart shows whether the transaction is committed.
    pub fn commit(&mut self) -> Result<()> {
        self.count(Counter::Commits, 1);
        self.presence.activity().set_phase(Phase::Committing);
        let was_prepared = self.prepared;
        let result = self.core.commit();
        self.renew(result.is_ok());
        if was_prepared && result.is_ok() {
            // Its coordinator forgets it at the answer: it must not be found prepared again.
            return self.db.flush();
        }
        result
    }

    /// Commits for all others to see, without waiting for the log: [`Db::flush_log`] with the LSN
    /// given back does.
    pub fn commit_no_flush(&mut self) -> Result<Lsn> {
        self.count(Counter::Commits, 1);
        self.presence.activity().set_phase(Phase::Committing);
        let result = self.core.commit_no_flush();
        self.renew(result.is_ok());
        result
    }

    /// Undoes everything. The handle then is a new transaction.
    pub fn rollback(&mut self) -> Result<()> {
        self.count(Counter::Rollbacks, 1);
        self.presence.activity().set_phase(Phase::RollingBack);
        let was_prepared = self.prepared;
        let result = self.core.rollback();
        self.renew(false);
        if was_prepared && result.is_ok() {
            // It must not be found prepared again.
            return self.db.flush();
        }
        result
    }

    /// Prepares under `xid` (1 to 140 bytes): durable on return, and nothing but
    /// [`commit`](Self::commit), [`rollback`](Self::rollback) or [`detach`](Self::detach) can come
    /// next.
    pub fn prepare(&mut self, xid: &[u8]) -> Result<()> {
        self.core.prepare(xid)?;
        self.presence.activity().set_phase(Phase::Prepared);
        self.prepared = true;
        Ok(())
    }

    /// Leaves a prepared transaction to the thread that completes it with [`Db::commit_prepared`]
    /// or [`Db::rollback_prepared`]. The handle then is a new transaction.
    pub fn detach(&mut self) {
        if !self.prepared {
            return;
        }
        // From here on it may be completed by anyone, so what it uses is kept before.
        self.keep_used_if_prepared();
        self.core.detach();
        self.renew(false);
    }

    /// Keeps what a prepared transaction uses until its verdict, which this handle will not see.
    /// Not even a commit that failed is one.
    fn keep_used_if_prepared(&mut self) {
        if self.core.is_prepared() && std::mem::take(&mut self.prepared) {
            let next = self.presence.another();
            next.activity().set_session_number(self.presence.activity().session_number());
            let presence = std::mem::replace(&mut self.presence, next);
            presence.activity().end();
            let detached = Detached { used: std::mem::take(&mut self.used), _presence: presence };
            self.db.keep_detached(self.core.owner.number(), detached);
        }
    }

    /// After the end: the tables are free, and the next transaction begins.
    fn renew(&mut self, committed: bool) {
        self.keep_used_if_prepared();
        self.reads_epoch += 1;
        self.tell_counts();
        self.prepared = false;
        // One that could not commit is rolled back here, and needs its tables for that.
        self.core.finish();
        self.presence.activity().end();
        self.core.renew(self.options, &self.interrupt);
        if committed {
            self.used.iter().for_each(Used::note_commit);
        }
        self.leave_from(0);
        if let Some(timeout) = self.lock_wait_timeout {
            self.core.set_lock_wait_timeout(timeout);
        }
    }

    /// A call that is a statement by itself, unless it is part of one.
    pub(crate) fn enter_call(&mut self) {
        if !self.in_statement {
            statement::begin();
            self.core.begin_call();
        }
    }

    pub(super) fn begin_write(
        &mut self,
        table: &Arc<Table>,
        index: usize,
        key: &[u8],
    ) -> Result<usize> {
        self.enter_call();
        if self.options.read_only {
            return Err(Error::ReadOnly("the transaction".into()));
        }
        self.db.check_writable()?;
        table.check_has_index(index)?;
        let entered = self.used.len();
        let slot = self.enlist(table)?;
        // Who closes the table for writes, or has them logged, has found it empty before. Who is
        // refused, and has not used it before, must not keep it from being closed.
        let note = table.check_takes_writes().inspect_err(|_| self.leave_from(entered))?;
        self.used[slot].writes += 1;
        table.unsettle_rows()?;
        if note == WriteNote::Needed && index == Table::CLUSTERED {
            self.core.begin_write()?;
            table.note_write(self.core.id(), key);
        }
        Ok(slot)
    }

    /// Notes that the transaction uses `table`; gives its place in `used`.
    pub(crate) fn enlist(&mut self, table: &Arc<Table>) -> Result<usize> {
        if let Some(slot) = self.used.iter().position(|used| Arc::ptr_eq(&used.table, table)) {
            return Ok(slot);
        }
        if !table.is_of(&self.db.env) {
            return Err(Error::InvalidOption(format!(
                "table {} is of another database than the transaction",
                table.name()
            )));
        }
        self.used.push(Used { table: self.presence.enter(table)?, rows: 0, writes: 0 });
        self.tell_begin();
        self.presence.activity().set_tables(self.used.len());
        Ok(self.used.len() - 1)
    }

    /// The same, of a read. One without a lock is of the snapshot, which would find the table empty
    /// if it is older than that. One with a lock must miss no row that has changed since the
    /// snapshot; a table or an index younger than that does not tell of those that were deleted
    /// before.
    pub(crate) fn enlist_to_read(
        &mut self,
        table: &Arc<Table>,
        index: usize,
        lock: LockMode,
    ) -> Result<usize> {
        self.db.check_open()?;
        table.check_has_index(index)?;
        let slot = self.enlist(table)?;
        if let Some(snapshot) = self.core.snapshot()
            && !self.core.is_referential()
        {
            let reads_snapshot = lock == LockMode::None && !self.core.is_searching();
            if reads_snapshot || self.core.refuses_changed() {
                table.check_snapshot(index, snapshot)?;
            }
        }
        Ok(slot)
    }

    /// See [`Inner::unless_closed`](super::Inner::unless_closed).
    #[inline]
    pub(super) fn unless_closed<T>(&self, outcome: Result<T>) -> Result<T> {
        self.db.unless_closed(outcome)
    }

    /// A read without a lock locks after all at SERIALIZABLE.
    pub(crate) fn effective_lock(&self, lock: LockMode) -> LockMode {
        match (lock, self.isolation()) {
            (LockMode::None, Isolation::Serializable) => LockMode::Shared,
            _ => lock,
        }
    }

    /// What reads of a table give is the same as long as this is. `slot`: the table's, of
    /// [`enlist_to_read`](Self::enlist_to_read); one of an earlier transaction has another epoch,
    /// whatever is there now.
    #[inline]
    pub(crate) fn reads_epoch(&self, slot: usize) -> ReadsEpoch {
        let writes = self.used.get(slot).map_or(0, |used| used.writes);
        ReadsEpoch { owner: self.core.owner.number(), trx: self.reads_epoch, writes }
    }

    pub(crate) fn core(&mut self) -> &mut TransactionCore {
        &mut self.core
    }

    /// Counts here: the counters of all want the thread's place in them looked up.
    #[inline]
    pub(crate) fn count(&mut self, counter: Counter, n: u32) {
        let count = &mut self.counts[counter as usize];
        *count += n;
        if *count >= COUNTS_KEPT {
            self.tell_counts();
        }
    }

    /// Adds its counters to those of all.
    #[cold]
    fn tell_counts(&mut self) {
        for (counter, _) in Counter::ALL {
            let count = std::mem::take(&mut self.counts[counter as usize]);
            if count > 0 {
                self.db.count(counter, count.into());
            }
        }
    }

    pub(super) fn count_row(&mut self, slot: usize, rows: i64, counter: Counter) {
        self.used[slot].rows += rows;
        self.count(counter, 1);
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.keep_used_if_prepared();
    }
}

impl Db {
    /// Begins a transaction. Nothing is allocated for it before its first write.
    pub fn begin(&self, options: TransactionOptions) -> Transaction {
        Transaction::new(self.inner.clone(), options)
    }
}
