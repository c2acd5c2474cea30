//! Memory pressure.

use crate::error::Result;
use crate::lab::Lab;

/// Runs the experiment.
///
/// # Errors
/// If the machine can't do it, or a run can't begin.
pub fn run(_lab: &Lab) -> Result<()> {
    Ok(())
}
