//! Provisional trees: trees in a table's file that belong to no index unless the catalog says so.
//! The file's header has a note of each.
//!
//! A tree is made before the catalog's transaction that gives the table its index, and freed after
//! the one that takes an index away. The next opening must find and free what a crash leaves in
//! between. So the mini-transaction that makes a tree's root also writes the note, or the note is
//! written before the catalog drops the index; and the mini-transaction that frees the root removes
//! the note. The catalog's record says that there may be notes
//! ([`TableRecord::has_notes`](crate::catalog::TableRecord::has_notes)), so that an opening need
//! not look into every file.
//!
//! A stale note would free a page that now belongs to another tree. So there is one note of a tree
//! however often it is [`add`]ed, all notes of it go together, and [`free`] ignores a note whose
//! page is not a node of the tree: files from before these rules may have such notes.
//!
//! ```text
//! a note, in the table area of page 0:   tree id u32 | root page u32      (tree id 0: vacant)
//! ```

use crate::btree::Tree;
use crate::catalog::TreeRecord;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::format::space_header::TABLE_AREA;
use crate::mtr::Mtr;
use crate::page_op::PageOp;
use crate::versioned::VersionedTree;
use std::sync::Arc;
use tidepool_pool::{Access, Space};

const NOTE_SIZE: usize = 8;
/// Most trees that can be noted at a time: what one change of a table's indexes may add and drop
/// together.
pub(crate) const NOTES_MAX: usize = (TABLE_AREA.end - TABLE_AREA.start) / NOTE_SIZE;

fn note_at(header: &[u8], at: usize) -> TreeRecord {
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    TreeRecord { tree: word(at), root: word(at + 4) }
}

/// Header offsets of the notes that match `is_wanted`.
fn places(header: &[u8], is_wanted: impl Fn(TreeRecord) -> bool) -> impl Iterator<Item = usize> {
    TABLE_AREA.step_by(NOTE_SIZE).filter(move |&at| is_wanted(note_at(header, at)))
}

fn find_vacant(header: &[u8]) -> Result<usize> {
    let full = || Error::InvalidOption(format!("more than {NOTES_MAX} indexes change at once"));
    places(header, |note| note.tree == 0).next().ok_or_else(full)
}

fn write(mtr: &mut Mtr<'_>, header: crate::mtr::PageHandle, at: usize, note: TreeRecord) {
    let bytes = [note.tree.to_le_bytes(), note.root.to_le_bytes()].concat();
    mtr.apply(header, &PageOp::Write { offset: at as u32, bytes: &bytes });
}

/// The trees that are noted.
pub(crate) fn all(env: &Env, space: &Space) -> Result<Vec<TreeRecord>> {
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

/// Notes a tree that is there; one that is noted already is left so.
pub(crate) fn add(env: &Env, space: &Space, tree: TreeRecord) -> Result<()> {
    let mut mtr = Mtr::begin(env)?;
    let header = mtr.exclusive(space, 0)?;
    if places(mtr.page(header), |note| note == tree).next().is_some() {
        return Ok(());
    }
    let at = find_vacant(mtr.page(header))?;
    write(&mut mtr, header, at, tree);
    mtr.commit();
    Ok(())
}

/// Forgets what is noted of a tree that is an index's.
pub(crate) fn forget(env: &Env, space: &Space, tree: u32) -> Result<()> {
    vacate(env, space, |note| note.tree == tree)
}

fn vacate(env: &Env, space: &Space, is_unwanted: impl Fn(TreeRecord) -> bool) -> Result<()> {
    let mut mtr = Mtr::begin(env)?;
    let header = mtr.exclusive(space, 0)?;
    let unwanted: Vec<usize> = places(mtr.page(header), is_unwanted).collect();
    if unwanted.is_empty() {
        return Ok(());
    }
    for at in unwanted {
        write(&mut mtr, header, at, TreeRecord { tree: 0, root: 0 });
    }
    mtr.commit();
    Ok(())
}

/// Frees the pages of a noted tree, and forgets the note. The tree may not be used any more. If it
/// fails half-way, it can be called again, in this life or the next. A note whose tree is gone
/// already is forgotten, and nothing else done.
pub(crate) fn free(env: &Arc<Env>, space: &Arc<Space>, note: TreeRecord) -> Result<()> {
    let at = {
        let header = env.pool().shared(space, 0, Access::Normal)?;
        places(&header, |found| found == note).next()
    };
    let Some(at) = at else { return Ok(()) };
    let tree = Tree::open(env, space, note.root, note.tree);
    if tree.has_root()? {
        while !tree.free_step(Some(at))?.1 {}
    } else {
        let TreeRecord { tree, root } = note;
        tracing::warn!(tree, root, "an index is noted as to be freed that is gone already");
    }
    // This one if it is still there, and any other of the same.
    vacate(env, space, |found| found == note)
}

#[cfg(test)]
mod tests;
