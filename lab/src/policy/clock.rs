//! CLOCK: FIFO with one reference bit a page (Corbató, 1968).

use std::collections::HashMap;

use super::Policy;
use super::trace::Request;

/// CLOCK over `capacity` pages.
#[derive(Debug)]
pub struct Clock {
    capacity: usize,
    ring: Vec<(u64, bool)>,
    at: HashMap<u64, usize>,
    hand: usize,
}

impl Clock {
    /// An empty pool of `capacity` pages, at least one.
    pub fn new(capacity: usize) -> Self {
        Clock { capacity: capacity.max(1), ring: Vec::new(), at: HashMap::new(), hand: 0 }
    }
}

impl Policy for Clock {
    fn request(&mut self, request: &Request) -> bool {
        if let Some(&index) = self.at.get(&request.page) {
            self.ring[index].1 = true;
            return true;
        }
        if self.ring.len() < self.capacity {
            self.at.insert(request.page, self.ring.len());
            self.ring.push((request.page, false));
            return false;
        }
        while std::mem::replace(&mut self.ring[self.hand].1, false) {
            self.hand = (self.hand + 1) % self.capacity;
        }
        self.at.remove(&self.ring[self.hand].0);
        self.ring[self.hand] = (request.page, false);
        self.at.insert(request.page, self.hand);
        self.hand = (self.hand + 1) % self.capacity;
        false
    }

    fn resident(&self) -> usize {
        self.ring.len()
    }
}
