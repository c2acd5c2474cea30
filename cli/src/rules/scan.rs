//! One table scan, or a dump, and the hot pages are gone: unless new pages must first prove
//! themselves.

use super::{Finding, Severity};
use crate::bytes::human;
use crate::facts::Facts;

/// `innodb_old_blocks_time` = 0: a page read by a scan counts as hot at the second row taken from
/// it.
pub fn old_blocks_time(facts: &Facts) -> Option<Finding> {
    let pool = facts.pool.as_ref().filter(|pool| pool.old_blocks_time_ms == Some(0))?;
    let data = facts.data.is_seen().then(|| facts.data.innodb_bytes());
    Some(washed("old_blocks_time", "innodb", pool.size_bytes, data))
}

/// The same of Tidepool with `midpoint` replacement. Its default, `tide`, has no such timer and
/// needs none.
pub fn tidepool_old_blocks_time(facts: &Facts) -> Option<Finding> {
    let tidepool = facts.tidepool.as_ref().filter(|pool| pool.old_blocks_time_ms == Some(0))?;
    let data = (!facts.data.is_partial).then_some(facts.data.tidepool_bytes);
    Some(washed("tidepool_old_blocks_time", "tidepool", tidepool.limit_bytes, data))
}

/// `data` is as much as the user may see of it, if that is all.
fn washed(rule: &'static str, prefix: &str, size: u64, data: Option<u64>) -> Finding {
    let pool = human(size);
    let (severity, figure) = match data {
        Some(data) if data > size => (
            Severity::High,
            format!("here the data ({}) is larger than the pool ({pool})", human(data)),
        ),
        Some(data) => (
            Severity::Medium,
            format!(
                "here the data ({}) still fits the pool ({pool}), so a scan can push nothing out yet",
                human(data)
            ),
        ),
        None => (
            Severity::Medium,
            format!("whether here the data is larger than the pool ({pool}) this user may not see"),
        ),
    };
    let name = format!("{prefix}_old_blocks_time");
    let why = format!(
        "A scan or a dump reads many rows of a page within a millisecond. With {name} = 0 the second of them makes the page \
         hot, and the pages that the application needs go; {figure}. With 1000 a page must be wanted again a second later."
    );
    let title = format!("{name} is 0: a single table scan can evict the whole buffer pool");
    Finding::new(rule, severity, title, why)
        .risk("none known; a table that is read once and then again within a second stays in the old part for longer")
        .variable(true, &name, 1000, "1000")
}
