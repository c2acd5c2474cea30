//! How much memory sorts take at present.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted moves in steps of this size, so that not each entry does it.
const STEP_BYTES: u64 = 64 << 10;

/// Memory of all sorts together.
#[derive(Debug, Default)]
pub(crate) struct SortMemory(AtomicU64);

impl SortMemory {
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one sort has of it, until it is dropped.
pub(super) struct Share {
    all: Arc<SortMemory>,
    bytes: u64,
}

impl Share {
    pub fn new(all: &Arc<SortMemory>) -> Self {
        Self { all: all.clone(), bytes: 0 }
    }

    /// The sort has come to take this much; what it took before and has not given back stays.
    pub fn grow_to(&mut self, bytes: usize) {
        if bytes as u64 > self.bytes {
            self.set((bytes as u64).next_multiple_of(STEP_BYTES));
        }
    }

    /// The sort takes this much.
    pub fn set(&mut self, bytes: u64) {
        if bytes >= self.bytes {
            self.all.0.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            self.all.0.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}
