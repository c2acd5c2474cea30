//! The newest sample in Prometheus' text format. Names end in their unit; a figure that isn't known is left out.

use std::fmt::Write;

use super::Watched;

/// The whole answer.
pub fn render(watched: &Watched) -> String {
    let seen = watched.seen();
    let mut text = String::new();
    let mut metric = |name: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = writeln!(text, "# HELP tidepool_watch_{name} {help}");
            let _ = writeln!(text, "# TYPE tidepool_watch_{name} gauge");
            let _ = writeln!(
                text,
                "tidepool_watch_{name}{{engine=\"{}\"}} {value}",
                watched.about.engine.prefix()
            );
        }
    };
    metric("up", "Whether the server answers.", Some(f64::from(u8::from(seen.error.is_none()))));
    // An old sample is no sample.
    let Some(last) = seen.history.last().filter(|_| seen.error.is_none()) else { return text };
    let bytes = |value: Option<u64>| value.map(|value| value as f64);
    metric("queries_per_second", "Statements.", Some(last.qps));
    let words = format!("95th percentile of latency of {}.", watched.about.p95_words);
    metric("latency_p95_seconds", &words, last.p95_ms.map(|ms| ms / 1000.0));
    metric("disk_read_bytes_per_second", "Read from disk.", Some(last.disk_read_mb_s * 1e6));
    metric("disk_write_bytes_per_second", "Written to disk.", Some(last.disk_write_mb_s * 1e6));
    metric(
        "swap_bytes_per_second",
        "To and from swap, the whole machine.",
        last.swap_mb_s.map(|mb| mb * 1e6),
    );
    metric("buffer_pool_size_bytes", "Size of the pool.", Some(last.pool_bytes as f64));
    metric("buffer_pool_data_bytes", "Pages in the pool.", Some(last.data_bytes as f64));
    metric(
        "buffer_pool_target_bytes",
        "What fits now, as the governor sees it.",
        bytes(last.target_bytes),
    );
    metric("buffer_pool_hit_ratio", "Share of logical reads served from memory.", last.hit_ratio);
    metric(
        "buffer_pool_reads_per_second",
        "Logical reads that went to disk.",
        Some(last.reads_per_s),
    );
    metric("server_resident_bytes", "Memory of the server.", bytes(last.server_resident_bytes));
    metric("server_swapped_bytes", "Of the server, in swap.", bytes(last.server_swapped_bytes));
    metric("threads_running", "Connections that work.", Some(last.threads_running as f64));
    text
}
