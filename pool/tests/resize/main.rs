//! Resizing: what the pool holds afterwards, what it says of itself, and that no page is lost.
//!
//! `outcome`: what leaves and what stays. `stuck`: latched pages and broken disks. `any_order`: all
//! operations in any order, against a model. `queries`: threads that must not notice.

mod any_order;
mod fixture;
mod outcome;
#[path = "../packed/mod.rs"]
mod packed;
mod queries;
mod stuck;
