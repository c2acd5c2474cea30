//! Overflow chains: values too long for a leaf, in a list of separate pages.
//!
//! ```text
//!  0         32      36         40                               size
//!  +---------+-------+----------+----------------+---------------+
//!  | page    | next  | data     | data           | unused        |
//!  | header  | u32   | len u32  |                |               |
//!  +---------+-------+----------+----------------+---------------+
//! ```
//! `next` = 0 ends the chain. Every page but the last is full.
//!
//! # Crash safety
//! A chain is complete from its head at any time: what is reachable from the head is allocated, and
//! what was allocated for it is reachable. So a caller that knows the head can always free
//! everything:
//! - [`start`] allocates the head in a mini-transaction of the caller's, together with the undo
//!   record that names it;
//! - [`extend`] adds each further page in a mini-transaction that also links it;
//! - [`free_tail`] cuts pages off behind the head, each time with the link to them;
//! - [`free_head`] frees the head in a mini-transaction of the caller's, together with whatever
//!   forgets it.
//!
//! # Latching
//! Pages of a chain are latched from head to tail; the space's header and bitmaps after them.
//! No thread reads a chain that is being extended or freed: an entry names it only once it is
//! complete, and it is freed when no read view can see that entry.

use crate::env::Env;
use crate::error::{Error, Result};
use crate::mtr::{Mtr, PageHandle};
use crate::page_op::PageOp;
use crate::space::{Allocation, PageSet};
use tidepool_pool::page::{page_type, tree_id};
use tidepool_pool::{Access, PageType, Space};

const NEXT: usize = 32;
const LEN: usize = 36;
const DATA: usize = 40;
/// Pages freed in one mini-transaction.
const FREE_BATCH: usize = 16;
/// Pages asked for ahead of a reader, if the chain looks contiguous.
const READ_AHEAD: u32 = 16;

/// Bytes of a value that one page holds.
pub const fn capacity(page_size: usize) -> usize {
    page_size - DATA
}

/// Writes the first page of a chain: takes a page of `allocation`. Returns its number and how much
/// of `value` it holds; the rest goes to [`extend`].
pub fn start(
    mtr: &mut Mtr<'_>,
    allocation: &mut Allocation,
    tree_id: u32,
    value: &[u8],
) -> (u32, usize) {
    let (no, page) = allocation.take(mtr);
    (no, fill(mtr, page, tree_id, value))
}

/// Appends `rest` to a chain whose last page is `last` (and full), a page at a time; returns the
/// last page then.
///
/// After an error, the chain holds a part of `rest`: free it.
pub fn extend(env: &Env, space: &Space, tree_id: u32, mut last: u32, rest: &[u8]) -> Result<u32> {
    let mut rest = rest;
    while !rest.is_empty() {
        let mut mtr = Mtr::begin(env)?;
        let previous = mtr.exclusive(space, last)?;
        check(mtr.page(previous), space, last, tree_id)?;
        let mut allocation = Allocation::reserve(&mut mtr, space, last, 1)?;
        let (no, page) = allocation.take(&mut mtr);
        let stored = fill(&mut mtr, page, tree_id, rest);
        mtr.apply(previous, &PageOp::Write { offset: NEXT as u32, bytes: &no.to_le_bytes() });
        mtr.commit();
        rest = &rest[stored..];
        last = no;
    }
    Ok(last)
}

fn fill(mtr: &mut Mtr<'_>, page: PageHandle, tree_id: u32, value: &[u8]) -> usize {
    assert!(!value.is_empty(), "a page of a chain holds a part of the value");
    let stored = value.len().min(capacity(mtr.page(page).len()));
    let mut bytes = Vec::with_capacity(DATA - NEXT + stored);
    bytes.extend_from_slice(&0u32.to_le_bytes());
    bytes.extend_from_slice(&(stored as u32).to_le_bytes());
    bytes.extend_from_slice(&value[..stored]);
    mtr.apply(page, &PageOp::Format { page_type: PageType::OVERFLOW, tree_id });
    mtr.apply(page, &PageOp::Write { offset: NEXT as u32, bytes: &bytes });
    stored
}

/// A chain of overflow pages.
#[derive(Debug, Clone, Copy)]
pub struct Chain {
    /// The tree whose entry names the chain.
    pub tree_id: u32,
    /// Its first page.
    pub head: u32,
    /// Bytes that it holds.
    pub len: u64,
}

/// Appends the whole chain to `out`.
pub fn read(env: &Env, space: &Space, chain: Chain, out: &mut Vec<u8>) -> Result<()> {
    let Chain { tree_id, head, len } = chain;
    let mut missing =
        usize::try_from(len).map_err(|_| Error::ValueTooLong { len, max: usize::MAX as u64 })?;
    let mut no = head;
    let mut read_ahead_to = 0;
    while missing > 0 {
        if no == 0 {
            let why = format!("the overflow chain from here ends {missing} bytes too early");
            return Err(Error::corrupt(space.name(), head, why));
        }
        let page = env.pool().shared(space, no, Access::Normal)?;
        env.check_whole()?;
        let (next, data) = check(&page, space, no, tree_id)?;
        if data.is_empty() || data.len() > missing {
            let why = format!("{} bytes in an overflow page, {missing} expected", data.len());
            return Err(Error::corrupt(space.name(), no, why));
        }
        missing -= data.len();
        if next == no + 1 && missing > 0 && next >= read_ahead_to {
            let pages = missing.div_ceil(capacity(page.len())) as u32;
            let numbers: Vec<u32> =
                (next..=next.saturating_add(pages.min(READ_AHEAD) - 1)).collect();
            env.pool().prefetch(space, &numbers, Access::Normal);
            read_ahead_to = next.saturating_add(READ_AHEAD);
        }
        out.extend_from_slice(data);
        no = next;
    }
    Ok(())
}

/// Frees every page of the chain but the head; returns how many.
pub fn free_tail(env: &Env, space: &Space, tree_id: u32, head: u32) -> Result<u64> {
    let mut freed = 0;
    loop {
        let mut mtr = Mtr::begin(env)?;
        let head_page = mtr.exclusive(space, head)?;
        let (mut next, _) = check(mtr.page(head_page), space, head, tree_id)?;
        let mut numbers = Vec::with_capacity(FREE_BATCH);
        while next != 0 && numbers.len() < FREE_BATCH {
            // Before the page is latched: the head is, by this very thread, which would wait for
            // itself.
            if next == head || numbers.contains(&next) {
                return Err(Error::corrupt(space.name(), next, "overflow chain in a circle"));
            }
            numbers.push(next);
            let page = env.pool().shared(space, next, Access::Scan)?;
            next = check(&page, space, next, tree_id)?.0;
        }
        if numbers.is_empty() {
            return Ok(freed);
        }
        let mut allocation = Allocation::holding(&mut mtr, space, &numbers)?;
        mtr.apply(head_page, &PageOp::Write { offset: NEXT as u32, bytes: &next.to_le_bytes() });
        for &no in &numbers {
            allocation.free_emptied(&mut mtr, space, no);
        }
        mtr.commit();
        freed += numbers.len() as u64;
    }
}

/// Frees the head, whose tail is gone ([`free_tail`]); `allocation` comes from
/// [`Allocation::holding`] with the head.
pub fn free_head<'a>(mtr: &mut Mtr<'a>, allocation: &mut Allocation, space: &'a Space, head: u32) {
    allocation.free_emptied(mtr, space, head);
}

/// Frees a whole chain, the head in a separate mini-transaction: where nothing is lost if a crash
/// comes in between.
pub fn free(env: &Env, space: &Space, tree_id: u32, head: u32) -> Result<u64> {
    let freed = free_tail(env, space, tree_id, head)?;
    let mut mtr = Mtr::begin(env)?;
    let mut allocation = Allocation::holding(&mut mtr, space, &[head])?;
    free_head(&mut mtr, &mut allocation, space, head);
    mtr.commit();
    Ok(freed + 1)
}

/// The pages of a chain, head first: for a check of what is allocated. No thread may change the
/// chain meanwhile.
pub fn pages(env: &Env, space: &Space, tree_id: u32, head: u32) -> Result<Vec<u32>> {
    let (mut pages, mut seen) = (Vec::new(), PageSet::default());
    for_each_page(env, space, tree_id, head, |no| {
        let is_new = !seen.contains(no);
        seen.insert(no);
        pages.push(no);
        is_new
    })?;
    Ok(pages)
}

/// Shows each page of [`pages`] to `see`, which says false if it has seen the page before.
pub fn for_each_page(
    env: &Env,
    space: &Space,
    tree_id: u32,
    head: u32,
    mut see: impl FnMut(u32) -> bool,
) -> Result<()> {
    let mut no = head;
    while no != 0 {
        let next = check(&env.pool().shared(space, no, Access::Scan)?, space, no, tree_id)?.0;
        if !see(no) {
            let why = "overflow chain in a circle, or in two entries at once";
            return Err(Error::corrupt(space.name(), no, why));
        }
        no = next;
    }
    Ok(())
}

/// Link and data of a page of a chain; `None` if the page says that there are more bytes than it
/// has.
pub fn parts(page: &[u8]) -> Option<(u32, &[u8])> {
    let number = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"));
    let data = page.get(DATA..DATA.checked_add(number(LEN) as usize)?)?;
    Some((number(NEXT), data))
}

/// Checks a page of a chain; returns its link and data.
fn check<'p>(page: &'p [u8], space: &Space, no: u32, tree: u32) -> Result<(u32, &'p [u8])> {
    let corrupt = |why: String| Err(Error::corrupt(space.name(), no, why));
    if page_type(page) != PageType::OVERFLOW {
        return corrupt(format!("page type {}, not an overflow page", page_type(page).0));
    }
    if tree_id(page) != tree {
        return corrupt(format!("an overflow page of tree {}, not {tree}", tree_id(page)));
    }
    parts(page).map_or_else(|| corrupt("more bytes in an overflow page than fit".into()), Ok)
}

#[cfg(test)]
mod tests;
