//! 2Q, full version (Johnson and Shasha, VLDB 1994): a FIFO for first uses, ghosts of what left it,
//! an LRU for the rest.

use super::Policy;
use super::order::Order;
use super::trace::Request;

/// 2Q over `capacity` pages, with the paper's K_in = 25 % and K_out = 50 %.
#[derive(Debug)]
pub struct TwoQueue {
    capacity: usize,
    k_in: usize,
    k_out: usize,
    a1_in: Order,
    a1_out: Order,
    a_m: Order,
}

impl TwoQueue {
    /// An empty pool of `capacity` pages, at least two.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(2);
        TwoQueue {
            capacity,
            k_in: (capacity / 4).max(1),
            k_out: (capacity / 2).max(1),
            a1_in: Order::default(),
            a1_out: Order::default(),
            a_m: Order::default(),
        }
    }

    fn make_room(&mut self) {
        if self.resident() < self.capacity {
            return;
        }
        if self.a1_in.len() > self.k_in || self.a_m.len() == 0 {
            let leaving = self.a1_in.pop_back().expect("a full pool has a victim");
            self.a1_out.push_front(leaving);
            if self.a1_out.len() > self.k_out {
                self.a1_out.pop_back();
            }
        } else {
            self.a_m.pop_back();
        }
    }
}

impl Policy for TwoQueue {
    fn request(&mut self, request: &Request) -> bool {
        let page = request.page;
        if self.a_m.contains(page) {
            self.a_m.move_to_front(page);
            return true;
        }
        if self.a1_in.contains(page) {
            return true;
        }
        let known = self.a1_out.remove(page);
        self.make_room();
        if known {
            self.a_m.push_front(page)
        } else {
            self.a1_in.push_front(page)
        }
        false
    }

    fn resident(&self) -> usize {
        self.a1_in.len() + self.a_m.len()
    }
}
