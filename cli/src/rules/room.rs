//! How large a pool fits, beside everything else that runs there.
//!
//! ```text
//! fits = held + (room - headroom - peak) * 12/13 - swapped
//! ```
//! *held* is the memory that the pool has now, *room* what the tightest limit still leaves:
//! together that is the limit less everything but the pool, measured and not guessed, as in crate
//! `governor`, whose headroom this is too. *peak* is what the connections of the busiest hour so
//! far would take beyond today's, if all of them used each of their buffers: a guess, and so a
//! quarter of the limit at most. Beyond that the buffers are what is wrong, and not the pool. Each
//! page of growth also costs descriptors, hash cells and locks, about a thirteenth of the whole. A
//! pool of chunks has those of all its pages from the start; as far as nothing is in them yet they
//! count as *room*, or a pool far too large would seem to have no place at any size.

use tidepool_governor::signals::share_bytes;

use crate::bytes::{MIB, human};
use crate::facts::{Facts, Machine, Pool};

/// What fits, and how that came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// The largest size of the pool that fits, rounded down to a size that can be set.
    pub bytes: u64,
    /// Whether that is more than fits, for it is the least that is of use.
    pub is_too_much: bool,
    /// Memory that the pool has now.
    pub held_bytes: u64,
    /// Memory of descriptors that a smaller pool would not have.
    pub idle_bytes: u64,
    /// Kept free below the limit.
    pub headroom_bytes: u64,
    /// For connections that are not there now, but were.
    pub peak_bytes: u64,
    /// What they could take.
    pub peak_all_bytes: u64,
}

/// No server has much from a pool that is smaller than this. Where others have taken the memory,
/// nothing is won by taking this too.
const LEAST_BYTES: u64 = 64 * MIB;
/// The limit over this is the most that is kept for the busiest time.
const PEAK_SHARE: u64 = 4;

/// What fits for InnoDB's pool; `None` when the machine can't be seen, or the pool is in huge
/// pages: what there is of these is the administrator's choice, and no other process can use what
/// such a pool gives back.
pub fn fit(facts: &Facts) -> Option<Fit> {
    let (machine, pool) = (facts.machine.as_ref()?, facts.pool.as_ref()?);
    if is_in_huge_pages(machine.server_huge_bytes, pool.size_bytes) {
        return None;
    }
    let fit = fit_beside(facts, machine, pool.held_bytes(), pool.idle_descriptors_bytes());
    let bytes = settable(fit.bytes, pool);
    let least = settable(LEAST_BYTES.max(pool.least_bytes), pool).min(pool.size_bytes);
    Some(Fit { bytes: bytes.max(least), is_too_much: bytes < least, ..fit })
}

/// Whether that many huge pages are the pool's. A server that asks for them gets others where there
/// are none left.
pub fn is_in_huge_pages(huge_bytes: u64, pool_bytes: u64) -> bool {
    huge_bytes > 0 && huge_bytes >= pool_bytes / 2
}

/// The same for Tidepool's, to the byte: it is not a size to set, but the size that a governed pool
/// would have.
pub fn tidepool_fit(facts: &Facts) -> Option<Fit> {
    let (machine, tidepool) = (facts.machine.as_ref()?, facts.tidepool.as_ref()?);
    Some(fit_beside(facts, machine, tidepool.data_bytes, 0))
}

fn fit_beside(facts: &Facts, machine: &Machine, held_bytes: u64, idle_bytes: u64) -> Fit {
    let headroom_bytes = share_bytes(machine.limit_bytes);
    let clients = &facts.connections;
    let peak = (clients.used_max * 5 / 4).min(clients.allowed).saturating_sub(clients.connected);
    let each = if clients.pooled { clients.idle_bytes } else { clients.busy_bytes };
    let peak_all_bytes = peak.saturating_mul(each);
    let peak_bytes = peak_all_bytes.min(machine.limit_bytes / PEAK_SHARE);
    let kept = headroom_bytes + peak_bytes;
    let room = machine.room_bytes + idle_bytes;
    let bytes = if room >= kept {
        held_bytes + (room - kept) / 13 * 12
    } else {
        held_bytes.saturating_sub(kept - room)
    };
    let bytes = bytes.saturating_sub(machine.server_swapped_bytes);
    Fit {
        bytes,
        is_too_much: false,
        held_bytes,
        idle_bytes,
        headroom_bytes,
        peak_bytes,
        peak_all_bytes,
    }
}

/// The next smaller size that the server can take and people can read: steps of about 3 %.
pub fn settable(bytes: u64, pool: &Pool) -> u64 {
    let step = (bytes.max(1).ilog2()).saturating_sub(5);
    let unit = pool.unit_bytes.max(MIB).max(1 << step);
    // A unit that is no power of two (a chunk times the instances) must still divide the size.
    let unit = unit.next_multiple_of(pool.unit_bytes.max(1));
    (bytes / unit * unit).max(pool.unit_bytes.max(5 * MIB))
}

/// "all but the pool uses …", for a finding's figures.
pub fn sentence(fit: &Fit, machine: &Machine) -> String {
    let others = machine
        .limit_bytes
        .saturating_sub(machine.room_bytes)
        .saturating_sub(fit.held_bytes + fit.idle_bytes);
    let mut parts = vec![
        format!("{} has {}", machine.limit_place, human(machine.limit_bytes)),
        format!("everything but the pool uses {}", human(others)),
        format!("the pool holds {} now", human(fit.held_bytes)),
    ];
    if fit.idle_bytes > fit.bytes / 50 {
        parts.push(format!("descriptors of what it does not hold take {}", human(fit.idle_bytes)));
    }
    parts.push(format!("{} should stay free as headroom", human(fit.headroom_bytes)));
    if fit.peak_all_bytes > fit.peak_bytes {
        parts.push(format!(
            "peak connections could need {}, of which {} should stay free",
            human(fit.peak_all_bytes),
            human(fit.peak_bytes)
        ));
    } else if fit.peak_bytes > 0 {
        parts.push(format!("peak connections would need another {}", human(fit.peak_bytes)));
    }
    if machine.server_swapped_bytes > 0 {
        parts.push(format!("{} of the server is in swap", human(machine.server_swapped_bytes)));
    }
    let fits = match fit.is_too_much {
        true => {
            format!("not even a pool of {} fits, and a smaller one is useless", human(fit.bytes))
        }
        false => {
            format!(
                "that leaves room for a pool of {} (a 13th of what is added goes to page descriptors)",
                human(fit.bytes)
            )
        }
    };
    let words = format!("{}: {fits}", parts.join(", "));
    // It begins a paragraph.
    match words.strip_prefix("the ") {
        Some(rest) => format!("The {rest}"),
        None => words,
    }
}
