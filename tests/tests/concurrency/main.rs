//! Sessions side by side: locks, deadlocks, isolation, consistent reads.

mod consistent_reads;
mod deadlocks;
mod isolation_histories;
mod row_locks;
mod tpcc;
