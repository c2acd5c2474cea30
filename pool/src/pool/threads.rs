//! What each thread of the pool does: when woken, the very step that a pool without threads runs on
//! call, again and again while there is more to do; and how long it rests in between.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Pool;
use crate::background::{Task, Urgency};
use crate::config::PoolConfig;
use crate::error::Result;
use crate::stats::thread_time;

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

/// Starts the threads; that of the upkeep only if files can be written.
pub(super) fn start(pool: &Arc<Pool>, config: &PoolConfig) -> Result<()> {
    let task =
        |name, wakeup, step| Task { name, wakeup, idle: IDLE, urgency: Urgency::Usual, step };
    let tasks: [Task<Pool>; 6] = [
        task("tp-cleaner", |wakeups| &wakeups.cleaner, clean),
        task("tp-evictor", |wakeups| &wakeups.evictor, evict),
        task("tp-read-ahead", |wakeups| &wakeups.read_ahead, read_ahead),
        Task {
            idle: ADVISOR_IDLE,
            ..task("tidepool-advise", |wakeups| &wakeups.advisor, Pool::run_advisor_step)
        },
        task("tidepool-grow", |wakeups| &wakeups.grower, grow),
        Task {
            urgency: Urgency::OfSizes,
            ..task("tidepool-resize", |wakeups| &wakeups.resize, resize)
        },
    ];
    pool.core.background.start(pool, &tasks)?;
    if config.read_only {
        return Ok(());
    }
    let upkeep = task("tidepool-upkeep", |wakeups| &wakeups.upkeep, upkeep);
    pool.core.background.start(pool, &[upkeep])
}

fn clean(pool: &Pool) {
    let flushed = || pool.core.counters.pages_flushed.load(Ordering::Relaxed);
    let wakeup = &pool.core.background.wakeups().cleaner;
    let mut since = thread_time();
    while !wakeup.is_stopped() {
        let before = flushed();
        let cleaned = pool.cleaner.run_step();
        pool.core.background.note_busy(&mut since);
        match cleaned {
            Ok(0) => match pool.cleaner.rest() {
                Some(rest) if wakeup.sleep(rest) => {}
                _ => return,
            },
            Ok(_) => {}
            // Already reported where it happened; the pages stay dirty. Others may have gone home.
            Err(_) if flushed() > before => {}
            Err(_) => {
                wakeup.rest(AFTER_FAILURE);
                return;
            }
        }
    }
}

fn evict(pool: &Pool) {
    let mut since = thread_time();
    pool.evictor.run_step();
    pool.core.background.note_busy(&mut since);
}

fn read_ahead(pool: &Pool) {
    pool.read_ahead.run_step();
}

fn grow(pool: &Pool) {
    let wakeup = &pool.core.background.wakeups().grower;
    while !wakeup.is_stopped() {
        let began = Instant::now();
        if !pool.core.frames.grow_ahead() {
            return;
        }
        let took = began.elapsed();
        if took > COMPACTION {
            wakeup.rest((took * COMPACTION_REST).min(COMPACTION_REST_MAX));
        }
    }
}

fn upkeep(pool: &Pool) {
    let wakeup = &pool.core.background.wakeups().upkeep;
    let mut since = thread_time();
    while !wakeup.is_stopped() {
        let done = pool.upkeep.run_step();
        pool.core.background.note_busy(&mut since);
        match done {
            Ok(Some(rest)) if rest.is_zero() || wakeup.rest(rest) => {}
            Ok(_) => {
                wakeup.rest(UPKEEP_PAUSE);
                return;
            }
            // Said where it happened.
            Err(_) => {
                wakeup.rest(AFTER_FAILURE);
                return;
            }
        }
    }
}

fn resize(pool: &Pool) {
    let wakeup = &pool.core.background.wakeups().resize;
    // An urgent shrink does not ask, so what it finds when it becomes a throttled one may be old:
    // once it rests for nothing then.
    let mut requests_before = pool.core.counters.read_requests.sum();
    while !wakeup.is_stopped() {
        let began = Instant::now();
        if pool.resize.run_step() {
            let rest = pool.core.shrink_throttle.rest_after(began.elapsed(), || {
                let now = pool.core.counters.read_requests.sum();
                now.saturating_sub(std::mem::replace(&mut requests_before, now))
            });
            if !rest.is_zero() {
                wakeup.sleep(rest);
            }
        } else if pool.core.frames.debt() == 0 {
            return;
        } else {
            wakeup.sleep(pool.resize.blocked_for().clamp(BLOCKED[0], BLOCKED[1]));
        }
    }
}
