//! What a resize step costs the server's queries, measured from outside.
//!
//! A thread with its own connection asks how many pages InnoDB's queries have read so far, and how
//! long a small read of an InnoDB table takes now: some forty times a second while steps are taken,
//! and four times otherwise, for what is normal before one. (Forty all the time are noticed by the
//! server's users.) Two figures come of that:
//!
//! * **work lost**: where the page reads fall below nine tenths of their median rate before the
//!   step, the missing part, summed up as time. A second in which half the reads happen has lost
//!   0.5 s.
//! * **longest ping**: beyond the median before the step.
//!
//! On a busy server the first says what the step did to its users; on an idle one there is nothing
//! to lose and the second is all there is.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, park_timeout, spawn};
use std::time::{Duration, Instant};

use crate::connect::Target;
use crate::exit::{Error, Result};
use crate::server::Server;

/// Between two rounds while steps are taken, and while none is.
const PERIOD: Duration = Duration::from_millis(25);
const IDLE_PERIOD: Duration = Duration::from_millis(250);
/// What came before a step and says what is normal.
const BEFORE: Duration = Duration::from_secs(2);
/// Stalls may come a moment after the step: dirty pages, refilled hashes.
pub const AFTER: Duration = Duration::from_millis(250);
const KEEP: Duration = Duration::from_secs(30);
/// Fewer page reads a second than this are no load that could be slowed down.
const BUSY_PER_S: f64 = 2000.0;
/// Less of a drop than this is noise.
const NOISE: f64 = 0.9;

/// One round of the probe.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// When it ended.
    pub at: Instant,
    /// Logical page reads of all queries so far.
    pub reads: u64,
    /// How long the small read took.
    pub ping: Duration,
}

/// What a step cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Work lost, as time.
    pub lost: Duration,
    /// The longest ping, beyond the normal one.
    pub ping: Duration,
}

impl Cost {
    /// The larger of the two.
    pub fn worst(&self) -> Duration {
        self.lost.max(self.ping)
    }
}

/// The cost of what happened between two moments.
pub fn cost<'a>(samples: impl IntoIterator<Item = &'a Sample>, from: Instant, to: Instant) -> Cost {
    let samples: Vec<&Sample> = samples.into_iter().collect();
    let rates = |begin: Instant, end: Instant| {
        let pairs = samples.windows(2).map(|pair| (pair[0], pair[1]));
        pairs.filter(move |(_, b)| b.at > begin && b.at <= end).map(|(a, b)| {
            let elapsed = b.at.saturating_duration_since(a.at).max(Duration::from_micros(1));
            (b.reads.saturating_sub(a.reads) as f64 / elapsed.as_secs_f64(), elapsed, b.ping)
        })
    };
    let start = from.checked_sub(BEFORE).unwrap_or(from);
    let mut before: Vec<f64> = rates(start, from).map(|(rate, ..)| rate).collect();
    let mut pings: Vec<Duration> = rates(start, from).map(|(_, _, ping)| ping).collect();
    before.sort_by(f64::total_cmp);
    pings.sort();
    let normal = before.get(before.len() / 2).copied().unwrap_or(0.0);
    let normal_ping = pings.get(pings.len() / 2).copied().unwrap_or_default();
    let mut cost = Cost::default();
    for (rate, elapsed, ping) in rates(from, to) {
        if normal >= BUSY_PER_S {
            cost.lost += elapsed.mul_f64((NOISE - rate / normal).max(0.0));
        }
        cost.ping = cost.ping.max(ping.saturating_sub(normal_ping));
    }
    cost
}

/// The thread and what it saw.
#[derive(Debug)]
pub struct Probe {
    samples: Arc<Mutex<VecDeque<Sample>>>,
    stop: Arc<AtomicBool>,
    /// Steps are being taken.
    attentive: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Probe {
    /// Connects and begins.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn start(target: &Target) -> Result<Probe> {
        let mut server = connect(target)?;
        // A read of a table, if this user may; else of nothing, which shows only stalls of the
        // whole server.
        let table = "SELECT COUNT(*) FROM (SELECT 1 FROM mysql.innodb_table_stats LIMIT 1) t";
        let ping = if server.first::<u64>("ping", "", table).is_ok() { table } else { "DO 1" };
        let samples = Arc::new(Mutex::new(VecDeque::new()));
        let (stop, attentive) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (shared, stopped, hurried) =
            (Arc::clone(&samples), Arc::clone(&stop), Arc::clone(&attentive));
        let target = target.clone();
        let thread = spawn(move || {
            let mut is_lost = false;
            while !stopped.load(Ordering::Relaxed) {
                // A server that went away is noticed, and reported, by the thread that governs. But
                // somebody may kill this connection alone, or one statement of it: without samples
                // every step would seem to cost nothing.
                if is_lost && let Ok(again) = connect(&target) {
                    (server, is_lost) = (again, false);
                }
                if !is_lost {
                    match round(&mut server, ping) {
                        Ok(sample) => keep(&shared, sample),
                        Err(error) => is_lost = matches!(error, Error::Gone(_)),
                    }
                }
                let hurry = hurried.load(Ordering::Relaxed);
                park_timeout(if hurry { PERIOD } else { IDLE_PERIOD });
            }
        });
        Ok(Probe { samples, stop, attentive, thread: Some(thread) })
    }

    /// Switches between measuring steps and not. The first step begins with a separate round.
    pub fn attend(&self, attentive: bool) {
        let was = self.attentive.swap(attentive, Ordering::Relaxed);
        if attentive && !was {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// What happened between two moments cost.
    pub fn cost(&self, from: Instant, to: Instant) -> Cost {
        cost(&*self.samples.lock().unwrap_or_else(PoisonError::into_inner), from, to)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The longest time is the one to measure.
fn connect(target: &Target) -> Result<Server> {
    let mut server = Server::connect(target)?;
    server.lift_time_limit()?;
    Ok(server)
}

fn keep(samples: &Mutex<VecDeque<Sample>>, sample: Sample) {
    let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
    samples.push_back(sample);
    while samples.front().is_some_and(|old| sample.at - old.at > KEEP) {
        samples.pop_front();
    }
}

fn round(server: &mut Server, ping: &str) -> Result<Sample> {
    let begin = Instant::now();
    let _: Option<mysql::Row> = server.first("ping", "", ping)?;
    let ping = begin.elapsed();
    let reads: Option<(String, u64)> =
        server.first("status", "", "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'")?;
    Ok(Sample { at: Instant::now(), reads: reads.map_or(0, |(_, reads)| reads), ping })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Forty samples a second; `share` of 100,000 reads a second at each moment, in milliseconds.
    fn samples(
        start: Instant,
        share: impl Fn(u32) -> f64,
        ping: impl Fn(u32) -> Duration,
    ) -> Vec<Sample> {
        let mut reads = 0.0;
        (0..200)
            .map(|n| {
                let ms = n * 25;
                reads += 2500.0 * share(ms);
                Sample { at: start + MS * ms, reads: reads as u64, ping: ping(ms) }
            })
            .collect()
    }

    #[test]
    fn lost_work_is_the_missing_part_as_time() {
        let start = Instant::now();
        let (from, to) = (start + MS * 2500, start + MS * 3500);
        let steady = samples(start, |_| 1.0, |_| MS);
        assert_eq!(cost(&steady, from, to), Cost::default());
        // Nothing at all for 400 ms; nine tenths of that are beyond the noise.
        let stopped = samples(start, |ms| f64::from(!(2600..3000).contains(&ms)), |_| MS);
        let lost = cost(&stopped, from, to).lost;
        assert!((MS * 350..=MS * 370).contains(&lost), "{lost:?}");
        // Before or after the window it is none of the step's.
        assert_eq!(cost(&stopped, start + MS * 3100, to).lost, Duration::ZERO);
    }

    #[test]
    fn an_idle_server_has_only_pings_to_lose() {
        let start = Instant::now();
        let (from, to) = (start + MS * 2500, start + MS * 3500);
        let ping = |ms| if (2700..2725).contains(&ms) { MS * 80 } else { MS * 2 };
        let found = cost(&samples(start, |ms| f64::from(ms < 2500) * 0.01, ping), from, to);
        assert_eq!(found, Cost { lost: Duration::ZERO, ping: MS * 78 });
        assert_eq!(found.worst(), MS * 78);
        assert_eq!(cost(&[], from, to), Cost::default());
    }
}
