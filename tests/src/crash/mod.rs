//! The crash loop: a mixed load, SIGKILL at a random moment, a restart, and a comparison with what
//! must be there.
//!
//! ```text
//!   worker 0 … 7 ── SQL ──▶ server ◀── SIGKILL ── the loop
//!        │                                          │
//!        └─▶ journal of what was acknowledged ──────┴─▶ verification
//! ```
//!
//! Every worker owns rows (and a table) that no other worker writes, and so knows exactly what they
//! must be. It writes each transaction's changes to its journal before it sends COMMIT, and the
//! answer after it. After a crash there is at most one transaction per worker without an answer:
//! that one may be wholly there or wholly absent, never in part; everything else is certain. What
//! was prepared by XA is certain, too. Accounts that all workers fight over are checked by the
//! transfers that were booked with them, some of which are noted in a table of another engine by
//! the same transaction. Meanwhile the sizes of the pool and of the redo log may change.
//!
//! | module | what it is |
//! |---|---|
//! | [`expected`] | the state that a worker expects, and the journal that survives the crash |
//! | [`moment`] | when the server is killed |
//! | [`content`] | what a row's columns must hold, given its key and version |
//! | [`schema`] | the tables |
//! | [`worker`] | the load |
//! | [`verify`] | the comparison |

pub mod content;
pub mod expected;
pub mod moment;
pub mod schema;
pub mod verify;
pub mod worker;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::server::{Engine, Options, Server, connect_to_socket};
use expected::Journal;
use moment::Moment;
use worker::{Tally, Worker};

/// The threads of the load.
pub const WORKERS: u32 = 8;

/// How a loop is run.
#[derive(Clone, Debug)]
pub struct LoopOptions {
    /// Crashes.
    pub rounds: u32,
    /// Seeds the load, the moments of the crashes, and the server's options; an even one has a
    /// binary log.
    pub seed: u64,
    pub engine: Engine,
    /// The longest load before a crash.
    pub load_ms_max: u64,
    /// When the server is killed.
    pub moment: Moment,
    /// More options for the server.
    pub args: Vec<String>,
    /// Print a line for each round.
    pub verbose: bool,
}

/// What a loop did.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Rounds that ended with SIGKILL.
    pub crashes: u32,
    /// Of these, the times that it died in the thread that the [`Moment`] names.
    pub in_thread: u32,
    /// The times that recovery itself was killed.
    pub recoveries_killed: u32,
    /// What the workers did.
    pub tally: Tally,
    /// Transactions without an answer at a crash, and how many of these were found committed.
    pub in_doubt: u32,
    /// See `in_doubt`.
    pub in_doubt_found: u32,
    /// Transactions that XA PREPARE had left at a crash.
    pub prepared_found: u32,
    /// What was wrong; the loop ends with the first round that finds anything.
    pub violations: Vec<String>,
}

/// Runs the loop.
///
/// # Panics
/// If the server does not start: after a crash that is the worst violation of all.
pub fn run(options: &LoopOptions) -> Summary {
    let mut rng = StdRng::seed_from_u64(options.seed);
    let server_options = Options::new("crash_loop").engine(options.engine);
    let mut server = Server::create(server_options);
    if has_binary_log(options.seed) && options.verbose {
        println!("with a binary log");
    }
    server.restart_with(&as_strs(&server_args(options, &mut rng)));
    schema::create(&mut server.connect()).expect("the tables can be created");
    let mut summary = Summary::default();
    for round in 1..=options.rounds {
        let round_start = Instant::now();
        let journals = load_and_crash(&mut server, options, round, &mut rng, &mut summary);
        let args = server_args(options, &mut rng);
        let recovery_start = Instant::now();
        server.restart_with(&as_strs(&args));
        let recovery = recovery_start.elapsed();
        let outcome = verify::verify(&server, journals);
        summary.in_doubt += outcome.in_doubt;
        summary.in_doubt_found += outcome.in_doubt_found;
        summary.prepared_found += outcome.prepared_found;
        summary.violations.extend(outcome.violations);
        if options.verbose {
            println!(
                "round {round}: {:.1} s, start {:.2} s, {} commits so far, {} rows, {}/{} in doubt found",
                round_start.elapsed().as_secs_f64(),
                recovery.as_secs_f64(),
                summary.tally.committed,
                outcome.rows,
                summary.in_doubt_found,
                summary.in_doubt,
            );
        }
        if !summary.violations.is_empty() {
            let mut found = format!("round {round}, server options {args:?}:");
            for violation in &summary.violations {
                let _ = write!(found, "\n  {violation}");
            }
            summary.violations = vec![found];
            // What there is on disk is the evidence.
            server.keep();
            break;
        }
    }
    summary
}

/// One load, ended by a crash (or, now and then, by an orderly stop), and recoveries that crash as
/// well.
fn load_and_crash(
    server: &mut Server,
    options: &LoopOptions,
    round: u32,
    rng: &mut StdRng,
    summary: &mut Summary,
) -> Vec<Journal> {
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..WORKERS)
        .map(|number| {
            let journal = Journal::open(&server.dir().join(format!("worker-{number}.journal")));
            let (socket, stop, seed) =
                (server.socket().to_path_buf(), Arc::clone(&stop), rng.random());
            let engine = options.engine;
            thread::spawn(move || Worker::new(number, engine, seed, journal).run(&socket, &stop))
        })
        .collect();
    let resizer = (options.engine == Engine::Tidepool && rng.random_bool(0.5)).then(|| {
        let (socket, stop, seed) = (server.socket().to_path_buf(), Arc::clone(&stop), rng.random());
        thread::spawn(move || resize(&socket, &stop, seed))
    });
    if has_binary_log(options.seed) && rng.random_bool(0.3) {
        // Under load, and so that it doesn't fill the disk in a long run.
        sleep(Duration::from_millis(rng.random_range(0..200)));
        if let Err(error) = server.connect().query_drop("RESET MASTER") {
            summary.violations.push(format!("RESET MASTER: {error}"));
        }
    }
    let load_ms = if rng.random_bool(0.2) { 300 } else { options.load_ms_max };
    let load = Duration::from_millis(rng.random_range(50..=load_ms));
    let orderly = round.is_multiple_of(16);
    if orderly {
        sleep(load);
    } else {
        summary.in_thread += u32::from(options.moment.kill(server, load, rng));
        summary.crashes += 1;
    }
    stop.store(true, Ordering::Relaxed);
    let mut journals = Vec::new();
    for thread in threads {
        let (tally, journal, errors) = thread.join().expect("a worker doesn't panic");
        summary.tally.add(&tally);
        summary.violations.extend(errors);
        journals.push(journal);
    }
    if let Some(resizer) = resizer {
        summary.violations.extend(resizer.join().expect("the resizer doesn't panic"));
    }
    if orderly {
        server.stop();
    }
    while !orderly && rng.random_bool(0.25) {
        server.spawn();
        sleep(Duration::from_millis(rng.random_range(0..500)));
        server.kill9();
        summary.recoveries_killed += 1;
    }
    journals
}

/// Changes the sizes of the pool and of the redo log, until asked to stop or until the server is
/// gone; returns a refusal.
fn resize(socket: &Path, stop: &AtomicBool, seed: u64) -> Option<String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut conn = connect_to_socket(socket, schema::DATABASE).ok()?;
    while !stop.load(Ordering::Relaxed) {
        let (variable, mib) = if rng.random_bool(0.5) {
            ("buffer_pool_size", [8u64, 16, 64, 128][rng.random_range(0..4)])
        } else {
            ("redo_log_capacity", [8u64, 16, 64][rng.random_range(0..3)])
        };
        match conn.query_drop(format!("SET GLOBAL tidepool_{variable} = {}", mib << 20)) {
            Ok(()) => sleep(Duration::from_millis(rng.random_range(0..100))),
            // The server stops, in order.
            Err(mysql::Error::MySqlError(error)) if [1927, 1053].contains(&error.code) => break,
            Err(mysql::Error::MySqlError(error)) => return Some(format!("{variable}: {error}")),
            Err(_) => break,
        }
    }
    None
}

/// The options vary from start to start: small pools and logs reach code that large ones never do.
fn server_args(options: &LoopOptions, rng: &mut StdRng) -> Vec<String> {
    let pool_mib = [8u64, 16, 64, 128][rng.random_range(0..4)];
    let log_mib = [8u64, 16, 64][rng.random_range(0..3)];
    let mut args = vec![options.engine.pool_size_option(pool_mib << 20)];
    args.push(match options.engine {
        Engine::InnoDb => format!("--innodb-log-file-size={log_mib}M"),
        Engine::Tidepool => format!("--tidepool-redo-log-capacity={log_mib}M"),
    });
    if has_binary_log(options.seed) {
        // The least there is, so that it is rotated all the time, or more than one load brings.
        let size = ["4K", "64K", "1G"][rng.random_range(0..3)];
        args.extend(["--log-bin=binlog".into(), "--sync-binlog=1".into()]);
        args.push(format!("--max-binlog-size={size}"));
    }
    args.extend(options.args.iter().cloned());
    args
}

/// Whether all the loop's servers have a binary log. Not each by itself: what was prepared behind
/// one is not to be recovered without it.
fn has_binary_log(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

fn as_strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}
