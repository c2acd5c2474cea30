//! A tablespace from within: its header page and the allocation of its pages.
//!
//! A space is one file of pages. Page 0 is the header; bitmap pages, one bit a page (1 =
//! allocated), lie at `1 + k × pages_per_bitmap` and cover the pages `k × pages_per_bitmap ..`
//! each. `docs/internals/format/pages.md` has both byte by byte.
//!
//! # Allocation
//! A mini-transaction may fail only before its first change, so allocation has two halves:
//! [`Allocation::reserve`] latches the header and the bitmaps, chooses the pages and latches them
//! too, and grows the file where needed (a full disk shows here); [`Allocation::take`] then sets
//! bits, and cannot fail. Likewise [`Allocation::holding`] and [`Allocation::free`]. Pages are
//! chosen close behind a given one, then from the lowest that may be free.
//!
//! A file grows before the header says so; a crash in between leaves it longer than `size_pages`,
//! and the next growth takes the surplus up. Likewise a space gets shorter by its header
//! ([`cut_free_tail`]), and its file later, if it does.
//!
//! # Latching
//! The header and the bitmap pages come last of all page latches (behind trees and undo), the
//! header before the bitmaps, which are changed only under the header's latch. A thread that holds
//! an [`Allocation`] may latch no further page in use; the new pages it latches itself are no
//! one's, so no one who holds one of them can be waiting.

mod auto_increment;

pub use auto_increment::AutoIncrement;

use crate::env::Env;
use crate::error::{Error, Result};
pub use crate::format::space_header::pages_per_bitmap;
use crate::format::space_header::{
    self, BITMAP_BITS_AT as BITS_AT, FORMAT_VERSION, FREE_HINT_AT, SIZE_PAGES_AT, SpaceHeader,
    TABLE_AREA, u32_at, u64_at,
};
use crate::mtr::{Mtr, PageHandle};
use crate::page_op::PageOp;
use std::ops::Range;
use tidepool_pool::{Access, PAGE_HEADER_SIZE, PageId, PageType, Space, page};

/// Offset in a bitmap page of the number of bits set, u32.
const ALLOCATED_AT: usize = 32;
/// Pages of a new space's file.
const INITIAL_PAGES: u32 = 8;
/// A file grows by a quarter, at most by this many bytes.
const GROWTH_BYTES_MAX: usize = 4 << 20;

/// The bitmap page that covers page `no`.
pub const fn bitmap_of(no: u32, page_size: usize) -> u32 {
    no / pages_per_bitmap(page_size) * pages_per_bitmap(page_size) + 1
}

/// Makes a new, empty file a space: header and first bitmap.
pub fn create<'a>(mtr: &mut Mtr<'a>, env: &Env, space: &'a Space) -> Result<()> {
    let page_size = env.page_size();
    env.grow_file(space, INITIAL_PAGES)?;
    let header = mtr.new_page(space, 0)?;
    let bitmap = mtr.new_page(space, 1)?;
    mtr.apply(header, &PageOp::Format { page_type: PageType::SPACE_HEADER, tree_id: 0 });
    let header_fields = SpaceHeader {
        format_version: FORMAT_VERSION,
        page_size: page_size as u32,
        space_id: space.id(),
        flags: 0,
        instance: env.instance(),
        size_pages: INITIAL_PAGES,
        free_hint: 2,
        auto_increment: 0,
        row_count: 0,
    };
    let bytes = header_fields.body();
    mtr.apply(header, &PageOp::Write { offset: PAGE_HEADER_SIZE as u32, bytes: &bytes });
    mtr.apply(bitmap, &PageOp::Format { page_type: PageType::BITMAP, tree_id: 0 });
    // Header and bitmap themselves.
    mtr.apply(bitmap, &PageOp::Write { offset: ALLOCATED_AT as u32, bytes: &2u32.to_le_bytes() });
    mtr.apply(bitmap, &PageOp::Write { offset: BITS_AT as u32, bytes: &[0b11] });
    Ok(())
}

/// The latched header and bitmaps of a space, with pages set aside to be taken, or known to be
/// allocated and so free to free.
#[derive(Debug)]
pub struct Allocation {
    page_size: usize,
    header: PageHandle,
    /// Latched bitmaps by the number `k` of the range they cover.
    bitmaps: Vec<(u32, PageHandle)>,
    /// Pages set aside, latched, the next to be taken last.
    pages: Vec<(u32, PageHandle)>,
    /// What the header is to say once the first page is taken.
    size_pages: u32,
    free_hint: u32,
    /// A bitmap page that came with the file's growth and is not formatted yet.
    new_bitmap: Option<PageHandle>,
}

impl Allocation {
    /// Sets `count` pages aside, close behind page `near` where possible (0 = anywhere), and
    /// latches them as new pages. Grows the file where it has too few. Nothing is changed yet, so
    /// an error leaves no trace, nor does dropping the outcome.
    pub fn reserve<'a>(
        mtr: &mut Mtr<'a>,
        space: &'a Space,
        near: u32,
        count: usize,
    ) -> Result<Allocation> {
        let mut allocation = Allocation::latch(mtr, space)?;
        let per_bitmap = pages_per_bitmap(allocation.page_size);
        let (size_pages, hint) = (allocation.size_pages, allocation.free_hint);
        let mut found = Vec::with_capacity(count);
        if near > hint && near < size_pages {
            let range_end = (near / per_bitmap + 1).saturating_mul(per_bitmap).min(size_pages);
            allocation.pick(mtr, space, near..range_end, count, &mut found)?;
        }
        if found.len() < count {
            allocation.pick(mtr, space, hint..size_pages, count, &mut found)?;
            allocation.free_hint = match found.len() == count {
                true => found[count - 1] + 1,
                false => size_pages,
            };
        }
        if found.len() < count {
            allocation.grow(mtr, space, (count - found.len()) as u32)?;
            let grown = size_pages..allocation.size_pages;
            allocation.pick(mtr, space, grown, count, &mut found)?;
            assert_eq!(found.len(), count, "the file has grown by enough");
            allocation.free_hint = found[count - 1] + 1;
        }
        for no in found.into_iter().rev() {
            let page = mtr.new_page(space, no)?;
            allocation.pages.push((no, page));
        }
        Ok(allocation)
    }

    /// Latches what freeing these pages needs, and checks that they are allocated.
    pub fn holding<'a>(mtr: &mut Mtr<'a>, space: &'a Space, pages: &[u32]) -> Result<Allocation> {
        let mut allocation = Allocation::latch(mtr, space)?;
        let per_bitmap = pages_per_bitmap(allocation.page_size);
        for &no in pages {
            let is_own = no == 0 || no % per_bitmap == 1;
            if is_own || no >= allocation.size_pages || {
                let bitmap = allocation.bitmap(mtr, space, no / per_bitmap)?;
                !bit(mtr.page(bitmap), no % per_bitmap)
            } {
                return Err(corrupt(space, no, "to be freed, but not allocated to anyone"));
            }
        }
        Ok(allocation)
    }

    fn latch<'a>(mtr: &mut Mtr<'a>, space: &'a Space) -> Result<Allocation> {
        let header = mtr.exclusive(space, 0)?;
        let page = mtr.page(header);
        check_page(space, 0, page, PageType::SPACE_HEADER)?;
        Ok(Allocation {
            page_size: page.len(),
            header,
            bitmaps: Vec::new(),
            pages: Vec::new(),
            size_pages: u32_at(page, SIZE_PAGES_AT),
            free_hint: u32_at(page, FREE_HINT_AT),
            new_bitmap: None,
        })
    }

    /// The bitmap of range `k`, latched now if it was not.
    fn bitmap<'a>(&mut self, mtr: &mut Mtr<'a>, space: &'a Space, k: u32) -> Result<PageHandle> {
        if let Some(&(_, page)) = self.bitmaps.iter().find(|(range, _)| *range == k) {
            return Ok(page);
        }
        let no = k * pages_per_bitmap(self.page_size) + 1;
        let page = mtr.exclusive(space, no)?;
        check_page(space, no, mtr.page(page), PageType::BITMAP)?;
        self.bitmaps.push((k, page));
        Ok(page)
    }

    /// Adds free pages among `pages` to `found`, until it has `count`.
    fn pick<'a>(
        &mut self,
        mtr: &mut Mtr<'a>,
        space: &'a Space,
        pages: Range<u32>,
        count: usize,
        found: &mut Vec<u32>,
    ) -> Result<()> {
        let per_bitmap = pages_per_bitmap(self.page_size);
        let mut next = pages.start;
        while next < pages.end && found.len() < count {
            let k = next / per_bitmap;
            let range_end = (k + 1).saturating_mul(per_bitmap).min(pages.end);
            let bitmap = self.bitmap(mtr, space, k)?;
            let bits = mtr.page(bitmap);
            while found.len() < count
                && let Some(index) =
                    first_clear(bits, next - k * per_bitmap, range_end - k * per_bitmap)
            {
                let no = k * per_bitmap + index;
                // The second page of a range is its bitmap, whose own bit is yet to be set if it is
                // new.
                if index != 1 && !found.contains(&no) {
                    found.push(no);
                }
                next = no + 1;
            }
            if found.len() < count {
                next = range_end;
            }
        }
        Ok(())
    }

    /// Lets the file, and with it the space, grow by at least `missing` pages for use.
    fn grow<'a>(&mut self, mtr: &mut Mtr<'a>, space: &'a Space, missing: u32) -> Result<()> {
        let per_bitmap = pages_per_bitmap(self.page_size);
        let most = (GROWTH_BYTES_MAX / self.page_size) as u32;
        // One more than missing: the growth may bring another bitmap page.
        let by = (self.size_pages / 4).clamp(INITIAL_PAGES, most).max(missing + 1);
        assert!(by < per_bitmap, "one growth brings at most one bitmap");
        let last_range = (self.size_pages - 1) / per_bitmap;
        let full = || Error::NoSpace(format!("{}: it has 2^32 pages", space.name()));
        let mut new_size = self.size_pages.checked_add(by).ok_or_else(full)?;
        let new_range = (new_size - 1) / per_bitmap;
        if new_range > last_range {
            // A range that begins has its bitmap, and a page to use.
            new_size = new_size.max(new_range.checked_mul(per_bitmap).ok_or_else(full)? + 3);
        }
        mtr.env().grow_file(space, new_size)?;
        if new_range > last_range {
            let bitmap = mtr.new_page(space, new_range * per_bitmap + 1)?;
            self.bitmaps.push((new_range, bitmap));
            self.new_bitmap = Some(bitmap);
        }
        assert!(new_size - self.size_pages > missing, "there is room for what is missing");
        self.size_pages = new_size;
        Ok(())
    }

    /// Takes a page that was set aside: its number and the latched, zeroed page, to be formatted by
    /// the caller.
    pub fn take(&mut self, mtr: &mut Mtr<'_>) -> (u32, PageHandle) {
        let (no, page) = self.pages.pop().expect("no more pages are taken than were set aside");
        assert!(no < self.size_pages, "page {no} lies in the space");
        self.write_header(mtr, SIZE_PAGES_AT, self.size_pages);
        // Pages set aside and not taken stay free.
        let hint = self.pages.iter().fold(self.free_hint, |hint, &(no, _)| hint.min(no));
        self.write_header(mtr, FREE_HINT_AT, hint);
        if let Some(bitmap) = self.new_bitmap.take() {
            let one = 1u32.to_le_bytes();
            mtr.apply(bitmap, &PageOp::Format { page_type: PageType::BITMAP, tree_id: 0 });
            mtr.apply(bitmap, &PageOp::Write { offset: ALLOCATED_AT as u32, bytes: &one });
            mtr.apply(bitmap, &PageOp::Write { offset: BITS_AT as u32, bytes: &[0b10] });
        }
        self.set_bit(mtr, no, true);
        (no, page)
    }

    /// Frees one of the pages given to [`Allocation::holding`]. The caller holds it latched, or
    /// nothing leads to it any more.
    pub fn free(&mut self, mtr: &mut Mtr<'_>, no: u32) {
        assert!(no > 1 && no < self.size_pages, "page {no} lies in the space, and may be free");
        self.set_bit(mtr, no, false);
        self.free_hint = self.free_hint.min(no);
        self.write_header(mtr, FREE_HINT_AT, self.free_hint);
    }

    /// Frees a page as [`Allocation::free`] does, and leaves nothing of what it held: its image in
    /// a packed file then takes next to no room. For pages that nothing leads to any more, and that
    /// need not be read for this.
    pub fn free_emptied<'a>(&mut self, mtr: &mut Mtr<'a>, space: &'a Space, no: u32) {
        self.free(mtr, no);
        // Without a frame for it the page keeps what it held, which does no harm.
        if let Ok(page) = mtr.new_page(space, no) {
            mtr.apply(page, &PageOp::Format { page_type: PageType::FREE, tree_id: 0 });
        }
    }

    /// The page that is taken next.
    pub fn next_page(&self) -> u32 {
        self.pages.last().expect("no more pages are taken than were set aside").0
    }

    /// Zeroes eight bytes of the header's table area.
    pub fn clear_in_header(&self, mtr: &mut Mtr<'_>, at: usize) {
        assert!(TABLE_AREA.start <= at && at + 8 <= TABLE_AREA.end);
        mtr.apply(self.header, &PageOp::Write { offset: at as u32, bytes: &[0; 8] });
    }

    fn write_header(&self, mtr: &mut Mtr<'_>, at: usize, value: u32) {
        if u32_at(mtr.page(self.header), at) != value {
            let bytes = &value.to_le_bytes();
            mtr.apply(self.header, &PageOp::Write { offset: at as u32, bytes });
        }
    }

    fn set_bit(&self, mtr: &mut Mtr<'_>, no: u32, value: bool) {
        let (k, index) =
            (no / pages_per_bitmap(self.page_size), no % pages_per_bitmap(self.page_size));
        let held = self.bitmaps.iter().find(|(range, _)| *range == k);
        let bitmap = held.expect("the page's bitmap is latched").1;
        let page = mtr.page(bitmap);
        assert_ne!(bit(page, index), value, "page {no} taken or freed twice");
        let at = BITS_AT + index as usize / 8;
        let byte = page[at] ^ 1 << (index % 8);
        let allocated = u32_at(page, ALLOCATED_AT);
        // A damaged count is found by a check.
        let change = if value { 1 } else { -1 };
        let allocated = allocated.saturating_add_signed(change);
        mtr.apply(bitmap, &PageOp::Write { offset: at as u32, bytes: &[byte] });
        let bytes = &allocated.to_le_bytes();
        mtr.apply(bitmap, &PageOp::Write { offset: ALLOCATED_AT as u32, bytes });
    }
}

fn corrupt(space: &Space, no: u32, why: &str) -> Error {
    Error::corrupt(space.name(), no, why)
}

/// A header or bitmap of zeroes is no broken page to the pool, but one that was never written. To
/// an allocation it would say that everything is free. The bitmaps of all ranges that the space's
/// size reaches into have been written.
fn check_page(space: &Space, no: u32, page: &[u8], page_type: PageType) -> Result<()> {
    let is_it =
        page::page_type(page) == page_type && page::page_id(page) == PageId::new(space.id(), no);
    let what = match page_type {
        PageType::BITMAP => "it is no allocation bitmap",
        _ => "it is no space header",
    };
    if is_it { Ok(()) } else { Err(corrupt(space, no, what)) }
}

pub(crate) fn bit(bitmap: &[u8], index: u32) -> bool {
    bitmap[BITS_AT + index as usize / 8] >> (index % 8) & 1 == 1
}

/// Shows the positions of the bits that are set in a bitmap page.
pub fn bits_of(bitmap: &[u8], mut see: impl FnMut(u32)) {
    let bits = ((bitmap.len() - BITS_AT) * 8) as u32;
    (0..bits).filter(|&index| bit(bitmap, index)).for_each(&mut see);
}

/// First index in `start..end` whose bit is clear.
pub(crate) fn first_clear(bitmap: &[u8], start: u32, end: u32) -> Option<u32> {
    let mut index = start;
    while index < end {
        if index.is_multiple_of(64) && index + 64 <= end {
            let word = u64_at(bitmap, BITS_AT + index as usize / 8);
            if word == u64::MAX {
                index += 64;
                continue;
            }
            let first = index + word.trailing_ones();
            debug_assert!(!bit(bitmap, first), "the bit is clear");
            return Some(first);
        }
        if !bit(bitmap, index) {
            return Some(index);
        }
        index += 1;
    }
    None
}

/// Makes the space end behind its last allocated page, if that is at least `least` pages less;
/// returns how many. The file stays as it is, and must, as long as recovery may come to changes of
/// the pages that are gone.
pub fn cut_free_tail(env: &Env, space: &Space, least: u32) -> Result<u32> {
    let mut mtr = Mtr::begin(env)?;
    let allocation = Allocation::latch(&mut mtr, space)?;
    let per_bitmap = pages_per_bitmap(allocation.page_size);
    let mut end = allocation.size_pages;
    while end > INITIAL_PAGES {
        let (k, covered) = ((end - 1) / per_bitmap, (end - 1) % per_bitmap + 1);
        let no = k * per_bitmap + 1;
        // Shared, and one at a time: who would change it needs the header.
        let bitmap = env.pool().shared(space, no, Access::Normal)?;
        check_page(space, no, &bitmap, PageType::BITMAP)?;
        // The bitmap itself, the second page of its range, is needed for the others only.
        match (0..covered).rev().find(|&index| index != 1 && bit(&bitmap, index)) {
            Some(index) => {
                end = k * per_bitmap + (index + 1).max(2);
                break;
            }
            None => end = k * per_bitmap,
        }
    }
    let end = end.max(INITIAL_PAGES);
    let gone = allocation.size_pages.saturating_sub(end);
    if gone == 0 || gone < least {
        return Ok(0);
    }
    assert!(end >= INITIAL_PAGES && end < allocation.size_pages, "the space gets shorter");
    allocation.write_header(&mut mtr, SIZE_PAGES_AT, end);
    allocation.write_header(&mut mtr, FREE_HINT_AT, allocation.free_hint.min(end));
    mtr.commit();
    Ok(gone)
}

/// Numbers of pages, a bit each.
#[derive(Debug, Default)]
pub struct PageSet(Vec<u64>);

impl PageSet {
    /// Adds a page.
    pub fn insert(&mut self, no: u32) {
        let at = no as usize / 64;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (no % 64);
    }

    /// Whether it has the page.
    pub fn contains(&self, no: u32) -> bool {
        self.0.get(no as usize / 64).is_some_and(|word| word >> (no % 64) & 1 == 1)
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let words = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u32 * 64 + bit)
        })
    }
}

/// Compares the pages that something leads to with those that are allocated, and returns how many
/// are allocated only.
/// A page that is reached and free is an error: it would be given away a second time.
///
/// As exact as [`for_each_allocated`].
pub fn check_allocated(env: &Env, space: &Space, reached: &PageSet) -> Result<u64> {
    let mut allocated = PageSet::default();
    for_each_allocated(env, space, |no| allocated.insert(no))?;
    if let Some(no) = reached.iter().find(|&no| !allocated.contains(no)) {
        let why = "it is in use, and its allocation bitmap has it as free: rebuild the table, or \
                   restore the data directory from a backup";
        return Err(corrupt(space, no, why));
    }
    let page_size = env.page_size();
    let is_own = |no: u32| no == 0 || no == bitmap_of(no, page_size);
    Ok(allocated.iter().filter(|&no| !reached.contains(no) && !is_own(no)).count() as u64)
}

/// The pages of a space that are allocated, header and bitmaps included, ascending: to compare with
/// what is reachable.
///
/// Latches one bitmap at a time: exact only while no thread allocates.
pub fn allocated_pages(env: &Env, space: &Space) -> Result<Vec<u32>> {
    let mut pages = Vec::new();
    for_each_allocated(env, space, |no| pages.push(no))?;
    Ok(pages)
}

/// Shows each page of [`allocated_pages`].
pub fn for_each_allocated(env: &Env, space: &Space, mut see: impl FnMut(u32)) -> Result<()> {
    let header = space_header::read(env.pool(), space)?;
    let per_bitmap = pages_per_bitmap(env.page_size());
    for k in 0..header.size_pages.div_ceil(per_bitmap) {
        let no = k * per_bitmap + 1;
        let bitmap = env.pool().shared(space, no, Access::Normal)?;
        check_page(space, no, &bitmap, PageType::BITMAP)?;
        let covered = (header.size_pages - k * per_bitmap).min(per_bitmap);
        let mut count = 0;
        for index in (0..covered).filter(|&index| bit(&bitmap, index)) {
            see(k * per_bitmap + index);
            count += 1;
        }
        if count != u32_at(&bitmap, ALLOCATED_AT) {
            return Err(corrupt(space, no, "the number of bits set is not the one stated"));
        }
        if (covered..per_bitmap).any(|index| bit(&bitmap, index)) {
            return Err(corrupt(space, no, "a page beyond the space's end is marked allocated"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
