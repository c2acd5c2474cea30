//! The simulation's own source of chance: small, fast, and the same on every platform and in every
//! version, so that a seed replays a failure for ever.

/// A deterministic generator (splitmix64: a counter in steps of the golden ratio, then a mixer).
#[derive(Clone, Debug)]
pub(super) struct Random {
    counter: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { counter: seed }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.counter;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// A number below `bound`, which is not 0. (The bias of the remainder does not matter here.)
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True in `chances` of `of` cases.
    pub(super) fn chance(&mut self, chances: u64, of: u64) -> bool {
        self.below(of) < chances
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
