//! The figures as markdown.

use crate::bytes::{MIB, human};
use crate::figures::{Figures, median};
use crate::process::memory_limit;
use crate::store::Kind;
use crate::turns::{Results, Settings};
use crate::workload::{Size, Workload};
use std::fmt::Write as _;

/// All tables and the notes. `command` is how it was run.
pub fn render(settings: &Settings, results: &Results, command: &str) -> String {
    let table = Table { settings, results };
    let mut text = format!("`{command}`\n\n");
    text += &table.conditions();
    text += "\n## Speed\n\nMore is better. The last column is Tidepool's figure over the best peer's.\n\n";
    text += &table.speed();
    text += "\n## Latency\n\nOf an operation (a read, a scan, a transaction), in µs: half are below the first figure, 99 of 100 below the second; the third is \
the longest.\n\n";
    text += &table.rows(|figures| {
        figures[0].latency?;
        let of = |part: fn(&crate::figures::Percentiles) -> f64| {
            let parts = figures.iter().filter_map(|figures| figures.latency.as_ref().map(part));
            microseconds(median(parts.collect()))
        };
        Some(format!("{} / {} / {}", of(|l| l.p50_us), of(|l| l.p99_us), of(|l| l.max_us)))
    });
    text += "\n## Work\n\nTime of cores in the store's process, its background threads included, for each row, read or commit, in µs. Kernel threads are not in it. \
Of all figures of speed this is the one that other programs on the machine disturb least.\n\n";
    text += &table.rows(|figures| {
        let all = figures.iter().map(|figures| figures.core_us).collect();
        Some(format!("{:.2}", median(all)))
    });
    text += "\n## Memory\n\nOf the whole process, in MiB: the most that was resident during the workload (VmHWM), and what was anonymous (RssAnon, the middle of what was seen). \
What the kernel caches of files is in neither.\n\n";
    text += &table.rows(|figures| {
        let peak = mebibytes(figures, |f| f.peak_bytes);
        Some(format!("{peak} / {}", mebibytes(figures, |f| f.anonymous_bytes)))
    });
    text += "\n## Disk\n\nThe most that the store's files took in the workload, in MiB, and in brackets by how much that is more than before.\n\n";
    text += &table.rows(|figures| {
        let now = mebibytes(figures, |f| f.disk_bytes);
        let grown = figures.iter().map(|f| f.disk_bytes as f64 - f.disk_before_bytes as f64);
        Some(format!("{now} ({:+.0})", median(grown.collect()) / MIB as f64))
    });
    text += "\n## Settings of each\n\n";
    for store in &settings.stores {
        let _ = writeln!(text, "* **{} {}**: {}.", store.name(), store.version(), store.settings());
    }
    text
}

struct Table<'a> {
    settings: &'a Settings,
    results: &'a Results,
}

impl Table<'_> {
    fn conditions(&self) -> String {
        let Settings { memory_bytes, value_bytes, threads, seconds, repeat, .. } = self.settings;
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let others = |pick: fn(Vec<f64>) -> f64| {
            let of_runs = self.results.figures.values().flatten().map(|figures| figures.others);
            of_runs.clone().next().map_or(0.0, |_| pick(of_runs.collect()) * 100.0)
        };
        let rows = |size| thousands(self.settings.rows(size) as f64);
        let checked: u64 =
            self.results.figures.values().flatten().map(|figures| figures.checked_rows).sum();
        format!(
            "{cores} cores, which load and store share. Each store is told to use {} of memory. Keys of 8 bytes, values of {value_bytes} that don't compress: {} rows fit, \
{} are twice, {} four times the memory. N = {threads} threads. Medians of {repeat} × {seconds} s, each in a process of its own, the stores by turns. \
Where a commit is counted, it was synced. {} values were read and found right, among them all rows after each workload that writes, once the store had been opened again, \
with the last versions committed. \"In a memory cgroup\": of {}, in which the kernel's cache of files counts. Others (kernel threads that work for a store among them) had {:.0} % of the cores \
during the middle run, {:.0} % during the worst.\n",
            human(*memory_bytes),
            rows(Size::Fits),
            rows(Size::Double),
            rows(Size::Large),
            thousands(checked as f64),
            human(memory_limit(*memory_bytes)),
            others(median),
            others(|runs| runs.into_iter().fold(0.0, f64::max)),
        )
    }

    /// Of the runs that were not killed; none if there is no such run.
    fn figures(&self, workload: Workload, store: Kind) -> Option<&[Figures]> {
        self.results.figures.get(&(workload, store)).map(Vec::as_slice)
    }

    /// A cell: the figures, and how many runs they lack.
    fn cell(&self, workload: Workload, store: Kind, figures: Option<String>) -> String {
        let killed = self.results.killed.get(&(workload, store)).copied().unwrap_or(0);
        match (figures, killed) {
            (Some(figures), 0) => figures,
            (Some(figures), killed) => {
                format!("{figures} (killed in {killed} of {})", self.settings.repeat)
            }
            (None, 0) => "–".into(),
            (None, _) => "killed".into(),
        }
    }

    fn per_second(&self, workload: Workload, store: Kind) -> Option<f64> {
        let figures = self.figures(workload, store)?;
        Some(median(figures.iter().map(|figures| figures.per_second).collect()))
    }

    /// Tidepool over the best of the others.
    fn ratio(&self, workload: Workload) -> Option<f64> {
        let peers = self.settings.stores.iter().filter(|store| **store != Kind::Tidepool);
        let peers = peers.filter_map(|store| self.per_second(workload, *store));
        let best = peers.max_by(f64::total_cmp)?;
        Some(self.per_second(workload, Kind::Tidepool)? / best)
    }

    fn header(&self, last: &str) -> String {
        let names: Vec<_> = self.settings.stores.iter().map(|store| store.name()).collect();
        let rules = "--:|".repeat(names.len() + usize::from(!last.is_empty()));
        format!("| | {} |{last}\n|---|{rules}\n", names.join(" | "))
    }

    fn speed(&self) -> String {
        let mut text = self.header(" ratio |");
        for workload in &self.settings.workloads {
            let _ = write!(text, "| {} |", workload.name());
            for store in &self.settings.stores {
                let speed = self.per_second(*workload, *store).map(thousands);
                let cell = self.cell(*workload, *store, speed);
                let _ = write!(text, " {cell} |");
            }
            let ratio =
                self.ratio(*workload).map_or("–".into(), |ratio| format!("**{ratio:.2}**"));
            let _ = writeln!(text, " {ratio} |");
        }
        text
    }

    /// A table with a cell for each workload and store, without the workloads of which `cell` has
    /// nothing to say.
    fn rows(&self, cell: impl Fn(&[Figures]) -> Option<String>) -> String {
        let mut text = self.header("");
        for workload in &self.settings.workloads {
            let cells: Vec<Option<String>> = (self.settings.stores.iter())
                .map(|store| cell(self.figures(*workload, *store)?))
                .collect();
            if cells.iter().all(Option::is_none) {
                continue;
            }
            let cells: Vec<String> = std::iter::zip(cells, &self.settings.stores)
                .map(|(cell, store)| self.cell(*workload, *store, cell))
                .collect();
            let name = workload.name().rsplit_once(',').map_or("", |(name, _unit)| name);
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
        text
    }
}

fn mebibytes(figures: &[Figures], bytes: fn(&Figures) -> u64) -> String {
    thousands(median(figures.iter().map(|figures| bytes(figures) as f64).collect()) / MIB as f64)
}

/// Whole numbers with commas.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits or so: what is below 10 µs with one behind the point.
fn microseconds(value: f64) -> String {
    if value < 9.95 { format!("{value:.1}") } else { thousands(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(999.0), "999");
        assert_eq!(microseconds(1.26), "1.3");
        assert_eq!(microseconds(1234.0), "1,234");
    }

    #[test]
    fn who_was_killed_at_times_keeps_the_figures_of_the_other_times() {
        let figures = Figures {
            per_second: 100.0,
            latency: None,
            peak_bytes: 0,
            anonymous_bytes: 0,
            disk_before_bytes: 0,
            disk_bytes: 0,
            checked_rows: 0,
            core_us: 0.0,
            others: 0.0,
        };
        let of = |store| (Workload::ReadsConfined, store);
        let mut results = Results::default();
        results.figures.insert(of(Kind::Tidepool), vec![figures; 3]);
        let half = Figures { per_second: 50.0, ..figures };
        results.figures.insert(of(Kind::Fjall), vec![half; 2]);
        results.killed.insert(of(Kind::Fjall), 1);
        results.killed.insert(of(Kind::Redb), 3);
        let settings = Settings {
            stores: Kind::ALL.to_vec(),
            workloads: vec![Workload::ReadsConfined],
            keys: None,
            value_bytes: 100,
            threads: 1,
            seconds: 1.0,
            memory_bytes: 1 << 20,
            dir: "unused".into(),
            repeat: 3,
            tries: 1,
        };
        let text = render(&settings, &results, "command");
        let row = "| 100 | killed | 50 (killed in 1 of 3) | – | **2.00** |";
        assert!(text.contains(row), "{text}");
    }
}
