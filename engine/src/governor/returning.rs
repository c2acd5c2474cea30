//! Asks the pool now and then how small it could be, and gives back what is beyond that. The rule
//! is [`Surplus`].

use std::time::Duration;

use tidepool_governor::surplus::Need;
use tidepool_governor::{PoolState, Surplus};
use tidepool_pool::Pool;

/// How often the pool is asked how small it could be.
const EVERY: Duration = Duration::from_secs(5);

/// The rule, and when it was last asked.
#[derive(Default)]
pub(super) struct Returning {
    surplus: Surplus,
    asked_at: Option<Duration>,
    why: String,
}

impl Returning {
    /// What is known now. A pool that has use for more has its ceiling off at once.
    pub(super) fn step(&mut self, at: Duration, pool: &Pool, state: &PoolState) {
        let is_due = self.asked_at.is_none_or(|asked| at.saturating_sub(asked) >= EVERY);
        let is_urgent = state.wants_more && self.surplus.ceiling_bytes().is_some();
        if !is_due && !is_urgent {
            return;
        }
        self.asked_at = Some(at);
        let need = pool.need().map(|need| Need {
            bytes: need.size_bytes,
            extra_reads_per_second: need.extra_reads_per_second,
            reads_per_second: need.reads_per_second,
            page_bytes: pool.page_size().bytes() as u64,
        });
        if let Some(why) = self.surplus.step(at, need.as_ref(), state) {
            self.why = why;
        }
    }

    /// Nothing is given back.
    pub(super) fn forget(&mut self) {
        if self.surplus.ceiling_bytes().is_some() || self.asked_at.is_some() {
            self.surplus.forget();
            self.asked_at = None;
        }
    }

    /// The most that the pool should have, if that is less than it may.
    pub(super) fn ceiling_bytes(&self) -> Option<u64> {
        self.surplus.ceiling_bytes()
    }

    pub(super) fn why(&self) -> &str {
        &self.why
    }
}
