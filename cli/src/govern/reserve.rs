//! What the server has reserved for itself beyond the pool and not taken yet, as the governor
//! counts it.
//!
//! The governor's rule measures what is used. An empty key cache of 512 MiB uses
//! nothing, and fills within a fraction of a second, faster than a pool shrinks. So what is left of
//! every [reservation](crate::facts::promised) counts as used from the start: when the cache fills,
//! use rises by what the reservation falls, and the pool keeps its size.

use std::time::{Duration, Instant};

use tidepool_governor::Signals;

use crate::bytes::human;
use crate::exit::Result;
use crate::facts::Connections;
use crate::facts::gather::connections;
use crate::facts::promised::{Promise, caches, left_bytes, named, of_connections};
use crate::server::{Named, Server, number};

/// How often the settings are read again: they may be changed while the server runs.
const SETTINGS_EVERY: Duration = Duration::from_secs(5);

/// The reservations of one server.
#[derive(Debug, Default)]
pub struct Reserve {
    settings: Named,
    read_at: Option<Instant>,
    caches: Vec<Promise>,
    clients: Connections,
    tidepool_bytes: u64,
}

impl Reserve {
    /// Takes the counters of one look, and the settings too if it is time.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn observe(&mut self, server: &mut Server, status: &Named) -> Result<()> {
        if self.read_at.is_none_or(|at| at.elapsed() >= SETTINGS_EVERY) {
            self.settings = server.variables()?;
            self.read_at = Some(Instant::now());
        }
        self.count(server.kind(), status);
        Ok(())
    }

    fn count(&mut self, kind: &crate::server::Kind, status: &Named) {
        self.caches = caches(kind, &self.settings, status);
        self.clients = connections(kind, &self.settings, status);
        // A pool of a fixed size; a governed one gives back what others need.
        let size = number(&self.settings, "tidepool_buffer_pool_size").unwrap_or(0);
        let size = number(status, "tidepool_buffer_pool_limit_bytes").unwrap_or(0).min(size);
        let held = number(status, "tidepool_buffer_pool_bytes_data").unwrap_or(0);
        self.tidepool_bytes = size.saturating_sub(held);
    }

    /// What is left of all of it beside InnoDB's pool, bytes, below a limit of `limit_bytes`.
    pub fn bytes(&self, limit_bytes: u64) -> u64 {
        self.bytes_beside_pools(limit_bytes).saturating_add(self.tidepool_bytes)
    }

    /// The same without Tidepool's pool.
    pub fn bytes_beside_pools(&self, limit_bytes: u64) -> u64 {
        left_bytes(&self.caches).saturating_add(of_connections(&self.clients, limit_bytes).1)
    }

    /// The same in words.
    pub fn words(&self, limit_bytes: u64) -> String {
        let mut parts: Vec<String> = Vec::new();
        parts.extend(Some(named(&self.caches)).filter(|names| !names.is_empty()));
        let clients = of_connections(&self.clients, limit_bytes).1;
        if clients > 0 {
            parts.push(format!("connections {}", human(clients)));
        }
        if self.tidepool_bytes > 0 {
            parts.push(format!("tidepool_buffer_pool_size {}", human(self.tidepool_bytes)));
        }
        parts.join(", ")
    }
}

/// The signals as they would be if `bytes` more were in use below every limit.
pub fn counted(signals: &Signals, bytes: u64) -> Signals {
    let mut signals = signals.clone();
    for level in &mut signals.levels {
        level.usage_bytes = level.usage_bytes.saturating_add(bytes);
    }
    signals.machine_available_bytes =
        signals.machine_available_bytes.map(|available| available.saturating_sub(bytes));
    signals
}

/// Why no size of the pool keeps the server alive if it takes all that it has reserved, where that
/// is so: beside a pool of `floor_bytes` the `limit_bytes` hold `others_bytes` now, and
/// `reserved_bytes` are to come. `words` names the reservations. `has_min`: the user wants no
/// smaller pool.
pub fn beyond_help(
    (limit_bytes, place): (u64, &str),
    (floor_bytes, others_bytes): (u64, u64),
    reserved_bytes: u64,
    words: &str,
    has_min: bool,
) -> Option<String> {
    let least = floor_bytes.saturating_add(others_bytes).saturating_add(reserved_bytes);
    (least > limit_bytes).then(|| {
        let min = if has_min { " or --min" } else { "" };
        format!(
            "govern cannot save this server: {place} has {}, {} is used beside the pool, and {} \
             more is reserved ({words}). Beside that not even a pool of {} fits. If the server \
             takes what it has reserved, the kernel swaps or kills it: lower these settings{min}, \
             or raise the limit",
            human(limit_bytes),
            human(others_bytes),
            human(reserved_bytes),
            human(floor_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tidepool_governor::cgroup::Level;
    use tidepool_governor::{Governor, PoolState};

    use super::*;
    use crate::bytes::MIB;
    use crate::server::Kind;

    fn named_of(pairs: &[(&str, u64)]) -> Named {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
    }

    /// A server with a key cache of 512 MiB, of which `unused_mib` are unused, and a pool that is
    /// beside 400 MiB of other memory and what the cache has taken below 1 GiB.
    fn target(unused_mib: u64, is_reserve_counted: bool) -> u64 {
        let mut reserve = Reserve {
            settings: named_of(&[("key_buffer_size", 512 * MIB), ("max_connections", 10)]),
            ..Reserve::default()
        };
        let kind = Kind::from_words("10.11.18-MariaDB", "").unwrap();
        reserve.count(&kind, &named_of(&[("key_blocks_unused", unused_mib * 1024)]));
        let level = Level {
            directory: PathBuf::from("/cg"),
            limit_bytes: Some(1024 * MIB),
            usage_bytes: (100 + 128 + 512 - unused_mib) * MIB,
            file_cache_bytes: 0,
            limit_hits: 0,
        };
        let signals = Signals { levels: vec![level], ..Signals::default() };
        let bytes = if is_reserve_counted { reserve.bytes(1024 * MIB) } else { 0 };
        let pool = PoolState {
            resident_bytes: 128 * MIB,
            limit_bytes: 128 * MIB,
            floor_bytes: 16 * MIB,
            ceiling_bytes: u64::MAX,
            wants_more: true,
        };
        Governor::new().target(&counted(&signals, bytes), &pool).unwrap()
    }

    #[test]
    fn a_cache_that_fills_does_not_move_the_target() {
        assert_eq!(target(500, true), target(0, true));
        assert!(target(500, true) < 400 * MIB);
        // As it was before, half of a GiB too much.
        assert!(target(500, false) > 800 * MIB);
    }

    #[test]
    fn a_server_that_has_reserved_more_than_there_is_cannot_be_saved() {
        let with_min = |reserved: u64, has_min: bool| {
            beyond_help(
                (1024 * MIB, "cgroup /db"),
                (64 * MIB, 300 * MIB),
                reserved * MIB,
                "k 1 MiB",
                has_min,
            )
        };
        let of = |reserved: u64| with_min(reserved, false);
        assert_eq!(of(660), None);
        let words = of(700).unwrap();
        assert!(
            words.starts_with("govern cannot save this server: cgroup /db has 1 GiB"),
            "{words}"
        );
        assert!(words.contains("700 MiB more is reserved (k 1 MiB)"), "{words}");
        assert!(!words.contains("--min"), "{words}");
        let words = with_min(700, true).unwrap();
        assert!(words.contains("lower these settings or --min"), "{words}");
    }
}
