//! The same in the terminal: a screen that redraws itself, or a line a second where there is no
//! terminal.

use std::io::Write;

use serde_json::json;

use super::sample::Sample;
use super::watched::{Seen, Watched};
use crate::bytes::human;
use crate::terminal::{self, Size, printable};

/// Columns before a row's sparks, and the most of these.
const LABELS: usize = 29;
const SPARKS: usize = 60;

/// What a second is in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A screen, or a line for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Shows the newest sample. Returns false when the output is closed.
pub fn show(watched: &Watched, format: Format) -> bool {
    let seen = watched.seen();
    let mut out = std::io::stdout();
    let text = match terminal::size(&out) {
        _ if format == Format::Json => json_line(watched, &seen),
        Some(size) => drawn(&screen(watched, &seen, size.columns), size),
        None => line(&seen),
    };
    drop(seen);
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// Home, then each line to its end, then the rest of the screen. The last row stays empty: the
/// cursor is there. Nothing of the text moves it.
fn drawn(text: &str, size: Size) -> String {
    let rows = size.rows.saturating_sub(1).max(1);
    let lines: String = terminal::cut(text, Size { rows, ..size })
        .map(|line| format!("{}\x1b[K\n", printable(&line)))
        .collect();
    // Letters may be wider than one column: a line that is too long all the same must not go on in
    // the next.
    format!("\x1b[H\x1b[?7l{lines}\x1b[?7h\x1b[J")
}

/// The sample as the page gets it, with the server's place.
fn json_line(watched: &Watched, seen: &Seen) -> String {
    let Some(last) = seen.history.last() else { return String::new() };
    let mut object = json!(last);
    object["server"] = watched.about().place.as_str().into();
    object["engine"] = watched.about().engine.prefix().into();
    format!("{object}\n")
}

fn line(seen: &Seen) -> String {
    let Some(last) = seen.history.last() else { return String::new() };
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
    };
    let mut line = format!(
        "{} qps {:.0} p95_ms {} read_mb_s {:.1} write_mb_s {:.1} swap_mb_s {} pool_mib {} fits_mib {} hit_pct {}",
        last.at_ms / 1000,
        last.qps,
        number(last.p95_ms, 2),
        last.disk_read_mb_s,
        last.disk_write_mb_s,
        number(last.swap_mb_s, 1),
        last.pool_bytes >> 20,
        last.target_bytes.map_or_else(|| "-".into(), |bytes| (bytes >> 20).to_string()),
        number(last.hit_ratio.map(|hit| hit * 100.0), 2)
    );
    if let Some(error) = &seen.error {
        line.push_str(&format!(" error {error}"));
    }
    printable(&line) + "\n"
}

fn screen(watched: &Watched, seen: &Seen, columns: usize) -> String {
    let about = watched.about();
    let mut text = format!("{} at {}\n\n", about.server, about.place);
    if let Some(error) = &seen.error {
        text.push_str(&format!("  {error}\n"));
    }
    let samples = seen.history.since(0);
    let Some(last) = samples.last() else { return text + "waiting for the first sample\n" };
    let mut row = |name: &str, value: String, series: Vec<f64>| {
        let wide = columns.saturating_sub(LABELS).clamp(1, SPARKS);
        text.push_str(&format!("{name:<14} {value:>12}  {}\n", spark(&series, wide)));
    };
    let series = |get: &dyn Fn(&Sample) -> f64| samples.iter().map(get).collect::<Vec<_>>();
    let dash = || "-".to_owned();
    row("queries/s", format!("{:.0}", last.qps), series(&|s| s.qps));
    row(
        "p95 ms",
        last.p95_ms.map_or_else(dash, |ms| format!("{ms:.2}")),
        series(&|s| s.p95_ms.unwrap_or(0.0)),
    );
    row("disk read MB/s", format!("{:.1}", last.disk_read_mb_s), series(&|s| s.disk_read_mb_s));
    row("disk write", format!("{:.1}", last.disk_write_mb_s), series(&|s| s.disk_write_mb_s));
    row(
        "swap MB/s",
        last.swap_mb_s.map_or_else(dash, |mb| format!("{mb:.1}")),
        series(&|s| s.swap_mb_s.unwrap_or(0.0)),
    );
    row(
        "miss ratio %",
        last.hit_ratio.map_or_else(dash, |hit| format!("{:.3}", (1.0 - hit) * 100.0)),
        series(&|s| s.hit_ratio.map_or(0.0, |hit| 1.0 - hit)),
    );
    row("running", last.threads_running.to_string(), series(&|s| s.threads_running as f64));
    let health = &last.health;
    if let Some(bytes) = health.dirty_bytes {
        row("dirty pages", human(bytes), series(&|s| s.health.dirty_bytes.unwrap_or(0) as f64));
    }
    if let Some(age) = health.checkpoint_age_bytes {
        let ages = series(&|s| s.health.checkpoint_age_bytes.unwrap_or(0) as f64);
        row("checkpoint age", human(age), ages);
    }
    if let Some(length) = health.history_list_length {
        let lengths = series(&|s| s.health.history_list_length.unwrap_or(0) as f64);
        row("history list", length.to_string(), lengths);
    }
    if let Some(waits) = health.row_lock_waits_per_s {
        let all = series(&|s| s.health.row_lock_waits_per_s.unwrap_or(0.0));
        row("lock waits/s", format!("{waits:.1}"), all);
    }
    if let Some(lag) = health.replication_lag_s {
        let lags = series(&|s| s.health.replication_lag_s.unwrap_or(0.0));
        row("replica lag s", format!("{lag:.0}"), lags);
    }
    let name = match last.governed {
        Some(true) => "pool, governed",
        Some(false) => "pool, fixed",
        None => "pool",
    };
    row(name, human(last.pool_bytes), series(&|s| s.pool_bytes as f64));
    if let Some(bytes) = last.compressed_bytes.filter(|bytes| *bytes > 0) {
        let compressed = series(&|s| s.compressed_bytes.unwrap_or(0) as f64);
        row("compressed pages", human(bytes), compressed);
    }
    row(
        "maximum",
        last.target_bytes.map_or_else(dash, human),
        series(&|s| s.target_bytes.unwrap_or(0) as f64),
    );
    text.push_str(&format!("\np95 of {}\n", about.p95_words));
    if !seen.content.is_empty() {
        text.push_str("\nbuffer pool contents\n");
    }
    for entry in seen.content.iter().take(10) {
        text.push_str(&format!(
            "  {:>9.1} MiB  {} {}\n",
            entry.mb,
            printable(&entry.table),
            printable(&entry.index)
        ));
    }
    if !seen.decisions.is_empty() {
        text.push_str("\ndecisions\n");
    }
    for decision in seen.decisions.iter().take(8) {
        text.push_str(&format!("  {} {}\n", printable(&decision.at), printable(&decision.text)));
    }
    // What a privilege is missing for.
    let notes = [&seen.content_note, &seen.decisions_note];
    for note in notes.into_iter().flatten() {
        text.push_str(&format!("\n{}\n", printable(note)));
    }
    text
}

/// The last values, as high as their highest.
fn spark(series: &[f64], columns: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let series = &series[series.len().saturating_sub(columns)..];
    let most = series.iter().copied().fold(0.0, f64::max);
    let bar = |value: &f64| match most > 0.0 {
        true => BARS[((value / most * 7.0).round() as usize).min(7)],
        false => BARS[0],
    };
    series.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparks_scale_to_their_highest() {
        assert_eq!(spark(&[0.0, 7.0, 3.5], 60), "▁█▅");
        assert_eq!(spark(&[0.0, 0.0], 60), "▁▁");
        assert_eq!(spark(&[1.0; 100], 51).chars().count(), 51);
    }

    #[test]
    fn no_line_and_no_row_goes_beyond_the_terminal() {
        let text = format!("{}\n", "x".repeat(200)).repeat(50);
        let shown = drawn(&text, Size { columns: 80, rows: 24 });
        assert_eq!(shown.matches('\n').count(), 23);
        assert!(shown.split('\n').all(|line| line.matches('x').count() <= 80));
    }

    #[test]
    fn no_name_moves_the_cursor() {
        let shown = drawn("a\x1b[2Jb\n", Size { columns: 80, rows: 24 });
        assert!(shown.contains("a\u{fffd}[2Jb\x1b[K"), "{shown:?}");
    }
}
