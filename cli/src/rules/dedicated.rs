//! `innodb_dedicated_server` (MySQL and Percona Server since 8.0): sizes taken from the machine's
//! memory at the start. It sees the limits of cgroups only where there is `container_aware` and
//! that is on; the default is off.

use super::pool_size::{BUILT_IN_DEFAULT_BYTES, is_built_in};
use super::room::{fit, sentence};
use super::{Finding, Severity};
use crate::bytes::{GIB, human, option};
use crate::facts::{Facts, Machine};

const FOUR_GIB: u64 = 4 * GIB;

/// It is on, but the machine isn't the server's alone, or isn't what limits it.
pub fn on_where_it_is_not(facts: &Facts) -> Option<Finding> {
    let (machine, pool) = (facts.machine.as_ref()?, facts.pool.as_ref()?);
    if facts.settings.dedicated_server != Some(true) {
        return None;
    }
    let fit = fit(facts)?;
    let aware = facts.settings.container_aware;
    let blind = machine.limit_bytes < machine.memory_bytes && aware != Some(true);
    let crowded = is_crowded(machine);
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
        sentence(&fit, facts, machine)
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
    let too = match facts.kind.is_mysql_since((8, 4, 0)) {
        true => "with the option off, the redo log's size is yours to set too",
        false => {
            "with the option off, the redo log's size and the flush method are yours to set too"
        }
    };
    let mut finding = finding.risk(too).variable(false, "innodb_dedicated_server", "", "OFF");
    finding.set.extend(now);
    finding.config.push(format!("innodb_buffer_pool_size = {}", option(fit.bytes)));
    // The other findings on a pool that is too large have that line too.
    let taken = taken_of(machine.limit_bytes);
    if aware == Some(false) && !crowded && taken <= fit.bytes {
        finding.alternative = format!(
            "with container_aware = ON, and innodb_dedicated_server left on, the server takes {} for the pool at its next start. For that \
             the line container_aware = ON takes the place of innodb_buffer_pool_size, here and in the other findings: a size in the \
             option file (or by SET PERSIST) outranks it, and it does nothing for the pool then. What is used beside the pool it does not \
             count: more of that, and it is too much again",
            human(taken)
        );
    }
    Some(finding)
}

fn is_crowded(machine: &Machine) -> bool {
    machine.others_bytes > machine.memory_bytes / 5
}

/// The other way to a pool that fits, beside a size of it: the option, where no size is set and the
/// machine runs nothing else. One of the two it must be: a size in the configuration outranks the
/// option. `None` also where what it would take is more than fits.
pub fn instead_of_a_size(facts: &Facts) -> Option<String> {
    let (machine, pool, fit) = (facts.machine.as_ref()?, facts.pool.as_ref()?, fit(facts)?);
    let bare =
        machine.limit_bytes == machine.memory_bytes || facts.settings.container_aware == Some(true);
    let alone = machine.others_bytes < machine.memory_bytes / 10;
    let taken = taken_of(machine.limit_bytes);
    if facts.settings.dedicated_server != Some(false)
        || !is_built_in(facts, pool)
        || machine.limit_bytes < FOUR_GIB
        || !(bare && alone)
        || taken > fit.bytes
    {
        return None;
    }
    // What it sets has changed: the log has had another option before 8.0.30 and follows the number
    // of processors since 8.4, and O_DIRECT is the default since then.
    let log = match facts.kind.is_mysql_since((8, 0, 30)) {
        true => "innodb_redo_log_capacity",
        false => "innodb_log_file_size",
    };
    let (others, from) = match facts.kind.is_mysql_since((8, 4, 0)) {
        true => (log.to_owned(), "from the memory and the processors"),
        false => (format!("{log} and innodb_flush_method"), "from the memory"),
    };
    Some(format!(
        "this machine looks like the server's own (the other processes use {} of {}), and with innodb_dedicated_server = ON the server sizes \
         the pool itself at each start: {} here, whatever else is started later. For that the line innodb_dedicated_server = ON \
         takes the place of innodb_buffer_pool_size in the option file, and takes a restart: a size that is set there (or by SET PERSIST) \
         outranks the option, which then does nothing for the pool. It sets {others} too, {from}, each only where the configuration does not",
        human(machine.others_bytes),
        human(machine.memory_bytes),
        human(taken)
    ))
}

/// The pool's size that the server chooses for this much memory. It counts memory in whole GiB.
fn taken_of(memory_bytes: u64) -> u64 {
    let memory_bytes = memory_bytes / GIB * GIB;
    match memory_bytes {
        ..GIB => BUILT_IN_DEFAULT_BYTES,
        GIB..=FOUR_GIB => memory_bytes / 2,
        _ => memory_bytes / 4 * 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_takes_is_three_quarters_of_whole_gib() {
        // As MySQL 9.7 has it on a machine with this MemTotal.
        assert_eq!(taken_of(24_684_084 << 10), 18_522_046_464);
        assert_eq!(taken_of(5 * GIB - 1), 2 * GIB);
        assert_eq!(taken_of(GIB - 1), BUILT_IN_DEFAULT_BYTES);
    }
}
