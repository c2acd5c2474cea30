//! What can be wrong with a data directory or a disk, each with the exact message a user sees, and
//! what stays usable.

#[path = "../support/copy.rs"]
mod copy;
mod directory;
mod disk;
mod fixture;
#[path = "../support/packed.rs"]
mod packed;
mod read_only;
mod redo_log;
#[path = "../scan/mod.rs"]
mod scan;
mod table_file;
mod unknown_file;
mod version;
