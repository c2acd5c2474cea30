//! The governor: from measured memory signals to the size a buffer pool should have, and the reason
//! why.
//!
//! It knows no pool. The engine asks it for its own pool, an outside tool may ask it for the pool
//! of a server that somebody already runs; both give it [`PoolState`], do what the [`Decision`]
//! says, and tell it what [was done](Governor::took).
//!
//! * [`signals`] reads what the kernel says: the limits and usage of every cgroup above the process
//!   (versions 1 and 2), the machine's available memory, pressure stall information, swapping, and
//!   the process's own swapped-out memory. Every path is below a root that a test can point at a
//!   temporary directory.
//! * [`decide`] turns one reading into a target. It is pure: no clock, no file, no thread, so a
//!   test can put it on a simulated machine and run an hour in a millisecond.
//! * [`surplus`] gives back what the pool holds beyond its need, by the pool's own prediction; as
//!   pure.
//! * [`journal`] keeps the last decisions: why the pool has its size.
//! * [`trigger`] sleeps between readings, and is woken early where the kernel lets us ask for that.
//!
//! # What it promises
//! A pool that follows the decisions never makes the process use memory that the machine or a
//! cgroup does not have, as long as whatever else runs there leaves the pool something to give
//! back. It shrinks at once and grows only when room has lasted ([`decide::GROW_AFTER`]), which is
//! why it cannot oscillate faster than that.

pub mod cgroup;
pub mod decide;
pub mod journal;
pub mod kernel;
pub mod signals;
pub mod surplus;
pub mod trigger;

pub use decide::{Decision, Governor, PoolState, Signal, Timing};
pub use journal::Journal;
pub use signals::{Reader, Signals};
pub use surplus::{Policy, Surplus};
