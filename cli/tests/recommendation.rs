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
        eprintln!("skipped: there is no jq");
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

fn limit(pool_bytes: u64) -> u64 {
    // Half a GiB is used beside the pool; a twentieth of the limit stays free.
    ((pool_bytes + GIB / 2) as f64 * 20.0 / 19.0) as u64
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
    assert_eq!(found["target"], limit(6 * GIB), "half a read a second is nothing");
    assert_eq!(found["lower"], limit(4 * GIB), "5 % more is below a tenth");
    assert_eq!(found["upper"], limit(16 * GIB), "beyond that nothing is saved");
}

#[test]
fn a_pool_that_everything_fits_needs_no_more_than_that() {
    let curve = [(2 * GIB, 0.0), (4 * GIB, 0.0), (8 * GIB, 0.0), (32 * GIB, 0.0)];
    let Some(found) = recommend(&report(&curve)) else { return };
    let found = found.unwrap();
    for name in ["target", "lower", "upper"] {
        assert_eq!(found[name], limit(2 * GIB), "{name}");
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
