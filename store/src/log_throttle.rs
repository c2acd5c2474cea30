//! A limit on messages that would come again and again while something is broken.
//!
//! Locking: the mutex is innermost.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Messages are at least this far apart.
const EVERY: Duration = Duration::from_secs(30);

/// When a message was logged last, and how often it was left out since.
#[derive(Default)]
pub struct LogThrottle(Mutex<Option<(Instant, u64)>>);

impl LogThrottle {
    /// Whether to log the message at `now`, and then how often it was left out.
    pub fn is_due(&self, now: Instant) -> Option<u64> {
        let mut said = self.0.lock();
        match &mut *said {
            Some((at, unsaid)) if now.saturating_duration_since(*at) < EVERY => {
                *unsaid += 1;
                None
            }
            _ => said.replace((now, 0)).map_or(Some(0), |(_, unsaid)| Some(unsaid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_and_the_next_when_it_is_time() {
        let (throttle, start) = (LogThrottle::default(), Instant::now());
        assert_eq!(throttle.is_due(start), Some(0));
        for ms in 1..=300 {
            assert_eq!(throttle.is_due(start + Duration::from_millis(100 * ms) / 2), None);
        }
        assert_eq!(throttle.is_due(start + EVERY), Some(300));
        assert_eq!(throttle.is_due(start + EVERY * 2), Some(0));
    }
}
