//! One table scan, or a dump, and the hot pages are gone: unless new pages must first prove themselves.

use super::{Finding, Severity};
use crate::bytes::human;
use crate::facts::Facts;

/// `innodb_old_blocks_time` = 0: a page read by a scan counts as hot at the second row taken from it.
pub fn old_blocks_time(facts: &Facts) -> Option<Finding> {
    let pool = facts.pool.as_ref().filter(|pool| pool.old_blocks_time_ms == Some(0))?;
    Some(washed("old_blocks_time", "innodb", pool.size_bytes, facts.data.innodb_bytes()))
}

/// The same of Tidepool with `midpoint` replacement. Its default, `tide`, has no such timer and needs none.
pub fn tidepool_old_blocks_time(facts: &Facts) -> Option<Finding> {
    let tidepool = facts.tidepool.as_ref().filter(|pool| pool.old_blocks_time_ms == Some(0))?;
    let (size, data) = (tidepool.limit_bytes, facts.data.tidepool_bytes);
    Some(washed("tidepool_old_blocks_time", "tidepool", size, data))
}

fn washed(rule: &'static str, prefix: &str, size: u64, data: u64) -> Finding {
    let (severity, figure) = if data > size {
        (
            Severity::High,
            format!("the data ({}) is larger than the pool ({})", human(data), human(size)),
        )
    } else {
        let figure = format!(
            "the data ({}) still fits the pool ({}), so a scan can push nothing out yet",
            human(data),
            human(size)
        );
        (Severity::Medium, figure)
    };
    let name = format!("{prefix}_old_blocks_time");
    let why = format!(
        "A scan or a dump reads many rows of a page within a millisecond. With {name} = 0 the second of them makes the page \
         hot, and the pages that the application needs go; here {figure}. With 1000 a page must be wanted again a second later."
    );
    let title = format!("{name} is 0: one scan washes the buffer pool out");
    Finding::new(rule, severity, title, why)
        .risk("none known; a table that is read once and then again within a second stays in the old part for longer")
        .variable(true, &name, 1000, "1000")
}
