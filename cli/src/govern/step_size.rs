//! The size of the next step of a resize, learned from the cost of the last ones.
//!
//! A step costs the server's queries some work: the pool's mutex is held, pages are moved. How much
//! depends on the server, its version, its load, and the direction, so it is measured
//! ([`super::probe`]) and the stride follows it, as a congestion window follows losses: a step over
//! the bound halves the stride, one below half of it makes the next half as large again.

use std::time::Duration;

/// Which way the pool goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Less memory.
    Shrink,
    /// More memory.
    Grow,
}

/// The strides of both directions, in bytes.
#[derive(Debug, Clone)]
pub struct StepSize {
    unit_bytes: u64,
    bound: Duration,
    shrink_bytes: u64,
    grow_bytes: u64,
}

/// The first step, before anything is known.
const FIRST_BYTES: u64 = 32 << 20;
/// When memory runs out now, a step takes at least the pool over this.
pub const URGENT_SHARE: u64 = 3;
/// A step down goes on to the end if less than itself over this would be left.
const LEFT_OVER_SHARE: u64 = 8;
/// InnoDB of MariaDB allocates and frees whole extents of this size.
const EXTENT_BYTES: u64 = 8 << 20;

impl StepSize {
    /// Steps are multiples of `unit_bytes` and should cost at most `bound` of the queries' work
    /// each.
    pub fn new(unit_bytes: u64, bound: Duration) -> StepSize {
        let first = FIRST_BYTES.max(unit_bytes);
        StepSize { unit_bytes: unit_bytes.max(1), bound, shrink_bytes: first, grow_bytes: first }
    }

    /// The size after the next step from `from` towards `to`, both bytes; never beyond `to`.
    ///
    /// When memory runs out now (`urgent`), a step is at least a third of the pool: each step has a
    /// fixed cost, and preparing the server for the next one takes longer than moving the pages.
    /// Nor is it much larger, because the memory comes back only at its end.
    pub fn next(&self, from: u64, to: u64, urgent: bool) -> u64 {
        // A change by more than half makes MariaDB rebuild structures sized by the pool.
        let most = (from / 2).max(self.unit_bytes);
        if to < from {
            let least = if urgent { from / URGENT_SHARE } else { 0 };
            let step = self.rounded(self.shrink_bytes.max(least)).min(most);
            // Even a tiny remainder would need another step.
            let left = from.saturating_sub(step).saturating_sub(to);
            let step = if left < step / LEFT_OVER_SHARE { (step + left).min(most) } else { step };
            // Rounded down to the unit: giving back too little would do harm here.
            let next = from.saturating_sub(step).max(to) / self.unit_bytes * self.unit_bytes;
            next.max(self.unit_bytes).min(from)
        } else {
            let step = self.rounded(self.grow_bytes).min(most);
            let next = from.saturating_add(step).min(to) / self.unit_bytes * self.unit_bytes;
            next.max(from)
        }
    }

    fn rounded(&self, bytes: u64) -> u64 {
        let grain = if bytes >= EXTENT_BYTES && EXTENT_BYTES.is_multiple_of(self.unit_bytes) {
            EXTENT_BYTES
        } else {
            self.unit_bytes
        };
        (bytes / grain * grain).max(self.unit_bytes)
    }

    /// Learns from a step of `bytes` that cost `cost`.
    pub fn learn(&mut self, direction: Direction, bytes: u64, cost: Duration) {
        let (unit, bound) = (self.unit_bytes, self.bound);
        let stride = self.stride(direction);
        if cost > bound {
            *stride = (bytes.min(*stride) / 2).max(unit);
        } else if cost * 2 <= bound && bytes * 2 > *stride {
            // Only a step that tried the stride says that a larger one may be tried.
            *stride = (*stride + *stride / 2).min(1 << 40);
        }
    }

    /// A step that failed altogether.
    pub fn failed(&mut self, direction: Direction) {
        let unit = self.unit_bytes;
        let stride = self.stride(direction);
        *stride = (*stride / 2).max(unit);
    }

    /// The pause after a step that cost `cost`, long enough that no second loses a fifth of its
    /// work.
    pub fn rest(&self, cost: Duration, urgent: bool) -> Duration {
        if urgent {
            return Duration::ZERO;
        }
        (cost * 8).clamp(Duration::from_millis(50), Duration::from_secs(5))
    }

    /// The stride now, bytes.
    pub fn bytes(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Shrink => self.shrink_bytes,
            Direction::Grow => self.grow_bytes,
        }
    }

    fn stride(&mut self, direction: Direction) -> &mut u64 {
        match direction {
            Direction::Shrink => &mut self.shrink_bytes,
            Direction::Grow => &mut self.grow_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const BOUND: Duration = Duration::from_millis(100);

    /// A server whose resize costs this many milliseconds a GiB.
    fn settle(ms_per_gib: u64) -> (StepSize, Duration) {
        let mut stride = StepSize::new(MIB, BOUND);
        let (mut size, mut worst) = (200 << 30, Duration::ZERO);
        for step in 0..60 {
            let next = stride.next(size, MIB, false);
            let cost = Duration::from_micros((size - next) * ms_per_gib * 1000 / (1 << 30));
            stride.learn(Direction::Shrink, size - next, cost);
            if step > 20 {
                worst = worst.max(cost);
            }
            size = next;
        }
        (stride, worst)
    }

    #[test]
    fn the_stride_finds_what_the_server_can_bear() {
        let (cheap, worst) = settle(50);
        assert!(cheap.bytes(Direction::Shrink) > 800 * MIB, "{cheap:?}");
        assert!(worst <= BOUND * 3 / 2, "{worst:?}");
        let (dear, worst) = settle(20_000);
        assert!(dear.bytes(Direction::Shrink) < 10 * MIB, "{dear:?}");
        assert!(worst <= BOUND * 3 / 2, "{worst:?}");
    }

    #[test]
    fn steps_end_exactly_at_the_target_or_a_unit_below() {
        let stride = StepSize::new(MIB, BOUND);
        assert_eq!(stride.next(100 * MIB, 90 * MIB, false), 90 * MIB);
        assert_eq!(stride.next(100 * MIB, 90 * MIB + 5, false), 90 * MIB);
        assert_eq!(stride.next(1000 * MIB, 90 * MIB, false), 968 * MIB);
        assert_eq!(stride.next(100 * MIB, 2000 * MIB, false), 132 * MIB);
        assert_eq!(stride.next(100 * MIB, 100 * MIB + 5, false), 100 * MIB);
        assert_eq!(stride.next(1000 * MIB, 90 * MIB, true), 672 * MIB);
        assert_eq!(stride.next(1000 * MIB, 990 * MIB, true), 990 * MIB);
        assert_eq!(stride.next(1000 * MIB, 632 * MIB, true), 632 * MIB);
        assert_eq!(stride.next(1000 * MIB, 630 * MIB, true), 672 * MIB);
        assert_eq!(stride.next(100 * MIB, 2000 * MIB, true), 132 * MIB);
        let chunks = StepSize::new(128 * MIB, BOUND);
        assert_eq!(chunks.next(1024 * MIB, 1000 * MIB, false), 896 * MIB);
        assert_eq!(chunks.next(128 * MIB, 5, false), 128 * MIB);
    }

    #[test]
    fn a_small_last_step_says_nothing_about_large_ones() {
        let mut stride = StepSize::new(MIB, BOUND);
        stride.learn(Direction::Grow, MIB, Duration::ZERO);
        assert_eq!(stride.bytes(Direction::Grow), FIRST_BYTES);
        stride.learn(Direction::Grow, FIRST_BYTES, Duration::ZERO);
        assert_eq!(stride.bytes(Direction::Grow), FIRST_BYTES / 2 * 3);
        assert_eq!(stride.bytes(Direction::Shrink), FIRST_BYTES);
    }
}
