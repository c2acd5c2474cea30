//! Belady's optimum (1966): evict what is needed last. No real policy can do it, for it knows the
//! future; none can do better.

use std::collections::{BTreeSet, HashMap};

use super::Policy;
use super::trace::{Request, Trace};

/// The optimum for one trace, which must then be replayed from its beginning.
#[derive(Debug)]
pub struct Belady {
    capacity: usize,
    /// For each request, when its page is asked for next.
    next_use: Vec<usize>,
    position: usize,
    /// Resident pages by next use.
    by_next: BTreeSet<(usize, u64)>,
    resident: HashMap<u64, usize>,
}

impl Belady {
    /// The optimum over `capacity` pages for `trace`.
    pub fn new(capacity: usize, trace: &Trace) -> Self {
        let mut last_seen = HashMap::new();
        let mut next_use = vec![usize::MAX; trace.requests.len()];
        for (position, request) in trace.requests.iter().enumerate().rev() {
            if let Some(next) = last_seen.insert(request.page, position) {
                next_use[position] = next;
            }
        }
        Belady {
            capacity: capacity.max(1),
            next_use,
            position: 0,
            by_next: BTreeSet::new(),
            resident: HashMap::new(),
        }
    }
}

impl Policy for Belady {
    fn request(&mut self, request: &Request) -> bool {
        let next = self.next_use[self.position];
        self.position += 1;
        let previous = self.resident.remove(&request.page);
        if let Some(expected) = previous {
            self.by_next.remove(&(expected, request.page));
        } else if self.resident.len() == self.capacity {
            // Not to admit is allowed: if everything else is needed earlier, the new page itself is
            // the victim.
            let &(furthest, victim) = self.by_next.last().expect("a full pool has a victim");
            if next >= furthest {
                return false;
            }
            self.by_next.remove(&(furthest, victim));
            self.resident.remove(&victim);
        }
        self.by_next.insert((next, request.page));
        self.resident.insert(request.page, next);
        previous.is_some()
    }

    fn resident(&self) -> usize {
        self.resident.len()
    }
}
