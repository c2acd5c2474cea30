//! One budget for all that the engine allocates: what it leaves the pool.
//!
//! Everything beside the pool's pages is asked how much it has: the pool what describes its pages,
//! and by [`RestOfEngine`] what is above it. The pool can have the rest of the budget, in whole
//! extents, down to a floor without which nothing would go on: beyond that the budget is exceeded.
//! What the others take is charged at once, and for as long as it may come back: the most that they
//! have had in the last seconds counts, so that a lock table which breathes does not move the pool.
//! While a directory is being opened there is no report yet, and recovery may fill the pool: what
//! is known by then of log buffers and of recovery is charged beforehand.

use std::collections::VecDeque;
use std::time::Duration;

use super::FLOOR_BYTES;
use tidepool_pool::{EXTENT_BYTES, Pool};

/// How long it is remembered what the others had.
const REMEMBERED: Duration = Duration::from_secs(3);
/// How often they are asked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The part of a budget that the pool has in any case; at most what a pool is never made smaller
/// than.
const FLOOR_PARTS: u64 = 4;

/// Returns what the engine has allocated beside the pool, in bytes. Asked at every step, under the
/// governor's mutex.
pub(crate) type RestOfEngine = Box<dyn Fn() -> u64 + Send + Sync>;

/// What is charged to a budget.
#[derive(Default)]
pub(super) struct Budget {
    rest_of_engine: Option<RestOfEngine>,
    /// All but the pool's pages at the last look, in bytes.
    rest_bytes: u64,
    /// What it was at the looks that are remembered, when; each less than all before it, as what
    /// came before something larger is of no matter.
    peaks: VecDeque<(Duration, u64)>,
    looked_at: Option<Duration>,
}

impl Budget {
    pub(super) fn set_rest_of_engine(&mut self, rest: RestOfEngine) {
        self.rest_of_engine = Some(rest);
    }

    /// Asks what is allocated now, unless that was asked a moment ago.
    pub(super) fn look(&mut self, pool: &Pool, at: Duration) {
        if self.looked_at.is_some_and(|looked| at.saturating_sub(looked) < LOOK_EVERY) {
            return;
        }
        self.looked_at = Some(at);
        let of_engine = self.rest_of_engine.as_ref().map_or(0, |rest| rest());
        self.charge(pool.memory_beside_frames() + of_engine, at);
    }

    /// Bytes that are taken beside the pool's pages.
    pub(super) fn charge(&mut self, rest_bytes: u64, at: Duration) {
        self.rest_bytes = rest_bytes;
        self.peaks
            .retain(|(then, bytes)| *bytes > rest_bytes && at.saturating_sub(*then) < REMEMBERED);
        self.peaks.push_back((at, rest_bytes));
    }

    /// All but the pool's pages at the last look, in bytes.
    pub(super) fn rest_bytes(&self) -> u64 {
        self.rest_bytes
    }

    /// What a budget of `budget_bytes` leaves the pool.
    pub(super) fn leaves_of(&self, budget_bytes: u64) -> u64 {
        let most = self.peaks.front().map_or(0, |(_, bytes)| *bytes);
        let charged = most.next_multiple_of(EXTENT_BYTES as u64);
        let floor = FLOOR_BYTES.min(budget_bytes / FLOOR_PARTS);
        budget_bytes.saturating_sub(charged).max(floor)
    }

    pub(super) fn reason(&self, budget_bytes: u64) -> String {
        let (budget, rest) = (budget_bytes >> 20, self.rest_bytes >> 20);
        format!(
            "of the memory budget of {budget} MiB, {rest} MiB are taken by what is not the pool's pages"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_taken_is_charged_at_once_and_what_is_given_back_when_it_has_stayed_so() {
        let mut budget = Budget::default();
        assert_eq!(budget.leaves_of(64 * MIB), 64 * MIB);
        // At which second, the rest, what is left.
        for (at, rest, leaves) in [
            (0, 1, 62),
            (1, 3, 60),
            (2, 1, 60),
            (3, 2, 60),
            (4, 9, 54),
            (6, 5, 54),
            (7, 1, 58),
            (9, 0, 62),
            (11, 0, 64),
        ] {
            budget.charge(rest * MIB, Duration::from_secs(at));
            assert_eq!(budget.leaves_of(64 * MIB), leaves * MIB, "at {at} s");
            assert_eq!(budget.rest_bytes(), rest * MIB);
        }
        // The pool has something in any case.
        budget.charge(100 * MIB, Duration::from_secs(20));
        assert_eq!(budget.leaves_of(40 * MIB), 10 * MIB);
        assert_eq!(budget.leaves_of(100 * MIB), 16 * MIB);
    }
}
