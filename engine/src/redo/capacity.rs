//! How large the redo log is when no size is set.
//!
//! A larger log lets pages stay dirty for longer, so that a page which is changed often is written
//! seldom; that pays as far as the pool can hold dirty pages at all. It costs disk and time at
//! recovery. So the capacity follows the memory that the pool really holds, within bounds: up at
//! once, down only when it has been too large for a while, since a smaller log means that pages
//! must be written now.

use std::time::Duration;

/// Smallest and largest automatic capacity, bytes.
pub const AUTOMATIC_RANGE_BYTES: std::ops::RangeInclusive<u64> = (128 << 20)..=(4 << 30);
/// The pool's memory over this is the capacity.
const POOL_SHARE: u64 = 2;
/// How long the log must have been too large.
const SHRINK_AFTER: Duration = Duration::from_secs(300);

/// Follows the pool. See the [module](self).
#[derive(Debug, Default)]
pub struct AutomaticCapacity {
    too_large_for: Duration,
}

/// The automatic capacity for a pool that holds `resident_bytes`.
pub fn automatic(resident_bytes: u64) -> u64 {
    (resident_bytes / POOL_SHARE)
        .clamp(*AUTOMATIC_RANGE_BYTES.start(), *AUTOMATIC_RANGE_BYTES.end())
}

impl AutomaticCapacity {
    /// The capacity to change to, if it is to change, `elapsed` after the last call. Changes are by
    /// a quarter at least.
    pub fn step(&mut self, now_bytes: u64, resident_bytes: u64, elapsed: Duration) -> Option<u64> {
        let wanted = automatic(resident_bytes);
        self.too_large_for = match wanted < now_bytes / 4 * 3 {
            true => self.too_large_for + elapsed,
            false => Duration::ZERO,
        };
        let grows =
            wanted > now_bytes / 4 * 5 || wanted > now_bytes && wanted == automatic(u64::MAX);
        let shrinks = self.too_large_for >= SHRINK_AFTER;
        if shrinks {
            self.too_large_for = Duration::ZERO;
        }
        (grows || shrinks).then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_grows_with_the_pool_at_once_and_stays_within_bounds() {
        let mut capacity = AutomaticCapacity::default();
        assert_eq!(capacity.step(128 * MIB, 100 * MIB, SECOND), None);
        assert_eq!(capacity.step(128 * MIB, 300 * MIB, SECOND), None);
        assert_eq!(capacity.step(128 * MIB, 400 * MIB, SECOND), Some(200 * MIB));
        assert_eq!(capacity.step(3800 * MIB, u64::MAX, SECOND), Some(4096 * MIB));
        assert_eq!(capacity.step(4096 * MIB, u64::MAX, SECOND), None);
    }

    #[test]
    fn it_shrinks_only_when_the_pool_stays_small() {
        let mut capacity = AutomaticCapacity::default();
        for second in 0..1000 {
            // A minute small, then a moment large: a neighbour that comes and goes.
            let resident = if second % 60 == 0 { 1000 } else { 300 };
            assert_eq!(capacity.step(500 * MIB, resident * MIB, SECOND), None);
        }
        let changed = (0..400).find_map(|_| capacity.step(500 * MIB, 300 * MIB, SECOND));
        assert_eq!(changed, Some(150 * MIB));
    }
}
