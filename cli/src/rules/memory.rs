//! Memory beyond the pool: swap, the kernel's eagerness to use it, and what the connections may
//! take.

use tidepool_governor::signals::share_bytes;

use super::pool_size::too_large;
use super::room::{fit, is_in_huge_pages};
use super::{Finding, Severity};
use crate::bytes::{MIB, human, option};
use crate::facts::{Facts, LargeBuffer, Machine};

/// Room for this many times the most connections so far is enough.
const PEAKS: u64 = 4;
/// The servers' default of `max_connections`.
const USUAL_CONNECTIONS: u64 = 151;
/// A work buffer for everyone.
const MODEST_BYTES: u64 = 2 * MIB;

/// Part of the server is in swap now.
pub fn swapped(facts: &Facts) -> Option<Finding> {
    let machine = facts.machine.as_ref()?;
    let swapped = machine.server_swapped_bytes;
    if swapped < (machine.server_resident_bytes / 200).max(8 * MIB) {
        return None;
    }
    let busy = machine.swap_bytes_per_s > MIB as f64;
    let severity = match () {
        () if busy => Severity::Critical,
        () if swapped > machine.server_resident_bytes / 20 => Severity::High,
        // Memory that has not been used for long.
        () => Severity::Medium,
    };
    let title = format!("{} of the server is in swap", human(swapped));
    let why = format!(
        "A page of the pool in swap costs a read to use and often a write to drop: worse than not having it. The machine moves {}/s to and from swap now.",
        human(machine.swap_bytes_per_s as u64)
    );
    let finding = Finding::new("server_in_swap", severity, title, why);
    // Of a pool in huge pages nothing is ever in swap, and a server may have none of InnoDB.
    let too_large = facts.pool.as_ref().zip(fit(facts));
    let Some((pool, fit)) = too_large.filter(|(pool, fit)| pool.size_bytes > fit.bytes) else {
        // It brings back all that anybody has there, and kills where that is too much.
        let fits = machine.swap_used_bytes + share_bytes(machine.memory_bytes);
        if fits > machine.available_bytes {
            let finding = finding.risk(format!(
                "none to wait: it comes back as it is used. To bring it back at once there is no memory: {} of the machine's programs is in \
                 swap, and {} is free",
                human(machine.swap_used_bytes),
                human(machine.available_bytes)
            ));
            return Some(finding);
        }
        let finding =
            finding.risk("swapping in what is there takes a while; do it when it is quiet");
        return Some(Finding {
            commands: vec![format!(
                "swapoff -a && swapon -a   # brings back all that is in swap, {}, if that is still free",
                human(machine.swap_used_bytes)
            )],
            ..finding
        });
    };
    Some(
        finding
            .risk("shrinking touches what is in swap: minutes of heavy stalls on a busy server; in small steps they are short (`tidepool govern`)")
            .variable(pool.takes(fit.bytes), "innodb_buffer_pool_size", fit.bytes, &option(fit.bytes)),
    )
}

/// A kernel that swaps programs out to keep files cached does the database no favour; one that may
/// not swap at all kills it.
pub fn swappiness(facts: &Facts) -> Option<Finding> {
    let machine = facts.machine.as_ref()?;
    let swappiness = machine.swappiness?;
    if machine.swap_bytes == 0 {
        return None;
    }
    let (severity, why) = match swappiness {
        0 => never_swapped(facts, machine)?,
        1..=10 => return None,
        _ => eagerly_swapped(facts, machine, swappiness)?,
    };
    let Some(file) = &machine.swappiness_file else {
        let title = format!("vm.swappiness is {swappiness}");
        let finding =
            Finding::new("swappiness", severity, title, why).risk("it holds for the whole machine");
        return Some(Finding {
            commands: vec![
                "sysctl -w vm.swappiness=1".into(),
                "echo 'vm.swappiness = 1' > /etc/sysctl.d/60-database.conf".into(),
            ],
            ..finding
        });
    };
    let title = format!("memory.swappiness of {} is {swappiness}", machine.limit_place);
    let finding = Finding::new("swappiness", severity, title, why)
        .risk("none known; the setting is lost when the group is made again");
    Some(Finding { commands: vec![format!("echo 1 > {}", quoted(file))], ..finding })
}

/// A path as a word of a shell: systemd's groups have backslashes in their names.
fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-@:+,=".contains(c);
    match path.chars().all(plain) {
        true => path.to_owned(),
        false => format!("'{}'", path.replace('\'', "'\\''")),
    }
}

/// Above 10.
fn eagerly_swapped(
    facts: &Facts,
    machine: &Machine,
    swappiness: u64,
) -> Option<(Severity, String)> {
    // A small pool in a large machine is never what the kernel is short of.
    let innodb_bytes = facts.pool.as_ref().map_or(0, |pool| pool.size_bytes);
    // What is in huge pages, or locked, is never swapped.
    let innodb_bytes = match is_in_huge_pages(machine.server_huge_bytes, innodb_bytes) {
        true => 0,
        false => innodb_bytes,
    };
    let tidepool_bytes = facts.tidepool.as_ref().map_or(0, |tidepool| tidepool.data_bytes);
    let is_in_swap = machine.server_swapped_bytes > 8 * MIB;
    let is_locked = facts.settings.locked == Some(true);
    let is_small = is_locked || innodb_bytes + tidepool_bytes <= machine.limit_bytes / 3;
    if !is_in_swap && is_small {
        return None;
    }
    let why = format!(
        "There is {} of swap, and at {swappiness} the kernel pushes the pool's pages there to keep files cached. At 1 it swaps only \
         when nothing else is left (0 risks the kernel's killer instead).",
        human(machine.swap_bytes)
    );
    Some((if is_in_swap { Severity::Medium } else { Severity::Low }, why))
}

/// At 0. Where much memory is free, or will be left when InnoDB's pool has filled up, no choice has
/// to be made.
fn never_swapped(facts: &Facts, machine: &Machine) -> Option<(Severity, String)> {
    let growth = facts.pool.as_ref().map_or(0, |pool| {
        let held = pool.held_bytes();
        pool.size_bytes.min(facts.data.innodb_bytes().max(held)).saturating_sub(held)
    });
    let left = machine.room_bytes.saturating_sub(growth);
    if left >= 2 * share_bytes(machine.limit_bytes) {
        return None;
    }
    let filled = if growth == 0 { "" } else { ", once the pool is filled" };
    let rule = if machine.swappiness_file.is_some() {
        "Of a group with 0 nothing is ever swapped: at its limit, when no file's page is left to drop, the kernel kills instead"
    } else {
        "At 0 the kernel swaps nothing until next to no free memory and no file's page is left, and that is often too late: its killer \
         comes first, and takes the largest process, which is the server"
    };
    let why = format!(
        "{} of {} is left in {}{filled}. {rule}. There are {} of swap for such a moment: at 1 they are used when nothing else is left, and no \
         sooner.",
        human(left),
        human(machine.limit_bytes),
        machine.limit_place,
        human(machine.swap_bytes)
    );
    Some((Severity::Medium, why))
}

/// If every allowed connection came and worked, memory would not be enough.
pub fn connections(facts: &Facts) -> Option<Finding> {
    let (machine, pool) = (facts.machine.as_ref()?, facts.pool.as_ref()?);
    if too_large(facts).is_some() {
        // Beside that pool there is no memory for a connection, whatever their number.
        return None;
    }
    let clients = &facts.connections;
    let held = pool.held_bytes();
    let used = machine.limit_bytes.saturating_sub(machine.room_bytes);
    // What the connections of today use is in there already; only idle memory is certain.
    let others = used
        .saturating_sub(held + pool.idle_descriptors_bytes())
        .saturating_sub(clients.connected.saturating_mul(clients.idle_bytes));
    let data = if facts.data.is_partial { u64::MAX } else { facts.data.innodb_bytes() };
    let full_pool = pool.size_bytes.min(data.max(held)) / 12 * 13;
    let all = clients.allowed.saturating_mul(clients.busy_bytes);
    let left =
        machine.limit_bytes.saturating_sub(others + full_pool + share_bytes(machine.limit_bytes));
    if clients.pooled || all <= left || all < machine.limit_bytes / 10 || clients.busy_bytes == 0 {
        return None;
    }
    let fits = left / clients.busy_bytes;
    let enough = |fits: u64| fits.max(clients.used_max * 5 / 4).max(20);
    if enough(fits) >= clients.allowed && clients.large.is_empty() {
        return None;
    }
    let near = clients.used_max * 5 / 4 > fits;
    let severity = if near { Severity::High } else { Severity::Medium };
    let title = format!(
        "max_connections is {}, but memory suffices for only {fits} busy connections",
        clients.allowed
    );
    let mut why = format!(
        "A busy one takes about {} (stack, network, sort, join, read and binary log buffers, each once), all of them {}; {} is left beside a full pool \
         and everything else. The most at one time was {}.",
        human(clients.busy_bytes),
        human(all),
        human(left),
        clients.used_max
    );
    let mut finding = Finding::new("max_connections", severity, title, String::new());
    let mut risks = Vec::new();
    let mut spared = 0;
    if !clients.large.is_empty() {
        let each = |buffer: &LargeBuffer| format!("{} {}", buffer.name, human(buffer.bytes));
        let large: Vec<String> = clients.large.iter().map(each).collect();
        why.push_str(&format!(
            " Of that {}, which no connection needs for most statements: one that does can set it for itself.",
            large.join(", ")
        ));
        risks.push("large sorts and joins spill to disk unless the session raises the limit; existing sessions keep their values".to_owned());
    }
    for buffer in &clients.large {
        spared = buffer.bytes.saturating_sub(MODEST_BYTES).saturating_add(spared);
        finding = finding.variable(true, buffer.name, MODEST_BYTES, &option(MODEST_BYTES));
    }
    let affordable = enough(left / clients.busy_bytes.saturating_sub(spared).max(1));
    // Nor more than come: a number that is never reached protects nothing.
    let wanted = affordable.min((clients.used_max * PEAKS).max(USUAL_CONNECTIONS));
    let wanted = if affordable < clients.allowed { wanted } else { clients.allowed };
    if wanted < clients.allowed {
        risks
            .push(format!("connections beyond {} are refused (one is reserved for SUPER)", wanted));
        finding = finding.variable(true, "max_connections", wanted, &wanted.to_string());
    }
    finding.why = why;
    Some(finding.risk(risks.join("; ")))
}
