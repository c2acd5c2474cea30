//! Trees noted in the header of a table's file: those that belong to no index unless the catalog says so.
//!
//! A tree is made in the table's file before the catalog's transaction that gives the table its index, and freed after the one that takes an
//! index away. What a crash leaves in between must be found, and freed, by the next opening. So a tree is noted in the same
//! mini-transaction that makes its root, or before the catalog lets go of it; and the note goes in the one that frees its root.
//! The catalog's record says that there may be notes ([`TableRecord::has_notes`](crate::catalog::TableRecord::has_notes)), so that an
//! opening need not look into every file.
//!
//! ```text
//! a note, in the table area of page 0:   tree id u32 | root page u32      (tree id 0: vacant)
//! ```

use crate::btree::Tree;
use crate::catalog::TreeRecord;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::mtr::Mtr;
use crate::page_op::PageOp;
use crate::space::TABLE_AREA;
use crate::versioned::VersionedTree;
use std::sync::Arc;
use tidepool_pool::{Access, Space};

const NOTE_SIZE: usize = 8;
/// Most trees that can be noted at a time: what one change of a table's indexes may add and drop together.
pub(crate) const NOTES_MAX: usize = (TABLE_AREA.end - TABLE_AREA.start) / NOTE_SIZE;

fn note_at(header: &[u8], at: usize) -> TreeRecord {
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    TreeRecord { tree: word(at), root: word(at + 4) }
}

/// Offset in the header of the note of `tree` (0: of a vacant place).
fn find(header: &[u8], tree: u32) -> Option<usize> {
    TABLE_AREA.step_by(NOTE_SIZE).find(|&at| note_at(header, at).tree == tree)
}

fn find_vacant(header: &[u8]) -> Result<usize> {
    let full = || Error::InvalidOption(format!("more than {NOTES_MAX} indexes change at once"));
    find(header, 0).ok_or_else(full)
}

fn write(mtr: &mut Mtr<'_>, header: crate::mtr::PageHandle, at: usize, note: TreeRecord) {
    let bytes = [note.tree.to_le_bytes(), note.root.to_le_bytes()].concat();
    mtr.apply(header, &PageOp::Write { offset: at as u32, bytes: &bytes });
}

/// The trees that are noted.
pub(crate) fn noted(env: &Env, space: &Space) -> Result<Vec<TreeRecord>> {
    let header = env.pool().shared(space, 0, Access::Normal)?;
    let notes = TABLE_AREA.step_by(NOTE_SIZE).map(|at| note_at(&header, at));
    Ok(notes.filter(|note| note.tree != 0).collect())
}

/// Makes an empty tree and notes it.
pub(crate) fn create(env: &Env, space: &Space, tree: u32) -> Result<TreeRecord> {
    let mut mtr = Mtr::begin(env)?;
    let header = mtr.exclusive(space, 0)?;
    let at = find_vacant(mtr.page(header))?;
    let root = VersionedTree::create(&mut mtr, env, space, tree)?;
    let made = TreeRecord { tree, root };
    write(&mut mtr, header, at, made);
    mtr.commit();
    Ok(made)
}

/// Notes a tree that is there.
pub(crate) fn add(env: &Env, space: &Space, tree: TreeRecord) -> Result<()> {
    let mut mtr = Mtr::begin(env)?;
    let header = mtr.exclusive(space, 0)?;
    let at = find_vacant(mtr.page(header))?;
    write(&mut mtr, header, at, tree);
    mtr.commit();
    Ok(())
}

/// Forgets the note of a tree that is an index's.
pub(crate) fn forget(env: &Env, space: &Space, tree: u32) -> Result<()> {
    let mut mtr = Mtr::begin(env)?;
    let header = mtr.exclusive(space, 0)?;
    if let Some(at) = find(mtr.page(header), tree) {
        write(&mut mtr, header, at, TreeRecord { tree: 0, root: 0 });
        mtr.commit();
    }
    Ok(())
}

/// Frees the pages of a noted tree, and forgets the note. Nobody may use the tree. If it fails half-way, it can be called again, in
/// this life or the next.
pub(crate) fn free(env: &Arc<Env>, space: &Arc<Space>, note: TreeRecord) -> Result<()> {
    let at = {
        let header = env.pool().shared(space, 0, Access::Normal)?;
        find(&header, note.tree)
    };
    let Some(at) = at else { return Ok(()) };
    let tree = Tree::open(env, space, note.root, note.tree);
    while !tree.free_step(Some(at))?.1 {}
    Ok(())
}
