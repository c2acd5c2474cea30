//! In which reads, and in which order, a list of hot pages is loaded.
//!
//! What counts is what a read brings for the time that it takes, and a read of many neighbours
//! takes hardly longer than that of one page: on a volume that limits the number of reads, sixteen
//! count as one. So pages are not taken strictly by heat, which would come back to the same stretch
//! of a file once for each degree, but stretch by stretch, the one with the most heat first. If
//! there is not room for all, the coldest are put off: what there is room for comes first. And what
//! the pool held comes before what an older list named besides, however hot that was then: it fits
//! the pool, if the pool is as large as it was, and no query has asked for the other since.

use tidepool_pool::PageId;

use crate::hot_list::HotList;

/// Bytes from the first to the last page of one read.
pub(super) const READ_BYTES: usize = 8 << 20;
/// Bytes that are read in vain rather than to begin another read behind them.
const GAP_BYTES: usize = 128 << 10;

/// A page to be loaded: its number, and how hot it was.
pub(super) type Warm = (u32, u8);

/// Neighbouring pages of one space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    space: u32,
    /// Where its pages are in `Reads::pages`.
    first: usize,
    count: usize,
}

/// The reads that are left.
pub(super) struct Reads {
    pages: Vec<Warm>,
    reads: Vec<Read>,
    next: usize,
}

impl Reads {
    /// Plans the loading of `list` into a pool that has room for `room` pages.
    pub(super) fn plan(list: &HotList, mut room: usize, page_size: usize) -> Reads {
        // What was held and fits, what was held besides, and the same of what comes behind.
        let mut parts: [Vec<(PageId, u8)>; 4] = Default::default();
        for (which, pages) in [&list.held, &list.behind].into_iter().enumerate() {
            for (heat, of_heat) in pages.iter().enumerate().rev() {
                let heat = u8::try_from(heat).unwrap_or(u8::MAX);
                for &id in of_heat {
                    parts[2 * which + usize::from(room == 0)].push((id, heat));
                    room = room.saturating_sub(1);
                }
            }
        }
        let mut plan =
            Reads { pages: Vec::with_capacity(list.count()), reads: Vec::new(), next: 0 };
        for part in &mut parts {
            plan.add(part, page_size);
        }
        plan
    }

    fn add(&mut self, part: &mut [(PageId, u8)], page_size: usize) {
        part.sort_unstable();
        let span = (READ_BYTES / page_size) as u32;
        let gap = (GAP_BYTES / page_size) as u32;
        let mut reads: Vec<(u64, Read)> = Vec::new();
        let mut rest = &*part;
        while let Some(&(first, _)) = rest.first() {
            let follows = |pair: &&[(PageId, u8)]| {
                let (before, page) = (pair[0].0, pair[1].0);
                page.space == first.space
                    && page.no - before.no <= gap + 1
                    && page.no - first.no < span
            };
            let count = 1 + rest.windows(2).take_while(follows).count();
            let (pages, after) = rest.split_at(count);
            // A degree of heat is twice the use.
            let heat = pages.iter().map(|&(_, heat)| 1u64 << heat).sum();
            reads.push((heat, Read { space: first.space, first: self.pages.len(), count }));
            self.pages.extend(pages.iter().map(|&(id, heat)| (id.no, heat)));
            rest = after;
        }
        // Stable: of equals, the order of their files.
        reads.sort_by_key(|&(heat, _)| std::cmp::Reverse(heat));
        self.reads.extend(reads.into_iter().map(|(_, read)| read));
    }

    /// Pages on the list.
    pub(super) fn total(&self) -> usize {
        self.pages.len()
    }

    /// The next read, a space and its pages in rising order, until [`Reads::done`].
    pub(super) fn peek(&self) -> Option<(u32, &[Warm])> {
        let read = self.reads.get(self.next)?;
        Some((read.space, &self.pages[read.first..read.first + read.count]))
    }

    /// Of the read that `peek` returned, the first `count` pages are done.
    pub(super) fn done(&mut self, count: usize) {
        let read = &mut self.reads[self.next];
        read.first += count;
        read.count -= count;
        self.next += usize::from(read.count == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 16 << 10;

    fn list(pages: &[(usize, u32, u32)]) -> HotList {
        let mut list = HotList::default();
        for &(heat, space, no) in pages {
            list.held[heat].push(PageId::new(space, no));
        }
        list
    }

    fn planned(list: &HotList, room: usize) -> Vec<(u32, Vec<Warm>)> {
        let mut reads = Reads::plan(list, room, PAGE);
        let mut all = Vec::new();
        while let Some((space, pages)) = reads.peek() {
            let pages = pages.to_vec();
            reads.done(pages.len());
            all.push((space, pages));
        }
        all
    }

    #[test]
    fn neighbours_come_together_whatever_their_heat_and_the_hottest_stretch_first() {
        let list = list(&[
            (4, 2, 500),
            (3, 1, 12),
            (2, 1, 10),
            (0, 1, 11),
            (3, 1, 20),
            (3, 1, 13),
            (1, 3, 0),
            (1, 3, 8),
        ]);
        assert_eq!(
            planned(&list, 100),
            [
                // 4 + 1 + 8 + 8 + 8
                (1, vec![(10, 2), (11, 0), (12, 3), (13, 3), (20, 3)]),
                (2, vec![(500, 4)]),
                (3, vec![(0, 1), (8, 1)]),
            ]
        );
    }

    #[test]
    fn a_read_is_of_eight_mebibytes_at_most_and_leaps_over_small_gaps_only() {
        let all: Vec<(usize, u32, u32)> =
            (0..1026).map(|no| (0, 1, no)).chain([(0, 1, 1034), (0, 1, 1044)]).collect();
        let counts: Vec<usize> =
            planned(&list(&all), 2000).iter().map(|read| read.1.len()).collect();
        // Pages 1024, 1025 and 1034 lie close enough; 1044 lies further.
        assert_eq!(counts, [512, 512, 3, 1]);
    }

    #[test]
    fn a_read_cut_short_goes_on_where_it_was() {
        let mut reads = Reads::plan(&list(&[(0, 1, 5), (0, 1, 6), (0, 1, 7), (0, 2, 1)]), 9, PAGE);
        reads.done(2);
        assert_eq!(reads.peek(), Some((1, &[(7, 0)][..])));
        reads.done(0);
        reads.done(1);
        assert_eq!(reads.peek(), Some((2, &[(1, 0)][..])));
        reads.done(1);
        assert_eq!(reads.peek(), None);
    }

    #[test]
    fn what_there_is_no_room_for_comes_last() {
        let list = list(&[(0, 1, 1), (0, 1, 2), (0, 1, 3), (0, 1, 4), (1, 2, 7), (2, 2, 900)]);
        assert_eq!(
            planned(&list, 2),
            [(2, vec![(900, 2)]), (2, vec![(7, 1)]), (1, vec![(1, 0), (2, 0), (3, 0), (4, 0)])]
        );
        assert_eq!(Reads::plan(&list, 2, PAGE).total(), 6);
    }

    #[test]
    fn what_was_held_comes_before_what_was_once_hotter() {
        let mut list = list(&[(0, 1, 1), (3, 1, 2)]);
        list.behind[4] = [500, 900, 901].map(|no| PageId::new(2, no)).to_vec();
        let (held, behind) = ((1, vec![(1, 0), (2, 3)]), [(900, 4), (901, 4)]);
        assert_eq!(planned(&list, 9), [held.clone(), (2, behind.to_vec()), (2, vec![(500, 4)])]);
        // What has no room of either comes behind what has, and its order is the same.
        assert_eq!(planned(&list, 3), [held, (2, vec![(500, 4)]), (2, behind.to_vec())]);
        let one = [(1, vec![(2, 3)]), (1, vec![(1, 0)])];
        assert_eq!(planned(&list, 1)[..2], one);
    }
}
