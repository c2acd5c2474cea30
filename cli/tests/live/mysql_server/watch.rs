//! `tidepool watch` on MySQL.

use super::mysql;
use crate::govern::pool_size;
use crate::watch::{Page, metrics};
use crate::{Reader, fill};

const MIB: u64 = 1 << 20;

#[test]
fn the_page_shows_a_mysql_server_and_sets_its_pool() {
    let args = ["--innodb-buffer-pool-size=96M", "--innodb-buffer-pool-chunk-size=4M"];
    let Some(server) = mysql("mysql-watch", &args) else { return };
    let rows = fill(&server, 24);
    let reader = Reader::start(&server, rows);
    let page = Page::start(&server, &[]);
    let state = page.state_with(|state| {
        let last = state["samples"].as_array().and_then(|samples| samples.last());
        last.is_some_and(|last| last["p95_ms"].is_f64() && last["hit_ratio"].is_f64())
    });
    // Of all statements, as the server counts them.
    assert_eq!(state["about"]["p95_source"], "statement_histogram");
    assert!(state["about"]["server"].as_str().unwrap().starts_with("MySQL "), "{state:#}");
    assert_eq!(state["about"]["unit_bytes"], 4 * MIB);
    let last = state["samples"].as_array().unwrap().last().unwrap();
    assert!(last["qps"].as_f64().unwrap() > 10.0, "{last:#}");
    assert!(last["p95_ms"].as_f64().unwrap() < 60_000.0, "{last:#}");
    assert_eq!(last["pool_bytes"], 96 * MIB);
    assert!(last["data_bytes"].as_u64().unwrap() > 16 * MIB, "{last:#}");
    let (status, body) = page.post("/api/content", "{}", &[]);
    assert_eq!(status, 200, "{body}");
    let state = page.state();
    let content = state["content"].as_array().unwrap();
    let filler = content.iter().find(|row| row["table"] == "test.filler").expect("it is cached");
    assert_eq!(filler["index"], "PRIMARY");
    assert!(filler["mb"].as_f64().unwrap() > 16.0, "{filler:#}");
    let text = page.get("/metrics").1;
    let found = metrics(&text);
    let of = |name: &str| found.get(&format!("tidepool_watch_{name}")).copied();
    for name in [
        "latency_p95_seconds",
        "questions_total",
        "rows_read_total",
        "buffer_pool_read_requests_total",
        "server_cpu_seconds_total",
    ] {
        assert!(of(name).is_some_and(|value| value > 0.0), "{name} in {text}");
    }
    // It may have written nothing yet.
    for name in ["pages_written_total", "buffer_pool_dirty_bytes", "checkpoint_age_bytes"] {
        assert!(of(name).is_some(), "{name} in {text}");
    }
    // From where MySQL has them.
    for name in ["checkpoint_age_max_bytes", "history_list_length", "deadlocks_total"] {
        assert!(of(name).is_some(), "{name} in {text}");
    }
    // Its statements by digest: what they were, not which rows they were about.
    let state = page.state_with(|state| {
        let rows = state["statements"]["rows"].as_array().unwrap();
        rows.iter().any(|row| row["text"].as_str().unwrap().contains("`filler`"))
    });
    let rows = state["statements"]["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["text"].as_str().unwrap().contains("`filler`")).unwrap();
    assert!(row["text"].as_str().unwrap().ends_with("= ?"), "{row:#}");
    assert!(row["executions"].as_u64().unwrap() > 10, "{row:#}");
    assert_eq!(row["pages_read"], serde_json::Value::Null, "MySQL counts none");
    // Not a multiple of the unit: what it can have below that.
    let wish = format!("{{\"bytes\": {}}}", 63 * MIB);
    let (status, body) = page.post("/api/size", &wish, &[]);
    assert_eq!(status, 202, "{body}");
    page.state_with(|state| state["setting"]["running"] == false);
    assert_eq!(pool_size(&server), 60 * MIB);
    drop(reader);
}
