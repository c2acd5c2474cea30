//! The miss-ratio curve as data: what more or less memory for Tidepool's pool would cost or save.

use serde::Serialize;

use crate::facts::{AdviceRow, Tidepool, predict};

/// What a pool of another size would do, compared with the present one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Change {
    /// Size of the pool.
    pub size_bytes: u64,
    /// That less the present size.
    pub change_bytes: i64,
    /// Predicted share of logical reads served from memory, 0 to 1.
    pub hit_ratio: f64,
    /// Predicted reads from disk a second.
    pub reads_per_s: f64,
    /// Those less the predicted reads of the present size.
    pub extra_reads_per_s: f64,
    /// The change of the time that queries wait for reads, as a share of it: 0.04 is 4 % more.
    /// `None` where the present size reads next to nothing.
    pub read_time_change: Option<f64>,
    /// The change of that time in seconds a second, of all queries together. `None` where it is not
    /// known how long a read takes.
    pub extra_wait_s_per_s: Option<f64>,
}

/// Below this the present size reads next to nothing, reads a second.
const READS_MIN: f64 = 0.1;

/// The curve around the present size, smallest size first; empty where the engine predicts nothing.
pub fn changes(tidepool: &Tidepool) -> Vec<Change> {
    between(&tidepool.advice, tidepool.limit_bytes, tidepool.read_us)
}

/// The same of a curve.
pub fn between(curve: &[AdviceRow], present_bytes: u64, read_us: Option<f64>) -> Vec<Change> {
    let is_present = |row: &&AdviceRow| row.size_factor == Some(1.0);
    let marked = curve.iter().find(is_present).copied();
    let Some(present) = predict(curve, present_bytes).map(|found| marked.unwrap_or(found)) else {
        return Vec::new();
    };
    let change = |row: &AdviceRow| {
        let extra_reads_per_s = row.reads_per_s - present.reads_per_s;
        Change {
            size_bytes: row.size_bytes,
            change_bytes: row.size_bytes as i64 - present.size_bytes as i64,
            hit_ratio: row.hit_ratio,
            reads_per_s: row.reads_per_s,
            extra_reads_per_s,
            read_time_change: (present.reads_per_s >= READS_MIN)
                .then(|| extra_reads_per_s / present.reads_per_s),
            extra_wait_s_per_s: read_us.map(|us| extra_reads_per_s * us / 1e6),
        }
    };
    curve.iter().map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn row(gib: u64, factor: f64, reads_per_s: f64) -> AdviceRow {
        let hit_ratio = 1.0 - reads_per_s / 1e5;
        AdviceRow { size_bytes: gib * GIB, size_factor: Some(factor), hit_ratio, reads_per_s }
    }

    #[test]
    fn less_memory_costs_reads_and_time() {
        let curve = [row(2, 0.5, 1110.0), row(4, 1.0, 800.0), row(8, 2.0, 400.0)];
        let changes = between(&curve, 4 * GIB, Some(200.0));
        assert_eq!(changes.len(), 3);
        let less = changes[0];
        assert_eq!(less.change_bytes, -2 * (GIB as i64));
        assert!((less.extra_reads_per_s - 310.0).abs() < 1e-9);
        assert!((less.read_time_change.unwrap() - 0.3875).abs() < 1e-9);
        assert!((less.extra_wait_s_per_s.unwrap() - 0.062).abs() < 1e-9);
        assert_eq!((changes[1].change_bytes, changes[1].extra_reads_per_s), (0, 0.0));
        assert!((changes[2].read_time_change.unwrap() + 0.5).abs() < 1e-9);
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        assert_eq!(between(&[], GIB, None), []);
        // Nothing was read yet.
        assert_eq!(between(&[row(1, 0.5, 0.0), row(2, 1.0, 0.0)], 2 * GIB, None), []);
        let idle = between(&[row(1, 0.5, 50.0), row(2, 1.0, 0.0)], 2 * GIB, None);
        assert_eq!(idle[0].extra_reads_per_s, 50.0);
        assert_eq!((idle[0].read_time_change, idle[0].extra_wait_s_per_s), (None, None));
    }
}
