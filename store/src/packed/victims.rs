//! Which segment the cleaner should empty.
//!
//! The segments are sorted by the share that is in use, in a few classes, and by age within a
//! class. The best one of a file is the oldest of some class: the choice looks at one segment of
//! each.

use std::collections::BTreeSet;

/// Classes of shares.
const CLASSES: usize = 32;

/// A segment to be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    pub segment: u32,
    /// Units of it in use: what must be moved.
    pub live_units: u32,
    pub units: u32,
    /// Runs of the file since the newest one in it.
    pub age: u64,
}

impl Victim {
    /// Which share of the segment is in use.
    pub fn share(&self) -> f64 {
        f64::from(self.live_units) / f64::from(self.units)
    }

    /// What emptying it is worth: it gives much room for what is written, and has not been filled
    /// lately, so images in it that were to die soon have done so. (Rosenblum and Ousterhout's
    /// measure: room × age / work. On recorded page writes the cleaner writes a third less than by
    /// room alone.)
    pub fn worth(&self) -> f64 {
        (1.0 - self.share()) * self.age as f64 / (1.0 + self.share())
    }

    /// Which class the share is in.
    pub(super) fn class(&self) -> usize {
        debug_assert!(self.live_units <= self.units, "a segment holds no more than it has");
        (self.live_units as usize * CLASSES / self.units as usize).min(CLASSES - 1)
    }
}

/// Segments that may be emptied, by class, and then by their newest run.
#[derive(Debug, Default)]
pub struct Victims {
    classes: [BTreeSet<(u64, u32)>; CLASSES],
}

impl Victims {
    /// Adds a segment, whose newest run this is.
    pub fn insert(&mut self, victim: Victim, newest: u64) {
        debug_assert!(victim.live_units > 0, "a segment without images is filled again as it is");
        self.classes[victim.class()].insert((newest, victim.segment));
    }

    /// Removes a segment, of the class and age with which it was added, if it is there.
    pub fn remove(&mut self, victim: Victim, newest: u64) {
        self.classes[victim.class()].remove(&(newest, victim.segment));
    }

    /// The one that is worth most. `victim` makes it of a segment and its newest run, unless the
    /// segment may not be taken.
    pub fn best(&self, victim: impl Fn(u32, u64) -> Option<Victim>) -> Option<Victim> {
        let oldest = self.classes.iter().filter_map(|class| {
            class.iter().find_map(|(newest, segment)| victim(*segment, *newest))
        });
        oldest.max_by(|a, b| a.worth().total_cmp(&b.worth()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_close_to_the_best_of_all() {
        let mut victims = Victims::default();
        let mut all = Vec::new();
        let mut state = 7u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % n
        };
        for segment in 0..3000 {
            let (live_units, newest) = (1 + below(4096) as u32, below(10_000));
            let victim = Victim { segment, live_units, units: 4096, age: 10_000 - newest };
            victims.insert(victim, newest);
            all.push((victim, newest));
        }
        let mut left: BTreeSet<u32> = (0..3000).collect();
        let better =
            |a: &u32, b: &u32| all[*a as usize].0.worth().total_cmp(&all[*b as usize].0.worth());
        while let Some(best) = left.iter().copied().max_by(better) {
            let best = all[best as usize].0;
            let of = |segment: u32, _| Some(all[segment as usize].0);
            let found = victims.best(of).unwrap();
            let close = if best.share() < 0.8 { 0.8 } else { 0.0 };
            assert!(found.worth() >= best.worth() * close, "{found:?} is chosen, not {best:?}");
            victims.remove(found, all[found.segment as usize].1);
            assert!(left.remove(&found.segment));
        }
        assert_eq!(victims.best(|_, _| None), None);
    }
}
