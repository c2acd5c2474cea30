//! Everything that is looked at, as plain figures.
//!
//! A struct of facts is gathered once ([`gather`]) from the server's answers and from its machine
//! ([`machine`]), then only read: the rules are functions of it, so a test can write any machine
//! down. What could not be seen is `None`, and [`Facts::unseen`] says which privilege would show
//! it. All sizes are bytes, all rates per second.

pub mod gather;
pub mod machine;
pub mod process;
pub mod promised;

use serde::Serialize;

use crate::server::Kind;
pub use machine::{Filesystem, Machine};
pub use promised::Promise;

/// One look at a server and its machine.
#[derive(Debug, Clone, Serialize)]
pub struct Facts {
    /// What the server is.
    pub kind: Kind,
    /// How long it has been up, seconds.
    pub uptime_s: u64,
    /// The machine; `None` when the server is on another one.
    pub machine: Option<Machine>,
    /// InnoDB's pool; `None` when InnoDB is off.
    pub pool: Option<Pool>,
    /// Tidepool's pool; `None` when it isn't loaded.
    pub tidepool: Option<Tidepool>,
    /// InnoDB's redo log.
    pub redo: Option<Redo>,
    /// Clients and what each may take.
    pub connections: Connections,
    /// Caches beside the pools, which the server may not have filled yet.
    pub promised: Vec<Promise>,
    /// What is stored.
    pub data: Data,
    /// Other settings that rules look at.
    pub settings: Settings,
    /// What could not be seen, and what would help.
    pub unseen: Vec<Unseen>,
}

impl Facts {
    /// What the data directory is on, as far as it can be seen.
    pub fn filesystem(&self) -> Filesystem {
        let disk = self.machine.as_ref().and_then(|machine| machine.disk.as_ref());
        disk.map(|disk| disk.filesystem).unwrap_or_default()
    }
}

/// InnoDB's smallest page.
const SMALLEST_PAGE_BYTES: u64 = 4096;
/// With this number of requests for each loaded page, its one read is a percent of them.
const LOADED_PAGES_SHARE: u64 = 100;

/// InnoDB's buffer pool.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Pool {
    /// `innodb_buffer_pool_size`.
    pub size_bytes: u64,
    /// The most it can be set to without a restart; `None` where there is no such bound.
    pub size_max_bytes: Option<u64>,
    /// The least that it can be set to without a restart.
    pub least_bytes: u64,
    /// It can only be a multiple of this.
    pub unit_bytes: u64,
    /// Whether it can be set while the server runs.
    pub online: bool,
    /// Whether the descriptors of all pages are in memory from the start, those of pages that were
    /// never used as well. So it is where the pool consists of chunks.
    pub described: bool,
    /// Bytes of pages in it.
    pub data_bytes: u64,
    /// Bytes that were never used or were given free.
    pub free_bytes: u64,
    /// Bytes that the page cleaner keeps free in a pool that is full (`innodb_lru_scan_depth`).
    pub kept_free_bytes: u64,
    /// Logical reads in the interval.
    pub requests_per_s: f64,
    /// Of those, reads that went to disk.
    pub reads_per_s: f64,
    /// Logical reads since the start.
    pub requests_ever: u64,
    /// Reads that went to disk since the start.
    pub reads_ever: u64,
    /// Times a query had to wait for a free page since the start.
    pub wait_free_ever: u64,
    /// The server reads the pages of its list after a start, and counts them as reads of queries.
    pub is_loaded_at_start: bool,
    /// `innodb_old_blocks_time`, milliseconds.
    pub old_blocks_time_ms: Option<u64>,
}

impl Pool {
    /// Share of logical reads served from memory: of the interval if it had enough of them, else
    /// since the start; 0 to 1.
    pub fn hit_ratio(&self) -> Option<f64> {
        let loaded = self.reads_ever.min(self.data_bytes / SMALLEST_PAGE_BYTES);
        // As many of the reads as the pool has pages may be of the load, not of queries.
        let is_known = !self.is_loaded_at_start
            || self.requests_ever >= loaded.saturating_mul(LOADED_PAGES_SHARE);
        let ever = if is_known { (self.requests_ever, self.reads_ever) } else { (0, 0) };
        hit_ratio((self.requests_per_s, self.reads_per_s), ever)
    }

    /// Whether it can be set to this size while the server runs.
    pub fn takes(&self, bytes: u64) -> bool {
        self.online && (self.least_bytes..=self.size_max_bytes.unwrap_or(u64::MAX)).contains(&bytes)
    }

    /// Memory that it has taken from the machine. In a full pool that is all of it: what the
    /// cleaner keeps free has been used.
    pub fn held_bytes(&self) -> u64 {
        if self.is_full() {
            self.size_bytes
        } else {
            self.size_bytes.saturating_sub(self.free_bytes)
        }
    }

    /// Memory of the server that describes pages which hold nothing: a smaller pool gives it back.
    pub fn idle_descriptors_bytes(&self) -> u64 {
        if self.described {
            (self.size_bytes - self.held_bytes().min(self.size_bytes)) / 13
        } else {
            0
        }
    }

    /// Whether no more is free than the page cleaner keeps free: what is read now pushes something
    /// out.
    pub fn is_full(&self) -> bool {
        is_full(self.size_bytes, self.free_bytes, self.kept_free_bytes)
    }
}

/// See [`Pool::is_full`]. Up to a quarter of a small pool may be what the cleaner keeps free.
pub fn is_full(size_bytes: u64, free_bytes: u64, kept_free_bytes: u64) -> bool {
    let kept = (kept_free_bytes + kept_free_bytes / 10).min(size_bytes / 4);
    free_bytes <= kept.max(size_bytes / 20)
}

/// Fewer logical reads say nothing of a hit ratio.
const ENOUGH: f64 = 1000.0;

/// Whether there are enough logical reads a second for a hit ratio of the interval.
pub fn is_recent(requests_per_s: f64) -> bool {
    requests_per_s >= ENOUGH
}

/// See [`Pool::hit_ratio`]. Each pair is of logical reads, and of those that went to disk: in the
/// interval a second, and since the start.
fn hit_ratio(per_s: (f64, f64), ever: (u64, u64)) -> Option<f64> {
    let ever = (ever.0 as f64, ever.1 as f64);
    let (requests, reads) = if is_recent(per_s.0) { per_s } else { ever };
    (requests >= ENOUGH && reads <= requests).then(|| 1.0 - reads / requests)
}

/// Tidepool's buffer pool.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Tidepool {
    /// `tidepool_buffer_pool_size`: 0 is governed.
    pub size_setting_bytes: u64,
    /// `tidepool_memory_guard`: below the real limit whatever the size says.
    pub guarded: bool,
    /// The most that it may hold now.
    pub limit_bytes: u64,
    /// Bytes of pages in it.
    pub data_bytes: u64,
    /// Logical reads in the interval.
    pub requests_per_s: f64,
    /// Of those, reads that went to disk.
    pub reads_per_s: f64,
    /// Logical reads since the start.
    pub requests_ever: u64,
    /// Reads that went to disk since the start.
    pub reads_ever: u64,
    /// What a query waits for one read from disk, microseconds: in the interval if there were
    /// enough reads, else since the start.
    pub read_us: Option<f64>,
    /// `tidepool_buffer_pool_dump_at_shutdown`.
    pub dump_at_shutdown: Option<bool>,
    /// `tidepool_buffer_pool_load_at_startup`.
    pub load_at_startup: Option<bool>,
    /// `tidepool_use_direct_io`.
    pub direct_io: Option<bool>,
    /// `tidepool_old_blocks_time`, milliseconds; `None` with a replacement that does not look at
    /// it.
    pub old_blocks_time_ms: Option<u64>,
    /// Predicted hit ratios at other sizes, if the engine says.
    pub advice: Vec<AdviceRow>,
}

impl Tidepool {
    /// As [`Pool::hit_ratio`].
    pub fn hit_ratio(&self) -> Option<f64> {
        hit_ratio((self.requests_per_s, self.reads_per_s), (self.requests_ever, self.reads_ever))
    }

    /// As [`Pool::is_full`]; what it keeps free is a small part of it.
    pub fn is_full(&self) -> bool {
        is_full(self.limit_bytes, self.limit_bytes.saturating_sub(self.data_bytes), 0)
    }
}

/// One point of a miss-ratio curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AdviceRow {
    /// Size of the pool.
    pub size_bytes: u64,
    /// Relative to the present size, where the engine says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_factor: Option<f64>,
    /// Predicted share of logical reads served from memory, 0 to 1.
    pub hit_ratio: f64,
    /// Predicted reads from disk.
    pub reads_per_s: f64,
}

/// The point of a curve at a size: between two of its points straight in the logarithms of size and
/// miss ratio, as the page draws it; beyond its ends the last point. `None` where the curve has
/// seen no miss: an engine that was not read yet promises hits at any size.
pub fn predict(curve: &[AdviceRow], size_bytes: u64) -> Option<AdviceRow> {
    const LEAST: f64 = 1e-6;
    if curve.iter().all(|row| row.hit_ratio >= 1.0) {
        return None;
    }
    let (first, last) = (curve.first()?, curve.last()?);
    if size_bytes <= first.size_bytes {
        return Some(*first);
    }
    let Some(right) = curve.iter().position(|row| row.size_bytes >= size_bytes) else {
        return Some(*last);
    };
    let (a, b) = (curve[right - 1], curve[right]);
    let log = |bytes: u64| (bytes.max(1) as f64).ln();
    let part =
        (log(size_bytes) - log(a.size_bytes)) / (log(b.size_bytes) - log(a.size_bytes)).max(LEAST);
    let between = |from: f64, to: f64| {
        (from.max(LEAST).ln() * (1.0 - part) + to.max(LEAST).ln() * part).exp()
    };
    Some(AdviceRow {
        size_bytes,
        size_factor: None,
        hit_ratio: 1.0 - between(1.0 - a.hit_ratio, 1.0 - b.hit_ratio).min(1.0),
        reads_per_s: between(a.reads_per_s, b.reads_per_s),
    })
}

/// InnoDB's redo log.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Redo {
    /// All files together.
    pub capacity_bytes: u64,
    /// How many files they are, where that is a setting.
    pub files: u64,
    /// The option that sets it.
    pub option: &'static str,
    /// The server takes no less than this in that option.
    pub least_bytes: u64,
    /// Whether it can be set while the server runs.
    pub online: bool,
    /// Written in the interval.
    pub written_per_s: f64,
    /// Written on average since the start, taken as at least an hour ago.
    pub written_per_s_ever: f64,
    /// Redo since the last checkpoint.
    pub checkpoint_age_bytes: Option<u64>,
    /// Where writers must wait for the checkpoint.
    pub checkpoint_max_bytes: Option<u64>,
}

/// Clients and what each may take.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Connections {
    /// `max_connections`.
    pub allowed: u64,
    /// Most at one time since the start.
    pub used_max: u64,
    /// Now.
    pub connected: u64,
    /// What one busy connection takes: its stack, its network buffer, and each of its work buffers
    /// once.
    pub busy_bytes: u64,
    /// What one idle connection takes.
    pub idle_bytes: u64,
    /// The largest temporary table that a connection keeps in memory.
    pub tmp_table_bytes: u64,
    /// The most that all of these together take, where the server has such a bound (MySQL's
    /// `temptable_max_ram`).
    pub tmp_tables_max_bytes: Option<u64>,
    /// How many execute a statement now.
    pub running: u64,
    /// Whether a pool of threads works for all of them (`thread_handling`): then few are busy at a
    /// time, however many there are.
    pub pooled: bool,
    /// Of the work buffers those that are far larger than any server's default.
    pub large: Vec<LargeBuffer>,
}

impl Connections {
    /// What as many connections as there were at the busiest time, and a quarter more, would take
    /// beyond what those of now have, if each took `each_bytes`. Connections that a pool of threads
    /// serves are idle, nearly all of them.
    pub fn peak_bytes(&self, each_bytes: u64) -> u64 {
        let number = (self.used_max * 5 / 4).min(self.allowed).max(self.connected);
        let idle = self.connected.saturating_mul(self.idle_bytes);
        if self.pooled {
            return number.saturating_mul(self.idle_bytes).saturating_sub(idle);
        }
        let tables = each_bytes.saturating_sub(self.busy_bytes);
        let bound = self.tmp_tables_max_bytes.unwrap_or(u64::MAX);
        let take = |connections: u64| {
            let buffers = connections.saturating_mul(each_bytes.min(self.busy_bytes));
            buffers.saturating_add(connections.saturating_mul(tables).min(bound))
        };
        // Those that execute a statement have what they need of it.
        let running = self.running.min(self.connected);
        let now = take(running).saturating_add((self.connected - running) * self.idle_bytes);
        take(number).saturating_sub(now)
    }
}

/// A work buffer that each connection may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LargeBuffer {
    /// The option that sets it.
    pub name: &'static str,
    /// Its size.
    pub bytes: u64,
}

/// What is stored.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Data {
    /// Rows of InnoDB tables.
    pub innodb_data_bytes: u64,
    /// Secondary indexes of InnoDB tables.
    pub innodb_index_bytes: u64,
    /// Files of InnoDB tables, with what is free in them.
    pub innodb_file_bytes: Option<u64>,
    /// Pages of Tidepool's tables, as a pool holds them.
    pub tidepool_bytes: u64,
    /// How many of these were seen.
    pub tidepool_tables: u64,
    /// All other engines' tables.
    pub other_bytes: u64,
    /// Of these, MyISAM's indexes: what can fill the key cache.
    pub myisam_index_bytes: u64,
    /// How many tables were seen.
    pub tables: u64,
    /// Tables that this user may not see are not in these figures.
    pub is_partial: bool,
}

impl Data {
    /// Whether all of InnoDB's could be seen. What a user sees who may read a few tables says
    /// nothing of the rest.
    pub fn is_seen(&self) -> bool {
        self.innodb_file_bytes.is_some() || (!self.is_partial && self.innodb_bytes() > 0)
    }

    /// What a pool would have to hold to hold everything of InnoDB's.
    pub fn innodb_bytes(&self) -> u64 {
        (self.innodb_data_bytes + self.innodb_index_bytes).max(self.innodb_file_bytes.unwrap_or(0))
    }
}

/// Other settings that rules look at.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Settings {
    /// `innodb_flush_method`, as the server says it.
    pub flush_method: Option<String>,
    /// `innodb_data_file_buffering` (MariaDB 11).
    pub data_file_buffering: Option<bool>,
    /// `innodb_buffer_pool_dump_at_shutdown`.
    pub dump_at_shutdown: Option<bool>,
    /// `innodb_buffer_pool_load_at_startup`.
    pub load_at_startup: Option<bool>,
    /// `innodb_buffer_pool_dump_pct`.
    pub dump_pct: Option<u64>,
    /// `innodb_dedicated_server`; `None` where there is no such option.
    pub dedicated_server: Option<bool>,
    /// `container_aware`: whether a MySQL server sees limits below the machine's; `None` where it
    /// can't.
    pub container_aware: Option<bool>,
    /// Whether somebody has chosen `innodb_buffer_pool_size`, be it the built-in one; `None` where
    /// the server doesn't tell.
    pub pool_size_is_set: Option<bool>,
    /// `locked_in_memory`: the server has locked its memory, so the kernel swaps none of it.
    pub locked: Option<bool>,
    /// `innodb_read_only`: nothing is ever written.
    pub read_only: Option<bool>,
    /// Variables that `SET PERSIST` has written down (MySQL since 8.0): what is said there outranks
    /// the option file.
    pub persisted: Vec<String>,
}

/// Something that could not be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unseen {
    pub what: String,
    /// The statement, or the sentence, that says what would help.
    pub remedy: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_a_server_loads_at_its_start_are_no_misses() {
        let mut pool = Pool {
            data_bytes: 8312 << 14,
            requests_ever: 1706,
            reads_ever: 8312,
            is_loaded_at_start: true,
            ..Pool::default()
        };
        assert_eq!(pool.hit_ratio(), None);
        // Some queries later it would still be wrong by half.
        pool.requests_ever = 20_000;
        assert_eq!(pool.hit_ratio(), None);
        pool.requests_ever = 100_000_000;
        assert!(pool.hit_ratio().unwrap() > 0.999);
        pool.requests_ever = 20_000;
        pool.is_loaded_at_start = false;
        assert!(pool.hit_ratio().unwrap() < 0.6);
        // What queries do now is known.
        (pool.is_loaded_at_start, pool.requests_per_s, pool.reads_per_s) = (true, 2000.0, 20.0);
        assert_eq!(pool.hit_ratio(), Some(0.99));
    }

    #[test]
    fn a_curve_is_read_between_its_points_and_no_further_than_its_ends() {
        let row = |size_bytes, miss: f64| AdviceRow {
            size_bytes,
            size_factor: None,
            hit_ratio: 1.0 - miss,
            reads_per_s: miss * 1000.0,
        };
        let curve = [row(100, 0.4), row(400, 0.1), row(800, 0.01)];
        // Half of the way from 100 to 400 in the logarithm is 200; from 0.4 to 0.1 it is 0.2.
        let found = predict(&curve, 200).unwrap();
        assert!((found.hit_ratio - 0.8).abs() < 1e-9, "{found:?}");
        assert!((found.reads_per_s - 200.0).abs() < 1e-6, "{found:?}");
        let at_a_point = predict(&curve, 400).unwrap();
        assert!((at_a_point.hit_ratio - 0.9).abs() < 1e-9, "{at_a_point:?}");
        assert_eq!(predict(&curve, 50), Some(curve[0]));
        assert_eq!(predict(&curve, 10_000), Some(curve[2]));
        assert_eq!(predict(&[], 100), None);
        // What an engine says before it was read.
        assert_eq!(predict(&[row(100, 0.0), row(200, 0.0)], 150), None);
    }
}
