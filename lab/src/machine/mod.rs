//! What experiments do to the machine: memory cgroups, a swap file, a slow disk, a neighbour; and
//! what they read from it.
//!
//! Everything made here is written to a [`registry`] first and removed by a guard. When the program
//! ends in any way that runs no guard (Ctrl-C, SIGKILL, a panic that aborts), a janitor process
//! removes it; should that be killed as well, the next start does.

pub mod ballast;
pub mod cgroup;
pub mod counters;
pub mod disk;
pub mod janitor;
pub mod neighbour;
pub mod registry;
pub mod swap;
