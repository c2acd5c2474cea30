//! Every crash point of a statement, one after the other.
//!
//! ```text
//! the state before ─▶ the statement, with its calls noted ─▶ the state after
//!        ▲                                                        │ set up again
//!        │      ┌─────────────────────────────────────────────────┘
//!        └── for each call that changes a file:
//!               the statement, killed as it enters that call ─▶ restart ─▶ before, or after?
//! ``` A crash must leave the state before or the state after: definitions, rows, files, prepared
//! transactions; `CHECK TABLE` must be content, and the statement must work again. What the server
//! itself gets wrong, on InnoDB as well, is listed in [`known`], by statement and symptom.
//!
//! All that comes before the statement is durable when it begins, whatever
//! `flush_log_at_trx_commit` says.
//!
//! | module | what it is |
//! |---|---|
//! | [`cases`] | the statements |
//! | [`calls`] | the calls of the server's thread, and the kill at one of them |
//! | [`state`] | what a server has |
//! | [`known`] | the server's own faults |
//! | [`run`] | one statement and all of its crash points |

pub mod calls;
pub mod cases;
pub mod known;
pub mod run;
pub mod state;

pub use cases::{CASES, Case, Promise};
pub use run::{Choice, Report, run_case};

use crate::environment::Environment;
use crate::power_cut::{FileSystem, Machine};
use crate::server::{Engine, Options, Server};

/// How the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// By SIGKILL: the next start sees all that was written.
    Kill,
    /// By SIGKILL, and what was not synced is lost.
    PowerCut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryLog {
    /// None.
    Off,
    /// Synced with each commit.
    Synced,
    /// Synced when the kernel likes to, which is the server's default.
    Unsynced,
}

/// How the server runs, and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The engine under test.
    pub engine: Engine,
    /// `flush_log_at_trx_commit` of that engine. The other engine has 1.
    pub flush: u8,
    /// See [`BinaryLog`].
    pub binary_log: BinaryLog,
    /// See [`Crash`].
    pub crash: Crash,
}

impl Setting {
    /// What the server is started with.
    pub fn options(self, name: &str) -> Options {
        let mut options = Options::new(name).engine(self.engine);
        options.args = self.server_args();
        options
    }

    fn server_args(self) -> Vec<String> {
        let (tidepool, innodb) = match self.engine {
            Engine::Tidepool => (self.flush, 1),
            Engine::InnoDb => (1, self.flush),
        };
        let mut args = vec![
            format!("--innodb-flush-log-at-trx-commit={innodb}"),
            format!("--tidepool-flush-log-at-trx-commit={tidepool}"),
            "--tidepool-buffer-pool-size=16M".into(),
        ];
        if self.engine == Engine::InnoDb {
            // Some cases want both engines.
            let plugin_dir = Environment::get().plugin_dir();
            args.insert(0, "--plugin-load-add=ha_tidepool.so".into());
            args.insert(0, format!("--plugin-dir={}", plugin_dir.display()));
        }
        if self.binary_log != BinaryLog::Off {
            let sync = u8::from(self.binary_log == BinaryLog::Synced);
            args.extend(["--log-bin=binlog".into(), "--server-id=1".into()]);
            args.push(format!("--sync-binlog={sync}"));
        }
        args
    }

    /// A statement of a case, for this engine.
    pub fn statement(self, text: &str) -> String {
        let other = match self.engine {
            Engine::Tidepool => Engine::InnoDb,
            Engine::InnoDb => Engine::Tidepool,
        };
        text.replace("{E}", self.engine.name()).replace("{O}", other.name())
    }

    /// Whether a commit that was acknowledged must be there after the crash.
    fn keeps_commits(self) -> bool {
        match (self.crash, self.binary_log, self.flush) {
            // What the binary log has is committed.
            (Crash::Kill, BinaryLog::Synced | BinaryLog::Unsynced, _) => true,
            (Crash::PowerCut, BinaryLog::Synced, _) => true,
            (Crash::Kill, BinaryLog::Off, flush) => flush != 0,
            (Crash::PowerCut, BinaryLog::Off | BinaryLog::Unsynced, flush) => flush == 1,
        }
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let binary_log = match self.binary_log {
            BinaryLog::Off => "off",
            BinaryLog::Synced => "on",
            BinaryLog::Unsynced => "unsynced",
        };
        let crash = match self.crash {
            Crash::Kill => "kill",
            Crash::PowerCut => "power cut",
        };
        write!(f, "{} {crash}, flush {}, binlog {binary_log}", self.engine.name(), self.flush)
    }
}

/// The server that dies again and again.
#[derive(Debug)]
pub enum Victim {
    /// Its files are the machine's.
    Process(Server),
    /// Its files are on a device that can lose its power.
    Machine(Machine),
}

impl Victim {
    /// Starts a server. `None` where this user can't have a device that loses its power.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn start(setting: Setting, name: &str) -> Option<Victim> {
        let options = setting.options(name);
        match setting.crash {
            Crash::Kill => Some(Victim::Process(Server::start(options))),
            Crash::PowerCut => Machine::start(options, FileSystem::Ext4).map(Victim::Machine),
        }
    }

    fn server(&mut self) -> &mut Server {
        match self {
            Victim::Process(server) => server,
            Victim::Machine(machine) => &mut machine.server,
        }
    }

    /// Makes all files durable.
    fn settle(&self) {
        if let Victim::Machine(machine) = self {
            machine.sync_disk();
        }
    }

    /// Ends the server, if it runs, as the setting says.
    fn crash(&mut self) {
        match self {
            Victim::Process(server) => server.kill9(),
            Victim::Machine(machine) => machine.cut_power(),
        }
    }
}
