//! Shadows: miniature copies of the policy, each with another setting, that see a sample of
//! the pages at a pool size scaled down alike (miniature simulation: Waldspurger et al., ATC 2017).
//! The pool follows the one with the fewest misses.
//!
//! Misses are forgotten by the misses that come after them, not by time: while everything is hit
//! nothing is learnt, and nothing forgotten. So a pool whose working set moves once an hour still
//! knows, when it does, what was best the last time.

use super::{SETTINGS, Setting, TideConfig};
use crate::error::Result;
use crate::replacement::ReplacementConfig;
use crate::replacement::simulate::{Request, Simulation};

/// Old misses lose 1/e of their weight in this many new ones: several rounds of a loop that is a
/// few times as large as a shadow, whose settings else take turns at being best.
const MEMORY_MISSES: f64 = 5_000.0;

/// By how much another setting must do better: a share of the misses, and a few of them. Else two
/// equals would take turns.
const ADVANTAGE: f64 = 0.02;
const ADVANTAGE_MISSES: f64 = 8.0;

pub(super) struct Shadows {
    shadows: Vec<Shadow>,
    frames: u32,
    chosen: usize,
}

struct Shadow {
    setting: Setting,
    simulation: Simulation,
    misses: f64,
}

impl Shadows {
    /// Shadows of `frames` frames each.
    pub(super) fn new(frames: u32) -> Result<Shadows> {
        let shadow = |setting: Setting| {
            let config = ReplacementConfig::Tide(TideConfig { fixed: Some(setting) });
            Ok(Shadow { setting, simulation: Simulation::new(&config, frames)?, misses: 0.0 })
        };
        let shadows = SETTINGS.into_iter().map(shadow).collect::<Result<_>>()?;
        Ok(Shadows { shadows, frames, chosen: 0 })
    }

    /// Follows the pool to another size.
    pub(super) fn resize(&mut self, frames: u32) -> Result<()> {
        if self.frames != frames {
            self.frames = frames;
            for shadow in &mut self.shadows {
                shadow.simulation.resize(frames)?;
            }
        }
        Ok(())
    }

    /// Shows requests to the shadows, and returns the setting that does best.
    pub(super) fn observe(&mut self, sampled: &[Request]) -> Setting {
        for request in sampled {
            let mut missed = false;
            for shadow in &mut self.shadows {
                if !shadow.simulation.request(request) {
                    shadow.misses += 1.0;
                    missed = true;
                }
            }
            if missed {
                self.judge();
            }
        }
        self.shadows[self.chosen].setting
    }

    fn judge(&mut self) {
        for shadow in &mut self.shadows {
            shadow.misses *= 1.0 - 1.0 / MEMORY_MISSES;
        }
        let misses = |shadow: &Shadow| shadow.misses;
        let best = (0..self.shadows.len())
            .min_by(|&a, &b| misses(&self.shadows[a]).total_cmp(&misses(&self.shadows[b])))
            .expect("there are shadows");
        let (now, least) = (self.shadows[self.chosen].misses, self.shadows[best].misses);
        if now - least > ADVANTAGE_MISSES + now * ADVANTAGE {
            self.chosen = best;
        }
    }
}
