//! Memory beyond the pool: swap, the kernel's eagerness to use it, and what the connections may take.

use tidepool_governor::signals::share_bytes;

use super::pool_size::too_large;
use super::room::fit;
use super::{Finding, Severity};
use crate::bytes::{MIB, human, option};
use crate::facts::Facts;

/// Part of the server is in swap now.
pub fn swapped(facts: &Facts) -> Option<Finding> {
    let machine = facts.machine.as_ref()?;
    let swapped = machine.server_swapped_bytes;
    if swapped < (machine.server_resident_bytes / 200).max(8 * MIB) {
        return None;
    }
    let busy = machine.swap_bytes_per_s > MIB as f64;
    let severity = if busy { Severity::Critical } else { Severity::High };
    let title = format!("{} of the server is in swap", human(swapped));
    let why = format!(
        "A page of the pool in swap costs a read to use and often a write to drop: worse than not having it. The machine moves {}/s to and from swap now.",
        human(machine.swap_bytes_per_s as u64)
    );
    let finding = Finding::new("server_in_swap", severity, title, why);
    let (pool, fit) = (facts.pool.as_ref()?, fit(facts)?);
    if pool.size_bytes <= fit.bytes {
        let finding =
            finding.risk("swapping in what is there takes a while; do it when it is quiet");
        return Some(Finding {
            commands: vec![
                "swapoff -a && swapon -a   # brings it back, if as much memory is free".into(),
            ],
            ..finding
        });
    }
    Some(
        finding
            .risk("shrinking touches what is in swap: minutes of heavy stalls on a busy server; in small steps they are short (`tidepool govern`)")
            .variable(pool.takes(fit.bytes), "innodb_buffer_pool_size", fit.bytes, &option(fit.bytes)),
    )
}

/// A kernel that swaps programs out to keep files cached does the database no favour.
pub fn swappiness(facts: &Facts) -> Option<Finding> {
    let machine = facts.machine.as_ref()?;
    let swappiness = machine.swappiness?;
    // A small pool in a large machine is never what the kernel is short of.
    let pool_bytes = facts.pool.as_ref().map_or(0, |pool| pool.size_bytes);
    let at_risk = machine.server_swapped_bytes > 8 * MIB || pool_bytes > machine.limit_bytes / 3;
    if machine.swap_bytes == 0 || swappiness <= 10 || !at_risk {
        return None;
    }
    let severity =
        if machine.server_swapped_bytes > 8 * MIB { Severity::Medium } else { Severity::Low };
    let why = format!(
        "The machine has {} of swap, and at {swappiness} the kernel pushes the pool's pages there to keep files cached. At 1 it swaps only \
         when nothing else is left (0 risks the kernel's killer instead).",
        human(machine.swap_bytes)
    );
    let finding =
        Finding::new("swappiness", severity, format!("vm.swappiness is {swappiness}"), why)
            .risk("it holds for the whole machine");
    Some(Finding {
        commands: vec![
            "sysctl -w vm.swappiness=1".into(),
            "echo 'vm.swappiness = 1' > /etc/sysctl.d/60-database.conf".into(),
        ],
        ..finding
    })
}

/// If every allowed connection came and worked, memory would not be enough.
pub fn connections(facts: &Facts) -> Option<Finding> {
    let (machine, pool) = (facts.machine.as_ref()?, facts.pool.as_ref()?);
    if too_large(facts).is_some() {
        // Beside that pool there is memory for nobody, whatever the number of connections.
        return None;
    }
    let clients = &facts.connections;
    let held = pool.held_bytes();
    let used = machine.limit_bytes.saturating_sub(machine.room_bytes);
    // What the connections of today use is in there already; only idle memory is certain.
    let others = used
        .saturating_sub(held + pool.idle_descriptors_bytes())
        .saturating_sub(clients.connected * clients.idle_bytes);
    let full_pool = pool.size_bytes.min(facts.data.innodb_bytes().max(held)) / 12 * 13;
    let all = clients.allowed * clients.busy_bytes;
    let left =
        machine.limit_bytes.saturating_sub(others + full_pool + share_bytes(machine.limit_bytes));
    if all <= left || all < machine.limit_bytes / 10 || clients.busy_bytes == 0 {
        return None;
    }
    let fits = left / clients.busy_bytes;
    let wanted = fits.max(clients.used_max * 5 / 4).max(20);
    if wanted >= clients.allowed {
        return None;
    }
    let near = clients.used_max * 5 / 4 > fits;
    let severity = if near { Severity::High } else { Severity::Medium };
    let title = format!(
        "{} connections may come, and memory is enough for {fits} of them",
        clients.allowed
    );
    let why = format!(
        "A busy one takes about {} (stack, network, sort, join, read and binary log buffers, each once), all of them {}; {} is left beside a full pool \
         and everything else. The most at one time was {}.",
        human(clients.busy_bytes),
        human(all),
        human(left),
        clients.used_max
    );
    Some(
        Finding::new("max_connections", severity, title, why)
            .risk(format!(
                "connection {} and later are refused (one more is kept for the administrator)",
                wanted + 1
            ))
            .variable(true, "max_connections", wanted, &wanted.to_string()),
    )
}
