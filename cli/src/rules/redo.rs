//! The redo log: write rate times time.
//!
//! When the log is nearly full, the server must write dirty pages at once, and writers wait. How
//! much log is enough is not a share of anything: it is what is written in the time over which page
//! writes should be allowed to gather: an hour of the average since the start, or ten minutes of
//! the
//! present rate, whichever is more. (A sample of a few seconds is no hour.) And no more than the
//! pages that can be dirty at all, the pool's or the data's: beyond that each page would be written
//! several times over before a checkpoint needs it, and a recovery would read more log than data.

use super::{Finding, Severity};
use crate::bytes::{GIB, MIB, human, option};
use crate::facts::{Facts, Filesystem, Redo};

/// The log should hold this much of the average writing.
const WANTED_S: f64 = 3600.0;
/// And this much of the present writing.
const WANTED_NOW_S: f64 = 600.0;
/// Less than this is worth a finding.
const SHORT_S: f64 = 600.0;
/// A log below this fills in the first burst, whatever the average says.
const TINY_BYTES: u64 = 48 * MIB;
/// Suggested at least.
const LEAST_BYTES: u64 = 256 * MIB;

/// A log that holds minutes, or nearly nothing.
pub fn capacity(facts: &Facts) -> Option<Finding> {
    let redo = facts.redo.as_ref()?;
    if redo.capacity_bytes == 0
        || facts.settings.dedicated_server == Some(true)
        || facts.settings.read_only == Some(true)
        || super::tables_elsewhere(facts)
    {
        return None;
    }
    let rate = redo.written_per_s.max(redo.written_per_s_ever);
    let holds_s = redo.capacity_bytes as f64 / rate.max(1.0);
    let age_share = match (redo.checkpoint_age_bytes, redo.checkpoint_max_bytes) {
        (Some(age), Some(max)) if max > 0 => age as f64 / max as f64,
        _ => 0.0,
    };
    let tiny = redo.capacity_bytes < TINY_BYTES;
    if holds_s >= SHORT_S && age_share < 0.75 && !tiny {
        return None;
    }
    let wanted = wanted_bytes(redo, facts);
    if wanted <= redo.capacity_bytes {
        return None;
    }
    let severity = match () {
        () if age_share >= 0.75 || holds_s < 60.0 => Severity::High,
        () if holds_s < SHORT_S => Severity::Medium,
        () => Severity::Low,
    };
    // An idle server proves nothing against a tiny log: the next burst will.
    let severity = if tiny { severity.min(Severity::Medium) } else { severity };
    let is_idle = redo.written_per_s < 1.0;
    let average = human(redo.written_per_s_ever as u64);
    let now = human(redo.written_per_s as u64);
    let holds = match (holds_s < 7200.0, is_idle) {
        (true, true) => format!(
            "At the average write rate since the start ({average}/s) it wraps in {holds_s:.0} s; \
             the server is idle now"
        ),
        (true, false) => format!(
            "It wraps in {holds_s:.0} s at the higher of two write rates: {now}/s now, \
             {average}/s on average since the start"
        ),
        (false, _) => format!(
            "It lasts for hours at the present write rate ({now}/s; {average}/s on average since \
             the start), which is low"
        ),
    };
    let title = format!(
        "The redo log of {} is too small: {} is better",
        human(redo.capacity_bytes),
        human(wanted)
    );
    let mut why = format!(
        "{holds}. Whenever it is nearly full, the server must write dirty pages at once, and \
         writers wait."
    );
    if age_share >= 0.5 {
        why.push_str(&format!(
            " It is at {:.0} % of the checkpoint age at which they do.",
            age_share * 100.0
        ));
    }
    let each = wanted / redo.files;
    Some(
        Finding::new("redo_capacity", severity, title, why)
            .risk(format!(
                "recovery after a crash reads up to {}: seconds to minutes more; that much disk space",
                human(wanted)
            ))
            .variable(redo.online, redo.option, each, &option(each)),
    )
}

/// The most that can be dirty, as far as that is known.
fn dirty_most_bytes(facts: &Facts) -> u64 {
    let pool = facts.pool.as_ref().map_or(u64::MAX, |pool| pool.size_bytes);
    let data = match facts.data.is_seen() {
        true => facts.data.innodb_bytes(),
        false => u64::MAX,
    };
    pool.min(data)
}

/// What the log should hold, as a power of two, as far as the disk has room for it and the server
/// takes it. 0 where no size is both.
fn wanted_bytes(redo: &Redo, facts: &Facts) -> u64 {
    let average = redo.written_per_s_ever * WANTED_S;
    let written = average.max(redo.written_per_s * WANTED_NOW_S) as u64;
    let twice = 2 * redo.capacity_bytes.min(GIB);
    let useful = written.max(twice).min(dirty_most_bytes(facts));
    let wanted = useful.max(LEAST_BYTES).max(redo.least_bytes).next_power_of_two();
    let disk = facts.machine.as_ref().and_then(|machine| machine.redo_disk.as_ref());
    let space = match disk {
        // A larger log would be paid for with memory.
        Some(disk) if disk.filesystem == Filesystem::Memory => 0,
        Some(disk) => disk.free_bytes / 4,
        None => u64::MAX,
    };
    // A log larger than this takes longer to recover from than it saves.
    let wanted = wanted.min(64 * GIB).min(previous_power_of_two(space));
    if wanted < redo.least_bytes { 0 } else { wanted }
}

fn previous_power_of_two(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { 1 << bytes.ilog2() }
}
