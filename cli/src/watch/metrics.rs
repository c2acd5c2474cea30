//! The newest sample and the counters of all servers, as [`super::exposition`] writes them. Names
//! end in their unit; a figure that isn't known is left out.

use std::sync::Arc;

use super::exposition::{Exposition, Format};
use super::sample::About;
use super::watched::{Seen, Watched};
use crate::curve::{self, Change};

/// The whole answer.
pub fn render(servers: &[Arc<Watched>], format: Format) -> String {
    let mut metrics = Exposition::default();
    program(&mut metrics);
    for watched in servers {
        let seen = watched.seen();
        add(&mut metrics, watched.name.as_deref(), &watched.about(), &seen);
    }
    metrics.render(format)
}

fn program(metrics: &mut Exposition) {
    let labels = [("version", env!("CARGO_PKG_VERSION"))];
    metrics.info("build", "The program that watches.", &labels);
}

/// Of one server; its name where there are several.
fn add(metrics: &mut Exposition, name: Option<&str>, about: &About, seen: &Seen) {
    let mut labels = vec![("engine", about.engine.prefix())];
    labels.extend(name.map(|name| ("server", name)));
    metrics.set_labels(&labels);
    let up = seen.looked_at.is_some() && seen.trouble().is_none();
    metrics.gauge("up", "Whether the server answers.", Some(u8::from(up)));
    // An old sample is no sample.
    if up {
        let labels = [("version", about.server.as_str())];
        metrics.info("server", "The server that is watched.", &labels);
        rates(metrics, about.p95_words, seen);
        counters(metrics, seen);
        replication(metrics, seen);
        curve(metrics, seen);
    }
}

/// Of the newest second.
fn rates(metrics: &mut Exposition, p95_words: &str, seen: &Seen) {
    let Some(last) = seen.history.last() else { return };
    metrics.gauge("queries_per_second", "Statements a second.", Some(last.qps));
    let words = format!("95th percentile of the latency of {p95_words}.");
    metrics.gauge("latency_p95_seconds", &words, last.p95_ms.map(|ms| ms / 1000.0));
    let read = Some(last.disk_read_mb_s * 1e6);
    metrics.gauge("disk_read_bytes_per_second", "Read from disk.", read);
    let written = Some(last.disk_write_mb_s * 1e6);
    metrics.gauge("disk_write_bytes_per_second", "Written to disk.", written);
    let swap = last.swap_mb_s.map(|mb| mb * 1e6);
    metrics.gauge("swap_bytes_per_second", "Bytes to and from swap, whole machine.", swap);
    metrics.gauge("buffer_pool_size_bytes", "Size of the pool.", Some(last.pool_bytes));
    metrics.gauge("buffer_pool_data_bytes", "Pages in the pool.", Some(last.data_bytes));
    let words = "Compressed pages in the pool, beside the others.";
    metrics.gauge("buffer_pool_compressed_bytes", words, last.compressed_bytes);
    let words = "Pool size that fits now, by the governor's rule.";
    metrics.gauge("buffer_pool_target_bytes", words, last.target_bytes);
    let words = "Share of logical reads served from memory.";
    metrics.gauge("buffer_pool_hit_ratio", words, last.hit_ratio);
    let words = "Logical reads that went to disk.";
    metrics.gauge("buffer_pool_reads_per_second", words, Some(last.reads_per_s));
    metrics.gauge(
        "server_resident_bytes",
        "Resident memory of the server.",
        last.server_resident_bytes,
    );
    metrics.gauge("server_swapped_bytes", "Server memory in swap.", last.server_swapped_bytes);
    metrics.gauge(
        "threads_running",
        "Connections currently executing a statement.",
        Some(last.threads_running),
    );
}

/// Of all seconds, and of this moment.
fn counters(metrics: &mut Exposition, seen: &Seen) {
    let counters = &seen.counters;
    metrics.counter("questions", "Statements, this program's own included.", counters.questions);
    let words = "Rows read, by the engine's count; of MariaDB's InnoDB, which keeps none, rows that statements asked any engine for.";
    metrics.counter("rows_read", words, counters.rows_read);
    let words = "Logical reads of pages.";
    metrics.counter("buffer_pool_read_requests", words, counters.read_requests);
    let words = "Logical reads that went to disk.";
    metrics.counter("buffer_pool_reads", words, counters.reads);
    let words = "Changes of pages in the pool.";
    metrics.counter("buffer_pool_write_requests", words, counters.write_requests);
    metrics.counter(
        "pages_read",
        "Pages read from disk, including read-ahead.",
        counters.pages_read,
    );
    metrics.counter("pages_written", "Pages written to disk.", counters.pages_written);
    metrics.counter("disk_read_bytes", "Read from disk.", counters.disk_read_bytes);
    metrics.counter("disk_write_bytes", "Written to disk.", counters.disk_write_bytes);
    metrics.counter(
        "swap_in_bytes",
        "Bytes read from swap, whole machine.",
        counters.swap_in_bytes,
    );
    metrics.counter(
        "swap_out_bytes",
        "Bytes written to swap, whole machine.",
        counters.swap_out_bytes,
    );
    metrics.counter("server_cpu_seconds", "CPU time of the server.", counters.cpu_s);
    let words = "Row locks that a transaction had to wait for.";
    metrics.counter("row_lock_waits", words, counters.row_lock_waits);
    let words = "Time that transactions waited for row locks.";
    metrics.counter("row_lock_wait_seconds", words, counters.row_lock_wait_s);
    let words = "Transactions rolled back because of a deadlock.";
    metrics.counter("deadlocks", words, counters.deadlocks);
    let words = "Temporary tables of statements.";
    metrics.counter("tmp_tables", words, counters.tmp_tables);
    let words = "Temporary tables of statements, on disk.";
    metrics.counter("tmp_disk_tables", words, counters.tmp_disk_tables);
    let words = "Statements longer than long_query_time.";
    metrics.counter("slow_queries", words, counters.slow_queries);
    let words = "Accesses that found their page in the compressed tier.";
    metrics.counter("compressed_tier_hits", words, counters.tier_hits);
    let words = "Size of the compressed tier's pages when they are not compressed.";
    metrics.gauge("compressed_tier_holds_bytes", words, counters.tier_holds_bytes);
    let words = "Connections.";
    metrics.gauge("threads_connected", words, counters.threads_connected);
    let words = "Transactions that wait for a row lock.";
    metrics.gauge("row_locks_waited_for", words, counters.row_locks_waited_for);
    let words = "Dirty pages in the pool.";
    metrics.gauge("buffer_pool_dirty_bytes", words, counters.dirty_bytes);
    let words = "Redo written since the last checkpoint.";
    metrics.gauge("checkpoint_age_bytes", words, counters.checkpoint_age_bytes);
    let words = "Checkpoint age at which writers wait.";
    metrics.gauge("checkpoint_age_max_bytes", words, counters.checkpoint_age_max_bytes);
    let words = "Transactions whose old versions of rows are still kept.";
    metrics.gauge("history_list_length", words, counters.history_list_length);
}

/// Of a replica.
fn replication(metrics: &mut Exposition, seen: &Seen) {
    let words = "How far the slowest running replication channel is behind.";
    metrics.gauge("replication_lag_seconds", words, seen.replication.lag_s());
    let words = "Replication channels that do not run.";
    metrics.gauge("replication_stopped_channels", words, seen.replication.stopped());
}

/// What more or less memory would bring, as the engine predicts it.
fn curve(metrics: &mut Exposition, seen: &Seen) {
    let points = &seen.curve.points;
    let present = points.iter().find(|point| point.size_factor == Some(1.0));
    let Some(present) = present.filter(|_| seen.curve.predicted) else { return };
    let changes = curve::between(points, present.size_bytes, None);
    let mut each = |name: &str, help: &str, of: fn(&Change) -> Option<f64>| {
        for (point, change) in points.iter().zip(&changes) {
            let Some((factor, value)) = point.size_factor.zip(of(change)) else { continue };
            let label = ("size_factor", factor.to_string());
            let name = format!("buffer_pool_curve_{name}");
            metrics.labelled(&name, help, (label.0, &label.1), value);
        }
    };
    let words = "Size of the pool that a prediction is for.";
    each("size_bytes", words, |change| Some(change.size_bytes as f64));
    let words = "Predicted reads from disk with this size.";
    each("reads_per_second", words, |change| Some(change.reads_per_s));
    let words = "Predicted reads beyond those of the present size.";
    each("extra_reads_per_second", words, |change| Some(change.extra_reads_per_s));
    let words = "Predicted change of the time spent on reads, as a share of it.";
    each("read_time_change_ratio", words, |change| change.read_time_change);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Instant;

    use super::*;
    use crate::facts::AdviceRow;
    use crate::watch::counters::Counters;
    use crate::watch::replication::{Channel, Replication};
    use crate::watch::sample::{Curve, Engine, Sample};
    use crate::watch::watched::STALE;

    /// Kind and value by name and labels, if the text keeps the rules of OpenMetrics.
    fn parse(text: &str) -> HashMap<String, (String, String)> {
        let text = text.strip_suffix("# EOF\n").expect("it has an end");
        let (mut found, mut families) = (HashMap::new(), Vec::new());
        let mut family = (String::new(), String::new());
        for line in text.lines() {
            assert_ne!(line, "# EOF", "only at the end");
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, words) = help.split_once(' ').unwrap();
                assert!(words.ends_with('.') && !words.contains(['"', '\\']), "{help}");
                let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                assert!(name.starts_with("tidepool_watch_") && name.chars().all(legal), "{name}");
                assert!(!name.ends_with("_total") && !name.ends_with("_info"), "{name}");
                assert!(!families.contains(&name.to_owned()), "{name} is there twice");
                families.push(name.to_owned());
                family.0 = name.to_owned();
                continue;
            }
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, family.0);
                assert!(["gauge", "counter", "info"].contains(&kind), "{kind}");
                family.1 = kind.to_owned();
                continue;
            }
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let suffix = match family.1.as_str() {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            let labels = sample.strip_prefix(&format!("{}{suffix}", family.0)).expect(line);
            let labels = labels.strip_prefix('{').unwrap().strip_suffix('}').unwrap();
            assert!(labels.split("\",").all(|pair| pair.contains("=\"")), "{labels}");
            assert!(value.parse::<f64>().unwrap().is_finite(), "{line}");
            let value = (family.1.clone(), value.to_owned());
            assert_eq!(found.insert(sample.to_owned(), value), None, "{sample} is there twice");
        }
        found
    }

    fn about(engine: Engine) -> About {
        About { engine, server: "MariaDB 10.11".into(), ..About::unseen("a socket".into()) }
    }

    fn text(name: Option<&str>, engine: Engine, seen: &Seen) -> String {
        let mut metrics = Exposition::default();
        program(&mut metrics);
        add(&mut metrics, name, &about(engine), seen);
        metrics.render(Format::OpenMetrics)
    }

    fn seen() -> Seen {
        let mut seen = Seen {
            counters: Counters {
                questions: Some(u64::MAX),
                swap_in_bytes: Some(4096),
                swap_out_bytes: Some(8192),
                cpu_s: Some(2.5),
                dirty_bytes: Some(16384),
                history_list_length: Some(0),
                deadlocks: Some(3),
                row_lock_wait_s: Some(0.25),
                ..Counters::default()
            },
            looked_at: Some(Instant::now()),
            ..Seen::default()
        };
        seen.history.push(Sample { qps: 12.5, pool_bytes: 64 << 20, ..Sample::default() });
        seen
    }

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let metrics = parse(&text(None, Engine::Innodb, &seen()));
        let of = |name: &str| {
            let (kind, value) = &metrics[&format!("tidepool_watch_{name}{{engine=\"innodb\"}}")];
            (kind.as_str(), value.as_str())
        };
        assert_eq!(of("up"), ("gauge", "1"));
        assert_eq!(of("queries_per_second"), ("gauge", "12.5"));
        assert_eq!(of("buffer_pool_size_bytes"), ("gauge", "67108864"));
        // To the last digit.
        assert_eq!(of("questions_total"), ("counter", "18446744073709551615"));
        assert_eq!(of("swap_in_bytes_total"), ("counter", "4096"));
        assert_eq!(of("swap_out_bytes_total"), ("counter", "8192"));
        assert_eq!(of("server_cpu_seconds_total"), ("counter", "2.5"));
        assert_eq!(of("deadlocks_total"), ("counter", "3"));
        assert_eq!(of("row_lock_wait_seconds_total"), ("counter", "0.25"));
        assert_eq!(of("buffer_pool_dirty_bytes"), ("gauge", "16384"));
        assert_eq!(of("history_list_length"), ("gauge", "0"));
        let build =
            format!("tidepool_watch_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
        assert_eq!(metrics[&build], ("info".to_owned(), "1".to_owned()));
        // What isn't known is not there.
        for name in
            ["rows_read_total", "latency_p95_seconds", "checkpoint_age_bytes", "replication"]
        {
            let start = format!("tidepool_watch_{name}");
            assert!(!metrics.keys().any(|found| found.starts_with(&start)), "{name}");
        }
    }

    /// With every figure that there can be.
    fn all_seen() -> Seen {
        let (some, some_s) = (Some(1), Some(1.0));
        let counters = Counters {
            questions: some,
            rows_read: some,
            read_requests: some,
            reads: some,
            write_requests: some,
            pages_read: some,
            pages_written: some,
            disk_read_bytes: some,
            disk_write_bytes: some,
            swap_in_bytes: some,
            swap_out_bytes: some,
            cpu_s: some_s,
            row_lock_waits: some,
            row_lock_wait_s: some_s,
            deadlocks: some,
            tmp_tables: some,
            tmp_disk_tables: some,
            slow_queries: some,
            tier_hits: some,
            threads_running: some,
            threads_connected: some,
            row_locks_waited_for: some,
            tier_holds_bytes: some,
            dirty_bytes: some,
            checkpoint_age_bytes: some,
            checkpoint_age_max_bytes: some,
            history_list_length: some,
        };
        let channel = Channel { lag_s: some_s, is_running: true, ..Channel::default() };
        let replication = Replication { channels: vec![channel], note: None };
        let mut seen =
            Seen { counters, replication, looked_at: Some(Instant::now()), ..Seen::default() };
        seen.history.push(Sample {
            p95_ms: some_s,
            swap_mb_s: some_s,
            compressed_bytes: some,
            target_bytes: some,
            hit_ratio: some_s,
            server_resident_bytes: some,
            server_swapped_bytes: some,
            ..Sample::default()
        });
        seen
    }

    #[test]
    fn the_alert_rules_and_the_board_name_only_metrics_that_there_are() {
        let found = parse(&text(None, Engine::Tidepool, &all_seen()));
        let there: Vec<&str> = found.keys().map(|key| key.split('{').next().unwrap()).collect();
        let rules = include_str!("../../../packaging/prometheus-alerts.yaml");
        let board = include_str!("../../../packaging/grafana-dashboard.json");
        for file in [rules, board] {
            let words = file.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let names: Vec<&str> =
                words.filter(|word| word.starts_with("tidepool_watch_")).collect();
            assert!(names.len() > 10, "{names:?}");
            for name in names {
                assert!(there.contains(&name), "{name} is in no answer");
            }
        }
        let count = |text: &str| rules.matches(text).count();
        let number = count("- alert: ");
        assert!(number > 10);
        for part in ["        expr: ", "        for: ", "severity: ", "summary: ", "action: "] {
            assert_eq!(count(part), number, "each rule has one {part}");
        }
    }

    #[test]
    fn several_servers_are_told_apart_and_a_stopped_replica_is_seen() {
        let channel = Channel { is_running: false, ..Channel::default() };
        let replication = Replication { channels: vec![channel], note: None };
        let mut metrics = Exposition::default();
        add(&mut metrics, Some("a"), &about(Engine::Innodb), &seen());
        let replica = Seen { replication, ..seen() };
        add(&mut metrics, Some("b"), &about(Engine::Tidepool), &replica);
        let found = parse(&metrics.render(Format::OpenMetrics));
        for labels in ["engine=\"innodb\",server=\"a\"", "engine=\"tidepool\",server=\"b\""] {
            assert_eq!(found[&format!("tidepool_watch_up{{{labels}}}")].1, "1");
        }
        let stopped = "tidepool_watch_replication_stopped_channels";
        let of = |labels: &str| found.get(&format!("{stopped}{{{labels}}}"));
        assert_eq!(of("engine=\"tidepool\",server=\"b\"").unwrap().1, "1");
        assert_eq!(of("engine=\"innodb\",server=\"a\""), None);
    }

    #[test]
    fn a_predicted_curve_has_a_value_for_each_size() {
        let row = |factor: f64, reads_per_s: f64| AdviceRow {
            size_bytes: (factor * 1024.0) as u64 * 1048576,
            size_factor: Some(factor),
            hit_ratio: 0.5,
            reads_per_s,
        };
        let points = vec![row(0.5, 310.0), row(1.0, 100.0), row(2.0, 40.0)];
        let mut seen = seen();
        seen.curve = Curve { predicted: true, points, note: None };
        let found = parse(&text(None, Engine::Tidepool, &seen));
        let value = |name: &str, factor: &str| {
            let labels = format!("engine=\"tidepool\",size_factor=\"{factor}\"");
            found[&format!("tidepool_watch_buffer_pool_curve_{name}{{{labels}}}")].1.clone()
        };
        assert_eq!(value("size_bytes", "0.5"), "536870912");
        assert_eq!(value("extra_reads_per_second", "0.5"), "210");
        assert_eq!(value("read_time_change_ratio", "2"), "-0.6");
        assert_eq!(value("reads_per_second", "1"), "100");
        // What was measured is no prediction.
        seen.curve.predicted = false;
        assert!(!text(None, Engine::Tidepool, &seen).contains("_curve_"));
    }

    #[test]
    fn of_a_server_that_is_away_nothing_old_is_told() {
        let away = Seen { error: Some("the server went away".into()), ..seen() };
        let hangs = Seen { looked_at: Instant::now().checked_sub(STALE), ..seen() };
        for seen in [away, hangs, Seen::default()] {
            let metrics = parse(&text(None, Engine::Innodb, &seen));
            assert_eq!(metrics.len(), 2, "and what the program is");
            assert_eq!(metrics["tidepool_watch_up{engine=\"innodb\"}"].1, "0");
        }
    }
}
