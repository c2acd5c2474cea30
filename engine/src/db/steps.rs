//! Background work as explicit steps: what threads do when [`Options::background`](crate::Options)
//! is set, and the caller otherwise, in any order. The simulation drives the whole engine
//! so, single-threaded, from a seed.

use super::Db;
use crate::error::Result;
use std::time::Duration;

/// Committed transactions that one purge step takes.
const PURGE_STEP_LOGS: usize = 16;
/// Time that one checkpoint step stands for.
const CHECKPOINT_STEP: Duration = Duration::from_secs(1);

impl Db {
    /// Purges some of what no snapshot needs; false if there was nothing.
    pub fn step_purge(&self) -> Result<bool> {
        self.inner.check_writable()?;
        Ok(self.inner.trx_system.purge_step(PURGE_STEP_LOGS)? > 0)
    }

    /// Writes some dirty pages, makes frames free; false if there was nothing to do.
    pub fn step_cleaner(&self) -> Result<bool> {
        self.inner.check_writable()?;
        let pool = self.inner.env.pool();
        let written = pool.run_cleaner_step()?;
        Ok(written + pool.run_evictor_step() > 0)
    }

    /// Gives back some of the memory that the buffer pool has too much of; false if there is
    /// nothing to do, or nothing can be done now.
    pub fn step_resize(&self) -> bool {
        self.inner.env.pool().run_resize_step()
    }

    /// Looks at the machine's memory once, and decides how large the buffer pool should be. `now`
    /// is the time since any moment, the same for all steps.
    pub fn step_governor(&self, now: Duration) {
        self.inner.env.governor().step(now);
    }

    /// Writes old pages as the log's age demands, and takes a checkpoint; false if the checkpoint
    /// did not move.
    pub fn step_checkpoint(&self) -> Result<bool> {
        let env = &self.inner.env;
        self.inner.check_writable()?;
        let before = env.redo().checkpoint_lsn();
        env.step_checkpoint(CHECKPOINT_STEP)?;
        Ok(env.redo().checkpoint_lsn() > before)
    }

    /// Rolls back some of what an earlier life left unfinished; false when nothing is left.
    pub fn step_rollback_recovered(&self) -> Result<bool> {
        self.inner.check_writable()?;
        self.inner.trx_system.rollback_step()
    }
}
