//! Tests and loads that reach Tidepool as any client does: through the socket of a MariaDB server.
//!
//! | module | what it is |
//! |---|---|
//! | [`environment`] | where `scripts/deps` put the server, and where the plugin is |
//! | [`server`] | a private server that a test starts, kills, restarts and stops |
//! | [`keys`] | a server with a key management plugin |
//! | [`sql`] | what many tests ask of a connection |
//! | [`definitions`] | statements that change definitions, each with a kill or a power cut behind it |
//! | [`power_cut`] | a server on a device that can lose its power |
//! | [`cgroup`] | a memory cgroup with a limit, and a neighbour in it |
//! | [`guide`] | runs the commands of a page of the documentation |
//! | [`bank`] | sessions that move money, of which there is always as much |
//! | [`cluster`] | three replicating servers with writers, kills and promotions |
//! | [`command_line`] | what the command lines of the programs have in common |
//! | [`crash`] | the crash loop: SIGKILL under load, and what must be there afterwards |
//! | [`crash_points`] | one statement, killed at each of its calls that change files |
//! | [`isolation`] | many sessions at once, and their history checked for isolation anomalies |
//! | [`stress`] | writers with models of their rows, beside ALTERs, KILLs, settings and crashes |
//! | [`sysbench`] | runs sysbench and reads its report |
//! | [`tpcc`] | the TPC-C load and its consistency conditions (of the lab) |
//! | [`damage`] | files damaged, and what the server makes of it |
//! | [`nightly`] | a night of all of these, in turns |
//! | `locked_lines` | atomic read-modify-writes of the plugin in a statement, by cache lines |
//! | [`differential`] | the same random SQL on two engines, every answer compared |
//!
//! Nothing here knows the plugin's insides, so everything runs on InnoDB as well, by
//! `TIDEPOOL_TEST_ENGINE=InnoDB`: a test that fails there too is a wrong test.

pub mod bank;
pub mod cgroup;
pub mod cluster;
pub mod command_line;
pub mod crash;
pub mod crash_points;
pub mod damage;
pub mod definitions;
pub mod differential;
pub mod environment;
pub mod fulltext;
pub mod guide;
pub mod isolation;
pub mod keys;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod locked_lines;
pub mod nightly;
mod panics;
pub mod power_cut;
pub mod server;
pub mod spatial;
pub mod sql;
pub mod stress;
pub mod sysbench;
pub mod two_sessions;

pub use tidepool_lab::load::tpcc;
