//! The pool's own policies, as they are, over frames that hold nothing.

use tidepool_pool::{Access, ReplacementConfig, Simulation};

use super::Policy;
use super::trace::Request;

/// A policy of the pool in a [`Simulation`].
#[derive(Debug)]
pub struct Pooled(Simulation);

impl Pooled {
    /// A pool of `capacity` pages, at least four, under the policy that `config` names.
    ///
    /// # Panics
    /// If the system has no memory for it.
    pub fn new(config: &ReplacementConfig, capacity: usize) -> Pooled {
        let frames = u32::try_from(capacity).expect("fewer frames than 2^32");
        Pooled(Simulation::new(config, frames).expect("memory for a simulation"))
    }
}

impl Policy for Pooled {
    fn request(&mut self, request: &Request) -> bool {
        self.0.request(&tidepool_pool::Request {
            page: request.page,
            // Numbers of the pool's statements have 32 bits.
            statement: request.statement as u32,
            access: if request.scan { Access::Scan } else { Access::Normal },
            // The millisecond 0 is before the beginning.
            at_ms: (request.at_us / 1000) as u32 + 1,
        })
    }

    fn resident(&self) -> usize {
        self.0.resident() as usize
    }
}
