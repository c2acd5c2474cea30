//! W-TinyLFU (Einziger, Friedman and Manes, ACM ToS 2017): a small LRU window, a segmented LRU, and
//! admission by estimated frequency.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::Policy;
use super::order::Order;
use super::trace::Request;

/// A count-min sketch of four rows that halves all counters once it has seen ten times its
/// capacity.
#[derive(Debug)]
struct Sketch {
    rows: [Vec<u8>; 4],
    mask: usize,
    seen: usize,
    sample: usize,
}

impl Sketch {
    fn new(capacity: usize) -> Self {
        let width = (capacity * 2).next_power_of_two().max(64);
        Sketch {
            rows: std::array::from_fn(|_| vec![0; width]),
            mask: width - 1,
            seen: 0,
            sample: capacity.max(1) * 10,
        }
    }

    fn slots(&self, page: u64) -> [usize; 4] {
        let hash = BuildHasherDefault::<DefaultHasher>::default();
        std::array::from_fn(|row| hash.hash_one((row, page)) as usize & self.mask)
    }

    fn add(&mut self, page: u64) {
        let slots = self.slots(page);
        for (row, slot) in self.rows.iter_mut().zip(slots) {
            row[slot] = (row[slot] + 1).min(15);
        }
        self.seen += 1;
        if self.seen >= self.sample {
            self.seen /= 2;
            self.rows.iter_mut().flatten().for_each(|count| *count /= 2);
        }
    }

    fn estimate(&self, page: u64) -> u8 {
        let slots = self.slots(page);
        self.rows.iter().zip(slots).map(|(row, slot)| row[slot]).min().unwrap_or(0)
    }
}

/// W-TinyLFU over `capacity` pages: window 1 %, main 99 % of which 80 % protected.
#[derive(Debug)]
pub struct TinyLfu {
    window_target: usize,
    main_target: usize,
    protected_target: usize,
    window: Order,
    probation: Order,
    protected: Order,
    sketch: Sketch,
}

impl TinyLfu {
    /// An empty pool of `capacity` pages, at least two.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(2);
        let window_target = (capacity / 100).max(1);
        let main_target = capacity - window_target;
        TinyLfu {
            window_target,
            main_target,
            protected_target: main_target * 4 / 5,
            window: Order::default(),
            probation: Order::default(),
            protected: Order::default(),
            sketch: Sketch::new(capacity),
        }
    }

    fn leave_window(&mut self) {
        let Some(candidate) = self.window.pop_back() else { return };
        if self.probation.len() + self.protected.len() < self.main_target {
            self.probation.push_front(candidate);
            return;
        }
        let victim = self.probation.back().or_else(|| self.protected.back());
        let victim = victim.expect("a full main area has a victim");
        if self.sketch.estimate(candidate) > self.sketch.estimate(victim) {
            if !self.probation.remove(victim) {
                self.protected.remove(victim);
            }
            self.probation.push_front(candidate);
        }
    }
}

impl Policy for TinyLfu {
    fn request(&mut self, request: &Request) -> bool {
        let page = request.page;
        self.sketch.add(page);
        if self.window.contains(page) {
            self.window.move_to_front(page);
            return true;
        }
        if self.protected.contains(page) {
            self.protected.move_to_front(page);
            return true;
        }
        if self.probation.remove(page) {
            self.protected.push_front(page);
            if self.protected.len() > self.protected_target {
                let demoted = self.protected.pop_back().expect("it was just filled");
                self.probation.push_front(demoted);
            }
            return true;
        }
        self.window.push_front(page);
        if self.window.len() > self.window_target {
            self.leave_window();
        }
        false
    }

    fn resident(&self) -> usize {
        self.window.len() + self.probation.len() + self.protected.len()
    }
}
