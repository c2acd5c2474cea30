//! `packaging/memory-recommendation.jq` on reports as `tidepool advise --format=json` prints them.
//!
//! It takes `jq`; without it nothing is tested.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

/// What the program makes of a report: its JSON, or what it complains of. `None` without `jq`.
fn recommend(report: &Value) -> Option<Result<Value, String>> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/memory-recommendation.jq");
    let arguments = ["--argjson", "cost", "0.001", "--argjson", "most", "0.1", "-f", program];
    let child = Command::new("jq")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        tidepool_skip::skip("there is no jq");
        return None;
    };
    child.stdin.take().unwrap().write_all(report.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Some(match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    })
}

/// A pool of 8 GiB below a limit of 10 GiB, of which 1.5 GiB are left; the reads a second by size.
fn report(reads: &[(u64, f64)]) -> Value {
    let now = reads.iter().find(|(size, _)| *size == 8 * GIB).map_or(0.0, |(_, reads)| *reads);
    let point = |&(size, reads): &(u64, f64)| {
        json!({
            "size_bytes": size,
            "change_bytes": size as i64 - (8 * GIB) as i64,
            "reads_per_s": reads,
            "extra_reads_per_s": reads - now,
        })
    };
    json!({
        "curve": reads.iter().map(point).collect::<Vec<Value>>(),
        "facts": {
            "machine": { "limit_bytes": 10 * GIB, "room_bytes": 3 * GIB / 2 },
            "tidepool": { "data_bytes": 8 * GIB },
        },
    })
}

/// Whether a limit is that for a pool of this many GiB. Half a GiB is used beside the pool, and a
/// twentieth of the limit stays free.
fn is_for(limit: &Value, pool_gib: f64) -> bool {
    let wanted = (pool_gib + 0.5) * 20.0 / 19.0 * GIB as f64;
    (limit.as_f64().unwrap() / wanted - 1.0).abs() < 0.001
}

#[test]
fn the_least_limit_by_what_it_costs() {
    let curve = [
        (2 * GIB, 9000.0),
        (4 * GIB, 1050.0),
        (6 * GIB, 1000.5),
        (8 * GIB, 1000.0),
        (16 * GIB, 400.0),
        (32 * GIB, 400.0),
    ];
    let Some(found) = recommend(&report(&curve)) else { return };
    let found = found.unwrap();
    // A read a second is nothing: 1001 lies just below 6 GiB. A tenth more lies below 4 GiB, and
    // more than 16 GiB save nothing.
    assert!(is_for(&found["target"], 4.0 + 2.0 * 49.0 / 49.5), "{found}");
    assert!(is_for(&found["lower"], 2.0 + 2.0 * 7900.0 / 7950.0), "{found}");
    assert!(is_for(&found["upper"], 8.0 + 8.0 * 599.0 / 600.0), "{found}");
}

#[test]
fn a_pool_that_everything_fits_needs_no_more_than_that() {
    let curve = [(2 * GIB, 0.0), (4 * GIB, 0.0), (8 * GIB, 0.0), (32 * GIB, 0.0)];
    let Some(found) = recommend(&report(&curve)) else { return };
    let found = found.unwrap();
    for name in ["target", "lower", "upper"] {
        assert!(is_for(&found[name], 2.0), "{name} in {found}");
    }
}

#[test]
fn without_a_curve_or_a_machine_it_says_why() {
    let Some(found) = recommend(&report(&[])) else { return };
    assert!(found.unwrap_err().contains("no curve"));
    let mut elsewhere = report(&[(8 * GIB, 10.0)]);
    elsewhere["facts"]["machine"] = Value::Null;
    let found = recommend(&elsewhere).unwrap();
    assert!(found.unwrap_err().contains("on the server's machine"));
}
