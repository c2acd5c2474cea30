//! The damage campaign: one random damage to one file of the engine, a start, and everything read
//! and compared.
//!
//! ```text
//!   schema ──▶ a directory, stopped in order or killed ──▶ a copy, for all trials
//!                                                             │ harm: one damage
//!                                                             ▼
//!   truth  ──────────── compared with ◀── trial: start, read all, write, stop
//!                                                             │
//!                                                             ▼
//!                                                    verdict, and its faults
//! ```
//!
//! Three things are demanded of every trial. The server does not crash and does not hang. No query
//! gives rows that
//! differ from the truth. If something is refused, the errors or the error log name the file, the
//! page
//! where one page is concerned, and what to do. What else becomes of the data is counted, not
//! judged.
//!
//! Only damage is made, never an older copy of a page or of a file: that comes with the store.
//!
//! | module | what it is |
//! |---|---|
//! | [`schema`] | the tables, the transactions that are left open, and the truth |
//! | [`harm`] | files by kind, and the damages |
//! | [`trial`] | one damage, and what the server makes of it |
//! | [`verdict`] | what a trial is called, and what is wrong with it |
//!
//! A trial has a seed, which decides the directory's kind, the file, the damage and its place. The
//! directory itself
//! is made anew in each run, by sessions and background threads at once, so a replay meets the
//! same kind of damage at the same relative place, not always at the same bytes.

pub mod harm;
pub mod schema;
pub mod trial;
pub mod verdict;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::server::{Engine, Options, Server};
use harm::{FileKind, Harm};
use schema::Truth;
use verdict::{Report, Verdict};

/// How a campaign is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Damages.
    pub trials: u64,
    /// The seed of the first trial; the next ones follow.
    pub seed: u64,
    /// Only files of this kind are damaged.
    pub only: Option<FileKind>,
    /// More options for the server.
    pub args: Vec<String>,
    /// Print a line for each trial.
    pub verbose: bool,
}

/// How a directory came to its end before the damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By an orderly stop.
    Stopped,
    /// By SIGKILL, with recent changes in the redo log only.
    Killed,
}

/// A directory that trials begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Bytes in a page: a block of zeroes is a whole page, or a part of one.
    pub page_size: u32,
    /// How its last server ended.
    pub ending: Ending,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = match self.ending {
            Ending::Stopped => "stopped",
            Ending::Killed => "killed",
        };
        write!(f, "{ending}, pages of {}", self.page_size)
    }
}

/// All variants, in the order in which a seed chooses among them.
pub const VARIANTS: [Variant; 4] = [
    Variant { page_size: 16384, ending: Ending::Killed },
    Variant { page_size: 16384, ending: Ending::Stopped },
    Variant { page_size: 4096, ending: Ending::Killed },
    Variant { page_size: 4096, ending: Ending::Stopped },
];

/// A directory made, and what must be in it.
pub struct Base {
    /// How it was made.
    pub variant: Variant,
    /// The server of all its trials; it does not run between them.
    pub server: Server,
    /// What must be there.
    pub truth: Truth,
    /// The copy of what a trial may change.
    copy: PathBuf,
}

/// What a trial may change, below the data directory: the engine's own files, and the definitions
/// of the tables.
const RESTORED: [&str; 2] = ["tidepool", schema::DATABASE];

impl Base {
    /// Makes the directory, ends its server, and keeps a copy.
    ///
    /// # Panics
    /// If the server refuses any of it.
    pub fn new(variant: Variant, args: &[String]) -> Base {
        let mut options = Options::new("damage")
            .engine(Engine::Tidepool)
            .arg(format!("--tidepool-page-size={}", variant.page_size))
            .arg("--tidepool-buffer-pool-size=32M")
            .arg("--tidepool-redo-log-capacity=16M")
            .arg("--tidepool-lock-wait-timeout=3");
        options.args.extend(args.iter().cloned());
        let mut server = Server::start(options);
        let truth = schema::make(&mut server, variant.ending);
        let copy = server.dir().join("base");
        std::fs::create_dir(&copy).expect("a directory can be made");
        for name in RESTORED {
            copy_tree(&server.data_dir().join(name), &copy.join(name));
        }
        Base { variant, server, truth, copy }
    }

    /// Brings back what the trial before has changed.
    ///
    /// # Panics
    /// If files cannot be copied.
    pub fn restore(&self) {
        for name in RESTORED {
            let place = self.server.data_dir().join(name);
            let _ = std::fs::remove_dir_all(&place);
            copy_tree(&self.copy.join(name), &place);
        }
    }

    /// The directory of the engine's files.
    pub fn engine_dir(&self) -> PathBuf {
        self.server.data_dir().join("tidepool")
    }
}

/// What a campaign found.
#[derive(Debug, Default)]
pub struct Summary {
    /// How often each verdict was given, by file and damage.
    pub counts: BTreeMap<(FileKind, Harm), BTreeMap<Verdict, u64>>,
    /// What is wrong, each with the command that runs the trial again.
    pub faults: Vec<String>,
    /// The first message of each kind of refusal, for a reader to judge.
    pub examples: BTreeMap<(FileKind, Verdict), String>,
}

/// Runs the campaign.
///
/// # Panics
/// If an undamaged directory can't be made.
pub fn run(settings: &Settings) -> Summary {
    let mut bases: [Option<Base>; VARIANTS.len()] = Default::default();
    let mut summary = Summary::default();
    for seed in settings.seed..settings.seed + settings.trials {
        let mut rng = StdRng::seed_from_u64(seed);
        let index = rng.random_range(0..VARIANTS.len());
        let base = bases[index].get_or_insert_with(|| Base::new(VARIANTS[index], &settings.args));
        base.restore();
        let damage = harm::choose(&base.engine_dir(), settings.only, &mut rng);
        damage.apply(&base.engine_dir());
        let report = trial::run(base, &damage, &mut rng);
        if settings.verbose {
            println!("seed {seed}: {}: {damage}: {}", base.variant, report.line());
        }
        summary.add(seed, settings, base.variant, &damage, report);
    }
    summary
}

impl Summary {
    fn add(
        &mut self,
        seed: u64,
        settings: &Settings,
        variant: Variant,
        damage: &harm::Damage,
        report: Report,
    ) {
        let cell = self.counts.entry((damage.kind, damage.harm)).or_default();
        *cell.entry(report.verdict).or_default() += 1;
        if report.verdict != Verdict::Nothing {
            let example = report.messages.first().cloned().unwrap_or_default();
            self.examples.entry((damage.kind, report.verdict)).or_insert(example);
        }
        let only = settings.only.map_or(String::new(), |kind| format!(" --only {}", kind.name()));
        for fault in &report.faults {
            let mut text = format!(
                "damage --trials 1 --seed {seed}{only}: {variant}: {damage}: {}: {fault}",
                report.verdict.name()
            );
            for message in report.messages.iter().take(6) {
                let _ = write!(text, "\n    {message}");
            }
            self.faults.push(text);
        }
    }

    /// The table of verdicts by file and damage, in Markdown.
    pub fn table(&self) -> String {
        let mut text = String::from("| file | damage |");
        for verdict in Verdict::ALL {
            let _ = write!(text, " {} |", verdict.name());
        }
        text.push_str("\n|---|---|");
        text.push_str(&"--:|".repeat(Verdict::ALL.len()));
        let mut sums = BTreeMap::new();
        for ((kind, harm), cell) in &self.counts {
            let _ = write!(text, "\n| {} | {} |", kind.name(), harm.name());
            for verdict in Verdict::ALL {
                let count = cell.get(&verdict).copied().unwrap_or(0);
                *sums.entry(verdict).or_insert(0) += count;
                let _ = match count {
                    0 => write!(text, " |"),
                    _ => write!(text, " {count} |"),
                };
            }
        }
        text.push_str("\n| all | |");
        for verdict in Verdict::ALL {
            let _ = write!(text, " {} |", sums.get(&verdict).copied().unwrap_or(0));
        }
        text
    }
}

fn copy_tree(from: &Path, to: &Path) {
    let mut command = Command::new("cp");
    command.args(["-a", "--reflink=auto", "--sparse=always"]).arg(from).arg(to);
    let copied = command.status().is_ok_and(|status| status.success());
    assert!(copied, "{} could not be copied to {}", from.display(), to.display());
}
