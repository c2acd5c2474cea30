//! S3-FIFO (Yang et al., SOSP 2023): a small FIFO, a main FIFO with two-bit counters, and a ghost
//! FIFO.

use std::collections::HashMap;

use super::Policy;
use super::order::Order;
use super::trace::Request;

/// S3-FIFO over `capacity` pages, with the paper's small queue of 10 % and as many ghosts as the
/// main queue has pages.
#[derive(Debug)]
pub struct S3Fifo {
    capacity: usize,
    small_target: usize,
    small: Order,
    main: Order,
    ghosts: Order,
    uses: HashMap<u64, u8>,
}

impl S3Fifo {
    /// An empty pool of `capacity` pages, at least two.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(2);
        S3Fifo {
            capacity,
            small_target: (capacity / 10).max(1),
            small: Order::default(),
            main: Order::default(),
            ghosts: Order::default(),
            uses: HashMap::new(),
        }
    }

    fn evict(&mut self) {
        while self.resident() >= self.capacity {
            if self.small.len() >= self.small_target || self.main.len() == 0 {
                self.evict_small();
            } else {
                self.evict_main();
            }
        }
    }

    fn evict_small(&mut self) {
        let Some(page) = self.small.pop_back() else { return };
        if self.uses[&page] > 1 {
            self.uses.insert(page, 0);
            self.main.push_front(page);
        } else {
            self.uses.remove(&page);
            self.ghosts.push_front(page);
            if self.ghosts.len() > self.capacity - self.small_target {
                self.ghosts.pop_back();
            }
        }
    }

    fn evict_main(&mut self) {
        while let Some(page) = self.main.pop_back() {
            let uses = self.uses[&page];
            if uses == 0 {
                self.uses.remove(&page);
                return;
            }
            self.uses.insert(page, uses - 1);
            self.main.push_front(page);
        }
    }
}

impl Policy for S3Fifo {
    fn request(&mut self, request: &Request) -> bool {
        let page = request.page;
        if let Some(uses) = self.uses.get_mut(&page) {
            *uses = (*uses + 1).min(3);
            return true;
        }
        let known = self.ghosts.remove(page);
        self.evict();
        self.uses.insert(page, 0);
        if known {
            self.main.push_front(page)
        } else {
            self.small.push_front(page)
        }
        false
    }

    fn resident(&self) -> usize {
        self.small.len() + self.main.len()
    }
}
