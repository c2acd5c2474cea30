//! Who may write to the log although it is full: who gives it room by that.
//!
//! A page that can't be written keeps the checkpoint where it is, and then the log fills up. Its
//! table can be dropped all the same: that discards the page, and is short. So it waits for no
//! room, and takes what the log keeps in reserve for mini-transactions that have begun.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::error::Error;
use crate::files::TABLES_DIR;

thread_local! {
    static TAKEN: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, mini-transactions of this thread wait for no room in the log.
pub(crate) struct LogReserve(PhantomData<*const ()>);

impl LogReserve {
    /// Takes it for a few short mini-transactions.
    pub(crate) fn take() -> LogReserve {
        TAKEN.set(TAKEN.get() + 1);
        LogReserve(PhantomData)
    }

    /// Whether this thread has taken it.
    pub(super) fn is_taken() -> bool {
        TAKEN.get() > 0
    }
}

impl Drop for LogReserve {
    fn drop(&mut self) {
        TAKEN.set(TAKEN.get() - 1);
    }
}

/// The error of a page that can't be written, for a thread that the log has no room for because of
/// it.
pub(super) fn filling_log(error: Error) -> Error {
    let with_remedy = |file: &str, why: String| match file.starts_with(TABLES_DIR) {
        true => format!(
            "{why}; the redo log is full because of this page: dropping the table frees the log"
        ),
        false => why,
    };
    match error {
        Error::Io { file, what } => Error::Io { what: with_remedy(&file, what), file },
        Error::Corrupt { file, page, why, remedies } => {
            Error::Corrupt { why: with_remedy(&file, why), file, page, remedies }
        }
        other => other,
    }
}
