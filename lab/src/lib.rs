//! Experiments on buffer pools: what the articles that started Tidepool did by hand, as code that anyone can run again.
//!
//! * [`policy`] replays page traces over replacement policies, with Belady's optimum as the yardstick.

pub mod policy;
