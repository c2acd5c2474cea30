//! How an environment is opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidepool_governor::Policy as MemoryPolicy;
use tidepool_pool::encryption::Keys;
use tidepool_pool::storage::Storage;
use tidepool_pool::{CompressedTier, MemoryThreads, PageCompression, ReplacementConfig, Threads};

use crate::encryption::{EncryptTables, KeySource};
use crate::newest_runs::NewestRuns;
use crate::options::{AcceptLogLoss, ForceRecovery, Options};
use crate::page_files::PageFiles;
use crate::recovery;
use crate::redo;
use crate::redo::control::Control;

/// Size of the log buffer, and of the buffer of its writer, in bytes: with a memory budget, at most
/// this part of it each.
const REDO_BUFFER_BYTES: u64 = 4 << 20;
const REDO_BUFFER_PARTS: u64 = 32;

/// How an environment is opened.
#[derive(Debug, Clone)]
pub struct EnvOptions {
    /// Page size in bytes; 0 = the data directory's, or 16 KiB for a new one.
    pub page_size: usize,
    /// Memory for pages, bytes; 0 = governed.
    pub buffer_pool_size_bytes: u64,
    /// See [`Options::memory_budget_bytes`].
    pub memory_budget_bytes: u64,
    /// Whether a number there is a ceiling only.
    pub memory_guard: bool,
    /// See [`Options::memory_policy`].
    pub memory_policy: MemoryPolicy,
    /// See [`Options::memory_locked`].
    pub memory_locked: bool,
    /// See [`Options::memory_threads`].
    pub memory_threads: MemoryThreads,
    /// See [`Options::threads`].
    pub threads: Threads,
    /// Where `/proc` and `/sys` are.
    pub system_root: PathBuf,
    /// The pool's replacement policy.
    pub replacement: ReplacementConfig,
    /// See [`Options::page_compression`].
    pub page_compression: PageCompression,
    /// See [`Options::compressed_tier`].
    pub compressed_tier: CompressedTier,
    /// Size of the redo log, bytes; 0 = automatic.
    pub redo_capacity_bytes: u64,
    /// Size of the log buffer, and of the buffer of its writer, bytes.
    pub redo_buffer_bytes: usize,
    /// How often the log is flushed without being asked.
    pub flush_log_interval: Duration,
    /// Nothing is ever written.
    pub read_only: bool,
    /// See [`Options::accept_log_loss`].
    pub accept_log_loss: AcceptLogLoss,
    /// What a start on a damaged data directory does without.
    pub force_recovery: ForceRecovery,
    /// Whether threads do the background work, or the caller by the `step_…` methods.
    pub background: bool,
    /// What encrypted files are read and written with.
    pub keys: Option<Arc<Keys>>,
    /// See [`Options::encrypt_tables`].
    pub encrypt_tables: EncryptTables,
    /// See [`Options::encrypt_log`].
    pub encrypt_log: bool,
    /// Identity of a new data directory; `None` = random.
    pub uuid: Option<[u8; 16]>,
}

impl EnvOptions {
    /// What the files of this data directory have in common.
    pub(super) fn page_files(&self, storage: &dyn Storage, control: &Control) -> PageFiles {
        PageFiles {
            page_size: control.page_size,
            instance: control.uuid,
            // Each opening has another control file.
            seed: self.uuid.map(|_| control.sequence),
            read_only: self.read_only,
            last_resort: self.force_recovery.is_read_only(),
            newest_runs: Arc::new(NewestRuns::load(storage, control.uuid)),
            keys: self.keys.clone(),
        }
    }

    /// What of them recovery needs, for a log of this capacity.
    pub(super) fn recovery<'a>(
        &self,
        storage: &'a Arc<dyn Storage>,
        page_files: PageFiles,
        redo_capacity_bytes: u64,
    ) -> recovery::Options<'a> {
        recovery::Options {
            storage,
            page_files,
            read_only: self.read_only,
            force: self.force_recovery,
            accept_log_loss: self.accept_log_loss,
            memory_budget_bytes: self.memory_budget_bytes,
            redo_capacity_bytes,
            redo_buffer_bytes: self.redo_buffer_bytes,
            encrypt_log: self.encrypt_log,
        }
    }
}

impl Default for EnvOptions {
    fn default() -> Self {
        Self::from(&Options::default())
    }
}

impl From<&Options> for EnvOptions {
    fn from(options: &Options) -> Self {
        Self {
            page_size: options.page_size,
            buffer_pool_size_bytes: options.buffer_pool_size_bytes,
            memory_budget_bytes: options.memory_budget_bytes,
            memory_locked: options.memory_locked,
            memory_threads: options.memory_threads,
            threads: options.threads.clone(),
            memory_guard: options.memory_guard,
            memory_policy: options.memory_policy,
            system_root: options.system_root.clone(),
            replacement: ReplacementConfig::default(),
            page_compression: options.page_compression,
            compressed_tier: options.compressed_tier,
            redo_capacity_bytes: options.redo_capacity_bytes,
            redo_buffer_bytes: match options.memory_budget_bytes {
                0 => REDO_BUFFER_BYTES,
                budget => REDO_BUFFER_BYTES.min(budget / REDO_BUFFER_PARTS),
            } as usize,
            flush_log_interval: options.flush_log_interval,
            read_only: options.read_only,
            accept_log_loss: options.accept_log_loss,
            force_recovery: options.force_recovery,
            background: options.background,
            keys: options.keyring.clone().map(|KeySource(keyring)| Arc::new(Keys::new(keyring))),
            encrypt_tables: options.encrypt_tables,
            encrypt_log: options.encrypt_log,
            uuid: None,
        }
    }
}

impl EnvOptions {
    /// A small environment without threads, for tests and simulations.
    pub fn small() -> Self {
        Self {
            buffer_pool_size_bytes: 4 << 20,
            memory_guard: false,
            memory_policy: MemoryPolicy::Keep,
            memory_locked: false,
            redo_capacity_bytes: redo::CAPACITY_MIN_BYTES,
            redo_buffer_bytes: 64 << 10,
            background: false,
            uuid: Some(*b"tidepool-sim-env"),
            ..Self::default()
        }
    }
}
