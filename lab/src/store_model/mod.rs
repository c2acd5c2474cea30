//! What a layout of the page store would cost, on page writes that were recorded from real loads.
//!
//! `lab run writes` records traces ([`trace`], [`strace`]); [`command`] replays them over layouts:
//! [`slots`] of blocks (A), and packed [`segments`] of one table (B) or of all (C).

mod chart;
pub mod command;
pub mod layout;
pub mod segments;
pub mod slots;
pub mod strace;
pub mod trace;
