//! The undo log: how to take back what a transaction did, and how to find what was there before.
//!
//! # Shape
//! Space 1 (`undo.tpd`) holds *streams*. A stream is a list of linked pages used by one transaction
//! at a time; in it lie, one behind the other, the *logs* of the transactions that used it: each a
//! log record with the transaction's id and state, then one record for each change. A stream whose
//! newest log has ended takes the next one right behind it, so that short transactions share pages.
//!
//! ```text
//! directory (page 2)   stream 0 -> [log T7 committed][log T12 committed]+[... T12][log T19 active]
//!                      stream 1 -> [log T15 prepared]
//!                                   ^ head: what purge has not done yet            ^ tail: append, cut
//! ```
//!
//! - A change of an entry and its undo record are one mini-transaction. So are undoing the change
//!   and cutting the record off.
//! - A commit writes state and CSN into the log record, in place. A transaction that only inserted
//!   leaves nothing that purge or an older view could want: if its log lies on one page, its commit
//!   cuts the log off.
//! - Purge takes committed logs from the head. The head moves before pages are freed, page by page,
//!   so that a crash leaks none.
//!
//! # Contents
//! [`record`]: the bytes of records; [`page`]: the bytes of pages and of the directory; [`stream`]:
//! streams; [`log`]: one transaction's log; [`open`]: what an open finds; [`damage`]: what broken
//! pages cost; [`shrink`]: room is given back; [`watch`]: who reads records without a latch.
//! `docs/internals/format/undo.md` has the format byte by byte.
//!
//! # Latches
//! Undo pages come behind tree pages and before space headers. A log's owner latches at most two of
//! its pages, the older first.

pub mod damage;
pub mod log;
pub mod open;
pub mod page;
pub mod record;
pub mod shrink;
pub mod stream;
mod trail;
pub(crate) mod watch;

pub use record::LogState;
pub(crate) use stream::records_read_by_thread;
