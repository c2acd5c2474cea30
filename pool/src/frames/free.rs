//! Free frames taken, given back, and waited for.
//!
//! A frame that is taken is *in transit* until it is installed in a page word or given back. Which
//! free frame is taken, and when a new extent is started for it, is up to
//! [`Extents`](super::extents::Extents).

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Frames;

impl Frames {
    /// Takes a free frame, starting a new extent if the list is empty and the limit allows.
    pub(crate) fn take(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let was_refused = free.extents.is_refused();
        let frame = free.extents.take(|extent| self.commit(extent));
        let is_refused = free.extents.is_refused();
        if frame.is_some() || is_refused != was_refused {
            self.publish(&free.extents);
        }
        drop(free);
        debug_assert!(frame.is_none_or(|frame| self.descriptor(frame).is_vacant()));
        if is_refused && !was_refused {
            self.log_refusal();
        }
        frame
    }

    /// Gives a frame back that has no page.
    pub(crate) fn give(&self, frame: u32) {
        debug_assert!(self.descriptor(frame).is_vacant(), "a frame that is free holds nothing");
        let mut free = self.free.lock();
        if free.extents.give(frame) {
            self.publish(&free.extents);
            if free.waiting > 0 {
                self.freed.notify_one();
            }
        }
    }

    /// Whether a frame in transit may be used for another page. If not, it was given back: its
    /// extent is being drained.
    pub(crate) fn may_reuse(&self, frame: u32) -> bool {
        if self.draining.load(Ordering::Relaxed) == 0 || self.free.lock().extents.is_open(frame) {
            return true;
        }
        self.give(frame);
        false
    }

    /// Waits until a frame may be free, at most for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        let mut free = self.free.lock();
        if free.extents.available() == 0 {
            free.waiting += 1;
            self.freed.wait_for(&mut free, timeout);
            free.waiting -= 1;
        }
    }
}
