//! What stops together with writing: the growth of files, and, if a change was left half-way,
//! reading.

use std::sync::atomic::Ordering;

use tidepool_pool::Space;

use super::Env;
use crate::error::Result;

impl Env {
    /// Makes room for `pages` pages in a space's file, unless writing has stopped.
    pub(crate) fn grow_file(&self, space: &Space, pages: u32) -> Result<()> {
        let _growing = self.growth.read();
        self.failure.check()?;
        Ok(space.grow_to(pages)?)
    }

    /// Stops all writing for good, and reading too: pages hold half a change. To be called while
    /// they are latched.
    pub(crate) fn tear(&self, reason: &str) {
        self.crash(reason.into());
        self.torn.store(true, Ordering::Release);
    }

    /// An error if pages may hold half a change. For who has latched a page, or is about to believe
    /// what he has read without.
    #[inline]
    pub(crate) fn check_whole(&self) -> Result<()> {
        match self.torn.load(Ordering::Acquire) {
            false => Ok(()),
            true => self.failure.check(),
        }
    }
}
