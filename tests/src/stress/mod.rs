//! Writers with models of their rows, beside ALTERs, KILLs, settings that change, and crashes.
//!
//! ```text
//!   writer 1 … n ── transactions ──▶ ┌────────┐ ◀── ALTER TABLE ── definer
//!        │  ▲                        │ server │ ◀── KILL ── ▲
//!        ▼  └── rows, compared ───── │        │ ◀── SET GLOBAL, SIGKILL
//!      model                         │        │ ──▶ snapshots, read by each index
//!                                    └────────┘ ──▶ checks, while nothing else runs
//! ```
//!
//! All writers share one table with an index of each kind, and each knows exactly what its rows
//! must be, whatever error its statements end with. A reader compares what the ways through the
//! indexes give in one snapshot. Every few seconds the writers pause, and each index is compared
//! with the rows. The seed decides what each thread does, not how their
//! statements meet: a difference is found again by the same load, not by the same steps.
//!
//! | module | what it is |
//! |---|---|
//! | [`model`] | a writer's rows |
//! | [`statements`] | a writer's statements, whose effect is certain |
//! | [`writer`] | transactions, and what must be there after each |
//! | [`reader`] | snapshots, read in several ways |
//! | [`session`] | a connection that others kill |
//! | [`definitions`] | the table, and the ALTERs |
//! | [`faults`] | KILL, settings, and the watch for a hang |
//! | [`checks`] | the indexes against the table |
//! | [`stage`] | what the threads share |

pub mod checks;
pub mod definitions;
pub mod faults;
pub mod model;
pub mod reader;
pub mod session;
pub mod stage;
pub mod statements;
pub mod writer;

use std::sync::atomic::Ordering;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::server::{Engine, Options, Server};
use crate::sql::StopOnDrop;
use definitions::Definer;
use reader::Reader;
use stage::{Count, Counts, Stage};
use writer::Writer;

/// Sessions that write.
const WRITERS: usize = 3;

/// How a run goes.
#[derive(Clone, Debug)]
pub struct Settings {
    pub engine: Engine,
    pub seed: u64,
    /// The run ends with the first check after this time.
    pub duration: Duration,
    /// The run also ends with the first check after as many statements.
    pub statements_max: u64,
    /// How long the writers work between two checks, at most.
    pub load: Duration,
    /// Whether the server is killed now and then.
    pub crashes: bool,
    /// More options for the server.
    pub args: Vec<String>,
    /// Print a line for each check.
    pub verbose: bool,
}

impl Settings {
    /// A minute with crashes.
    pub fn new(engine: Engine, seed: u64) -> Settings {
        Settings {
            engine,
            seed,
            duration: Duration::from_secs(60),
            statements_max: u64::MAX,
            load: Duration::from_secs(6),
            crashes: true,
            args: Vec::new(),
            verbose: false,
        }
    }
}

/// What a run did, and what was wrong.
#[derive(Clone, Debug)]
pub struct Summary {
    pub counts: Counts,
    pub differences: Vec<String>,
}

/// Runs the load.
///
/// # Panics
/// If the server does not start, or ends by itself.
pub fn run(settings: &Settings) -> Summary {
    let mut rng = StdRng::seed_from_u64(settings.seed);
    let mut options = Options::new("stress").engine(settings.engine);
    options.args = server_args(settings);
    let mut server = Server::start(options);
    definitions::create(&mut server.connect(), &mut rng).expect("the table can be created");
    // Each writer has a session of its number; those of 0 change the table.
    let stage = Stage::new(server.socket().to_path_buf(), WRITERS + 2);
    note_process(&server, &stage);
    thread::scope(|scope| {
        let _over = Over(&stage);
        let _end = StopOnDrop(&stage.ended);
        let stage = &stage;
        let (engine, first) = (settings.engine, rng.random::<u64>());
        let seed = move |number: usize| first.wrapping_add(number as u64);
        let mut threads: Vec<_> = (1..=WRITERS)
            .map(|number| scope.spawn(move || Writer::new(number, seed(number), stage).run()))
            .collect();
        threads.push(scope.spawn(move || Definer::new(0, seed(0), engine, stage).run()));
        let reader = WRITERS + 1;
        threads.push(scope.spawn(move || Reader::new(reader, seed(reader), engine, stage).run()));
        threads.push(scope.spawn(move || faults::kill_sessions(stage, seed(WRITERS + 2))));
        threads.push(scope.spawn(move || {
            faults::change_settings(stage, seed(WRITERS + 3), engine);
        }));
        scope.spawn(move || faults::watch(stage, engine));
        load_and_check(settings, &mut server, stage, &mut rng);
        stage.end();
        for thread in threads {
            thread.join().expect("a thread of the load doesn't panic");
        }
    });
    let differences = stage.differences();
    if differences.is_empty() {
        server.stop();
    } else {
        // What there is on disk is the evidence.
        server.keep();
    }
    Summary { counts: stage.counts(), differences }
}

/// Ends the watch when it is dropped, also by a panic.
struct Over<'a>(&'a Stage);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.process.store(0, Ordering::SeqCst);
    }
}

fn note_process(server: &Server, stage: &Stage) {
    stage.process.store(server.pid().expect("the server runs"), Ordering::SeqCst);
}

/// Load, now and then a crash, and a check, in turns.
fn load_and_check(settings: &Settings, server: &mut Server, stage: &Stage, rng: &mut StdRng) {
    let since = Instant::now();
    let least = settings.load / 4;
    while !stage.has_ended() {
        sleep(rng.random_range(least..=settings.load));
        if settings.crashes && rng.random_bool(0.3) {
            server.kill9();
            // The number of an earlier connection means nothing to the next server.
            stage.life.fetch_add(1, Ordering::SeqCst);
            stage.count(Count::Crashes);
            server.restart();
            note_process(server, stage);
        }
        let _alone = stage.alone();
        if stage.has_ended() {
            break;
        }
        if let Some(status) = server.exited() {
            stage.report(format!("the server ended: {status}\n{}", server.error_log()));
            break;
        }
        checks::check(server, stage);
        let counts = stage.counts();
        if settings.verbose {
            println!("{:.0} s: {counts}", since.elapsed().as_secs_f64());
        }
        if since.elapsed() > settings.duration
            || counts.of(Count::Statements) > settings.statements_max
        {
            break;
        }
    }
}

/// A small pool and a small log; a binary log if the seed is even.
fn server_args(settings: &Settings) -> Vec<String> {
    let mut args = vec!["--lock-wait-timeout=20".to_owned()];
    args.push(settings.engine.pool_size_option(8 << 20));
    args.extend(match settings.engine {
        Engine::Tidepool => {
            vec!["--tidepool-redo-log-capacity=8M".into(), "--tidepool-lock-wait-timeout=3".into()]
        }
        Engine::InnoDb => {
            vec!["--innodb-log-file-size=16M".into(), "--innodb-lock-wait-timeout=3".into()]
        }
    });
    if settings.seed.is_multiple_of(2) {
        args.extend(["--log-bin=binlog".into(), "--sync-binlog=1".into()]);
    }
    args.extend(settings.args.iter().cloned());
    args
}
