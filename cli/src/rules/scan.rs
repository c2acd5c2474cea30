//! One table scan, or a dump, and the hot pages are gone: unless new pages must first prove themselves.

use super::{Finding, Severity};
use crate::bytes::human;
use crate::facts::Facts;

/// `innodb_old_blocks_time` = 0: a page read by a scan counts as hot at the second row taken from it.
pub fn old_blocks_time(facts: &Facts) -> Option<Finding> {
    let pool = facts.pool.as_ref()?;
    if pool.old_blocks_time_ms != Some(0) {
        return None;
    }
    let data = facts.data.innodb_bytes();
    let (severity, figure) = if data > pool.size_bytes {
        (
            Severity::High,
            format!(
                "the data ({}) is larger than the pool ({})",
                human(data),
                human(pool.size_bytes)
            ),
        )
    } else {
        let figure = format!(
            "the data ({}) still fits the pool ({}), so a scan can push nothing out yet",
            human(data),
            human(pool.size_bytes)
        );
        (Severity::Medium, figure)
    };
    let why = format!(
        "A scan or a dump reads many rows of a page within a millisecond. With innodb_old_blocks_time = 0 the second of them makes the page \
         hot, and the pages that the application needs go; here {figure}. With 1000 a page must be wanted again a second later."
    );
    Some(
        Finding::new("old_blocks_time", severity, "innodb_old_blocks_time is 0: one scan washes the buffer pool out".into(), why)
            .risk("none known; a table that is read once and then again within a second stays in the old part for longer")
            .variable(true, "innodb_old_blocks_time", 1000, "1000"),
    )
}
