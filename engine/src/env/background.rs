//! The environment's threads: the checkpointer, and the log's regular flush.
//!
//! They hold the pool and the log, never the environment, so that dropping it ends them. A step
//! that panics is logged and repeated after a pause ([`StepRunner`]); if it was about to write the
//! log, the log has failed for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_pool::storage::{Ballast, Storage};
use tidepool_pool::{Lsn, Pool, StepRunner, Threads, Wakeup};

use super::write_stop::ballast_bytes;
use crate::error::{Error, Result};
use crate::governor::PoolGovernor;
use crate::newest_runs::NewestRuns;
use crate::redo::RedoLog;
use crate::redo::capacity::AutomaticCapacity;
use crate::redo::checkpoint::{Pace, Pacer};

/// How often the checkpointer looks.
const TICK: Duration = Duration::from_millis(100);
/// How long it waits after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Pages written between two looks at the clock.
const BATCH_PAGES: usize = 128;
/// A checkpoint is taken when it moves by this share of the maximal age, or after
/// [`CHECKPOINT_INTERVAL`].
const CHECKPOINT_SHARE: u64 = 64;
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// Takes checkpoints of the redo log.
#[derive(Clone)]
pub(super) struct CheckpointTaker {
    pub storage: Arc<dyn Storage>,
    pub pool: Arc<Pool>,
    pub redo: Arc<RedoLog>,
    pub newest_runs: Arc<NewestRuns>,
    pub ballast: Option<Arc<Ballast>>,
}

impl CheckpointTaker {
    /// Takes a checkpoint at the oldest dirty page; at the end of the log, as one of a clean
    /// shutdown, if that is what it is. What a checkpoint passes is in files whose newest runs are
    /// noted.
    pub fn take(&self, clean_shutdown: bool) -> Result<Lsn> {
        let note = || self.newest_runs.note(&*self.storage, &self.pool);
        self.redo.checkpoint(|| self.pool.oldest_dirty_lsn(), note, clean_shutdown)
    }
}

/// Writes old pages at the pace that the redo log's age demands, and takes checkpoints.
pub struct Checkpointer {
    pool: Arc<Pool>,
    redo: Arc<RedoLog>,
    taker: CheckpointTaker,
    pacer: Pacer,
    since_checkpoint: Duration,
    /// By which the log's capacity follows the pool's memory, if it is to.
    automatic_capacity: AutomaticCapacity,
}

impl Checkpointer {
    pub fn new(taker: CheckpointTaker) -> Self {
        Self {
            pool: taker.pool.clone(),
            redo: taker.redo.clone(),
            taker,
            pacer: Pacer::default(),
            since_checkpoint: Duration::ZERO,
            automatic_capacity: AutomaticCapacity::default(),
        }
    }

    /// One step, `elapsed` after the last.
    pub fn step(&mut self, elapsed: Duration) -> Result<()> {
        let (now, resident) = (self.redo.capacity(), self.pool.resident_bytes());
        if let Some(bytes) = self.automatic_capacity.step(now, resident, elapsed) {
            self.redo.adapt_capacity(bytes);
        }
        self.keep_ballast();
        self.redo.prepare_files()?;
        let age_max = self.redo.age_max();
        // No room left means urgency, whatever the age: the ring may hold less than the capacity.
        let age_max = if self.redo.has_room() { age_max } else { 1 };
        let oldest = self.pool.oldest_dirty_lsn();
        let pace = self.pacer.step(oldest, self.redo.next_lsn(), age_max, elapsed);
        let flushed = pace.map_or(Ok(()), |pace| self.flush(&pace));
        self.since_checkpoint += elapsed;
        let oldest = self.pool.oldest_dirty_lsn().unwrap_or(self.redo.next_lsn());
        let gain = oldest.0.saturating_sub(self.redo.checkpoint_lsn().0);
        if gain > age_max / CHECKPOINT_SHARE
            || (gain > 0 && self.since_checkpoint >= CHECKPOINT_INTERVAL)
        {
            self.checkpoint()?;
        }
        // Not before the checkpoint: a page that can't be written holds up what came after it, and
        // no more.
        flushed
    }

    /// Keeps the ballast as long as the log's files ask for, if the disk has that much. Else
    /// the log makes no files ahead, which would take what the ballast has released.
    fn keep_ballast(&self) {
        let Some(ballast) = &self.taker.ballast else { return };
        ballast.set_bytes(ballast_bytes(self.redo.files_bytes()));
        // It is released if this fails, and what needs more space is refused.
        let is_whole = ballast.is_whole() || ballast.restore().is_ok();
        self.redo.leave_disk(!is_whole);
    }

    /// Writes old pages for as long as a step may take.
    fn flush(&mut self, pace: &Pace) -> Result<()> {
        let started = Instant::now();
        while self.pool.flush_up_to(pace.target, BATCH_PAGES)? > 0 {
            if pace.urgent {
                self.checkpoint()?;
            } else if started.elapsed() > TICK {
                break;
            }
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        self.since_checkpoint = Duration::ZERO;
        self.taker.take(false)?;
        self.redo.prepare_files()
    }
}

/// The threads, if there are any.
#[derive(Default)]
pub struct Background {
    checkpoints: Arc<Wakeup>,
    flushes: Arc<Wakeup>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    runs: AtomicBool,
    /// The checkpointer's last step panicked.
    panicked: Arc<AtomicBool>,
}

const CHECKPOINTER: &str = "tidepool-ckpt";
const FLUSHER: &str = "tidepool-flush";

impl Background {
    pub fn start(
        &self,
        threads: &Threads,
        checkpointer: Arc<Mutex<Checkpointer>>,
        redo: Arc<RedoLog>,
        flush_interval: Duration,
    ) -> Result<()> {
        let (signal, panicked) = (self.checkpoints.clone(), self.panicked.clone());
        let checkpoints = move || {
            let mut last = Instant::now();
            let mut steps = StepRunner::new(CHECKPOINTER);
            loop {
                let elapsed = last.elapsed();
                last = Instant::now();
                let step = || report("checkpoint", checkpointer.lock().step(elapsed));
                let well = steps.run(step);
                panicked.store(well.is_err(), Ordering::Release);
                // A disk that fails is not asked ten times a second, however urgent it is.
                let goes_on = match well {
                    Ok(true) => signal.sleep(TICK),
                    Ok(false) => signal.rest(RETRY_PAUSE),
                    Err(pause) => signal.rest(pause),
                };
                if !goes_on {
                    break;
                }
            }
        };
        let signal = self.flushes.clone();
        let flushes = move || {
            let mut steps = StepRunner::new(FLUSHER);
            while signal.sleep(flush_interval) {
                if let Err(pause) = steps.run(|| report("log flush", redo.flush_regularly())) {
                    signal.rest(pause);
                }
            }
        };
        self.spawn(threads, CHECKPOINTER, checkpoints)?;
        self.spawn(threads, FLUSHER, flushes)?;
        self.runs.store(true, Ordering::Release);
        Ok(())
    }

    fn spawn(
        &self,
        threads: &Threads,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        self.threads.lock().push(threads.spawn(name, run)?);
        Ok(())
    }

    /// Whether there are threads.
    pub fn runs(&self) -> bool {
        self.runs.load(Ordering::Acquire)
    }

    /// Whether the checkpointer, by a bug, cannot do its work at present.
    pub fn is_broken(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// Wakes the checkpointer.
    pub fn hurry(&self) {
        self.checkpoints.wake();
    }

    /// Ends the threads and waits for them.
    pub fn stop(&self) {
        self.checkpoints.stop();
        self.flushes.stop();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a background thread had panicked");
            }
        }
        self.runs.store(false, Ordering::Release);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The threads that an opening starts on its way, if it fails: they end before the directory's lock
/// goes, so that nothing is written once another process may have it.
#[derive(Default)]
pub struct Opening {
    pub pool: Option<Arc<Pool>>,
    pub governor: Option<Arc<PoolGovernor>>,
}

impl Opening {
    /// It has succeeded: the threads live as long as the environment. Gives the pool's governor.
    pub fn done(mut self) -> Arc<PoolGovernor> {
        self.pool = None;
        self.governor.take().expect("the pool was made, and is governed")
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(governor) = &self.governor {
            governor.stop();
        }
        if let Some(pool) = &self.pool {
            pool.shutdown();
            pool.clear_write_ahead();
        }
    }
}

/// A failed step is tried again; if it can't succeed any more, the log has said so already.
/// Returns whether all is well.
fn report(what: &str, result: Result<()>) -> bool {
    match &result {
        Ok(()) | Err(Error::Crashed(_) | Error::Closed) => {}
        Err(error) => tracing::error!(%error, "{what} failed; trying again"),
    }
    result.is_ok()
}
