//! What an event takes of its processor, from a sample of the events: to ask for that time is a
//! system call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::stats::thread_time;

/// One in this number of events has its processor's time taken.
const CPU_SAMPLED: u64 = 16;

/// Processor's time of a sample of events.
#[derive(Default)]
pub(crate) struct CpuSample {
    seen: AtomicU64,
    /// Events of the sample that have ended, and their time in microseconds.
    pub(crate) count: AtomicU64,
    pub(crate) us: AtomicU64,
}

impl CpuSample {
    /// Takes the thread's time now, if this event is one of the sample.
    pub(crate) fn begin(&self) -> Option<Duration> {
        let is_sampled = self.seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(CPU_SAMPLED);
        is_sampled.then(thread_time)
    }

    /// The event is over.
    pub(crate) fn end(&self, began: Option<Duration>) {
        if let Some(began) = began {
            self.count.fetch_add(1, Ordering::Relaxed);
            let took = thread_time().saturating_sub(began);
            self.us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        }
    }
}
