//! WATT, write-aware timestamp tracking (Vöhringer and Leis, PVLDB 16, 2023), reads only.
//!
//! Each page keeps the times of its last uses. Its value is the highest rate among them:
//! `max over i of i / (now - t_i)`. Eviction samples some pages and drops the least valuable. Time
//! is counted in evictions-worth of requests, as an epoch.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::Policy;
use super::trace::Request;

const HISTORY: usize = 8;
const SAMPLE: usize = 32;

#[derive(Debug, Clone, Default)]
struct History {
    /// Newest first.
    times: Vec<u64>,
}

impl History {
    fn add(&mut self, now: u64) {
        if self.times.first() == Some(&now) {
            return;
        }
        self.times.insert(0, now);
        self.times.truncate(HISTORY);
    }

    fn value(&self, now: u64) -> f64 {
        let rate = |(index, &time): (usize, &u64)| (index + 1) as f64 / (now - time + 1) as f64;
        self.times.iter().enumerate().map(rate).fold(0.0, f64::max)
    }
}

/// WATT over `capacity` pages.
#[derive(Debug)]
pub struct Watt {
    capacity: usize,
    pages: Vec<(u64, History)>,
    at: HashMap<u64, usize>,
    /// Histories of pages that left, as the paper keeps them for a while.
    gone: HashMap<u64, History>,
    requests: u64,
    rng: StdRng,
}

impl Watt {
    /// An empty pool of `capacity` pages, at least one.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Watt {
            capacity,
            pages: Vec::new(),
            at: HashMap::new(),
            gone: HashMap::new(),
            requests: 0,
            rng: StdRng::seed_from_u64(1),
        }
    }

    fn now(&self) -> u64 {
        // The paper advances its clock with page loads; a fraction of the pool's requests per epoch
        // gives the same resolution here.
        self.requests / (self.capacity as u64 / 16).max(1)
    }

    fn evict(&mut self) {
        let now = self.now();
        let count = self.pages.len();
        let sampled = (0..SAMPLE.min(count)).map(|_| self.rng.random_range(0..count));
        let victim = sampled
            .min_by(|&a, &b| self.pages[a].1.value(now).total_cmp(&self.pages[b].1.value(now)));
        let (page, history) = self.pages.swap_remove(victim.expect("a full pool has a victim"));
        let index = self.at.remove(&page).expect("resident pages are indexed");
        if let Some((moved, _)) = self.pages.get(index) {
            self.at.insert(*moved, index);
        }
        if self.gone.len() >= self.capacity {
            self.gone.clear();
        }
        self.gone.insert(page, history);
    }
}

impl Policy for Watt {
    fn request(&mut self, request: &Request) -> bool {
        self.requests += 1;
        let now = self.now();
        if let Some(&index) = self.at.get(&request.page) {
            self.pages[index].1.add(now);
            return true;
        }
        if self.pages.len() == self.capacity {
            self.evict();
        }
        let mut history = self.gone.remove(&request.page).unwrap_or_default();
        history.add(now);
        self.at.insert(request.page, self.pages.len());
        self.pages.push((request.page, history));
        false
    }

    fn resident(&self) -> usize {
        self.pages.len()
    }
}
