//! Carries out the slider's requests: in steps, as `tidepool govern` would, and the newest wish
//! wins.

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
use crate::govern::step_size::{Direction, StepSize};
use crate::server::Server;

/// The most that one step may cost of the queries' work.
const MAX_STALL: Duration = Duration::from_millis(100);

/// A step of another program is waited for so long: longer than the pool waits for a holder of the
/// lock that resizes nothing, or whose step makes no progress.
const TURN: Duration = Duration::from_secs(25);

/// Lines of the log that are kept.
const LINES: usize = 50;

/// How the last wish fares.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Progress {
    /// Whose pool is to have it.
    #[serde(skip)]
    engine: Option<Engine>,
    /// The requested size, 0 for a pool that its engine governs; `None` before the first request.
    pub wanted_bytes: Option<u64>,
    /// Whether it is being worked on.
    pub running: bool,
    /// What went wrong.
    pub error: Option<String>,
    /// Lines for the decision log, newest last: time (milliseconds since 1970) and text.
    pub log: Vec<(u64, String)>,
}

impl Progress {
    /// The wish for `wanted`, or the newer one that was heard on the way to it, was carried out, or
    /// failed.
    fn end(&mut self, wanted: u64, result: Result<Done>) {
        // A wish that came in the last moment is the next round's.
        self.running = result.as_ref().is_ok_and(|done| self.wanted_bytes != Some(done.bytes));
        let line = match &result {
            // Nothing happened.
            Ok(done) if !done.changed => {
                self.error = None;
                return;
            }
            Ok(done) => told(done.bytes),
            Err(error) => format!("{}: {error}", told(self.wanted_bytes.unwrap_or(wanted))),
        };
        self.error = result.err().map(|error| error.to_string());
        self.note(line);
    }

    /// Adds a line to the decision log.
    fn note(&mut self, line: String) {
        if self.log.len() >= LINES {
            self.log.remove(0);
        }
        self.log.push((unix_ms(SystemTime::now()), line));
    }
}

/// A request that was carried out.
#[derive(Debug, Clone, Copy)]
struct Done {
    /// The size, or 0.
    bytes: u64,
    /// Whether the pool had another one before.
    changed: bool,
}

/// What a wish is in the log.
fn told(bytes: u64) -> String {
    match bytes {
        0 => "left by this page to its engine to govern".into(),
        bytes => format!("set by this page to {}", human(bytes)),
    }
}

/// The thread that sets.
#[derive(Debug, Clone, Default)]
pub struct Setter {
    shared: Arc<(Mutex<Progress>, Condvar)>,
}

impl Setter {
    /// Starts the thread. It connects when it has something to do.
    pub fn start(target: &Target) -> Setter {
        let setter = Setter::default();
        let (own, target) = (setter.clone(), target.clone());
        spawn(move || own.work(&target));
        setter
    }

    /// The thread's life.
    fn work(&self, target: &Target) {
        loop {
            let (engine, wanted) = self.wait();
            let result = match engine {
                Engine::Innodb => self.set_innodb(target, wanted),
                Engine::Tidepool => {
                    set_tidepool(target, wanted).map(|()| Done { bytes: wanted, changed: true })
                }
            };
            self.update(|progress| progress.end(wanted, result));
        }
    }

    /// Requests a size of this engine's pool; returns at once.
    pub fn wish(&self, engine: Engine, bytes: u64) {
        self.update(|progress| {
            if let Some(before) = progress.wanted_bytes.filter(|&b| progress.running && b != bytes)
            {
                progress.note(match before {
                    0 => "left to its engine: replaced on the way by a newer request".into(),
                    bytes => {
                        let bytes = human(bytes);
                        format!("request for {bytes}: replaced on the way by a newer one")
                    }
                });
            }
            progress.engine = Some(engine);
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

    fn wait(&self) -> (Engine, u64) {
        let mut progress = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let wish = progress.engine.zip(progress.wanted_bytes);
            if let (true, Some(wish)) = (progress.running, wish) {
                return wish;
            }
            progress = self.shared.1.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the newest request, which it has carried out.
    fn set_innodb(&self, target: &Target, first: u64) -> Result<Done> {
        let mut pool = InnodbPool::new(Server::connect(target)?)?;
        let probe = Probe::start(target)?;
        probe.attend(true);
        let mut stride = StepSize::new(pool.unit_bytes.max(MIB), MAX_STALL);
        let mut size = pool.state()?.size_bytes;
        let begin_size = size;
        let mut busy_since = None;
        // Some normal time to compare with.
        sleep(AFTER);
        loop {
            let wanted = self.progress().wanted_bytes.unwrap_or(first);
            let next = stride.next(size, wanted, false);
            let changed = size != begin_size;
            if next == size {
                return Ok(Done { bytes: wanted, changed });
            }
            let begin = Instant::now();
            let set = pool.set_size(next, PREPARE)?;
            let notices = pool.take_notices();
            self.update(|progress| notices.into_iter().for_each(|notice| progress.note(notice)));
            let now = match set {
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
                return Ok(Done { bytes: wanted, changed });
            }
            size = now;
            sleep(stride.rest(cost, false));
        }
    }
}

/// Tidepool's resize blocks no query and has its own thread: one statement is enough.
fn set_tidepool(target: &Target, bytes: u64) -> Result<()> {
    let statement = format!("SET GLOBAL tidepool_buffer_pool_size = {bytes}");
    Server::connect(target)?.execute("setting the pool's size", "SUPER", &statement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_that_a_newer_one_overtakes_leaves_a_line() {
        let setter = Setter::default();
        setter.wish(Engine::Innodb, 15 * MIB);
        setter.wish(Engine::Innodb, 15 * MIB);
        assert!(setter.progress().log.is_empty(), "the same again");
        setter.wish(Engine::Innodb, 64 * MIB);
        let log = setter.progress().log;
        assert_eq!(log[0].1, "request for 15 MiB: replaced on the way by a newer one");
    }

    #[test]
    fn the_log_tells_the_size_that_was_set_and_not_one_that_was_given_up() {
        let mut progress = Progress { wanted_bytes: Some(200 * MIB), ..Progress::default() };
        let done = |bytes| Ok(Done { bytes, changed: true });
        progress.end(200 * MIB, Ok(Done { bytes: 200 * MIB, changed: false }));
        assert!(progress.log.is_empty() && !progress.running, "nothing has changed");
        // The wish for 100 MiB was replaced on the way.
        progress.end(100 * MIB, done(200 * MIB));
        assert!(!progress.running, "there is no newer one");
        assert_eq!(progress.log[0].1, "set by this page to 200 MiB");
        progress.end(0, done(0));
        assert_eq!(progress.log[1].1, "left by this page to its engine to govern");
        progress.wanted_bytes = Some(300 * MIB);
        progress.end(200 * MIB, done(200 * MIB));
        assert!(progress.running, "a newer one must be carried out");
        for _ in 0..2 * LINES {
            progress.end(MIB, Err(Error::Gone("test".into())));
        }
        assert!(!progress.running && progress.error.is_some());
        assert_eq!(progress.log.len(), LINES);
    }
}
