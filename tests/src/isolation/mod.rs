//! The isolation checker: random transactions in many sessions at once, and the whole history
//! searched for what the levels forbid.
//!
//! ```text
//!   session 0 … n ── SQL ──▶ server ◀── SIGKILL, ALTER TABLE
//!        │                     │
//!        │ what was sent, when, and what came back
//!        ▼                     ▼
//!     history  ◀──── rows before and after
//!        │
//!        ▼
//!     checker ──▶ anomalies, by name, with the cycle and its statements
//! ```
//!
//! In the manner of Elle (Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from
//! Experimental Observations", VLDB 2020): rows hold lists of the ids of their writes, so that
//! every read shows which writes it has seen, in which order; from that follow the dependencies
//! between transactions, and a cycle of these is an anomaly. What is different here: transactions
//! have several moments ([`moments`]), so that levels may be mixed, and rows are deleted and put
//! back, and looked for by secondary indexes.
//!
//! What the levels promise, and is checked:
//!
//! | level | promise |
//! |---|---|
//! | all | no dirty write; nothing is read that was undone, or between two writes; own writes are seen; a locked row stays as it is; a locking read, UPDATE or DELETE meets each row that matches while it runs, or fails; what was acknowledged is seen by each statement that begins later, and after a crash |
//! | READ COMMITTED | each plain statement reads at one moment |
//! | REPEATABLE READ | all plain reads at one moment, and nothing newer is locked or overwritten: snapshot isolation |
//! | SERIALIZABLE | no cycle at all, rows that are not there included |
//!
//! A run goes in rounds, each with a separate seed and history. The seed decides
//! what each session does, but not when, so a round that failed fails again if that was likely.
//!
//! | module | what it is |
//! |---|---|
//! | [`history`] | transactions, and what they read and wrote |
//! | [`own`], [`reads`] | what a transaction has written itself; whether each list can be |
//! | [`order`] | the versions of each key |
//! | [`lasting`] | rows that a locking read has missed |
//! | [`moments`], [`cycles`] | the graph, and its cycles |
//! | [`check`], [`anomaly`] | the checker; names and reports |
//! | [`session`] and its `reading` and `writing` | random transactions |
//! | [`schema`] | the tables |
//! | [`round`] | one round against a server |

pub mod anomaly;
pub mod check;
pub mod cycles;
pub mod history;
pub mod lasting;
pub mod moments;
pub mod order;
pub mod own;
mod reading;
pub mod reads;
pub mod round;
pub mod schema;
pub mod session;
#[cfg(test)]
mod tests;
mod writing;

use std::time::{Duration, Instant};

use crate::server::{Engine, Options, Server};
use history::Level;
use round::Rounds;
use session::Tally;

/// How the checker runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The engine under test.
    pub engine: Engine,
    /// The seed of the first round; the next ones follow.
    pub seed: u64,
    /// Rounds are begun until this time is over.
    pub duration: Duration,
    /// The most rounds.
    pub rounds_max: u64,
    /// The load of a round.
    pub round: Duration,
    /// The level of all transactions; none: each round chooses one, or all of them.
    pub level: Option<Level>,
    /// Check as if all transactions ran at least at this level: for a test that must find
    /// something.
    pub claim: Option<Level>,
    /// Read-modify-write without a lock at READ COMMITTED too, where it loses updates.
    pub careless: bool,
    /// Rounds end with SIGKILL, one in this many; 0: none does.
    pub kill_every: u64,
    /// An index is added and dropped all the time, in some rounds.
    pub alters: bool,
    /// More options for the server.
    pub args: Vec<String>,
    /// A line for each round.
    pub verbose: bool,
}

impl Settings {
    /// A short run.
    pub fn new(engine: Engine, seed: u64) -> Settings {
        Settings {
            engine,
            seed,
            duration: Duration::from_secs(600),
            rounds_max: u64::MAX,
            round: Duration::from_secs(3),
            level: None,
            claim: None,
            careless: false,
            kill_every: 0,
            alters: false,
            args: Vec::new(),
            verbose: false,
        }
    }
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub rounds: u64,
    /// Of these, the ones that ended with SIGKILL.
    pub kills: u64,
    /// Indexes added or dropped.
    pub alters: u64,
    /// Statements killed.
    pub interrupts: u64,
    /// Statements on a table that does not fit the pool.
    pub bulk: u64,
    /// What the sessions did.
    pub tally: Tally,
    /// The names of what was found.
    pub names: Vec<anomaly::Name>,
    /// What was found, in full, with the seed of its round; the run ends with the first round that
    /// finds anything.
    pub failures: Vec<String>,
}

/// Runs rounds until something is found or the time is over.
///
/// # Panics
/// If the server does not start.
pub fn run(settings: &Settings) -> Summary {
    let mut options = Options::new("isolation").engine(settings.engine);
    options = options.arg(settings.engine.pool_size_option(8 << 20));
    options = match settings.engine {
        Engine::Tidepool => options.arg("--tidepool-lock-wait-timeout=2"),
        // What REPEATABLE READ is on the other engine.
        Engine::InnoDb => {
            options.arg("--innodb-lock-wait-timeout=2").arg("--innodb-snapshot-isolation=ON")
        }
    };
    options.args.extend(settings.args.iter().cloned());
    let mut server = Server::start(options);
    schema::create(&mut server.connect()).expect("the tables can be created");
    let start = Instant::now();
    let mut summary = Summary::default();
    let mut rounds = Rounds::new();
    while start.elapsed() < settings.duration
        && summary.rounds < settings.rounds_max
        && summary.failures.is_empty()
    {
        let seed = settings.seed + summary.rounds;
        rounds.run(&mut server, settings, seed, &mut summary);
        summary.rounds += 1;
    }
    if summary.failures.is_empty() {
        server.stop();
    } else if settings.claim.is_none() && !settings.careless {
        server.keep();
    }
    summary
}
