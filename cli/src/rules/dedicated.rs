//! `innodb_dedicated_server` (MySQL and Percona Server since 8.0): sizes taken from the machine's memory at the start. It sees the limits of
//! cgroups only where there is `container_aware` and that is on; the default is off.

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
    let aware = facts.settings.container_aware;
    let blind = machine.limit_bytes < machine.memory_bytes && aware != Some(true);
    let crowded = machine.others_bytes > machine.memory_bytes / 5;
    if !(blind || crowded) || pool.size_bytes <= fit.bytes {
        return None;
    }
    let reason = if blind {
        format!(
            "{} takes {} of machine for its own and does not see that {} has {}",
            if aware.is_none() { "this version" } else { "with container_aware = OFF it" },
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
    let finding = Finding::new(
        "dedicated_server_on",
        Severity::High,
        "innodb_dedicated_server is on, and the machine is not the server's alone".into(),
        why,
    );
    let now = pool
        .takes(fit.bytes)
        .then(|| format!("SET GLOBAL innodb_buffer_pool_size = {};", fit.bytes));
    if aware == Some(false) && !crowded {
        let mut finding = finding
            .risk("memory beside the pool is not counted: it may still be too much in a small container")
            .variable(false, "container_aware", "", "ON");
        finding.set.extend(now);
        return Some(finding);
    }
    let too = match facts.kind.is_mysql_since((8, 4, 0)) {
        true => "with the option off, the redo log's size is yours to set too",
        false => {
            "with the option off, the redo log's size and the flush method are yours to set too"
        }
    };
    let mut finding = finding.risk(too).variable(false, "innodb_dedicated_server", "", "OFF");
    finding.set.extend(now);
    finding.config.push(format!("innodb_buffer_pool_size = {}", option(fit.bytes)));
    Some(finding)
}

/// It is off, nobody has set a size either, and the machine has nothing else to do.
pub fn off_where_it_is(facts: &Facts) -> Option<Finding> {
    const BUILT_IN_DEFAULT_BYTES: u64 = 128 << 20;
    let (machine, pool) = (facts.machine.as_ref()?, facts.pool.as_ref()?);
    let bare =
        machine.limit_bytes == machine.memory_bytes || facts.settings.container_aware == Some(true);
    let alone = machine.others_bytes < machine.memory_bytes / 10;
    if facts.settings.dedicated_server != Some(false)
        || pool.size_bytes != BUILT_IN_DEFAULT_BYTES
        || machine.limit_bytes < 4 * GIB
        || !(bare && alone)
    {
        return None;
    }
    // What it sets has changed: the log follows the number of processors since 8.4, and O_DIRECT is the default.
    let (what, from) = match facts.kind.is_mysql_since((8, 4, 0)) {
        true => ("the redo log", "from the memory and the processors"),
        false => ("the redo log, the flush method", "from the memory"),
    };
    let why = format!(
        "The other processes use {} of {}, and the pool has its default. With the option on, the server sets it, and what else \
         nobody has set ({what}), {from} that it finds.",
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
