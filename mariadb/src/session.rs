// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Transactions and writes.
//!
//! A `tp_trx` is a [`Session`]: the one [`Trx`] that a connection uses again and again, and the value of the entry that
//! the last duplicate key error was about.

use std::ffi::c_int;
use std::mem::{align_of, size_of};
use std::sync::Arc;
use std::time::Duration;

use tidepool::{
    Db, Error, Interrupt, Isolation, Savepoint, SessionToken, Table, Trx, TrxOptions, WaitObserver,
};

use crate::boundary::{Bytes, TP_DUPLICATE, TP_OK, bytes, guard, guard_or};
use crate::constants::{TP_READ_COMMITTED, TP_READ_UNCOMMITTED, TP_SERIALIZABLE};
use crate::reader::lock_mode;

/// A connection's transaction.
pub struct Session {
    pub(crate) trx: Trx,
    interrupt: Arc<Interrupt>,
    duplicate: Vec<u8>,
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

/// Makes a session's transaction.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_trx_new(db: *const Db, session: *mut *mut Session) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        let trx = unsafe { &*db }.begin(TrxOptions::default());
        let interrupt = trx.interrupt_handle();
        let made = Box::new(Session { trx, interrupt, duplicate: Vec::new() });
        // SAFETY: a valid place to store to.
        unsafe { *session = Box::into_raw(made) };
        Ok(TP_OK)
    })
}

/// Ends a session; what is unfinished is rolled back.
///
/// # Safety
/// `session` came from [`tp_trx_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_trx_free(session: *mut Session) {
    guard_or((), || {
        // SAFETY: made by Box::into_raw in tp_trx_new, given back once.
        drop(unsafe { Box::from_raw(session) });
    });
}

/// Runs `body` with the session.
///
/// # Safety
/// `session` is valid and used by no other thread now.
unsafe fn with(
    session: *mut Session,
    body: impl FnOnce(&mut Session) -> Result<(), Error>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        body(unsafe { &mut *session })?;
        Ok(TP_OK)
    })
}

/// Before the first statement of a transaction.
///
/// # Safety
/// A valid session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_trx_start(session: *mut Session, isolation: c_int) -> c_int {
    // SAFETY: a valid session from the shim.
    unsafe {
        with(session, |session| {
            session.trx.set_isolation(match isolation {
                TP_READ_UNCOMMITTED => Isolation::ReadUncommitted,
                TP_READ_COMMITTED => Isolation::ReadCommitted,
                TP_SERIALIZABLE => Isolation::Serializable,
                _ => Isolation::RepeatableRead,
            });
            Ok(())
        })
    }
}

/// The shim's function that is told of waits; see bridge.h. The names are addresses of the server's connections, never looked into here.
struct ServerObserver(extern "C" fn(usize, usize) -> c_int);

impl WaitObserver for ServerObserver {
    fn waits_for(&self, waiter: SessionToken, holder: Option<SessionToken>) -> bool {
        (self.0)(waiter.0, holder.map_or(0, |holder| holder.0)) != 0
    }
}

/// Sets who is told which transactions wait for which.
///
/// # Safety
/// An open data directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_set_wait_observer(
    db: *const Db,
    waits_for: extern "C" fn(usize, usize) -> c_int,
) {
    guard_or((), || {
        // SAFETY: an open data directory from the shim.
        unsafe { &*db }.set_wait_observer(Box::new(ServerObserver(waits_for)));
    });
}

/// Has the waits of the present transaction told, and those for it, with the connection under this name.
///
/// # Safety
/// A valid session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_trx_name_session(session: *mut Session, name: usize) {
    // SAFETY: a valid session from the shim.
    guard_or((), || unsafe { &mut *session }.trx.name_session(SessionToken(name)));
}

/// Before each statement.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_statement_begin(
    session: *mut Session,
    lock_wait_timeout_s: u64,
    savepoint: *mut OpaqueSavepoint,
) -> c_int {
    // SAFETY: valid pointers from the shim.
    unsafe {
        with(session, |session| {
            session.interrupt.clear();
            session.trx.set_lock_wait_timeout(Duration::from_secs(lock_wait_timeout_s));
            session.trx.begin_statement();
            store_savepoint(savepoint, session.trx.savepoint());
            Ok(())
        })
    }
}

macro_rules! session_functions {
    ($($(#[$doc:meta])* $name:ident($session:ident) $body:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// A valid session.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($session: *mut Session) -> c_int {
            // SAFETY: a valid session from the shim.
            unsafe { with($session, |$session| { $body; Ok(()) }) }
        }
    )*};
}

session_functions! {
    /// After each statement that doesn't end its transaction.
    tp_statement_end(session) session.trx.end_statement();
    /// Takes the snapshot of a REPEATABLE READ transaction now.
    tp_snapshot(session) session.trx.ensure_view();
    /// Commits, durably as `flush_log_at_trx_commit` says.
    tp_commit(session) session.trx.commit()?;
    /// Rolls back.
    tp_rollback(session) session.trx.rollback()?;
    /// A prepared transaction leaves its session.
    tp_detach(session) session.trx.detach();
}

/// Sets a savepoint.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_savepoint_set(
    session: *mut Session,
    place: *mut OpaqueSavepoint,
) -> c_int {
    // SAFETY: valid pointers from the shim.
    unsafe {
        with(session, |session| {
            store_savepoint(place, session.trx.savepoint());
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
    session: *const Session,
    place: *const OpaqueSavepoint,
) -> u8 {
    // SAFETY: valid pointers from the shim; the bytes were stored by store_savepoint.
    guard_or(1, || unsafe { (*session).trx.has_written_since(&*place.cast::<Savepoint>()).into() })
}

/// Whether the transaction has written nothing so far, and holds no lock.
///
/// # Safety
/// A valid pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_has_only_read(session: *const Session) -> u8 {
    // SAFETY: a valid pointer from the shim.
    guard_or(0, || unsafe { &*session }.trx.has_only_read().into())
}

/// Rolls back to a savepoint.
///
/// # Safety
/// Valid pointers; the savepoint was set in this transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_rollback_to(
    session: *mut Session,
    place: *const OpaqueSavepoint,
) -> c_int {
    // SAFETY: valid pointers from the shim; the bytes were stored by store_savepoint.
    unsafe { with(session, |session| session.trx.rollback_to(place.cast::<Savepoint>().read())) }
}

/// Commits; the log is not flushed.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_commit_no_flush(session: *mut Session, lsn: *mut u64) -> c_int {
    // SAFETY: valid pointers from the shim.
    unsafe {
        with(session, |session| {
            *lsn = session.trx.commit_no_flush()?.0;
            Ok(())
        })
    }
}

/// Prepares, durably.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_prepare(session: *mut Session, xid: *const u8, len: usize) -> c_int {
    // SAFETY: valid pointers and lengths from the shim.
    unsafe { with(session, |session| session.trx.prepare(bytes(xid, len))) }
}

/// Whether there is something to commit.
///
/// # Safety
/// A valid session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_has_writes(session: *const Session) -> c_int {
    // SAFETY: a valid session from the shim.
    guard_or(1, || c_int::from(unsafe { &*session }.trx.has_writes()))
}

/// Whether only a rollback is possible.
///
/// # Safety
/// A valid session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_must_rollback(session: *const Session) -> c_int {
    // SAFETY: a valid session from the shim.
    guard_or(1, || c_int::from(unsafe { &*session }.trx.must_rollback()))
}

/// Names the session for `information_schema.TIDEPOOL_TRX`: the connection's number.
///
/// # Safety
/// A valid session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_trx_set_session(session: *mut Session, number: u64) {
    // SAFETY: a valid session from the shim.
    guard_or((), || unsafe { &mut *session }.trx.set_session(number));
}

/// The coming operations are on behalf of a referential constraint, or no longer; see bridge.h.
///
/// # Safety
/// A valid session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_trx_set_referential(session: *mut Session, on: c_int) {
    // SAFETY: a valid session from the shim.
    guard_or((), || unsafe { &mut *session }.trx.set_referential(on != 0));
}

/// The handle by which another thread ends this session's waits.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_interrupt_new(
    session: *const Session,
    place: *mut *mut Arc<Interrupt>,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        unsafe { *place = Box::into_raw(Box::new((*session).interrupt.clone())) };
        Ok(TP_OK)
    })
}

/// Ends the session's waits.
///
/// # Safety
/// `interrupt` came from [`tp_interrupt_new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_interrupt_raise(interrupt: *const Arc<Interrupt>) {
    // SAFETY: a valid handle from the shim.
    guard_or((), || unsafe { &*interrupt }.interrupt());
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
    session: *mut Session,
    table: *const Arc<Table>,
    index: usize,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    duplicate_lock: c_int,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (session, table, key, value) =
            unsafe { (&mut *session, &*table, bytes(key, key_len), bytes(value, value_len)) };
        let duplicate_lock = lock_mode(duplicate_lock);
        match session.trx.insert_or_lock(table, index, key, value, duplicate_lock) {
            Ok(()) => Ok(TP_OK),
            Err(Error::DuplicateKey { value, .. }) => {
                // Of a row nothing is asked for but its key, and it may be long.
                session.duplicate = if index == Table::CLUSTERED { Vec::new() } else { value };
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
    session: *mut Session,
    table: *const Arc<Table>,
    index: usize,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (session, table, key, value) =
            unsafe { (&mut *session, &*table, bytes(key, key_len), bytes(value, value_len)) };
        session.trx.update(table, index, key, value)?;
        Ok(TP_OK)
    })
}

/// Deletes an entry.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_delete(
    session: *mut Session,
    table: *const Arc<Table>,
    index: usize,
    key: *const u8,
    key_len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (session, table, key) = unsafe { (&mut *session, &*table, bytes(key, key_len)) };
        session.trx.delete(table, index, key)?;
        Ok(TP_OK)
    })
}

/// Deletes an entry whose row goes on under another key of the index, which is inserted as well.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_move_away(
    session: *mut Session,
    table: *const Arc<Table>,
    index: usize,
    key: *const u8,
    key_len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (session, table, key) = unsafe { (&mut *session, &*table, bytes(key, key_len)) };
        session.trx.move_away(table, index, key)?;
        Ok(TP_OK)
    })
}

/// Releases the lock of a row that did not match.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_unlock(
    session: *mut Session,
    table: *const Arc<Table>,
    index: usize,
    key: *const u8,
    key_len: usize,
) {
    guard_or((), || {
        // SAFETY: valid pointers and lengths from the shim.
        let (session, table, key) = unsafe { (&mut *session, &*table, bytes(key, key_len)) };
        session.trx.unlock(table, index, key);
    });
}

/// The value of the entry that the last duplicate key error of this session was about; none if that was a row.
///
/// # Safety
/// A valid session; the bytes are good until its next write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_duplicate_value(session: *const Session) -> Bytes {
    // SAFETY: a valid session from the shim.
    guard_or(Bytes::EMPTY, || Bytes::of(&unsafe { &*session }.duplicate))
}
