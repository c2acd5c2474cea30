//! Carries out what the slider says: in steps, as `tidepool govern` would, and the newest wish wins.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use super::sample::Engine;
use crate::bytes::{MIB, human};
use crate::clock::unix_ms;
use crate::connect::Target;
use crate::exit::{Error, Result};
use crate::govern::lock;
use crate::govern::pool::{InnodbPool, PREPARE, Set};
use crate::govern::probe::{AFTER, Probe};
use crate::govern::stride::{Direction, Stride};
use crate::server::Server;

/// The most that one step may cost of the queries' work.
const MAX_STALL: Duration = Duration::from_millis(100);

/// A step of another program is waited for so long. One takes less than a second, and a `govern` at work rests between two.
const TURN: Duration = Duration::from_secs(3);

/// How the last wish fares.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Progress {
    /// The size that is wanted; `None` before the first wish.
    pub wanted_bytes: Option<u64>,
    /// Whether it is being worked on.
    pub running: bool,
    /// What went wrong.
    pub error: Option<String>,
    /// Lines for the decision log, newest last: when (milliseconds since 1970), and what.
    pub log: Vec<(u64, String)>,
}

/// The thread that sets.
#[derive(Debug, Clone, Default)]
pub struct Setter {
    shared: Arc<(Mutex<Progress>, Condvar)>,
}

impl Setter {
    /// Starts the thread. It connects when it has something to do.
    pub fn start(target: &Target, engine: Engine) -> Setter {
        let setter = Setter::default();
        let (own, target) = (setter.clone(), target.clone());
        spawn(move || own.work(&target, engine));
        setter
    }

    /// The thread's life.
    fn work(&self, target: &Target, engine: Engine) {
        loop {
            let wanted = self.wait();
            let result = match engine {
                Engine::Innodb => self.set_innodb(target),
                Engine::Tidepool => set_tidepool(target, wanted),
            };
            self.update(|progress| {
                // A wish that came in the last moment is the next round's.
                progress.running = progress.wanted_bytes != Some(wanted) && result.is_ok();
                progress.error = result.err().map(|error| error.to_string());
                let line = match &progress.error {
                    Some(error) => format!("set by this page to {}: {error}", human(wanted)),
                    None => format!("set by this page to {}", human(wanted)),
                };
                progress.log.push((unix_ms(SystemTime::now()), line));
            });
        }
    }

    /// A new wish; returns at once.
    pub fn wish(&self, bytes: u64) {
        self.update(|progress| {
            progress.wanted_bytes = Some(bytes);
            progress.running = true;
            progress.error = None;
        });
        self.shared.1.notify_all();
    }

    /// How it fares.
    pub fn progress(&self) -> Progress {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn update(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.shared.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn wait(&self) -> u64 {
        let mut progress = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let (true, Some(wanted)) = (progress.running, progress.wanted_bytes) {
                return wanted;
            }
            progress = self.shared.1.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn set_innodb(&self, target: &Target) -> Result<()> {
        let mut pool = InnodbPool::new(Server::connect(target)?)?;
        let probe = Probe::start(target)?;
        probe.attend(true);
        let mut stride = Stride::new(pool.unit_bytes.max(MIB), MAX_STALL);
        let mut size = pool.state()?.size_bytes;
        let mut busy_since = None;
        // Some normal time to compare with.
        sleep(AFTER);
        loop {
            let Some(wanted) = self.progress().wanted_bytes else { return Ok(()) };
            let next = stride.next(size, wanted, false);
            if next == size {
                return Ok(());
            }
            let begin = Instant::now();
            let now = match pool.set_size(next, PREPARE)? {
                Set::Done(now) => now,
                Set::Busy(holder) => {
                    if busy_since.get_or_insert(begin).elapsed() > TURN {
                        let busy = lock::taken(holder);
                        return Err(Error::Local(format!(
                            "{busy}: try again when it has finished"
                        )));
                    }
                    sleep(AFTER);
                    continue;
                }
            };
            busy_since = None;
            sleep(AFTER);
            let cost = probe.cost(begin, Instant::now()).worst();
            let direction = if next < size { Direction::Shrink } else { Direction::Grow };
            stride.learn(direction, size.abs_diff(now), cost);
            if now == size {
                return Ok(());
            }
            size = now;
            sleep(stride.rest(cost, false));
        }
    }
}

/// Tidepool's resize stops nobody and has its own thread: one statement is all.
fn set_tidepool(target: &Target, bytes: u64) -> Result<()> {
    let statement = format!("SET GLOBAL tidepool_buffer_pool_size = {bytes}");
    Server::connect(target)?.execute("setting the pool's size", "SUPER", &statement)
}
