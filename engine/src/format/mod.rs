//! What pages hold, byte by byte: no pool, no log, no latch.
//!
//! Everything here is a function of the bytes it is given. Whoever changes a page does so by a [`PageOp`](crate::page_op::PageOp), which calls what
//! is needed here, forward and at recovery alike.
//!
//! | file | what |
//! |---|---|
//! | [`space_header`] | a file's first page |
//! | [`node`] | nodes of trees: layout, search, changes |
//! | [`entry`] | the payload of a versioned tree's entry |
//!
//! Undo records are [`crate::undo::record`]'s. `docs/format-pages.md` has all of it.

pub mod entry;
pub mod node;
pub mod space_header;

/// Why bytes of a page can't be changed as an operation says, or are no operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OpError(pub &'static str);
