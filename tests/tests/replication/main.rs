//! Servers that replicate, and shards.

mod cluster;
mod replication;
mod replication_guide;
mod spider;
