//! What a data directory is opened with: [`Options`], their limits, and why each limit is there.
//!
//! `Options::default()` is meant to be right for most; a field is changed by assignment.
//! [`Options::validate`] runs at every open, so a wrong value is an [`Error::InvalidOption`] naming
//! the field, its value and what it may be, and never a surprise later. Some can be changed while
//! the engine runs: those have setters on [`Db`](crate::Db), which call the same checks.

use crate::encryption::{EncryptTables, KeySource};
use crate::error::{Error, Result};
use std::path::PathBuf;
use std::time::Duration;
use tidepool_governor::Policy as MemoryPolicy;
use tidepool_pool::storage::FileWatch;
use tidepool_pool::{CompressedTier, MemoryThreads, PageCompression, Threads};

/// Smallest and largest page size, in bytes.
pub const PAGE_SIZE_RANGE_BYTES: std::ops::RangeInclusive<usize> = 4096..=65536;
/// Least pages a buffer pool must hold: a mini-transaction of a split, with its undo and allocation
/// pages, on every one of a handful of threads, while the cleaner works.
pub const BUFFER_POOL_PAGES_MIN: u64 = 64;
/// Smallest buffer pool, in bytes, whatever the page size.
pub const BUFFER_POOL_SIZE_MIN_BYTES: u64 = 4 << 20;
/// Smallest memory budget, in bytes: the smallest buffer pool, and as much again thrice for what
/// else there is.
pub const MEMORY_BUDGET_MIN_BYTES: u64 = 4 * BUFFER_POOL_SIZE_MIN_BYTES;
/// Smallest and largest redo capacity, in bytes. The lower end leaves room for the largest
/// mini-transaction many times over.
pub const REDO_CAPACITY_RANGE_BYTES: std::ops::RangeInclusive<u64> = (8 << 20)..=(512 << 30);
/// Smallest and largest share of the old list of the `midpoint` replacement, in percent (InnoDB's
/// limits).
pub const OLD_BLOCKS_PCT_RANGE: std::ops::RangeInclusive<u8> = 5..=95;

/// Which pages leave the buffer pool when frames are needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Replacement {
    /// Recency, frequency and what is known of scans, weighed by what the load shows. Nothing to
    /// set.
    #[default]
    Tide,
    /// Young and old lists as InnoDB has them, set by `old_blocks_pct` and `old_blocks_time`.
    Midpoint,
}

/// Whether the log may lose what was durable in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AcceptLogLoss {
    /// A log that is damaged stops the opening.
    #[default]
    No,
    /// The log ends where it is damaged. What was committed after that is lost, and so are tables
    /// of which a page was written after that.
    Yes,
}

/// What a start on a damaged data directory does without, so that what can still be read can be
/// dumped. Each level does without all that the levels below it do without;
/// `docs/internals/recovery.md`, "The worst day", has them for administrators.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForceRecovery {
    /// Nothing: damage of single pages is contained without this.
    #[default]
    Off,
    /// Purge. What was deleted stays in the files.
    NoPurge,
    /// The rollback of what was unfinished. Its rows stay locked, reads see the versions before.
    NoRollback,
    /// Writes: everything is read-only from here on. The start passes over changes of the log that
    /// can't be applied, and scans pass over pages that can't be read.
    ReadOnly,
    /// The undo log. Rows are as they were written last, be it by a transaction that was not
    /// committed.
    NoUndo,
    /// The redo log. Pages are as the files have them.
    NoRedo,
}

impl ForceRecovery {
    /// The levels by number.
    const ALL: [ForceRecovery; 6] = [
        ForceRecovery::Off,
        ForceRecovery::NoPurge,
        ForceRecovery::NoRollback,
        ForceRecovery::ReadOnly,
        ForceRecovery::NoUndo,
        ForceRecovery::NoRedo,
    ];

    /// The level of this number, as the variable of a server has it.
    pub fn from_level(level: u8) -> Result<ForceRecovery> {
        Self::ALL.get(usize::from(level)).copied().ok_or_else(|| {
            Error::InvalidOption(format!("force_recovery = {level}: must be 0 to 5"))
        })
    }

    /// Its number.
    pub fn level(self) -> u8 {
        self as u8
    }

    /// Whether nothing is written, whatever a session asks for.
    pub fn is_read_only(self) -> bool {
        self >= ForceRecovery::ReadOnly
    }
}

/// Options of [`Db::open`](crate::Db::open). Start from `Options::default()` and assign fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Page size of a *new* data directory, in bytes: a power of two, 4 KiB to 64 KiB. An existing
    /// directory must have been created with the same; 0 takes whatever it has (and 16 KiB for a
    /// new one). Default 16 KiB.
    pub page_size: usize,
    /// Memory for the buffer pool, in bytes: a ceiling. 0 (default) = governed: as much as the
    /// machine, or the tightest cgroup above the process, leaves free, and as the pool has use for.
    /// The crate `tidepool-governor` decides; [`Db::memory_decisions`](crate::Db::memory_decisions)
    /// says why.
    pub buffer_pool_size_bytes: u64,
    /// Memory for everything that the engine allocates, in bytes: the pool's pages and what
    /// describes them, log buffers, locks, sorts. The pool gets what the others leave, and gives up
    /// what they come to need, except the last quarter, 16 MiB at most; at an open, log buffers
    /// are made to measure, and what recovery collects. 0 (default) = no such budget. It binds
    /// beside `buffer_pool_size_bytes`, whatever `memory_guard` says. (Without `background`,
    /// a step of the governor keeps it.)
    pub memory_budget_bytes: u64,
    /// Whether the pool stays below `buffer_pool_size_bytes` while there isn't the memory for it
    /// (default), or has that number whatever happens. A governed pool is always guarded.
    pub memory_guard: bool,
    /// Whether a governed pool gives back what brings nothing. Default [`MemoryPolicy::Auto`].
    pub memory_policy: MemoryPolicy,
    /// Where `/proc` and `/sys` are looked for. Default `/`; another directory is for tests.
    pub system_root: PathBuf,
    /// Size of the redo log, in bytes. 0 (default) = automatic: half the memory that the pool
    /// holds, 128 MiB to 4 GiB.
    pub redo_capacity_bytes: u64,
    /// What a commit waits for, with InnoDB's meaning: 1 (default) = written and synced; 2 =
    /// written, synced within `flush_log_interval`; 0 = both within `flush_log_interval`.
    pub flush_log_at_trx_commit: u8,
    /// How often the log is synced without a commit asking for it. Default 1 s.
    pub flush_log_interval: Duration,
    /// How long a statement waits for a lock before `Error::LockWaitTimeout`. Default 50 s.
    pub lock_wait_timeout: Duration,
    /// Whether deadlocks are looked for at every lock wait (default), or left to the timeout.
    pub deadlock_detect: bool,
    /// Whether writing an entry that changed after the transaction's REPEATABLE READ snapshot is
    /// `Error::RecordChanged` (default), or the write sees the newest version although reads do
    /// not.
    pub lost_update_check: bool,
    /// The buffer pool's replacement policy. Default [`Replacement::Tide`].
    pub replacement: Replacement,
    /// Of `Replacement::Midpoint`: share of the buffer pool's list that is "old", in percent.
    /// Default 37.
    pub old_blocks_pct: u8,
    /// Of `Replacement::Midpoint`: how long a page stays in the old list after its first access
    /// before another access makes it young. Default 1 s.
    pub old_blocks_time: Duration,
    /// History length above which writes are slowed down, in committed transactions not yet purged.
    /// 0 (default) = never.
    pub max_purge_lag: u64,
    /// Longest such delay of one write. Zero (default) = a second.
    pub max_purge_lag_delay: Duration,
    /// How pages are compressed when they are written. Default
    /// [`PageCompression::Auto`].
    pub page_compression: PageCompression,
    /// Whether part of the pool may hold compressed images of pages that left their frames. Default
    /// [`CompressedTier::Auto`].
    pub compressed_tier: CompressedTier,
    /// Whether files are opened with `O_DIRECT` (where the file system allows it). Default true.
    pub direct_io: bool,
    /// Whether the process locks its memory (`mlockall`), or is about to. Then only what the pool
    /// uses may be locked, not all that it might use once. Default false.
    pub memory_locked: bool,
    /// How the kernel schedules the two threads that see memory getting short and give it back.
    /// Default [`MemoryThreads::AsOthers`]: no nice value of the process changes.
    pub memory_threads: MemoryThreads,
    /// Who hears of the threads that the engine starts, as each begins and ends. Default: no
    /// observer.
    pub threads: Threads,
    /// Who hears of what is done with the files. Default: no observer.
    pub files: FileWatch,
    /// How many files may have a descriptor at once. There may be any number of tables: files that
    /// rest are closed and opened again. 0 (default) = half of the descriptors that the process may
    /// have.
    pub open_files: usize,
    /// Whether the list of hot pages is saved: each minute or so, and at a clean shutdown. Default
    /// true.
    pub buffer_pool_dump_at_shutdown: bool,
    /// Whether the pages of that list are read in the background after the open. Default true.
    pub buffer_pool_load_at_startup: bool,
    /// Days within which the scrub reads and verifies each page once, in the background; 0 = it
    /// does not. Default 7.
    pub scrub_days: u16,
    /// Nothing in the directory is ever written, so that it may be one that can't be. Only the lock
    /// file is made if it is missing, and can be. The directory must have been closed cleanly. Any
    /// number of processes may have it open so, and no other process then has it open for writing.
    /// Default false.
    ///
    /// ```
    /// # use tidepool::{Db, Options, TableDef};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let dir = dir.path();
    /// let db = Db::open(dir, Options::default())?;
    /// let fruit = db.open_or_create_table("fruit", &TableDef::map())?;
    /// db.write(|trx| trx.put(&fruit, b"apple", b"red"))?;
    /// db.close()?;
    ///
    /// let read_only = || Db::open(dir, Options { read_only: true, ..Options::default() });
    /// for db in [read_only()?, read_only()?] {
    ///     let fruit = db.open_table("fruit")?;
    ///     assert!(db.read(|trx| trx.get(&fruit, b"apple"))?.is_some());
    ///     assert!(db.write(|trx| trx.put(&fruit, b"lemon", b"yellow")).is_err());
    /// }
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub read_only: bool,
    /// What an opening does that finds the redo log damaged in the middle: it fails with an error
    /// that says what would be lost (default), or it goes on without that. For one opening, after
    /// everything else was tried.
    pub accept_log_loss: AcceptLogLoss,
    /// What a start on a damaged data directory does without. Default [`ForceRecovery::Off`].
    pub force_recovery: ForceRecovery,
    /// Where the keys of encrypted tables come from. Default none: then no table can be encrypted,
    /// and encrypted ones can't be read. The same keyring must be given at each opening.
    pub keyring: Option<KeySource>,
    /// Whether tables are encrypted that do not say. Default [`EncryptTables::Off`].
    pub encrypt_tables: EncryptTables,
    /// Whether the redo log is encrypted from this opening on. Default false.
    pub encrypt_log: bool,
    /// How many newer versions of a key there must be before what was encrypted with an older one
    /// is encrypted anew, in the background; 0 = that is never done, not even for tables that
    /// should be encrypted or decrypted. Default 1.
    pub encryption_rotate_key_age: u32,
    /// Pages that the background encrypts anew in a second, or reads to see the version of their
    /// key. Default 100.
    pub encryption_rotation_iops: u32,
    /// Whether threads do the background work (default), or the caller by the `step_…` methods of
    /// [`Db`](crate::Db), in any order: for deterministic simulation.
    pub background: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            page_size: 16384,
            buffer_pool_size_bytes: 0,
            memory_budget_bytes: 0,
            memory_guard: true,
            memory_policy: MemoryPolicy::default(),
            system_root: PathBuf::from("/"),
            redo_capacity_bytes: 0,
            flush_log_at_trx_commit: 1,
            flush_log_interval: Duration::from_secs(1),
            lock_wait_timeout: Duration::from_secs(50),
            deadlock_detect: true,
            lost_update_check: true,
            replacement: Replacement::default(),
            old_blocks_pct: 37,
            old_blocks_time: Duration::from_secs(1),
            max_purge_lag: 0,
            max_purge_lag_delay: Duration::ZERO,
            page_compression: PageCompression::default(),
            compressed_tier: CompressedTier::default(),
            direct_io: true,
            memory_locked: false,
            memory_threads: MemoryThreads::default(),
            threads: Threads::default(),
            files: FileWatch::default(),
            open_files: 0,
            buffer_pool_dump_at_shutdown: true,
            buffer_pool_load_at_startup: true,
            scrub_days: 7,
            read_only: false,
            accept_log_loss: AcceptLogLoss::No,
            force_recovery: ForceRecovery::Off,
            keyring: None,
            encrypt_tables: EncryptTables::Off,
            encrypt_log: false,
            encryption_rotate_key_age: 1,
            encryption_rotation_iops: 100,
            background: true,
        }
    }
}

impl Options {
    /// A small database without threads, for tests and simulations.
    pub fn small() -> Self {
        Self {
            buffer_pool_size_bytes: 4 << 20,
            redo_capacity_bytes: 8 << 20,
            background: false,
            ..Self::default()
        }
    }

    /// Checks every field; the error names the field, the value and what it may be.
    pub fn validate(&self) -> Result<()> {
        if self.page_size != 0
            && !(self.page_size.is_power_of_two()
                && PAGE_SIZE_RANGE_BYTES.contains(&self.page_size))
        {
            return Err(Error::InvalidOption(format!(
                "page_size = {}: must be 4096, 8192, 16384, 32768 or 65536",
                self.page_size
            )));
        }
        self.check_buffer_pool_size(self.buffer_pool_size_bytes)?;
        self.check_memory_budget(self.memory_budget_bytes)?;
        if self.flush_log_interval.is_zero() {
            return Err(Error::InvalidOption(
                "flush_log_interval = 0: must be longer than zero".into(),
            ));
        }
        check_redo_capacity(self.redo_capacity_bytes)?;
        check_flush_log_at_trx_commit(self.flush_log_at_trx_commit)?;
        check_old_blocks_pct(self.old_blocks_pct)
    }

    /// Checks a `buffer_pool_size_bytes` at this page size.
    pub(crate) fn check_buffer_pool_size(&self, bytes: u64) -> Result<()> {
        let min = self.buffer_pool_size_min_bytes();
        if bytes == 0 || bytes >= min {
            return Ok(());
        }
        Err(Error::InvalidOption(format!(
            "buffer_pool_size_bytes = {bytes}: must be 0 (governed) or at least {min}"
        )))
    }

    /// Checks a `memory_budget_bytes`.
    pub(crate) fn check_memory_budget(&self, bytes: u64) -> Result<()> {
        let min = MEMORY_BUDGET_MIN_BYTES;
        if bytes == 0 || bytes >= min {
            return Ok(());
        }
        Err(Error::InvalidOption(format!(
            "memory_budget_bytes = {bytes}: must be 0 (none) or at least {min}"
        )))
    }

    /// Least `buffer_pool_size_bytes` at this page size.
    pub fn buffer_pool_size_min_bytes(&self) -> u64 {
        let page_size = if self.page_size == 0 { 16384 } else { self.page_size };
        BUFFER_POOL_SIZE_MIN_BYTES.max(BUFFER_POOL_PAGES_MIN * page_size as u64)
    }
}

/// Checks a `redo_capacity_bytes`.
pub(crate) fn check_redo_capacity(bytes: u64) -> Result<()> {
    if bytes == 0 || REDO_CAPACITY_RANGE_BYTES.contains(&bytes) {
        return Ok(());
    }
    let (min, max) = (REDO_CAPACITY_RANGE_BYTES.start(), REDO_CAPACITY_RANGE_BYTES.end());
    Err(Error::InvalidOption(format!(
        "redo_capacity_bytes = {bytes}: must be 0 (automatic), or {min} to {max}"
    )))
}

/// Checks a `flush_log_at_trx_commit`.
pub(crate) fn check_flush_log_at_trx_commit(value: u8) -> Result<()> {
    if value <= 2 {
        return Ok(());
    }
    Err(Error::InvalidOption(format!("flush_log_at_trx_commit = {value}: must be 0, 1 or 2")))
}

/// Checks an `old_blocks_pct`.
pub(crate) fn check_old_blocks_pct(value: u8) -> Result<()> {
    if OLD_BLOCKS_PCT_RANGE.contains(&value) {
        return Ok(());
    }
    Err(Error::InvalidOption(format!("old_blocks_pct = {value}: must be 5 to 95")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Options)) -> String {
        let mut options = Options::default();
        change(&mut options);
        options.validate().unwrap_err().to_string()
    }

    #[test]
    fn the_default_is_valid() {
        assert_eq!(Options::default().validate(), Ok(()));
        assert_eq!(Options { page_size: 0, ..Options::default() }.validate(), Ok(()));
    }

    #[test]
    fn a_refusal_names_field_value_and_range() {
        assert_eq!(
            refusal(|o| o.page_size = 12288),
            "invalid option: page_size = 12288: must be 4096, 8192, 16384, 32768 or 65536"
        );
        assert_eq!(
            refusal(|o| o.page_size = 2048),
            "invalid option: page_size = 2048: must be 4096, 8192, 16384, 32768 or 65536"
        );
        assert_eq!(
            refusal(|o| o.buffer_pool_size_bytes = 1000),
            "invalid option: buffer_pool_size_bytes = 1000: must be 0 (governed) or at least 4194304"
        );
        assert_eq!(
            refusal(|o| o.memory_budget_bytes = 1000),
            "invalid option: memory_budget_bytes = 1000: must be 0 (none) or at least 16777216"
        );
        assert_eq!(
            refusal(|o| o.redo_capacity_bytes = 4096),
            "invalid option: redo_capacity_bytes = 4096: must be 0 (automatic), or 8388608 to \
             549755813888"
        );
        assert_eq!(
            refusal(|o| o.flush_log_at_trx_commit = 3),
            "invalid option: flush_log_at_trx_commit = 3: must be 0, 1 or 2"
        );
        assert_eq!(
            refusal(|o| o.flush_log_interval = Duration::ZERO),
            "invalid option: flush_log_interval = 0: must be longer than zero"
        );
        assert_eq!(
            refusal(|o| o.old_blocks_pct = 96),
            "invalid option: old_blocks_pct = 96: must be 5 to 95"
        );
    }
}
