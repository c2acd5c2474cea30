//! InnoDB's midpoint insertion: a young and an old sublist, a percentage and a timer.
//!
//! A page enters at the head of the old sublist. It moves to the young one when it is used again at least `old_blocks_time` after its first use.
//! A young page moves to the head again only if it has sunk past the first quarter of its list, as InnoDB does to spare its mutex.
//! (MySQL Reference Manual, "Making the Buffer Pool Scan Resistant".)

use std::collections::HashMap;

use super::Policy;
use super::order::Order;
use super::trace::Request;

/// Midpoint insertion over `capacity` pages.
#[derive(Debug)]
pub struct Midpoint {
    capacity: usize,
    old_target: usize,
    old_blocks_time_us: u64,
    young: Order,
    old: Order,
    first_use_us: HashMap<u64, u64>,
    /// Moves to the young head so far, and each young page's count at its own: their difference is how far it has sunk.
    moves: u64,
    moved_at: HashMap<u64, u64>,
}

impl Midpoint {
    /// A pool of `capacity` pages with InnoDB's two knobs: per cent of the pool for the old sublist, and milliseconds.
    pub fn new(capacity: usize, old_blocks_pct: usize, old_blocks_time_ms: u64) -> Self {
        let capacity = capacity.max(2);
        Midpoint {
            capacity,
            old_target: (capacity * old_blocks_pct / 100).clamp(1, capacity - 1),
            old_blocks_time_us: old_blocks_time_ms * 1000,
            young: Order::default(),
            old: Order::default(),
            first_use_us: HashMap::new(),
            moves: 0,
            moved_at: HashMap::new(),
        }
    }

    fn make_young(&mut self, page: u64) {
        self.moves += 1;
        self.moved_at.insert(page, self.moves);
        self.young.push_front(page);
        while self.young.len() > self.capacity - self.old_target {
            let sunk = self.young.pop_back().expect("the young list is not empty");
            self.moved_at.remove(&sunk);
            self.old.push_front(sunk);
            // What sinks from the young list has proved itself: the timer does not hold it.
            self.first_use_us.insert(sunk, 0);
        }
    }
}

impl Policy for Midpoint {
    fn request(&mut self, request: &Request) -> bool {
        let page = request.page;
        if self.young.contains(page) {
            let sunk = self.moves - self.moved_at[&page];
            if sunk > (self.young.len() / 4) as u64 {
                self.young.move_to_front(page);
                self.moves += 1;
                self.moved_at.insert(page, self.moves);
            }
            return true;
        }
        if self.old.contains(page) {
            if request.at_us.saturating_sub(self.first_use_us[&page]) >= self.old_blocks_time_us {
                self.old.remove(page);
                self.first_use_us.remove(&page);
                self.make_young(page);
            }
            return true;
        }
        if self.resident() == self.capacity {
            let victim = self.old.pop_back().or_else(|| self.young.pop_back());
            let victim = victim.expect("a full pool has a victim");
            self.first_use_us.remove(&victim);
            self.moved_at.remove(&victim);
        }
        self.old.push_front(page);
        self.first_use_us.insert(page, request.at_us.max(1));
        false
    }

    fn resident(&self) -> usize {
        self.young.len() + self.old.len()
    }
}
