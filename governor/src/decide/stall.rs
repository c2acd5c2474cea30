//! Whether stalls on memory show that the pool is too large.
//!
//! The kernel counts a task as stalled whenever it waits for memory, for any reason:
//!
//! | it waits for | a smaller pool |
//! |---|---|
//! | its own memory to come back from swap | helps |
//! | room below a limit, where what is used can't just be dropped | helps |
//! | a huge page put together from small ones, as the pool itself asks for while it grows | frees no memory |
//! | file cache dropped at the limit of a cgroup that it has filled: in version 2 no kernel thread does that ahead of time | is a larger file cache, at the same limit |
//! | file pages that were dropped, and are read again | helps if they are few |
//!
//! So a stall is not enough. The governor asks three questions, two of them here:
//! * **Is it long?** The stall is measured over [`STALL_WINDOW`], however often the signals are
//!   read: of two readings 2 ms apart, 0.2 ms are a tenth, and mean nothing.
//! * **Is memory short?** Either the room is nearly gone, which [`super::Governor`] knows, or our
//!   memory goes to swap or comes back, or the last file pages do. The last happens without swap
//!   below a limit that can't be seen from here.
//! * **Did the last step help?** If the stall is as long after the pool has become smaller, the
//!   pool was not the reason. Then the governor ignores stalls for [`USELESS_MEMORY`]. It still
//!   answers room that shrinks, and our own memory that goes to swap. The first step comes as soon
//!   as the stall is long, when its later length is not known yet; so the second step is the first
//!   judged.

use std::collections::VecDeque;
use std::time::Duration;

use super::swap::ANSWERED_BYTES;
use super::{PoolState, mib};
use crate::signals::{HEADROOM_MIN_BYTES, Place, Refaults, Signals};

/// A stall of this share of the window, in per cent, counts as long.
pub const STALL_PERCENT: u64 = 10;
/// The time over which a stall is taken. One of a full [`STALL_PERCENT`] of it counts as soon as it
/// has been.
pub const STALL_WINDOW: Duration = Duration::from_millis(500);
/// A step helped if the stall fell by this many percentage points. Less is noise.
const LOWERED_PERCENT: u64 = 5;
/// How long stalls are ignored after a step that did not help.
pub const USELESS_MEMORY: Duration = Duration::from_secs(60);
/// Anonymous pages that come back within the window: from here on it is no daemon that wakes up now
/// and then. The slowest disks bring back some fifty.
const ANON_REFAULTS_MIN: u64 = 16;
/// The same of file pages, where hardly any are left. On a busy machine, a few come back all the
/// time.
const FILE_REFAULTS_MIN: u64 = 256;
/// A file cache below this is nearly gone, bytes. A cgroup that is full of it has a headroom's
/// worth.
const FILE_CACHE_GONE_BYTES: u64 = HEADROOM_MIN_BYTES / 2;

/// The recent stalls.
#[derive(Debug, Default)]
pub(super) struct StallWatch {
    /// Whose stalls.
    place: Option<Place>,
    /// Those of the last [`STALL_WINDOW`], and the one before them; oldest first.
    readings: VecDeque<Reading>,
    /// Since when the stall has been long.
    long_since: Option<Duration>,
    answer: Option<Answer>,
}

#[derive(Debug)]
struct Reading {
    at: Duration,
    total_us: u64,
    refaults: Option<Refaults>,
    /// Of the place.
    file_cache_bytes: Option<u64>,
}

/// A step that was taken.
#[derive(Debug)]
struct Answer {
    at: Duration,
    /// The stall that it answers to.
    percent: u64,
    to_bytes: u64,
    /// Since when the pool has been that small, or the last time that it wasn't.
    settled_at: Duration,
    /// Whether `percent` is that of a whole window in which there was the stall.
    can_be_judged: bool,
    was_useless: bool,
}

impl StallWatch {
    pub(super) fn observe(&mut self, signals: &Signals, pool: &PoolState) {
        let at = signals.at;
        let Some(stall) = &signals.stall else {
            *self = StallWatch::default();
            return;
        };
        // Totals of different places have nothing in common; nor has one that fell with what it
        // was.
        let fell = self.readings.back().is_some_and(|last| stall.total_us < last.total_us);
        if fell || self.place.as_ref() != Some(&stall.place) {
            *self = StallWatch { place: Some(stall.place.clone()), ..StallWatch::default() };
        }
        self.readings.push_back(Reading {
            at,
            total_us: stall.total_us,
            refaults: stall.refaults,
            file_cache_bytes: file_cache_bytes(signals, &stall.place),
        });
        let is_past = |reading: &Reading| at.saturating_sub(reading.at) >= STALL_WINDOW;
        while self.readings.get(1).is_some_and(is_past) {
            self.readings.pop_front();
        }
        match self.percent_of_window() >= STALL_PERCENT {
            true => _ = self.long_since.get_or_insert(at),
            false => self.long_since = None,
        }
        self.judge_answer(at, pool);
    }

    /// A step is judged by a whole window after the pool has carried it out.
    fn judge_answer(&mut self, at: Duration, pool: &PoolState) {
        let percent = self.percent_of_window();
        self.answer.take_if(|answer| {
            if at.saturating_sub(answer.at) >= USELESS_MEMORY {
                return true;
            }
            if answer.was_useless {
                return false;
            }
            if pool.resident_bytes > answer.to_bytes {
                answer.settled_at = at;
            }
            if at.saturating_sub(answer.settled_at) < STALL_WINDOW {
                return false;
            }
            answer.was_useless = answer.can_be_judged
                && percent >= STALL_PERCENT
                && percent + LOWERED_PERCENT > answer.percent;
            !answer.was_useless
        });
    }

    /// Per cent of the window that was stalled, if that is long, and there is hope that a smaller
    /// pool helps.
    pub(super) fn percent(&self) -> Option<u64> {
        let is_hopeless = self.answer.as_ref().is_some_and(|answer| answer.was_useless);
        let percent = self.percent_of_window();
        (percent >= STALL_PERCENT && !is_hopeless).then_some(percent)
    }

    /// Less than a window has been seen at first; then what is missing counts as free of stalls.
    fn percent_of_window(&self) -> u64 {
        let Some((first, last)) = self.ends() else { return 0 };
        let window = last.at.saturating_sub(first.at).max(STALL_WINDOW);
        let stalled_us = u128::from(last.total_us - first.total_us);
        (stalled_us * 100 / window.as_micros()).min(100) as u64
    }

    /// What was taken away within the window, or wanted back, if it is a sign of want: a sentence.
    /// `swapped` bytes went to swap.
    pub(super) fn want(&self, swapped: u64) -> Option<String> {
        let (first, last) = self.ends()?;
        let grown = |of: fn(&Reading) -> Option<u64>| {
            of(last).zip(of(first)).map_or(0, |(now, before)| now.saturating_sub(before))
        };
        if swapped > ANSWERED_BYTES {
            return Some(format!("{} of this process went to swap", mib(swapped)));
        }
        let anon_pages = grown(|reading| Some(reading.refaults?.anon_pages));
        if anon_pages >= ANON_REFAULTS_MIN {
            return Some(format!("{anon_pages} pages came back from swap"));
        }
        let file_pages = grown(|reading| Some(reading.refaults?.file_pages));
        let cache = last.file_cache_bytes.filter(|&bytes| bytes < FILE_CACHE_GONE_BYTES)?;
        (file_pages >= FILE_REFAULTS_MIN).then(|| {
            format!("{file_pages} pages of files came back, of which only {} are left", mib(cache))
        })
    }

    fn ends(&self) -> Option<(&Reading, &Reading)> {
        Some((self.readings.front()?, self.readings.back()?))
    }

    /// Whether the last step has not been judged yet.
    pub(super) fn awaits_effect(&self) -> bool {
        self.answer.is_some()
    }

    /// A stall of `percent` was answered by a limit of `to_bytes`.
    pub(super) fn answered(&mut self, at: Duration, percent: u64, to_bytes: u64) {
        let lasts = self.long_since.is_some_and(|since| at.saturating_sub(since) >= STALL_WINDOW);
        self.answer = Some(Answer {
            at,
            percent,
            to_bytes,
            settled_at: at,
            can_be_judged: lasts,
            was_useless: false,
        });
    }
}

fn file_cache_bytes(signals: &Signals, place: &Place) -> Option<u64> {
    let Place::Cgroup(directory) = place else { return None };
    let level = signals.levels.iter().find(|level| level.directory == *directory)?;
    Some(level.file_cache_bytes)
}

#[cfg(test)]
mod tests;
