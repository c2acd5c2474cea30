//! The pool's threads, and what wakes them: cleaner, evictor, read-ahead, advisor, resize, grower,
//! upkeep. What each does is up to who starts them; every part of the pool may wake one.
//!
//! Locking: none. A wake-up takes a mutex that is innermost, if the thread sleeps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::background_task::StepRunner;
use crate::error::Result;
use crate::priority::{MemoryThreads, Priority};
use crate::stats::thread_time;
use crate::thread_observer::Threads;
use crate::wakeup::Wakeup;

/// What each thread sleeps on.
#[derive(Default)]
pub(crate) struct Wakeups {
    pub(crate) cleaner: Wakeup,
    pub(crate) evictor: Wakeup,
    pub(crate) read_ahead: Wakeup,
    pub(crate) advisor: Wakeup,
    pub(crate) resize: Wakeup,
    pub(crate) grower: Wakeup,
    pub(crate) upkeep: Wakeup,
}

/// Whether the pool has threads, their handles, and what they sleep on.
pub(crate) struct Background {
    enabled: bool,
    wakeups: Arc<Wakeups>,
    priority: Arc<Priority>,
    starter: Threads,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Processor's time of cleaner, evictor and upkeep, in microseconds.
    busy_us: AtomicU64,
}

/// What a thread does when it is woken, or after it slept for `idle`.
pub(crate) struct Task<T> {
    pub(crate) name: &'static str,
    pub(crate) wakeup: fn(&Wakeups) -> &Wakeup,
    pub(crate) idle: Duration,
    pub(crate) urgency: Urgency,
    pub(crate) step: fn(&T),
}

impl<T> Clone for Task<T> {
    fn clone(&self) -> Task<T> {
        *self
    }
}

impl<T> Copy for Task<T> {}

/// How the kernel schedules a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// As any other.
    Usual,
    /// It gives memory back, and has the [`Priority`] of the threads that decide about sizes.
    OfSizes,
}

impl Background {
    pub(crate) fn new(
        enabled: bool,
        memory_threads: MemoryThreads,
        starter: Threads,
    ) -> Background {
        Background {
            enabled,
            wakeups: Arc::default(),
            priority: Arc::new(Priority::new(memory_threads)),
            starter,
            threads: Mutex::default(),
            busy_us: AtomicU64::new(0),
        }
    }

    /// Whether there are threads that do the work.
    pub(crate) fn runs(&self) -> bool {
        self.enabled
    }

    pub(crate) fn wakeups(&self) -> &Wakeups {
        &self.wakeups
    }

    /// How threads are started.
    pub(crate) fn starter(&self) -> &Threads {
        &self.starter
    }

    /// The priority of the threads that give memory back.
    pub(crate) fn priority(&self) -> &Priority {
        &self.priority
    }

    pub(crate) fn wake_cleaner(&self) {
        self.wakeups.cleaner.wake();
    }

    pub(crate) fn wake_evictor(&self) {
        self.wakeups.evictor.wake();
    }

    pub(crate) fn wake_read_ahead(&self) {
        self.wakeups.read_ahead.wake();
    }

    pub(crate) fn wake_advisor(&self) {
        self.wakeups.advisor.wake();
    }

    pub(crate) fn wake_resize(&self) {
        self.wakeups.resize.wake();
    }

    pub(crate) fn wake_grower(&self) {
        self.wakeups.grower.wake();
    }

    pub(crate) fn wake_upkeep(&self) {
        self.wakeups.upkeep.wake();
    }

    /// Processor's time that cleaner, evictor and upkeep have taken, in microseconds.
    pub(crate) fn busy_us(&self) -> u64 {
        self.busy_us.load(Ordering::Relaxed)
    }

    /// Counts the calling thread's time since it was `since`.
    pub(crate) fn note_busy(&self, since: &mut Duration) {
        let now = thread_time();
        let us = now.saturating_sub(std::mem::replace(since, now)).as_micros() as u64;
        self.busy_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Whether the threads were asked to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.wakeups.read_ahead.is_stopped()
    }

    /// Starts a thread for each of the tasks. The threads hold `owner` weakly between steps, so
    /// that dropping its last handle ends them.
    pub(crate) fn start<T>(&self, owner: &Arc<T>, tasks: &[Task<T>]) -> Result<()>
    where
        T: Send + Sync + 'static,
    {
        let mut threads = self.threads.lock();
        for task in tasks {
            let (owner, task) = (Arc::downgrade(owner), *task);
            let (wakeups, priority) = (self.wakeups.clone(), self.priority.clone());
            threads.push(self.starter.spawn(task.name, move || {
                if task.urgency == Urgency::OfSizes {
                    priority.raise();
                }
                run(&owner, (task.wakeup)(&wakeups), &task);
            })?);
        }
        Ok(())
    }

    /// Ends the threads, and waits for them (except for the calling one, if it is one of them).
    pub(crate) fn stop(&self) {
        let Wakeups { cleaner, evictor, read_ahead, advisor, resize, grower, upkeep } =
            &*self.wakeups;
        for wakeup in [cleaner, evictor, read_ahead, advisor, resize, grower, upkeep] {
            wakeup.stop();
        }
        for thread in self.threads.lock().drain(..) {
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the buffer pool ended by a panic");
            }
        }
    }
}

fn run<T>(owner: &Weak<T>, wakeup: &Wakeup, task: &Task<T>) {
    let mut steps = StepRunner::new(task.name);
    while wakeup.sleep(task.idle) {
        let Some(owner) = owner.upgrade() else { return };
        if let Err(pause) = steps.run(|| (task.step)(&owner)) {
            drop(owner);
            wakeup.rest(pause);
        }
    }
}
