//! Counters since the start of the server or the machine, and figures of this moment:
//! [`super::metrics`] reports them, and [`super::health`] makes rates of them.
//!
//! Only a request in the same second sees the rate of that second. A counter includes every second,
//! however seldom a client asks.

use super::sample::Engine;
use crate::facts::gather::checkpoint_age;
use crate::server::{Named, number};

/// Counters as they stand. `None`: this server or machine does not report it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters {
    /// Statements.
    pub questions: Option<u64>,
    /// Rows read: as the engine counts them, or where it doesn't (MariaDB's InnoDB), those that
    /// statements asked any engine for.
    pub rows_read: Option<u64>,
    /// Logical reads of pages.
    pub read_requests: Option<u64>,
    /// Of those, reads that went to disk.
    pub reads: Option<u64>,
    /// Changes of pages in the pool.
    pub write_requests: Option<u64>,
    /// Pages read from disk, those read ahead included.
    pub pages_read: Option<u64>,
    /// Pages written to disk.
    pub pages_written: Option<u64>,
    /// Read from disk, by the source in [`super::sample::About::disk_words`].
    pub disk_read_bytes: Option<u64>,
    /// Written to disk, by the same.
    pub disk_write_bytes: Option<u64>,
    /// From swap, the whole machine.
    pub swap_in_bytes: Option<u64>,
    /// To swap, the whole machine.
    pub swap_out_bytes: Option<u64>,
    /// Processor time of the server's process.
    pub cpu_s: Option<f64>,
    /// Row locks that a transaction had to wait for.
    pub row_lock_waits: Option<u64>,
    /// Time of those waits.
    pub row_lock_wait_s: Option<f64>,
    /// Transactions that were rolled back because of a deadlock.
    pub deadlocks: Option<u64>,
    /// Temporary tables of statements.
    pub tmp_tables: Option<u64>,
    /// Of those, tables on disk.
    pub tmp_disk_tables: Option<u64>,
    /// Statements longer than `long_query_time`.
    pub slow_queries: Option<u64>,
    /// Accesses that found their page in the compressed tier.
    pub tier_hits: Option<u64>,
    /// No counter: connections that execute a statement, this program's included, now.
    pub threads_running: Option<u64>,
    /// No counter: connections, now.
    pub threads_connected: Option<u64>,
    /// No counter: transactions that wait for a row lock now.
    pub row_locks_waited_for: Option<u64>,
    /// No counter: what the pages of the compressed tier are when they are not compressed.
    pub tier_holds_bytes: Option<u64>,
    /// No counter: changed and not yet written, now.
    pub dirty_bytes: Option<u64>,
    /// No counter: redo since the last checkpoint.
    pub checkpoint_age_bytes: Option<u64>,
    /// No counter: where writers wait for the checkpoint.
    pub checkpoint_age_max_bytes: Option<u64>,
    /// No counter: transactions whose old versions are still kept.
    pub history_list_length: Option<u64>,
}

/// Each of these asks an engine for one row.
const ROWS: [&str; 7] = [
    "handler_read_first",
    "handler_read_key",
    "handler_read_last",
    "handler_read_next",
    "handler_read_prev",
    "handler_read_rnd",
    "handler_read_rnd_next",
];

impl Counters {
    /// From one look: the server's status, `/proc/<pid>/io`, pages swapped in and out, processor
    /// seconds.
    pub fn new(
        engine: Engine,
        status: &Named,
        io: Option<(u64, u64)>,
        swap_pages: Option<(u64, u64)>,
        cpu_s: Option<f64>,
    ) -> Counters {
        let prefix = engine.prefix();
        let own = |name: &str| number(status, &format!("{prefix}_{name}"));
        let tier = |name: &str| match engine {
            Engine::Tidepool => number(status, &format!("tidepool_compressed_tier_{name}")),
            Engine::Innodb => None,
        };
        let asked_for = || ROWS.iter().map(|name| number(status, name)).sum::<Option<u64>>();
        let page_bytes = rustix::param::page_size() as u64;
        Counters {
            questions: number(status, "questions"),
            rows_read: own("rows_read").or_else(asked_for),
            read_requests: own("buffer_pool_read_requests"),
            reads: own("buffer_pool_reads"),
            write_requests: own("buffer_pool_write_requests"),
            pages_read: own("pages_read"),
            pages_written: own("pages_written"),
            disk_read_bytes: io.map(|io| io.0).or_else(|| own("data_read")),
            disk_write_bytes: io.map(|io| io.1).or_else(|| own("data_written")),
            swap_in_bytes: swap_pages.map(|pages| pages.0 * page_bytes),
            swap_out_bytes: swap_pages.map(|pages| pages.1 * page_bytes),
            cpu_s,
            row_lock_waits: own("row_lock_waits"),
            row_lock_wait_s: own("row_lock_time").map(|ms| ms as f64 / 1000.0),
            deadlocks: own("deadlocks"),
            tmp_tables: number(status, "created_tmp_tables"),
            tmp_disk_tables: number(status, "created_tmp_disk_tables"),
            slow_queries: number(status, "slow_queries"),
            tier_hits: tier("hits"),
            threads_running: number(status, "threads_running"),
            threads_connected: number(status, "threads_connected"),
            row_locks_waited_for: own("row_lock_current_waits"),
            tier_holds_bytes: tier("pages").zip(own("page_size")).map(|(n, bytes)| n * bytes),
            dirty_bytes: own("buffer_pool_bytes_dirty"),
            checkpoint_age_bytes: checkpoint_age(status, prefix),
            checkpoint_age_max_bytes: own("checkpoint_max_age"),
            history_list_length: own("history_list_length"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(counters: &[(&str, u64)]) -> Named {
        counters.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
    }

    #[test]
    fn rows_are_the_engines_or_those_that_were_asked_for() {
        let handlers: Vec<(&str, u64)> = ROWS.iter().map(|name| (*name, 2)).collect();
        let of = |engine, counters: &[(&str, u64)]| {
            let all = [handlers.as_slice(), counters].concat();
            Counters::new(engine, &named(&all), None, None, None).rows_read
        };
        assert_eq!(of(Engine::Innodb, &[]), Some(14));
        assert_eq!(of(Engine::Innodb, &[("tidepool_rows_read", 5)]), Some(14));
        assert_eq!(of(Engine::Tidepool, &[("tidepool_rows_read", 5)]), Some(5));
    }

    #[test]
    fn the_disk_is_the_processs_or_else_the_engines() {
        let status = named(&[("innodb_data_read", 10), ("innodb_data_written", 20)]);
        let of = |io| {
            let counters = Counters::new(Engine::Innodb, &status, io, Some((1, 2)), None);
            (counters.disk_read_bytes, counters.disk_write_bytes)
        };
        assert_eq!(of(None), (Some(10), Some(20)));
        assert_eq!(of(Some((30, 40))), (Some(30), Some(40)));
        let counters = Counters::new(Engine::Innodb, &status, None, Some((1, 2)), None);
        assert_eq!(counters.swap_out_bytes, counters.swap_in_bytes.map(|bytes| 2 * bytes));
        // A figure that is not reported is not 0.
        assert_eq!((counters.questions, counters.rows_read, counters.cpu_s), (None, None, None));
    }
}
