//! Room in the ring: checkpoints, their pacing, files made ahead, and the wait when all that is too
//! late.
//!
//! # Pacing
//! The *age* is the distance from the oldest change that is in no file yet to the end of the log;
//! it must stay below the capacity. Writing dirty pages early wastes writes (a hot page would have
//! changed again), writing them late makes commits wait. The [`Pacer`] lets the age grow freely to
//! a low mark, and from there asks the cleaner to move the oldest change forward in proportion to
//! the log's own growth: at the middle of the band as fast as the log grows, at its top at full
//! speed.
//!
//! # Waiting
//! `RedoLog::has_room` is asked by every mini-transaction at its beginning, holding no latch.
//! `begin_limit` is the end of the ring with its spare files, less a reserve for the
//! mini-transactions that have begun already. Files are made two ahead of the log's end, up to the
//! capacity; when the disk is too full for another, the log makes do with those it has. Should the
//! mini-transactions overrun even the reserve, the writer adds a file beyond the capacity rather
//! than fail; places in the list of files are kept for that. Such a file is room for those who have
//! begun, not for others: a checkpoint that stands still would let one wave of them after the other
//! in.
//!
//! While the checkpoint is held (`RedoLog::hold_checkpoint`), nothing can make room but more files:
//! they are made ahead beyond the capacity, too, and then larger ones, so that their number is no
//! limit. If there can be no more, mini-transactions wait as ever.
//!
//! What a backup has not copied yet is kept in the same way, up to 1 GiB or as much again as the
//! capacity at most, and not where the disk is full: then the backup fails, for the server must not
//! wait for wherever it writes to.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidepool_pool::Lsn;

use super::log::{count, count_time};
use super::ring::{REDO_DIR, default_file_size, file_name, make_file};
use super::{CAPACITY_MIN_BYTES, RedoLog, Ring, block_floor};
use crate::error::{Error, Result};
use crate::pause::{self, PausePoint};

/// A share of the capacity kept free for mini-transactions under way.
const RESERVE_SHARE: u64 = 32;
const RESERVE_MAX_BYTES: u64 = 8 << 20;
/// Room for this many files is kept ready in front of the log.
const FILES_AHEAD: u64 = 2;
/// Places in the list that no file made ahead takes.
pub(super) const FILES_KEPT_FOR_THE_WRITER: usize = 8;
/// So far the log may outgrow its capacity for a backup, at least.
const KEPT_BEYOND_CAPACITY_MIN_BYTES: u64 = 1 << 30;
/// The log over this is the size of a file made beyond the capacity.
const BEYOND_CAPACITY_SHARE: u64 = 8;

impl RedoLog {
    /// Capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Bytes of the present files.
    pub(crate) fn files_bytes(&self) -> u64 {
        self.ring.lock().total_size()
    }

    /// Changes the capacity, at once for the pacing, and for the files as the ring turns: new files
    /// are made in the new size when room is needed; spare ones beyond the capacity are removed as
    /// they come free.
    pub fn set_capacity(&self, bytes: u64) -> Result<()> {
        if bytes < CAPACITY_MIN_BYTES {
            return Err(Error::InvalidOption(format!(
                "redo log capacity {bytes} is below the minimum of {CAPACITY_MIN_BYTES} bytes"
            )));
        }
        let mut ring = self.ring.lock();
        self.automatic_capacity.store(false, Ordering::Relaxed);
        self.change_capacity(&mut ring, bytes);
        Ok(())
    }

    /// Whether [`adapt_capacity`](Self::adapt_capacity) has a say; setting a capacity takes it
    /// away.
    pub(crate) fn set_automatic_capacity(&self, on: bool) {
        self.automatic_capacity.store(on, Ordering::Relaxed);
    }

    /// Changes the capacity unless somebody has set one.
    pub(crate) fn adapt_capacity(&self, bytes: u64) {
        let mut ring = self.ring.lock();
        if self.automatic_capacity.load(Ordering::Relaxed) {
            self.change_capacity(&mut ring, bytes);
        }
    }

    fn change_capacity(&self, ring: &mut Ring, bytes: u64) {
        self.capacity.store(bytes, Ordering::Relaxed);
        ring.set_file_size(default_file_size(bytes));
        self.update_begin_limit(ring);
    }

    fn reserve(&self) -> u64 {
        (self.capacity() / RESERVE_SHARE).min(RESERVE_MAX_BYTES)
    }

    /// The age at which mini-transactions begin to wait, about.
    pub fn age_max(&self) -> u64 {
        let capacity = self.capacity();
        let file = default_file_size(capacity);
        capacity.saturating_sub(2 * file + self.reserve()).max(capacity / 2)
    }

    /// Recomputes where mini-transactions must wait, after any change of the ring, and wakes those
    /// that may go on.
    pub(super) fn update_begin_limit(&self, ring: &Ring) {
        let overrun = match self.may_outgrow(ring) {
            true => 0,
            false => ring.overrun(self.capacity()),
        };
        let limit = (ring.end().0 + ring.spare_bytes()).saturating_sub(overrun);
        // With no disk to grow, the ring may be far smaller than the capacity: some of it must be
        // left to use.
        let limit = limit.saturating_sub(self.reserve().min(ring.total_size() / 4));
        let before = self.begin_limit.swap(limit, Ordering::Release);
        if limit > before {
            self.wake_room();
        }
    }

    pub(crate) fn wake_room(&self) {
        let _guard = self.room.mutex.lock();
        self.room.changed.notify_all();
    }

    /// Whether a mini-transaction may begin.
    pub(crate) fn has_room(&self) -> bool {
        self.next_lsn().0 < self.begin_limit.load(Ordering::Acquire) && !self.full_disk.is_full()
    }

    /// Whether the checkpointer is at full speed, or about to be: soon a mini-transaction would
    /// have to wait for room.
    pub(crate) fn is_crowded(&self) -> bool {
        let age = self.next_lsn().0.saturating_sub(self.checkpoint_lsn().0);
        !self.is_checkpoint_held() && age as f64 >= HIGH_MARK * self.age_max() as f64
    }

    /// Waits while it is crowded, for `timeout` at most.
    pub(crate) fn wait_while_crowded(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let mut guard = self.room.mutex.lock();
        while self.is_crowded() && !self.failure.is_set() {
            if self.room.changed.wait_until(&mut guard, until).timed_out() {
                return;
            }
        }
    }

    /// Keeps the checkpoint where it is, for what recovery read in the log must be found there
    /// again; or no longer. Meanwhile the log grows beyond its capacity, as nothing else can make
    /// room.
    pub(crate) fn hold_checkpoint(&self, hold: bool) {
        self.checkpoint_held.store(hold, Ordering::Release);
        if !hold {
            // Why there could be no more files does not matter any more.
            self.ring.lock().set_growth_error(None);
        }
    }

    fn is_checkpoint_held(&self) -> bool {
        self.checkpoint_held.load(Ordering::Acquire)
    }

    /// Whether more files are made than the capacity is for.
    fn may_outgrow(&self, ring: &Ring) -> bool {
        self.is_checkpoint_held() || ring.keeps_more() || ring.has_too_few()
    }

    /// Gives up what a backup has not copied yet. Returns whether there was any.
    fn keep_no_more(&self, ring: &mut Ring) -> Result<bool> {
        if !ring.keeps_more() {
            return Ok(false);
        }
        tracing::warn!("the redo log goes on without a backup that has not copied it in time");
        self.or_fail_unless_full(|| ring.keep(None))?;
        Ok(true)
    }

    /// Counts a wait for room.
    pub(crate) fn count_capacity_wait(&self) {
        count(&self.counters.capacity_waits, 1);
    }

    /// Counts how long it took.
    pub(crate) fn count_capacity_wait_time(&self, time: Duration) {
        count_time(&self.counters.capacity_waits_us, time);
    }

    /// Waits until there is room, or the log has failed, or `timeout` is over.
    pub(crate) fn wait_for_room(&self, timeout: Duration) {
        let mut guard = self.room.mutex.lock();
        if !self.has_room() && !self.failure.is_set() {
            self.room.changed.wait_for(&mut guard, timeout);
        }
    }

    /// Takes a checkpoint at the oldest dirty page, or at the end of the log if there is none.
    /// `oldest_dirty` runs when the pages of all frames before that end are marked, and what is
    /// appended while it runs lies behind it. `settle` makes durable, after that, what should be
    /// durable before the checkpoint is. Returns the checkpoint's LSN.
    pub(crate) fn checkpoint(
        &self,
        oldest_dirty: impl FnOnce() -> Option<Lsn>,
        settle: impl FnOnce(),
        clean_shutdown: bool,
    ) -> Result<Lsn> {
        self.failure.check()?;
        match (self.is_checkpoint_held(), clean_shutdown) {
            (false, _) => {}
            (true, false) => return Ok(self.checkpoint_lsn()),
            (true, true) => {
                return Err(Error::Storage("what recovery found is not remembered yet".into()));
            }
        }
        if clean_shutdown {
            // The last write may end with a mark, which the log then ends with.
            self.flush()?;
        }
        let end = Lsn(self.buffer.settled_end());
        let lsn = oldest_dirty().map_or(end, |oldest| oldest.min(end));
        let before = self.checkpoint_lsn();
        debug_assert!(lsn >= before, "a page is dirty since before the checkpoint");
        if lsn <= before && !clean_shutdown {
            return Ok(before);
        }
        let lsn = self.repeat_pending_spaces(lsn)?;
        if lsn <= before && !clean_shutdown {
            return Ok(before);
        }
        // Recovery will look for a frame at the checkpoint.
        self.flush_to(lsn)?;
        assert!(self.flushed_lsn() >= lsn, "the log is durable up to its checkpoint");
        settle();
        let epoch = self.epoch_at(lsn);
        let mut ring = self.ring.lock();
        ring.note_durable(self.flushed_lsn());
        self.or_fail_unless_full(|| ring.set_checkpoint(lsn, epoch, clean_shutdown))?;
        self.checkpoint.store(lsn.0, Ordering::Release);
        self.update_begin_limit(&ring);
        drop(ring);
        count(&self.counters.checkpoints, 1);
        Ok(lsn)
    }

    /// The epoch in force at `lsn`; forgets the older ones.
    fn epoch_at(&self, lsn: Lsn) -> u32 {
        let mut epochs = self.epochs.lock();
        while epochs.len() > 1 && epochs[1].0 <= lsn {
            epochs.remove(0);
        }
        debug_assert!(epochs.is_sorted(), "later epochs begin later");
        epochs[0].1
    }

    /// Has the ring's next files ready before the log gets there, and removes files beyond the
    /// capacity. A background step: no commit should ever have to do this itself.
    pub(crate) fn prepare_files(&self) -> Result<()> {
        self.failure.check()?;
        while !self.stops_preparing() && self.prepare_file()? {}
        Ok(())
    }

    /// Has no more files made ahead from now on, one that is being filled included: the log is
    /// about to be closed, and a file may be of gigabytes.
    pub(crate) fn stop_preparing(&self) {
        self.stops_preparing.store(true, Ordering::Release);
    }

    fn stops_preparing(&self) -> bool {
        self.stops_preparing.load(Ordering::Acquire)
    }

    /// Whether the space on the disk is needed for what is in the log: then it makes no file that
    /// checkpoints can do without.
    pub(crate) fn leave_disk(&self, leaves: bool) {
        self.leaves_disk.store(leaves, Ordering::Relaxed);
    }

    /// Puts the ring in order, and says which file comes next.
    fn choose_file(&self) -> Result<Choice> {
        let mut ring = self.ring.lock();
        let next = self.next_lsn().0;
        let size = ring.next_file_size(Lsn(next));
        if ring.end().0.saturating_sub(next) < size && ring.spares() > 0 {
            self.or_fail_unless_full(|| ring.extend())?;
        }
        let capacity = self.capacity();
        let far_beyond = capacity + capacity.max(KEPT_BEYOND_CAPACITY_MIN_BYTES);
        if ring.total_size() > far_beyond && !self.is_checkpoint_held() {
            self.keep_no_more(&mut ring)?;
        }
        let may_outgrow = self.may_outgrow(&ring);
        let leaves_disk = self.leaves_disk.load(Ordering::Relaxed);
        let oversized = ring.oversized_spare(capacity).filter(|_| !may_outgrow && !leaves_disk);
        // The bytes of that file are no part of the capacity.
        let extra = oversized.unwrap_or(0);
        // What was made beyond the capacity is there to be used.
        if !may_outgrow && self.or_fail_unless_full(|| ring.remove_spare(capacity + extra))? {
            return Ok(Choice::LookAgain);
        }
        if let Some(bytes) = oversized {
            // Smaller files take its place first: as many as the capacity has room for.
            let rest = (capacity + 1).saturating_sub(size);
            if self.or_fail_unless_full(|| ring.remove_spare_of(bytes, rest))? {
                return Ok(Choice::LookAgain);
            }
        }
        self.update_begin_limit(&ring);
        let ahead = ring.end().0.saturating_sub(next) + ring.spare_bytes() - extra;
        let is_beyond = ring.total_size() - extra + size > capacity;
        if is_beyond && !may_outgrow {
            // There are as many as there shall be. That another could not be made was when
            // fewer were there, or more were wanted; who waits now waits for a checkpoint,
            // however slow.
            ring.set_growth_error(None);
            return Ok(Choice::Nothing);
        }
        if oversized.is_none() && ahead >= FILES_AHEAD * size {
            return Ok(Choice::Nothing);
        }
        if let Err(error) = ring.check_room(FILES_KEPT_FOR_THE_WRITER) {
            if self.keep_no_more(&mut ring)? {
                return Ok(Choice::LookAgain);
            }
            // Within the capacity, the log goes on in the files it has: checkpoints make room.
            if is_beyond {
                ring.set_growth_error(Some(error));
            }
            return Ok(Choice::Nothing);
        }
        let may_wait = !self.is_checkpoint_held() && !ring.has_too_few();
        if leaves_disk && may_wait {
            if self.keep_no_more(&mut ring)? {
                return Ok(Choice::LookAgain);
            }
            ring.set_growth_error(Some(Error::NoSpace(REDO_DIR.into())));
            return Ok(Choice::Nothing);
        }
        let larger = block_floor(ring.total_size() / BEYOND_CAPACITY_SHARE);
        let size = if is_beyond { size.max(larger) } else { size };
        Ok(Choice::Make { file_no: ring.take_file_no(), size, replaces: oversized.is_some() })
    }

    /// Makes one file, if one is wanted. Returns whether to look again.
    fn prepare_file(&self) -> Result<bool> {
        let (file_no, size, replaces) = match self.choose_file()? {
            Choice::Make { file_no, size, replaces } => (file_no, size, replaces),
            Choice::LookAgain => return Ok(true),
            Choice::Nothing => return Ok(false),
        };
        // Filling a file takes a while: not under the ring's mutex.
        let made = make_file(&*self.storage, file_no, size, &|| self.stops_preparing());
        pause::reach(PausePoint::RedoFileMade);
        let mut ring = self.ring.lock();
        match made {
            Ok(file) if !ring.has_room() => {
                // The writer could not wait for it, and listed the last that can be listed.
                drop((ring, file));
                // Best effort: a file that stays is removed at the next open.
                let _ = self.storage.remove(&file_name(file_no));
                Ok(false)
            }
            Ok(file) => {
                ring.set_growth_error(None);
                self.or_fail_unless_full(|| ring.add_spare(file_no, file, size)).inspect_err(
                    |_| {
                        // As above: the next try makes one of another number.
                        let _ = self.storage.remove(&file_name(file_no));
                    },
                )?;
                self.update_begin_limit(&ring);
                Ok(true)
            }
            Err(Error::Interrupted) => Ok(false),
            Err(_) if self.keep_no_more(&mut ring)? => Ok(true),
            Err(_) if replaces => Ok(false),
            // The log goes on in the files it has.
            Err(error) => {
                if ring.growth_error().is_none() {
                    tracing::warn!(%error, "the redo log cannot grow to its capacity");
                }
                ring.set_growth_error(Some(error));
                Ok(false)
            }
        }
    }

    /// Why the log cannot grow to its capacity, if that failed.
    pub(crate) fn growth_error(&self) -> Option<Error> {
        self.ring.lock().growth_error().cloned()
    }
}

/// What [`RedoLog::prepare_files`] does next.
enum Choice {
    /// Make a file of `size` bytes. One that `replaces` a file of a larger capacity can be done
    /// without.
    Make {
        file_no: u32,
        size: u64,
        replaces: bool,
    },
    /// The ring was changed.
    LookAgain,
    Nothing,
}

/// What the cleaner should do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Write the pages that were first changed before this.
    pub target: Lsn,
    /// Do it without pause: commits wait, or soon will.
    pub urgent: bool,
}

/// Decides how far the cleaner must have come, from the age and the growth of the log.
#[derive(Debug, Default)]
pub struct Pacer {
    last_end: Option<Lsn>,
    /// Growth of the log, bytes a second, smoothed.
    rate: f64,
    /// Time and growth since pages were last asked for.
    pending: (Duration, u64),
}

/// Below this share of the maximal age nothing is written for the checkpoint's sake.
const LOW_MARK: f64 = 0.15;
/// Here the oldest change moves as fast as the log grows.
const EVEN_MARK: f64 = 0.6;
/// From here on: full speed.
const HIGH_MARK: f64 = 0.85;
/// While there is no hurry, pages are asked for this often: each time costs a few syncs, which
/// commits feel.
const STEADY_INTERVAL: Duration = Duration::from_millis(500);
/// Time constant of the rate's smoothing, seconds.
const SMOOTHING_S: f64 = 2.0;

impl Pacer {
    /// One step, `elapsed` after the last one. `oldest` is the oldest dirty LSN, `end` the log's
    /// end. `None` if nothing needs to be written now.
    pub fn step(
        &mut self,
        oldest: Option<Lsn>,
        end: Lsn,
        age_max: u64,
        elapsed: Duration,
    ) -> Option<Pace> {
        let seconds = elapsed.as_secs_f64().max(1e-3);
        let grown = end.0.saturating_sub(self.last_end.unwrap_or(end).0);
        self.last_end = Some(end);
        let weight = 1.0 - (-seconds / SMOOTHING_S).exp();
        self.rate += (grown as f64 / seconds - self.rate) * weight;
        self.pending.0 += elapsed;
        self.pending.1 += grown;
        let oldest = oldest?;
        let age = end.0.saturating_sub(oldest.0) as f64;
        let fill = age / age_max as f64;
        if fill >= HIGH_MARK {
            self.pending = Default::default();
            // Down to where steady pacing takes over, so that full speed doesn't flicker.
            let target = end.0.saturating_sub((EVEN_MARK * age_max as f64) as u64);
            return Some(Pace { target: Lsn(target), urgent: true });
        }
        if self.pending.0 < STEADY_INTERVAL {
            return None;
        }
        let (time, grown) = std::mem::take(&mut self.pending);
        if fill < LOW_MARK {
            return None;
        }
        let intensity = (fill - LOW_MARK) / (EVEN_MARK - LOW_MARK);
        // The latest growth counts too, so that a burst is answered at once.
        let advance = (self.rate * time.as_secs_f64()).max(grown as f64) * intensity;
        Some(Pace { target: Lsn(oldest.0 + advance as u64), urgent: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE_MAX: u64 = 100 << 20;
    const TICK: Duration = Duration::from_millis(100);

    /// Runs a log that grows by `growth(tick)` bytes a tick, with a cleaner that does as asked up
    /// to `speed` bytes a tick; returns the ages.
    fn run(ticks: u64, speed: u64, growth: impl Fn(u64) -> u64) -> Vec<u64> {
        let (mut oldest, mut end, mut pacer) = (1u64, 1u64, Pacer::default());
        (0..ticks)
            .map(|tick| {
                end += growth(tick);
                if let Some(pace) = pacer.step(Some(Lsn(oldest)), Lsn(end), AGE_MAX, TICK) {
                    oldest = pace.target.0.clamp(oldest, oldest + speed).min(end);
                }
                end - oldest
            })
            .collect()
    }

    #[test]
    fn a_steady_load_settles_in_the_band() {
        let ages = run(3000, 1 << 40, |_| 1 << 20);
        assert!(ages.iter().all(|&age| age < AGE_MAX * 8 / 10));
        let last = ages[2999] as f64 / AGE_MAX as f64;
        assert!((last - EVEN_MARK).abs() < 0.05, "settles at the even mark, not {last}");
    }

    #[test]
    fn bursts_stay_below_the_maximum() {
        let ages = run(5000, 12 << 20, |tick| if tick / 50 % 2 == 0 { 8 << 20 } else { 1 << 10 });
        assert!(ages.iter().all(|&age| age < AGE_MAX), "{}", ages.iter().max().unwrap());
    }

    #[test]
    fn an_idle_log_asks_for_nothing() {
        let mut pacer = Pacer::default();
        assert_eq!(pacer.step(None, Lsn(1 << 30), AGE_MAX, TICK), None);
        assert_eq!(pacer.step(Some(Lsn((1 << 30) - 1000)), Lsn(1 << 30), AGE_MAX, TICK), None);
    }
}
