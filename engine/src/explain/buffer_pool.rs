//! The buffer pool in one record: how large it is, may be and will be, and how well it serves.

use std::fmt;
use std::time::{Duration, SystemTime};

use tidepool_pool::ResizeState;

use crate::db::Db;

/// The state of the buffer pool at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct BufferPoolReport {
    /// `idle`, `growing`, `shrinking` or `stuck`.
    pub state: &'static str,
    /// The most it may hold now, bytes.
    pub size_bytes: u64,
    /// Memory that it holds now, bytes.
    pub resident_bytes: u64,
    /// The size it is on its way to, bytes.
    pub target_bytes: u64,
    /// The size that was asked for and is the maximum, bytes; none = none was asked for.
    pub ceiling_bytes: Option<u64>,
    /// The tightest limit on the process's memory: bytes, and where it is set.
    pub limit: Option<(u64, String)>,
    /// Why it has this size: the last decision's sentence.
    pub why: String,
    /// Whether the engine chooses the size by itself.
    pub governed: bool,
    /// Bytes in a page.
    pub page_size_bytes: u64,
    /// Pages it may hold.
    pub pages_total: u64,
    /// Of these, without a page.
    pub pages_free: u64,
    /// Pages in it.
    pub pages_data: u64,
    /// Of these, differing from their file.
    pub pages_dirty: u64,
    /// Of these, next to go.
    pub pages_old: u64,
    /// Memory that holds compressed images of pages that left their frames, bytes; part of
    /// `resident_bytes`.
    pub tier_bytes: u64,
    /// How many such pages there are.
    pub tier_pages: u64,
    /// Accesses since the start that found their page there.
    pub tier_hits: u64,
    /// Accesses to pages since the start.
    pub read_requests: u64,
    /// Of these, the ones that had to read the page from its file.
    pub reads: u64,
    /// Resizes since the start.
    pub resizes: u64,
    /// The longest wait that a resize has caused any thread since the start, microseconds.
    pub longest_resize_wait_us: u64,
}

/// A decision about the pool's size.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryDecision {
    /// When it was taken.
    pub taken_at: SystemTime,
    /// What it answered to.
    pub signal: String,
    /// The size before, bytes. Of a decision about the compressed tier, that tier's size.
    pub from_bytes: u64,
    /// The size from then on, bytes.
    pub to_bytes: u64,
    /// Why, in a sentence with the figures.
    pub reason: String,
    /// How long the pool took to get there; none while it is on its way.
    pub took: Option<Duration>,
}

impl BufferPoolReport {
    /// Share of the accesses that found their page in memory, 0 to 1; none before the first access.
    pub fn hit_ratio(&self) -> Option<f64> {
        (self.read_requests > 0)
            .then(|| 1.0 - self.reads.min(self.read_requests) as f64 / self.read_requests as f64)
    }
}

impl Db {
    /// The last decisions about the size of the pool and of its compressed tier, oldest first.
    pub fn memory_decisions(&self) -> Vec<MemoryDecision> {
        let of_size = self.governor().decisions().into_iter();
        let of_size = of_size.map(|entry| MemoryDecision {
            taken_at: entry.taken_at,
            signal: entry.decision.signal.to_string(),
            from_bytes: entry.decision.from_bytes,
            to_bytes: entry.decision.to_bytes,
            reason: entry.decision.reason,
            took: entry.took,
        });
        let of_tier = self.pool().tier_decisions().into_iter().map(|decision| MemoryDecision {
            taken_at: decision.taken_at,
            signal: "compressed tier".to_owned(),
            from_bytes: decision.from_bytes,
            to_bytes: decision.to_bytes,
            reason: decision.reason,
            took: None,
        });
        let mut decisions: Vec<MemoryDecision> = of_size.chain(of_tier).collect();
        decisions.sort_by_key(|decision| decision.taken_at);
        decisions
    }

    /// The buffer pool at this moment.
    pub fn buffer_pool(&self) -> BufferPoolReport {
        let stats = self.pool().stats();
        let tier = self.pool().tier_stats();
        let resize = self.pool().resize_status();
        let governor = self.governor().report();
        BufferPoolReport {
            state: match resize.state {
                ResizeState::Idle => "idle",
                ResizeState::Growing => "growing",
                ResizeState::Shrinking => "shrinking",
                ResizeState::Stuck { .. } => "stuck",
            },
            size_bytes: resize.limit_bytes,
            resident_bytes: resize.resident_bytes,
            target_bytes: resize.target_bytes,
            ceiling_bytes: (governor.size_bytes != 0).then_some(governor.size_bytes),
            limit: governor.limit_bytes.map(|bytes| (bytes, governor.limit_place)),
            why: match resize.state {
                ResizeState::Stuck { why } => format!("{}; no progress: {why}", governor.why),
                _ => governor.why,
            },
            governed: governor.size_bytes == 0,
            page_size_bytes: stats.page_size_bytes,
            pages_total: stats.pages_total,
            pages_free: stats.pages_free,
            pages_data: stats.pages_data,
            pages_dirty: stats.pages_dirty,
            pages_old: stats.pages_old,
            tier_bytes: tier.frames * stats.page_size_bytes,
            tier_pages: tier.images,
            tier_hits: tier.hits,
            read_requests: stats.read_requests,
            reads: stats.reads,
            resizes: resize.resizes,
            longest_resize_wait_us: resize.longest_wait_us,
        }
    }
}

/// Bytes as a person says them.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(UNITS.len() as u32 - 1);
    match unit {
        0 => format!("{bytes} bytes"),
        _ => format!("{:.1} {}", bytes as f64 / (1u64 << (10 * unit)) as f64, UNITS[unit as usize]),
    }
}

impl fmt::Display for BufferPoolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chosen = if self.governed { "the engine chooses its size" } else { "its size was set" };
        write!(
            f,
            "The pool holds {} and may hold {}; {chosen}",
            size(self.resident_bytes),
            size(self.size_bytes)
        )?;
        match self.ceiling_bytes {
            Some(ceiling) if self.governed || ceiling != self.size_bytes => {
                writeln!(f, ", {} at most.", size(ceiling))?;
            }
            _ => writeln!(f, ".")?,
        }
        match self.state {
            "idle" => writeln!(f, "It is at rest.")?,
            "stuck" => {
                writeln!(f, "It is to shrink to {}, and is stuck.", size(self.target_bytes))?
            }
            state => writeln!(f, "It is {state} to {}.", size(self.target_bytes))?,
        }
        writeln!(f, "Why: {}.", self.why.trim_end_matches('.'))?;
        if let Some((bytes, place)) = &self.limit {
            writeln!(
                f,
                "The tightest limit on the process's memory is {} ({place}).",
                size(*bytes)
            )?;
        }
        if self.resizes > 0 {
            writeln!(
                f,
                "{} resizes since the start; the longest that anyone waited for one was {} us.",
                self.resizes, self.longest_resize_wait_us
            )?;
        }
        write!(
            f,
            "{} of {} pages are in use, {} of them to be written.",
            self.pages_data, self.pages_total, self.pages_dirty
        )?;
        if self.tier_bytes > 0 {
            write!(
                f,
                "\n{} hold {} more pages, compressed; {} accesses found their page there.",
                size(self.tier_bytes),
                self.tier_pages,
                self.tier_hits
            )?;
        }
        match self.hit_ratio() {
            Some(ratio) => {
                writeln!(f, " {:.3} % of all accesses found their page in it.", 100.0 * ratio)
            }
            None => writeln!(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_in_words() {
        let mut report = BufferPoolReport {
            state: "shrinking",
            size_bytes: 64 << 20,
            resident_bytes: 48 << 20,
            target_bytes: 32 << 20,
            ceiling_bytes: Some(1 << 30),
            limit: Some((2 << 30, "memory.max of /a".into())),
            why: "others took memory".into(),
            governed: true,
            page_size_bytes: 16384,
            pages_total: 4096,
            pages_free: 1024,
            pages_data: 3072,
            pages_dirty: 5,
            pages_old: 7,
            tier_bytes: 0,
            tier_pages: 0,
            tier_hits: 0,
            read_requests: 1000,
            reads: 1,
            resizes: 3,
            longest_resize_wait_us: 250,
        };
        assert_eq!(
            report.to_string(),
            "The pool holds 48.0 MiB and may hold 64.0 MiB; the engine chooses its size, 1.0 GiB at most.\n\
             It is shrinking to 32.0 MiB.\n\
             Why: others took memory.\n\
             The tightest limit on the process's memory is 2.0 GiB (memory.max of /a).\n\
             3 resizes since the start; the longest that anyone waited for one was 250 us.\n\
             3072 of 4096 pages are in use, 5 of them to be written. 99.900 % of all accesses found their page in it.\n"
        );
        (report.tier_bytes, report.tier_pages, report.tier_hits) = (1 << 20, 300, 17);
        let tier = "1.0 MiB hold 300 more pages, compressed; 17 accesses found their page there.";
        assert!(report.to_string().contains(tier));
        report.state = "stuck";
        assert!(report.to_string().contains("It is to shrink to 32.0 MiB, and is stuck."));
        (report.read_requests, report.governed, report.limit) = (0, false, None);
        assert!(!report.to_string().contains('%'));
    }
}
