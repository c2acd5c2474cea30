//! The last decisions: why the pool has its size.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use crate::decide::Decision;

/// One decision as it was carried out.
#[derive(Debug, Clone)]
pub struct Entry {
    /// When it was taken, by the wall clock.
    pub taken_at: SystemTime,
    /// What was decided.
    pub decision: Decision,
    /// How long the pool took to get there; `None` while it is on its way.
    pub took: Option<Duration>,
}

/// A ring of the newest decisions.
#[derive(Debug)]
pub struct Journal {
    entries: VecDeque<Entry>,
    capacity: usize,
}

impl Journal {
    /// A journal of at most `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        Journal { entries: VecDeque::with_capacity(capacity), capacity: capacity.max(1) }
    }

    /// Notes a decision that is about to be carried out.
    pub fn note(&mut self, taken_at: SystemTime, decision: Decision) {
        if self.entries.len() == self.capacity {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { taken_at, decision, took: None });
    }

    /// Says that the newest decision has been carried out.
    pub fn done(&mut self, took: Duration) {
        if let Some(newest) = self.entries.back_mut() {
            newest.took.get_or_insert(took);
        }
    }

    /// The decisions, oldest first.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter()
    }
}
