//! Data files that are cached twice: in the pool and by the kernel.

use super::{Finding, Severity};
use crate::bytes::human;
use crate::facts::{Facts, Filesystem};

/// Files written through the kernel's cache: memory is spent twice, and write-back comes in bursts.
pub fn double_buffering(facts: &Facts) -> Option<Finding> {
    let (pool, settings) = (facts.pool.as_ref()?, &facts.settings);
    if is_cached_otherwise(facts) {
        return None;
    }
    let why = why(pool.size_bytes);
    // MariaDB 11 has taken the old option apart: what is left of it is kept for compatibility only.
    if let Some(buffering) = settings.data_file_buffering {
        return buffering.then(|| {
            Finding::new("flush_method", Severity::Medium, "Data files go through the kernel's cache".into(), why)
                .risk("a pool that is too small loses the kernel's cache as its second chance: set the pool's size first")
                .variable(true, "innodb_data_file_buffering", "OFF", "OFF")
        });
    }
    let method = settings.flush_method.as_deref()?.to_ascii_uppercase();
    // On Windows, "unbuffered" and "normal".
    if !matches!(method.as_str(), "" | "FSYNC" | "LITTLESYNC" | "NOSYNC" | "O_DSYNC") {
        return None;
    }
    let shown = if method.is_empty() { "fsync (the default)" } else { &method };
    let risk = "a pool that is too small loses the kernel's cache as its second chance: set the pool's size first; some network file systems refuse O_DIRECT";
    Some(
        Finding::new(
            "flush_method",
            Severity::Medium,
            format!("innodb_flush_method is {shown}: data is cached twice"),
            why,
        )
        .risk(risk)
        .variable(false, "innodb_flush_method", "", "O_DIRECT"),
    )
}

/// The same for Tidepool's files, which bypass that cache by default.
pub fn tidepool_double_buffering(facts: &Facts) -> Option<Finding> {
    let tidepool = facts.tidepool.as_ref().filter(|tidepool| tidepool.direct_io == Some(false))?;
    if is_cached_otherwise(facts) {
        return None;
    }
    let title = "tidepool_use_direct_io is OFF: data is cached twice".into();
    let why = why(tidepool.data_bytes);
    Some(
        Finding::new("tidepool_direct_io", Severity::Medium, title, why)
            .risk("a pool of a fixed size that is too small loses the kernel's cache as its second chance: let it be governed first")
            .variable(false, "tidepool_use_direct_io", "", "ON"),
    )
}

/// Whether the files' only place is memory, or their file system has its own cache, which O_DIRECT
/// does not always bypass.
fn is_cached_otherwise(facts: &Facts) -> bool {
    facts.filesystem() != Filesystem::Other
}

fn why(pool_bytes: u64) -> String {
    format!(
        "Every page is in the pool ({}) and in the kernel's cache; the copy in the kernel's cache is rarely used and crowds out other data.",
        human(pool_bytes)
    )
}
