//! Least recently used.

use super::Policy;
use super::order::Order;
use super::trace::Request;

/// LRU over `capacity` pages.
#[derive(Debug)]
pub struct Lru {
    capacity: usize,
    pages: Order,
}

impl Lru {
    /// An empty pool of `capacity` pages, at least one.
    pub fn new(capacity: usize) -> Self {
        Lru { capacity: capacity.max(1), pages: Order::default() }
    }
}

impl Policy for Lru {
    fn request(&mut self, request: &Request) -> bool {
        let hit = self.pages.contains(request.page);
        if hit {
            self.pages.move_to_front(request.page);
        } else {
            if self.pages.len() == self.capacity {
                self.pages.pop_back();
            }
            self.pages.push_front(request.page);
        }
        hit
    }

    fn resident(&self) -> usize {
        self.pages.len()
    }
}
