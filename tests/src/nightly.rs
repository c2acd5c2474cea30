//! A night of everything that takes seeds, piece by piece, in turns, until the time is over.
//!
//! Each piece is a separate program that takes a seed and ends within its limit. Seeds come from
//! the clock, so no two nights are alike. A failure is one line, with the command that runs the
//! piece again and the file with all of its output.
//!
//! | piece | what | seed decides |
//! |---|---|---|
//! | `simulation` | the engine on a simulated disk, whole and in parts | all: a seed fails again |
//! | `kills` | the crash loop | flush level, page size, size of the redo log, load, moments |
//! | `cluster` | three replicating servers, killed and promoted | events and load |
//! | `isolation` | histories of many sessions, with kills | load and moments |
//! | `stress` | writers beside ALTERs, KILLs, SET GLOBAL and crashes | load, faults, the table |
//! | `differential` | the same SQL on two engines, every other time with restarts | the SQL |
//! | `damage` | files damaged | the damages |
//! | `fuzz` | every fuzz target for a minute | – |
//! | `power-cuts` | statements that change definitions, and power cuts | file system, moments |
//! | `crash-points` | five statements, killed at each call that changes a file | statements, setting |

use std::fmt;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::crash_points::CASES;
use crate::power_cut::FileSystem;

/// How a night goes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pieces are begun until this time is over.
    pub duration: Duration,
    /// The seed of the first piece; the others follow from it.
    pub seed: u64,
    /// Only these pieces; empty: all.
    pub only: Vec<String>,
    /// The root of the sources.
    pub root: PathBuf,
}

/// One run of a piece.
struct Bout {
    /// The program and its arguments, as a person would type them at the root of the sources.
    command: Vec<String>,
    /// What it gets in its environment.
    environment: Vec<(String, String)>,
    /// It has hung when it takes longer.
    limit: Duration,
}

impl fmt::Display for Bout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={value} ")?;
        }
        f.write_str(&self.command.join(" "))
    }
}

impl Bout {
    fn new(minutes: u64, command: &str) -> Bout {
        Bout {
            command: command.split_whitespace().map(str::to_owned).collect(),
            environment: Vec::new(),
            limit: Duration::from_secs(60 * minutes),
        }
    }

    fn with(mut self, name: &str, value: impl ToString) -> Bout {
        self.environment.push((name.into(), value.to_string()));
        self
    }
}

/// What takes turns with others in a night.
#[derive(Debug)]
pub struct Piece {
    /// What `--only` calls it.
    pub name: &'static str,
    /// What it does, in a few words.
    pub what: &'static str,
    /// One run of it from a seed.
    bout: fn(u64) -> Bout,
}

const fn piece(name: &'static str, what: &'static str, bout: fn(u64) -> Bout) -> Piece {
    Piece { name, what, bout }
}

/// All pieces, in the order in which they take turns.
pub const PIECES: [Piece; 10] = [
    piece("simulation", "the engine on a simulated disk", simulation),
    piece("kills", "the crash loop at random settings", kills),
    piece("cluster", "three replicating servers, killed and promoted", cluster),
    piece("isolation", "histories of many sessions", isolation),
    piece("stress", "writers beside ALTERs, KILLs and crashes", stress),
    piece("differential", "the same SQL on two engines", differential),
    piece("damage", "damaged files", damage),
    piece("fuzz", "every fuzz target for a minute", fuzz),
    piece("power-cuts", "power cuts on ext4, XFS and btrfs", power_cuts),
    piece("crash-points", "kills at each file-system call of a statement", crash_points),
];

/// Seeds that a bout runs: fewer than those from which a test demands that each of its rare events
/// comes up.
const SEEDS_A_BOUT: u64 = 15;

/// Statements that a bout of crash points kills.
const CASES_A_BOUT: usize = 5;

/// The tests of parts of the engine that take seeds.
const PARTS: &str = "cargo test -p tidepool-engine --lib -- simulation redo::tests \
                     btree::tests::crash env::tests overflow::tests settled";

/// Those of the layers below.
const PACKED_FILES: &str = "cargo test -p tidepool-store --lib packed::tests::crash";

/// The whole engine in two bouts of four, its parts in the third, the files of pages in the last.
fn simulation(seed: u64) -> Bout {
    let bout = match seed % 4 {
        0 => Bout::new(30, PARTS),
        1 => Bout::new(30, PACKED_FILES),
        _ => Bout::new(30, "cargo test -p tidepool-engine --test simulation seeds"),
    };
    bout.with("TIDEPOOL_FIRST_SEED", seed).with("TIDEPOOL_SEEDS", SEEDS_A_BOUT)
}

/// A flush level at which a kill of the process loses nothing, and everything else at random.
fn kills(seed: u64) -> Bout {
    let mut rng = StdRng::seed_from_u64(seed);
    let flush = rng.random_range(1..=2);
    let page_size = 4096 << rng.random_range(0..5);
    let mut command = format!(
        "scripts/crash-loop --rounds 12 --seed {seed} -- --tidepool-flush-log-at-trx-commit={flush} \
         --tidepool-page-size={page_size}"
    );
    if rng.random_bool(0.3) {
        // The last of two options counts.
        command.push_str(" --tidepool-redo-log-capacity=8M");
    }
    Bout::new(20, &command)
}

fn cluster(seed: u64) -> Bout {
    Bout::new(20, &format!("scripts/soak-cluster --minutes 3 --seed {seed}"))
}

fn isolation(seed: u64) -> Bout {
    let kill = if seed.is_multiple_of(2) { " --kill 3" } else { " --alters" };
    let command = format!("scripts/isolation --seed {seed} --seconds 90{kill}");
    Bout::new(15, &command)
}

fn stress(seed: u64) -> Bout {
    Bout::new(15, &format!("scripts/stress --seed {seed} --minutes 3"))
}

fn differential(seed: u64) -> Bout {
    let restarts = if seed.is_multiple_of(2) { " --restarts" } else { "" };
    let program = "cargo run --quiet -p tidepool-tests --bin differential --";
    let command = format!("{program} --seed {seed} --minutes 2 --failures 1{restarts}");
    Bout::new(20, &command)
}

fn damage(seed: u64) -> Bout {
    Bout::new(30, &format!("scripts/damage --trials 20 --seed {seed}"))
}

fn fuzz(seed: u64) -> Bout {
    // Shorter and more often: the corpus goes on from bout to bout.
    let seconds = [20, 60][usize::from(seed.is_multiple_of(4))];
    Bout::new(40, &format!("scripts/fuzz --seconds {seconds}"))
}

fn power_cuts(seed: u64) -> Bout {
    let mut rng = StdRng::seed_from_u64(seed);
    let system = FileSystem::ALL[rng.random_range(0..FileSystem::ALL.len())].name();
    let command = format!("scripts/power-cuts --seed {seed} --during 1 --file-system {system}");
    Bout::new(60, &command)
}

fn crash_points(seed: u64) -> Bout {
    let mut rng = StdRng::seed_from_u64(seed);
    let crash = ["kill", "power-cut"][rng.random_range(0..2)];
    let binary_log = ["off", "on"][rng.random_range(0..2)];
    let flush = rng.random_range(0..=2);
    let mut command =
        format!("scripts/crash-points --crash {crash} --flush {flush} --binlog {binary_log}");
    for _ in 0..CASES_A_BOUT {
        let case = &CASES[rng.random_range(0..CASES.len())];
        command.push_str(" --case ");
        command.push_str(case.name);
    }
    Bout::new(60, &command)
}

/// What a night came to.
#[derive(Debug, Default)]
pub struct Summary {
    /// For each piece: bouts, failures, seconds.
    pub pieces: Vec<(&'static str, u64, u64, f64)>,
}

impl Summary {
    /// Failures of all pieces.
    pub fn failures(&self) -> u64 {
        self.pieces.iter().map(|(_, _, failures, _)| failures).sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| piece | bouts | failures | seconds |\n|---|--:|--:|--:|")?;
        for (name, bouts, failures, seconds) in &self.pieces {
            writeln!(f, "| {name} | {bouts} | {failures} | {seconds:.0} |")?;
        }
        let bouts: u64 = self.pieces.iter().map(|(_, bouts, ..)| bouts).sum();
        write!(f, "{} passed, {} failed", bouts - self.failures(), self.failures())
    }
}

/// Runs the night.
///
/// # Panics
/// If the directory of logs can't be made, or a program can't be started.
pub fn run(settings: &Settings) -> Summary {
    let since = Instant::now();
    let logs = settings.root.join("var/log/nightly");
    fs::create_dir_all(&logs).expect("a directory of logs can be made");
    let chosen = |name: &str| settings.only.is_empty() || settings.only.iter().any(|o| o == name);
    let pieces: Vec<&Piece> = PIECES.iter().filter(|piece| chosen(piece.name)).collect();
    let mut summary = Summary::default();
    let mut seeds = StdRng::seed_from_u64(settings.seed);
    for piece in pieces.iter().cycle() {
        if since.elapsed() >= settings.duration {
            break;
        }
        let (name, seed) = (piece.name, u64::from(seeds.random::<u32>()));
        let bout = (piece.bout)(seed);
        let begun = Instant::now();
        let log = logs.join(format!("{name}-{seed}.log"));
        let failed = failure(&settings.root, &bout, &log);
        let seconds = begun.elapsed().as_secs_f64();
        if let Some(why) = &failed {
            println!("FAILED: {name}: {why}: {bout}    (its output: {})", log.display());
        } else {
            println!("ok: {name}: seed {seed}, {seconds:.0} s");
            let _ = fs::remove_file(&log);
        }
        summary.count(name, failed.is_some(), seconds);
    }
    summary
}

impl Summary {
    fn count(&mut self, name: &'static str, failed: bool, seconds: f64) {
        let at = self.pieces.iter().position(|(other, ..)| *other == name);
        let at = at.unwrap_or_else(|| {
            self.pieces.push((name, 0, 0, 0.0));
            self.pieces.len() - 1
        });
        let (_, bouts, failures, sum) = &mut self.pieces[at];
        *bouts += 1;
        *failures += u64::from(failed);
        *sum += seconds;
    }
}

/// Runs a bout to its end; says how it failed.
fn failure(root: &Path, bout: &Bout, log: &Path) -> Option<String> {
    let out = File::create(log).expect("a log can be made");
    let mut command = Command::new(&bout.command[0]);
    command
        .args(&bout.command[1..])
        .envs(bout.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(out.try_clone().expect("a file can be cloned"))
        .stderr(out)
        // Servers and compilers that it starts end with it.
        .process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", bout.command[0]));
    let deadline = Instant::now() + bout.limit;
    loop {
        match child.try_wait().expect("a child can be waited for") {
            Some(status) if status.success() => return None,
            Some(status) => return Some(format!("{status}{}", seed_in(log))),
            None if Instant::now() > deadline => {
                end_group(&mut child);
                return Some(format!("no end within {} s", bout.limit.as_secs()));
            }
            None => sleep(Duration::from_millis(200)),
        }
    }
}

/// Kills a child and all that it has started.
fn end_group(child: &mut Child) {
    let group = rustix::process::Pid::from_child(child);
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    let _ = child.wait();
}

/// The first seed that the output names behind a failure, for a line about it.
fn seed_in(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let after_failure = text.split_once("panicked at").map_or("", |(_, rest)| rest);
    let number = after_failure.split_once("seed ").map(|(_, rest)| rest);
    let number: String = number
        .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect())
        .unwrap_or_default();
    if number.is_empty() { String::new() } else { format!(", seed {number}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bout_that_fails_or_hangs_is_told_by_a_line_that_replays_it() {
        let dir = std::env::temp_dir().join(format!("tidepool-nightly-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory can be made");
        let log = dir.join("log");
        let good = Bout::new(1, "true");
        assert_eq!(failure(&dir, &good, &log), None);
        let bad = Bout::new(1, "false").with("TIDEPOOL_SEED", 7);
        assert_eq!(failure(&dir, &bad, &log).as_deref(), Some("exit status: 1"));
        assert_eq!(bad.to_string(), "TIDEPOOL_SEED=7 false");
        let mut hung = Bout::new(1, "sleep 1000");
        hung.limit = Duration::from_millis(300);
        assert_eq!(failure(&dir, &hung, &log).as_deref(), Some("no end within 0 s"));
        fs::write(&log, "thread panicked at x:\nseed 4711: rows are lost").expect("is written");
        assert_eq!(seed_in(&log), ", seed 4711");
        fs::remove_dir_all(&dir).expect("it can be removed");
    }

    #[test]
    fn each_piece_runs_a_program_that_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for piece in &PIECES {
            let bout = (piece.bout)(4711);
            let program = &bout.command[0];
            assert!(program == "cargo" || root.join(program).is_file(), "{}: {bout}", piece.name);
        }
    }
}
