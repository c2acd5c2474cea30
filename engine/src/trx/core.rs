//! One transaction's life: views, savepoints, prepare, commit, rollback.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidepool_pool::Lsn;

use super::retry::RetryState;
use super::rollback::EntriesAdded;
use super::savepoint::{Rollbacks, void_savepoint};
use super::system::{Orphan, TrxSystem};
use super::view::{ReadView, ViewSlot};
use super::{Isolation, TransactionOptions};
use crate::btree::LeafHint;
use crate::csn::{Csn, TrxId};
use crate::error::{Error, Result};
use crate::format::entry::Entry;
use crate::lock::fresh::FreshLocks;
use crate::lock::owner::Named;
use crate::lock::reach::Reach;
use crate::lock::{Interrupt, Owner, SessionToken};
use crate::undo::log::{UndoLog, UndoPosition};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Prepared,
    Ended,
}

/// A point to roll back to. Void once an earlier one has been rolled back to.
#[derive(Debug, Clone, Copy)]
pub struct Savepoint {
    position: UndoPosition,
    /// Rollbacks before it was taken.
    rollbacks: u64,
}

/// Numbers of owners that a session takes at a time, so that sessions seldom meet there.
const OWNER_NUMBERS: u64 = 64;
/// Memory for payloads that a session keeps from one transaction to the next.
const PAYLOAD_KEPT_BYTES: usize = 64 << 10;

/// One transaction: used by one thread at a time, though not always the same one. Dropped while it
/// runs, it rolls back. A session makes its next transaction of it ([`TransactionCore::renew`]),
/// which then writes to no memory that other sessions write to.
pub struct TransactionCore {
    pub(crate) system: Arc<TrxSystem>,
    pub(crate) owner: Arc<Owner>,
    /// For the owners of the session's next transactions.
    owner_numbers: Range<u64>,
    /// While the owner's session has a name.
    named: Option<Named>,
    /// Claimed until this is dropped.
    slot: ViewSlot,
    view: Option<ReadView>,
    /// Open since before the statement's locking reads left anything unlocked:
    /// [`TransactionCore::open_read_point`].
    read_point: Option<ReadView>,
    /// Of a statement whose read point is an older snapshot: [`TransactionCore::search_view`].
    search_view: Option<ReadView>,
    /// See [`TransactionCore::set_searching`].
    searching: bool,
    /// Whether what the newest locking read gave was committed after the read point.
    pub(crate) gave_recent: bool,
    pub(crate) reach: Reach,
    pub(crate) log: Option<UndoLog>,
    /// The undo stream that the session's last log was in.
    stream: Option<u32>,
    rollbacks: Rollbacks,
    isolation: Isolation,
    read_only: bool,
    must_rollback: bool,
    /// See [`TransactionCore::set_referential`].
    referential: bool,
    state: State,
    xid: Vec<u8>,
    pub(crate) lock_wait_timeout: Duration,
    /// What `unlock` may give up.
    pub(crate) fresh_locks: FreshLocks,
    /// Where the newest locking read found its entry: what comes next is likely to be about that
    /// entry, or one beside it.
    pub(crate) near: Option<LeafHint>,
    /// Memory for payloads, reused.
    pub(crate) payload: Vec<u8>,
}

impl TransactionCore {
    pub(super) fn new(
        system: Arc<TrxSystem>,
        options: TransactionOptions,
        interrupt: Arc<Interrupt>,
    ) -> Self {
        let owner = system.new_owner(interrupt);
        let slot = system.views.claim();
        let lock_wait_timeout = system.lock_wait_timeout();
        TransactionCore {
            system,
            owner,
            owner_numbers: 0..0,
            named: None,
            slot,
            view: None,
            read_point: None,
            search_view: None,
            searching: false,
            gave_recent: false,
            reach: Reach::default(),
            log: None,
            stream: None,
            rollbacks: Rollbacks::default(),
            isolation: options.isolation,
            read_only: options.read_only,
            must_rollback: false,
            referential: false,
            state: State::Running,
            xid: Vec::new(),
            lock_wait_timeout,
            fresh_locks: FreshLocks::default(),
            near: None,
            payload: Vec::new(),
        }
    }

    /// Makes a new transaction of one that [has ended](Self::finish). It keeps the place in the
    /// registry of views, will look for the undo stream that it had, and keeps the owner unless
    /// another thread still knows it.
    pub(crate) fn renew(&mut self, options: TransactionOptions, interrupt: &Arc<Interrupt>) {
        assert!(self.state == State::Ended && self.log.is_none() && self.named.is_none());
        debug_assert!(self.view.is_none() && self.read_point.is_none());
        debug_assert!(self.search_view.is_none());
        let number = self.owner_numbers.next().unwrap_or_else(|| {
            self.owner_numbers = self.system.owner_numbers(OWNER_NUMBERS);
            self.owner_numbers.next().expect("numbers were taken")
        });
        match Arc::get_mut(&mut self.owner) {
            Some(owner) => owner.renew(number, interrupt),
            None => self.owner = Owner::new(number, Arc::clone(interrupt)),
        }
        self.searching = false;
        self.gave_recent = false;
        self.reach = Reach::default();
        self.rollbacks = Rollbacks::default();
        self.isolation = options.isolation;
        self.read_only = options.read_only;
        self.must_rollback = false;
        self.referential = false;
        self.state = State::Running;
        self.xid.clear();
        self.lock_wait_timeout = self.system.lock_wait_timeout();
        self.fresh_locks.clear();
        self.near = None;
        if self.payload.capacity() > PAYLOAD_KEPT_BYTES {
            self.payload = Vec::new();
        }
    }

    /// The id; 0 before the first write.
    pub fn id(&self) -> TrxId {
        self.owner.trx_id()
    }

    /// Isolation level.
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Changes the isolation level.
    pub fn set_isolation(&mut self, isolation: Isolation) {
        self.isolation = isolation;
    }

    /// How long to wait for a lock.
    pub fn set_lock_wait_timeout(&mut self, timeout: Duration) {
        self.lock_wait_timeout = timeout;
    }

    /// Interrupts lock waits, and readings that find nothing for long, from another thread. It
    /// lives as long as this transaction.
    pub fn interrupt_handle(&self) -> Arc<Interrupt> {
        Arc::clone(self.owner.interrupt())
    }

    /// Makes lock waits listen to a session's interrupt, which outlives its transactions. Before
    /// the first operation only.
    pub fn set_interrupt(&mut self, interrupt: Arc<Interrupt>) {
        debug_assert!(self.owner.key_locks() == 0 && self.id() == TrxId::NONE);
        debug_assert!(self.named.is_none());
        self.owner = self.system.new_owner(interrupt);
    }

    /// Names the session to the observer of waits, until the transaction ends or is detached.
    pub fn set_session_token(&mut self, session: SessionToken) {
        // An older name goes first: dropped after, it would take the new one with it.
        self.named = None;
        self.named = Some(self.owner.name_session(session));
    }

    /// Whether there is anything to commit.
    pub fn has_writes(&self) -> bool {
        self.log.as_ref().is_some_and(UndoLog::is_begun)
    }

    /// Undo records: a measure of what a rollback costs.
    pub fn undo_records(&self) -> u64 {
        self.log.as_ref().map_or(0, UndoLog::records)
    }

    /// Whether an earlier error left nothing but a rollback.
    pub fn must_rollback(&self) -> bool {
        self.must_rollback
    }

    /// Whether it is prepared.
    pub fn is_prepared(&self) -> bool {
        self.state == State::Prepared
    }

    /// A statement begins. At READ COMMITTED, its consistent reads see what is committed now.
    pub fn begin_statement(&mut self) {
        self.close_reads();
    }

    /// The statement is over.
    pub fn end_statement(&mut self) {
        self.close_reads();
    }

    /// A call outside of statements. At READ COMMITTED it is a statement by itself. Above, all such
    /// calls of a transaction are one.
    pub(crate) fn begin_call(&mut self) {
        if self.isolation.is_by_statement() {
            self.close_reads();
        }
    }

    /// Takes the snapshot now.
    pub fn ensure_view(&mut self) {
        self.consistent_view();
    }

    /// The view of consistent reads, opened if there is none; that of searches, while one goes on.
    /// At READ UNCOMMITTED one is open for purge's sake, and what is read by is one that sees
    /// everything.
    pub(crate) fn read_view(&mut self) -> ReadView {
        if self.searching {
            return self.search_view();
        }
        let view = self.consistent_view();
        if self.isolation == Isolation::ReadUncommitted { ReadView::EVERYTHING } else { view }
    }

    fn consistent_view(&mut self) -> ReadView {
        if let Some(view) = self.view {
            return view;
        }
        let (views, csn) = (&self.system.views, &self.system.csn);
        let view = match self.read_point {
            None => views.open(self.slot, csn),
            // What locking reads have locked since then is not newer than what consistent reads
            // see.
            Some(_) => views.open_beside(self.slot, csn),
        };
        self.view = Some(view);
        view
    }

    /// Up to where commits are visible, if there is a snapshot for the whole transaction.
    pub(crate) fn snapshot(&self) -> Option<Csn> {
        let view = self.view.filter(|_| self.isolation == Isolation::RepeatableRead);
        view.map(|view| view.csn)
    }

    /// Makes sure of a view that is older than anything that the statement reads and leaves
    /// unlocked from here on. Where there is one for consistent reads, that is it, unless it is a
    /// snapshot and what has changed since may be locked. At REPEATABLE READ it is else no
    /// snapshot.
    pub(crate) fn open_read_point(&mut self) {
        if self.read_point.is_some() {
            return;
        }
        let is_by_statement = self.isolation.is_by_statement();
        let (views, csn) = (&self.system.views, &self.system.csn);
        self.read_point = Some(match self.view {
            Some(view) if is_by_statement || self.refuses_changed() => view,
            Some(_) => views.open_beside(self.slot, csn),
            None if is_by_statement => self.consistent_view(),
            None => views.open(self.slot, csn),
        });
    }

    /// From here on (or no longer) reads are those of a search: an index is read without locks, to
    /// find rows that the statement then locks by their keys.
    ///
    /// - What is read without a lock is what was committed by a view of the statement, at every
    ///   isolation level: the read point, or a newer one if that is a snapshot.
    /// - A row that is locked by its key is one that the search has found. If it has moved since,
    ///   its new place is behind the search, which has read by that view: the row would be missed
    ///   ([`crate::versioned`]).
    pub fn set_searching(&mut self, on: bool) {
        self.searching = on;
    }

    /// Whether they are.
    pub(crate) fn is_searching(&self) -> bool {
        self.searching
    }

    /// The view that searches of the statement read by. A row that it does not see began to match
    /// later. Where the read point is an older snapshot, what has changed since may not be locked;
    /// so the search must see it.
    fn search_view(&mut self) -> ReadView {
        self.open_read_point();
        let read_point = self.read_point.expect("it is open");
        let is_snapshot =
            self.isolation == Isolation::RepeatableRead && self.view == self.read_point;
        match self.search_view {
            Some(view) => view,
            None if is_snapshot => {
                let view = self.system.views.open_beside(self.slot, &self.system.csn);
                self.search_view = Some(view);
                view
            }
            None => read_point,
        }
    }

    /// Whether searches of the statement have read by a view that sees more than the transaction's
    /// snapshot, while what the snapshot does not see may not be locked. Then what the snapshot has
    /// in addition to what they found has gone since, and may not be locked either.
    pub fn searches_beyond_snapshot(&self) -> bool {
        let is_newer = |view: ReadView| self.view.is_some_and(|snapshot| snapshot.csn < view.csn);
        self.search_view.is_some_and(is_newer)
    }

    /// The read point, if it is open.
    #[inline]
    pub(crate) fn read_point(&self) -> Option<&ReadView> {
        self.read_point.as_ref()
    }

    /// Ends what is of one statement.
    fn close_reads(&mut self) {
        if self.isolation.is_by_statement() {
            self.close_view();
        } else if self.read_point.take().is_some() {
            self.search_view = None;
            self.reach.clear();
            match self.view {
                Some(view) => self.system.views.keep_only(self.slot, view),
                None => self.system.views.close(self.slot),
            }
        }
    }

    fn close_view(&mut self) {
        let read_point = self.read_point.take().is_some();
        if read_point {
            self.search_view = None;
            self.reach.clear();
        }
        if self.view.take().is_some() || read_point {
            self.system.views.close(self.slot);
        }
    }

    /// From here on (or no longer) operations are on behalf of a referential constraint. They are
    /// about what is there now, whatever the isolation level: a locking read and a write pass over
    /// the snapshot, and a locking read locks entries and no gaps.
    pub fn set_referential(&mut self, on: bool) {
        self.referential = on;
    }

    /// Whether they are.
    pub(crate) fn is_referential(&self) -> bool {
        self.referential
    }

    /// Whether locking or overwriting a version by `id` would lose an update: this transaction's
    /// snapshot does not see it.
    pub(crate) fn conflicts_with_view(&self, id: TrxId) -> bool {
        self.isolation == Isolation::RepeatableRead
            && !self.referential
            && id != self.id()
            && self.view.is_some_and(|view| !view.sees(&self.system.csn, id))
            && self.refuses_changed()
    }

    /// Whether what has changed since the snapshot may not be locked or overwritten.
    pub(crate) fn refuses_changed(&self) -> bool {
        self.system.settings.lost_update_check.load(Ordering::Relaxed)
    }

    /// An error if no operation is possible.
    pub(crate) fn check_running(&self) -> Result<()> {
        match self.state {
            _ if self.must_rollback => Err(Error::MustRollback),
            State::Running => Ok(()),
            State::Prepared => Err(Error::ReadOnly("the transaction is prepared".into())),
            State::Ended => Err(Error::ReadOnly("the transaction has ended".into())),
        }
    }

    /// [`Error::Interrupted`] if an interrupt is pending. For reads that may go on for long without
    /// finding anything.
    pub(crate) fn check_interrupt(&self) -> Result<()> {
        if self.owner.interrupt().is_set() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Notes an error that leaves nothing but a rollback, and passes it on.
    pub(crate) fn note(&mut self, error: Error) -> Error {
        if matches!(error, Error::Deadlock | Error::RecordChanged | Error::TooManyLocks(_)) {
            self.must_rollback = true;
        }
        error
    }

    /// Gets ready to write: an id and an undo log.
    pub(crate) fn begin_write(&mut self) -> Result<()> {
        self.check_running()?;
        if self.log.is_some() {
            return Ok(());
        }
        if self.read_only {
            return Err(Error::ReadOnly("the transaction was begun read-only".into()));
        }
        self.system.env.check_writable()?;
        self.system.delay_for_purge();
        // The stream first: an id must not be left without a log, for the log's end is the id's
        // end.
        let mut log = UndoLog::new(&self.system.undo, self.stream)?;
        self.stream = Some(log.stream());
        assert!(self.id() == TrxId::NONE, "a transaction without a log has no id");
        match self.system.assign_id(&self.owner) {
            Ok(id) => {
                log.set_trx_id(id);
                self.log = Some(log);
                Ok(())
            }
            Err(error) => {
                log.abandon(&self.system.undo);
                Err(error)
            }
        }
    }

    /// The present position.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint { position: self.position(), rollbacks: self.rollbacks.count() }
    }

    /// Whether anything was written after `savepoint` that has not been undone, or what was before
    /// it has been.
    pub fn has_written_since(&self, savepoint: Savepoint) -> bool {
        let Savepoint { position, rollbacks } = savepoint;
        self.position() != position || self.rollbacks.have_voided(position.records(), rollbacks)
    }

    pub(crate) fn position(&self) -> UndoPosition {
        self.log.as_ref().map_or(UndoPosition::START, UndoLog::position)
    }

    /// What it adds to each tree: entries, less those deleted. Reads its whole undo log.
    pub(crate) fn entries_added(&self) -> Result<EntriesAdded> {
        self.log
            .as_ref()
            .map_or(Ok(EntriesAdded::default()), |log| log.entries_added(&self.system.undo))
    }

    /// Whether it has written nothing, and holds no lock: what it has read is of its snapshot.
    pub fn has_only_read(&self) -> bool {
        self.log.is_none() && self.owner.holds_nothing()
    }

    /// Undoes everything after `savepoint`; gives what that adds to each tree. Locks stay. If that
    /// fails, and not only for a moment, the transaction can only be rolled back.
    /// [`Error::InvalidOption`] if the savepoint is void: nothing is undone.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<EntriesAdded> {
        if self.state != State::Running {
            self.check_running()?;
        }
        let Savepoint { position, rollbacks } = savepoint;
        if self.rollbacks.have_voided(position.records(), rollbacks) {
            return Err(void_savepoint());
        }
        self.undo_to(position)
    }

    pub(crate) fn undo_to(&mut self, position: UndoPosition) -> Result<EntriesAdded> {
        let Some(log) = &mut self.log else { return Ok(EntriesAdded::default()) };
        if log.records() > position.records() {
            debug_assert!(self.state == State::Running, "a prepared log keeps its records");
            self.rollbacks.add(position.records());
        }
        let outcome = self.system.roll_back_to(log, position, Some(&self.owner));
        self.owner.version_cache.forget();
        self.owner.set_undo_records(log.records());
        if outcome.is_err() {
            self.must_rollback = true;
        }
        outcome
    }

    /// Prepares under `xid`, durably. Then only commit, rollback or detach can follow.
    /// [`Error::XidExists`] if another transaction is prepared under it: a verdict must be about
    /// one.
    pub fn prepare(&mut self, xid: &[u8]) -> Result<()> {
        if xid.is_empty() || xid.len() > 140 {
            return Err(Error::InvalidOption(format!("XID of {} bytes (1 to 140)", xid.len())));
        }
        self.begin_write()?;
        debug_assert!(self.xid.is_empty(), "a transaction has one XID");
        if !self.system.xids.lock().insert(xid.to_vec()) {
            return Err(Error::XidExists(xid.escape_ascii().to_string()));
        }
        let log = self.log.as_mut().expect("writing");
        let lsn = log.prepare(&self.system.undo, xid).inspect_err(|_| {
            self.system.xids.lock().remove(xid);
        })?;
        self.state = State::Prepared;
        self.xid = xid.to_vec();
        self.close_view();
        self.system.env.redo().flush_to(lsn)
    }

    /// Commits, and waits for the log as `flush_log_at_trx_commit` says.
    pub fn commit(&mut self) -> Result<()> {
        let lsn = self.commit_no_flush()?;
        if lsn == Lsn::ZERO { Ok(()) } else { self.system.flush_commit(lsn) }
    }

    /// Commits: visible to all at once, durable once the log is flushed up to the LSN given back
    /// (zero: nothing to flush).
    ///
    /// An error means that nothing was committed; roll back.
    pub fn commit_no_flush(&mut self) -> Result<Lsn> {
        if self.state != State::Prepared {
            self.check_running()?;
        }
        let mut lsn = Lsn::ZERO;
        if let Some(log) = &mut self.log {
            if log.is_begun() {
                lsn = log.commit(&self.system.undo, &self.system.csn)?;
            } else {
                log.abandon(&self.system.undo);
                self.system.csn.rolled_back(self.owner.trx_id());
            }
            self.log = None;
        }
        self.end();
        self.system.counters.count_commit();
        self.system.wake_purge();
        Ok(lsn)
    }

    /// Undoes everything. If that cannot be finished soon (a full disk, an unreadable page), the
    /// background goes on; until then what was written stays locked. The transaction has ended
    /// either way.
    pub fn rollback(&mut self) -> Result<()> {
        if self.state == State::Ended {
            return Ok(());
        }
        self.system.counters.count_rollback();
        let mut outcome = Ok(());
        if let Some(mut log) = self.log.take() {
            let finished = self.system.roll_back(&mut log);
            if let Err(error) = finished {
                let xid = std::mem::take(&mut self.xid);
                // Its locks outlive the session.
                self.named = None;
                let mut retries = RetryState::default();
                retries.failed(Instant::now(), self.system.retry_pause());
                let owner = Arc::clone(&self.owner);
                self.system.doom(Orphan { log, owner, xid, retries });
                self.state = State::Ended;
                self.close_view();
                outcome = Err(error);
            }
        }
        if self.state != State::Ended {
            self.end();
        }
        outcome
    }

    /// Leaves a prepared transaction to [`TrxSystem::take_prepared`]. For this value it has ended.
    pub fn detach(&mut self) {
        assert_eq!(self.state, State::Prepared, "only a prepared transaction can be detached");
        let log = self.log.take().expect("a prepared transaction has a log");
        let xid = std::mem::take(&mut self.xid);
        // Its locks outlive the session.
        self.named = None;
        let owner = Arc::clone(&self.owner);
        let orphan = Orphan { log, owner, xid: xid.clone(), retries: RetryState::default() };
        self.system.prepared.lock().insert(xid, orphan);
        self.state = State::Ended;
        self.close_view();
    }

    /// A prepared transaction found by recovery, or detached.
    pub(super) fn adopt(system: Arc<TrxSystem>, orphan: Orphan) -> TransactionCore {
        let interrupt = Arc::clone(orphan.owner.interrupt());
        assert!(!orphan.xid.is_empty(), "a prepared transaction has an XID");
        let mut trx = TransactionCore::new(system, TransactionOptions::default(), interrupt);
        trx.owner = orphan.owner;
        trx.log = Some(orphan.log);
        trx.state = State::Prepared;
        trx.xid = orphan.xid;
        trx
    }

    /// After the outcome is published.
    fn end(&mut self) {
        assert!(self.log.is_none(), "a transaction ends when its log has");
        self.state = State::Ended;
        self.named = None;
        self.close_view();
        self.system.forget_xid(&self.xid);
        self.system.leave(&self.owner);
    }
}

/// What the transaction is to the entries that its operations meet.
impl TransactionCore {
    /// Whether this transaction wrote an entry. (One that has not written yet has the id that
    /// settled entries are by.)
    pub(crate) fn wrote(&self, entry: &Entry<'_>) -> bool {
        entry.trx_id == self.id() && entry.trx_id != TrxId::NONE
    }

    /// Whether an entry carries the implicit lock of another transaction.
    pub(crate) fn is_written_by_other(&self, entry: &Entry<'_>) -> bool {
        entry.trx_id != self.id() && self.system.csn.is_active(entry.trx_id)
    }

    /// The owner whose implicit lock an entry carries, if that is another transaction and still
    /// active.
    pub(crate) fn implicit_holder(&self, entry: &Entry<'_>) -> Option<Option<Arc<Owner>>> {
        self.is_written_by_other(entry).then(|| self.system.owner_of(entry.trx_id))
    }

    pub(crate) fn locks_gaps(&self) -> bool {
        self.isolation() == Isolation::Serializable && !self.is_referential()
    }

    /// Whether a version that is certain was committed by another transaction after the read point
    /// of the statement.
    #[inline]
    pub(crate) fn is_newer_than_statement(&self, writer: TrxId) -> bool {
        self.read_point()
            .is_some_and(|point| writer != self.id() && !point.sees(&self.system.csn, writer))
    }

    /// A locking read leaves out an entry that another has locked.
    pub(crate) fn leave_out(&mut self, entry: &Entry<'_>) {
        self.open_read_point();
        if self.is_written_by_other(entry) {
            self.reach.leave_out(entry.trx_id);
        }
    }

    /// Reports the number of undo records, by which a deadlock's victim is chosen.
    pub(crate) fn count_undo(&self) {
        self.owner.set_undo_records(self.undo_records());
    }
}

impl TransactionCore {
    /// Ends what still runs: it is rolled back, or, prepared, detached.
    pub(crate) fn finish(&mut self) {
        match self.state {
            State::Ended => {}
            State::Prepared => self.detach(),
            State::Running => {
                // After a close the next opening rolls it back.
                if let Err(error) = self.rollback()
                    && error != Error::Closed
                {
                    tracing::warn!(%error, "a rollback goes on in the background");
                }
            }
        }
    }
}

impl Drop for TransactionCore {
    fn drop(&mut self) {
        self.finish();
        self.system.views.release(self.slot);
    }
}
