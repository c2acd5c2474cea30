//! Broken pages of undo records: what is lost with them, and what is not.
//!
//! A broken page must cost only those transactions whose records were on it. Where the page is in
//! its stream says which:
//!
//! - *In the log of an unfinished transaction that is known by its log record*: its rollback goes
//!   as far as that page and is blocked there ([`crate::trx`]).
//! - *Before a page on which another log begins*: a stream serves one transaction at a time, so
//!   those before have ended, and as rollbacks leave no records, they have committed. Purge misses
//!   what they deleted, and says so; nothing else is lost.
//! - *At the end of the stream, the last log not known to be open*: a transaction may have begun
//!   there, and whether it ended is not known, nor its id. Its entries are *in doubt*: those whose
//!   roll pointer leads to that page (or to one behind it), by an id from which on transactions may
//!   have been unfinished, as the directory says ([`super::page`]). Reading or locking one is an
//!   error; all others are what they seem.
//!
//! The stream of such a page takes no more logs. The page stays allocated, so no log is written
//! there any more, and as long as anything is in doubt the directory's id is not raised: later
//! lives find the same doubt again.

use std::collections::HashSet;

use crate::csn::TrxId;
use crate::error::{Error, Remedy};
use crate::files::UNDO_FILE;
use crate::format::entry::RollPointer;

/// What broken pages leave unknown.
#[derive(Debug, Default)]
pub struct Doubt {
    /// An entry whose roll pointer leads there may be by a transaction whose end is not known.
    pub(super) pages: HashSet<u32>,
    /// Every transaction before this id had ended.
    pub(super) from: TrxId,
    /// There was none from this id on.
    pub(super) to: TrxId,
    /// Transactions of which it is known whether they had ended.
    pub(super) known: HashSet<TrxId>,
}

impl Doubt {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Whether it is unknown if the transaction that wrote an entry, with this roll pointer, was
    /// committed.
    pub fn covers(&self, id: TrxId, roll: RollPointer) -> bool {
        (self.from..self.to).contains(&id)
            && self.pages.contains(&roll.page)
            && !self.known.contains(&id)
    }

    /// The error for who needs to know that.
    pub fn error(&self, id: TrxId, roll: RollPointer) -> Error {
        let why = format!(
            "it is lost, and with it whether transaction {} was committed, which wrote a row of this table",
            id.0
        );
        Error::corrupt(UNDO_FILE, roll.page, why).with_remedies(Remedy::RestoreOrReadNewest)
    }
}

/// Whether an error says that a page of the undo space is lost. A disk that fails to read one may
/// be able to later.
pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { file, .. } if *file == UNDO_FILE)
}
