//! Experiments on buffer pools: what the articles that started Tidepool did by hand, as code that
//! anyone can run again.
//!
//! * [`policy`] replays page traces over replacement policies, with Belady's optimum as the
//!   yardstick.
//! * [`experiment`] starts servers, puts them under load and their machine under pressure, and
//!   records every second. It reaches a server only as any client does, so everything runs on
//!   InnoDB as well.
//!
//! From the bottom up: [`machine`] is what is done to the machine, [`server`] starts a server,
//! [`load`] keeps it busy, [`sample`] reads counters once a second, [`lab`] brings these together
//! as one run, whose result is a [`record`]; [`report`] judges and draws records. [`command`] is
//! all this from the command line, as `tidepool lab`. A program that uses this crate calls
//! [`subprocess::main`] first.

pub mod client;
pub mod command;
pub mod engine;
pub mod environment;
pub mod error;
pub mod experiment;
pub mod govern;
pub mod lab;
pub mod load;
pub mod machine;
pub mod policy;
pub mod postgres;
pub mod process;
pub mod progress;
pub mod record;
pub mod report;
pub mod sample;
pub mod server;
pub mod subprocess;
