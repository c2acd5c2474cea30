//! What is there after a kill, a power cut, a full disk or damage.

mod archived_directory;
mod bad_input;
mod binary_log;
mod coordinator;
mod crash_loop;
mod crash_points;
mod damage;
mod engine_directory;
mod failed_log;
mod force_recovery;
mod forgotten_tables;
mod log_storage;
#[path = "../../../engine/tests/support/packed.rs"]
mod packed;
mod power_cut;
mod read_only_server;
