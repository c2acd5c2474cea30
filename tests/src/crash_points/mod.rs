//! Every crash point of a statement, one after the other.
//!
//! ```text
//! the state before ─▶ the statement, with its calls noted ─▶ the state after
//!        ▲                                                        │ set up again
//!        │      ┌─────────────────────────────────────────────────┘
//!        └── for each call that changes a file:
//!               the statement, killed as it enters that call ─▶ restart ─▶ before, or after?
//! ```
//! A crash must leave the state before or the state after: definitions, rows, files, prepared transactions; `CHECK TABLE`
//! must be content, and the statement must work again. What the server itself gets wrong, on InnoDB as well, is listed
//! in [`known`], by statement and symptom.
//!
//! All that comes before the statement is durable when it begins, whatever `flush_log_at_trx_commit` says.
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

use crate::server::Engine;

/// How the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The engine under test.
    pub engine: Engine,
    /// `flush_log_at_trx_commit` of that engine. The other engine has 1.
    pub flush: u8,
    /// Whether there is a binary log, synced with each commit.
    pub binary_log: bool,
}

impl Setting {
    /// The server's options.
    pub fn server_args(self) -> Vec<String> {
        let (tidepool, innodb) = match self.engine {
            Engine::Tidepool => (self.flush, 1),
            Engine::InnoDb => (1, self.flush),
        };
        let mut args = vec![format!("--innodb-flush-log-at-trx-commit={innodb}")];
        if self.engine == Engine::Tidepool {
            args.push(format!("--tidepool-flush-log-at-trx-commit={tidepool}"));
            args.push("--tidepool-buffer-pool-size=16M".into());
        }
        if self.binary_log {
            args.extend(["--log-bin=binlog", "--server-id=1", "--sync-binlog=1"].map(String::from));
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
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let binary_log = if self.binary_log { "on" } else { "off" };
        write!(f, "{} flush {} binlog {binary_log}", self.engine.name(), self.flush)
    }
}
