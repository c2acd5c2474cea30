// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Transactions and writes.
//!
//! A `tp_transaction` is a [`ServerTransaction`]: the one [`Transaction`] that a connection uses
//! again and again, and the value of the entry that the last duplicate key error was about.

use std::ffi::{c_char, c_int};
use std::mem::{align_of, size_of};
use std::sync::Arc;
use std::time::Duration;

use tidepool::{
    Db, Error, Interrupt, Isolation, NewRow, Savepoint, SessionToken, Table, Transaction,
    TransactionOptions, WaitObserver,
};

use crate::boundary::{Bytes, TP_DUPLICATE, TP_OK, bytes, guard, guard_or};
use crate::constants::{TP_READ_COMMITTED, TP_READ_UNCOMMITTED, TP_SERIALIZABLE};
use crate::reader::lock_mode;

/// A connection's transaction, as the server uses it.
pub struct ServerTransaction {
    pub(crate) inner: Transaction,
    interrupt: Arc<Interrupt>,
    duplicate: Vec<u8>,
}

impl ServerTransaction {
    /// Whether another thread wants its statement to end.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.is_set()
    }
}

/// Room for a [`Savepoint`] on the other side.
#[repr(C)]
pub struct OpaqueSavepoint([u64; 5]);

const _: () = assert!(size_of::<Savepoint>() <= size_of::<OpaqueSavepoint>());
const _: () = assert!(align_of::<Savepoint>() <= align_of::<OpaqueSavepoint>());

/// # Safety
/// `place` is valid to write to.
unsafe fn store_savepoint(place: *mut OpaqueSavepoint, savepoint: Savepoint) {
    // SAFETY: it fits and is aligned, as asserted above.
    unsafe { place.cast::<Savepoint>().write(savepoint) };
}

/// Makes the transaction object of a session, which begins none yet.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_transaction_new(
    db: *const Db,
    transaction: *mut *mut ServerTransaction,
) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        let inner = unsafe { &*db }.begin(TransactionOptions::default());
        let interrupt = inner.interrupt_handle();
        let made = Box::new(ServerTransaction { inner, interrupt, duplicate: Vec::new() });
        // SAFETY: a valid place to store to.
        unsafe { *transaction = Box::into_raw(made) };
        Ok(TP_OK)
    })
}

/// Ends a transaction; what is unfinished is rolled back.
///
/// # Safety
/// `transaction` came from [`tp_transaction_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_transaction_free(transaction: *mut ServerTransaction) {
    guard_or((), || {
        // SAFETY: made by Box::into_raw in tp_transaction_new, given back once.
        drop(unsafe { Box::from_raw(transaction) });
    });
}

/// Runs `body` with the transaction.
///
/// # Safety
/// `transaction` is valid and used by no other thread now.
unsafe fn with(
    transaction: *mut ServerTransaction,
    body: impl FnOnce(&mut ServerTransaction) -> Result<(), Error>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        body(unsafe { &mut *transaction })?;
        Ok(TP_OK)
    })
}

/// Before the first statement of a transaction.
///
/// # Safety
/// A valid transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_transaction_begin(
    transaction: *mut ServerTransaction,
    isolation: c_int,
) -> c_int {
    // SAFETY: a valid transaction from the shim.
    unsafe {
        with(transaction, |transaction| {
            transaction.inner.set_isolation(match isolation {
                TP_READ_UNCOMMITTED => Isolation::ReadUncommitted,
                TP_READ_COMMITTED => Isolation::ReadCommitted,
                TP_SERIALIZABLE => Isolation::Serializable,
                _ => Isolation::RepeatableRead,
            });
            Ok(())
        })
    }
}

/// The shim's functions; see bridge.h. The names of sessions are addresses of the server's
/// connections, never looked into here.
struct ServerObserver {
    waits_for: extern "C" fn(usize, usize) -> c_int,
    statement_of: extern "C" fn(u64, *mut c_char, usize) -> usize,
}

/// Bytes of a statement that the report of a deadlock keeps.
const STATEMENT_MAX: usize = 1024;

impl WaitObserver for ServerObserver {
    fn waits_for(&self, waiter: SessionToken, holder: Option<SessionToken>) -> bool {
        (self.waits_for)(waiter.0, holder.map_or(0, |holder| holder.0)) != 0
    }

    fn statement_of(&self, session: u64) -> Option<String> {
        let mut text = [0u8; STATEMENT_MAX];
        let len = (self.statement_of)(session, text.as_mut_ptr().cast(), text.len());
        let text = &text[..len.min(STATEMENT_MAX)];
        (len > 0).then(|| String::from_utf8_lossy(text).into_owned())
    }
}

/// Sets the observer of waits between transactions.
///
/// # Safety
/// An open data directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_set_wait_observer(
    db: *const Db,
    waits_for: extern "C" fn(usize, usize) -> c_int,
    statement_of: extern "C" fn(u64, *mut c_char, usize) -> usize,
) {
    guard_or((), || {
        let observer = ServerObserver { waits_for, statement_of };
        // SAFETY: an open data directory from the shim.
        unsafe { &*db }.set_wait_observer(Box::new(observer));
    });
}

/// Reports the present transaction's lock waits, and those of others for it, under this token.
///
/// # Safety
/// A valid transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_transaction_set_session_token(
    transaction: *mut ServerTransaction,
    token: usize,
) {
    // SAFETY: a valid transaction from the shim.
    guard_or((), || unsafe { &mut *transaction }.inner.set_session_token(SessionToken(token)));
}

/// Before each statement.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_statement_begin(
    transaction: *mut ServerTransaction,
    lock_wait_timeout_s: u64,
    savepoint: *mut OpaqueSavepoint,
) -> c_int {
    // SAFETY: valid pointers from the shim.
    unsafe {
        with(transaction, |transaction| {
            transaction.interrupt.clear();
            transaction.inner.set_lock_wait_timeout(Duration::from_secs(lock_wait_timeout_s));
            transaction.inner.begin_statement();
            store_savepoint(savepoint, transaction.inner.savepoint());
            Ok(())
        })
    }
}

macro_rules! transaction_functions {
    ($($(#[$doc:meta])* $name:ident($transaction:ident) $body:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// A valid transaction.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($transaction: *mut ServerTransaction) -> c_int {
            // SAFETY: a valid transaction from the shim.
            unsafe { with($transaction, |$transaction| { $body; Ok(()) }) }
        }
    )*};
}

transaction_functions! {
    /// After each statement that doesn't end its transaction.
    tp_statement_end(transaction) transaction.inner.end_statement();
    /// Takes the snapshot of a REPEATABLE READ transaction now.
    tp_snapshot(transaction) transaction.inner.ensure_view();
    /// Commits, durably as `flush_log_at_trx_commit` says.
    tp_commit(transaction) transaction.inner.commit()?;
    /// Rolls back.
    tp_rollback(transaction) transaction.inner.rollback()?;
    /// A prepared transaction leaves its session.
    tp_detach(transaction) transaction.inner.detach();
}

/// Sets a savepoint.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_savepoint_set(
    transaction: *mut ServerTransaction,
    place: *mut OpaqueSavepoint,
) -> c_int {
    // SAFETY: valid pointers from the shim.
    unsafe {
        with(transaction, |transaction| {
            store_savepoint(place, transaction.inner.savepoint());
            Ok(())
        })
    }
}

/// Whether anything was written since a savepoint was set that has not been undone.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_has_written_since(
    transaction: *const ServerTransaction,
    place: *const OpaqueSavepoint,
) -> u8 {
    // SAFETY: valid pointers from the shim; the bytes were stored by store_savepoint.
    guard_or(1, || unsafe {
        (*transaction).inner.has_written_since(&*place.cast::<Savepoint>()).into()
    })
}

/// Whether the transaction has written nothing so far, and holds no lock.
///
/// # Safety
/// A valid pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_has_only_read(transaction: *const ServerTransaction) -> u8 {
    // SAFETY: a valid pointer from the shim.
    guard_or(0, || unsafe { &*transaction }.inner.has_only_read().into())
}

/// Rolls back to a savepoint.
///
/// # Safety
/// Valid pointers; the savepoint was set in this transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_rollback_to(
    transaction: *mut ServerTransaction,
    place: *const OpaqueSavepoint,
) -> c_int {
    // SAFETY: valid pointers from the shim; the bytes were stored by store_savepoint.
    unsafe {
        with(transaction, |transaction| {
            transaction.inner.rollback_to(place.cast::<Savepoint>().read())
        })
    }
}

/// Commits; the log is not flushed.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_commit_no_flush(
    transaction: *mut ServerTransaction,
    lsn: *mut u64,
) -> c_int {
    // SAFETY: valid pointers from the shim.
    unsafe {
        with(transaction, |transaction| {
            *lsn = transaction.inner.commit_no_flush()?.0;
            Ok(())
        })
    }
}

/// Prepares, durably.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_prepare(
    transaction: *mut ServerTransaction,
    xid: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: valid pointers and lengths from the shim.
    unsafe { with(transaction, |transaction| transaction.inner.prepare(bytes(xid, len))) }
}

/// Whether there is something to commit.
///
/// # Safety
/// A valid transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_has_writes(transaction: *const ServerTransaction) -> c_int {
    // SAFETY: a valid transaction from the shim.
    guard_or(1, || c_int::from(unsafe { &*transaction }.inner.has_writes()))
}

/// Whether only a rollback is possible.
///
/// # Safety
/// A valid transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_must_rollback(transaction: *const ServerTransaction) -> c_int {
    // SAFETY: a valid transaction from the shim.
    guard_or(1, || c_int::from(unsafe { &*transaction }.inner.must_rollback()))
}

/// Names the transaction for `information_schema.TIDEPOOL_TRX`: the connection's number.
///
/// # Safety
/// A valid transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_transaction_set_session_number(
    transaction: *mut ServerTransaction,
    number: u64,
) {
    // SAFETY: a valid transaction from the shim.
    guard_or((), || unsafe { &mut *transaction }.inner.set_session_number(number));
}

/// The coming operations are on behalf of a referential constraint, or no longer; see bridge.h.
///
/// # Safety
/// A valid transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_transaction_set_referential(
    transaction: *mut ServerTransaction,
    on: c_int,
) {
    // SAFETY: a valid transaction from the shim.
    guard_or((), || unsafe { &mut *transaction }.inner.set_referential(on != 0));
}

/// The coming reads are those of a search, or no longer; see bridge.h.
///
/// # Safety
/// A valid transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_transaction_set_searching(
    transaction: *mut ServerTransaction,
    on: c_int,
) {
    // SAFETY: a valid transaction from the shim.
    guard_or((), || unsafe { &mut *transaction }.inner.set_searching(on != 0));
}

/// Whether searches of the statement see more than the snapshot; see bridge.h.
///
/// # Safety
/// A valid transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_searches_beyond_snapshot(transaction: *const ServerTransaction) -> u8 {
    // SAFETY: a valid transaction from the shim.
    guard_or(0, || unsafe { &*transaction }.inner.searches_beyond_snapshot().into())
}

/// How long the coming operations of the statement wait for a lock.
///
/// # Safety
/// A valid transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_transaction_set_lock_wait_timeout(
    transaction: *mut ServerTransaction,
    seconds: u64,
) {
    let timeout = Duration::from_secs(seconds);
    // SAFETY: a valid transaction from the shim.
    guard_or((), || unsafe { &mut *transaction }.inner.set_lock_wait_timeout(timeout));
}

/// The handle by which another thread ends this transaction's waits.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_interrupt_new(
    transaction: *const ServerTransaction,
    place: *mut *mut Arc<Interrupt>,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        unsafe { *place = Box::into_raw(Box::new((*transaction).interrupt.clone())) };
        Ok(TP_OK)
    })
}

/// Ends the transaction's waits.
///
/// # Safety
/// `interrupt` came from [`tp_interrupt_new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_interrupt_raise(interrupt: *const Arc<Interrupt>) {
    // SAFETY: a valid handle from the shim.
    guard_or((), || unsafe { &*interrupt }.interrupt());
}

/// Has the transaction's waits end by the interrupt of another transaction, for which it works.
/// Before the first operation only.
///
/// # Safety
/// A valid transaction; `interrupt` came from [`tp_interrupt_new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_transaction_listen(
    transaction: *mut ServerTransaction,
    interrupt: *const Arc<Interrupt>,
) {
    guard_or((), || {
        // SAFETY: valid pointers from the shim.
        let (transaction, interrupt) = unsafe { (&mut *transaction, &*interrupt) };
        if !Arc::ptr_eq(&transaction.interrupt, interrupt) {
            transaction.inner.set_interrupt(interrupt.clone());
            transaction.interrupt = interrupt.clone();
        }
    });
}

/// Gives the handle back.
///
/// # Safety
/// `interrupt` came from [`tp_interrupt_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_interrupt_free(interrupt: *mut Arc<Interrupt>) {
    // SAFETY: made by Box::into_raw in tp_interrupt_new, given back once.
    guard_or((), || drop(unsafe { Box::from_raw(interrupt) }));
}

/// Inserts an entry. One that is there already is locked as `duplicate_lock` says.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_insert(
    transaction: *mut ServerTransaction,
    table: *const Arc<Table>,
    index: usize,
    key: Bytes,
    value: Bytes,
    duplicate_lock: c_int,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (transaction, table, key, value) =
            unsafe { (&mut *transaction, &*table, key.get(), value.get()) };
        let duplicate_lock = lock_mode(duplicate_lock);
        match transaction.inner.insert_or_lock(table, index, key, value, duplicate_lock) {
            Ok(()) => Ok(TP_OK),
            Err(Error::DuplicateKey { value, .. }) => {
                // Of a row nothing is asked for but its key, and it may be long.
                transaction.duplicate = if index == Table::CLUSTERED { Vec::new() } else { value };
                Ok(TP_DUPLICATE)
            }
            Err(error) => Err(error),
        }
    })
}

/// A row for [`tp_insert_row`].
#[repr(C)]
pub struct RowToInsert {
    key: Bytes,
    value: Bytes,
    /// What the table's counter becomes at least; 0: the row has no number.
    auto_increment: u64,
    duplicate_lock: c_int,
}

/// Inserts a row into the clustered index, and raises the counter with it.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_insert_row(
    transaction: *mut ServerTransaction,
    table: *const Arc<Table>,
    row: *const RowToInsert,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        let (transaction, table, row) = unsafe { (&mut *transaction, &*table, &*row) };
        // SAFETY: valid pointers and lengths from the shim.
        let (key, value) = unsafe { (row.key.get(), row.value.get()) };
        let on_duplicate = lock_mode(row.duplicate_lock);
        let auto_increment = (row.auto_increment != 0).then_some(row.auto_increment);
        let row = NewRow { key, value, on_duplicate, auto_increment };
        match transaction.inner.insert_row(table, row) {
            Ok(()) => Ok(TP_OK),
            Err(Error::DuplicateKey { .. }) => {
                // Nothing is asked for but its key, and it may be long.
                transaction.duplicate = Vec::new();
                Ok(TP_DUPLICATE)
            }
            Err(error) => Err(error),
        }
    })
}

/// Replaces an entry's value.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_update(
    transaction: *mut ServerTransaction,
    table: *const Arc<Table>,
    index: usize,
    key: Bytes,
    value: Bytes,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (transaction, table, key, value) =
            unsafe { (&mut *transaction, &*table, key.get(), value.get()) };
        transaction.inner.update(table, index, key, value)?;
        Ok(TP_OK)
    })
}

/// Deletes an entry.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_delete(
    transaction: *mut ServerTransaction,
    table: *const Arc<Table>,
    index: usize,
    key: Bytes,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (transaction, table, key) = unsafe { (&mut *transaction, &*table, key.get()) };
        transaction.inner.delete(table, index, key)?;
        Ok(TP_OK)
    })
}

/// Deletes an entry whose row goes on under another key of the index, which is inserted as well.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_move_away(
    transaction: *mut ServerTransaction,
    table: *const Arc<Table>,
    index: usize,
    key: Bytes,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (transaction, table, key) = unsafe { (&mut *transaction, &*table, key.get()) };
        transaction.inner.move_away(table, index, key)?;
        Ok(TP_OK)
    })
}

/// Releases the lock of a row that did not match.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_unlock(
    transaction: *mut ServerTransaction,
    table: *const Arc<Table>,
    index: usize,
    key: Bytes,
) {
    guard_or((), || {
        // SAFETY: valid pointers and lengths from the shim.
        let (transaction, table, key) = unsafe { (&mut *transaction, &*table, key.get()) };
        transaction.inner.unlock(table, index, key);
    });
}

/// The value of the entry that the last duplicate key error of this transaction was about; none if
/// that was a row.
///
/// # Safety
/// A valid transaction; the bytes are good until its next write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_duplicate_value(transaction: *const ServerTransaction) -> Bytes {
    // SAFETY: a valid transaction from the shim.
    guard_or(Bytes::EMPTY, || Bytes::of(&unsafe { &*transaction }.duplicate))
}
