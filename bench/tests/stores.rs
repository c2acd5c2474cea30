//! Every workload on every store, small: the figures are there, and the values are right.

use tempfile::TempDir;
use tidepool_bench::figures::Figures;
use tidepool_bench::store::Kind;
use tidepool_bench::task::{ROWS_MIN, Task};
use tidepool_bench::workload::Workload;

fn task(store: Kind, workload: Workload, dir: &TempDir) -> Task {
    Task {
        store,
        workload,
        dir: dir.path().into(),
        rows: 3 * ROWS_MIN + 1,
        value_bytes: 100,
        threads: 3,
        seconds: 0.05,
        memory_bytes: 8 << 20,
    }
}

fn every_workload(store: Kind) {
    for workload in Workload::ALL {
        let dir = tempfile::tempdir().unwrap();
        let task = task(store, workload, &dir);
        let figures = task.run().unwrap_or_else(|error| panic!("{workload:?}: {error}"));
        let Figures { per_second, latency, disk_bytes, checked_rows, .. } = figures;
        assert!(per_second > 0.0 && per_second.is_finite(), "{workload:?}: {figures:?}");
        assert_eq!(latency.is_none(), workload.is_load(), "{workload:?}: {figures:?}");
        if let Some(latency) = latency {
            assert!(latency.p50_us > 0.0, "{workload:?}: {figures:?}");
            assert!(latency.p50_us <= latency.p99_us, "{workload:?}: {figures:?}");
            assert!(latency.p99_us <= latency.max_us, "{workload:?}: {figures:?}");
        }
        assert!(figures.peak_bytes > 0 && figures.anonymous_bytes > 0, "{workload:?}: {figures:?}");
        assert!(disk_bytes >= task.rows * 100, "{workload:?}: {figures:?}");
        // Once after the load or after the store was opened again; and in the workload, or both.
        assert!(checked_rows >= task.rows, "{workload:?}: {figures:?}");
        if !workload.is_load() {
            assert!(checked_rows > task.rows, "{workload:?}: {figures:?}");
        }
    }
}

#[test]
fn tidepool() {
    every_workload(Kind::Tidepool);
}

#[test]
fn redb() {
    every_workload(Kind::Redb);
}

#[test]
fn fjall() {
    every_workload(Kind::Fjall);
}

#[test]
fn sqlite() {
    every_workload(Kind::Sqlite);
}

#[test]
fn lmdb() {
    every_workload(Kind::Lmdb);
}
