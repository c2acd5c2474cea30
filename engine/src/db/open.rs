//! Opening and closing a data directory.
//!
//! # Opening
//! 1. [`Env::open`] locks the directory, makes a new one or recovers: every page is as the last
//!    durable mini-transaction
//!    left it.
//! 2. The transaction system finds out what was unfinished, prepared, or must be purged.
//! 3. A new directory gets, before that, an undo space, and after it an empty catalog. That takes
//!    several mini-transactions; a crash between
//!    them leaves a catalog without a format version, and the next open makes what is missing.
//!    No caller has seen a success before.
//!    Once there is a catalog, an undo space without its first pages is damage.
//! 4. The catalog is read; what unfinished transactions did to it is not visible.
//! 5. Files in `tables/` that no table has are removed, if the log says that they are the rest of
//!    an unfinished CREATE or
//!    DROP; any other is set aside, for it may be that not the file is wrong but the catalog.
//!    Tables whose file was missing while the redo log held
//!    changes of it are marked, so that an older copy that turns up later is not taken for whole.
//!    No checkpoint passes the log until they are.
//! 6. Trees that a change of indexes has left without an index are freed, and files of sorts are
//!    removed.
//! 7. Background work begins: rollback of the unfinished, purge, loading of what was hot, the
//!    scrub.
//!
//! # Closing
//! The hot pages are noted, counters go to the space headers, threads end, all pages are written,
//! the log is marked clean. Transactions still open are rolled back at the next open, as after a
//! crash.

use super::{Db, Handle, Inner, forced};
use crate::catalog::{CATALOG_TREE, Catalog};
use crate::env::{Env, EnvOptions};
use crate::error::{Error, Remedy, Result};
use crate::files::SYSTEM_FILE;
use crate::files::{SYSTEM_SPACE, space_file_name};
use crate::format::space_header;
use crate::mtr::Mtr;
use crate::options::{ForceRecovery, Options, Replacement};
use crate::padded::Padded;
use crate::redo::control::CONTROL_FILE;
use crate::table::Rest;
use crate::trx::TrxSystem;
use crate::{sort, space};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidepool_pool::storage::{FileOptions, FileStorage, Storage};
use tidepool_pool::{MidpointConfig, ReplacementConfig, Space};

impl Db {
    /// Opens the data directory `dir`. Makes it if it does not exist or is empty, recovers it if
    /// it was not closed cleanly. Its parent must exist, as it may be a volume that is not mounted.
    ///
    /// ```
    /// # use tidepool::{Db, Options};
    /// # let dir = tempfile::tempdir().unwrap();
    /// let dir = dir.path().join("data");
    /// assert!(!Db::exists(&dir)?);
    /// let db = Db::open(&dir, Options::default())?;
    /// assert!(Db::exists(&dir)?);
    /// db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Format`] if `dir` holds files of something else, or a backup that is unfinished.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<Db> {
        options.validate()?;
        let files = FileStorage::new(
            dir,
            FileOptions {
                direct_io: options.direct_io,
                open_files: options.open_files,
                read_only: options.read_only,
            },
        )?;
        Self::open_on(options.files.over(Arc::new(files)), options)
    }

    /// Whether there is a data directory at `dir`: if not, [`Self::open`] would make a new one.
    pub fn exists(dir: impl AsRef<Path>) -> Result<bool> {
        let control = dir.as_ref().join(CONTROL_FILE);
        std::fs::exists(&control).map_err(|error| {
            Error::Storage(format!("cannot find '{}': {error}", control.display()))
        })
    }

    /// Opens a data directory on any storage: a simulated one, for instance.
    pub fn open_on(storage: Arc<dyn Storage>, options: Options) -> Result<Db> {
        options.validate()?;
        let force = options.force_recovery;
        forced::warn(force);
        let with_resort = |error| forced::with_last_resort(error, force);
        let env_options =
            EnvOptions { replacement: replacement(&options), ..EnvOptions::from(&options) };
        let env = Env::open(storage, &env_options).map_err(with_resort)?;
        // What was asked for is that of a new directory only.
        let options = Options { page_size: env.page_size(), ..options };
        let system = first_space(&env).map_err(with_resort)?;
        // The undo space is the older of the two: where there is a catalog, there was an undo log.
        let (trx_system, catalog) = match system {
            Some(system) => {
                let trx_system = match force >= ForceRecovery::NoUndo {
                    true => TrxSystem::open_without_undo(&env, &system)?,
                    false => TrxSystem::open(&env).map_err(with_resort)?,
                };
                (trx_system, Catalog::open(&env, &system).map_err(with_resort)?)
            }
            None => (TrxSystem::create(&env)?, make_catalog(&env)?),
        };
        catalog.load(&trx_system).map_err(with_resort)?;
        let inner = Inner {
            env,
            trx_system,
            catalog,
            options: RwLock::new(options),
            setting: Mutex::default(),
            definitions: Mutex::default(),
            tables: Mutex::default(),
            changed: Condvar::new(),
            detached: Mutex::default(),
            recovered: Mutex::default(),
            counters: Default::default(),
            sort_memory: Arc::default(),
            warm: Default::default(),
            scrub: Default::default(),
            rotation: Default::default(),
            presences: Default::default(),
            retired: Default::default(),
            closed: Padded(AtomicBool::new(false)),
        };
        inner.apply_options();
        inner.tell_governor_of_rest();
        if !inner.env.is_read_only() {
            inner.note_recovered();
            inner.roll_back_unfinished_definitions()?;
            inner.mark_tables_that_lost_changes()?;
            inner.clear_orphans()?;
            inner.free_provisional_trees()?;
            inner.encrypt_undo_if_need_be()?;
            inner.encrypt_made_files()?;
            sort::clear_files(&**inner.env.storage());
        }
        let background = inner.options.read().background && !inner.env.is_read_only();
        if background {
            inner.trx_system.start_background()?;
        }
        let inner = Arc::new(Handle(Padded(Arc::new(inner))));
        inner.start_warm_restart()?;
        if background {
            inner.start_scrub()?;
            inner.start_rotation()?;
        }
        Ok(Db { inner })
    }

    /// Closes cleanly: the next open needs no recovery. Later calls on any handle fail with
    /// [`Error::Closed`], those of transactions and cursors too; a cursor may give the rest of the
    /// rows that it has read by then. Transactions that are still open are rolled back at the next
    /// open; prepared ones stay prepared.
    ///
    /// On an error the directory is as after a crash: nothing that was committed is lost.
    pub fn close(&self) -> Result<()> {
        self.inner.close()
    }

    /// An error if it has been closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.inner.check_open()
    }
}

impl Inner {
    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// The outcome of what reads pages. A close may have come in between: what failed then is no
    /// damage, for the files may be another process's.
    #[inline]
    pub(super) fn unless_closed<T>(&self, outcome: Result<T>) -> Result<T> {
        match outcome {
            Err(error) => Err(self.check_open().err().unwrap_or(error)),
            done => done,
        }
    }

    fn close(&self) -> Result<()> {
        // Both before `definitions`, which loading waits for.
        self.stop_warm_restart();
        self.stop_scrub();
        self.stop_rotation();
        self.stop_retired();
        self.save_hot_list_at_close();
        let _no_change = self.definitions.lock();
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.trx_system.stop_background();
        if !self.env.is_read_only() {
            self.abandon_loads();
        }
        let settled = || -> Result<()> {
            if self.env.is_read_only() {
                return Ok(());
            }
            let tables: Vec<_> = self.tables.lock().by_name.values().cloned().collect();
            let status = self.trx_system.status();
            let rest = match status.rollbacks_pending == 0 && status.history_len == 0 {
                true => Rest::Done,
                false => Rest::Pending,
            };
            tables.iter().try_for_each(|table| table.settle_for_good(rest))
        };
        let settled = settled();
        if self.env.check_writable().is_ok()
            && let Err(error) = self.trx_system.note_ended()
        {
            tracing::warn!(%error, "which transactions have ended could not be noted");
        }
        if self.env.check_writable().is_ok()
            && let Err(error) = self.trx_system.shrink_undo()
        {
            tracing::warn!(%error, "the undo space stays as long as it is");
        }
        settled.and(self.env.close())
    }

    fn close_at_drop(&self) {
        if self.check_open().is_ok()
            && let Err(error) = self.close()
        {
            tracing::error!(%error, "the data directory could not be closed cleanly: the next start recovers it");
        }
    }

    /// Has the governor ask what a memory budget goes to beside the pool.
    fn tell_governor_of_rest(&self) {
        let (trx_system, sort_memory) =
            (Arc::downgrade(&self.trx_system), self.sort_memory.clone());
        self.env.governor().set_rest_of_engine(Box::new(move || {
            let rows = |trx_system: Arc<TrxSystem>| {
                super::memory_above_pool(&trx_system, &sort_memory).map(|row| row.bytes).sum()
            };
            trx_system.upgrade().map_or(0, rows)
        }));
    }

    /// Sets what the transaction system takes from the options.
    fn apply_options(&self) {
        let options = self.options.read();
        let trx_system = &self.trx_system;
        trx_system.set_flush_log_at_trx_commit(options.flush_log_at_trx_commit);
        trx_system.set_lock_wait_timeout(options.lock_wait_timeout);
        trx_system.set_deadlock_detect(options.deadlock_detect);
        trx_system.set_lost_update_check(options.lost_update_check);
        trx_system.set_max_purge_lag(options.max_purge_lag);
        trx_system.set_max_purge_lag_delay(options.max_purge_lag_delay);
    }

    /// Rolls back the changes of definitions that a crash left unfinished: few entries of the
    /// catalog, which the next change of the same table would wait for. If the next steps of the
    /// opening are such changes, it is done at every level of `force_recovery`, and has to succeed;
    /// else the background tries again.
    fn roll_back_unfinished_definitions(&self) -> Result<()> {
        let is_needed = !self.env.missing_spaces().is_empty() || self.has_provisional_trees();
        if !is_needed && self.env.force_recovery() >= ForceRecovery::NoRollback {
            return Ok(());
        }
        match self.trx_system.roll_back_recovered_of(CATALOG_TREE) {
            Err(error) if !is_needed => {
                tracing::error!(%error, "an unfinished change of a definition can't be undone");
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Step 5, first half.
    fn mark_tables_that_lost_changes(&self) -> Result<()> {
        let lost = self.env.missing_spaces();
        if lost.is_empty() {
            return Ok(());
        }
        for (name, record) in self.catalog.tables() {
            if lost.contains(&record.space) {
                tracing::error!(
                    table = name,
                    "the table's file is missing, and its changes in the redo log are lost"
                );
                self.catalog.mark_lost_changes(&mut self.definition_trx(), &name)?;
            }
        }
        self.env.losses_are_noted();
        Ok(())
    }

    /// Step 5, second half.
    fn clear_orphans(&self) -> Result<()> {
        let known: HashSet<u32> =
            self.catalog.tables().iter().map(|(_, record)| record.space).collect();
        for id in self.env.table_space_files()? {
            if known.contains(&id) {
                continue;
            }
            self.catalog.skip_space_id(id)?;
            if let Err(error) = self.clear_orphan(id) {
                // Its number is no table's: where it is, it does no harm.
                self.env.check_writable()?;
                tracing::error!(
                    file = space_file_name(id),
                    %error,
                    "no table has this file, and it can be neither removed nor set aside: it stays until the next start"
                );
            }
        }
        Ok(())
    }

    fn clear_orphan(&self, id: u32) -> Result<()> {
        let is_leftover = match self.env.is_leftover(id) {
            Err(
                error @ (Error::Lost { .. }
                | Error::Corrupt { .. }
                | Error::Format { .. }
                | Error::Key { .. }),
            ) => {
                tracing::error!(%error, "a file that no table has can't be read");
                false
            }
            is_leftover => is_leftover?,
        };
        if is_leftover {
            tracing::info!(
                space = id,
                "removing the file of a table that was dropped or never finished"
            );
            self.env.forget_space(id);
        } else {
            let aside = self.env.set_space_aside(id)?;
            tracing::warn!(
                file = space_file_name(id),
                aside,
                "no table has this file, and the log does not tell why: it was set aside. If system.tpd is an old copy, \
                 stop the server and put both back; else remove the file"
            );
        }
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close_at_drop();
    }
}

/// Of an opening that has failed there is no handle.
impl Drop for Inner {
    fn drop(&mut self) {
        self.close_at_drop();
    }
}

pub(super) fn replacement(options: &Options) -> ReplacementConfig {
    match options.replacement {
        Replacement::Tide => ReplacementConfig::default(),
        Replacement::Midpoint => ReplacementConfig::Midpoint(MidpointConfig {
            old_blocks_pct: options.old_blocks_pct,
            old_blocks_time_ms: options.old_blocks_time.as_millis().try_into().unwrap_or(u32::MAX),
        }),
    }
}

/// The system space, with its header checked; `None` if it has not got its first pages yet.
fn first_space(env: &Arc<Env>) -> Result<Option<Arc<Space>>> {
    let system = env.space(SYSTEM_SPACE)?;
    let exists = Catalog::exists(env, &system);
    if env.force_recovery().is_read_only() && exists.is_err() {
        return Ok(Some(system));
    }
    if !exists? {
        if env.table_space_files()?.is_empty() && !env.is_read_only() {
            return Ok(None);
        }
        // Going on would take every table for one that was dropped.
        return Err(Error::lost(
            SYSTEM_FILE,
            "there is no catalog in it, though there are table files",
            Remedy::RestoreDirectory,
        ));
    }
    let header = space_header::read(env.pool(), &system).map_err(|error| match error {
        // No level of force_recovery goes on without it.
        Error::Lost { .. } => error.with_remedies(Remedy::RestoreDirectory),
        error => error,
    })?;
    header.check(system.name(), env.page_size(), SYSTEM_SPACE, &env.instance())?;
    Ok(Some(system))
}

/// Step 3.
fn make_catalog(env: &Arc<Env>) -> Result<Catalog> {
    let system = env.space(SYSTEM_SPACE)?;
    let mut mtr = Mtr::begin(env)?;
    space::create(&mut mtr, env, &system)?;
    mtr.commit();
    let catalog = Catalog::create(env, &system)?;
    env.redo().flush()?;
    Ok(catalog)
}
