//! The pages that a walk of undo records has come to: none twice.

use std::collections::HashSet;

use super::stream::Undo;
use crate::error::Result;

/// What is wrong with a page that leads back.
pub(super) const CIRCLE: &str = "the pages of an undo stream lead in a circle";

/// One walk. Memory: a number for each page of it.
#[derive(Debug, Default)]
pub(super) struct Trail {
    seen: HashSet<u32>,
    last: u32,
}

impl Trail {
    /// Comes to page `no`.
    ///
    /// # Errors
    /// [`Corrupt`](crate::Error::Corrupt), of the page that led there, if the walk has been there
    /// before.
    pub fn step(&mut self, undo: &Undo, no: u32) -> Result<()> {
        if !self.seen.insert(no) {
            return Err(undo.corrupt(self.last, CIRCLE));
        }
        self.last = no;
        Ok(())
    }
}
