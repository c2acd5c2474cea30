//! CHECK of a table, by the names that its indexes have now.

use super::Db;
use crate::error::Result;
use crate::table::{CheckProgress, CheckReport, Table};

impl Table {
    /// Walks and verifies every tree. `progress` is called for each leaf; if it says false, the
    /// check ends with [`Error::Interrupted`](crate::Error::Interrupted). It may write to the
    /// table; if it drops it, the check ends with
    /// [`Error::TableMissing`](crate::Error::TableMissing). Of each tree the first problem is
    /// reported.
    pub fn check(
        &self,
        db: &Db,
        progress: &mut dyn FnMut(CheckProgress) -> bool,
    ) -> Result<CheckReport> {
        db.check_open()?;
        // This handle may be older than the names.
        let record = db.catalog().get(&self.name());
        self.check_trees(record.as_ref().map_or(self.def(), |record| &record.def), progress)
    }
}
