//! The hot pages: which they are, by racy reads of the frames' access words, so that they can be
//! recorded for the next start.
//!
//! Nothing is latched and no thread waits. A page that comes, goes or moves meanwhile may be missed
//! or listed twice: a list of hot pages is a hint, and its reader checks every page that it names.

use crate::page::PageId;
use crate::pool::Pool;

/// Degrees of heat: 0 = there, but not used lately, to 4 = used most.
pub const HEATS: usize = 5;

/// Frames looked at between two calls of the caller's `go_on`.
const SLICE: u32 = 16 * 1024;

impl Pool {
    /// How many resident pages are of each heat. Pages that only a scan has brought are of none.
    ///
    /// `go_on` is called now and then, and may rest; `None` as soon as it says no.
    pub fn count_heat(&self, go_on: impl FnMut() -> bool) -> Option<[u64; HEATS]> {
        let mut counts = [0; HEATS];
        self.visit_hot(go_on, |_, heat| counts[heat] += 1)?;
        Some(counts)
    }

    /// The hottest `max` pages by their heat, each heat's in order of their addresses, each page
    /// once. Of the least heat that comes in at all there may be more than there is room for: any
    /// of these then.
    ///
    /// `go_on` as for [`Pool::count_heat`].
    pub fn hot_pages(
        &self,
        max: usize,
        mut go_on: impl FnMut() -> bool,
    ) -> Option<[Vec<PageId>; HEATS]> {
        let counts = self.count_heat(&mut go_on)?;
        let mut room = [0; HEATS];
        let mut left = max;
        for heat in (0..HEATS).rev() {
            // Heat changes while we look, so each takes what is left; but the hotter reserve what
            // they had.
            room[heat] = left;
            left = left.saturating_sub(counts[heat] as usize);
        }
        let mut pages: [Vec<PageId>; HEATS] = Default::default();
        self.visit_hot(go_on, |id, heat| {
            if pages[heat].len() < room[heat] {
                pages[heat].push(id);
            }
        })?;
        let mut left = max;
        for of_heat in pages.iter_mut().rev() {
            of_heat.truncate(left);
            left -= of_heat.len();
            of_heat.sort_unstable_by_key(|id| id.to_u64());
            of_heat.dedup();
        }
        Some(pages)
    }

    fn visit_hot(
        &self,
        mut go_on: impl FnMut() -> bool,
        mut visit: impl FnMut(PageId, usize),
    ) -> Option<()> {
        let frames = &self.core.frames;
        for frame in 0..frames.highest() {
            if frame % SLICE == SLICE - 1 && !go_on() {
                return None;
            }
            let Some(id) = frames.descriptor(frame).page() else { continue };
            if let Some(heat) = self.core.replacement.heat(frame) {
                visit(id, usize::from(heat).min(HEATS - 1));
            }
        }
        Some(())
    }
}
