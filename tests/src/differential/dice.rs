//! Choices, all from one seed.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A source of choices.
#[derive(Clone, Debug)]
pub struct Dice(StdRng);

impl Dice {
    /// The same seed makes the same choices.
    pub fn new(seed: u64) -> Dice {
        Dice(StdRng::seed_from_u64(seed))
    }

    /// True this often in a hundred.
    pub fn percent(&mut self, chance: u32) -> bool {
        self.0.random_range(0..100) < chance
    }

    /// A number from `low` to `high`, both included.
    pub fn range(&mut self, low: usize, high: usize) -> usize {
        self.0.random_range(low..=high)
    }

    /// Any number.
    pub fn u64(&mut self) -> u64 {
        self.0.random()
    }

    /// One of the elements.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.0.random_range(0..from.len())]
    }

    /// One of the weighted elements; the weights are small integers.
    pub fn weighted<T: Copy>(&mut self, from: &[(u32, T)]) -> T {
        let total: u32 = from.iter().map(|(weight, _)| weight).sum();
        let mut at = self.0.random_range(0..total);
        for (weight, element) in from {
            if at < *weight {
                return *element;
            }
            at -= weight;
        }
        unreachable!("the weights sum up to the total")
    }

    /// Some of the elements, in their order.
    pub fn some<T: Clone>(&mut self, from: &[T], at_most: usize) -> Vec<T> {
        let mut chosen: Vec<usize> = (0..from.len()).collect();
        while chosen.len() > at_most {
            let at = self.0.random_range(0..chosen.len());
            chosen.remove(at);
        }
        chosen.into_iter().map(|at| from[at].clone()).collect()
    }

    /// The elements in another order.
    pub fn shuffle<T>(&mut self, elements: &mut [T]) {
        for at in (1..elements.len()).rev() {
            elements.swap(at, self.0.random_range(0..=at));
        }
    }
}
