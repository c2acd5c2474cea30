//! Which extents a shrink gives back, and how what is left in them is moved to others.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{PassedOver, Resize, Slice, Worker};
use crate::frames::ExtentState;
use crate::shrink_throttle::marked_at_most;
use crate::sync::Wants;

/// Extents of a wave at most; in a resize of very many, a 64th of them.
const WAVE_MAX: usize = 64;

/// What came of trying to move a page.
enum Move {
    Done,
    InUse,
    InFlight,
}

impl Resize {
    /// Chooses the extents to give back, and the wave.
    pub(super) fn mark(&self, worker: &mut Worker) {
        let frames = &self.core.frames;
        let mut extents = self.timed(|| frames.survey());
        // Blocked ones last. Of the others the emptiest first; among equals those that are marked
        // already, since nothing was moved into them; then those at the end of the address space.
        extents.sort_by_cached_key(|it| {
            let pages = (it.started - it.free) as u32 * 1024 / it.started as u32;
            let fresh = it.state != ExtentState::Draining;
            (worker.blocked.contains(&it.extent), pages, fresh, std::cmp::Reverse(it.extent))
        });
        let debt = frames.debt();
        let mut paid = 0;
        let most = match self.core.shrink_throttle.is_on() {
            true => marked_at_most(extents.len()),
            false => extents.len(),
        };
        let chosen: Vec<u32> = extents
            .iter()
            .take(most)
            .take_while(|it| {
                let wanted = paid < debt;
                paid += it.started as u32;
                wanted
            })
            .map(|it| it.extent)
            .collect();
        let chosen_set: BTreeSet<u32> = chosen.iter().copied().collect();
        for it in &extents {
            match (it.state, chosen_set.contains(&it.extent)) {
                (ExtentState::Draining, false) => self.timed(|| frames.reopen(it.extent)),
                (ExtentState::Open, true) => self.timed(|| frames.drain(it.extent)),
                _ => {}
            }
        }
        worker.wave = chosen.iter().take(worker.wave_len).copied().collect();
        // These come last, so if one is chosen for the wave, there are no others.
        worker.last_resort = worker.wave.first().is_some_and(|it| worker.blocked.contains(it));
        if worker.last_resort {
            worker.blocked.clear();
        }
        worker.wave_len = (worker.wave_len * 2).min((chosen.len() / 64).max(WAVE_MAX)).min(most);
        (worker.at, worker.ahead) = (0, 0);
        (worker.progress, worker.starved) = (false, false);
        worker.passed_over = PassedOver::default();
    }

    /// Empties the next extent of the wave as far as it can be, and gives it back if it is empty.
    pub(super) fn drain_next(&self, worker: &mut Worker) -> Slice {
        let frames = &self.core.frames;
        if worker.at >= worker.wave.len() {
            if !worker.progress {
                let wave = std::mem::take(&mut worker.wave);
                if worker.last_resort {
                    return Slice::Blocked(worker.passed_over.why());
                }
                worker.blocked.extend(wave);
                return Slice::More;
            }
            (worker.at, worker.progress) = (0, false);
            worker.passed_over = PassedOver::default();
        }
        let extent = worker.wave[worker.at];
        if !frames.is_draining(extent) {
            // The limit was raised and lowered again meanwhile: pages would be moved to and fro
            // within it.
            worker.wave.clear();
            return Slice::More;
        }
        if !self.move_pages_of(extent, worker) {
            // This extent is gone on with once there are frames to move its pages to.
            return self.evict_slice(worker);
        }
        match frames.give_back(extent) {
            Ok(true) => {
                worker.wave.remove(worker.at);
                (worker.progress, worker.worked) = (true, true);
                Slice::More
            }
            Ok(false) => {
                let PassedOver { in_use, in_flight } = &mut worker.passed_over;
                // If no page of it was passed over, a frame is in transit.
                *in_use += u32::from(*in_use + *in_flight == 0);
                worker.at += 1;
                Slice::More
            }
            Err(error) => {
                worker.wave.clear();
                Slice::Blocked(format!(
                    "the kernel does not take memory back ({error}); is the process' memory locked?"
                ))
            }
        }
    }

    /// Moves the pages in the extent elsewhere, as far as they can be latched. False: there was no
    /// frame for the next.
    fn move_pages_of(&self, extent: u32, worker: &mut Worker) -> bool {
        let frames = &self.core.frames;
        self.drop_from_swap(extent, u64::MAX, worker);
        let first = extent * frames.per_extent();
        let mut free = None;
        for frame in first..first + frames.per_extent() {
            if frames.descriptor(frame).page().is_none() {
                worker.progress |= self.tier.release_frame(frame);
                continue;
            }
            let Some(to) = free.take().or_else(|| self.take_to_move(worker)) else { return false };
            match self.try_move(frame, to) {
                Move::Done => worker.progress = true,
                Move::InUse => {
                    worker.passed_over.in_use += 1;
                    free = Some(to);
                }
                Move::InFlight => {
                    worker.passed_over.in_flight += 1;
                    free = Some(to);
                }
            }
        }
        if let Some(to) = free {
            frames.give(to);
        }
        true
    }

    /// A free frame to move a page to, unless pages should be evicted first.
    fn take_to_move(&self, worker: &Worker) -> Option<u32> {
        let frames = &self.core.frames;
        // The last free frames are for those who must not wait, as long as others can be had.
        if self.is_short_of_free() && self.excess() > 0 {
            return None;
        }
        let to = frames.take()?;
        if worker.sweep.finds_any() {
            frames.forget_if_in_swap(to);
        }
        frames.touch(to);
        Some(to)
    }

    /// Tries to move the page in `frame` to the frame `to`, which is in transit. Never waits. See
    /// the head of this module.
    fn try_move(&self, frame: u32, to: u32) -> Move {
        let frames = &self.core.frames;
        let (from_frame, to_frame) = (frames.descriptor(frame), frames.descriptor(to));
        let Some(id) = from_frame.page() else { return Move::InUse };
        let in_flight = || from_frame.flushing.load(Ordering::Acquire) != 0;
        let spaces = self.core.spaces.read();
        let word = spaces.get(&id.space).and_then(|space| space.existing_word(id.no));
        let Some(word) = word else { return Move::InUse };
        let began = Instant::now();
        let Ok(latch) = word.try_latch(Wants::Shared) else { return Move::InUse };
        if latch.frame() != frame || in_flight() {
            return if in_flight() { Move::InFlight } else { Move::InUse };
        }
        #[expect(unsafe_code, reason = "the latch makes the bytes safe to read")]
        // SAFETY: the page in `frame` is latched shared; `to` is in transit, and is another.
        unsafe {
            frames.bytes_mut(to).copy_from_slice(frames.bytes(frame));
        }
        let mut is_awaited = word.load().has_waiters();
        let latched = latch.latched();
        drop(latch);
        // If frame and version are the same, so are the bytes.
        let mut upgraded = word.try_relatch(latched);
        let moved = upgraded.is_some() && !in_flight();
        if let Some(latch) = upgraded.as_mut().filter(|_| moved) {
            latch.set_changed();
            assert_eq!(from_frame.page(), Some(id), "word and frame name each other");
            assert!(to_frame.is_vacant(), "a page moves to a free frame");
            to_frame.set_page(Some(id));
            self.timed(|| self.core.replacement.relocate(frame, to));
            let set_word = || word.relocate(to, to_frame.version());
            let version = self.timed(|| self.core.dirty.relocate(frames, frame, to, set_word));
            from_frame.set_page(None);
            from_frame.set_version(version);
        }
        let was_upgraded = upgraded.is_some();
        is_awaited |= was_upgraded && word.load().has_waiters();
        drop(upgraded);
        if is_awaited {
            self.core.resize_wait.note_since(began);
        }
        match (was_upgraded, moved) {
            (_, true) => {}
            (true, false) => return Move::InFlight,
            (false, false) => return Move::InUse,
        }
        drop(spaces);
        frames.give(frame);
        self.pages_moved.fetch_add(1, Ordering::Relaxed);
        Move::Done
    }
}
