//! The environment: what everything above the redo log shares.
//!
//! Storage, buffer pool, redo log, the open spaces, and whether writing has stopped. Opening one
//! makes a new data directory, or recovers what a crash left (`recovery`), so that a caller that
//! has an [`Env`] sees every page as the last durable mini-transaction left it.
//!
//! # A file's life
//! Creation: the file, durably; then its redo record, so that nothing in the log speaks of a file
//! before the record that makes recovery create it. Deletion: its redo record, durably; then the
//! file. Recovery skips the changes of a space that the log deletes, and ends the deletion.
//!
//! # Failure
//! [`Env::crash`] stops all writing for good: no mini-transaction begins, no log is flushed, no
//! page is written. What was acknowledged is durable; the rest is decided by the recovery at the
//! next start.

mod background;
#[cfg(test)]
mod closing_tests;
mod directory;
#[cfg(test)]
mod error_tests;
mod log_reserve;
#[cfg(test)]
mod opening_tests;
mod options;
mod orphans;
mod space_registry;
#[cfg(test)]
mod tests;
mod write_stop;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tidepool_pool::encryption::PageKey;
use tidepool_pool::storage::{Ballast, Storage, StorageLock};
use tidepool_pool::{
    EXTENT_BYTES, Lsn, MIN_FRAMES, PageSize, Pool, PoolConfig, Space, WriteAhead, WriteAheadError,
};

use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::files::{BALLAST_FILE, LOCK_FILE, UNDO_SPACE, dir_of, space_file_name};
use crate::format::space_header;
use crate::governor::{self, PoolGovernor, SizeOptions};
use crate::options::ForceRecovery;
use crate::page_files::{PageFiles, Source, file_error};
use crate::recovery;
use crate::redo::record::{LogRecord, Writer};
use crate::redo::{Failure, RedoLog, format_uuid};

use background::{Background, CheckpointTaker, Checkpointer, Opening};
pub(crate) use directory::random_uuid;
use directory::{OpenedLog, forget_backup, open_log, refuse_unfit};
pub(crate) use log_reserve::LogReserve;
use log_reserve::filling_log;
pub use options::EnvOptions;
pub use space_registry::FoundSpace;
use space_registry::SpaceRegistry;

/// How long a mini-transaction waits for a redo log that cannot grow because the disk is full.
const FULL_DISK_PATIENCE: Duration = Duration::from_secs(5);
/// A rest of who fills trees with many entries while the log is nearly full.
const GIVE_WAY: Duration = Duration::from_millis(100);

/// Room in the undo file that a clean close leaves it.
const UNDO_IDLE_BYTES: u64 = 1 << 20;

/// See the module's description.
pub struct Env {
    storage: Arc<dyn Storage>,
    pool: Arc<Pool>,
    governor: Arc<PoolGovernor>,
    redo: Arc<RedoLog>,
    failure: Arc<Failure>,
    page_files: PageFiles,
    encryption: Encryption,
    read_only: bool,
    force: ForceRecovery,
    /// The directory was new.
    created: bool,
    /// It had been closed cleanly.
    clean: bool,
    missing_spaces: HashSet<u32>,
    /// Spaces that the log which was replayed creates or deletes, or whose table it takes off the
    /// catalog.
    unfinished_spaces: HashSet<u32>,
    /// Spaces whose file recovery has made.
    made_spaces: HashSet<u32>,
    space_registry: SpaceRegistry,
    /// Spaces of dropped tables whose file could not be removed.
    unremoved: Mutex<BTreeSet<u32>>,
    recovered: Lsn,
    /// Pages hold changes of a mini-transaction that never ended.
    torn: AtomicBool,
    closed: AtomicBool,
    /// Held while a space's file is looked for, so that it is opened once.
    opening: Mutex<()>,
    /// Held by who lets a space's file grow, so that [`Env::close`] can wait for that.
    growth: RwLock<()>,
    checkpointer: Arc<Mutex<Checkpointer>>,
    checkpoints: CheckpointTaker,
    background: Background,
    ballast: Option<Arc<Ballast>>,
    /// Rollbacks that need space on a full disk.
    growing_on_full_disk: AtomicU32,
    /// Until the directory is closed.
    lock: Mutex<Option<StorageLock>>,
}

/// Makes the buffer pool, in the memory that the signals say there is. `beside_bytes`: what the
/// recovery is about to take beside it. The recovery, too, writes pages, perhaps on a full disk.
fn open_pool(
    storage: &Arc<dyn Storage>,
    options: &EnvOptions,
    (page_size, beside_bytes): (PageSize, u64),
    ballast: &Option<Arc<Ballast>>,
    opening: &mut Opening,
) -> Result<Arc<Pool>> {
    let size_options = SizeOptions {
        size_bytes: options.buffer_pool_size_bytes,
        budget_bytes: options.memory_budget_bytes,
        memory_guard: options.memory_guard,
        memory_policy: options.memory_policy,
        size_min_bytes: MIN_FRAMES * page_size.bytes() as u64,
        system_root: options.system_root.clone(),
    };
    // An extent for what describes the pool's pages and the like, which can't be known before there
    // is a pool.
    let beside_pool = 2 * options.redo_buffer_bytes as u64 + beside_bytes + EXTENT_BYTES as u64;
    let size = governor::InitialSizing::read(
        size_options,
        beside_pool,
        Pool::largest_size_bytes(page_size),
    );
    let config = PoolConfig {
        page_size,
        size_bytes: size.size_bytes(),
        max_size_bytes: size.reserve_bytes(),
        replacement: options.replacement,
        page_compression: options.page_compression,
        compressed_tier: options.compressed_tier,
        memory_locked: options.memory_locked,
        memory_threads: options.memory_threads,
        threads: options.threads.clone(),
        ballast: ballast.clone(),
        check_page: crate::format::check_page,
        background: options.background,
        read_only: options.read_only || options.force_recovery.is_read_only(),
        ..PoolConfig::default()
    };
    let pool = Pool::new(config, storage.clone())?;
    opening.pool = Some(pool.clone());
    // From here on: recovery, too, must not take memory that there isn't.
    opening.governor = Some(size.govern(pool.clone(), options.background)?);
    Ok(pool)
}

impl Env {
    /// Opens a data directory: makes a new one if there is none, and recovers it if it was not
    /// closed cleanly (`recovery::recover`).
    pub fn open(storage: Arc<dyn Storage>, options: &EnvOptions) -> Result<Arc<Self>> {
        // Before the lock, whose file would be the first of ours in there.
        refuse_unfit(&*storage)?;
        let lock = storage.lock(LOCK_FILE)?;
        let read_only = options.read_only || options.force_recovery.is_read_only();
        if !read_only {
            forget_backup(&*storage)?;
        }
        let OpenedLog { log, capacity_bytes, created } = open_log(&storage, options)?;
        let page_size = log.control().page_size;
        let page_files = options.page_files(&*storage, log.control());
        let ballast = match read_only {
            true => None,
            false => {
                let bytes = write_stop::ballast_bytes(log.total_size());
                Some(Arc::new(Ballast::open(&*storage, BALLAST_FILE, bytes)?))
            }
        };
        let mut opening = Opening::default();
        let recovered = recovery::recover(
            log,
            &options.recovery(&storage, page_files.clone(), capacity_bytes),
            |bytes| open_pool(&storage, options, (page_size, bytes), &ballast, &mut opening),
        )?;
        recovered.redo.set_automatic_capacity(options.redo_capacity_bytes == 0);
        let taker = CheckpointTaker {
            storage: storage.clone(),
            pool: recovered.pool.clone(),
            redo: recovered.redo.clone(),
            newest_runs: page_files.newest_runs.clone(),
            ballast: ballast.clone(),
        };
        let (background, force) = (Background::default(), options.force_recovery);
        if !read_only {
            page_files.newest_runs.make(&*storage);
        }
        let checkpointer = Checkpointer::new(taker.clone());
        let checkpointer = Arc::new(Mutex::new(checkpointer));
        if options.background && !read_only {
            let redo = recovered.redo.clone();
            let interval = options.flush_log_interval;
            background.start(&options.threads, checkpointer.clone(), redo, interval)?;
        }
        let governor = opening.done();
        Ok(Arc::new(Self {
            storage,
            pool: recovered.pool,
            governor,
            redo: recovered.redo,
            failure: recovered.failure,
            encryption: Encryption::new(page_files.keys.clone(), options.encrypt_tables),
            page_files,
            read_only,
            force,
            created,
            clean: recovered.clean,
            missing_spaces: recovered.missing_spaces,
            unfinished_spaces: recovered.unfinished_spaces,
            made_spaces: recovered.made_spaces,
            space_registry: SpaceRegistry::default(),
            unremoved: Mutex::default(),
            recovered: recovered.end,
            torn: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            opening: Mutex::new(()),
            growth: RwLock::new(()),
            checkpointer,
            checkpoints: taker,
            background,
            ballast,
            growing_on_full_disk: AtomicU32::new(0),
            lock: Mutex::new(Some(lock)),
        }))
    }

    /// Where the files are.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The buffer pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// A handle of the buffer pool that outlives a borrow of the environment.
    pub fn pool_handle(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Who sizes the pool.
    pub fn governor(&self) -> &Arc<PoolGovernor> {
        &self.governor
    }

    /// The redo log.
    pub fn redo(&self) -> &RedoLog {
        &self.redo
    }

    /// A handle of the redo log that outlives a borrow of the environment.
    pub fn redo_handle(&self) -> &Arc<RedoLog> {
        &self.redo
    }

    /// Bytes in a page.
    pub fn page_size(&self) -> usize {
        self.page_files.page_size.bytes()
    }

    /// Identifies the data directory; every file of it says so.
    pub fn instance(&self) -> [u8; 16] {
        self.page_files.instance
    }

    /// Whether this opening made the data directory.
    pub fn is_new(&self) -> bool {
        self.created
    }

    /// End of the log that was found at the opening: every change before it is there, and nothing
    /// else.
    pub fn recovered_lsn(&self) -> Lsn {
        self.recovered
    }

    /// Whether nothing had to be recovered.
    pub fn was_clean(&self) -> bool {
        self.clean
    }

    /// Tables' spaces whose file was missing, truncated or replaced when changes of it were to be
    /// recovered: these changes are lost. If there are any, each opening finds them until
    /// [`Env::losses_are_noted`].
    pub fn missing_spaces(&self) -> &HashSet<u32> {
        &self.missing_spaces
    }

    /// Tables' spaces whose file recovery has made of the log alone.
    pub fn made_spaces(&self) -> &HashSet<u32> {
        &self.made_spaces
    }

    /// Which spaces are missing is known elsewhere, durably: from now on checkpoints may pass the
    /// changes that they have lost.
    pub fn losses_are_noted(&self) {
        self.redo.hold_checkpoint(false);
    }

    /// Whether nothing may be written.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Stops all writing for good. The first reason stays.
    pub fn crash(&self, reason: String) -> Error {
        let error = self.failure.set(reason);
        self.redo.wake_room();
        error
    }

    /// Whether writing has stopped, and the callbacks for when it does.
    pub(crate) fn failure(&self) -> &Arc<Failure> {
        &self.failure
    }

    /// An error if writing has stopped.
    pub fn check_alive(&self) -> Result<()> {
        self.failure.check()
    }

    /// An error if nothing may be written, or writing has stopped.
    pub fn check_writable(&self) -> Result<()> {
        if self.force.is_read_only() {
            return Err(Error::ReadOnly(format!(
                "force_recovery is {}, so nothing is written: dump the tables, and restore them into a new data directory",
                self.force.level()
            )));
        }
        if self.read_only {
            return Err(Error::ReadOnly("the data directory is open read-only".into()));
        }
        self.failure.check()
    }

    /// What the directory was opened without.
    pub fn force_recovery(&self) -> ForceRecovery {
        self.force
    }

    // Spaces.

    /// The space `id`, opened if need be.
    pub fn space(&self, id: u32) -> Result<Arc<Space>> {
        if let Some(space) = self.pool.space(id) {
            return Ok(space);
        }
        let _opening = self.opening.lock();
        if let Some(space) = self.pool.space(id) {
            return Ok(space);
        }
        Ok(self.page_files.open_space(&*self.storage, &self.pool, id)?)
    }

    /// The file of a space, to be read past the pool; the space is not opened by this.
    pub(crate) fn source(&self, id: u32) -> Result<Source> {
        self.page_files.source(&*self.storage, &self.pool, id)
    }

    /// What is encrypted.
    pub fn encryption(&self) -> &Encryption {
        &self.encryption
    }

    /// What the files have in common.
    pub(crate) fn page_files(&self) -> &PageFiles {
        &self.page_files
    }

    /// Makes the file of space `id`, empty, and the redo record that recovery makes it by.
    pub fn create_space(&self, id: u32) -> Result<Arc<Space>> {
        self.create_encrypted_space(id, None)
    }

    /// The same; what is written to the file is encrypted with `key`, if there is one.
    pub fn create_encrypted_space(&self, id: u32, key: Option<Arc<PageKey>>) -> Result<Arc<Space>> {
        self.check_writable()?;
        let space = self.create_file(id, key)?;
        if let Err(error) = self.log_file_change(LogRecord::SpaceCreate(id)) {
            let _opening = self.opening.lock();
            // Best effort; the record, if it got that far, makes an empty file at worst.
            let _ = self.pool.close_space(&space, true);
            let _ = self.storage.remove(&space_file_name(id));
            return Err(error);
        }
        Ok(space)
    }

    /// Makes the file of space `id`, and opens the space in the pool. From the moment that the file
    /// has its name until it is open, no other thread opens it: a backup opens what files it finds.
    fn create_file(&self, id: u32, key: Option<Arc<PageKey>>) -> Result<Arc<Space>> {
        let _opening = self.opening.lock();
        let name = space_file_name(id);
        self.check_disk(&name)?;
        let file = self.storage.create(&name)?;
        let made = || -> Result<Arc<Space>> {
            let file = self.page_files.make(id, file, key)?;
            self.storage.sync_dir(dir_of(&name))?;
            Ok(self.pool.open_space(id, file)?)
        };
        made().inspect_err(|_| _ = self.storage.remove(&name))
    }

    /// Removes the file of a space. The space may not be used any more. Once this has begun, the
    /// space is gone even if it fails: what is left to do is done by the next recovery.
    pub fn drop_space(&self, id: u32) -> Result<()> {
        let logged = self.log_file_change(LogRecord::SpaceDelete(id))?;
        self.redo.flush_to(logged)?;
        // No thread opens it meanwhile, and a file that can't be opened must go like any other.
        let _opening = self.opening.lock();
        if let Some(space) = self.pool.space(id) {
            self.pool.close_space(&space, true)?;
        }
        let name = space_file_name(id);
        self.storage.remove(&name)?;
        self.storage.sync_dir(dir_of(&name))?;
        self.page_files.newest_runs.forget(id);
        Ok(())
    }

    /// Logs a change of the set of files. The LSN is the one that the log must be flushed to for it
    /// to be durable.
    fn log_file_change(&self, record: LogRecord) -> Result<Lsn> {
        self.wait_for_redo_room()?;
        let mut payload = Writer::default();
        payload.log(record);
        Ok(self.redo.append(payload.bytes(), |_, _| {}))
    }

    // The log.

    /// Waits until the redo log has room for a mini-transaction. The caller holds no latch.
    #[inline]
    pub(crate) fn wait_for_redo_room(&self) -> Result<()> {
        self.check_writable()?;
        if self.redo.has_room() || self.may_use_log_reserve() {
            return Ok(());
        }
        self.wait_for_redo_room_slowly()
    }

    /// For who fills trees with many entries, now and then: while the log is nearly full, rests a
    /// moment, so that others find room in it.
    pub(crate) fn give_way_in_log(&self) {
        if self.redo.is_crowded() && self.background.runs() {
            self.background.hurry();
            self.redo.wait_while_crowded(GIVE_WAY);
        }
    }

    /// Whether this thread writes to the log although it is full. Not where the disk is.
    fn may_use_log_reserve(&self) -> bool {
        LogReserve::is_taken() && self.redo.full_disk_error().is_none()
    }

    #[cold]
    fn wait_for_redo_room_slowly(&self) -> Result<()> {
        self.redo.count_capacity_wait();
        let since = Instant::now();
        let outcome = self.wait_for_redo_room_since(since);
        self.redo.count_capacity_wait_time(since.elapsed());
        outcome
    }

    fn wait_for_redo_room_since(&self, since: Instant) -> Result<()> {
        let errors_before = self.pool.stats().write_errors;
        let mut progress = (self.redo.checkpoint_lsn(), since);
        let mut idle_steps = 0;
        while !self.redo.has_room() {
            self.failure.check()?;
            let checkpoint = self.redo.checkpoint_lsn();
            if checkpoint > progress.0 {
                progress = (checkpoint, Instant::now());
            }
            // A page that can't be written holds the checkpoint up for ever, and everybody with it.
            if progress.1.elapsed() > FULL_DISK_PATIENCE
                && self.pool.stats().write_errors > errors_before
                && let Some(error) = self.pool.last_write_error()
            {
                return Err(filling_log(error.into()));
            }
            if progress.1.elapsed() > FULL_DISK_PATIENCE && self.background.is_broken() {
                return Err(Error::Storage(
                    "the redo log is full, and its checkpointer meets an internal error, which the error log describes"
                        .into(),
                ));
            }
            let stuck = if self.background.runs() {
                self.background.hurry();
                self.redo.wait_for_room(Duration::from_millis(100));
                // With room on the disk the wait ends by itself, however slow the disk is.
                since.elapsed() > FULL_DISK_PATIENCE
            } else {
                let before = self.redo.checkpoint_lsn();
                self.step_checkpoint(Duration::from_secs(1)).map_err(filling_log)?;
                idle_steps = if self.redo.checkpoint_lsn() > before { 0 } else { idle_steps + 1 };
                idle_steps > 3
            };
            if stuck
                && let Some(error) =
                    self.redo.full_disk_error().or_else(|| self.redo.growth_error())
            {
                return Err(error);
            }
            if stuck && !self.background.runs() {
                return Err(Error::Storage(
                    "the redo log is full, and the pages it holds cannot be written because they are in use"
                        .into(),
                ));
            }
        }
        Ok(())
    }

    /// Makes the log durable up to `lsn`, together with all that wait for the same at this moment.
    pub fn flush_log(&self, lsn: Lsn) -> Result<()> {
        self.redo.flush_to(lsn)
    }

    /// Changes the capacity of the redo log, bytes; 0 = automatic from now on.
    pub fn set_redo_capacity(&self, bytes: u64) -> Result<()> {
        match bytes {
            0 => self.redo.set_automatic_capacity(true),
            _ => self.redo.set_capacity(bytes)?,
        }
        self.background.hurry();
        Ok(())
    }

    /// One step of the checkpointer, `elapsed` after the last: prepares redo files, writes old
    /// pages as the pace demands, takes a checkpoint when it is worth one.
    pub fn step_checkpoint(&self, elapsed: Duration) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.checkpointer.lock().step(elapsed)
    }

    /// Writes all dirty pages and takes a checkpoint at the end of the log.
    pub fn checkpoint_all(&self) -> Result<Lsn> {
        self.check_writable()?;
        // One at a time: of two, the one that looks first may be the last to write, and a
        // checkpoint never moves back.
        let _alone = self.checkpointer.lock();
        self.pool.flush_all()?;
        self.checkpoints.take(false)
    }

    /// Closes cleanly: stops the threads, writes all pages, and marks the directory so that the
    /// next opening needs no recovery (unless there are files that could not be removed, of which
    /// the log must know). Nothing may be changed any more. Without it, the next opening
    /// recovers.
    pub fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.limit_wait_for_log_space();
        self.stop_threads();
        let closed = || -> Result<()> {
            if self.read_only {
                return Ok(());
            }
            self.failure.check()?;
            self.forget_the_rest();
            self.pool.flush_all()?;
            self.pool.checkpoint_files()?;
            // The next opening knows by the log that files which could not be removed are not
            // somebody's data; so there must be a log to read.
            let is_clean = !self.redo.has_pending_spaces();
            self.checkpoints.take(is_clean)?;
            if !is_clean {
                return Ok(());
            }
            let stats = self.redo.stats();
            if stats.checkpoint_lsn != stats.next_lsn {
                return Err(Error::Storage(
                    "pages were changed while the engine was closing".into(),
                ));
            }
            if let Err(error) = self.cut_undo_file() {
                tracing::warn!(%error, "the undo file stays longer than its space");
            }
            Ok(())
        };
        let result = closed();
        self.governor.stop();
        self.pool.shutdown();
        self.pool.clear_write_ahead();
        // Nothing is written after this, once those are done who had begun: another process may
        // have the directory as soon as the lock is gone.
        self.failure.set_closed();
        drop(self.checkpointer.lock());
        drop(self.growth.write());
        self.redo.wait_for_writes();
        drop(self.lock.lock().take());
        result
    }
}

impl Env {
    /// No thread waits much longer for space on the log's disk: the end is near.
    pub(crate) fn limit_wait_for_log_space(&self) {
        self.redo.limit_wait_for_space(FULL_DISK_PATIENCE);
    }

    fn stop_threads(&self) {
        self.redo.stop_preparing();
        self.background.stop();
    }

    /// Forgets the pages beyond the end of the undo space, and cuts its file. Everything is in the
    /// files, and a checkpoint at the end of the log says so.
    fn cut_undo_file(&self) -> Result<()> {
        let Some(space) = self.pool.space(UNDO_SPACE) else { return Ok(()) };
        let (file, size_pages) = (space.file(), space_header::read(&self.pool, &space)?.size_pages);
        if file.end(UNDO_SPACE).map_err(file_error)? > size_pages {
            // In both slots of the control file: a recovery by the older one, should the newer be
            // damaged, must not meet changes of pages that are gone.
            self.checkpoints.take(true)?;
            file.forget_from(UNDO_SPACE, size_pages).map_err(file_error)?;
        }
        let idle_bytes = || {
            let usage = file.usage();
            usage.file_bytes.saturating_sub(usage.occupied_bytes)
        };
        if idle_bytes() > UNDO_IDLE_BYTES {
            // The pages that the space has grown by are not awaited any more.
            file.reserve(0).map_err(file_error)?;
            while idle_bytes() > UNDO_IDLE_BYTES && file.shorten().map_err(file_error)? {}
        }
        Ok(())
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        self.redo.limit_wait_for_space(Duration::ZERO);
        self.stop_threads();
        self.governor.stop();
        if !self.closed.load(Ordering::Acquire) {
            // As after a crash: the next opening recovers.
            self.failure.set_closed();
            self.pool.shutdown();
            self.pool.clear_write_ahead();
        }
    }
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Env")
            .field("instance", &format_uuid(&self.instance()))
            .finish_non_exhaustive()
    }
}

impl WriteAhead for RedoLog {
    fn ensure_durable(&self, lsn: Lsn) -> Result<(), WriteAheadError> {
        // Fails after a failure even for what is durable: a page may hold changes that no frame
        // describes.
        self.flush_to(lsn).map_err(|error| Arc::new(error) as WriteAheadError)
    }

    fn durable_lsn(&self) -> Option<Lsn> {
        Some(self.flushed_lsn())
    }

    fn contradiction(&self, page_lsn: Lsn) -> Option<String> {
        if self.is_applied() { self.contradiction(page_lsn) } else { None }
    }

    fn storage_failed(&self, error: &tidepool_pool::Error) {
        // A failed sync is a power cut that has already happened: only a restart can recover from
        // it.
        self.fail(Error::from(error.clone()));
    }
}
