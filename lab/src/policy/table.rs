//! Every policy on every trace at several sizes, as a table.

use std::fmt::Write as _;

use tidepool_pool::{MidpointConfig, ReplacementConfig};

use super::pool::Pooled;
use super::trace::Trace;
use super::{Outcome, Policy, replay};
use super::{arc, belady, clock, lru, s3_fifo, tiny_lfu, two_queue, watt};

/// Names of all policies, in the order of the table's columns.
pub const NAMES: [&str; 10] =
    ["tide", "midpoint", "lru", "clock", "2q", "s3-fifo", "w-tinylfu", "arc", "watt", "optimum"];

/// Makes a policy by name over `capacity` pages; `None` for an unknown name. The optimum needs the trace.
pub fn make(name: &str, capacity: usize, trace: &Trace) -> Option<Box<dyn Policy>> {
    Some(match name {
        "tide" => Box::new(Pooled::new(&ReplacementConfig::default(), capacity)),
        // InnoDB's defaults.
        "midpoint" => {
            let config = ReplacementConfig::Midpoint(MidpointConfig::default());
            Box::new(Pooled::new(&config, capacity))
        }
        "lru" => Box::new(lru::Lru::new(capacity)),
        "clock" => Box::new(clock::Clock::new(capacity)),
        "2q" => Box::new(two_queue::TwoQueue::new(capacity)),
        "s3-fifo" => Box::new(s3_fifo::S3Fifo::new(capacity)),
        "w-tinylfu" => Box::new(tiny_lfu::TinyLfu::new(capacity)),
        "arc" => Box::new(arc::Arc::new(capacity)),
        "watt" => Box::new(watt::Watt::new(capacity)),
        "optimum" => Box::new(belady::Belady::new(capacity, trace)),
        _ => return None,
    })
}

/// One row: a trace at a size.
#[derive(Debug, Clone)]
pub struct Row {
    /// The trace's name.
    pub trace: String,
    /// Pool size in pages.
    pub capacity: usize,
    /// Outcomes in the order of [`NAMES`].
    pub outcomes: Vec<Outcome>,
}

/// Replays every policy on every trace at the given fractions of the trace's distinct pages. A quarter of each trace warms up.
pub fn measure(traces: &[Trace], fractions: &[f64], mut progress: impl FnMut(&Row)) -> Vec<Row> {
    let mut rows = Vec::new();
    for trace in traces {
        let pages = trace.distinct_pages();
        for fraction in fractions {
            let capacity = ((pages as f64 * fraction) as usize).max(4);
            let run = |name: &&str| {
                let mut policy = make(name, capacity, trace).expect("NAMES holds known names only");
                replay(policy.as_mut(), trace, trace.requests.len() / 4)
            };
            let row = Row {
                trace: trace.name.clone(),
                capacity,
                outcomes: NAMES.iter().map(run).collect(),
            };
            progress(&row);
            rows.push(row);
        }
    }
    rows
}

/// The rows as a Markdown table of miss ratios in per cent.
pub fn markdown(rows: &[Row]) -> String {
    let mut text = String::from("| trace | pages |");
    for name in NAMES {
        let _ = write!(text, " {name} |");
    }
    text.push_str("\n|---|---:|");
    text.push_str(&"---:|".repeat(NAMES.len()));
    for row in rows {
        let _ = write!(text, "\n| {} | {} |", row.trace, row.capacity);
        for outcome in &row.outcomes {
            let _ = write!(text, " {:.2} |", outcome.miss_ratio() * 100.0);
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests;
