//! What a restart costs: hours with a cold pool, unless the list of its pages is kept.

use super::{Finding, Severity};
use crate::bytes::{GIB, human};
use crate::facts::Facts;

/// The list of pages is not written at shutdown, or not loaded at start.
pub fn warm_up(facts: &Facts) -> Option<Finding> {
    let (pool, settings) = (facts.pool.as_ref()?, &facts.settings);
    let (dump, load) = (settings.dump_at_shutdown?, settings.load_at_startup?);
    // It writes no list, whatever is set.
    if settings.read_only == Some(true) {
        return None;
    }
    cold("warm_up", "innodb", "the pool's pages", (dump, load), pool.data_bytes)
}

/// The same of Tidepool's list of hot pages.
pub fn tidepool_warm_up(facts: &Facts) -> Option<Finding> {
    let tidepool = facts.tidepool.as_ref()?;
    let kept = (tidepool.dump_at_shutdown?, tidepool.load_at_startup?);
    cold("tidepool_warm_up", "tidepool", "Tidepool's hot pages", kept, tidepool.data_bytes)
}

fn cold(
    rule: &'static str,
    prefix: &str,
    pages: &str,
    (dump, load): (bool, bool),
    data_bytes: u64,
) -> Option<Finding> {
    if dump && load {
        return None;
    }
    let missing = match (dump, load) {
        (false, false) => "neither written at shutdown nor loaded at start",
        (false, true) => "not written at shutdown",
        _ => "not loaded at start",
    };
    let severity = if data_bytes >= GIB { Severity::Medium } else { Severity::Low };
    let why = format!(
        "The pool holds {} of pages; after a restart each is read again when a query waits for it. The list of them is small, and \
         loading it happens in the background.",
        human(data_bytes)
    );
    let title = format!("The list of {pages} is {missing}");
    let mut finding = Finding::new(rule, severity, title, why)
        .risk("reads at full speed for a while after the start");
    if !dump {
        let name = format!("{prefix}_buffer_pool_dump_at_shutdown");
        finding = finding.variable(true, &name, "ON", "ON");
    }
    if !load {
        // It is read at the start only, and costs nothing until then: no restart is needed *for*
        // it.
        finding.config.push(format!("{prefix}_buffer_pool_load_at_startup = ON"));
    }
    Some(finding)
}
