//! Messages that would come again and again while something is broken, said now and then.
//!
//! Locking: the mutex is innermost.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lines are at least this far apart.
const EVERY: Duration = Duration::from_secs(30);

/// When a message was said, and how often it was not since then.
#[derive(Default)]
pub(crate) struct Rarely(Mutex<Option<(Instant, u64)>>);

impl Rarely {
    /// Whether to say it at `now`, and then how often it was left unsaid.
    pub(crate) fn is_due(&self, now: Instant) -> Option<u64> {
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
        let (rarely, start) = (Rarely::default(), Instant::now());
        assert_eq!(rarely.is_due(start), Some(0));
        for ms in 1..=300 {
            assert_eq!(rarely.is_due(start + Duration::from_millis(100 * ms) / 2), None);
        }
        assert_eq!(rarely.is_due(start + EVERY), Some(300));
        assert_eq!(rarely.is_due(start + EVERY * 2), Some(0));
    }
}
