//! The newest sample in Prometheus' text format. Names end in their unit, those of counters in
//! `_total`; a figure that isn't known is left out.

use std::fmt::{Display, Write};

use super::sample::Engine;
use super::{Seen, Watched};
use crate::curve::{self, Change};

/// The whole answer.
pub fn render(watched: &Watched) -> String {
    let seen = watched.seen();
    let about = watched.about();
    text(about.engine, about.p95_words, &seen)
}

/// Metrics, all of one engine.
struct Text {
    text: String,
    engine: &'static str,
}

impl Text {
    fn gauge(&mut self, name: &str, help: &str, value: Option<impl Display>) {
        self.metric("gauge", name, help, value);
    }

    /// The name without its `_total`.
    fn counter(&mut self, name: &str, help: &str, value: Option<impl Display>) {
        self.metric("counter", &format!("{name}_total"), help, value);
    }

    fn metric(&mut self, kind: &str, name: &str, help: &str, value: Option<impl Display>) {
        let Some(value) = value else { return };
        let (text, engine) = (&mut self.text, self.engine);
        let _ = writeln!(text, "# HELP tidepool_watch_{name} {help}");
        let _ = writeln!(text, "# TYPE tidepool_watch_{name} {kind}");
        let _ = writeln!(text, "tidepool_watch_{name}{{engine=\"{engine}\"}} {value}");
    }

    /// A gauge with a value for each size of the pool, by its factor.
    fn by_size(&mut self, name: &str, help: &str, values: &[(f64, f64)]) {
        if values.is_empty() {
            return;
        }
        let (text, engine) = (&mut self.text, self.engine);
        let _ = writeln!(text, "# HELP tidepool_watch_{name} {help}");
        let _ = writeln!(text, "# TYPE tidepool_watch_{name} gauge");
        for (factor, value) in values {
            let labels = format!("engine=\"{engine}\",size_factor=\"{factor}\"");
            let _ = writeln!(text, "tidepool_watch_{name}{{{labels}}} {value}");
        }
    }
}

fn text(engine: Engine, p95_words: &str, seen: &Seen) -> String {
    let mut metrics = Text { text: String::new(), engine: engine.prefix() };
    let up = seen.looked_at.is_some() && seen.trouble().is_none();
    metrics.gauge("up", "Whether the server answers.", Some(u8::from(up)));
    // An old sample is no sample.
    if up {
        rates(&mut metrics, p95_words, seen);
        counters(&mut metrics, seen);
        curve(&mut metrics, seen);
    }
    metrics.text
}

/// Of the newest second.
fn rates(metrics: &mut Text, p95_words: &str, seen: &Seen) {
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
fn counters(metrics: &mut Text, seen: &Seen) {
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
    let words = "Dirty pages in the pool.";
    metrics.gauge("buffer_pool_dirty_bytes", words, counters.dirty_bytes);
    let words = "Redo written since the last checkpoint.";
    metrics.gauge("checkpoint_age_bytes", words, counters.checkpoint_age_bytes);
    let words = "Checkpoint age at which writers wait.";
    metrics.gauge("checkpoint_age_max_bytes", words, counters.checkpoint_age_max_bytes);
    let words = "Transactions whose old versions of rows are still kept.";
    metrics.gauge("history_list_length", words, counters.history_list_length);
}

/// What more or less memory would bring, as the engine predicts it.
fn curve(metrics: &mut Text, seen: &Seen) {
    let points = &seen.curve.points;
    let present = points.iter().find(|point| point.size_factor == Some(1.0));
    let Some(present) = present.filter(|_| seen.curve.predicted) else { return };
    let changes = curve::between(points, present.size_bytes, None);
    let mut each = |name: &str, help: &str, of: fn(&Change) -> Option<f64>| {
        let values = points.iter().zip(&changes);
        let values: Vec<(f64, f64)> =
            values.filter_map(|(point, change)| Some((point.size_factor?, of(change)?))).collect();
        metrics.by_size(&format!("buffer_pool_curve_{name}"), help, &values);
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
    use crate::watch::STALE;
    use crate::watch::counters::Counters;
    use crate::watch::sample::{Curve, Sample};

    /// Kind and value by name, if the text keeps the format's rules.
    fn parse(text: &str) -> HashMap<String, (String, String)> {
        assert!(text.ends_with('\n'), "{text}");
        // Those with a value for each size are for another test.
        let lines: Vec<&str> = text.lines().filter(|line| !line.contains("_curve_")).collect();
        let mut found = HashMap::new();
        for metric in lines.chunks(3) {
            let [help, kind, value] = metric else { panic!("no metric: {metric:?}") };
            let (name, words) = help.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
            assert!(words.ends_with('.'), "{help}");
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.starts_with("tidepool_watch_") && name.chars().all(legal), "{name}");
            let (named, kind) = kind.strip_prefix("# TYPE ").unwrap().split_once(' ').unwrap();
            assert_eq!(named, name);
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}: {kind}");
            let value = value.strip_prefix(name).unwrap();
            let value = value.strip_prefix("{engine=\"innodb\"} ").unwrap();
            assert!(value.parse::<f64>().unwrap().is_finite(), "{name}: {value}");
            let twice = found.insert(name.to_owned(), (kind.to_owned(), value.to_owned()));
            assert_eq!(twice, None, "{name} is there twice");
        }
        found
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
        let metrics = parse(&text(Engine::Innodb, "all statements", &seen()));
        let of = |name: &str| {
            let (kind, value) = &metrics[&format!("tidepool_watch_{name}")];
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
        assert_eq!(of("buffer_pool_dirty_bytes"), ("gauge", "16384"));
        assert_eq!(of("history_list_length"), ("gauge", "0"));
        // What isn't known is not there.
        for name in ["rows_read_total", "latency_p95_seconds", "checkpoint_age_bytes"] {
            assert!(!metrics.contains_key(&format!("tidepool_watch_{name}")), "{name}");
        }
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
        let found = text(Engine::Tidepool, "all statements", &seen);
        let value = |name: &str, factor: &str| {
            let labels = format!("engine=\"tidepool\",size_factor=\"{factor}\"");
            let start = format!("tidepool_watch_buffer_pool_curve_{name}{{{labels}}} ");
            let line = found.lines().find(|line| line.starts_with(&start));
            line.unwrap_or_else(|| panic!("{start} in {found}"))[start.len()..].to_owned()
        };
        assert_eq!(value("size_bytes", "0.5"), "536870912");
        assert_eq!(value("extra_reads_per_second", "0.5"), "210");
        assert_eq!(value("read_time_change_ratio", "2"), "-0.6");
        assert_eq!(value("reads_per_second", "1"), "100");
        let types = found.matches("# TYPE tidepool_watch_buffer_pool_curve_").count();
        assert_eq!(types, 4, "once for each name");
        // What was measured is no prediction.
        seen.curve.predicted = false;
        assert!(!text(Engine::Tidepool, "all statements", &seen).contains("_curve_"));
    }

    #[test]
    fn of_a_server_that_is_away_nothing_old_is_told() {
        let away = Seen { error: Some("the server went away".into()), ..seen() };
        let hangs = Seen { looked_at: Instant::now().checked_sub(STALE), ..seen() };
        for seen in [away, hangs, Seen::default()] {
            let metrics = parse(&text(Engine::Innodb, "all statements", &seen));
            assert_eq!(metrics.len(), 1);
            assert_eq!(metrics["tidepool_watch_up"].1, "0");
        }
    }
}
