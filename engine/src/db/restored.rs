//! A data directory that was a backup.
//!
//! A backup is the state of a moment, and a transaction may have been prepared at that moment:
//! by a coordinator, whose log the backup does not have. Only the coordinator's rules say what
//! becomes of it, so the directory stays known as restored until the coordinator has decided. A
//! crash before that changes nothing.

use super::Db;
use crate::error::Result;
use crate::files::RESTORED_MARK;

impl Db {
    /// Whether this directory was a backup, and [`end_restore`](Self::end_restore) has not been
    /// called since.
    pub fn is_restored(&self) -> Result<bool> {
        Ok(self.inner.env.storage().exists(RESTORED_MARK)?)
    }

    /// All is decided about the [prepared transactions](Self::recovered_xids) of a restored backup.
    pub fn end_restore(&self) -> Result<()> {
        self.inner.check_writable()?;
        let storage = self.inner.env.storage();
        storage.remove_if_there(RESTORED_MARK)?;
        storage.sync_dir("")?;
        Ok(())
    }
}
