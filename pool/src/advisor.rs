//! The advisor: what another size of the pool would bring.

use crate::pool::Pool;

impl Pool {
    /// Takes in what the tap heard since the last time.
    pub fn run_advisor_step(&self) {
        self.run_recorder_step();
    }

    /// Memory that hearing of accesses takes, beyond the pool's frames.
    pub fn tap_memory_bytes(&self) -> u64 {
        self.taps.memory_bytes()
    }
}
