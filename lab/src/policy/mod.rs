//! Replay of page traces over replacement policies.
//!
//! A [`trace::Trace`] is a sequence of page requests as a buffer pool sees them. A [`Policy`] gets
//! each request and says whether the page was resident. [`replay`] counts misses; [`table`] does it
//! for every policy and size, and `tidepool lab policy` ([`command`]) prints that.
//!
//! `tide` and `midpoint` are what the pool runs: its own code, over frames that hold nothing
//! ([`pool`]). The others are single-threaded models, written to be read and compared.

pub mod arc;
pub mod belady;
pub mod clock;
pub mod command;
pub mod generate;
pub mod lru;
mod order;
pub mod pool;
pub mod s3_fifo;
pub mod table;
pub mod tiny_lfu;
pub mod trace;
pub mod two_queue;
pub mod watt;

use trace::{Request, Trace};

/// A replacement policy over a fixed number of pages.
pub trait Policy {
    /// Takes one request; `true` if the page was resident (a hit). Afterwards it is resident,
    /// unless the policy chose not to admit it.
    fn request(&mut self, request: &Request) -> bool;

    /// Number of resident pages, never more than the capacity.
    fn resident(&self) -> usize;
}

/// What a replay counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    pub requests: u64,
    /// Requests of the trace's foreground (see [`Request::scan`]).
    pub foreground: u64,
    /// Misses in all: pages read. A page that is made anew is not read.
    pub misses: u64,
    pub foreground_misses: u64,
}

impl Outcome {
    /// Misses over requests.
    pub fn miss_ratio(&self) -> f64 {
        self.misses as f64 / self.requests.max(1) as f64
    }
}

/// Replays `trace` over `policy`. The first `warm_up` requests fill the pool and are not counted.
pub fn replay(policy: &mut dyn Policy, trace: &Trace, warm_up: usize) -> Outcome {
    let mut outcome = Outcome::default();
    for (position, request) in trace.requests.iter().enumerate() {
        let hit = policy.request(request);
        if position < warm_up {
            continue;
        }
        outcome.requests += 1;
        let read = !hit && !request.created;
        outcome.misses += u64::from(read);
        if !request.scan {
            outcome.foreground += 1;
            outcome.foreground_misses += u64::from(read);
        }
    }
    outcome
}
