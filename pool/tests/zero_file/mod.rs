//! A file of zeroes that takes no memory, for tests and benchmarks of pools larger than what they
//! may write.

use tidepool_pool::storage::{Result, StorageFile};

/// A file of this many bytes, all zero, whatever is written.
pub struct ZeroFile(pub u64);

impl StorageFile for ZeroFile {
    fn name(&self) -> &str {
        "zero"
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> Result<()> {
        // The kernel gives memory for bytes that are written, whatever they are.
        buf.fill(0);
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.0)
    }

    fn set_len(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn io_alignment(&self) -> usize {
        1
    }
}
