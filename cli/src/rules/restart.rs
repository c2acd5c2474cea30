//! What a restart costs: hours with a cold pool, unless the list of its pages is kept.

use super::{Finding, Severity};
use crate::bytes::{GIB, human};
use crate::facts::Facts;

/// The list of pages is not written at shutdown, or not loaded at start.
pub fn warm_up(facts: &Facts) -> Option<Finding> {
    let (pool, settings) = (facts.pool.as_ref()?, &facts.settings);
    let (dump, load) = (settings.dump_at_shutdown?, settings.load_at_startup?);
    if dump && load {
        return None;
    }
    let missing = match (dump, load) {
        (false, false) => "neither written at shutdown nor loaded at start",
        (false, true) => "not written at shutdown",
        _ => "not loaded at start",
    };
    let severity = if pool.data_bytes >= GIB { Severity::Medium } else { Severity::Low };
    let why = format!(
        "The pool holds {} of pages; after a restart each is read again when a query waits for it. The list of them is small, and \
         loading it happens in the background.",
        human(pool.data_bytes)
    );
    let mut finding = Finding::new(
        "warm_up",
        severity,
        format!("The list of the pool's pages is {missing}"),
        why,
    )
    .risk("reads at full speed for a while after the start");
    if !dump {
        finding = finding.variable(true, "innodb_buffer_pool_dump_at_shutdown", "ON", "ON");
    }
    if !load {
        // It is read at the start only, and costs nothing until then: no restart is needed *for* it.
        finding.config.push("innodb_buffer_pool_load_at_startup = ON".into());
    }
    Some(finding)
}
