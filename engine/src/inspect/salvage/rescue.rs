//! Leaves under an inner node that is broken: found by their own fences, in all of the file.
//!
//! Memory: the fences of the leaves that are found.

use tidepool_pool::storage::AlignedBuf;
use tidepool_pool::{Lsn, PageId, PageType, page};

use super::walk::{Range, Walk};
use crate::error::Result;
use crate::space::{self, PageSet};

/// A subtree whose root can't be read.
#[derive(Debug)]
pub(super) struct Hidden {
    pub range: Range,
    pub page: Option<u32>,
    pub why: String,
}

/// A leaf that was found.
struct Found {
    page: u32,
    lsn: Lsn,
    range: Range,
}

/// Gives what can be found of the hidden subtrees, and notes what can't.
pub(super) fn rescue(walk: &mut Walk<'_>) -> Result<()> {
    let hidden = std::mem::take(&mut walk.hidden);
    let mut found = search(walk, &hidden)?;
    // The newest first: of two that overlap, the older one is a leaf of before a split or a merge.
    found.sort_by(|a, b| b.lsn.cmp(&a.lsn).then(a.page.cmp(&b.page)));
    let mut taken: std::collections::BTreeMap<Vec<u8>, Found> = Default::default();
    for leaf in found {
        if !overlaps(&taken, &leaf.range) {
            taken.insert(leaf.range.lower.clone(), leaf);
        }
    }
    for subtree in hidden {
        let mut from = Some(subtree.range.lower.clone());
        let within = |leaf: &&Found| subtree.range.holds(&leaf.range);
        let pages: Vec<u32> = taken
            .range(subtree.range.lower.clone()..)
            .map(|(_, leaf)| leaf)
            .filter(within)
            .map(|leaf| leaf.page)
            .collect();
        for no in pages {
            let mut bytes = AlignedBuf::zeroed(walk.inspection.page_size().bytes());
            let id = PageId::new(walk.space, no);
            // It was whole a moment ago.
            let Ok(()) = walk.inspection.trusted_page(id, &mut bytes) else { continue };
            let Ok(leaf) = walk.whole_node(&bytes) else { continue };
            let range = Range::of(leaf);
            let at = from.take().expect("only the last leaf has no end");
            if at < range.lower {
                let gap = Range { lower: at, upper: Some(range.lower.clone()) };
                walk.gap(gap, None, under(&subtree));
            }
            walk.found.rescued_leaves += 1;
            walk.leaf(leaf)?;
            from = range.upper;
            if from.is_none() {
                break;
            }
        }
        if let Some(from) = from
            && subtree.range.upper.as_ref().is_none_or(|upper| from < *upper)
        {
            let gap = Range { lower: from, upper: subtree.range.upper.clone() };
            walk.gap(gap, None, under(&subtree));
        }
    }
    Ok(())
}

fn under(subtree: &Hidden) -> String {
    match subtree.page {
        Some(page) => format!("no leaf was found; the inner node, page {page}: {}", subtree.why),
        None => format!("no leaf was found; {}", subtree.why),
    }
}

/// Whether a leaf that was taken has some of these keys.
fn overlaps(taken: &std::collections::BTreeMap<Vec<u8>, Found>, range: &Range) -> bool {
    let before = taken.range(..=range.lower.clone()).next_back();
    if before
        .is_some_and(|(_, leaf)| leaf.range.upper.as_ref().is_none_or(|upper| *upper > range.lower))
    {
        return true;
    }
    let next = taken.range(range.lower.clone()..).next();
    next.is_some_and(|(lower, _)| range.upper.as_ref().is_none_or(|upper| lower < upper))
}

/// Reads all of the file, and finds the leaves of the tree whose keys are hidden.
fn search(walk: &mut Walk<'_>, hidden: &[Hidden]) -> Result<Vec<Found>> {
    let page_size = walk.inspection.page_size().bytes();
    let pages = match walk.inspection.page_count(walk.space) {
        Ok(pages) => pages,
        Err(error) => {
            walk.found.notes.push(error.to_string());
            return Ok(Vec::new());
        }
    };
    let allocated = allocated(walk);
    let mut bytes = AlignedBuf::zeroed(page_size);
    let (mut found, mut lowest) = (Vec::new(), None);
    for no in 0..pages {
        if allocated.as_ref().is_some_and(|allocated| !allocated.contains(no)) {
            continue;
        }
        let id = PageId::new(walk.space, no);
        if walk.inspection.trusted_page(id, &mut bytes).is_err()
            || page::page_type(&bytes) != PageType::TREE_LEAF
        {
            continue;
        }
        let Ok(leaf) = walk.whole_node(&bytes) else { continue };
        let range = Range::of(leaf);
        if walk.tree.is_none() {
            // The clustered index is the first that a table gets.
            if lowest.is_none_or(|lowest| leaf.tree_id() < lowest) {
                lowest = Some(leaf.tree_id());
                found.clear();
            }
            if lowest != Some(leaf.tree_id()) {
                continue;
            }
        }
        if hidden.iter().any(|subtree| subtree.range.holds(&range)) {
            found.push(Found { page: no, lsn: page::page_lsn(&bytes), range });
        }
    }
    if walk.tree.is_none() {
        walk.tree = lowest;
    }
    Ok(found)
}

/// The pages that are in use: a leaf that was freed keeps its bytes. `None` if that can't be known.
fn allocated(walk: &mut Walk<'_>) -> Option<PageSet> {
    let note = |walk: &mut Walk<'_>, why: String| {
        walk.found.notes.push(format!(
            "it is unknown which pages are in use ({why}): where a leaf is broken, rows may be those of an older leaf"
        ));
        None
    };
    let page_size = walk.inspection.page_size().bytes();
    let mut bytes = AlignedBuf::zeroed(page_size);
    let mut set = PageSet::default();
    let per_bitmap = space::pages_per_bitmap(page_size);
    let header = walk.inspection.trusted_page(PageId::new(walk.space, 0), &mut bytes);
    if let Err(why) = header {
        return note(walk, format!("page 0: {why}"));
    }
    let size_pages = crate::format::space_header::size_pages(&bytes);
    for k in 0..size_pages.div_ceil(per_bitmap) {
        let no = k * per_bitmap + 1;
        let read = walk.inspection.trusted_page(PageId::new(walk.space, no), &mut bytes);
        if let Err(why) = read {
            return note(walk, format!("page {no}: {why}"));
        }
        if page::page_type(&bytes) != PageType::BITMAP {
            return note(walk, format!("page {no}: no allocation bitmap"));
        }
        space::bits_of(&bytes, |index| {
            if let Some(no) = (k * per_bitmap).checked_add(index) {
                set.insert(no);
            }
        });
    }
    Some(set)
}
