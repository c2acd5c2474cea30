//! Purge: removes what no read view can see any more.
//!
//! A committed log may be purged once every live view sees its commit: then no reader walks through
//! its records to an older version. Its UPDATE records give back the overflow chains of the
//! versions they replaced; its DELETE records remove the entries they delete-marked, if these still
//! are the newest versions. Then the log's pages are free.
//!
//! # When the entry has been overwritten
//! by a transaction that is still active, the delete-mark is needed only if that one rolls back;
//! and then purge would not come back to it. So purge marks the overwriter's undo record
//! ([`MARK_PRIOR_PURGED`](crate::undo::record::MARK_PRIOR_PURGED)): its rollback removes the entry
//! instead of restoring the delete-mark. [`super::purge_overwrite`] finds that record.
//!
//! # When the table's file is gone
//! though the catalog has the table: what should be removed there is passed over, lest one table
//! that somebody took away keeps the history of all from being purged. Should the file be put back,
//! it has delete-marked entries, which no view sees and a later insert of their keys overwrites,
//! and chains that nothing leads to: room lost until the table is rebuilt, no more. Any other
//! trouble with a file may pass, and is waited for.
//!
//! # When a log has to wait
//! for such trouble to pass, or for an undo page that can't be read, so do those behind it in its
//! stream. Others do not: their streams are purged on, and as long as a stream is stuck no
//! transaction takes it, if it can have another.
//!
//! A log that can't be read to its end is passed over: what it deleted stays where it is, and
//! no view sees it.
//!
//! # Crashes
//! Purging a log twice does no harm: an entry is removed only if it leads to the very record, and a
//! chain is freed only while the record names it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLockReadGuard};
use tidepool_pool::StepRunner;

use super::purge_overwrite::{Deletion, Walk, Walked};
use super::system::TrxSystem;
use crate::btree::Tree;
use crate::env::FoundSpace;
use crate::error::{Error, Remedy, Result};
use crate::files::space_file_name;
use crate::format::entry::{Entry, RollPointer};
use crate::mtr::Mtr;
use crate::options::ForceRecovery;
use crate::undo::damage::is_damage;
use crate::undo::log::set_marks;
use crate::undo::record::{Body, MARK_REMOVED, Place, Record};
use crate::undo::stream::HeadLog;

/// Records looked at before purge lets DROP TABLE in, and looks whether it is to stop.
const RECORDS_A_TURN: usize = 64;
/// Logs in one go of the thread.
const LOGS_A_GO: usize = 128;
/// How often the thread notes which transactions have ended.
const NOTES_APART: Duration = Duration::from_secs(1);
const THREAD: &str = "tidepool-purge";
/// How long the thread sleeps when there is nothing to do.
const IDLE: Duration = Duration::from_millis(200);
/// The longest delay of one writer when no limit is set.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// The background thread.
#[derive(Default)]
pub(super) struct PurgeThread {
    handle: Mutex<Option<JoinHandle<()>>>,
    stop: Mutex<bool>,
    wake: Condvar,
    asleep: AtomicBool,
}

/// Spaces whose file was missing when purge came to them: each is reported once.
#[derive(Default)]
pub(super) struct PassedOver(Mutex<HashSet<u32>>);

impl PassedOver {
    fn tell(&self, space: u32) {
        if self.0.lock().insert(space) {
            tracing::error!(
                "{}: the file of a table is missing, and purge passes over what transactions deleted there: {}",
                space_file_name(space),
                Remedy::PutBackOrDrop
            );
        }
    }
}

/// Access to trees, let go now and then.
struct Turn<'a> {
    system: &'a TrxSystem,
    stop: &'a dyn Fn() -> bool,
    tables: Option<RwLockReadGuard<'a, ()>>,
    trees: HashMap<u32, Option<Tree>>,
    records: usize,
}

impl<'a> Turn<'a> {
    fn new(system: &'a TrxSystem, stop: &'a dyn Fn() -> bool) -> Self {
        Turn { system, stop, tables: None, trees: HashMap::new(), records: 0 }
    }

    /// Called before each record. [`Error::Interrupted`] if purge should stop.
    fn next_record(&mut self) -> Result<()> {
        self.records += 1;
        if self.records.is_multiple_of(RECORDS_A_TURN) {
            self.let_go();
            if (self.stop)() {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    /// What was opened may be dropped now.
    fn let_go(&mut self) {
        self.trees.clear();
        self.tables = None;
    }

    fn tree(&mut self, place: &Place<'_>) -> Result<Option<Tree>> {
        if self.tables.is_none() {
            self.tables = Some(self.system.enter_tables());
        }
        if let Some(tree) = self.trees.get(&place.tree) {
            return Ok(tree.clone());
        }
        let tree = match self.system.find_space_of(place)? {
            FoundSpace::Space(space) => self.system.tree_in(&space, place)?,
            FoundSpace::Gone => None,
            FoundSpace::FileMissing => {
                self.system.passed_over.tell(place.space);
                None
            }
        };
        self.trees.insert(place.tree, tree.clone());
        Ok(tree)
    }
}

/// What has become of a delete-marked entry.
enum Purged {
    Removed,
    /// It is there, or was removed before.
    Stays,
    /// An active transaction has overwritten it, and this way leads to the record that says so.
    Overwritten(Walk),
}

fn deletion<'a>(log: &HeadLog, at: RollPointer, tree: &Tree, key: &'a [u8]) -> Deletion<'a> {
    Deletion { id: log.record.trx_id, at, tree: tree.id(), key }
}

impl TrxSystem {
    /// Purges up to `max_logs` logs; returns how many. Zero: nothing can be purged at the moment.
    /// An error: nothing could be.
    pub fn purge_step(&self, max_logs: usize) -> Result<usize> {
        self.purge_step_unless(max_logs, &|| false)
    }

    /// As [`Self::purge_step`], but leaves off when `stop` says so, be it within a log: that is
    /// purged again from its beginning.
    pub(super) fn purge_step_unless(
        &self,
        max_logs: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<usize> {
        if self.env.force_recovery() >= ForceRecovery::NoPurge {
            return Ok(0);
        }
        let _one = self.purging.lock();
        let mut turn = Turn::new(self, stop);
        let (mut done, mut stuck, mut trouble) = (0, Vec::new(), None);
        let mut reread = HashSet::new();
        while done < max_logs && !stop() {
            let Some(horizon) = self.views.horizon(&self.csn) else { break };
            let log = match self.undo.oldest_committed(horizon.0, &stuck) {
                Ok(Some(log)) => log,
                Ok(None) => break,
                // An unreadable undo page must not keep purge from the other streams.
                Err((stream, error)) => {
                    self.undo.set_stuck(stream, true);
                    stuck.push(stream);
                    trouble = Some(error);
                    continue;
                }
            };
            let (start, end) = (log.start, log.record.end);
            let purged = self.undo.for_each_record(log.stream, start, end, |page, record| {
                self.purge_record(&log, page, &record, &mut turn)
            });
            match purged.and_then(|()| self.undo.purged(&log)) {
                Ok(()) => {
                    self.undo.set_stuck(log.stream, false);
                    self.counters.purged_logs.fetch_add(1, Ordering::Relaxed);
                    done += 1;
                }
                Err(Error::Interrupted) => break,
                // Read twice, lest the bytes were spoilt on their way here.
                Err(error) if is_damage(&error) && reread.insert(log.stream) => {}
                Err(error) if is_damage(&error) => {
                    tracing::error!(
                        "{error}; purge passes over what transaction {} deleted: it takes up room until its tables are rebuilt",
                        log.record.trx_id.0
                    );
                    reread.remove(&log.stream);
                    // It may have been purged already, and only its pages could not be freed.
                    if self.undo.is_oldest(&log)
                        && let Err(error) = self.undo.purged(&log)
                        && self.undo.is_oldest(&log)
                    {
                        return Err(error);
                    }
                    done += 1;
                }
                // An unreadable table must not keep purge from all others.
                Err(error) => {
                    // If only its pages are left to be freed, they are so with those of the next
                    // log in the stream.
                    self.undo.set_stuck(log.stream, self.undo.is_oldest(&log));
                    stuck.push(log.stream);
                    trouble = Some(error);
                }
            }
        }
        match trouble {
            Some(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    fn purge_record(
        &self,
        log: &HeadLog,
        page: u32,
        record: &Record<'_>,
        turn: &mut Turn<'_>,
    ) -> Result<()> {
        turn.next_record()?;
        let at = RollPointer { page, offset: record.start as u16 };
        match &record.body {
            Body::Update(place, _) if record.chain != 0 => {
                if let Some(tree) = turn.tree(place)? {
                    self.free_recorded_chain(at, log.stream, &tree, record.chain)?;
                }
            }
            Body::Delete(place, _) => {
                let mut walked = None;
                while let Some(tree) = turn.tree(place)? {
                    let deletion = deletion(log, at, &tree, place.key);
                    let purged = match record.marks & MARK_REMOVED {
                        0 => self.purge_entry(log, record, &tree, deletion, walked)?,
                        _ => Purged::Removed,
                    };
                    match purged {
                        Purged::Removed if record.chain != 0 => {
                            self.free_recorded_chain(at, log.stream, &tree, record.chain)?;
                            break;
                        }
                        Purged::Removed | Purged::Stays => break,
                        Purged::Overwritten(walk) => {
                            turn.let_go();
                            walked = Some(self.walk_to_overwriter(walk, deletion, turn.stop)?);
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes the entry that the record of `deletion` delete-marked, if that is its newest
    /// version.
    fn purge_entry(
        &self,
        log: &HeadLog,
        record: &Record<'_>,
        tree: &Tree,
        deletion: Deletion<'_>,
        walked: Option<Walked>,
    ) -> Result<Purged> {
        let Deletion { id, at, key, .. } = deletion;
        let mut mtr = Mtr::begin(&self.env)?;
        let leaf = tree.leaf_exclusive(key)?;
        let Ok(slot) = leaf.find(key) else { return Ok(Purged::Stays) };
        let entry = Entry::decode(leaf.payload_at(slot))
            .ok_or_else(|| crate::format::entry::corrupt_entry(leaf.page_id(), slot))?;
        if entry.trx_id != id {
            let walk = match self.csn.is_active(entry.trx_id) {
                true => self.mark_overwriter(mtr, &leaf, &entry, deletion, walked)?,
                false => None,
            };
            return Ok(walk.map_or(Purged::Stays, Purged::Overwritten));
        }
        if entry.roll != at || !entry.is_deleted() {
            return Ok(Purged::Stays);
        }
        if record.chain != 0 {
            let page = self.undo.exclusive(&mut mtr, at.page, log.stream)?;
            set_marks(&mut mtr, page, at, record.marks | MARK_REMOVED);
        }
        let leaf = leaf.remove(&mut mtr, slot);
        let underfull = leaf.is_underfull(&mtr);
        mtr.commit();
        self.counters.purged_entries.fetch_add(1, Ordering::Relaxed);
        if underfull {
            tree.merge_if_possible(key);
        }
        Ok(Purged::Removed)
    }

    /// Slows a transaction's first write down while the history is longer than `max_purge_lag`: 5
    /// ms at the limit, and 10 ms more for each time that the history exceeds it, as InnoDB does.
    pub(super) fn delay_for_purge(&self) {
        let lag = self.settings.max_purge_lag.load(Ordering::Relaxed);
        if lag == 0 {
            return;
        }
        let ratio = self.undo.history_len() as f64 / lag as f64;
        if ratio > 1.0 {
            let limit = self.settings.max_purge_lag_delay_us.load(Ordering::Relaxed);
            let limit = if limit == 0 { DELAY_MAX } else { Duration::from_micros(limit) };
            let delay = Duration::from_micros(((ratio - 0.5) * 10_000.0).min(1e7) as u64);
            std::thread::sleep(delay.min(limit));
        }
    }

    /// Wakes the background thread: there is work.
    pub(super) fn wake_purge(&self) {
        // Not for every commit: a sleeping thread looks by itself soon.
        if self.undo.history_len() > LOGS_A_GO as u64
            && self.purge_thread.asleep.swap(false, Ordering::Relaxed)
        {
            self.purge_thread.wake.notify_one();
        }
    }

    /// Starts the thread that finishes left rollbacks and purges.
    ///
    /// # Errors
    /// The process can't have another thread.
    pub fn start_background(self: &Arc<Self>) -> Result<()> {
        *self.purge_thread.stop.lock() = false;
        let system = Arc::downgrade(self);
        let thread = self.env.pool().threads().spawn(THREAD, move || run(&system))?;
        *self.purge_thread.handle.lock() = Some(thread);
        Ok(())
    }

    /// Stops it, and waits until it has stopped.
    pub fn stop_background(&self) {
        *self.purge_thread.stop.lock() = true;
        self.purge_thread.wake.notify_all();
        if let Some(handle) = self.purge_thread.handle.lock().take()
            && handle.thread().id() != std::thread::current().id()
        {
            let _ = handle.join();
        }
    }

    /// One go of the background thread at left rollbacks; whether there is more to do. Soon over
    /// once [`Self::stop_background`] waits for it, however much one transaction has written.
    pub(super) fn rollback_go(&self) -> bool {
        self.is_busy("rollback", self.rollback_step_unless(&|| self.is_to_stop()))
    }

    /// The same at purge.
    fn purge_go(&self) -> bool {
        let purged = self.purge_step_unless(LOGS_A_GO, &|| self.is_to_stop());
        self.is_busy("purge", purged.map(|logs| logs > 0))
    }

    fn is_to_stop(&self) -> bool {
        *self.purge_thread.stop.lock()
    }

    fn is_busy(&self, what: &str, outcome: Result<bool>) -> bool {
        outcome.unwrap_or_else(|error| {
            // Once a while: the same error comes again at each attempt.
            if self.counters.purge_errors.fetch_add(1, Ordering::Relaxed).is_multiple_of(100) {
                tracing::warn!(%error, "{what} in the background failed and will be tried again");
            }
            false
        })
    }

    fn sleep_in_background(&self) {
        let PurgeThread { stop, wake, asleep, .. } = &self.purge_thread;
        let mut stop = stop.lock();
        if !*stop {
            asleep.store(true, Ordering::Relaxed);
            wake.wait_until(&mut stop, Instant::now() + IDLE);
            asleep.store(false, Ordering::Relaxed);
        }
    }
}

/// One of the thread's two duties. Each outlives panics by itself: a rollback that panics whenever
/// it is tried must not keep purge from its work.
struct Duty {
    go: fn(&TrxSystem) -> bool,
    steps: StepRunner,
    rests_until: Instant,
}

impl Duty {
    fn new(go: fn(&TrxSystem) -> bool) -> Duty {
        Duty { go, steps: StepRunner::new(THREAD), rests_until: Instant::now() }
    }

    /// Whether there is more to do.
    fn go(&mut self, system: &TrxSystem) -> bool {
        if Instant::now() < self.rests_until {
            return false;
        }
        self.steps.run(|| (self.go)(system)).unwrap_or_else(|pause| {
            self.rests_until = Instant::now() + pause;
            false
        })
    }
}

fn run(system: &Weak<TrxSystem>) {
    let mut duties = [TrxSystem::rollback_go, TrxSystem::purge_go].map(Duty::new);
    let mut noted = Instant::now();
    while let Some(system) = system.upgrade() {
        if system.is_to_stop() {
            return;
        }
        if noted.elapsed() >= NOTES_APART && system.env.check_writable().is_ok() {
            noted = Instant::now();
            if let Err(error) = system.note_ended() {
                tracing::warn!(%error, "which transactions have ended could not be noted; it is tried again");
            }
        }
        let is_busy = system.env.check_writable().is_ok()
            && duties.each_mut().map(|duty| duty.go(&system)).contains(&true);
        if !is_busy {
            system.sleep_in_background();
        }
    }
}
