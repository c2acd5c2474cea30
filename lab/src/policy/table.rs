//! Every policy on every trace at several sizes, as a table.

use std::fmt::Write as _;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use tidepool_pool::{MidpointConfig, ReplacementConfig};

use super::pool::Pooled;
use super::trace::Trace;
use super::{Policy, replay};
use super::{arc, belady, clock, lru, s3_fifo, tiny_lfu, two_queue, watt};

/// Names of all policies, in the order of the table's columns.
pub const NAMES: [&str; 10] =
    ["tide", "midpoint", "lru", "clock", "2q", "s3-fifo", "w-tinylfu", "arc", "watt", "optimum"];

/// The policy that the others are compared with.
const OURS: &str = "tide";
/// No policy for a pool: it knows the future.
const OPTIMUM: &str = "optimum";

/// Makes a policy by name over `capacity` pages; `None` for an unknown name. The optimum needs the
/// trace.
pub fn make(name: &str, capacity: usize, trace: &Trace) -> Option<Box<dyn Policy>> {
    Some(match name {
        OURS => Box::new(Pooled::new(&ReplacementConfig::default(), capacity)),
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
        OPTIMUM => Box::new(belady::Belady::new(capacity, trace)),
        _ => return None,
    })
}

/// The size of a pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    /// Percent of the pages that the trace touches.
    Percent(f64),
    Pages(usize),
}

impl Size {
    /// In pages, for a trace that touches this many; at least four.
    pub fn capacity(self, distinct_pages: usize) -> usize {
        let pages = match self {
            Size::Percent(percent) => (distinct_pages as f64 * percent / 100.0) as usize,
            Size::Pages(pages) => pages,
        };
        pages.max(4)
    }
}

impl FromStr for Size {
    type Err = String;

    /// `25%`, or a number of pages.
    fn from_str(text: &str) -> Result<Size, String> {
        let wrong =
            || format!("{text}: a number of pages is wanted, or a share of a trace's as 25%");
        match text.strip_suffix('%') {
            Some(share) => match share.parse() {
                Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Size::Percent(percent)),
                _ => Err(wrong()),
            },
            None => match text.parse() {
                Ok(pages) if pages > 0 => Ok(Size::Pages(pages)),
                _ => Err(wrong()),
            },
        }
    }
}

/// The sizes of the published tables.
pub const SIZES: [Size; 5] = [
    Size::Percent(5.0),
    Size::Percent(10.0),
    Size::Percent(25.0),
    Size::Percent(50.0),
    Size::Percent(80.0),
];

/// One row: a trace at a size, or several traces of that name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The trace's name.
    pub trace: String,
    /// How many traces: of one name, from several seeds.
    pub traces: usize,
    /// Pages that the trace touches.
    pub pages: usize,
    /// Size of the pool in pages.
    pub capacity: usize,
    /// Misses over requests, in the order of the table's policies.
    pub miss_ratios: Vec<f64>,
}

/// Miss ratios of policies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    /// The columns.
    pub policies: Vec<String>,
    /// The rows: traces in their order, and for each the sizes in theirs.
    pub rows: Vec<Row>,
}

/// Replays the policies on every trace at the given sizes, on as many threads as there are CPUs. A
/// quarter of each trace warms up. `done` hears of every replay that has ended.
///
/// # Panics
/// If a policy's name is not in [`NAMES`].
pub fn measure(
    traces: &[Trace],
    policies: &[&str],
    sizes: &[Size],
    done: impl Fn(&Trace, &str) + Sync,
) -> Table {
    let pages: Vec<usize> = traces.iter().map(Trace::distinct_pages).collect();
    let all = traces.len() * sizes.len() * policies.len();
    let next = AtomicUsize::new(0);
    let ratios = Mutex::new(vec![0.0; all]);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= all {
                return;
            }
            let (row, policy) = (at / policies.len(), policies[at % policies.len()]);
            let (which, size) = (row / sizes.len(), sizes[row % sizes.len()]);
            let trace = &traces[which];
            let mut made = make(policy, size.capacity(pages[which]), trace)
                .unwrap_or_else(|| panic!("there is no policy {policy}"));
            let outcome = replay(made.as_mut(), trace, trace.requests.len() / 4);
            ratios.lock().expect("no replay panics")[at] = outcome.miss_ratio();
            done(trace, policy);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let ratios = ratios.into_inner().expect("no replay panics");
    let rows = ratios.chunks(policies.len().max(1)).enumerate().map(|(row, ratios)| {
        let which = row / sizes.len();
        Row {
            trace: traces[which].name.clone(),
            traces: 1,
            pages: pages[which],
            capacity: sizes[row % sizes.len()].capacity(pages[which]),
            miss_ratios: ratios.to_vec(),
        }
    });
    Table { policies: policies.iter().map(|&name| name.to_owned()).collect(), rows: rows.collect() }
}

/// Row by row the mean of tables that have the same traces, from other seeds, at the same sizes.
/// `None` if there is no table.
pub fn mean(tables: &[Table]) -> Option<Table> {
    let mut mean = tables.first()?.clone();
    for (at, row) in mean.rows.iter_mut().enumerate() {
        row.traces = tables.len();
        let average = |of: &dyn Fn(&Row) -> f64| {
            tables.iter().map(|table| of(&table.rows[at])).sum::<f64>() / tables.len() as f64
        };
        row.pages = average(&|row| row.pages as f64).round() as usize;
        row.capacity = average(&|row| row.capacity as f64).round() as usize;
        for (policy, ratio) in row.miss_ratios.iter_mut().enumerate() {
            *ratio = average(&|row| row.miss_ratios[policy]);
        }
    }
    Some(mean)
}

impl Table {
    fn column(&self, name: &str) -> Option<usize> {
        self.policies.iter().position(|policy| policy == name)
    }

    /// The columns that `tide` is compared with.
    fn rivals(&self) -> impl Iterator<Item = usize> {
        let rivals = self.policies.iter().enumerate();
        rivals.filter(|(_, name)| *name != OURS && *name != OPTIMUM).map(|(column, _)| column)
    }

    /// By how much `tide` misses more than the best of the others but the optimum, of that one's
    /// misses; negative where it misses less. `None` if either is not in the table.
    pub fn against_best(&self, miss_ratios: &[f64]) -> Option<f64> {
        let ours = miss_ratios[self.column(OURS)?];
        let best = self.rivals().map(|column| miss_ratios[column]).min_by(f64::total_cmp)?;
        Some(if ours == best { 0.0 } else { ours / best - 1.0 })
    }

    /// The mean of a column over all rows; `None` if there is no such policy, or no row.
    pub fn mean_of(&self, policy: &str) -> Option<f64> {
        let column = self.column(policy)?;
        Some(mean_ratios(self.rows.iter())?[column])
    }

    /// The table in Markdown, miss ratios in per cent; then the means over all rows, and those of
    /// each trace.
    pub fn markdown(&self) -> String {
        let mut text = String::from("| trace | pages |");
        for name in &self.policies {
            let _ = write!(text, " {name} |");
        }
        text.push_str(" against the best |\n|---|---:|");
        text.push_str(&"---:|".repeat(self.policies.len() + 1));
        for row in &self.rows {
            let _ = write!(text, "\n| {} | {} |", row.trace, row.capacity);
            for ratio in &row.miss_ratios {
                let _ = write!(text, " {:.2} |", ratio * 100.0);
            }
            let _ = write!(text, " {} |", percent(self.against_best(&row.miss_ratios)));
        }
        text.push('\n');
        if let Some(means) = mean_ratios(self.rows.iter()) {
            self.write_means(&mut text, &means);
        }
        text
    }

    fn write_means(&self, text: &mut String, means: &[f64]) {
        let mut order: Vec<usize> = (0..means.len()).collect();
        order.sort_by(|&a, &b| means[a].total_cmp(&means[b]));
        if let Some(optimum) = self.column(OPTIMUM) {
            order.retain(|&column| column != optimum);
            order.push(optimum);
        }
        text.push_str("\nMean over all rows:\n\n|");
        for &column in &order {
            let _ = write!(text, " {} |", self.policies[column]);
        }
        let _ = write!(text, "\n|{}\n|", "---:|".repeat(order.len()));
        for &column in &order {
            let _ = write!(text, " {:.2} |", means[column] * 100.0);
        }
        if self.column(OURS).is_none() {
            text.push('\n');
            return;
        }
        text.push_str("\n\nMean over the sizes, against the policy that is best on the trace:\n\n");
        let _ = write!(text, "| trace | {OURS} | best of the others | |\n|---|---:|---|---:|");
        for rows in self.rows.chunk_by(|a, b| a.trace == b.trace) {
            let ratios = mean_ratios(rows.iter()).expect("a chunk has a row");
            let ours = ratios[self.column(OURS).expect("checked")] * 100.0;
            let best = self.rivals().min_by(|&a, &b| ratios[a].total_cmp(&ratios[b]));
            let best = best.map_or(String::new(), |column| {
                format!("{:.2} {}", ratios[column] * 100.0, self.policies[column])
            });
            let against = percent(self.against_best(&ratios));
            let _ = write!(text, "\n| {} | {ours:.2} | {best} | {against} |", rows[0].trace);
        }
        let compared = self.rows.iter().filter_map(|row| self.against_best(&row.miss_ratios));
        let (near, all) = compared
            .fold((0, 0), |(near, all), against| (near + usize::from(against <= WITHIN), all + 1));
        let _ = writeln!(
            text,
            "\n\n{near} of {all} rows are within {:.0} % of the best.",
            WITHIN * 100.0
        );
    }
}

/// By how much the default policy may miss more than the best.
pub const WITHIN: f64 = 0.02;

fn percent(against: Option<f64>) -> String {
    against.map_or(String::new(), |against| format!("{:+.1} %", against * 100.0))
}

fn mean_ratios<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<Vec<f64>> {
    let mut count = 0.0;
    let mut sums: Vec<f64> = Vec::new();
    for row in rows {
        sums.resize(row.miss_ratios.len(), 0.0);
        sums.iter_mut().zip(&row.miss_ratios).for_each(|(sum, ratio)| *sum += ratio);
        count += 1.0;
    }
    (count > 0.0).then(|| sums.into_iter().map(|sum| sum / count).collect())
}

#[cfg(test)]
mod tests;
