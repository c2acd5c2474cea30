//! The pool's threads: cleaner, evictor, read-ahead, advisor, resize, grower. Each runs, when woken, the very
//! step that a pool without threads runs on call.
//!
//! The threads hold the pool weakly between steps, so that dropping the last handle ends them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::pool::Pool;

/// Wakes one thread. Waking it twice before it looks is waking it once.
#[derive(Default)]
struct Bell {
    rung: AtomicBool,
    mutex: Mutex<()>,
    condvar: Condvar,
}

impl Bell {
    fn ring(&self) {
        // Always a swap: whoever clears the flag then sees what was done before this ring.
        if !self.rung.swap(true, Ordering::AcqRel) {
            let _guard = self.mutex.lock();
            self.condvar.notify_one();
        }
    }

    /// Waits for a ring, at most for `timeout`.
    fn wait(&self, timeout: Duration) {
        let mut guard = self.mutex.lock();
        if !self.rung.load(Ordering::Acquire) {
            self.condvar.wait_for(&mut guard, timeout);
        }
        self.rung.swap(false, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct Bells {
    cleaner: Bell,
    evictor: Bell,
    read_ahead: Bell,
    advisor: Bell,
    resize: Bell,
    grower: Bell,
    stop: AtomicBool,
}

/// Handles of the threads.
pub(crate) struct Background {
    enabled: bool,
    bells: Arc<Bells>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// How long a thread sleeps if nobody wakes it.
const IDLE: Duration = Duration::from_secs(1);
/// The same, of the advisor, whose rings fill without anybody waking it.
const ADVISOR_IDLE: Duration = Duration::from_millis(100);
/// How long a resize pauses that can't go on: longer each time, from the first to the second.
const BLOCKED: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];
/// How long the cleaner rests after writes of which none succeeded, so as not to spin on a broken disk.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// An extent that takes longer to prepare than this has met a kernel that compacts memory, at the
/// expense of a CPU. The grower then rests `COMPACTION_REST` times as long, and queries start extents
/// of small pages themselves.
const COMPACTION: Duration = Duration::from_millis(3);
const COMPACTION_REST: u32 = 9;
const COMPACTION_REST_MAX: Duration = Duration::from_millis(200);

const RESIZE: &str = "tidepool-resize";
/// Nice value of the resize thread. While it waits for a CPU, memory that others need is not given back, and what it holds is held
/// for longer; of all the CPU time it takes little.
const RESIZE_PRIORITY: i32 = -10;

impl Background {
    pub(crate) fn new(enabled: bool) -> Background {
        Background { enabled, bells: Arc::default(), threads: Mutex::default() }
    }

    /// Whether there are threads that do the work.
    pub(crate) fn runs(&self) -> bool {
        self.enabled
    }

    pub(crate) fn wake_cleaner(&self) {
        self.bells.cleaner.ring();
    }

    pub(crate) fn wake_evictor(&self) {
        self.bells.evictor.ring();
    }

    pub(crate) fn wake_read_ahead(&self) {
        self.bells.read_ahead.ring();
    }

    pub(crate) fn wake_advisor(&self) {
        self.bells.advisor.ring();
    }

    pub(crate) fn wake_resize(&self) {
        self.bells.resize.ring();
    }

    pub(crate) fn wake_grower(&self) {
        self.bells.grower.ring();
    }

    pub(crate) fn start(pool: &Arc<Pool>) -> Result<()> {
        let spawn = |name: &'static str, bell: fn(&Bells) -> &Bell, idle, step: fn(&Pool)| {
            let (weak, bells) = (Arc::downgrade(pool), pool.background.bells.clone());
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    if name == RESIZE {
                        // Best effort: it may need a privilege. On Linux this is about the thread.
                        let _ = rustix::process::setpriority_process(None, RESIZE_PRIORITY);
                    }
                    run(&weak, &bells, bell(&bells), idle, step);
                })
                .map_err(|error| Error::system(format!("starting the thread '{name}'"), error))
        };
        let mut threads = pool.background.threads.lock();
        threads.push(spawn("tp-cleaner", |bells| &bells.cleaner, IDLE, clean)?);
        threads.push(spawn("tp-evictor", |bells| &bells.evictor, IDLE, evict)?);
        threads.push(spawn("tp-read-ahead", |bells| &bells.read_ahead, IDLE, read_ahead)?);
        threads.push(spawn("tidepool-advise", |bells| &bells.advisor, ADVISOR_IDLE, advise)?);
        threads.push(spawn("tidepool-grow", |bells| &bells.grower, IDLE, grow)?);
        threads.push(spawn(RESIZE, |bells| &bells.resize, IDLE, resize)?);
        Ok(())
    }

    /// Ends the threads, and waits for them (but for the one that may be calling).
    pub(crate) fn stop(&self) {
        self.bells.stop.store(true, Ordering::Release);
        let Bells { cleaner, evictor, read_ahead, advisor, resize, grower, .. } = &*self.bells;
        for bell in [cleaner, evictor, read_ahead, advisor, resize, grower] {
            bell.ring();
        }
        for thread in self.threads.lock().drain(..) {
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the buffer pool ended by a panic");
            }
        }
    }
}

fn run(pool: &Weak<Pool>, bells: &Bells, bell: &Bell, idle: Duration, step: fn(&Pool)) {
    loop {
        bell.wait(idle);
        if bells.stop.load(Ordering::Acquire) {
            return;
        }
        let Some(pool) = pool.upgrade() else { return };
        step(&pool);
    }
}

fn clean(pool: &Pool) {
    let flushed = || pool.counters.pages_flushed.load(Ordering::Relaxed);
    while !pool.background.bells.stop.load(Ordering::Acquire) {
        let before = flushed();
        match pool.run_cleaner_step() {
            Ok(0) => return,
            Ok(_) => {}
            // Already reported where it happened; the pages stay dirty. Others may have gone home.
            Err(_) if flushed() > before => {}
            Err(_) => {
                std::thread::sleep(AFTER_FAILURE);
                return;
            }
        }
    }
}

fn evict(pool: &Pool) {
    pool.run_evictor_step();
}

fn read_ahead(pool: &Pool) {
    pool.run_read_ahead_step();
}

fn advise(pool: &Pool) {
    pool.run_advisor_step();
}

fn grow(pool: &Pool) {
    let bells = &pool.background.bells;
    while !bells.stop.load(Ordering::Acquire) {
        let began = Instant::now();
        if !pool.run_grower_step() {
            return;
        }
        let took = began.elapsed();
        if took > COMPACTION {
            std::thread::sleep((took * COMPACTION_REST).min(COMPACTION_REST_MAX));
        }
    }
}

fn resize(pool: &Pool) {
    let bells = &pool.background.bells;
    let mut pause = BLOCKED[0];
    while !bells.stop.load(Ordering::Acquire) {
        if pool.run_resize_step() {
            pause = BLOCKED[0];
        } else if pool.frames().debt() == 0 {
            return;
        } else {
            bells.resize.wait(pause);
            pause = (2 * pause).min(BLOCKED[1]);
        }
    }
}
