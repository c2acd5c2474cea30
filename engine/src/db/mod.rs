//! [`Db`]: an open data directory, and everything that is opened with it.
//!
//! # Contents
//! - `open`: create or recover, checks, clean shutdown.
//! - `definition`: tables are created, dropped, renamed, truncated, opened.
//! - `index_change`: indexes are added and dropped; `rebuild`: all of a table is made anew in
//!   another file; `catch_up`: rows that sessions write while one of these goes on;
//!   `index_switch`: its commit; `retired`: files that were replaced are removed.
//! - `notes`: what a crash has left of that is freed.
//! - `load`: tables are filled before they are seen; `export`: one is written to a file, discarded,
//!   and imported from such a file.
//! - `transaction`: transactions on tables; `cursor`: reading in the order of an index; `map`:
//!   a table as an ordered map, and transactions that run again after a conflict.
//! - `check`: CHECK of a table.
//! - `encryption`: new tables are encrypted, older images are sealed anew with newer keys.
//! - `scrub`: cold pages are read and verified.
//! - `steps`: background work, a step at a time.
//! - `warm`: the hot pages of one life are read in the next.
//! - `encryption`: files are encrypted as their tables should be, and with newer keys.
//! - `worker`: the thread that one of these has.
//! - here: dynamic options, the log, prepared transactions, status.
//!
//! # Locking order
//! `definitions` (one definition change at a time) → `tables` (open tables) → what the catalog's
//! transaction and the pool take. A transaction's operation takes neither. `detached` and
//! `recovered` are innermost, and never held together.

mod batch;
mod catch_up;
mod check;
mod cursor;
mod definition;
mod encryption;
pub(crate) mod export;
#[cfg(test)]
mod file_tests;
mod forced;
mod index_change;
mod index_switch;
mod load;
mod map;
mod notes;
mod open;
mod rebuild;
mod restored;
mod retired;
mod scrub;
mod steps;
mod transaction;
mod warm;
mod warm_reads;
mod worker;

#[cfg(test)]
mod catch_up_tests;
#[cfg(test)]
mod definition_tests;
#[cfg(test)]
mod note_tests;
#[cfg(test)]
mod option_tests;
#[cfg(test)]
mod presence_tests;
#[cfg(test)]
mod rollback_simulation;
#[cfg(test)]
mod row_count_tests;
#[cfg(test)]
mod undo_circle_tests;

pub use catch_up::{ChangedRow, RoundReport};
pub use cursor::{Cursor, ROW_BYTES_KEPT, Seek};
pub use definition::DefinitionChange;
pub use encryption::EncryptionRow;
pub use export::ExportProgress;
pub use export::file::{Exported, TableExport};
pub use index_change::{ChangedIndex, DuplicateEntry, IndexChange};
pub use load::TableLoad;
pub use map::Range;
pub(crate) use map::{beginning_with, prefix_end};
pub(crate) use transaction::ReadsEpoch;
use transaction::{Detached, Used};
pub use transaction::{NewRow, Savepoint, Transaction};

use crate::backup::manifest::Manifest;
use crate::backup::{Backup, BackupProgress, BackupReport, make_marked_dir};
use crate::catalog::Catalog;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::governor::PoolGovernor;
use crate::lock::WaitObserver;
use crate::memory::{MemoryReport, MemoryRow};
use crate::options::{self, Options};
use crate::padded::Padded;
use crate::pause::{self, PausePoint};
use crate::sort::SortMemory;
use crate::status::Status;
use crate::table::Table;
use crate::table::presence::Presences;
use crate::trx::activity::Observed;
use crate::trx::{Csn, TransactionCore, TrxSystem};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidepool_governor::Policy as MemoryPolicy;
use tidepool_pool::storage::{Ballast, FileOptions, FileStorage, Storage};
use tidepool_pool::trace::{TraceOptions, TraceStatus};
use tidepool_pool::{
    Advice, CompressedTier, Lsn, PageCompression, Pool, ShardedCounters, ThreadWork,
};

/// An open data directory. Clones are handles on the same one, and so are a [`Transaction`], an
/// [`IndexChange`] and a [`TableLoad`]: one that is kept somewhere keeps the directory open.
///
/// [`close`](Self::close) shuts down cleanly and returns an error if that failed; dropping the last
/// handle does it, too, as well as it can, before the drop returns.
#[derive(Clone)]
pub struct Db {
    pub(crate) inner: Arc<Handle>,
}

/// What the handles of a program share. The last one closes the database in the thread that drops
/// it. Background threads hold no handle but an [`Inner`], for a step, and the close waits for
/// them: else the last reference might be theirs, and the directory open after the drop.
///
/// Each transaction that begins changes the count of handles, beside which others read this.
pub(crate) struct Handle(Padded<Arc<Inner>>);

impl std::ops::Deref for Handle {
    type Target = Arc<Inner>;

    fn deref(&self) -> &Arc<Inner> {
        &self.0
    }
}

pub(crate) struct Inner {
    env: Arc<Env>,
    trx_system: Arc<TrxSystem>,
    catalog: Catalog,
    options: RwLock<Options>,
    /// Held while an option is changed, in [`Self::options`] and where it takes effect: of two
    /// changes at once, one is the last in both.
    setting: Mutex<()>,
    /// Serializes definition changes.
    definitions: Mutex<()>,
    tables: Mutex<OpenTables>,
    /// Wakes those who wait for a name in [`OpenTables::changing`].
    changed: Condvar,
    /// What prepared transactions without a session use, by their owners' numbers: an XID can be
    /// the next one's as soon as its transaction has ended.
    detached: Mutex<HashMap<u64, Detached>>,
    /// Who is inside which tables.
    presences: Arc<Presences>,
    /// Spaces that prepared transactions of an earlier life have changed, by XID, until they have
    /// ended. `None`: their undo can't be read, and it may be any.
    recovered: Mutex<HashMap<Vec<u8>, Option<HashSet<u32>>>>,
    counters: ShardedCounters<{ Counter::COUNT }>,
    /// Of the sorts of new indexes, and of tables that are filled.
    sort_memory: Arc<SortMemory>,
    warm: warm::WarmRestart,
    scrub: scrub::Scrub,
    rotation: encryption::Rotation,
    retired: retired::Retired,
    /// Read by each operation.
    closed: Padded<AtomicBool>,
}

#[derive(Default)]
struct OpenTables {
    by_name: HashMap<String, Arc<Table>>,
    /// Names that the definition change under way is about. Between its catalog commit and what it
    /// does with files and open tables no thread opens them: a handle made there would be of a
    /// table that is about to go, or a second one of a table.
    changing: Vec<String>,
    /// Names of tables whose indexes are being changed, or that are being filled: no other
    /// definition change may come in between.
    changing_indexes: HashSet<String>,
    /// Tables that are being filled, which have no handle besides.
    loading: HashMap<String, Arc<Table>>,
    /// Names that tables have left by a rename or a drop: when, and the table's id. Those that left
    /// before every live snapshot are forgotten.
    vacated: HashMap<String, (Csn, u64)>,
}

impl OpenTables {
    /// Since when a name means the table `id`, if it meant another one in this life. A snapshot
    /// that is older would find that table's rows under the name.
    fn named_since(&self, name: &str, id: u64) -> Option<Csn> {
        self.vacated.get(name).filter(|(_, earlier)| *earlier != id).map(|(since, _)| *since)
    }
}

/// What the layers above the pool have in memory.
fn memory_above_pool(
    trx_system: &TrxSystem,
    sort_memory: &SortMemory,
) -> impl Iterator<Item = MemoryRow> {
    let redo = trx_system.env.redo().buffer_bytes();
    let redo = MemoryRow { name: "redo_buffers", bytes: redo, bound_bytes: Some(redo) };
    let sorts = MemoryRow { name: "sorts", bytes: sort_memory.bytes(), bound_bytes: None };
    [redo].into_iter().chain(trx_system.memory()).chain([sorts])
}

/// What the layer of tables counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Counter {
    RowsInserted,
    RowsUpdated,
    RowsDeleted,
    RowsRead,
    Commits,
    Rollbacks,
}

impl Counter {
    pub(crate) const COUNT: usize = 6;
    pub(crate) const ALL: [(Counter, &'static str); Self::COUNT] = [
        (Counter::RowsInserted, "rows_inserted"),
        (Counter::RowsUpdated, "rows_updated"),
        (Counter::RowsDeleted, "rows_deleted"),
        (Counter::RowsRead, "rows_read"),
        (Counter::Commits, "trx_commits"),
        (Counter::Rollbacks, "trx_rollbacks"),
    ];
}

impl Inner {
    pub(crate) fn env(&self) -> &Arc<Env> {
        &self.env
    }

    pub(crate) fn trx_system(&self) -> &Arc<TrxSystem> {
        &self.trx_system
    }

    pub(crate) fn count(&self, counter: Counter, n: u64) {
        self.counters.add(counter as usize, n);
    }

    /// Transactions at this moment.
    pub(crate) fn observe(&self) -> Vec<Observed> {
        self.trx_system.observe(self.presences.observe())
    }

    /// An error if nothing may be written: closed, read-only, or crashed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.env.check_writable()
    }

    fn begin_backup(
        self: &Arc<Self>,
        target: Arc<dyn Storage>,
        base: Option<Manifest>,
    ) -> Result<Backup> {
        let inner = Arc::downgrade(self);
        let name_of = move |space| {
            let tables = inner.upgrade()?.catalog.tables();
            tables.into_iter().find(|(_, record)| record.space == space).map(|(name, _)| name)
        };
        Backup::begin(&self.env, target, base, Box::new(name_of))
    }

    /// Makes all of the log durable.
    pub(crate) fn flush(&self) -> Result<()> {
        self.env.redo().flush()
    }

    /// Keeps what a detached prepared transaction uses.
    fn keep_detached(&self, owner: u64, detached: Detached) {
        self.detached.lock().insert(owner, detached);
    }

    /// Whether a prepared transaction without a session, of this life, has used the table in
    /// `space`.
    fn is_used_by_detached(&self, space: u32) -> bool {
        let detached = self.detached.lock();
        let mut used = detached.values().flat_map(|detached| &detached.used);
        used.any(|used| used.space_id() == space)
    }

    /// Whether a prepared transaction of an earlier life has changed the table in `space`.
    pub(crate) fn is_used_by_recovered(&self, space: u32) -> bool {
        let recovered = self.recovered.lock();
        recovered.values().any(|used| used.as_ref().is_none_or(|spaces| spaces.contains(&space)))
    }

    /// Whether a prepared transaction without a session has used the table in `space`.
    fn is_used_without_session(&self, space: u32) -> bool {
        self.is_used_by_recovered(space) || self.is_used_by_detached(space)
    }

    /// At open: notes what the prepared transactions of an earlier life have changed.
    fn note_recovered(&self) {
        for xid in self.trx_system.recovered_xids() {
            let spaces = self.trx_system.spaces_of_prepared(&xid);
            let spaces = spaces.inspect_err(|error| {
                tracing::warn!(
                    %error,
                    "no table can be dropped or changed until all prepared transactions have ended"
                );
            });
            self.recovered.lock().insert(xid, spaces.ok());
        }
    }
}

impl Db {
    /// The pool, for reports.
    pub(crate) fn pool(&self) -> &Pool {
        self.inner.env.pool()
    }

    /// The transaction system, for reports.
    pub(crate) fn trx_system(&self) -> &TrxSystem {
        &self.inner.trx_system
    }

    /// The catalog, for reports.
    pub(crate) fn catalog(&self) -> &Catalog {
        &self.inner.catalog
    }

    /// A handle that keeps nothing open.
    pub(crate) fn downgrade(&self) -> WeakDb {
        WeakDb(Arc::downgrade(&self.inner))
    }
}

/// See [`Db::downgrade`].
pub(crate) struct WeakDb(Weak<Handle>);

impl WeakDb {
    /// The engine, if it is still open.
    pub fn upgrade(&self) -> Option<Db> {
        self.0.upgrade().map(|inner| Db { inner })
    }
}

/// A prepared transaction of an earlier life has ended: its rows are counted. An estimate may have
/// had them already.
fn count_rows_of_recovered(rows: &[(Arc<Table>, i64)], is_commit: bool) {
    for (table, added) in rows {
        if table.has_estimated_rows() {
            if let Err(error) = table.estimate_rows() {
                tracing::warn!(table = table.name(), %error, "the rows of a table can't be estimated");
            }
        } else if is_commit {
            table.add_rows(*added);
        }
    }
}

impl Db {
    /// Identifiers of the prepared transactions that belong to no session: found at open, or
    /// detached. None where they can't be ended, as nothing is written
    /// ([`ForceRecovery::ReadOnly`](crate::ForceRecovery)).
    pub fn recovered_xids(&self) -> Vec<Vec<u8>> {
        if self.inner.env.force_recovery().is_read_only() {
            return Vec::new();
        }
        self.inner.trx_system.recovered_xids()
    }

    /// Whether a prepared transaction that belongs to no session has changed a table whose name
    /// `is_meant`. It ends when anybody says so: a copy from a snapshot, made to take the table's
    /// place, would lack what it wrote.
    pub fn is_used_without_session(&self, is_meant: impl Fn(&str) -> bool) -> bool {
        let inner = &self.inner;
        let mut tables = inner.catalog.tables().into_iter();
        tables.any(|(name, table)| is_meant(&name) && inner.is_used_without_session(table.space))
    }

    /// Commits a prepared transaction that belongs to no session. [`Error::NotFound`] if there is
    /// none of this identifier.
    pub fn commit_prepared(&self, xid: &[u8]) -> Result<()> {
        self.end_prepared(xid, true)
    }

    /// Rolls back a prepared transaction that belongs to no session. [`Error::NotFound`] if there
    /// is none of this identifier.
    pub fn rollback_prepared(&self, xid: &[u8]) -> Result<()> {
        self.end_prepared(xid, false)
    }

    fn end_prepared(&self, xid: &[u8], is_commit: bool) -> Result<()> {
        self.inner.check_writable()?;
        let mut trx = self.inner.trx_system.take_prepared(xid).ok_or(Error::NotFound)?;
        let rows = self.rows_of_recovered(xid, &trx)?;
        let ended = if is_commit { trx.commit() } else { trx.rollback() };
        pause::reach(PausePoint::PreparedEnded);
        if !trx.is_prepared() {
            // One that failed to roll back has ended, too: the background goes on. No thread would
            // let go of its tables later.
            let detached = self.inner.detached.lock().remove(&trx.owner.number());
            if is_commit && ended.is_ok() {
                let used = detached.iter().flat_map(|detached| &detached.used);
                used.for_each(Used::note_commit);
            }
            self.inner.recovered.lock().remove(xid);
            if ended.is_ok() {
                count_rows_of_recovered(&rows, is_commit);
            }
        }
        ended?;
        // The verdict is final once it is returned, a rollback's too: the transaction must not be
        // found prepared again.
        self.flush_log()
    }

    /// The tables that a prepared transaction of an earlier life has changed, and how many rows it
    /// adds to each. Their headers' counts are void from here on. A table that can't be opened is
    /// left out: its next opening says why.
    fn rows_of_recovered(
        &self,
        xid: &[u8],
        trx: &TransactionCore,
    ) -> Result<Vec<(Arc<Table>, i64)>> {
        if !self.inner.recovered.lock().contains_key(xid) {
            return Ok(Vec::new());
        }
        let added = trx.entries_added()?;
        let mut rows = Vec::new();
        for (name, record) in self.inner.catalog.tables() {
            let Some(added) = added.get(&record.trees[Table::CLUSTERED].tree) else { continue };
            match self.open_table(&name) {
                Ok(table) => {
                    table.unsettle_rows()?;
                    rows.push((table, *added));
                }
                Err(error) => {
                    tracing::warn!(table = name, %error, "the rows of a table are not counted");
                }
            }
        }
        Ok(rows)
    }

    /// Makes the log durable up to `lsn`, whatever `flush_log_at_trx_commit` says. Callers at the
    /// same time share one sync.
    pub fn flush_log_to(&self, lsn: Lsn) -> Result<()> {
        self.inner.env.redo().flush_to(lsn)
    }

    /// Makes all of the log durable that there is.
    pub fn flush_log(&self) -> Result<()> {
        self.inner.flush()
    }

    /// From now on no thread waits for longer than a few seconds for space on the log's disk: the
    /// process is about to end. When they are over, a log that still finds no space has failed for
    /// good.
    pub fn limit_wait_for_log_space(&self) {
        self.inner.env.limit_wait_for_log_space();
    }

    /// End of the log.
    pub fn current_lsn(&self) -> Lsn {
        self.inner.env.redo().next_lsn()
    }

    /// Everything before this survives a power cut.
    pub fn durable_lsn(&self) -> Lsn {
        self.inner.env.redo().flushed_lsn()
    }

    /// Begins a backup into `target`, an empty directory: a copy of this one as it is when the
    /// backup is finished. Nothing waits for it meanwhile. It is a data directory, to be opened by
    /// [`Db::open`]; what was in no finished transaction is rolled back then. One backup at a time.
    /// That of a directory that is open [read-only](Options::read_only) is no base of an
    /// incremental one.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if [`Options::force_recovery`] lets nothing be written; and at the end
    /// [`Error::Format`] if the file of a table is missing.
    pub fn begin_backup(&self, target: Arc<dyn Storage>) -> Result<Backup> {
        self.inner.check_open()?;
        self.inner.begin_backup(target, None)
    }

    /// Begins an incremental backup into `target`: what was written since the backup in `base` was
    /// made, which may be incremental as well. [`combine_backups`](crate::combine_backups) makes a
    /// complete one of both.
    ///
    /// # Errors
    /// [`Error::Format`] if there is no backup of this data directory in
    /// `base`.
    pub fn begin_backup_since(
        &self,
        base: &dyn Storage,
        target: Arc<dyn Storage>,
    ) -> Result<Backup> {
        self.inner.check_open()?;
        self.inner.begin_backup(target, Some(Manifest::read(base)?))
    }

    /// Begins a backup into the directory `dir`, which is made if it is missing; its parent must
    /// exist. What is not finished leaves empty directories, the lock file, and a mark by which
    /// [`Db::open`] refuses it; the next backup may go there.
    pub fn begin_backup_in(&self, dir: impl AsRef<Path>) -> Result<Backup> {
        let target = self.backup_target(dir.as_ref())?;
        self.begin_backup(target)
    }

    /// The same for an incremental backup: what was written since the one in the directory `base`.
    ///
    /// # Errors
    /// As [`Db::begin_backup_since`].
    pub fn begin_backup_since_in(
        &self,
        base: impl AsRef<Path>,
        dir: impl AsRef<Path>,
    ) -> Result<Backup> {
        let options = FileOptions { direct_io: false, read_only: true, ..FileOptions::default() };
        let base = base.as_ref();
        let read = FileStorage::new(base, options).map_err(Error::from);
        let read = read.and_then(|storage| Manifest::read(&storage));
        // What is missing is the backup that was named, not a part of this directory.
        let manifest = read.map_err(|error| {
            let why = format!("the earlier backup '{}': {}", base.display(), error.what());
            Error::InvalidOption(why)
        })?;
        let target = self.backup_target(dir.as_ref())?;
        self.inner.begin_backup(target, Some(manifest))
    }

    fn backup_target(&self, dir: &Path) -> Result<Arc<dyn Storage>> {
        self.inner.check_open()?;
        if !dir.exists() {
            make_marked_dir(dir)?;
        }
        let Options { direct_io, open_files, .. } = self.options();
        let options = FileOptions { direct_io, open_files, read_only: false };
        Ok(Arc::new(FileStorage::new(dir, options)?))
    }

    /// A complete backup from the beginning to the end. `go_on` gets how far it is; if it says
    /// false, that is [`Error::Interrupted`].
    ///
    /// ```
    /// # use tidepool::{Db, Options};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (dir, copy) = (dir.path().join("data"), dir.path().join("copy"));
    /// let db = Db::open(&dir, Options::default())?;
    /// db.backup(&copy, &mut |progress| progress.copied_bytes < 1 << 40)?;
    /// let restored = Db::open(&copy, Options::default())?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub fn backup(
        &self,
        dir: impl AsRef<Path>,
        go_on: &mut dyn FnMut(BackupProgress) -> bool,
    ) -> Result<BackupReport> {
        self.begin_backup_in(dir)?.run(go_on)
    }

    /// Whether the directory had been closed cleanly when it was opened: nothing had to be
    /// recovered.
    pub fn was_clean(&self) -> bool {
        self.inner.env.was_clean()
    }

    /// The options in force, with what was changed since the open.
    pub fn options(&self) -> Options {
        self.inner.options.read().clone()
    }

    /// Changes what a commit waits for: 0, 1 or 2.
    pub fn set_flush_log_at_trx_commit(&self, value: u8) -> Result<()> {
        options::check_flush_log_at_trx_commit(value)?;
        let _one = self.inner.setting.lock();
        self.inner.trx_system.set_flush_log_at_trx_commit(value);
        self.inner.options.write().flush_log_at_trx_commit = value;
        Ok(())
    }

    /// Changes how long transactions begun from now on wait for a lock.
    pub fn set_lock_wait_timeout(&self, value: Duration) {
        let _one = self.inner.setting.lock();
        self.inner.trx_system.set_lock_wait_timeout(value);
        self.inner.options.write().lock_wait_timeout = value;
    }

    /// Changes the size of the buffer pool, in bytes; 0 = governed. Returns at once: the pool gets
    /// there in the background.
    pub fn set_buffer_pool_size(&self, bytes: u64) -> Result<()> {
        let _one = self.inner.setting.lock();
        let mut options = self.inner.options.write();
        options.check_buffer_pool_size(bytes)?;
        options.buffer_pool_size_bytes = bytes;
        drop(options);
        pause::reach(PausePoint::OptionNoted);
        self.inner.env.governor().set_size_bytes(bytes);
        Ok(())
    }

    /// Changes the memory for everything that the engine allocates, in bytes; 0 = no such budget.
    /// Returns at once, as [`set_buffer_pool_size`](Self::set_buffer_pool_size) does; log buffers
    /// stay as long as they are.
    pub fn set_memory_budget(&self, bytes: u64) -> Result<()> {
        let _one = self.inner.setting.lock();
        let mut options = self.inner.options.write();
        options.check_memory_budget(bytes)?;
        options.memory_budget_bytes = bytes;
        drop(options);
        pause::reach(PausePoint::OptionNoted);
        self.inner.env.governor().set_budget_bytes(bytes);
        Ok(())
    }

    /// Changes whether the pool stays below the size asked for while there isn't the memory for it.
    pub fn set_memory_guard(&self, on: bool) {
        let _one = self.inner.setting.lock();
        self.inner.options.write().memory_guard = on;
        self.inner.env.governor().set_memory_guard(on);
    }

    /// Changes whether a governed pool gives back what brings nothing.
    pub fn set_memory_policy(&self, value: MemoryPolicy) {
        let _one = self.inner.setting.lock();
        self.inner.options.write().memory_policy = value;
        self.inner.env.governor().set_memory_policy(value);
    }

    /// Who sizes the buffer pool: the decisions, and the reasons.
    pub(crate) fn governor(&self) -> &PoolGovernor {
        self.inner.env.governor()
    }

    /// Changes the size of the redo log, in bytes; it gets there as the log goes round. 0 =
    /// automatic from now on.
    pub fn set_redo_capacity_bytes(&self, value: u64) -> Result<()> {
        options::check_redo_capacity(value)?;
        let _one = self.inner.setting.lock();
        self.inner.env.set_redo_capacity(value)?;
        self.inner.options.write().redo_capacity_bytes = value;
        Ok(())
    }

    /// Changes the share of the pool's list that is old, in percent.
    pub fn set_old_blocks_pct(&self, value: u8) -> Result<()> {
        options::check_old_blocks_pct(value)?;
        let _one = self.inner.setting.lock();
        self.inner.options.write().old_blocks_pct = value;
        self.configure_replacement();
        Ok(())
    }

    /// Changes how long a page stays old after its first access.
    pub fn set_old_blocks_time(&self, value: Duration) {
        let _one = self.inner.setting.lock();
        self.inner.options.write().old_blocks_time = value;
        self.configure_replacement();
    }

    /// Changes how pages of tables are compressed from now on; what is there stays as it is until
    /// it is written again.
    pub fn set_page_compression(&self, value: PageCompression) {
        let _one = self.inner.setting.lock();
        self.inner.options.write().page_compression = value;
        self.inner.env.pool().set_page_compression(value);
    }

    /// Changes whether part of the pool may hold compressed images.
    pub fn set_compressed_tier(&self, value: CompressedTier) {
        let _one = self.inner.setting.lock();
        self.inner.options.write().compressed_tier = value;
        self.inner.env.pool().set_compressed_tier(value);
    }

    fn configure_replacement(&self) {
        let config = open::replacement(&self.inner.options.read());
        self.inner.env.pool().configure_replacement(&config);
    }

    /// Changes the history length above which writes are slowed down; 0 = never.
    pub fn set_max_purge_lag(&self, value: u64) {
        let _one = self.inner.setting.lock();
        self.inner.trx_system.set_max_purge_lag(value);
        self.inner.options.write().max_purge_lag = value;
    }

    /// Changes the longest such delay; zero = a second.
    pub fn set_max_purge_lag_delay(&self, value: Duration) {
        let _one = self.inner.setting.lock();
        self.inner.trx_system.set_max_purge_lag_delay(value);
        self.inner.options.write().max_purge_lag_delay = value;
    }

    /// Changes whether deadlocks are looked for.
    pub fn set_deadlock_detect(&self, value: bool) {
        let _one = self.inner.setting.lock();
        self.inner.trx_system.set_deadlock_detect(value);
        self.inner.options.write().deadlock_detect = value;
    }

    /// Sets the observer of waits between transactions whose session has a name: see
    /// [`Transaction::set_session_token`]. Once: false, and nothing changes, if there is an
    /// observer already.
    pub fn set_wait_observer(&self, observer: Box<dyn WaitObserver>) -> bool {
        self.inner.trx_system.locks.set_observer(observer)
    }

    /// Changes whether a REPEATABLE READ transaction may overwrite what changed after its snapshot.
    pub fn set_lost_update_check(&self, value: bool) {
        let _one = self.inner.setting.lock();
        self.inner.trx_system.set_lost_update_check(value);
        self.inner.options.write().lost_update_check = value;
    }

    /// Begins to record which pages are accessed, by what and when, into a new file at `path`. See
    /// [`TraceOptions`]; to be stopped by [`stop_page_trace`](Self::stop_page_trace). A recording
    /// under way ends when the new file is there.
    pub fn start_page_trace(&self, path: &Path, options: TraceOptions) -> Result<()> {
        Ok(self.inner.env.pool().start_trace(path, options)?)
    }

    /// Ends the recording and says how it went; `None` if there was none.
    pub fn stop_page_trace(&self) -> Option<TraceStatus> {
        self.inner.env.pool().stop_trace()
    }

    /// Turns the buffer pool's advisor on (as it is at first) or off.
    pub fn set_cache_advice(&self, enabled: bool) -> Result<()> {
        Ok(self.inner.env.pool().set_advice(enabled)?)
    }

    /// What other sizes of the buffer pool would bring.
    pub fn advice(&self) -> Advice {
        self.inner.env.pool().advice()
    }

    /// What the engine's memory goes to.
    pub fn memory(&self) -> MemoryReport {
        let inner = &self.inner;
        let process = inner.env.governor().report().own_resident_bytes;
        let above_pool = memory_above_pool(&inner.trx_system, &inner.sort_memory);
        MemoryReport::new(inner.env.pool(), above_pool, process)
    }

    /// What the calling thread has asked of the pool since it began, and the number of undo records
    /// that it has read for older versions. The difference of two answers is what a statement took.
    pub fn thread_work(&self) -> (ThreadWork, u64) {
        (self.inner.env.pool().thread_work(), crate::undo::records_read_by_thread())
    }

    /// All counters.
    pub fn status(&self) -> Status {
        let inner = &self.inner;
        let mut status = Status::default();
        let pool = inner.env.pool().stats();
        status.add_pool(&pool);
        status.add_tier(&inner.env.pool().tier_stats(), pool.page_size_bytes);
        status.add_files(&inner.env.pool().packed_usage(), &pool);
        status.add_page_trace(inner.env.pool().trace_status().as_ref());
        status.add_resize(&inner.env.pool().resize_status());
        status.push_text("buffer_pool_load_status", inner.warm.load_status());
        status.push_text("buffer_pool_dump_status", inner.warm.dump_status());
        status.add_governor(&inner.env.governor().report());
        status.add_memory(&self.memory());
        status.add_redo(&inner.env.redo().stats());
        status.add_ballast(inner.env.ballast().map_or(0, Ballast::bytes));
        status.add_transactions(&inner.trx_system.status());
        for (counter, name) in Counter::ALL {
            status.push(name, inner.counters.get(counter as usize));
        }
        inner.add_scrub(&mut status);
        inner.add_rotation(&mut status);
        status.push("open_tables", inner.tables.lock().by_name.len() as u64);
        status
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db")
            .field("tables", &self.inner.tables.lock().by_name.len())
            .finish_non_exhaustive()
    }
}
