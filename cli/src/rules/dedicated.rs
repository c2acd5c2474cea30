//! `innodb_dedicated_server` (MySQL and Percona Server since 8.0): sizes taken from the machine's memory at the start.

use super::room::{fit, sentence};
use super::{Finding, Severity};
use crate::bytes::{GIB, human, option};
use crate::facts::Facts;

/// It is on, but the machine isn't the server's alone, or isn't what limits it.
pub fn on_where_it_is_not(facts: &Facts) -> Option<Finding> {
    let (machine, pool) = (facts.machine.as_ref()?, facts.pool.as_ref()?);
    if facts.settings.dedicated_server != Some(true) {
        return None;
    }
    let fit = fit(facts)?;
    let blind = machine.limit_bytes < machine.memory_bytes && !facts.kind.is_mysql_since((9, 3, 0));
    let crowded = machine.others_bytes > machine.memory_bytes / 5;
    if !(blind || crowded) || pool.size_bytes <= fit.bytes {
        return None;
    }
    let reason = if blind {
        format!(
            "this version takes {} of machine for its own and does not see that {} has {}",
            human(machine.memory_bytes),
            machine.limit_place,
            human(machine.limit_bytes)
        )
    } else {
        format!(
            "other processes use {} of {}",
            human(machine.others_bytes),
            human(machine.memory_bytes)
        )
    };
    let why = format!(
        "It has set the pool to {}; {reason}. {}.",
        human(pool.size_bytes),
        sentence(&fit, machine)
    );
    let mut finding = Finding::new(
        "dedicated_server_on",
        Severity::High,
        "innodb_dedicated_server is on, and the machine is not the server's alone".into(),
        why,
    )
    .risk("with the option off, the redo log's size and the flush method are yours to set too")
    .variable(false, "innodb_dedicated_server", "", "OFF");
    finding.set.push(format!("SET GLOBAL innodb_buffer_pool_size = {};", fit.bytes));
    finding.config.push(format!("innodb_buffer_pool_size = {}", option(fit.bytes)));
    Some(finding)
}

/// It is off, nobody has set a size either, and the machine has nothing else to do.
pub fn off_where_it_is(facts: &Facts) -> Option<Finding> {
    const BUILT_IN_DEFAULT_BYTES: u64 = 128 << 20;
    let (machine, pool) = (facts.machine.as_ref()?, facts.pool.as_ref()?);
    let bare = machine.limit_bytes == machine.memory_bytes || facts.kind.is_mysql_since((9, 3, 0));
    let alone = machine.others_bytes < machine.memory_bytes / 10;
    if facts.settings.dedicated_server != Some(false)
        || pool.size_bytes != BUILT_IN_DEFAULT_BYTES
        || machine.limit_bytes < 4 * GIB
        || !(bare && alone)
    {
        return None;
    }
    let why = format!(
        "The other processes use {} of {}, and pool, redo log and flush method have their defaults. With the option on, the server \
         sets all three from the memory that it finds.",
        human(machine.others_bytes),
        human(machine.memory_bytes)
    );
    Some(
        Finding::new(
            "dedicated_server_off",
            Severity::Low,
            "This machine looks like the server's own, and innodb_dedicated_server is off".into(),
            why,
        )
        .risk("it takes about 75 % of the memory, whatever else is started later; explicit settings outrank it")
        .variable(false, "innodb_dedicated_server", "", "ON"),
    )
}
