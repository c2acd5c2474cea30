//! What a power cut leaves: the decisions, drawn from the seed.
//!
//! Pure coin tossing would hardly ever lose everything, or cut cleanly between two writes, which
//! are the likeliest outcomes on real hardware and catch different mistakes. So each crash first
//! draws a manner, then the details.

use super::inode::Survival;
use super::random::Random;

/// How a crash treats what was not synced.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// Nothing survives.
    LoseAll,
    /// Everything survives, as if it had been synced just in time.
    KeepAll,
    /// The changes before a moment survive, the one at that moment torn.
    CutAt { order: u64 },
    /// Each write survives whole or not at all, in `chances` of 8 cases.
    Writes { chances: u64 },
    /// Each sector survives for itself, in `chances` of 8 cases.
    Sectors { chances: u64 },
}

/// The decisions of one crash.
pub(super) struct Crash {
    random: Random,
    manner: Manner,
}

impl Crash {
    /// `orders`: the range of the orders of changes that may still be pending.
    pub(super) fn new(seed: u64, orders: std::ops::Range<u64>) -> Self {
        let mut random = Random::new(seed);
        let manner = match random.below(8) {
            0 => Manner::LoseAll,
            1 => Manner::KeepAll,
            2 | 3 => Manner::CutAt {
                order: orders.start + random.below((orders.end - orders.start).max(1)),
            },
            4 | 5 => Manner::Writes { chances: 1 + random.below(7) },
            _ => Manner::Sectors { chances: 1 + random.below(7) },
        };
        Self { random, manner }
    }

    /// Whether the change of names or length survives.
    pub(super) fn keeps(&mut self, order: u64) -> bool {
        match self.manner {
            Manner::LoseAll => false,
            Manner::KeepAll => true,
            Manner::CutAt { order: cut } => order < cut,
            Manner::Writes { chances } | Manner::Sectors { chances } => {
                self.random.chance(chances, 8)
            }
        }
    }
}

impl Survival for Crash {
    fn set_len(&mut self, order: u64) -> bool {
        self.keeps(order)
    }

    fn write(&mut self, order: u64, sectors: usize) -> Vec<bool> {
        match self.manner {
            Manner::CutAt { order: cut } if order == cut => torn(&mut self.random, sectors),
            Manner::Sectors { chances } => {
                (0..sectors).map(|_| self.random.chance(chances, 8)).collect()
            }
            _ => vec![self.keeps(order); sectors],
        }
    }
}

/// The sectors that a write interrupted halfway has changed: often the first few, else any.
pub(super) fn torn(random: &mut Random, sectors: usize) -> Vec<bool> {
    if random.chance(1, 2) {
        let kept = random.below(sectors as u64 + 1) as usize;
        (0..sectors).map(|sector| sector < kept).collect()
    } else {
        (0..sectors).map(|_| random.chance(1, 2)).collect()
    }
}
