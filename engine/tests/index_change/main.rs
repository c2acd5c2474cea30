//! Indexes that are added and dropped in place, and tables that are rebuilt: what is in them, who
//! may read them, and what a crash leaves.

mod contents;
mod disk;
mod fixture;
mod others;
mod rebuild;
mod refusal;
#[path = "../scan/mod.rs"]
mod scan;
mod writers;
