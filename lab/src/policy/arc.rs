//! ARC, the adaptive replacement cache (Megiddo and Modha, FAST 2003).

use super::Policy;
use super::order::Order;
use super::trace::Request;

/// ARC over `capacity` pages.
#[derive(Debug)]
pub struct Arc {
    capacity: usize,
    /// Target size of `t1`.
    target: usize,
    t1: Order,
    t2: Order,
    b1: Order,
    b2: Order,
}

impl Arc {
    /// An empty pool of `capacity` pages, at least one.
    pub fn new(capacity: usize) -> Self {
        let none = Order::default();
        Arc {
            capacity: capacity.max(1),
            target: 0,
            t1: none.clone(),
            t2: none.clone(),
            b1: none.clone(),
            b2: none,
        }
    }

    fn replace(&mut self, in_b2: bool) {
        let from_t1 = self.t1.len() > 0
            && (self.t1.len() > self.target || (in_b2 && self.t1.len() == self.target));
        if from_t1 || self.t2.len() == 0 {
            if let Some(page) = self.t1.pop_back() {
                self.b1.push_front(page);
            }
        } else if let Some(page) = self.t2.pop_back() {
            self.b2.push_front(page);
        }
    }
}

impl Policy for Arc {
    fn request(&mut self, request: &Request) -> bool {
        let page = request.page;
        if self.t1.remove(page) {
            self.t2.push_front(page);
            return true;
        }
        if self.t2.contains(page) {
            self.t2.move_to_front(page);
            return true;
        }
        if self.b1.contains(page) {
            let step = (self.b2.len() / self.b1.len()).max(1);
            self.target = (self.target + step).min(self.capacity);
            self.replace(false);
            self.b1.remove(page);
            self.t2.push_front(page);
            return false;
        }
        if self.b2.contains(page) {
            let step = (self.b1.len() / self.b2.len()).max(1);
            self.target = self.target.saturating_sub(step);
            self.replace(true);
            self.b2.remove(page);
            self.t2.push_front(page);
            return false;
        }
        if self.t1.len() + self.b1.len() == self.capacity {
            if self.t1.len() < self.capacity {
                self.b1.pop_back();
                self.replace(false);
            } else {
                self.t1.pop_back();
            }
        } else {
            let all = self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len();
            if all >= self.capacity {
                if all == 2 * self.capacity {
                    self.b2.pop_back();
                }
                self.replace(false);
            }
        }
        self.t1.push_front(page);
        false
    }

    fn resident(&self) -> usize {
        self.t1.len() + self.t2.len()
    }
}
