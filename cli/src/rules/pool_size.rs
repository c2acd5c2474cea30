//! The size of the pool: never a share of the machine, but what fits it, as far as the data and the
//! reads have a use for it.

use super::room::{Fit, fit, sentence, settable, spare_key_buffer, tidepool_fit};
use super::{Finding, Severity, dedicated};
use crate::bytes::{MIB, human, option};
use crate::facts::{Facts, Filesystem, Machine, Pool, Tidepool, is_recent, predict};

/// The default size of every server.
pub const BUILT_IN_DEFAULT_BYTES: u64 = 128 * MIB;
/// Below this share of reads from disk a larger pool saves nothing that anyone would notice.
const MISS_SHARE_WORTH_IT: f64 = 0.001;
/// Nor below this many reads a second.
const READS_PER_S_WORTH_IT: f64 = 10.0;

/// A pool larger than what fits will push the server into swap, or to the kernel's killer, as soon
/// as it is full.
pub fn too_large(facts: &Facts) -> Option<Finding> {
    let (pool, machine, fit) = (facts.pool.as_ref()?, facts.machine.as_ref()?, fit(facts)?);
    let certain = fit.certain_bytes;
    if pool.size_bytes <= certain + pool.unit_bytes.max(certain / 50) {
        return None;
    }
    // Before there is anything to fill it with, a large pool is a promise, not a danger. Above the
    // limit it is never right.
    let data = facts.data.innodb_bytes();
    if data + data / 4 < certain && pool.size_bytes <= machine.limit_bytes {
        return None;
    }
    let severity = if pool.size_bytes > machine.limit_bytes
        || machine.server_swapped_bytes > pool.size_bytes / 100
    {
        Severity::Critical
    } else {
        Severity::High
    };
    let end = match machine.limit_throttles {
        true => "the kernel throttles the server (memory.high) until it hardly works",
        false if machine.swap_bytes > 0 => "the server swaps",
        false => "the kernel's OOM killer kills the server",
    };
    let size = human(pool.size_bytes);
    let title = match fit.is_too_much {
        true => {
            format!("The buffer pool of {size} does not fit, nor does any that is of use")
        }
        false => format!("The buffer pool of {size} does not fit: {} would", human(fit.bytes)),
    };
    let mut why = format!(
        "{}. Once the pool fills, memory runs out and {end}.",
        sentence(&fit, facts, machine)
    );
    if fit.is_too_much {
        why.push_str(
            " A small pool is the least that can be done: others must take less, or the limit must be higher.",
        );
    }
    why.push_str(&spare_key_buffer(facts));
    let risk = if facts.kind.is_mariadb_since((10, 11, 12)) {
        "the statement waits while pages are moved and written; queries go on, with short stalls. Smaller steps stall less: `tidepool govern` takes them"
    } else {
        "queries stall while pages are withdrawn, for seconds per GiB on a busy server: choose a quiet time, or let `tidepool govern` take small steps"
    };
    let finding = Finding::new("pool_too_large", severity, title, why).risk(risk);
    Some(set(finding, pool, fit.bytes))
}

/// A full pool that keeps reading from disk while memory lies idle.
pub fn too_small(facts: &Facts) -> Option<Finding> {
    let (pool, machine, fit) = (facts.pool.as_ref()?, facts.machine.as_ref()?, fit(facts)?);
    let data = facts.data.innodb_bytes();
    // With a tenth for growth, undo and the change buffer, and up to a whole unit: of 128 MiB the
    // last may hold much.
    let useful = (data + data / 10).next_multiple_of(pool.unit_bytes.max(1));
    let wanted = settable(useful.min(fit.bytes), pool);
    if !pool.is_full() || data <= pool.size_bytes || wanted < pool.size_bytes + pool.size_bytes / 4
    {
        return None;
    }
    let hit_ratio = pool.hit_ratio();
    let severity = loss(facts, hit_ratio, pool.reads_per_s, wanted >= 4 * pool.size_bytes)?;
    let title = format!(
        "The buffer pool of {} is too small for {} of data: {} is better",
        human(pool.size_bytes),
        human(data),
        human(wanted)
    );
    let hits = hits(hit_ratio, (pool.requests_per_s, pool.reads_per_s));
    let why = format!(
        "It has no free pages. {hits}. {}.",
        why_that_much((wanted, data), &fit, facts, machine)
    );
    let spare = if wanted < useful { spare_key_buffer(facts) } else { String::new() };
    let why = why + &spare;
    let finding = Finding::new("pool_too_small", severity, title, why).risk(format!(
        "a short stall while the pool grows; {}{}",
        taken(pool, wanted),
        beside_another(machine)
    ));
    Some(set(finding, pool, wanted).or(dedicated::instead_of_a_size(facts)))
}

/// What is free is free for each of several servers, and can be had by one.
fn beside_another(machine: &Machine) -> String {
    machine.servers.first().map_or(String::new(), |other| {
        format!(
            "; another server ({}, process {}) shares this free memory: check again before its pool grows too",
            other.name, other.pid
        )
    })
}

/// When the memory of a pool that grows to `bytes` is taken.
fn taken(pool: &Pool, bytes: u64) -> String {
    match pool.described {
        true => format!(
            "{} for descriptors is taken at once, the rest as pages come in",
            human(bytes.saturating_sub(pool.size_bytes) / 13)
        ),
        false => "the memory is taken as pages come in".into(),
    }
}

/// How bad it is to read that much from disk; `None` where a larger pool would save next to
/// nothing, or there were too few reads to judge.
fn loss(
    facts: &Facts,
    hit_ratio: Option<f64>,
    reads_per_s: f64,
    far_larger_fits: bool,
) -> Option<Severity> {
    let is_disk = facts.filesystem() != Filesystem::Memory;
    let hardly_misses = hit_ratio.is_none_or(|hit| 1.0 - hit < MISS_SHARE_WORTH_IT);
    if !is_disk || hardly_misses && reads_per_s < READS_PER_S_WORTH_IT {
        return None;
    }
    let lossy = hit_ratio.is_some_and(|hit| hit < 0.99) || reads_per_s > 100.0;
    Some(if lossy || far_larger_fits { Severity::High } else { Severity::Medium })
}

/// `per_s` are the logical reads a second, and of those the ones that went to disk.
fn hits(hit_ratio: Option<f64>, per_s: (f64, f64)) -> String {
    let time = if is_recent(per_s.0) { "in the last seconds" } else { "since the start" };
    match hit_ratio {
        Some(hit) => format!(
            "Hit ratio {:.2} % {time}; {:.0} disk reads/s in the last seconds",
            hit * 100.0,
            per_s.1
        ),
        None => "Too few reads for a hit ratio".into(),
    }
}

/// `wanted` is the size that is advised, `data` what there is to put into it, bytes.
fn why_that_much(
    (wanted, data): (u64, u64),
    fit: &Fit,
    facts: &Facts,
    machine: &Machine,
) -> String {
    let words = sentence(fit, facts, machine);
    match wanted >= data {
        true => format!("{words}, but a pool larger than the data would be wasted"),
        false => words,
    }
}

/// Whether the pool has the built-in size for want of another. One that doesn't tell whose choice
/// that is may not have been asked.
pub fn is_built_in(facts: &Facts, pool: &Pool) -> bool {
    pool.size_bytes == BUILT_IN_DEFAULT_BYTES && facts.settings.pool_size_is_set != Some(true)
}

/// No size is set. That costs only when there is data.
pub fn built_in_default(facts: &Facts) -> Option<Finding> {
    let (pool, machine, fit) = (facts.pool.as_ref()?, facts.machine.as_ref()?, fit(facts)?);
    if !is_built_in(facts, pool)
        || fit.bytes < 4 * pool.size_bytes
        || facts.filesystem() == Filesystem::Memory
        || super::tables_elsewhere(facts)
        || facts.settings.dedicated_server == Some(true)
        || too_small(facts).is_some()
    {
        return None;
    }
    let title = format!(
        "The buffer pool has the built-in default of 128 MiB; {} would fit here",
        human(fit.bytes)
    );
    let data = facts.data.innodb_bytes();
    let (severity, effect) = if data > pool.size_bytes {
        (Severity::Medium, "few reads go to disk now, but most of the data does not fit")
    } else {
        (
            Severity::Low,
            "that costs nothing today, and will as soon as the working set is larger than 128 MiB",
        )
    };
    let known = match facts.data.is_seen() {
        true => format!("With {} of data {effect}", human(data)),
        false => "This user may not see the size of the data: a working set above 128 MiB would be read again and again".into(),
    };
    let why = format!("{}. {known}.", sentence(&fit, facts, machine));
    let taken = taken(pool, fit.bytes);
    let taken = if pool.described { taken } else { format!("none now: {taken}") };
    let finding = Finding::new("pool_default", severity, title, why).risk(format!(
        "{taken}; other programs started later will find less{}",
        beside_another(machine)
    ));
    Some(set(finding, pool, fit.bytes).or(dedicated::instead_of_a_size(facts)))
}

/// Tidepool gives memory back by itself, but a size set by hand says that it should have been
/// enough.
pub fn tidepool_too_large(facts: &Facts) -> Option<Finding> {
    let (tidepool, machine) = (facts.tidepool.as_ref()?, facts.machine.as_ref()?);
    if tidepool.size_setting_bytes <= machine.limit_bytes {
        return None;
    }
    if !tidepool.guarded {
        let title = format!(
            "Tidepool's pool of {} is larger than what {} has, {}, and nothing guards it",
            human(tidepool.size_setting_bytes),
            machine.limit_place,
            human(machine.limit_bytes)
        );
        let why = "With tidepool_memory_guard = OFF a size is kept, whatever it costs: as pages come in, the server goes to swap or is \
                   killed. With the guard on the pool stays below the limit."
            .into();
        let finding = Finding::new("tidepool_unguarded", Severity::High, title, why);
        return Some(finding.risk("none").variable(true, "tidepool_memory_guard", "ON", "ON"));
    }
    let title = format!(
        "tidepool_buffer_pool_size asks for {}, and {} has {}",
        human(tidepool.size_setting_bytes),
        machine.limit_place,
        human(machine.limit_bytes)
    );
    let why = "Tidepool takes a size as a ceiling and stays below the real limit, so nothing breaks; but this number says nothing any more. \
               At 0 the pool has the size that fits."
        .into();
    Some(Finding::new("tidepool_pool_too_large", Severity::Low, title, why).risk("none").variable(
        true,
        "tidepool_buffer_pool_size",
        0,
        "0",
    ))
}

/// A fixed size of Tidepool's pool that is full and keeps reading from disk while memory lies idle.
pub fn tidepool_too_small(facts: &Facts) -> Option<Finding> {
    let (tidepool, machine) = (facts.tidepool.as_ref()?, facts.machine.as_ref()?);
    let (size, data) = (tidepool.size_setting_bytes, facts.data.tidepool_bytes);
    // Governed it has what there is; and where the guard keeps it below its size, that size is not
    // too small.
    if size == 0 || tidepool.limit_bytes < size / 100 * 95 {
        return None;
    }
    let fit = tidepool_fit(facts)?;
    let wanted = fit.bytes.min(data + data / 10);
    if !tidepool.is_full() || data <= size || wanted < size + size / 4 {
        return None;
    }
    let (hit_ratio, reads_per_s) = (tidepool.hit_ratio(), tidepool.reads_per_s);
    let severity = loss(facts, hit_ratio, reads_per_s, wanted >= 4 * size)?;
    let predicted = prediction(tidepool, size, wanted)?;
    let title = format!(
        "Tidepool's pool is fixed at {}, too small for {} of data: governed it could have {}",
        human(size),
        human(data),
        human(wanted)
    );
    let hits = hits(hit_ratio, (tidepool.requests_per_s, reads_per_s));
    let why = format!(
        "It has no free pages. {hits}. {predicted} {}. With tidepool_buffer_pool_size = 0 the pool grows into free \
         memory while that helps, and gives back what other programs need.",
        why_that_much((wanted, data), &fit, facts, machine)
    );
    let finding = Finding::new("tidepool_pool_too_small", severity, title, why)
        .risk("none now: memory is taken as pages come in, and given back when room goes");
    Some(finding.variable(true, "tidepool_buffer_pool_size", 0, "0"))
}

/// What the engine's curve promises at a larger size; `None` where it says that this saves next to
/// nothing.
fn prediction(tidepool: &Tidepool, size: u64, wanted: u64) -> Option<String> {
    const WORTH_IT: f64 = 0.05;
    let curve = &tidepool.advice;
    let (Some(now), Some(then)) = (predict(curve, size), predict(curve, wanted)) else {
        return Some("The engine predicts nothing yet.".into());
    };
    // Where its curve ends before that size, there is no prediction.
    let reaches = then.size_bytes >= wanted;
    let saved = then.hit_ratio - now.hit_ratio;
    if reaches && saved < WORTH_IT * (1.0 - now.hit_ratio) {
        return None;
    }
    let end = if reaches { "" } else { ", where its curve ends" };
    Some(format!(
        "The engine predicts {:.2} % at {}{end}, and {:.2} % at the present size.",
        then.hit_ratio * 100.0,
        human(then.size_bytes),
        now.hit_ratio * 100.0
    ))
}

fn set(finding: Finding, pool: &Pool, bytes: u64) -> Finding {
    // Beyond the reservation of address space a pool grows by a restart only, and one of several
    // instances can't get small without.
    let online = pool.takes(bytes);
    let mut finding = finding.variable(online, "innodb_buffer_pool_size", bytes, &option(bytes));
    if pool.online && pool.size_max_bytes.is_some_and(|max| bytes > max) {
        finding.config.push(format!("innodb_buffer_pool_size_max = {}", option(bytes)));
    }
    finding
}
