//! Traces that were recorded from the engine under load (`lab run traces`), replayed over every
//! policy.
//!
//! What each holds is in `traces/README.md`.

use std::fs;
use std::path::{Path, PathBuf};

use tidepool_lab::policy::table::{NAMES, SIZES, Table, WITHIN, measure};
use tidepool_lab::policy::trace::{Trace, read};

fn paths() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|name| name == "trace")).collect();
    paths.sort();
    paths
}

fn traces() -> Vec<Trace> {
    paths().iter().map(|path| read(path).unwrap()).collect()
}

#[test]
fn the_default_is_best_or_near_on_every_recorded_trace() {
    let traces = traces();
    let names: Vec<_> = traces.iter().map(|trace| trace.name.as_str()).collect();
    assert_eq!(names, ["beside-dump", "loop", "pareto", "tpcc", "two-scans", "uniform"]);
    let table = measure(&traces, &NAMES, &SIZES, |_, _| ());
    let text = table.markdown();
    let mean = |policy| table.mean_of(policy).unwrap();
    for policy in NAMES.iter().filter(|&&policy| policy != "tide" && policy != "optimum") {
        assert!(mean("tide") < mean(policy), "{policy} is better on the mean:\n{text}");
    }
    assert!(mean("tide") < mean("midpoint") * 0.9, "{text}");
    for rows in table.rows.chunk_by(|a, b| a.trace == b.trace) {
        let trace = Table { policies: table.policies.clone(), rows: rows.to_vec() };
        let means: Vec<f64> = NAMES.iter().map(|name| trace.mean_of(name).unwrap()).collect();
        let against = trace.against_best(&means).unwrap();
        assert!(against <= WITHIN, "{}: {:+.1} %\n{text}", rows[0].trace, against * 100.0);
    }
}

#[test]
fn what_was_recorded_is_whole() {
    for trace in traces() {
        assert!(trace.requests.len() > 5000, "{}: {}", trace.name, trace.requests.len());
        assert!(trace.distinct_pages() > 100, "{}: {}", trace.name, trace.distinct_pages());
        assert!(trace.requests.is_sorted_by_key(|request| request.at_us), "{}", trace.name);
        let pages = trace.requests.iter().map(|request| request.page);
        assert!(pages.into_iter().all(|page| trace.sample.holds(page)), "{}", trace.name);
        let scans = trace.requests.iter().any(|request| request.scan);
        assert_eq!(scans, ["beside-dump", "two-scans"].contains(&trace.name.as_str()));
        let made = trace.requests.iter().any(|request| request.created);
        assert_eq!(made, trace.name == "tpcc", "{}", trace.name);
    }
}

#[test]
fn a_file_that_is_no_trace_or_not_all_of_one_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("broken.trace");
    let whole = fs::read(&paths()[0]).unwrap();
    let error = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        read(&path).unwrap_err().to_string()
    };
    // The last record ends with its flags; without them it is cut off.
    for (bytes, why) in [
        (&whole[..whole.len() - 1], "a record is cut off"),
        (&whole[..5], "shorter than its header"),
        (&whole[..8], "a record is cut off"),
        (b"\x7fELF of something else", "does not begin with TPTRACE3"),
        (b"", "shorter than its header"),
    ] {
        let error = error(bytes);
        assert!(error.contains("broken.trace: not a page trace: "), "{error}");
        assert!(error.contains(why), "{error}");
    }
    let header = &whole[..8];
    let error = error(&[header, &[0]].concat());
    assert!(error.contains("broken.trace: it has no request"), "{error}");
}
