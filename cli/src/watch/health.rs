//! What a DBA looks at beside load and pool size, in one second: whether writers, row locks, purge
//! or a replica fall behind.

use serde::Serialize;

use super::counters::Counters;

/// One second. `None`: this server does not report it, or this user may not see it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Health {
    /// Pages that are changed and not yet written.
    pub dirty_bytes: Option<u64>,
    /// Redo since the last checkpoint.
    pub checkpoint_age_bytes: Option<u64>,
    /// The age at which writers wait for the checkpoint.
    pub checkpoint_age_max_bytes: Option<u64>,
    /// Transactions whose old versions of rows are kept.
    pub history_list_length: Option<u64>,
    /// Connections, this program's included.
    pub threads_connected: Option<u64>,
    /// Transactions that wait for a row lock now.
    pub row_locks_waited_for: Option<u64>,
    pub row_lock_waits_per_s: Option<f64>,
    pub deadlocks_per_s: Option<f64>,
    pub tmp_disk_tables_per_s: Option<f64>,
    pub slow_queries_per_s: Option<f64>,
    /// Of the replication channel that is farthest behind.
    pub replication_lag_s: Option<f64>,
    /// What the pages of the compressed tier are when they are not compressed.
    pub tier_holds_bytes: Option<u64>,
    pub tier_hits_per_s: Option<f64>,
}

impl Health {
    /// From the counters of two looks and the time between them.
    pub fn between(
        before: &Counters,
        now: &Counters,
        elapsed_s: f64,
        lag_s: Option<f64>,
    ) -> Health {
        let rate = |of: fn(&Counters) -> Option<u64>| {
            let (then, now) = of(before).zip(of(now))?;
            Some(now.saturating_sub(then) as f64 / elapsed_s)
        };
        Health {
            dirty_bytes: now.dirty_bytes,
            checkpoint_age_bytes: now.checkpoint_age_bytes,
            checkpoint_age_max_bytes: now.checkpoint_age_max_bytes,
            history_list_length: now.history_list_length,
            threads_connected: now.threads_connected,
            row_locks_waited_for: now.row_locks_waited_for,
            row_lock_waits_per_s: rate(|c| c.row_lock_waits),
            deadlocks_per_s: rate(|c| c.deadlocks),
            tmp_disk_tables_per_s: rate(|c| c.tmp_disk_tables),
            slow_queries_per_s: rate(|c| c.slow_queries),
            replication_lag_s: lag_s,
            tier_holds_bytes: now.tier_holds_bytes,
            tier_hits_per_s: rate(|c| c.tier_hits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_between_and_unknown_where_the_server_is_silent() {
        let counters = |deadlocks, slow_queries| Counters {
            deadlocks: Some(deadlocks),
            slow_queries,
            dirty_bytes: Some(5),
            ..Counters::default()
        };
        let (before, now) = (counters(4, Some(1)), counters(10, None));
        let health = Health::between(&before, &now, 2.0, Some(7.0));
        assert_eq!((health.deadlocks_per_s, health.dirty_bytes), (Some(3.0), Some(5)));
        assert_eq!((health.slow_queries_per_s, health.row_lock_waits_per_s), (None, None));
        assert_eq!(health.replication_lag_s, Some(7.0));
        // A server that began to count anew has no rate below 0.
        assert_eq!(Health::between(&now, &before, 1.0, None).deadlocks_per_s, Some(0.0));
    }
}
