//! Between which sizes the pool is governed, and what becomes of a decision that the server can't
//! follow to the byte.
//!
//! A server takes sizes that are multiples of its unit only, and rounds others up by itself. So the
//! bounds are rounded once, inwards, and every size between them is rounded down: what is set is
//! what was decided, or less, and never less than the user's `--min`.

use tidepool_governor::{Decision, Signal};

use super::pool::InnodbPool;
use crate::bytes::{MIB, human};
use crate::exit::{Error, Result};

/// Unless `--min` says otherwise.
const FLOOR_BYTES: u64 = 64 * MIB;

/// What the user wants and the server can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// `--min`.
    pub min: Option<u64>,
    /// `--max`.
    pub max: Option<u64>,
    /// Sizes are multiples of this.
    pub unit_bytes: u64,
    /// The least that the server can be set to while it runs, a multiple of the unit.
    pub least_bytes: u64,
    pub most_bytes: u64,
}

impl Bounds {
    /// Those of a pool.
    pub fn new(min: Option<u64>, max: Option<u64>, pool: &InnodbPool) -> Bounds {
        Bounds {
            min,
            max,
            unit_bytes: pool.unit_bytes.max(1),
            least_bytes: pool.least_bytes,
            most_bytes: pool.size_max_bytes,
        }
    }

    /// Whether the user has given `--min`.
    pub fn has_min(&self) -> bool {
        self.min.is_some()
    }

    /// Whether there is a size between them.
    ///
    /// # Errors
    /// [`Error::Usage`] where no size that this server can have is both `--min` and `--max`.
    pub fn check(&self) -> Result<()> {
        let Some(max) = self.max else { return Ok(()) };
        if max < self.least_bytes {
            let (max, least) = (human(max), human(self.least_bytes));
            return Err(Error::Usage(format!(
                "--max {max} is less than the {least} that this server's pool can be set to while \
                 it runs; write a size like 512M or 1.5G"
            )));
        }
        let Some(min) = self.min else { return Ok(()) };
        let rounded = self.up(min);
        if rounded <= max {
            return Ok(());
        }
        let unit = human(self.unit_bytes);
        Err(Error::Usage(format!(
            "this server's pool has multiples of {unit} only: --min {} makes that {}, which is above --max {}",
            human(min),
            human(rounded),
            human(max)
        )))
    }

    /// What the user should know of them, where the pool has `size_bytes`.
    pub fn notices(&self, size_bytes: u64) -> Vec<String> {
        let mut notices = Vec::new();
        let rounded = self.min.map(|min| (min, self.up(min))).filter(|(min, up)| min != up);
        if let Some((min, up)) = rounded {
            let (min, up, unit) = (human(min), human(up), human(self.unit_bytes));
            notices.push(format!(
                "--min {min} becomes {up}: this server's pool has multiples of {unit} only"
            ));
        }
        let more = self.most_bytes <= size_bytes && self.max.is_none_or(|max| max > size_bytes);
        if more || self.min.is_some_and(|min| min > self.most_bytes) {
            notices.push(format!(
                "the server lets its pool grow no further than {} (innodb_buffer_pool_size_max): for more, write a larger one into \
                 its configuration and restart it",
                human(self.most_bytes)
            ));
        }
        notices
    }

    /// Never below this, where the pool has `size_bytes`; a multiple of the unit.
    pub fn floor_bytes(&self, size_bytes: u64) -> u64 {
        let floor = match self.min {
            Some(min) => self.up(min).min(self.down(self.most_bytes)),
            None => self.down(FLOOR_BYTES.min(size_bytes).min(self.max.unwrap_or(u64::MAX))),
        };
        floor.max(self.least_bytes)
    }

    /// Never above this; a multiple of the unit, and not below the floor.
    pub fn ceiling_bytes(&self, floor_bytes: u64) -> u64 {
        let max = self.max.unwrap_or(u64::MAX).min(self.most_bytes);
        self.down(max).max(floor_bytes)
    }

    /// The size to set for a decision: a multiple of the unit, and no more than `at_most`.
    pub fn size_for(&self, decision: &Decision, at_most: Option<u64>, floor_bytes: u64) -> u64 {
        let Decision { signal, from_bytes, to_bytes, .. } = *decision;
        let size = match to_bytes.checked_sub(from_bytes) {
            // Each page of growth brings a thirteenth of its size in descriptors and the like. What
            // the user asks for is without these.
            Some(growth) if signal != Signal::Floor => from_bytes + growth / 13 * 12,
            _ => to_bytes,
        };
        self.down(size.min(at_most.unwrap_or(u64::MAX))).max(floor_bytes)
    }

    fn down(&self, bytes: u64) -> u64 {
        bytes / self.unit_bytes * self.unit_bytes
    }

    fn up(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.unit_bytes).unwrap_or_else(|| self.down(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidepool_governor::{Governor, PoolState, Signals};

    use super::*;
    use crate::bytes::GIB;

    const MARIADB: Bounds =
        Bounds { min: None, max: None, unit_bytes: MIB, least_bytes: 5 * MIB, most_bytes: 8 * GIB };
    const MYSQL: Bounds = Bounds {
        min: None,
        max: None,
        unit_bytes: 128 * MIB,
        least_bytes: 128 * MIB,
        most_bytes: u64::MAX,
    };

    /// Where a pool of `size` that always wants more comes to rest on a machine of 24 GiB with
    /// `spare` bytes left, and the smallest and the largest size on the way.
    fn settle(bounds: Bounds, mut size: u64, spare: impl Fn(usize) -> u64) -> (u64, u64, u64) {
        let mut governor = Governor::new();
        let (mut least, mut most) = (u64::MAX, 0);
        for reading in 0..400 {
            let signals = Signals {
                at: Duration::from_millis(100) * reading as u32,
                machine_total_bytes: Some(24 * GIB),
                machine_available_bytes: Some(spare(reading).saturating_sub(size)),
                ..Signals::default()
            };
            let floor_bytes = bounds.floor_bytes(size);
            let pool = PoolState {
                resident_bytes: size,
                limit_bytes: size,
                floor_bytes,
                ceiling_bytes: bounds.ceiling_bytes(floor_bytes),
                wants_more: true,
            };
            let decision = governor.decide(&signals, &pool);
            // As `govern` does: it grows when there was a miss for it.
            let first = |decision: &Decision| decision.signal == Signal::Start;
            if let Some(decision) = decision.filter(|d| !(first(d) && d.to_bytes > size)) {
                size = bounds.size_for(&decision, None, floor_bytes);
                (least, most) = (least.min(size), most.max(size));
            }
        }
        (size, least, most)
    }

    #[test]
    fn a_floor_above_the_present_size_is_reached_and_growth_goes_on_from_there() {
        let bounds = Bounds { min: Some(512 * MIB), max: Some(2 * GIB), ..MARIADB };
        let (size, least, _) = settle(bounds, 128 * MIB, |_| 20 * GIB);
        assert_eq!(least, 512 * MIB, "at once and to the byte");
        assert!(size > 2000 * MIB && size <= 2 * GIB, "{size}");
        let bounds = Bounds { min: Some(300 * MIB), max: Some(900 * MIB), ..MYSQL };
        let (size, least, _) = settle(bounds, 128 * MIB, |_| 20 * GIB);
        assert_eq!((size, least), (768 * MIB, 384 * MIB));
    }

    #[test]
    fn a_floor_that_is_no_multiple_of_the_unit_stops_nothing() {
        let bounds = Bounds { min: Some(100 * MIB + 5), max: Some(GIB), ..MARIADB };
        let (size, ..) = settle(bounds, 100 * MIB, |_| 20 * GIB);
        assert!(size > 1000 * MIB && size <= GIB, "{size}");
    }

    #[test]
    fn nothing_is_set_below_the_floor_where_room_is_short() {
        let short = |reading: usize| if reading < 100 { 20 * GIB } else { GIB };
        let bounds = Bounds { min: Some(300 * MIB), max: Some(GIB), ..MYSQL };
        let (size, least, most) = settle(bounds, 640 * MIB, short);
        assert_eq!((size, least, most), (384 * MIB, 384 * MIB, 896 * MIB));
    }

    #[test]
    fn a_ceiling_is_kept_in_whole_units() {
        let bounds = Bounds { max: Some(350 * MIB), ..MYSQL };
        let (size, _, most) = settle(bounds, 640 * MIB, |_| 20 * GIB);
        assert_eq!((size, most), (256 * MIB, 256 * MIB));
    }

    #[test]
    fn bounds_with_no_size_between_them_are_refused() {
        let of =
            |min: u64, max: u64| Bounds { min: Some(min * MIB), max: Some(max * MIB), ..MYSQL };
        let error = of(300, 350).check().unwrap_err();
        assert_eq!(error.code(), 2);
        for figure in ["300 MiB", "384 MiB", "350 MiB", "128 MiB"] {
            assert!(error.to_string().contains(figure), "{error}");
        }
        of(300, 384).check().unwrap();
        assert_eq!(of(300, 384).notices(0).len(), 1, "the floor is not what was said");
        assert_eq!(of(256, 384).notices(0), Vec::<String>::new());
    }

    #[test]
    fn a_ceiling_that_the_server_cannot_have_is_refused() {
        for max in [0, 12, 4 * MIB] {
            let error = Bounds { max: Some(max), ..MARIADB }.check().unwrap_err();
            assert_eq!(error.code(), 2, "{error}");
            assert!(error.to_string().contains("5 MiB"), "{error}");
        }
        assert_eq!(Bounds { max: Some(127 * MIB), ..MYSQL }.check().unwrap_err().code(), 2);
        Bounds { max: Some(5 * MIB), ..MARIADB }.check().unwrap();
    }

    #[test]
    fn a_ceiling_below_the_usual_floor_is_kept() {
        let bounds = Bounds { max: Some(32 * MIB), ..MARIADB };
        bounds.check().unwrap();
        let (size, _, most) = settle(bounds, 640 * MIB, |_| 20 * GIB);
        assert_eq!((size, most), (32 * MIB, 32 * MIB));
    }

    #[test]
    fn a_floor_that_the_server_cannot_have_is_what_it_can() {
        let bounds = Bounds { min: Some(9 * GIB), ..MARIADB };
        assert_eq!(bounds.floor_bytes(GIB), 8 * GIB);
        assert_eq!(bounds.ceiling_bytes(8 * GIB), 8 * GIB);
        assert!(bounds.notices(GIB)[0].contains("innodb_buffer_pool_size_max"));
    }
}
