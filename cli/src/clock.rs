//! Times of day as text, without a library of calendars, and when a command is to end.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// `2026-01-31T23:59:01Z`. (Days to a date as in Howard Hinnant's "chrono-compatible low-level date
/// algorithms".)
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

/// Milliseconds since 1970.
pub fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// This many seconds from now; `None` for never, and for a time that the clock can't represent.
pub fn after(seconds: Option<u64>) -> Option<Instant> {
    Instant::now().checked_add(Duration::from_secs(seconds?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_never_comes_is_no_time() {
        assert!(after(Some(60)).is_some_and(|end| end > Instant::now()));
        assert_eq!((after(Some(u64::MAX)), after(None)), (None, None));
    }

    #[test]
    fn dates_are_right_around_leap_days() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
