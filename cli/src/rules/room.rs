//! How large a pool fits, beside everything else that runs there.
//!
//! ```text
//! fits = held + (room - headroom - peak - promised) * 12/13 - swapped
//! ```
//! *held* is the memory that the pool has now, *room* what the tightest limit still leaves:
//! together that is the limit less everything but the pool, measured and not guessed, as in crate
//! `governor`, whose headroom this is too. *peak* is what the connections of the busiest time so
//! far would take beyond what they have now, if all of them used each of their buffers and a
//! temporary table: a guess, and so a quarter of the limit at most. Beyond that the buffers are
//! what is wrong, and not the pool. *promised* is what the server has reserved for its other caches
//! and not taken yet ([`promised`]), and the other pool's size that is not full. Each page of
//! growth also costs descriptors, hash cells and locks, about a thirteenth of the whole. A pool of
//! chunks has those of all its pages from the start; as far as nothing is in them yet they count as
//! *room*, or a pool far too large would seem to have no place at any size.

use tidepool_governor::signals::share_bytes;

use crate::bytes::{MIB, human};
use crate::facts::{Facts, Machine, Pool, Promise, Tidepool, promised};

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
    /// Reserved by the server for its other caches, and not taken yet.
    pub promised_bytes: u64,
    /// The other pool of this server has this much of its size still to take.
    pub other_pool_bytes: u64,
    /// The largest size that needs no guess to fit: without temporary tables, and with no more of a
    /// cache than there is data to fill it. A pool above it is a danger; one up to it is not,
    /// although a pool that grows stays below `bytes`.
    pub certain_bytes: u64,
}

/// No server has much from a pool that is smaller than this. Where others have taken the memory,
/// nothing is won by taking this too.
const LEAST_BYTES: u64 = 64 * MIB;
/// The option of the cache that only MyISAM fills.
const KEY_BUFFER: &str = "key_buffer_size";
/// A key cache that has this much left is worth a word.
const SPARE_BYTES: u64 = 32 * MIB;

/// What fits for InnoDB's pool; `None` when the machine can't be seen, or the pool is in huge
/// pages: what there is of these is the administrator's choice, and no other process can use what
/// such a pool gives back.
pub fn fit(facts: &Facts) -> Option<Fit> {
    let (machine, pool) = (facts.machine.as_ref()?, facts.pool.as_ref()?);
    if is_in_huge_pages(machine.server_huge_bytes, pool.size_bytes) {
        return None;
    }
    let own = Own {
        held_bytes: pool.held_bytes(),
        idle_bytes: pool.idle_descriptors_bytes(),
        other_pool_bytes: facts.tidepool.as_ref().map_or(0, tidepool_left_bytes),
        does_other_yield: facts.tidepool.as_ref().is_some_and(|tidepool| tidepool.guarded),
    };
    let fit = fit_beside(facts, machine, own);
    let bytes = settable(fit.bytes, pool);
    let least = settable(LEAST_BYTES.max(pool.least_bytes), pool).min(pool.size_bytes);
    let certain_bytes = settable(fit.certain_bytes, pool).max(bytes).max(least);
    Some(Fit { bytes: bytes.max(least), is_too_much: bytes < least, certain_bytes, ..fit })
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
    let other_pool_bytes = match facts.pool.as_ref() {
        Some(pool) if !is_in_huge_pages(machine.server_huge_bytes, pool.size_bytes) => {
            pool.size_bytes.saturating_sub(pool.held_bytes())
        }
        _ => 0,
    };
    let own = Own {
        held_bytes: tidepool.data_bytes,
        idle_bytes: 0,
        other_pool_bytes,
        does_other_yield: false,
    };
    Some(fit_beside(facts, machine, own))
}

/// What a pool of a fixed size has still to take. A governed one gives back what others need.
fn tidepool_left_bytes(tidepool: &Tidepool) -> u64 {
    let size_bytes = tidepool.size_setting_bytes.min(tidepool.limit_bytes);
    size_bytes.saturating_sub(tidepool.data_bytes)
}

/// The pool to find a size for.
struct Own {
    held_bytes: u64,
    idle_bytes: u64,
    other_pool_bytes: u64,
    /// Whether the other pool becomes smaller when memory is short.
    does_other_yield: bool,
}

fn fit_beside(facts: &Facts, machine: &Machine, own: Own) -> Fit {
    let Own { held_bytes, idle_bytes, other_pool_bytes, does_other_yield } = own;
    let headroom_bytes = share_bytes(machine.limit_bytes);
    let clients = &facts.connections;
    let (peak_all_bytes, peak_bytes) = promised::of_connections(clients, machine.limit_bytes);
    let promised_bytes = promised::left_bytes(&facts.promised);
    let room = machine.room_bytes + idle_bytes;
    let beside = |kept: u64| {
        let bytes = match room.checked_sub(kept) {
            Some(free) => held_bytes + free / 13 * 12,
            None => held_bytes.saturating_sub(kept - room),
        };
        bytes.saturating_sub(machine.server_swapped_bytes)
    };
    let kept = headroom_bytes.saturating_add(other_pool_bytes);
    let surely_kept = if does_other_yield { headroom_bytes } else { kept };
    let busy = clients.peak_bytes(clients.busy_bytes).min(peak_bytes);
    Fit {
        bytes: beside(kept.saturating_add(peak_bytes).saturating_add(promised_bytes)),
        is_too_much: false,
        held_bytes,
        idle_bytes,
        headroom_bytes,
        peak_bytes,
        peak_all_bytes,
        promised_bytes,
        other_pool_bytes,
        certain_bytes: beside(
            surely_kept.saturating_add(busy).saturating_add(fillable_bytes(facts)),
        ),
    }
}

/// What of the caches there is data for, as far as that is known.
fn fillable_bytes(facts: &Facts) -> u64 {
    let of = |promise: &Promise| match promise.name {
        KEY_BUFFER if !facts.data.is_partial => {
            promise.left_bytes.min(facts.data.myisam_index_bytes)
        }
        _ => promise.left_bytes,
    };
    facts.promised.iter().map(of).fold(0, u64::saturating_add)
}

/// A word on the key cache where MyISAM has next to nothing to put there; empty elsewhere.
pub fn spare_key_buffer(facts: &Facts) -> String {
    let Some(key) = facts.promised.iter().find(|promise| promise.name == KEY_BUFFER) else {
        return String::new();
    };
    let indexes = facts.data.myisam_index_bytes;
    if facts.data.is_partial || key.left_bytes < SPARE_BYTES || indexes > key.size_bytes / 8 {
        return String::new();
    }
    format!(
        " MyISAM's indexes are {}: SET GLOBAL key_buffer_size = {} leaves room for a larger pool.",
        human(indexes),
        (2 * indexes).next_multiple_of(MIB).max(8 * MIB)
    )
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
pub fn sentence(fit: &Fit, facts: &Facts, machine: &Machine) -> String {
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
    if fit.promised_bytes > 0 {
        let names = promised::named(&facts.promised);
        let names = if names.is_empty() { names } else { format!(" ({names})") };
        parts.push(format!(
            "the server has reserved {} that it has not used yet{names}",
            human(fit.promised_bytes)
        ));
    }
    if fit.other_pool_bytes > 0 {
        parts.push(format!(
            "the server's other pool may still take {} of its size",
            human(fit.other_pool_bytes)
        ));
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
