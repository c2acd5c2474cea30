//! Commands on a data directory that no server has open, or on a backup: they stand on the engine,
//! not on SQL.
//!
//! | file | what |
//! |---|---|
//! | `directory` | which directory is meant, its lock, and the scratch that recovery writes to |
//! | `key_file` | the keys of encrypted pages, from a file |
//! | [`check`] | the command that looks for damage |
//! | [`combine`] | the command that makes a complete backup of one and its incremental ones |
//! | `agreement` | whether a table's indexes agree with its rows |
//! | [`salvage`] | the command that saves what can be read |
//! | [`rows`] | the plugin's rows and keys, without a server |
//! | `progress` | how far a command is, on a terminal |
//!
//! Nothing of the directory is changed: to look at it, the engine recovers it on an overlay
//! (`tidepool::inspect`).

mod agreement;
pub mod check;
pub mod combine;
mod directory;
mod key_file;
mod progress;
pub mod rows;
pub mod salvage;

pub use directory::Place;
