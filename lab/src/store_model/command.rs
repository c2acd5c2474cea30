//! `tidepool lab store-model`: recorded page writes replayed over layouts, as tables and charts.
//!
//! One table a question. Its rows are layouts that differ from the [chosen one](Layout::default) in
//! what the question is about, its columns are traces.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use clap::Args;

use super::chart;
use super::layout::{Codec, Counts, Load, Stored, Write};
use super::segments::{Options as Layout, Order, Segments, Sharing, Streams, Victim};
use super::slots::Slots;
use super::trace::Writes;
use crate::error::{Error, Result};
use crate::record::DEFAULT_OUT;

/// What to replay.
#[derive(Args, Debug)]
pub struct Options {
    /// Traces of page writes, as `tidepool lab run writes` records them
    #[arg(required = true, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// The directory for store-model.md and the charts.
    #[arg(long, default_value = DEFAULT_OUT)]
    out: PathBuf,
}

/// The granule of what was chosen, in bytes.
pub const GRANULE_BYTES: u32 = 64;
/// Space goals that are compared.
pub const GOALS: [f64; 7] = [1.15, 1.2, 1.25, 1.3, 1.35, 1.4, 1.5];

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What a replay has come to.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Of the page writes after those that only age the store.
    pub counts: Counts,
    /// At the end.
    pub stored: Stored,
    /// Bytes of the blocks that a page's image lies in, on average.
    pub read_bytes: f64,
    /// Bytes that the cleaner moves when the largest table is dropped.
    pub drop_bytes: u64,
}

/// A layout with all that it goes by.
#[derive(Clone, Copy, Debug)]
enum Case {
    Slots(Codec),
    Segments { codec: Codec, granule: u32, merged: usize, layout: Layout },
}

impl Case {
    fn segments(layout: Layout) -> Case {
        Case::Segments { codec: Codec::Zstd, granule: GRANULE_BYTES, merged: 1, layout }
    }

    fn replay(self, writes: &Writes) -> Outcome {
        match self {
            Case::Slots(codec) => slots(&Load::new(writes, codec, GRANULE_BYTES, 1)),
            Case::Segments { codec, granule, merged, layout } => {
                segments(&Load::new(writes, codec, granule, merged), layout)
            }
        }
    }
}

/// What is replayed before anything is counted: all batches once, so that places are as scattered
/// as they ever will be. Nothing, where the load itself makes most of the pages.
fn aging(load: &Load) -> &[Vec<Write>] {
    if load.before.len() * 2 >= load.pages as usize { &load.batches } else { &[] }
}

fn slots(load: &Load) -> Outcome {
    let mut slots = Slots::new(load);
    for batch in aging(load) {
        slots.batch(batch);
    }
    let aged = slots.counts;
    for batch in &load.batches {
        slots.batch(batch);
    }
    Outcome {
        counts: slots.counts.since(&aged),
        stored: slots.stored(),
        read_bytes: slots.read_bytes(),
        drop_bytes: 0,
    }
}

/// The layout after all writes, and what was counted.
fn replayed(load: &Load, layout: Layout) -> (Segments, Counts) {
    let mut store = Segments::new(load, layout);
    for batch in aging(load) {
        store.batch(batch);
    }
    let aged = store.counts;
    for batch in &load.batches {
        store.batch(batch);
    }
    let counts = store.counts.since(&aged);
    (store, counts)
}

/// Replays a trace over packed segments.
pub fn segments(load: &Load, layout: Layout) -> Outcome {
    let (mut store, counts) = replayed(load, layout);
    let (stored, read_bytes) = (store.stored(), store.read_bytes());
    let largest = store.largest_space();
    let drop_bytes = store.drop_spaces(|space| space == largest);
    Outcome { counts, stored, read_bytes, drop_bytes }
}

/// One table: rows by name.
struct Question {
    title: &'static str,
    rows: Vec<(String, Case)>,
}

fn size(bytes: u64) -> String {
    if bytes >= MIB { format!("{} MiB", bytes / MIB) } else { format!("{} KiB", bytes / KIB) }
}

/// Layouts that differ in kind.
fn kinds() -> Vec<(String, Case)> {
    let chosen = Layout::default();
    let of = |codec, sharing| {
        let layout = Layout { sharing, ..chosen };
        Case::Segments { codec, granule: GRANULE_BYTES, merged: 1, layout }
    };
    [
        ("A: blocks of 4 KiB, zstd", Case::Slots(Codec::Zstd)),
        ("A: blocks of 4 KiB, LZ4", Case::Slots(Codec::Lz4)),
        ("A: blocks of 4 KiB, raw", Case::Slots(Codec::Raw)),
        ("B: segments of each table, zstd", of(Codec::Zstd, Sharing::None)),
        ("B, small tables share, zstd (chosen)", of(Codec::Zstd, chosen.sharing)),
        ("B, small tables share, LZ4", of(Codec::Lz4, chosen.sharing)),
        ("C: segments of all tables, zstd", of(Codec::Zstd, Sharing::All)),
    ]
    .map(|(name, case)| (name.to_string(), case))
    .into()
}

fn segment_sizes(layout: Layout) -> Vec<(String, Case)> {
    let sizes = [64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB];
    let row =
        |segment_bytes| (size(segment_bytes), Case::segments(Layout { segment_bytes, ..layout }));
    sizes.into_iter().map(row).collect()
}

fn streams_and_victims() -> Vec<(String, Case)> {
    let mut rows = Vec::new();
    for (spread, streams) in [
        ("one stream", Streams::One),
        ("cleaner apart", Streams::Cleaner),
        ("cleaner apart, hot pages apart", Streams::HotCold),
        ("cleaner apart, by generation", Streams::Generations),
    ] {
        for (name, victim, order) in [
            ("greedy over all files", Victim::Greedy, Order::Page),
            ("greedy in each file", Victim::GreedyInFile, Order::Page),
            ("cost-benefit", Victim::CostBenefit, Order::Page),
            ("cost-benefit, moved by age", Victim::CostBenefit, Order::Age),
        ] {
            let layout = Layout { streams, victim, order, ..Layout::default() };
            rows.push((format!("{spread}; {name}"), Case::segments(layout)));
        }
    }
    rows
}

fn goals() -> Vec<(String, Case)> {
    let mut rows = Vec::new();
    for (name, streams, victim) in [
        ("by generation, cost-benefit", Streams::Generations, Victim::CostBenefit),
        ("cleaner apart, greedy", Streams::Cleaner, Victim::Greedy),
    ] {
        for goal in GOALS {
            let layout = Layout { goal, streams, victim, ..Layout::default() };
            rows.push((format!("{goal:.2}; {name}"), Case::segments(layout)));
        }
    }
    rows
}

fn growth() -> Vec<(String, Case)> {
    let mut rows = Vec::new();
    for segments_per_file in [16, 64, 256] {
        for segment_bytes in [256 * KIB, 512 * KIB, MIB] {
            let layout = Layout { segments_per_file, segment_bytes, ..Layout::default() };
            let name = format!("{segments_per_file} segments, up to {}", size(segment_bytes));
            rows.push((name, Case::segments(layout)));
        }
    }
    rows
}

fn batch_sizes() -> Vec<(String, Case)> {
    let row = |merged| {
        let layout = Layout::default();
        let case = Case::Segments { codec: Codec::Zstd, granule: GRANULE_BYTES, merged, layout };
        (format!("{merged} batches as one"), case)
    };
    [1, 2, 4, 8].into_iter().map(row).collect()
}

fn granules() -> Vec<(String, Case)> {
    let mut rows = Vec::new();
    for granule in [64, 512, 4096] {
        for (name, whole_blocks) in [("end to end", false), ("no image in two blocks", true)] {
            let layout = Layout { whole_blocks, ..Layout::default() };
            let case = Case::Segments { codec: Codec::Zstd, granule, merged: 1, layout };
            rows.push((format!("{granule} B, {name}"), case));
        }
    }
    rows
}

fn questions() -> Vec<Question> {
    let chosen = Layout::default();
    let shared = Layout { sharing: Sharing::All, ..chosen };
    vec![
        Question { title: "Space goal", rows: goals() },
        Question { title: "Streams and victims", rows: streams_and_victims() },
        Question { title: "Largest segment, B", rows: segment_sizes(chosen) },
        Question { title: "Largest segment, C", rows: segment_sizes(shared) },
        Question { title: "Segments before they grow from 64 KiB", rows: growth() },
        Question { title: "Granule and packing", rows: granules() },
        Question { title: "Batch size", rows: batch_sizes() },
    ]
}

/// The table of a question: cleaner over pages, KB a page, write operations a page.
fn table(question: &Question, traces: &[Writes]) -> String {
    let mut text = format!("## {}\n\n| |", question.title);
    for writes in traces {
        let _ = write!(text, " {} |", writes.about.name);
    }
    text += "\n|---|";
    text += &"--:|".repeat(traces.len());
    for (name, case) in &question.rows {
        let _ = write!(text, "\n| {name} |");
        for writes in traces {
            let Outcome { counts, .. } = case.replay(writes);
            let pages = counts.pages.max(1) as f64;
            let _ = write!(
                text,
                " {:.2} · {:.1} · {:.3} |",
                counts.cleaner_share(),
                (counts.written_bytes + counts.moved_bytes) as f64 / pages / 1e3,
                (counts.writes + counts.cleaner_writes) as f64 / pages,
            );
        }
    }
    text += "\n\n";
    text
}

/// The layouts on one trace, with all that is counted.
fn kinds_table(writes: &Writes) -> String {
    let pages_per_transaction =
        writes.page_writes() as f64 / writes.about.transactions.max(1) as f64;
    let mut text = format!(
        "## Layouts on {}\n\n{} pages on disk before; {} transactions wrote {} pages in {} \
         batches: {:.2} pages a transaction, {:.0} pages a batch.\n\n\
         | | KB a page | cleaner : pages | writes a transaction | syncs a batch | on disk, MB | \
         on disk : live | KB read a page | drop, MB moved |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        writes.about.name,
        writes.before.len(),
        writes.about.transactions,
        writes.page_writes(),
        writes.batches.len(),
        pages_per_transaction,
        writes.page_writes() as f64 / writes.batches.len().max(1) as f64,
    );
    for (name, case) in kinds() {
        let Outcome { counts, stored, read_bytes, drop_bytes } = case.replay(writes);
        let pages = counts.pages.max(1) as f64;
        let writes = (counts.writes + counts.cleaner_writes) as f64 / pages;
        let written = (counts.written_bytes + counts.moved_bytes) as f64 / pages / 1e3;
        let cleaner = counts.cleaner_share();
        let transaction = writes * pages_per_transaction;
        let syncs = counts.syncs as f64 / counts.batches.max(1) as f64;
        let disk = stored.disk_bytes as f64 / 1e6;
        let over = stored.disk_bytes as f64 / stored.live_bytes.max(1) as f64;
        let (read, moved) = (read_bytes / 1e3, drop_bytes as f64 / 1e6);
        let _ = write!(text, "| {name} | {written:.2} | {cleaner:.2} | {transaction:.2} ");
        let _ = writeln!(text, "| {syncs:.1} | {disk:.1} | {over:.2} | {read:.1} | {moved:.1} |");
    }
    text.push('\n');
    text
}

/// What it means that small tables share segments, and what is left when every second is dropped.
fn small_tables(writes: &Writes) -> String {
    let mut text = format!(
        "## Tables below this size share segments: {}\n\n| | on disk, MB | files | syncs a batch | \
         writes a page | KB a page | on disk after a drop of every second table, MB | \
         MB moved for it |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|\n",
        writes.about.name
    );
    let load = Load::new(writes, Codec::Zstd, GRANULE_BYTES, 1);
    for kib in [0, 32, 64, 128, 256, 1024] {
        let sharing = if kib == 0 { Sharing::None } else { Sharing::Below(kib * KIB) };
        let (mut store, counts) = replayed(&load, Layout { sharing, ..Layout::default() });
        let stored = store.stored();
        let moved = store.drop_spaces(|space| space % 2 == 0);
        let pages = counts.pages.max(1) as f64;
        let _ = writeln!(
            text,
            "| {kib} KiB | {:.1} | {} | {:.1} | {:.3} | {:.2} | {:.1} | {:.1} |",
            stored.disk_bytes as f64 / 1e6,
            stored.files,
            counts.syncs as f64 / counts.batches.max(1) as f64,
            (counts.writes + counts.cleaner_writes) as f64 / pages,
            (counts.written_bytes + counts.moved_bytes) as f64 / pages / 1e3,
            store.stored().disk_bytes as f64 / 1e6,
            moved as f64 / 1e6,
        );
    }
    text.push('\n');
    text
}

/// Replays, prints the tables in Markdown and writes them to `store-model.md`, and the chart of
/// each trace to `store-model-<trace>.svg`.
///
/// # Errors
/// If a trace can't be read, or a file can't be written.
pub fn run(options: &Options) -> Result<()> {
    fs::create_dir_all(&options.out).map_err(Error::at(&options.out))?;
    let traces = options.trace.iter().map(|path| Writes::load(path));
    let traces: Vec<Writes> = traces.collect::<Result<_>>()?;
    let mut text = String::new();
    for writes in &traces {
        text += &kinds_table(writes);
    }
    for question in questions() {
        text += &table(&question, &traces);
    }
    for writes in &traces {
        text += &small_tables(writes);
        let svg = options.out.join(format!("store-model-{}.svg", writes.about.name));
        fs::write(&svg, chart::space(writes)).map_err(Error::at(&svg))?;
    }
    print!("{text}");
    let path = options.out.join("store-model.md");
    fs::write(&path, text).map_err(Error::at(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_model::trace::{About, Image};

    fn image(space: u32, no: u32, zstd: u16) -> Image {
        Image { space, no, lsn: 1, kind: 3, zstd, lz4: 2 * zstd }
    }

    /// Every second page of two tables is written twice.
    fn writes() -> Writes {
        let pages = |step| {
            let no = (0..400).step_by(step);
            no.flat_map(|no| [image(16, no, 3000), image(17, no, 2000)]).collect::<Vec<Image>>()
        };
        let about = About { name: "two".into(), transactions: 400, ..About::default() };
        Writes { about, before: pages(1), batches: vec![pages(2), pages(2)] }
    }

    #[test]
    fn each_layout_has_a_row_and_the_chosen_one_is_among_them() {
        let text = kinds_table(&writes());
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).collect();
        assert_eq!(rows.len(), 1 + kinds().len(), "{text}");
        assert!(text.contains("2.00 pages a transaction, 400 pages a batch"), "{text}");
        let raw = rows.iter().find(|row| row.contains("raw")).unwrap();
        assert!(raw.starts_with("| A: blocks of 4 KiB, raw | 20.48 | 0.00 |"), "{raw}");
        let goals = table(&questions()[0], &[writes()]);
        assert_eq!(goals.lines().filter(|line| line.contains(" · ")).count(), 2 * GOALS.len());
    }

    #[test]
    fn pages_written_since_the_begin_are_counted_once() {
        let Outcome { counts, stored, .. } = Case::segments(Layout::default()).replay(&writes());
        assert_eq!((counts.pages, counts.batches), (800, 2));
        assert!(stored.live_bytes > 400 * 5000);
    }
}
