//! Detects a burst: others take the room so fast that a small step down would come too late.
//!
//! A step has a fixed cost, a tenth of a second. One that gives back 20 MiB in that time, while a
//! neighbour takes 70, leaves less room than before, and the next step runs while the kernel swaps.
//! So the room when a step ends counts, not the room now.

use std::time::{Duration, Instant};

use tidepool_governor::Decision;
use tidepool_governor::signals::{Place, Room};

use super::step_size::URGENT_SHARE;
use crate::bytes::MIB;

/// Time from a decision until a large step, and the step before it, have given their memory back.
const STEP_TAKES: Duration = Duration::from_millis(300);
/// A burst lasts this long after its last sign.
const LASTS: Duration = Duration::from_secs(1);
/// Less than this between two readings is noise.
const NOISE_BYTES: u64 = 4 * MIB;
/// A drop of this many bytes since the last check is a burst: the neighbours began after that
/// check, not at the last reading.
const BURST_BYTES: u64 = 16 * MIB;
/// The shortest time between two readings that a rate is computed from.
const CLOSEST: Duration = Duration::from_millis(20);

/// The recent growth of the others.
#[derive(Debug, Default)]
pub struct BurstDetector {
    last: Option<Reading>,
    /// The last check of the room since then: when, and the room.
    glance: Option<(Instant, u64)>,
    until: Option<Instant>,
    /// The last reading is a sign of a burst: no room would be left when a step ends.
    now: bool,
}

/// One reading, bytes.
#[derive(Debug)]
struct Reading {
    at: Instant,
    /// The limit that bound.
    place: Place,
    /// Use below that limit, without the pool's.
    others: u64,
    /// The pool's size.
    size: u64,
}

impl BurstDetector {
    /// At `now`, between two readings, the room was `room_bytes`.
    pub fn glance(&mut self, now: Instant, room_bytes: u64) {
        self.glance = Some((now, room_bytes));
    }

    /// At `now` the binding limit leaves `room`, of which `headroom_bytes` must stay free, and the
    /// pool of `size_bytes` holds `held_bytes`.
    pub fn observe(
        &mut self,
        now: Instant,
        size_bytes: u64,
        held_bytes: u64,
        room: &Room,
        headroom_bytes: u64,
    ) {
        let (left_bytes, others) = (room.bytes(), room.used_bytes.saturating_sub(held_bytes));
        let reading = Reading { at: now, place: room.place.clone(), others, size: size_bytes };
        let glance = self.glance.take();
        let Some(last) = self.last.replace(reading) else { return };
        // Another limit has other processes below it, so the difference is no growth.
        let grown = match last.place == room.place {
            true => others.saturating_sub(last.others),
            false => 0,
        };
        let burst = glance
            .map(|(at, room)| (at, room.saturating_sub(left_bytes).min(grown)))
            .filter(|&(_, burst)| burst >= BURST_BYTES);
        let (since, grown) = burst.unwrap_or((last.at, grown));
        let elapsed = now.saturating_duration_since(since).max(CLOSEST).as_secs_f64();
        let soon = (grown as f64 * STEP_TAKES.as_secs_f64() / elapsed) as u64;
        let sign = grown > NOISE_BYTES && left_bytes < soon.saturating_add(headroom_bytes / 2);
        if sign {
            self.until = Some(now + LASTS);
        }
        // When the pool frees swapped or untouched pages, usage does not fall, so it looks like
        // growth of others.
        self.now = sign && left_bytes < soon && size_bytes == last.size;
    }

    /// The largest size of a pool of `size_bytes` after its next step down; `None` where any step
    /// is large enough. `out_of_room`: half of the headroom is gone. Others that pause while there
    /// is room again may have finished.
    pub fn at_most(&self, now: Instant, size_bytes: u64, out_of_room: bool) -> Option<u64> {
        let goes_on = self.now || out_of_room && self.until.is_some_and(|until| now < until);
        goes_on.then_some(size_bytes - size_bytes / URGENT_SHARE)
    }
}

/// The reason of a step, also where a burst makes it larger ([`at_most`](BurstDetector::at_most))
/// than the room alone would.
pub fn reason(decision: &Decision, at_most: Option<u64>) -> String {
    let reason = decision.reason.clone();
    match at_most.is_some_and(|most| most < decision.to_bytes) {
        true => format!(
            "{reason}; memory is disappearing too fast, so the pool shrinks by a third at once"
        ),
        false => reason,
    }
}

#[cfg(test)]
mod tests {
    use tidepool_governor::Signal;

    use super::*;

    #[test]
    fn a_third_that_goes_for_a_rush_is_not_put_down_to_the_room_alone() {
        let decision = Decision {
            signal: Signal::RoomShrank,
            from_bytes: SIZE,
            to_bytes: 700 * MIB,
            reason: "little is left".into(),
        };
        assert_eq!(reason(&decision, None), "little is left");
        assert_eq!(reason(&decision, Some(750 * MIB)), "little is left");
        assert!(
            reason(&decision, Some(600 * MIB))
                .starts_with("little is left; memory is disappearing too fast")
        );
    }

    const HEADROOM: u64 = 100 * MIB;
    const SIZE: u64 = 800 * MIB;

    /// A pool that holds all of its `size` beside `others`.
    fn observe(burst: &mut BurstDetector, now: Instant, size: u64, others: u64, left: u64) {
        observe_in(burst, now, Place::Machine, size, others, left);
    }

    fn observe_in(
        burst: &mut BurstDetector,
        now: Instant,
        place: Place,
        size: u64,
        others: u64,
        left: u64,
    ) {
        let used_bytes = size + others;
        let room = Room { limit_bytes: used_bytes + left, used_bytes, place };
        burst.observe(now, size, size, &room, HEADROOM);
    }

    /// Others that grow by `step` every `pace`, with `left` of room at the third reading.
    fn seen(step: u64, pace: Duration, left: u64) -> Option<u64> {
        let (mut burst, start) = (BurstDetector::default(), Instant::now());
        for reading in 0..3u32 {
            let others = 200 * MIB + u64::from(reading) * step;
            let left = left + u64::from(2 - reading) * step;
            observe(&mut burst, start + pace * reading, SIZE, others, left);
        }
        burst.at_most(start + pace * 2, SIZE, false)
    }

    #[test]
    fn a_pace_that_would_use_the_headroom_up_within_a_step_is_a_rush() {
        let tick = Duration::from_millis(100);
        assert_eq!(seen(25 * MIB, tick, 70 * MIB), Some(SIZE - SIZE / 3));
        // The same pace with room enough, and a slow ramp with hardly more than half of the
        // headroom.
        assert_eq!(seen(25 * MIB, tick, 300 * MIB), None);
        assert_eq!(seen(5 * MIB, tick, 66 * MIB), None);
        // Seen at a glance, long before the next reading is due.
        assert_eq!(seen(25 * MIB, Duration::from_millis(20), 300 * MIB), Some(SIZE - SIZE / 3));
    }

    #[test]
    fn noise_is_none_with_little_room_either() {
        assert_eq!(seen(3 * MIB, Duration::from_millis(20), 10 * MIB), None);
    }

    #[test]
    fn another_limit_that_binds_is_no_rush() {
        let (mut burst, start) = (BurstDetector::default(), Instant::now());
        let group = Place::Cgroup("/sys/fs/cgroup/db".into());
        let later = |ms| start + Duration::from_millis(ms);
        observe_in(&mut burst, start, group.clone(), SIZE, 200 * MIB, 120 * MIB);
        // The machine has slowly become the tighter one, and on it there are many more.
        observe(&mut burst, later(100), SIZE, 9000 * MIB, 119 * MIB);
        assert_eq!(burst.at_most(later(100), SIZE, false), None);
        observe_in(&mut burst, later(200), group, SIZE, 201 * MIB, 119 * MIB);
        observe(&mut burst, later(300), SIZE, 9001 * MIB, 118 * MIB);
        assert_eq!(burst.at_most(later(300), SIZE, true), None);
    }

    #[test]
    fn a_burst_has_the_pace_that_it_has_since_the_last_glance() {
        let seen = |glance: Option<(u64, u64)>, taken: u64| {
            let (mut burst, start) = (BurstDetector::default(), Instant::now());
            let later = |ms| start + Duration::from_millis(ms);
            observe(&mut burst, start, SIZE, 200 * MIB, 110 * MIB);
            if let Some((ms, room)) = glance {
                burst.glance(later(ms), room * MIB);
            }
            observe(&mut burst, later(100), SIZE, (200 + taken) * MIB, (110 - taken) * MIB);
            burst.at_most(later(100), SIZE, false).is_some()
        };
        // 25 MiB in a tenth of a second leave enough, and in a fiftieth they don't.
        assert!(!seen(None, 25));
        assert!(seen(Some((80, 110)), 25));
        assert!(!seen(Some((80, 95)), 25));
        // A process that starts.
        assert!(!seen(Some((80, 110)), 15));
    }

    #[test]
    fn it_ends_a_second_after_its_last_sign() {
        let (mut burst, start) = (BurstDetector::default(), Instant::now());
        observe(&mut burst, start, SIZE, 200 * MIB, 80 * MIB);
        observe(&mut burst, start + Duration::from_millis(50), SIZE, 230 * MIB, 50 * MIB);
        observe(&mut burst, start + Duration::from_millis(900), SIZE, 230 * MIB, 50 * MIB);
        let at_most =
            |ms, out_of_room| burst.at_most(start + Duration::from_millis(ms), SIZE, out_of_room);
        assert!(at_most(1049, true).is_some());
        assert!(at_most(1049, false).is_none());
        assert!(at_most(1050, true).is_none());
    }

    #[test]
    fn what_a_step_seems_to_leave_to_others_is_no_pace() {
        let (mut burst, start) = (BurstDetector::default(), Instant::now());
        let after = start + Duration::from_millis(50);
        observe(&mut burst, start, SIZE, 200 * MIB, 80 * MIB);
        observe(&mut burst, after, SIZE / 2, 230 * MIB, 150 * MIB);
        assert!(burst.at_most(after, SIZE / 2, false).is_none());
        assert!(burst.at_most(after, SIZE / 2, true).is_some());
    }
}
