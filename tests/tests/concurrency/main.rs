//! Sessions side by side: locks, deadlocks, isolation, consistent reads.

mod consistent_reads;
mod deadlocks;
mod isolation_histories;
mod row_locks;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod shared_lines;
mod stress;
mod tpcc;
