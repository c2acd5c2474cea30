//! Counters of the whole engine at one moment, under InnoDB's names.
//!
//! [`Db::status`](crate::Db::status) gathers them from the layers; nothing here is on a hot path. A
//! name is InnoDB's status variable without its prefix (`Innodb_buffer_pool_reads` →
//! `buffer_pool_reads`), so that dashboards made for InnoDB need nothing but another prefix.
//! Figures without an equal there have names in the same manner.

use crate::governor::GovernorReport;
use crate::memory::MemoryReport;
use crate::redo::RedoStats;
use crate::trx::TrxStatus;
use std::fmt;
use tidepool_pool::trace::TraceStatus;
use tidepool_pool::{PackedUsage, PoolStats, ResizeState, ResizeStatus, TierStats};

/// All counters at one moment, in a fixed order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    counters: Vec<(&'static str, u64)>,
    texts: Vec<(&'static str, String)>,
}

impl Status {
    /// Adds a counter. Each name comes once.
    pub(crate) fn push(&mut self, name: &'static str, value: u64) {
        debug_assert!(self.get(name).is_none(), "counter {name} comes twice");
        self.counters.push((name, value));
    }

    /// Adds a figure that is a sentence. Each name comes once.
    pub(crate) fn push_text(&mut self, name: &'static str, value: String) {
        debug_assert!(self.texts.iter().all(|text| text.0 != name), "text {name} comes twice");
        self.texts.push((name, value));
    }

    /// All figures that are sentences, in a fixed order.
    pub fn texts(&self) -> &[(&'static str, String)] {
        &self.texts
    }

    /// All counters, in a fixed order.
    pub fn counters(&self) -> &[(&'static str, u64)] {
        &self.counters
    }

    /// One counter.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|counter| counter.0 == name).map(|counter| counter.1)
    }
}

impl Status {
    /// How the recording of a page trace goes; zeroes if there is none.
    pub(crate) fn add_page_trace(&mut self, trace: Option<&TraceStatus>) {
        self.push("page_trace_requests", trace.map_or(0, |trace| trace.requests));
        self.push("page_trace_dropped", trace.map_or(0, |trace| trace.dropped));
        self.push("page_trace_bytes", trace.map_or(0, |trace| trace.bytes));
    }

    /// The buffer pool's figures.
    pub(crate) fn add_pool(&mut self, pool: &PoolStats) {
        let page_size = pool.page_size_bytes;
        self.push("page_size", page_size);
        self.push("buffer_pool_size_bytes", pool.pages_total * page_size);
        self.push("buffer_pool_pages_total", pool.pages_total);
        self.push("buffer_pool_pages_free", pool.pages_free);
        self.push("buffer_pool_pages_data", pool.pages_data);
        self.push("buffer_pool_pages_dirty", pool.pages_dirty);
        self.push("buffer_pool_pages_old", pool.pages_old);
        self.push("buffer_pool_bytes_data", pool.pages_data * page_size);
        self.push("buffer_pool_bytes_dirty", pool.pages_dirty * page_size);
        self.push("buffer_pool_pages_flushed", pool.pages_flushed);
        self.push("buffer_pool_pages_lru_flushed", pool.pages_flushed_lru);
        self.push("buffer_pool_pages_evicted", pool.pages_evicted);
        self.push("buffer_pool_pages_made_young", pool.pages_made_young);
        self.push("buffer_pool_pages_made_not_young", pool.pages_not_made_young);
        self.push("buffer_pool_read_requests", pool.read_requests);
        self.push("buffer_pool_reads", pool.reads);
        self.push("buffer_pool_reads_us", pool.reads_us);
        self.push("buffer_pool_read_ahead", pool.read_ahead);
        self.push("buffer_pool_read_ahead_evicted", pool.read_ahead_evicted);
        self.push("buffer_pool_scan_rests_us", pool.scan_rests_us);
        self.push("buffer_pool_write_requests", pool.write_requests);
        self.push("buffer_pool_wait_free", pool.wait_free);
        self.push("buffer_pool_wait_free_us", pool.wait_free_us);
        self.push("buffer_pool_read_errors", pool.read_errors);
        self.push("buffer_pool_write_errors", pool.write_errors);
        self.push("pages_created", pool.pages_created);
        self.push("pages_read", pool.reads + pool.read_ahead);
        self.push("pages_written", pool.pages_flushed);
    }

    /// The compressed tier's figures.
    pub(crate) fn add_tier(&mut self, tier: &TierStats, page_size: u64) {
        self.push("compressed_tier_bytes", tier.frames * page_size);
        self.push("compressed_tier_bytes_max", tier.frames_max * page_size);
        self.push("compressed_tier_pages", tier.images);
        self.push("compressed_tier_image_bytes", tier.image_bytes);
        self.push("compressed_tier_index_bytes", tier.index_bytes);
        self.push("compressed_tier_hits", tier.hits);
        self.push("compressed_tier_hits_us", tier.hits_us);
        self.push("compressed_tier_inserted", tier.inserted);
        self.push("compressed_tier_compressed", tier.compressed);
        self.push("compressed_tier_dropped", tier.dropped);
    }

    /// What went through the files of pages, and what they take.
    pub(crate) fn add_files(&mut self, packed: &PackedUsage, pool: &PoolStats) {
        let mirrored = pool.mirror_pages_written * pool.page_size_bytes;
        self.push("data_read", packed.read_bytes);
        self.push("data_written", packed.written_bytes + mirrored);
        self.push("data_files_bytes", packed.file_bytes);
        self.push("data_occupied_bytes", packed.occupied_bytes);
        self.push("data_live_bytes", packed.live_bytes);
        self.push("data_moved_bytes", packed.moved_bytes);
        self.push("data_freed_bytes", packed.freed_bytes);
        self.push("data_file_checkpoints", packed.checkpoints);
    }

    /// How the last resize of the buffer pool goes.
    pub(crate) fn add_resize(&mut self, resize: &ResizeStatus) {
        self.push("buffer_pool_limit_bytes", resize.limit_bytes);
        self.push("buffer_pool_resident_bytes", resize.resident_bytes);
        self.push("buffer_pool_resizes", resize.resizes);
        self.push("buffer_pool_resize_pages_moved", resize.pages_moved);
        self.push("buffer_pool_resize_pages_dropped_from_swap", resize.pages_dropped_from_swap);
        self.push("buffer_pool_resize_duration_us", resize.duration.as_micros() as u64);
        self.push("buffer_pool_resize_longest_wait_us", resize.longest_wait_us);
        let mib = |bytes: u64| bytes >> 20;
        // The numbers are those of MySQL's status variable of this name, as far as there is such a
        // state.
        let (code, text) = match &resize.state {
            ResizeState::Idle if resize.resizes == 0 => (0, String::new()),
            ResizeState::Idle => (
                0,
                format!(
                    "Completed resizing buffer pool to {} MiB in {} ms",
                    mib(resize.target_bytes),
                    resize.duration.as_millis()
                ),
            ),
            ResizeState::Growing => {
                (5, format!("Resizing buffer pool to {} MiB", mib(resize.target_bytes)))
            }
            ResizeState::Shrinking => (
                3,
                format!(
                    "Withdrawing memory from {} to {} MiB",
                    mib(resize.limit_bytes),
                    mib(resize.target_bytes)
                ),
            ),
            ResizeState::Stuck { why } => (
                7,
                format!(
                    "Withdrawing memory from {} to {} MiB makes no progress, trying again: {why}",
                    mib(resize.limit_bytes),
                    mib(resize.target_bytes)
                ),
            ),
        };
        self.push("buffer_pool_resize_status_code", code);
        self.push_text("buffer_pool_resize_status", text);
    }

    /// The figures of who sizes the buffer pool. What can't be read is 0.
    pub(crate) fn add_governor(&mut self, governor: &GovernorReport) {
        self.push("buffer_pool_target_bytes", governor.target_bytes);
        self.push("memory_limit_bytes", governor.limit_bytes.unwrap_or(0));
        self.push("memory_room_bytes", governor.room_bytes.unwrap_or(0));
        self.push("memory_headroom_bytes", governor.headroom_bytes);
        if governor.budget_bytes != 0 {
            self.push("memory_budget_bytes", governor.budget_bytes);
            self.push("memory_budget_rest_bytes", governor.budget_rest_bytes);
        }
        self.push("memory_own_resident_bytes", governor.own_resident_bytes.unwrap_or(0));
        self.push("memory_own_swapped_bytes", governor.own_swapped_bytes.unwrap_or(0));
        self.push("memory_shrinks", governor.shrinks);
        self.push("memory_grows", governor.grows);
        self.push("memory_readings", governor.readings);
        self.push("memory_wants_more", governor.wants_more.into());
        self.push("memory_needed_bytes", governor.needed_bytes.unwrap_or(0));
        let nice = governor.thread_nice.map_or_else(String::new, |nice| nice.to_string());
        self.push_text("memory_thread_nice", nice);
        self.push_text("memory_limit_place", governor.limit_place.clone());
        self.push_text("memory_decision_reason", governor.why.clone());
    }

    /// What memory goes to.
    pub(crate) fn add_memory(&mut self, memory: &MemoryReport) {
        for row in &memory.rows {
            let name = match row.name {
                "frames" => "memory_frames",
                "frame_descriptors" => "memory_frame_descriptors",
                "replacement" => "memory_replacement",
                "translation" => "memory_translation",
                "flush_buffers" => "memory_flush_buffers",
                "page_maps" => "memory_page_maps",
                "compressed_tier_index" => "memory_compressed_tier_index",
                "tap_rings" => "memory_tap_rings",
                "redo_buffers" => "memory_redo_buffers",
                "lock_table" => "memory_lock_table",
                "trx_states" => "memory_trx_states",
                "undo_streams" => "memory_undo_streams",
                "sorts" => "memory_sorts",
                name => {
                    debug_assert!(false, "row {name} has no counter");
                    continue;
                }
            };
            self.push(name, row.bytes);
        }
        self.push("memory_total", memory.total_bytes());
        self.push("memory_rest_of_process", memory.rest_bytes().unwrap_or(0));
    }

    /// The redo log's figures.
    pub(crate) fn add_redo(&mut self, redo: &RedoStats) {
        self.push("lsn_current", redo.next_lsn);
        self.push("lsn_written", redo.written_lsn);
        self.push("lsn_flushed", redo.flushed_lsn);
        self.push("lsn_last_checkpoint", redo.checkpoint_lsn);
        self.push("checkpoint_age", redo.next_lsn - redo.checkpoint_lsn);
        self.push("checkpoint_max_age", redo.capacity_bytes);
        self.push("checkpoints", redo.checkpoints);
        self.push("redo_log_files_bytes", redo.files_bytes);
        self.push("log_write_requests", redo.frames);
        self.push("log_writes", redo.writes);
        self.push("log_waits", redo.capacity_waits);
        self.push("log_waits_us", redo.capacity_waits_us);
        self.push("log_buffer_waits", redo.buffer_waits);
        self.push("log_flush_requests", redo.flush_requests);
        self.push("os_log_written", redo.written_bytes);
        self.push("os_log_fsyncs", redo.syncs);
        self.push("os_log_fsyncs_us", redo.syncs_us);
    }

    /// What a full disk has left of the ballast.
    pub(crate) fn add_ballast(&mut self, bytes: u64) {
        self.push("ballast_bytes", bytes);
    }

    /// The transaction system's figures.
    pub(crate) fn add_transactions(&mut self, trx: &TrxStatus) {
        self.push("history_list_length", trx.history_len);
        self.push("trx_active_writers", trx.active_writers);
        self.push("trx_read_views", trx.read_views);
        self.push("trx_prepared", trx.prepared);
        self.push("trx_next_id", trx.next_trx_id);
        self.push("trx_newest_csn", trx.newest_csn);
        self.push("trx_state_chunks", trx.trx_state_chunks);
        self.push("trx_rollbacks_pending", trx.rollbacks_pending);
        self.push("purge_logs", trx.purged_logs);
        self.push("purge_entries", trx.purged_entries);
        self.push("undo_streams", trx.undo_streams);
        self.push("row_lock_current_waits", trx.lock_waits_current);
        self.push("row_lock_waits", trx.lock_waits);
        self.push("row_lock_time", trx.lock_wait_micros / 1000);
        let average = trx.lock_wait_micros / trx.lock_waits.max(1) / 1000;
        self.push("row_lock_time_avg", average);
        self.push("row_lock_timeouts", trx.lock_timeouts);
        self.push("deadlocks", trx.deadlocks);
        self.push("lock_keys", trx.key_locks);
        self.push("lock_ranges", trx.range_locks);
    }
}

/// What threads wait for.
struct Wait {
    what: &'static str,
    /// The counter of how often.
    times: &'static str,
    /// The counter of how long in all, and the microseconds of its unit; none where that is not
    /// measured.
    time: Option<(&'static str, u64)>,
}

/// The first section of the text.
const WAITS: [Wait; 7] = [
    Wait {
        what: "a page, from its file",
        times: "buffer_pool_reads",
        time: Some(("buffer_pool_reads_us", 1)),
    },
    Wait {
        what: "a free frame",
        times: "buffer_pool_wait_free",
        time: Some(("buffer_pool_wait_free_us", 1)),
    },
    Wait { what: "a row lock", times: "row_lock_waits", time: Some(("row_lock_time", 1000)) },
    Wait { what: "the redo log on the disk", times: "log_flush_requests", time: None },
    Wait {
        what: "  a sync of it, for all who wait",
        times: "os_log_fsyncs",
        time: Some(("os_log_fsyncs_us", 1)),
    },
    Wait { what: "room in the redo log", times: "log_waits", time: Some(("log_waits_us", 1)) },
    Wait { what: "room in the redo log's buffer", times: "log_buffer_waits", time: None },
];

/// Lines below it: what, the counter, its unit.
const MORE_WAITS: [(&str, &str, &str); 3] = [
    ("row locks waited for now", "row_lock_current_waits", ""),
    ("scans have rested, for queries to read", "buffer_pool_scan_rests_us", " us"),
    ("longest wait for a resize of the pool", "buffer_pool_resize_longest_wait_us", " us"),
];

impl Status {
    fn write_waits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEAD: &str = "WAITS, FOR";
        writeln!(f, "{HEAD:<40} {:>12} {:>14} {:>12}", "times", "ms in all", "us each")?;
        writeln!(f, "{}", "-".repeat(HEAD.len()))?;
        for Wait { what, times, time } in WAITS {
            let Some(times) = self.get(times) else { continue };
            let us = time.and_then(|(counter, unit)| Some(self.get(counter)? * unit));
            let [all, each] = match us {
                Some(us) => [(us / 1000).to_string(), (us / times.max(1)).to_string()],
                None => ["-", "-"].map(str::to_owned),
            };
            writeln!(f, "{what:<40} {times:>12} {all:>14} {each:>12}")?;
        }
        for (what, counter, unit) in MORE_WAITS {
            if let Some(value) = self.get(counter) {
                writeln!(f, "{what:<40} {value:>12}{unit}")?;
            }
        }
        writeln!(f)
    }
}

/// Sections of the text, each with the prefixes of the counters that it holds. The last takes the
/// rest.
const SECTIONS: [(&str, &[&str]); 6] = [
    ("BUFFER POOL", &["buffer_pool_", "page", "data_"]),
    ("MEMORY", &["memory_"]),
    ("LOG", &["lsn_", "log_", "checkpoint", "redo_", "os_log_", "ballast_"]),
    ("TRANSACTIONS", &["trx_", "history_list_length", "purge_", "undo_"]),
    ("LOCKS", &["row_lock_", "deadlocks", "lock_"]),
    ("ROW OPERATIONS", &[""]),
];

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let section_of = |name: &str| {
            let holds = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
            SECTIONS.iter().position(|(_, prefixes)| holds(prefixes)).unwrap_or(SECTIONS.len() - 1)
        };
        self.write_waits(f)?;
        for (at, (title, _)) in SECTIONS.iter().enumerate() {
            writeln!(f, "{title}\n{}", "-".repeat(title.len()))?;
            for (name, value) in self.counters.iter().filter(|(name, _)| section_of(name) == at) {
                writeln!(f, "{name:<40} {value}")?;
            }
            for (name, value) in self.texts.iter().filter(|(name, _)| section_of(name) == at) {
                writeln!(f, "{name:<40} {value}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_each_counter_once_in_its_section() {
        let mut status = Status::default();
        for (at, name) in
            ["rows_read", "buffer_pool_reads", "lsn_current", "deadlocks"].iter().enumerate()
        {
            status.push(name, at as u64);
        }
        status.push_text("memory_decision_reason", "room lasted".into());
        let text = status.to_string();
        let order = ["buffer_pool_reads", "room lasted", "lsn_current", "deadlocks", "rows_read"];
        let at: Vec<_> = order.iter().map(|name| text.find(name).unwrap()).collect();
        assert!(at.is_sorted(), "{text}");
        assert_eq!(order.iter().map(|name| text.matches(name).count()).sum::<usize>(), order.len());
        assert!(text.starts_with("WAITS, FOR "), "{text}");
        assert_eq!(status.get("rows_read"), Some(0));
        assert_eq!(status.get("rows_written"), None);
    }

    #[test]
    fn waits_have_their_times_where_these_are_measured() {
        let mut status = Status::default();
        for (name, value) in [
            ("buffer_pool_reads", 1000),
            ("buffer_pool_reads_us", 250_900),
            ("row_lock_waits", 4),
            ("row_lock_time", 6000),
            ("log_flush_requests", 77),
            ("log_waits", 0),
            ("log_waits_us", 0),
            ("buffer_pool_resize_longest_wait_us", 1234),
        ] {
            status.push(name, value);
        }
        let text = status.to_string();
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        assert_eq!(
            lines,
            [
                "WAITS, FOR times ms in all us each",
                "----------",
                "a page, from its file 1000 250 250",
                "a row lock 4 6000 1500000",
                "the redo log on the disk 77 - -",
                "room in the redo log 0 0 0",
                "longest wait for a resize of the pool 1234 us",
            ]
        );
    }

    #[test]
    fn every_wait_has_counters_that_exist() {
        let mut status = Status::default();
        status.add_pool(&PoolStats::default());
        status.add_tier(&TierStats::default(), 0);
        status.add_files(&PackedUsage::default(), &PoolStats::default());
        status.add_resize(&ResizeStatus::default());
        status.add_redo(&RedoStats::default());
        status.add_transactions(&TrxStatus::default());
        let of_waits =
            WAITS.iter().flat_map(|wait| [Some(wait.times), wait.time.map(|time| time.0)]);
        let of_more = MORE_WAITS.iter().map(|(_, counter, _)| Some(*counter));
        for name in of_waits.chain(of_more).flatten() {
            assert!(status.get(name).is_some(), "there is no counter {name}");
        }
    }
}
