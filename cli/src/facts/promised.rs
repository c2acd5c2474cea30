//! Memory that the server has reserved for itself and not taken yet.
//!
//! A cache that MariaDB or MySQL allocates at its start costs memory only as pages of it are
//! written. What the kernel counts today leaves the rest out, and a pool that grows into that rest
//! gets the server killed on the day the cache fills. So the rest counts as used.
//!
//! | reservation | the part that is taken already |
//! |---|---|
//! | `key_buffer_size` | all but `Key_blocks_unused` |
//! | `aria_pagecache_buffer_size` | all but `Aria_pagecache_blocks_unused` |
//! | `query_cache_size` | all but `Qcache_free_memory` |
//! | `innodb_log_buffer_size` | unknown: none. MariaDB has two such buffers |
//! | connections at their highest number | the idle part of the connected, all of the running |
//!
//! Where the server does not report a counter, nothing of that cache counts as taken.

use serde::Serialize;

use super::Connections;
use crate::bytes::{KIB, human};
use crate::server::{Kind, Named, number, switch};

/// The counters that [`caches`] and [`super::gather::connections`] read.
pub const COUNTERS: [&str; 6] = [
    "Key_blocks_unused",
    "Aria_pagecache_blocks_unused",
    "Qcache_free_memory",
    "Max_used_connections",
    "Threads_connected",
    "Threads_running",
];
/// The smallest reservation that a sentence names, bytes.
const NAMED_BYTES: u64 = 8 << 20;
/// The block size of the key cache where the server does not say it, bytes.
const KEY_BLOCK_BYTES: u64 = KIB;
/// The same of Aria's page cache.
const ARIA_BLOCK_BYTES: u64 = 8 * KIB;
/// The connections' part is a guess, so it counts as the limit over this at most.
const CONNECTIONS_SHARE: u64 = 4;

/// One reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Promise {
    /// The option that sets it.
    pub name: &'static str,
    pub size_bytes: u64,
    /// What the server has not taken yet, bytes.
    pub left_bytes: u64,
}

/// The caches of the server beside the pools.
pub fn caches(kind: &Kind, variables: &Named, status: &Named) -> Vec<Promise> {
    let setting = |name: &str| number(variables, name).unwrap_or(0);
    let block =
        |name: &str, usual| number(variables, name).filter(|&size| size > 0).unwrap_or(usual);
    let blocks_left = |name: &str, size: u64| {
        number(status, name).map_or(u64::MAX, |blocks| blocks.saturating_mul(size))
    };
    let promise = |name, size_bytes: u64, left_bytes: u64| Promise {
        name,
        size_bytes,
        left_bytes: left_bytes.min(size_bytes),
    };
    let key = block("key_cache_block_size", KEY_BLOCK_BYTES);
    let aria = block("aria_block_size", ARIA_BLOCK_BYTES);
    // One that is off since the start can't be switched on.
    let queries = match switch(variables, "query_cache_type") {
        Some(false) => 0,
        _ => setting("query_cache_size"),
    };
    let log_buffers = if kind.is_mariadb_since((10, 5, 0)) { 2 } else { 1 };
    let log = match kind.innodb {
        true => setting("innodb_log_buffer_size").saturating_mul(log_buffers),
        false => 0,
    };
    let caches = [
        promise(
            "key_buffer_size",
            setting("key_buffer_size"),
            blocks_left("key_blocks_unused", key),
        ),
        promise(
            "aria_pagecache_buffer_size",
            setting("aria_pagecache_buffer_size"),
            blocks_left("aria_pagecache_blocks_unused", aria),
        ),
        promise(
            "query_cache_size",
            queries,
            number(status, "qcache_free_memory").unwrap_or(u64::MAX),
        ),
        promise("innodb_log_buffer_size", log, log),
    ];
    caches.into_iter().filter(|promise| promise.size_bytes > 0).collect()
}

/// What is left of all of them, bytes.
pub fn left_bytes(promises: &[Promise]) -> u64 {
    promises.iter().fold(0, |sum, promise| sum.saturating_add(promise.left_bytes))
}

/// What the connections of the busiest time so far would take beyond what they have now, bytes;
/// and that as far as it counts below a limit of `limit_bytes`.
pub fn of_connections(clients: &Connections, limit_bytes: u64) -> (u64, u64) {
    let all = clients.peak_bytes(clients.busy_bytes.saturating_add(clients.tmp_table_bytes));
    (all, all.min(limit_bytes / CONNECTIONS_SHARE))
}

/// The larger ones for a sentence: `key_buffer_size 468 MiB, …`; empty where there is none.
pub fn named(promises: &[Promise]) -> String {
    let mut large: Vec<&Promise> =
        promises.iter().filter(|promise| promise.left_bytes >= NAMED_BYTES).collect();
    large.sort_by_key(|promise| std::cmp::Reverse(promise.left_bytes));
    let words = |promise: &&Promise| format!("{} {}", promise.name, human(promise.left_bytes));
    large.iter().map(words).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::MIB;

    fn of(version: &str, variables: &[(&str, &str)], status: &[(&str, &str)]) -> Vec<Promise> {
        let text = |pairs: &[(&str, &str)]| -> Named {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let kind = Kind { innodb: true, ..Kind::from_words(version, "").unwrap() };
        caches(&kind, &text(variables), &text(status))
    }

    #[test]
    fn what_was_never_used_of_a_cache_is_left_of_it() {
        let variables = [
            ("key_buffer_size", "536870912"),
            ("key_cache_block_size", "1024"),
            ("aria_pagecache_buffer_size", "134217728"),
            ("query_cache_size", "67108864"),
            ("query_cache_type", "DEMAND"),
            ("innodb_log_buffer_size", "16777216"),
        ];
        let status = [
            ("key_blocks_unused", "428000"),
            ("aria_pagecache_blocks_unused", "0"),
            ("qcache_free_memory", "67000000"),
        ];
        let found = of("10.11.18-MariaDB", &variables, &status);
        let left: Vec<(&str, u64)> =
            found.iter().map(|promise| (promise.name, promise.left_bytes)).collect();
        assert_eq!(
            left,
            [
                ("key_buffer_size", 428_000 * KIB),
                ("aria_pagecache_buffer_size", 0),
                ("query_cache_size", 67_000_000),
                ("innodb_log_buffer_size", 32 * MIB),
            ]
        );
        assert_eq!(left_bytes(&found), 428_000 * KIB + 67_000_000 + 32 * MIB);
        let words = named(&found);
        assert!(words.starts_with("key_buffer_size 418 MiB, query_cache_size 63.9 MiB"), "{words}");
        // Without its counter all of a cache is to come.
        assert_eq!(of("8.4.2", &variables[..2], &[])[0].left_bytes, 512 * MIB);
        assert_eq!(of("8.4.2", &variables[5..], &[])[0].left_bytes, 16 * MIB);
    }

    #[test]
    fn a_query_cache_that_is_off_reserves_nothing() {
        let variables = [("query_cache_size", "67108864"), ("query_cache_type", "OFF")];
        assert_eq!(of("10.11.18-MariaDB", &variables, &[]), []);
    }
}
