//! The pool's threads: cleaner, evictor, read-ahead, advisor, resize, grower, upkeep. Each runs,
//! when woken, the very step that a pool without threads runs on call.
//!
//! The threads hold the pool weakly between steps, so that dropping the last handle ends them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::background_task::StepRunner;
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::priority::Priority;
use crate::stats::thread_time;
use crate::wakeup::Wakeup;

/// What each thread sleeps on.
#[derive(Default)]
struct Signals {
    cleaner: Wakeup,
    evictor: Wakeup,
    read_ahead: Wakeup,
    advisor: Wakeup,
    resize: Wakeup,
    grower: Wakeup,
    upkeep: Wakeup,
}

/// Handles of the threads.
pub(crate) struct Background {
    enabled: bool,
    signals: Arc<Signals>,
    priority: Arc<Priority>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Processor's time of cleaner, evictor and upkeep, in microseconds.
    busy_us: AtomicU64,
}

/// How long a thread sleeps if no other thread wakes it.
const IDLE: Duration = Duration::from_secs(1);
/// The same, of the advisor, whose rings fill without anybody waking it.
const ADVISOR_IDLE: Duration = Duration::from_millis(100);
/// How long a blocked resize pauses before it tries again: as long as it has been blocked, within
/// these bounds.
const BLOCKED: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];
/// How long the cleaner rests after writes of which none succeeded, so as not to spin on a broken
/// disk.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// How long the upkeep of files pauses when nothing is due, however often it is woken.
const UPKEEP_PAUSE: Duration = Duration::from_millis(20);

/// An extent that takes longer to prepare than this has met a kernel that compacts memory, at the
/// expense of a CPU. The grower then rests `COMPACTION_REST` times as long, and queries start
/// extents of small pages themselves.
const COMPACTION: Duration = Duration::from_millis(3);
const COMPACTION_REST: u32 = 9;
const COMPACTION_REST_MAX: Duration = Duration::from_millis(200);

const RESIZE: &str = "tidepool-resize";

impl Background {
    pub(crate) fn new(enabled: bool) -> Background {
        Background {
            enabled,
            signals: Arc::default(),
            priority: Arc::new(Priority::new()),
            threads: Mutex::default(),
            busy_us: AtomicU64::new(0),
        }
    }

    /// Whether there are threads that do the work.
    pub(crate) fn runs(&self) -> bool {
        self.enabled
    }

    pub(crate) fn wake_cleaner(&self) {
        self.signals.cleaner.wake();
    }

    pub(crate) fn wake_evictor(&self) {
        self.signals.evictor.wake();
    }

    pub(crate) fn wake_read_ahead(&self) {
        self.signals.read_ahead.wake();
    }

    pub(crate) fn wake_advisor(&self) {
        self.signals.advisor.wake();
    }

    pub(crate) fn wake_resize(&self) {
        self.signals.resize.wake();
    }

    pub(crate) fn wake_grower(&self) {
        self.signals.grower.wake();
    }

    pub(crate) fn wake_upkeep(&self) {
        self.signals.upkeep.wake();
    }

    /// Processor's time that cleaner, evictor and upkeep have taken, in microseconds.
    pub(crate) fn busy_us(&self) -> u64 {
        self.busy_us.load(Ordering::Relaxed)
    }

    /// Counts the calling thread's time since it was `since`.
    fn note_busy(&self, since: &mut Duration) {
        let now = thread_time();
        let us = now.saturating_sub(std::mem::replace(since, now)).as_micros() as u64;
        self.busy_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Whether the threads were asked to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.signals.read_ahead.is_stopped()
    }

    pub(crate) fn start(pool: &Arc<Pool>) -> Result<()> {
        let spawn = |name: &'static str, signal: fn(&Signals) -> &Wakeup, idle, step: fn(&Pool)| {
            let (weak, signals) = (Arc::downgrade(pool), pool.background.signals.clone());
            let priority = pool.background.priority.clone();
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    if name == RESIZE {
                        priority.raise();
                    }
                    run(&weak, name, signal(&signals), idle, step);
                })
                .map_err(|error| Error::system(format!("starting the thread '{name}'"), error))
        };
        let mut threads = pool.background.threads.lock();
        threads.push(spawn("tp-cleaner", |signals| &signals.cleaner, IDLE, clean)?);
        threads.push(spawn("tp-evictor", |signals| &signals.evictor, IDLE, evict)?);
        threads.push(spawn("tp-read-ahead", |signals| &signals.read_ahead, IDLE, read_ahead)?);
        threads.push(spawn("tidepool-advise", |signals| &signals.advisor, ADVISOR_IDLE, advise)?);
        threads.push(spawn("tidepool-grow", |signals| &signals.grower, IDLE, grow)?);
        threads.push(spawn("tidepool-upkeep", |signals| &signals.upkeep, IDLE, upkeep)?);
        threads.push(spawn(RESIZE, |signals| &signals.resize, IDLE, resize)?);
        Ok(())
    }

    /// Ends the threads, and waits for them (except for the calling one, if it is one of them).
    pub(crate) fn stop(&self) {
        let Signals { cleaner, evictor, read_ahead, advisor, resize, grower, upkeep } =
            &*self.signals;
        for signal in [cleaner, evictor, read_ahead, advisor, resize, grower, upkeep] {
            signal.stop();
        }
        for thread in self.threads.lock().drain(..) {
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the buffer pool ended by a panic");
            }
        }
    }
}

impl Pool {
    /// The priority of the threads that give memory back: the one that resizes, and the one
    /// that decides about sizes.
    pub fn priority(&self) -> &Priority {
        &self.background.priority
    }
}

fn run(pool: &Weak<Pool>, name: &'static str, signal: &Wakeup, idle: Duration, step: fn(&Pool)) {
    let mut steps = StepRunner::new(name);
    while signal.sleep(idle) {
        let Some(pool) = pool.upgrade() else { return };
        if let Err(pause) = steps.run(|| step(&pool)) {
            drop(pool);
            signal.rest(pause);
        }
    }
}

fn clean(pool: &Pool) {
    let flushed = || pool.counters.pages_flushed.load(Ordering::Relaxed);
    let signal = &pool.background.signals.cleaner;
    let mut since = thread_time();
    while !signal.is_stopped() {
        let before = flushed();
        let cleaned = pool.run_cleaner_step();
        pool.background.note_busy(&mut since);
        match cleaned {
            Ok(0) => match pool.rest_of_cleaner() {
                Some(rest) if signal.sleep(rest) => {}
                _ => return,
            },
            Ok(_) => {}
            // Already reported where it happened; the pages stay dirty. Others may have gone home.
            Err(_) if flushed() > before => {}
            Err(_) => {
                signal.rest(AFTER_FAILURE);
                return;
            }
        }
    }
}

fn evict(pool: &Pool) {
    let mut since = thread_time();
    pool.run_evictor_step();
    pool.background.note_busy(&mut since);
}

fn read_ahead(pool: &Pool) {
    pool.run_read_ahead_step();
}

fn advise(pool: &Pool) {
    pool.run_advisor_step();
}

fn grow(pool: &Pool) {
    let signal = &pool.background.signals.grower;
    while !signal.is_stopped() {
        let began = Instant::now();
        if !pool.run_grower_step() {
            return;
        }
        let took = began.elapsed();
        if took > COMPACTION {
            signal.rest((took * COMPACTION_REST).min(COMPACTION_REST_MAX));
        }
    }
}

fn upkeep(pool: &Pool) {
    let signal = &pool.background.signals.upkeep;
    let mut since = thread_time();
    while !signal.is_stopped() {
        let done = pool.run_upkeep_step();
        pool.background.note_busy(&mut since);
        match done {
            Ok(Some(rest)) if rest.is_zero() || signal.rest(rest) => {}
            Ok(_) => {
                signal.rest(UPKEEP_PAUSE);
                return;
            }
            // Said where it happened.
            Err(_) => {
                signal.rest(AFTER_FAILURE);
                return;
            }
        }
    }
}

fn resize(pool: &Pool) {
    let signal = &pool.background.signals.resize;
    // An urgent shrink does not ask, so what it finds when it becomes a throttled one may be old:
    // once it rests for nothing then.
    let mut requests_before = pool.counters.read_requests.sum();
    while !signal.is_stopped() {
        let began = Instant::now();
        if pool.run_resize_step() {
            let rest = pool.resize.throttle.rest_after(began.elapsed(), || {
                let now = pool.counters.read_requests.sum();
                now.saturating_sub(std::mem::replace(&mut requests_before, now))
            });
            if !rest.is_zero() {
                signal.sleep(rest);
            }
        } else if pool.frames().debt() == 0 {
            return;
        } else {
            signal.sleep(pool.resize_blocked_for().clamp(BLOCKED[0], BLOCKED[1]));
        }
    }
}
