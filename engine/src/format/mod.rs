//! What pages hold, byte by byte: no pool, no log, no latch.
//!
//! Everything here is a function of the bytes it is given. A caller changes a page by a
//! [`PageOp`](crate::page_op::PageOp), which calls what is needed here, forward and at recovery
//! alike.
//!
//! | file | what |
//! |---|---|
//! | [`space_header`] | a file's first page |
//! | [`node`] | nodes of trees: layout, search, changes |
//! | [`entry`] | the payload of a versioned tree's entry |
//!
//! Undo records are [`crate::undo::record`]'s. `docs/internals/format/pages.md` has all of it.

pub mod entry;
pub mod node;
pub mod space_header;

use tidepool_pool::PageType;

/// Page of the undo space that holds the directory of its streams.
pub const UNDO_DIRECTORY_PAGE: u32 = 2;

/// What every page must be that is read from a file, besides whole and in its place: the cells of a
/// node lie in its heap and add up to it. Changes keep it so, and a reader of a node in memory
/// relies on it.
///
/// Such a page comes from no broken disk, which the checksum finds, but from a fault of a program.
pub fn check_page(page: &[u8]) -> Result<(), &'static str> {
    match tidepool_pool::page::page_type(page) {
        PageType::TREE_LEAF | PageType::TREE_INNER => node::Node::new(page)?.check_layout(),
        _ => Ok(()),
    }
}

/// Why bytes of a page can't be changed as an operation says, or are no operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OpError(pub &'static str);
