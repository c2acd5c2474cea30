//! What keeps a server busy, and the data for it.

pub mod dump;
pub mod sysbench;
pub mod tables;
pub mod tpcc;
pub mod tpch;
