// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! The Rust side of the MariaDB plugin: a C ABI over the engine.
//!
//! The C++ shim (`mariadb/shim`) speaks the server's language: handlers, fields, sessions. This
//! crate is the thin layer between it and the crate `tidepool`; it knows keys and bytes only, as
//! the engine does. `mariadb/shim/bridge.h` declares what is exported here, and says who owns what.
//!
//! * [`boundary`]: result codes, the last error of a thread, and the catching of panics;
//! * `constants`: the constants of the header;
//! * [`log`]: the engine's log lines go to the server's error log;
//! * `observers`: what the server's performance_schema hears of the engine;
//! * [`data_dir`]: what the server's own data directory says against a start;
//! * [`database`]: opening, closing, options, status, and the statements that make and drop tables;
//! * [`attachment`]: the server's files of a table, as the catalog keeps them;
//! * `backup`: copies of the data directory, with the server's files of the tables;
//! * `frm`: whose table one of the server's definitions is of;
//! * [`index_change`]: indexes that are added and dropped in place;
//! * [`load`]: the copy that ALTER TABLE makes;
//! * `export`: one table moves between servers;
//! * [`explain`]: rows of the `information_schema` tables;
//! * [`table`]: open tables: statistics, auto-increment, `CHECK TABLE`;
//! * [`transaction`]: transactions and writes;
//! * [`reader`]: point reads and cursors;
//! * [`spatial`]: keys of SPATIAL indexes, and searches in them.
#![expect(
    unsafe_code,
    reason = "a C ABI takes and gives raw pointers; each use says why it is sound"
)]

pub mod attachment;
mod backup;
pub mod boundary;
mod constants;
pub mod data_dir;
pub mod database;
pub mod explain;
mod export;
mod frm;
pub mod index_change;
mod keyring;
pub mod load;
pub mod log;
mod observers;
pub mod reader;
pub mod spatial;
pub mod table;
pub mod transaction;
