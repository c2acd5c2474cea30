//! The warm restart: the pages that were hot when the engine stopped, however it stopped, are read
//! in the background after it has started again.
//!
//! # Saving
//! The thread "tidepool-warm" writes the [hot list](crate::hot_list) soon after the start, then
//! ever less often until it does so once a minute, and only if what is hot has changed; a clean
//! shutdown writes it, too. What the older list names and the pool does not hold stays on it,
//! behind what the pool holds, as long as the list is no longer than it was: a start with the
//! loading switched off or a pool that had to give memory back does not lose the list, nor does a
//! load that is under way, whose pages are as good as held. What no query asks for grows old: each
//! time that as many pages as are listed came in by queries, it loses a degree of heat, and with
//! the last its place.
//!
//! # Loading
//! Many pages come with one read, [those that bring the most heat](super::warm_reads) first. One
//! read is in flight at most, and if queries had to read meanwhile, it rests afterwards: for as
//! long as the read took if it brought as few pages as queries would have brought in its place, for
//! less if more. Nothing is evicted for it. When the pool is full, or was made smaller, it waits
//! until the pool is made larger: not merely for free frames, since the evictor would make some
//! again and again. An hour after its begin it waits no more.
//!
//! # Whose pages
//! Space ids are never used again, so a list cannot name the pages of another table than it means;
//! and a page is used as what its own header says, never as what the list says. A table's file is
//! opened here before anybody uses the table, so that it is warm when that happens: under
//! `definitions`, while the catalog has the table, lest a file be opened that is about to be
//! removed.
//!
//! # Locking order
//! `work` before `definitions`; no thread waits for `work` holding anything. `texts` comes last.

use super::Inner;
use super::warm_reads::{READ_BYTES, Reads};
use super::worker::Worker;
use crate::error::{Error, Result};
use crate::files::{SYSTEM_SPACE, UNDO_SPACE};
use crate::hot_list::{self, HotList, Owner, PAGES_MAX};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidepool_pool::storage::AlignedBuf;
use tidepool_pool::{HEATS, PageId, Pool, PoolStats, StepRunner, Wakeup, Warmed};

/// After a read of this many pages it rests for as long as the read took, after one of twice as
/// many for half of that.
const PAGES_FOR_REST: u32 = 4;
/// The longest rest between two reads.
const REST_MAX: Duration = Duration::from_millis(50);
/// How often a load that waits looks whether the pool was made larger, and how long after its begin
/// it still does.
const WAIT_PAUSE: Duration = Duration::from_secs(1);
const LOAD_MAX: Duration = Duration::from_secs(3600);
/// Spaces opened at a time.
const OPEN_AT_ONCE: usize = 64;
/// Time from the start, or from the end of the loading, to the first list; and, doubled each time,
/// the longest between two.
const SAVE_FIRST: Duration = Duration::from_secs(5);
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// A list is written anew when this share of its pages came, or changed their heat, since the last.
const CHANGED_SHARE: u64 = 32;
const THREAD: &str = "tidepool-warm";
/// Rest between two slices of the search for hot pages.
const SLICE_REST: Duration = Duration::from_millis(1);

/// What is going on, and what went on last.
#[derive(Default)]
pub(super) struct WarmRestart {
    work: Mutex<Work>,
    texts: Mutex<Texts>,
    worker: Worker,
    abort: AtomicBool,
}

#[derive(Default)]
struct Work {
    load: Load,
    saved: Option<Saved>,
    /// The last save failed, and the error log says so.
    failing: bool,
    /// Pages that loads have brought, ever.
    loaded: u64,
    /// Pages that queries had brought when what the list kept last became older.
    aged: u64,
}

#[derive(Default, Clone)]
struct Texts {
    load: String,
    dump: String,
}

/// What the last list was about.
struct Saved {
    counts: [u64; HEATS],
    came: u64,
}

#[derive(Default)]
enum Load {
    /// Nothing to do, or done.
    #[default]
    Idle,
    /// The list must be read.
    Pending,
    Running(Box<Loading>),
}

impl Load {
    /// Whether pages of the list are about to come into the pool.
    fn is_under_way(&self) -> bool {
        match self {
            Load::Idle => false,
            Load::Pending => true,
            Load::Running(loading) => loading.waits.is_none(),
        }
    }
}

/// A list that is being loaded.
struct Loading {
    /// Files that could not be opened.
    unopened: usize,
    reads: Reads,
    /// None while it waits.
    buffer: Option<AlignedBuf>,
    started: Instant,
    loaded: u64,
    /// Frames that the pool might have at the last step, or, while it waits, the fewest since.
    limit: u32,
    /// What it waits for the pool to be made larger for.
    waits: Option<&'static str>,
    demand_reads: u64,
}

/// What came of a step of the loading.
enum LoadStep {
    /// There is nothing to load.
    Idle,
    /// There is, but no room. The next may be tried after [`WAIT_PAUSE`].
    Waits,
    /// Goes on, after this rest.
    Goes(Duration),
}

/// Pages that came into the pool, ever.
fn came(stats: &PoolStats) -> u64 {
    stats.reads + stats.read_ahead + stats.pages_created
}

impl Loading {
    /// Whether it may go on, with the pool as it is now.
    fn may_go_on(&mut self, pool: &Pool) -> bool {
        let limit = pool.page_limit();
        if limit < self.limit {
            self.wait(limit, "is getting smaller");
        } else if self.waits.is_none() {
            self.limit = limit;
            if !pool.has_room_to_warm() {
                self.wait(limit, "is full");
            }
        } else if limit > self.limit && pool.has_room_to_warm() {
            self.limit = limit;
            self.waits = None;
        }
        self.waits.is_none()
    }

    fn wait(&mut self, limit: u32, why: &'static str) {
        (self.limit, self.waits, self.buffer) = (limit, Some(why), None);
    }
}

impl WarmRestart {
    pub(super) fn load_status(&self) -> String {
        self.texts.lock().load.clone()
    }

    pub(super) fn dump_status(&self) -> String {
        self.texts.lock().dump.clone()
    }

    fn tell_load(&self, text: String) {
        self.texts.lock().load = text;
    }
}

impl Inner {
    fn hot_list_owner(&self) -> Owner {
        Owner { uuid: self.env.instance(), page_size: self.env.page_size() as u32 }
    }

    /// The spaces of all tables, and the engine's own.
    fn known_spaces(&self) -> HashSet<u32> {
        let tables = self.catalog.tables();
        let own = [SYSTEM_SPACE, UNDO_SPACE];
        tables.iter().map(|(_, record)| record.space).chain(own).collect()
    }

    /// Begins, at the open: the list waits to be loaded, the thread runs.
    pub(super) fn start_warm_restart(self: &Arc<Self>) -> Result<()> {
        let options = self.options.read().clone();
        if options.buffer_pool_load_at_startup && !self.env.is_new() {
            self.warm.work.lock().load = Load::Pending;
        }
        if !options.background {
            return Ok(());
        }
        self.warm.worker.start(THREAD, self, run)
    }

    /// Ends the thread and waits for it, unless it is the caller.
    pub(super) fn stop_warm_restart(&self) {
        self.warm.worker.stop();
    }

    /// The last list, at a clean shutdown.
    pub(super) fn save_hot_list_at_close(&self) {
        let mut work = self.warm.work.lock();
        if self.options.read().buffer_pool_dump_at_shutdown && self.env.check_writable().is_ok() {
            self.save_hot_list(&mut work, true, || true);
        }
    }

    /// Writes the list, of the pool's pages alone or with what the older list `keeps`. A failure is
    /// reported once, until it succeeds again.
    fn save_hot_list(&self, work: &mut Work, keeps: bool, mut go_on: impl FnMut() -> bool) -> bool {
        let started = Instant::now();
        let pool = self.env.pool();
        let came = came(&pool.stats());
        let Some(held) = pool.hot_pages(PAGES_MAX, &mut go_on) else { return false };
        let counts = std::array::from_fn(|heat| held[heat].len() as u64);
        let asked_for = came.saturating_sub(work.loaded);
        let mut list = HotList { held, ..HotList::default() };
        let aged = match keeps {
            true => self.keep_older(&mut list, asked_for, work),
            false => asked_for,
        };
        let count = list.count();
        let saved = hot_list::save(&**self.env.storage(), self.hot_list_owner(), &list);
        let text = match &saved {
            Ok(()) => {
                (work.saved, work.aged) = (Some(Saved { counts, came }), aged);
                let ms = started.elapsed().as_millis();
                format!("Buffer pool(s) dump completed: {count} pages in {ms} ms")
            }
            Err(error) => {
                if !work.failing {
                    tracing::warn!(%error, "the list of hot pages could not be saved; the older one, if any, stays");
                }
                format!("Buffer pool(s) dump failed: {error}")
            }
        };
        work.failing = saved.is_err();
        self.warm.texts.lock().dump = text;
        saved.is_ok()
    }

    /// Adds what the list in the file names besides, older by a degree for each time that queries
    /// brought as many pages as it names, of the `asked_for` since it last became older. Gives up
    /// to which of them it is as old as that.
    fn keep_older(&self, list: &mut HotList, asked_for: u64, work: &Work) -> u64 {
        let older = hot_list::load(&**self.env.storage(), self.hot_list_owner());
        // One that can't be used is replaced.
        let Ok(Some(older)) = older else { return asked_for };
        let known = self.known_spaces();
        let is_there = |id: &PageId| known.contains(&id.space);
        let listed = older.pages().filter(|id| is_there(id)).count().max(1) as u64;
        let age = (asked_for - work.aged) / listed;
        list.keep_older(&older, is_there, age, work.load.is_under_way());
        work.aged + age * listed
    }

    /// Whether another list would say something else than the last.
    fn is_hot_list_old(&self, work: &Work, go_on: impl FnMut() -> bool) -> bool {
        let Some(saved) = &work.saved else { return true };
        let pool = self.env.pool();
        let Some(counts) = pool.count_heat(go_on) else { return false };
        let many = counts.iter().sum::<u64>() / CHANGED_SHARE + 1;
        let moved: u64 =
            counts.iter().zip(saved.counts).map(|(now, then)| now.abs_diff(then)).sum();
        moved / 2 >= many || came(&pool.stats()) - saved.came >= many
    }

    /// Saves the list if there is a reason to. Whether one was written.
    fn save_hot_list_if_old(&self, go_on: impl FnMut() -> bool + Clone) -> bool {
        let mut work = self.warm.work.lock();
        self.options.read().buffer_pool_dump_at_shutdown
            && self.env.check_writable().is_ok()
            && self.is_hot_list_old(&work, go_on.clone())
            && self.save_hot_list(&mut work, true, go_on)
    }

    /// One read of the loading, or what comes before or after.
    fn step_load(&self) -> LoadStep {
        let mut work = self.warm.work.lock();
        let work = &mut *work;
        let loading = match &mut work.load {
            Load::Idle => return LoadStep::Idle,
            Load::Pending => {
                self.warm.abort.store(false, Ordering::Relaxed);
                work.load = self.begin_load();
                return match work.load {
                    Load::Running(_) => LoadStep::Goes(Duration::ZERO),
                    _ => LoadStep::Idle,
                };
            }
            Load::Running(loading) => loading,
        };
        let pool = self.env.pool();
        let total = loading.reads.total();
        let aborted = self.warm.abort.swap(false, Ordering::Relaxed);
        if !aborted && !loading.may_go_on(pool) && loading.started.elapsed() < LOAD_MAX {
            let (loaded, why) = (loading.loaded, loading.waits.unwrap_or_default());
            self.warm.tell_load(format!(
                "Loaded {loaded} of {total} pages, and waits: the buffer pool {why}"
            ));
            return LoadStep::Waits;
        }
        let may_read = !aborted && loading.waits.is_none();
        let next = may_read.then(|| loading.reads.peek()).flatten();
        let Some((space, pages)) = next else {
            let how = match loading.waits {
                _ if aborted => "aborted on request".to_owned(),
                Some(why) => format!("ended, for the buffer pool {why}"),
                None => "completed".to_owned(),
            };
            let (loaded, ms) = (loading.loaded, loading.started.elapsed().as_millis());
            let mut text =
                format!("Buffer pool(s) load {how}: {loaded} of {total} pages in {ms} ms");
            if loading.unopened > 0 {
                text += &format!("; {} files could not be opened", loading.unopened);
            }
            tracing::info!("{text}");
            self.warm.tell_load(text);
            work.load = Load::Idle;
            return LoadStep::Idle;
        };
        let began = Instant::now();
        let mut warmed = Warmed { pages: 0, tried: pages.len() };
        // Not there: the table was dropped, or its file is missing, which its next user will find
        // out.
        if let Some(space) = pool.space(space) {
            let buffer = loading.buffer.get_or_insert_with(|| AlignedBuf::zeroed(READ_BYTES));
            warmed = pool.warm(&space, pages, buffer);
            loading.loaded += warmed.pages;
            work.loaded += warmed.pages;
        }
        loading.reads.done(warmed.tried);
        let took = began.elapsed();
        let reads = pool.stats().reads;
        let others = reads - std::mem::replace(&mut loading.demand_reads, reads);
        let loaded = loading.loaded;
        self.warm.tell_load(format!("Loaded {loaded} of {total} pages"));
        let brought = u32::try_from(warmed.pages).unwrap_or(u32::MAX).max(1);
        let rest = (took * PAGES_FOR_REST / brought).min(REST_MAX);
        LoadStep::Goes(if others > 0 { rest } else { Duration::ZERO })
    }

    /// Ends a loading that meets a bug. The rest of the pages come when they are asked for.
    fn give_up_load(&self) {
        self.warm.work.lock().load = Load::Idle;
        self.warm.tell_load("Buffer pool(s) load ended by an internal error".into());
    }

    /// Reads the list and opens the spaces that it names.
    fn begin_load(&self) -> Load {
        let list = match hot_list::load(&**self.env.storage(), self.hot_list_owner()) {
            Ok(Some(list)) => list,
            Ok(None) => {
                self.warm.tell_load("There is no list of hot pages".into());
                return Load::Idle;
            }
            Err(why) => {
                tracing::warn!(why, "the list of hot pages is not usable: the start is a cold one");
                self.warm.tell_load(format!("The list of hot pages is not usable: {why}"));
                return Load::Idle;
            }
        };
        let spaces: HashSet<u32> = list.pages().map(|id| id.space).collect();
        let mut spaces: Vec<u32> = spaces.into_iter().collect();
        spaces.sort_unstable();
        let mut unopened = Vec::new();
        for some in spaces.chunks(OPEN_AT_ONCE) {
            if self.warm.worker.is_stopped() {
                break;
            }
            let _no_change = self.definitions.lock();
            let known = self.known_spaces();
            for &space in some.iter().filter(|space| known.contains(space)) {
                unopened.extend(self.env.space(space).err());
            }
        }
        if let Some(error) = unopened.first() {
            // A statement that uses the table opens its file again.
            let files = unopened.len();
            tracing::warn!(%error, files, "files could not be opened: their hot pages are not loaded");
        }
        let pool = self.env.pool();
        let stats = pool.stats();
        let room = (pool.page_limit() as usize).saturating_sub(stats.pages_data as usize);
        Load::Running(Box::new(Loading {
            reads: Reads::plan(&list, room, self.env.page_size()),
            unopened: unopened.len(),
            buffer: None,
            started: Instant::now(),
            loaded: 0,
            limit: pool.page_limit(),
            waits: None,
            demand_reads: stats.reads,
        }))
    }
}

fn run(inner: &Weak<Inner>, signal: &Wakeup) {
    let mut save_pause = SAVE_FIRST;
    let mut save_at = Instant::now() + save_pause;
    let mut pause = Duration::ZERO;
    let mut steps = StepRunner::new(THREAD);
    while signal.sleep(pause) {
        let Some(inner) = inner.upgrade() else { return };
        let loaded = steps.run(|| inner.step_load()).unwrap_or_else(|_| {
            // It would panic again.
            inner.give_up_load();
            LoadStep::Idle
        });
        let look_again = match loaded {
            LoadStep::Goes(rest) => {
                (pause, save_pause) = (rest, SAVE_FIRST);
                save_at = Instant::now() + save_pause;
                continue;
            }
            LoadStep::Waits => WAIT_PAUSE,
            LoadStep::Idle => Duration::MAX,
        };
        if Instant::now() >= save_at {
            // If this panics, the pause until the next time is one already.
            let _ = steps.run(|| {
                inner.save_hot_list_if_old(|| {
                    std::thread::sleep(SLICE_REST);
                    !signal.is_stopped()
                })
            });
            save_pause = (2 * save_pause).min(SAVE_EVERY);
            save_at = Instant::now() + save_pause;
        }
        pause = save_at.saturating_duration_since(Instant::now()).min(look_again);
    }
}

impl super::Db {
    /// Saves the list of hot pages now, whatever the options say: those that are in the pool, and
    /// no others. The status `buffer_pool_dump_status` has the outcome, too.
    pub fn dump_buffer_pool(&self) -> Result<()> {
        self.inner.check_writable()?;
        let mut work = self.inner.warm.work.lock();
        if self.inner.save_hot_list(&mut work, false, || true) {
            return Ok(());
        }
        Err(Error::Storage(self.inner.warm.dump_status()))
    }

    /// Loads the list of hot pages once more, in the background or by
    /// [`step_load`](Self::step_load).
    pub fn load_buffer_pool(&self) -> Result<()> {
        self.check_open()?;
        let mut work = self.inner.warm.work.lock();
        if matches!(work.load, Load::Idle) {
            work.load = Load::Pending;
        }
        drop(work);
        self.inner.warm.worker.wake();
        Ok(())
    }

    /// Ends the loading of hot pages, if one is going on. What came in stays.
    pub fn abort_buffer_pool_load(&self) {
        self.inner.warm.abort.store(true, Ordering::Relaxed);
    }

    /// Loads some of the hot pages of the life before; false if there is nothing to do, or no room
    /// until the pool is made larger.
    pub fn step_load(&self) -> Result<bool> {
        self.check_open()?;
        Ok(matches!(self.inner.step_load(), LoadStep::Goes(_)))
    }

    /// Saves the list of hot pages if it has changed; whether it did. A failure is reported by the
    /// log, once, and by the status.
    pub fn step_dump(&self) -> Result<bool> {
        self.inner.check_writable()?;
        Ok(self.inner.save_hot_list_if_old(|| true))
    }

    /// Changes whether the list of hot pages is saved, each minute or so and at a clean shutdown.
    pub fn set_buffer_pool_dump_at_shutdown(&self, value: bool) {
        self.inner.options.write().buffer_pool_dump_at_shutdown = value;
    }
}
