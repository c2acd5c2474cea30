//! Whether others are taking the room so fast that a small step down would come too late.
//!
//! A step has a fixed cost, a tenth of a second. One that gives back 20 MiB in that time, while a neighbour takes 70, leaves less room than there
//! was, and the next one works while the kernel swaps. So what counts is not the room now, but the room when a step ends.

use std::time::{Duration, Instant};

use crate::bytes::MIB;

/// From a decision to the memory of a large step, and of the one before it.
const STEP_TAKES: Duration = Duration::from_millis(300);
/// So long after the last sign of it, a rush is taken to go on.
const LASTS: Duration = Duration::from_secs(1);
/// While it goes on, a step down is at least the pool over this.
const SHARE: u64 = 8;
/// Less than this between two readings is noise.
const NOISE_BYTES: u64 = 4 * MIB;
/// Readings are not closer than this.
const CLOSEST: Duration = Duration::from_millis(20);

/// What was seen of the others.
#[derive(Debug, Default)]
pub struct Rush {
    /// The last reading, and what all but the pool used then, bytes.
    last: Option<(Instant, u64)>,
    until: Option<Instant>,
}

impl Rush {
    /// At `now` all but the pool use `others_bytes`, and `left_bytes` are left below the limit that binds, where
    /// `headroom_bytes` are to be kept free.
    pub fn observe(
        &mut self,
        now: Instant,
        others_bytes: u64,
        left_bytes: u64,
        headroom_bytes: u64,
    ) {
        let Some((at, before)) = self.last.replace((now, others_bytes)) else { return };
        let grown = others_bytes.saturating_sub(before);
        let elapsed = now.saturating_duration_since(at).max(CLOSEST).as_secs_f64();
        let soon = (grown as f64 * STEP_TAKES.as_secs_f64() / elapsed) as u64;
        if grown > NOISE_BYTES && left_bytes < soon.saturating_add(headroom_bytes / 2) {
            self.until = Some(now + LASTS);
        }
    }

    /// The most that a pool of `size_bytes` may have after its next step down; `None` where any step is large enough.
    pub fn at_most(&self, now: Instant, size_bytes: u64) -> Option<u64> {
        self.until.filter(|&until| now < until).map(|_| size_bytes - size_bytes / SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADROOM: u64 = 100 * MIB;
    const SIZE: u64 = 800 * MIB;

    /// Others that grow by `step` every `pace`, with `left` of room at the third reading.
    fn seen(step: u64, pace: Duration, left: u64) -> Option<u64> {
        let (mut rush, start) = (Rush::default(), Instant::now());
        for reading in 0..3u32 {
            let others = 200 * MIB + u64::from(reading) * step;
            let left = left + u64::from(2 - reading) * step;
            rush.observe(start + pace * reading, others, left, HEADROOM);
        }
        rush.at_most(start + pace * 2, SIZE)
    }

    #[test]
    fn a_pace_that_would_use_the_headroom_up_within_a_step_is_a_rush() {
        let tick = Duration::from_millis(100);
        assert_eq!(seen(25 * MIB, tick, 77 * MIB), Some(700 * MIB));
        // The same pace with room enough, and a slow ramp with hardly more than half of the headroom.
        assert_eq!(seen(25 * MIB, tick, 300 * MIB), None);
        assert_eq!(seen(5 * MIB, tick, 66 * MIB), None);
        // Seen at a glance, long before the next reading is due.
        assert_eq!(seen(25 * MIB, Duration::from_millis(20), 300 * MIB), Some(700 * MIB));
    }

    #[test]
    fn noise_is_none_with_little_room_either() {
        assert_eq!(seen(3 * MIB, Duration::from_millis(20), 10 * MIB), None);
    }

    #[test]
    fn it_ends_a_second_after_its_last_sign() {
        let (mut rush, start) = (Rush::default(), Instant::now());
        rush.observe(start, 200 * MIB, 80 * MIB, HEADROOM);
        rush.observe(start + Duration::from_millis(50), 230 * MIB, 50 * MIB, HEADROOM);
        rush.observe(start + Duration::from_millis(900), 230 * MIB, 50 * MIB, HEADROOM);
        assert!(rush.at_most(start + Duration::from_millis(1049), SIZE).is_some());
        assert!(rush.at_most(start + Duration::from_millis(1050), SIZE).is_none());
    }
}
