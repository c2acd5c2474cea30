//! The buffer pool: pages found, loaded, made, and latched.
//!
//! # How a page is had
//! The space's directory gives the page's word; latching the word gives the frame. If the word is
//! absent, the thread takes a free frame, installs it in the word exclusively latched, and reads
//! the page into it; others who want the page meanwhile park on the word.
//!
//! # How a frame is had
//! From the free list, which the evictor keeps stocked; else by evicting a clean page on the spot;
//! else, with everything dirty or in use, by waiting for the cleaner (`wait_free`). A thread that
//! waits may hold page latches. That is safe because cleaner, evictor and read-ahead only ever
//! *try* latches, and pass over what they cannot have.
//!
//! # Locking order
//! page latches (in the order that the layer above defines) → `spaces` → replacement policy's mutex
//! → free list's mutex; page latch → dirty queue's mutex. The flusher's mutex comes before all of
//! them, and its holder only tries page latches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::background::Background;
use crate::dirty::DirtyQueue;
use crate::error::{Error, Result, WriteAheadError};
use crate::flush::Flusher;
use crate::frames::Frames;
use crate::guard::{ExclusiveGuard, OptimisticGuard, Place, SharedGuard, place};
use crate::latch::PageWord;
use crate::page::{self, Lsn, PageId, PageSize};
use crate::read_ahead::ReadAhead;
use crate::replacement::{self, Access, Clock, Replacement, ReplacementConfig};
use crate::space::Space;
use crate::stats::{Counters, PoolStats, count};
use crate::storage::{Storage, StorageFile};
use crate::sync::Wants;

/// How a pool is to be.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Bytes in a page; fixed when the data directory is created.
    pub page_size: PageSize,
    /// Bytes of frames.
    pub size_bytes: u64,
    /// Bytes of address space to reserve, so that the pool can grow; at least `size_bytes` is.
    pub max_size_bytes: u64,
    /// The replacement policy.
    pub replacement: ReplacementConfig,
    /// Write pages to the doublewrite file first. Without it, a power cut may leave a page torn
    /// for good, unless the device writes pages atomically.
    pub doublewrite: bool,
    /// Pages written in one batch; fewer in a pool that has not eight times as many.
    pub flush_batch_pages: usize,
    /// Ask the kernel for huge pages.
    pub huge_pages: bool,
    /// Run cleaner, evictor and read-ahead in threads. Without, they run when called, or in the
    /// calling thread when needed, and time stands still but for [`Pool::advance_clock`]: then a
    /// single-threaded run is the same each time.
    pub background: bool,
}

impl Default for PoolConfig {
    fn default() -> PoolConfig {
        PoolConfig {
            page_size: PageSize::DEFAULT,
            size_bytes: 128 << 20,
            max_size_bytes: 0,
            replacement: ReplacementConfig::default(),
            doublewrite: true,
            flush_batch_pages: 128,
            huge_pages: true,
            background: true,
        }
    }
}

/// The redo log, as the pool sees it.
pub trait WriteAhead: Send + Sync {
    /// Returns when all redo before `lsn` is durable. Called before a page with that LSN is
    /// written; the caller holds no page latch.
    fn ensure_durable(&self, lsn: Lsn) -> Result<(), WriteAheadError>;

    /// Up to where redo is durable, if that is cheap to say: then every write-out asserts it.
    fn durable_lsn(&self) -> Option<Lsn> {
        None
    }

    /// A data file could not be synced: no page will be written any more, so the checkpoint stays
    /// where it is for good. Time to stop, and to recover from what is really there.
    fn storage_failed(&self, _error: &Error) {}
}

/// The smallest pool, in frames: enough for a few threads with a few latched pages each.
pub const MIN_FRAMES: u64 = 16;

/// The most page numbers in one prefetch that are looked at.
const PREFETCH_MAX: usize = 1024;

/// How many of the coldest pages a thread looks at before, and while, it waits for a frame.
const STARVED_DEPTH: usize = 2048;

/// How long a thread waits for a frame while nothing at all is written or evicted.
const STARVED: Duration = Duration::from_secs(10);

/// The buffer pool.
pub struct Pool {
    frames: Frames,
    spaces: RwLock<BTreeMap<u32, Arc<Space>>>,
    replacement: Box<dyn Replacement>,
    clock: Arc<Clock>,
    pub(crate) dirty: DirtyQueue,
    pub(crate) flusher: Mutex<Flusher>,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) write_ahead: RwLock<Option<Arc<dyn WriteAhead>>>,
    pub(crate) counters: Counters,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) background: Background,
    /// The redo log wants every page clean whose recovery LSN is below this.
    checkpoint_target: AtomicU64,
    /// The last failed page write, for those who starve because of it.
    pub(crate) last_write_error: Mutex<Option<Error>>,
    flush_batch_pages: AtomicU32,
}

/// Outcome of [`Pool::load`].
enum Load {
    /// This thread loaded the page into the frame, and has it latched exclusively.
    Done(u32),
    /// Another thread was first.
    Raced,
}

/// Outcome of [`Pool::try_evict`].
pub(crate) enum Eviction {
    /// The frame has no page any more, and is in transit.
    Done,
    /// The page must be written first.
    Dirty,
    /// The page is in use, or gone.
    Busy,
}

impl Pool {
    /// Makes a pool over `storage`, which holds the doublewrite file; page files come with
    /// [`Pool::open_space`].
    pub fn new(config: PoolConfig, storage: Arc<dyn Storage>) -> Result<Arc<Pool>> {
        let pages = config.size_bytes / config.page_size.bytes() as u64;
        if pages < MIN_FRAMES {
            return Err(Error::InvalidConfig(format!(
                "{} bytes hold {pages} pages of {} bytes, but at least {MIN_FRAMES} are needed",
                config.size_bytes,
                config.page_size.bytes(),
            )));
        }
        if config.flush_batch_pages == 0 || config.flush_batch_pages > 4096 {
            return Err(Error::InvalidConfig(format!(
                "a flush batch has 1 to 4096 pages, not {}",
                config.flush_batch_pages
            )));
        }
        let frames = Frames::new(
            config.page_size,
            config.size_bytes,
            config.max_size_bytes,
            config.huge_pages,
        )?;
        let flush_batch_pages = config.flush_batch_pages.min((pages / 8).max(4) as usize);
        let clock = Arc::new(match config.background {
            true => Clock::Machine,
            false => Clock::Manual(AtomicU32::new(1)),
        });
        let pool = Arc::new(Pool {
            replacement: replacement::make(&config.replacement, frames.reserved(), clock.clone())?,
            frames,
            spaces: RwLock::new(BTreeMap::new()),
            clock,
            dirty: DirtyQueue::default(),
            flusher: Mutex::new(Flusher::new(
                config.page_size,
                flush_batch_pages,
                config.doublewrite,
            )),
            storage,
            write_ahead: RwLock::new(None),
            counters: Counters::new(),
            read_ahead: ReadAhead::default(),
            background: Background::new(config.background),
            checkpoint_target: AtomicU64::new(0),
            last_write_error: Mutex::new(None),
            flush_batch_pages: AtomicU32::new(flush_batch_pages as u32),
        });
        if config.background {
            Background::start(&pool)?;
        }
        Ok(pool)
    }

    /// Stops the background threads and waits for their end. Nothing is flushed. Dropping the last
    /// handle does the same, but may leave a thread's end to come a moment later.
    pub fn shutdown(&self) {
        self.background.stop();
    }

    /// Names the redo log that page writes must wait for. Without one, they wait for nothing.
    pub fn set_write_ahead(&self, log: Arc<dyn WriteAhead>) {
        *self.write_ahead.write() = Some(log);
    }

    /// Lets go of the redo log (which usually refers to the pool, in a circle).
    pub fn clear_write_ahead(&self) {
        *self.write_ahead.write() = None;
    }

    /// The size of every page.
    pub fn page_size(&self) -> PageSize {
        self.frames.page_size()
    }

    /// Changes the settings of the replacement policy; false if the pool has another policy.
    pub fn configure_replacement(&self, config: &ReplacementConfig) -> bool {
        self.replacement.configure(config)
    }

    /// Moves the clock of a pool without background threads.
    pub fn advance_clock(&self, ms: u32) {
        self.clock.advance(ms);
    }

    #[inline]
    pub(crate) fn frames(&self) -> &Frames {
        &self.frames
    }

    pub(crate) fn replacement(&self) -> &dyn Replacement {
        &*self.replacement
    }

    pub(crate) fn flush_batch_pages(&self) -> usize {
        self.flush_batch_pages.load(Ordering::Relaxed) as usize
    }

    /// Raises the size to `size_bytes`, or as far as address space was reserved
    /// ([`PoolConfig::max_size_bytes`]); never lowers it. No thread notices: the frames come into use
    /// with the next misses. Returns the size now.
    pub fn grow(&self, size_bytes: u64) -> u64 {
        let frames = size_bytes / self.page_size().bytes() as u64;
        self.frames.raise_limit(frames.min(self.frames.reserved() as u64) as u32) as u64
            * self.page_size().bytes() as u64
    }

    // Spaces.

    /// Makes the pages of `file` available as the tablespace `id`.
    pub fn open_space(&self, id: u32, file: Arc<dyn StorageFile>) -> Result<Arc<Space>> {
        let space = Arc::new(Space::new(id, file, self.page_size())?);
        let mut spaces = self.spaces.write();
        if spaces.contains_key(&id) {
            return Err(Error::Space { space: id, state: "is already open" });
        }
        spaces.insert(id, space.clone());
        Ok(space)
    }

    /// The open tablespace `id`.
    pub fn space(&self, id: u32) -> Option<Arc<Space>> {
        self.spaces.read().get(&id).cloned()
    }

    /// Takes the space out of the pool, its dirty pages written first, or forgotten if `discard`
    /// (the file is about to be removed). Nobody may use the space any more. On an error it stays
    /// open.
    pub fn close_space(&self, space: &Arc<Space>, discard: bool) -> Result<()> {
        if space.is_closed() {
            return Err(Error::Space { space: space.id(), state: "is already closed" });
        }
        if !discard {
            self.flush_space(space)?;
        } else {
            space.discard();
        }
        if !space.close() {
            return Err(Error::Space { space: space.id(), state: "is already closed" });
        }
        // Who held the flusher before may have pages in flight; who gets it later sees the mark.
        let mut flusher = self.flusher.lock();
        if let Some(doublewrite) = &mut flusher.doublewrite {
            doublewrite.forget_space(space.id());
        }
        drop(flusher);
        // Pairs with the fence in `load`: either we see the loader's word, or it sees the mark.
        fence(Ordering::SeqCst);
        let mut kept_dirty = 0;
        space.for_each_resident(|_, word| {
            let Some(latched) = word.lock_exclusive() else { return };
            let frame = latched.latched_frame();
            if discard {
                self.dirty.forget(&self.frames, frame);
            } else if self.frames.descriptor(frame).is_dirty() {
                kept_dirty += 1;
                word.unlock_exclusive(false);
                return;
            }
            self.replacement.remove(frame);
            self.vacate(word, frame);
            self.frames.give(frame);
        });
        assert_eq!(kept_dirty, 0, "space {} was changed while it was being closed", space.id());
        self.spaces.write().remove(&space.id());
        Ok(())
    }

    // Pages.

    /// The page `no` of `space`, to read beside others.
    #[inline]
    pub fn shared<'a>(
        &'a self,
        space: &'a Space,
        no: u32,
        hint: Access,
    ) -> Result<SharedGuard<'a>> {
        self.counters.read_requests.increment();
        let word = space.word(no)?;
        let frame = match word.lock_shared() {
            Some(latched) => {
                let frame = latched.latched_frame();
                self.replacement.hit(frame, hint);
                frame
            }
            None => self.shared_slowly(space, word, no, hint)?,
        };
        Ok(SharedGuard::new(place(self, space, word, no, frame)))
    }

    #[cold]
    fn shared_slowly(&self, space: &Space, word: &PageWord, no: u32, hint: Access) -> Result<u32> {
        loop {
            if let Load::Done(frame) = self.load(space, word, no, hint)? {
                word.downgrade(true);
                return Ok(frame);
            }
            if let Some(latched) = word.lock_shared() {
                self.replacement.hit(latched.latched_frame(), hint);
                return Ok(latched.latched_frame());
            }
        }
    }

    /// The page `no` of `space`, to change.
    pub fn exclusive<'a>(
        &'a self,
        space: &'a Space,
        no: u32,
        hint: Access,
    ) -> Result<ExclusiveGuard<'a>> {
        self.counters.read_requests.increment();
        let word = space.word(no)?;
        loop {
            if let Some(latched) = word.lock_exclusive() {
                let frame = latched.latched_frame();
                self.replacement.hit(frame, hint);
                let place = place(self, space, word, no, frame);
                return Ok(ExclusiveGuard::new(place, false, false));
            }
            if let Load::Done(frame) = self.load(space, word, no, hint)? {
                // Counts as changed: loading did change the frame's bytes.
                return Ok(ExclusiveGuard::new(place(self, space, word, no, frame), true, false));
            }
        }
    }

    /// The page if it is resident and can be latched at once, to read beside others.
    pub fn try_shared<'a>(
        &'a self,
        space: &'a Space,
        no: u32,
        hint: Access,
    ) -> Option<SharedGuard<'a>> {
        let word = space.existing_word(no)?;
        let frame = word.try_lock(Wants::Shared).ok()?.latched_frame();
        self.counters.read_requests.increment();
        self.replacement.hit(frame, hint);
        Some(SharedGuard::new(place(self, space, word, no, frame)))
    }

    /// The page if it is resident and can be latched at once, to change.
    pub fn try_exclusive<'a>(
        &'a self,
        space: &'a Space,
        no: u32,
        hint: Access,
    ) -> Option<ExclusiveGuard<'a>> {
        let word = space.existing_word(no)?;
        let frame = word.try_lock(Wants::Exclusive).ok()?.latched_frame();
        self.counters.read_requests.increment();
        self.replacement.hit(frame, hint);
        Some(ExclusiveGuard::new(place(self, space, word, no, frame), false, false))
    }

    /// The page, to read without a latch. Loads it if need be, and waits while somebody has it
    /// exclusively.
    #[inline]
    pub fn optimistic<'a>(
        &'a self,
        space: &'a Space,
        no: u32,
        hint: Access,
    ) -> Result<OptimisticGuard<'a>> {
        self.counters.read_requests.increment();
        let word = space.word(no)?;
        loop {
            let seen = word.load();
            match seen.frame() {
                Some(frame) if !seen.is_exclusive() => {
                    self.replacement.hit(frame, hint);
                    return Ok(OptimisticGuard::new(place(self, space, word, no, frame), seen));
                }
                Some(_) => {
                    // Wait for the writer (or loader) as a reader would.
                    if word.lock_shared().is_some() {
                        word.unlock_shared();
                    }
                }
                None => {
                    if let Load::Done(_) = self.load(space, word, no, hint)? {
                        word.unlock_exclusive(true);
                    }
                }
            }
        }
    }

    /// A page made anew: all zeroes but for its address in the header, whatever it held before.
    /// Nothing is read. If the guard is dropped without [`Pool::mark_dirty`], a page that was not
    /// resident before is not resident after.
    pub fn new_page<'a>(&'a self, space: &'a Space, no: u32) -> Result<ExclusiveGuard<'a>> {
        self.counters.read_requests.increment();
        let word = space.word(no)?;
        let mut guard = loop {
            if let Some(latched) = word.lock_exclusive() {
                let frame = latched.latched_frame();
                self.replacement.hit(frame, Access::Normal);
                break ExclusiveGuard::new(place(self, space, word, no, frame), true, false);
            }
            let frame = self.take_frame()?;
            if self.install(space, word, no, frame)? {
                self.replacement.insert(frame, Access::Normal);
                count(&self.counters.pages_data);
                break ExclusiveGuard::new(place(self, space, word, no, frame), true, true);
            }
        };
        let id = guard.page_id();
        let bytes = guard.bytes_mut();
        bytes.fill(0);
        page::set_page_id(bytes, id);
        count(&self.counters.pages_created);
        Ok(guard)
    }

    /// A new page's guard went without the page having been marked dirty.
    #[cold]
    pub(crate) fn abandon_new(&self, place: Place<'_>) {
        self.replacement.remove(place.frame);
        self.vacate(place.word, place.frame);
        self.frames.give(place.frame);
    }

    /// Notes that a mini-transaction whose redo is `start .. end` changed the page. To be called
    /// inside the redo log's append section, so that `start` never decreases from call to call.
    pub fn mark_dirty(&self, guard: &mut ExclusiveGuard<'_>, start: Lsn, end: Lsn) {
        assert!(guard.is_of(self), "the page is of another pool");
        debug_assert!(start < end && guard.page_lsn() <= end, "LSNs only grow");
        page::set_page_lsn(guard.bytes_mut(), end);
        guard.set_marked();
        self.dirty.mark(&self.frames, guard.frame(), start);
        self.counters.write_requests.increment();
    }

    // Loading and evicting.

    /// Makes the absent page resident in `frame`, exclusively latched, not yet known to the
    /// replacement policy. False (and the frame is given back): it is not absent any more.
    pub(crate) fn install(
        &self,
        space: &Space,
        word: &PageWord,
        no: u32,
        frame: u32,
    ) -> Result<bool> {
        space.note_resident(no);
        let descriptor = self.frames.descriptor(frame);
        if !word.install(frame, descriptor.version()) {
            self.frames.give(frame);
            return Ok(false);
        }
        descriptor.set_page(Some(PageId::new(space.id(), no)));
        // Pairs with the fence in `close_space`.
        fence(Ordering::SeqCst);
        if space.is_closed() {
            self.abandon(word, frame);
            return Err(Error::Space { space: space.id(), state: "is closed" });
        }
        Ok(true)
    }

    /// Undoes [`Pool::install`].
    pub(crate) fn abandon(&self, word: &PageWord, frame: u32) {
        let descriptor = self.frames.descriptor(frame);
        descriptor.set_page(None);
        descriptor.set_version(word.evict());
        self.frames.give(frame);
    }

    /// Takes the page out of `frame`; the caller has it exclusively latched, clean, and off the
    /// policy's lists, and has the frame in transit afterwards.
    fn vacate(&self, word: &PageWord, frame: u32) {
        let descriptor = self.frames.descriptor(frame);
        descriptor.set_page(None);
        descriptor.set_version(word.evict());
        self.counters.pages_data.fetch_sub(1, Ordering::Relaxed);
    }

    /// Reads an absent page from its file.
    #[cold]
    fn load(&self, space: &Space, word: &PageWord, no: u32, hint: Access) -> Result<Load> {
        if space.is_closed() {
            return Err(Error::Space { space: space.id(), state: "is closed" });
        }
        let frame = self.take_frame()?;
        if !self.install(space, word, no, frame)? {
            return Ok(Load::Raced);
        }
        #[expect(unsafe_code, reason = "the page's latch makes its bytes ours")]
        // SAFETY: the page is exclusively latched by `install`.
        let bytes = unsafe { self.frames.bytes_mut(frame) };
        let read = space
            .file()
            .read_at(bytes, self.page_size().offset_of(no))
            .map_err(Error::from)
            .and_then(|()| self.verify(space, no, bytes));
        if let Err(error) = read {
            count(&self.counters.read_errors);
            self.abandon(word, frame);
            return Err(error);
        }
        count(&self.counters.reads);
        count(&self.counters.pages_data);
        self.replacement.insert(frame, hint);
        Ok(Load::Done(frame))
    }

    /// Checks a page as it came from its file.
    pub(crate) fn verify(&self, space: &Space, no: u32, bytes: &[u8]) -> Result<()> {
        let id = PageId::new(space.id(), no);
        page::verify(bytes, id).map_err(|defect| Error::Corrupt {
            file: space.file().name().to_owned(),
            page: id,
            why: defect.to_string(),
        })
    }

    /// Tries to take the page out of `frame`. Never waits.
    pub(crate) fn try_evict(&self, frame: u32) -> Eviction {
        let descriptor = self.frames.descriptor(frame);
        let Some(id) = descriptor.page() else { return Eviction::Busy };
        if descriptor.is_dirty() {
            return Eviction::Dirty;
        }
        let spaces = self.spaces.read();
        let word = spaces.get(&id.space).and_then(|space| space.existing_word(id.no));
        let Some(word) = word else { return Eviction::Busy };
        let Ok(latched) = word.try_lock(Wants::Exclusive) else { return Eviction::Busy };
        if latched.latched_frame() != frame {
            word.unlock_exclusive(false);
            return Eviction::Busy;
        }
        if descriptor.is_dirty() {
            word.unlock_exclusive(false);
            return Eviction::Dirty;
        }
        if !self.replacement.was_accessed(frame) {
            count(&self.counters.read_ahead_evicted);
        }
        self.replacement.remove(frame);
        self.vacate(word, frame);
        count(&self.counters.pages_evicted);
        Eviction::Done
    }

    /// A frame without a page, in transit. May wait; see the head of this module.
    fn take_frame(&self) -> Result<u32> {
        // The very coldest may all be dirty or on their way to disk while clean ones are near.
        let found = self.take_frame_at_once(64).or_else(|| self.take_frame_at_once(STARVED_DEPTH));
        if let Some(frame) = found {
            return Ok(frame);
        }
        count(&self.counters.wait_free);
        match self.background.runs() {
            true => self.wait_for_frame(),
            false => self.make_frame(),
        }
    }

    /// A free frame, or that of one of the `depth` coldest pages, if one can be had without I/O.
    pub(crate) fn take_frame_at_once(&self, depth: usize) -> Option<u32> {
        let frame = self.frames.take();
        if self.frames.available() < self.reserve() {
            self.background.wake_evictor();
        }
        if frame.is_some() {
            return frame;
        }
        let mut coldest = Vec::new();
        self.replacement.coldest(depth, &mut coldest);
        coldest.into_iter().find(|&frame| matches!(self.try_evict(frame), Eviction::Done))
    }

    /// Waits until the cleaner or evictor have freed a frame.
    fn wait_for_frame(&self) -> Result<u32> {
        let progress = || {
            self.counters.pages_flushed.load(Ordering::Relaxed)
                + self.counters.pages_evicted.load(Ordering::Relaxed)
        };
        let mut last_progress = (progress(), Instant::now());
        let errors_before = self.counters.write_errors.load(Ordering::Relaxed);
        loop {
            self.background.wake_evictor();
            self.background.wake_cleaner();
            self.frames.wait(Duration::from_millis(5));
            if let Some(frame) = self.take_frame_at_once(STARVED_DEPTH) {
                return Ok(frame);
            }
            let now = progress();
            if now != last_progress.0 {
                last_progress = (now, Instant::now());
            }
            let starved = last_progress.1.elapsed();
            let errors = self.counters.write_errors.load(Ordering::Relaxed) - errors_before;
            if starved > STARVED || errors > 0 && starved > STARVED / 10 {
                return Err(self.no_free_frame());
            }
        }
    }

    /// Without background threads: writes dirty pages here and now.
    fn make_frame(&self) -> Result<u32> {
        for _ in 0..4 {
            let written = self.run_cleaner_step();
            if let Some(frame) = self.take_frame_at_once(self.frames.limit() as usize) {
                return Ok(frame);
            }
            written?;
        }
        Err(self.no_free_frame())
    }

    fn no_free_frame(&self) -> Error {
        let why = match &*self.last_write_error.lock() {
            Some(error) => format!("the last page write failed: {error}"),
            None => "all are in use".to_owned(),
        };
        Error::NoFreeFrame { frames: self.frames.limit(), why }
    }

    /// How many frames the evictor keeps free.
    pub(crate) fn reserve(&self) -> u32 {
        (self.frames.limit() / 32).clamp(2, 1024)
    }

    /// Evicts clean cold pages until the reserve of free frames is there, or none is left to be
    /// had. Returns how many.
    pub fn run_evictor_step(&self) -> usize {
        let mut evicted = 0;
        let mut coldest = Vec::new();
        loop {
            let missing = self.reserve().saturating_sub(self.frames.available()) as usize;
            if missing == 0 {
                return evicted;
            }
            coldest.clear();
            self.replacement.coldest(missing + 64, &mut coldest);
            let before = evicted;
            let mut dirty = false;
            for &frame in &coldest {
                match self.try_evict(frame) {
                    Eviction::Done => {
                        self.frames.give(frame);
                        evicted += 1;
                    }
                    Eviction::Dirty => dirty = true,
                    Eviction::Busy => {}
                }
                if evicted - before == missing {
                    break;
                }
            }
            if dirty {
                self.background.wake_cleaner();
            }
            if evicted == before {
                return evicted;
            }
        }
    }

    // Checkpoints and read-ahead.

    /// Where the redo begins that the dirty pages need; `None` if none is dirty.
    pub fn oldest_dirty_lsn(&self) -> Option<Lsn> {
        self.dirty.oldest(&self.frames)
    }

    /// Asks the cleaner to write all pages whose changes begin before `target`.
    pub fn set_checkpoint_pressure(&self, target: Lsn) {
        if self.checkpoint_target.fetch_max(target.0, Ordering::Relaxed) < target.0 {
            self.background.wake_cleaner();
        }
    }

    pub(crate) fn checkpoint_target(&self) -> Lsn {
        Lsn(self.checkpoint_target.load(Ordering::Relaxed))
    }

    /// Asks for pages that will be wanted soon, in the background. Those already there, beyond the
    /// end of the file, or too many are passed over.
    pub fn prefetch(&self, space: &Space, pages: &[u32]) {
        let end = space.page_count();
        let absent =
            |no: u32| space.existing_word(no).is_none_or(|word| word.load().frame().is_none());
        let wanted: Vec<PageId> = pages
            .iter()
            .take(PREFETCH_MAX)
            .filter(|&&no| no < end && absent(no))
            .map(|&no| PageId::new(space.id(), no))
            .collect();
        if wanted.is_empty() {
            return;
        }
        self.read_ahead.request(&wanted);
        match self.background.runs() {
            true => self.background.wake_read_ahead(),
            false => {
                self.run_read_ahead_step();
            }
        }
    }

    /// The counters.
    pub fn stats(&self) -> PoolStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let replacement = self.replacement.stats();
        let pages_data = get(&counters.pages_data);
        let pages_total = self.frames.limit() as u64;
        PoolStats {
            page_size_bytes: self.page_size().bytes() as u64,
            pages_total,
            pages_free: pages_total.saturating_sub(pages_data),
            pages_data,
            pages_dirty: self.dirty.count(),
            pages_old: replacement.pages_old,
            read_requests: counters.read_requests.sum(),
            reads: get(&counters.reads),
            read_ahead: get(&counters.read_ahead),
            read_ahead_evicted: get(&counters.read_ahead_evicted),
            pages_created: get(&counters.pages_created),
            write_requests: counters.write_requests.sum(),
            pages_flushed: get(&counters.pages_flushed),
            pages_flushed_lru: get(&counters.pages_flushed_lru),
            doublewrite_pages: get(&counters.doublewrite_pages),
            doublewrite_writes: get(&counters.doublewrite_writes),
            pages_evicted: get(&counters.pages_evicted),
            wait_free: get(&counters.wait_free),
            pages_made_young: replacement.made_young,
            pages_not_made_young: replacement.not_made_young,
            read_errors: get(&counters.read_errors),
            write_errors: get(&counters.write_errors),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.background.stop();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("frames", &self.frames.limit()).finish_non_exhaustive()
    }
}
