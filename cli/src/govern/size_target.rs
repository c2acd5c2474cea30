//! The target size of several steps, checked before each step.
//!
//! A step of MySQL may take a minute. So before each step a target of growing must still fit, and a
//! shrink ends when the room is back. Another program may have set a size beyond the target; that
//! ends the steps too, because the decision included the direction.

use tidepool_governor::Signal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeTarget {
    /// The size, bytes.
    pub bytes: u64,
    /// The signal that it answers.
    pub signal: Signal,
    /// Whether the target was above the size at the decision.
    pub grows: bool,
    /// Memory runs out now: no rest between steps.
    pub urgent: bool,
    /// It answers a shortage of room, and so ends when the room is back.
    pub while_short: bool,
}

impl SizeTarget {
    /// The size to step towards from `size_bytes`, where the governor would now have `target_bytes`
    /// (`None`: it knows no limit). The present size when there is nothing more to be done.
    pub fn towards(self, size_bytes: u64, target_bytes: Option<u64>) -> u64 {
        if self.grows {
            return self.bytes.min(target_bytes.unwrap_or(0)).max(size_bytes);
        }
        if self.while_short && target_bytes.is_some_and(|target| target >= size_bytes) {
            return size_bytes;
        }
        self.bytes.min(size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(bytes: u64, while_short: bool) -> SizeTarget {
        SizeTarget { bytes, signal: Signal::RoomShrank, grows: false, urgent: false, while_short }
    }

    fn growth(bytes: u64) -> SizeTarget {
        SizeTarget { grows: true, ..target(bytes, false) }
    }

    #[test]
    fn growing_goes_no_further_than_what_still_fits() {
        assert_eq!(growth(100).towards(60, Some(200)), 100);
        assert_eq!(growth(100).towards(60, Some(80)), 80);
        assert_eq!(growth(100).towards(60, Some(50)), 60, "and never turns into shrinking");
        assert_eq!(growth(100).towards(60, None), 60);
    }

    #[test]
    fn shrinking_for_room_that_went_ends_when_it_is_back() {
        assert_eq!(target(40, true).towards(60, Some(50)), 40);
        assert_eq!(target(40, true).towards(60, Some(60)), 60);
        assert_eq!(target(40, true).towards(60, Some(90)), 60);
        assert_eq!(target(40, true).towards(60, None), 40);
    }

    #[test]
    fn shrinking_for_another_reason_goes_all_the_way() {
        assert_eq!(target(40, false).towards(60, Some(90)), 40);
        assert_eq!(target(40, true).towards(40, Some(90)), 40, "and ends there");
    }

    #[test]
    fn a_size_beyond_it_that_others_set_is_left() {
        assert_eq!(target(40, false).towards(30, Some(90)), 30);
        assert_eq!(target(40, true).towards(30, Some(35)), 30);
        assert_eq!(growth(100).towards(150, Some(200)), 150);
    }
}
