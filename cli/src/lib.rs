//! `tidepool`: what the buffer pool of a running server needs, from outside: as advice, as a
//! governor, as a live page.
//!
//! The server may be MariaDB, MySQL or Percona Server with InnoDB, or MariaDB with Tidepool. It is
//! reached only as a client reaches it, and looked at as its machine's other processes can look at
//! it. Only [`offline`] uses the engine.
//!
//! | module | what it holds |
//! |---|---|
//! | [`connect`] | where the server is and who asks: options, defaults files, the password |
//! | [`server`] | one connection, and what kind of server is behind it |
//! | [`facts`] | everything that is looked at, as plain figures |
//! | [`rules`] | pure rules from the figures to findings |
//! | [`curve`] | the miss-ratio curve as data |
//! | [`advise`] | the command that prints the findings |
//! | [`govern`] | the command that keeps the InnoDB pool of a running server at the right size |
//! | [`watch`] | the command with the live page |
//! | [`convert`] | the command that takes tables from InnoDB to Tidepool and back |
//! | [`offline`] | commands on a data directory that no server has open |
//! | [`command_files`] | completions of shells, and man pages |
//! | [`exit`] | errors, and the exit code of each |
//! | [`bytes`] | sizes as people write them |
//! | [`clock`] | times of day as text |
//! | [`terminal`] | text that fits a terminal |
//!
//! The commands use the modules above and below; `watch` resizes with what `govern` resizes with.

pub mod advise;
pub mod bytes;
pub mod clock;
pub mod command_files;
pub mod connect;
pub mod convert;
pub mod curve;
pub mod exit;
pub mod facts;
pub mod govern;
pub mod offline;
pub mod rules;
pub mod server;
pub mod sql_text;
pub mod terminal;
pub mod watch;
