// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Opening and closing the data directory, options, status, and the statements that make and drop
//! tables.
//!
//! A `tp_db` is a boxed [`Db`]; the server has one for its life.

use std::borrow::Cow;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::time::Duration;

use tidepool::{
    AcceptLogLoss, CompressedTier, Db, DefinitionChange, EncryptTables, EncryptionChoice, Error,
    ForceRecovery, IndexDef, Lsn, MemoryPolicy, MemoryThreads, Options, PageCompression,
    Replacement, Sample, TableDef, TableEncryption, TraceOptions,
};

use crate::attachment::{Attached, AttachmentChanges};
use crate::boundary::{TP_OK, bytes, guard, guard_or, text};
use crate::constants::{
    TP_COMPRESSION_LZ4, TP_COMPRESSION_OFF, TP_COMPRESSION_ZSTD, TP_ENCRYPT_FORCE, TP_ENCRYPT_ON,
    TP_ENCRYPTED_NO, TP_ENCRYPTED_YES, TP_HOT_LIST_DUMP, TP_HOT_LIST_LOAD, TP_MEMORY_KEEP,
    TP_MEMORY_RETURN, TP_REPLACEMENT_MIDPOINT,
};
use crate::keyring::keyring;
use crate::observers;

/// What `tp_open` takes; the names and units are those of the server's variables.
#[repr(C)]
pub struct OpenOptions {
    page_size: u64,
    buffer_pool_size_bytes: u64,
    redo_capacity_bytes: u64,
    lock_wait_timeout_s: u64,
    old_blocks_pct: u64,
    old_blocks_time_ms: u64,
    max_purge_lag: u64,
    max_purge_lag_delay_us: u64,
    open_files: u64,
    scrub_days: u16,
    flush_log_at_trx_commit: u8,
    deadlock_detect: u8,
    lost_update_check: u8,
    direct_io: u8,
    read_only: u8,
    accept_log_loss: u8,
    memory_guard: u8,
    /// A `TP_MEMORY_…`.
    memory_policy: u8,
    dump_at_shutdown: u8,
    load_at_startup: u8,
    memory_locked: u8,
    /// A `TP_REPLACEMENT_…`.
    replacement: u8,
    /// 0 to 5.
    force_recovery: u8,
    /// A `TP_COMPRESSION_…`.
    page_compression: u8,
    compressed_tier: u8,
    /// A `TP_ENCRYPT_…`.
    encrypt_tables: u8,
    encrypt_log: u8,
    encryption_rotate_key_age: u32,
    encryption_rotation_iops: u32,
}

impl OpenOptions {
    fn to_engine(&self) -> Result<Options, Error> {
        Ok(Options {
            force_recovery: ForceRecovery::from_level(self.force_recovery)?,
            page_size: usize::try_from(self.page_size).unwrap_or(usize::MAX),
            buffer_pool_size_bytes: self.buffer_pool_size_bytes,
            redo_capacity_bytes: self.redo_capacity_bytes,
            lock_wait_timeout: Duration::from_secs(self.lock_wait_timeout_s),
            old_blocks_pct: u8::try_from(self.old_blocks_pct).unwrap_or(u8::MAX),
            old_blocks_time: Duration::from_millis(self.old_blocks_time_ms),
            max_purge_lag: self.max_purge_lag,
            max_purge_lag_delay: Duration::from_micros(self.max_purge_lag_delay_us),
            flush_log_at_trx_commit: self.flush_log_at_trx_commit,
            deadlock_detect: self.deadlock_detect != 0,
            lost_update_check: self.lost_update_check != 0,
            direct_io: self.direct_io != 0,
            open_files: usize::try_from(self.open_files).unwrap_or(usize::MAX),
            read_only: self.read_only != 0,
            accept_log_loss: match self.accept_log_loss {
                0 => AcceptLogLoss::No,
                _ => AcceptLogLoss::Yes,
            },
            memory_locked: self.memory_locked != 0,
            memory_threads: MemoryThreads::First,
            threads: observers::threads(),
            files: observers::files(),
            memory_guard: self.memory_guard != 0,
            memory_policy: memory_policy(self.memory_policy),
            buffer_pool_dump_at_shutdown: self.dump_at_shutdown != 0,
            scrub_days: self.scrub_days,
            buffer_pool_load_at_startup: self.load_at_startup != 0,
            replacement: match c_int::from(self.replacement) {
                TP_REPLACEMENT_MIDPOINT => Replacement::Midpoint,
                _ => Replacement::Tide,
            },
            page_compression: page_compression(self.page_compression),
            compressed_tier: compressed_tier(self.compressed_tier),
            keyring: keyring(),
            encrypt_tables: encrypt_tables(self.encrypt_tables),
            encrypt_log: self.encrypt_log != 0,
            encryption_rotate_key_age: self.encryption_rotate_key_age,
            encryption_rotation_iops: self.encryption_rotation_iops,
            ..Options::default()
        })
    }
}

/// What a `TP_COMPRESSION_…` means.
fn page_compression(value: u8) -> PageCompression {
    match c_int::from(value) {
        TP_COMPRESSION_OFF => PageCompression::Off,
        TP_COMPRESSION_LZ4 => PageCompression::Lz4,
        TP_COMPRESSION_ZSTD => PageCompression::Zstd,
        _ => PageCompression::Auto,
    }
}

/// What a `TP_MEMORY_…` means.
fn memory_policy(value: u8) -> MemoryPolicy {
    match c_int::from(value) {
        TP_MEMORY_KEEP => MemoryPolicy::Keep,
        TP_MEMORY_RETURN => MemoryPolicy::Return,
        _ => MemoryPolicy::Auto,
    }
}

/// Whether there may be a compressed tier.
fn compressed_tier(value: u8) -> CompressedTier {
    if value == 0 { CompressedTier::Off } else { CompressedTier::Auto }
}

/// What a `TP_ENCRYPT_…` means.
fn encrypt_tables(value: u8) -> EncryptTables {
    match c_int::from(value) {
        TP_ENCRYPT_ON => EncryptTables::On,
        TP_ENCRYPT_FORCE => EncryptTables::Force,
        _ => EncryptTables::Off,
    }
}

/// What a table's definition says of its file.
#[repr(C)]
pub struct FileOptions {
    key_id: u32,
    /// A `TP_ENCRYPTED_…`.
    encrypted: u8,
    /// A `TP_COMPRESSION_…`.
    compression: u8,
}

impl FileOptions {
    fn encryption(&self) -> TableEncryption {
        let choice = match c_int::from(self.encrypted) {
            TP_ENCRYPTED_YES => EncryptionChoice::Yes,
            TP_ENCRYPTED_NO => EncryptionChoice::No,
            _ => EncryptionChoice::Default,
        };
        TableEncryption { choice, key_id: self.key_id }
    }
}

/// An index of a table to be created.
#[repr(C)]
pub struct IndexDefinition {
    name: *const c_char,
    name_len: usize,
    unique: u8,
}

impl IndexDefinition {
    /// A table with these indexes, in a file of these options.
    ///
    /// # Safety
    /// A valid pointer and length, and so is each name.
    pub(crate) unsafe fn table(
        indexes: *const IndexDefinition,
        index_count: usize,
        options: &FileOptions,
    ) -> TableDef {
        // SAFETY: as the caller says.
        let indexes = unsafe { std::slice::from_raw_parts(indexes, index_count) };
        let mut def = TableDef::new(indexes.iter().map(|index| {
            // SAFETY: each name is valid for its length.
            let name = unsafe { text(index.name, index.name_len) }.into_owned();
            if index.unique != 0 { IndexDef::unique(name) } else { IndexDef::non_unique(name) }
        }));
        def.encryption = options.encryption();
        def.compression = page_compression(options.compression);
        def
    }
}

/// Opens or creates the data directory.
///
/// # Safety
/// The pointers are valid, as bridge.h says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_open(
    dir: *const c_char,
    dir_len: usize,
    options: *const OpenOptions,
    db: *mut *mut Db,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        let (dir, options) = unsafe { (text(dir, dir_len), &*options) };
        let opened = Db::open(Path::new(dir.as_ref()), options.to_engine()?)?;
        // SAFETY: db is a valid place to store to.
        unsafe { *db = Box::into_raw(Box::new(opened)) };
        Ok(TP_OK)
    })
}

/// Clean shutdown.
///
/// # Safety
/// `db` came from [`tp_open`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_close(db: *mut Db) -> c_int {
    guard(|| {
        // SAFETY: made by Box::into_raw in tp_open, given back once.
        let db = unsafe { Box::from_raw(db) };
        db.close()?;
        Ok(TP_OK)
    })
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($db:ident, $value:ident: $type:ty) $body:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `db` is an open data directory.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($db: *const Db, $value: $type) -> c_int {
            guard(|| {
                // SAFETY: an open data directory from the shim.
                let $db = unsafe { &*$db };
                $body;
                Ok(TP_OK)
            })
        }
    )*};
}

setters! {
    /// When a commit reaches the disk: 0, 1, 2 as InnoDB's variable of that name.
    tp_set_flush_log_at_trx_commit(db, value: u8) db.set_flush_log_at_trx_commit(value)?;
    /// Size of the redo log, in bytes.
    tp_set_redo_capacity(db, value: u64) db.set_redo_capacity_bytes(value)?;
    /// Size of the buffer pool, in bytes; 0 = governed. Returns at once.
    tp_set_buffer_pool_size(db, value: u64) db.set_buffer_pool_size(value)?;
    /// Whether that size is a ceiling only.
    tp_set_memory_guard(db, value: u8) db.set_memory_guard(value != 0);
    /// Whether memory that brings nothing is given back: a `TP_MEMORY_…`.
    tp_set_memory_policy(db, value: u8) db.set_memory_policy(memory_policy(value));
    /// Share of the old list, in percent.
    tp_set_old_blocks_pct(db, value: u8) db.set_old_blocks_pct(value)?;
    /// How long a page stays old after its first use, in milliseconds.
    tp_set_old_blocks_time(db, value: u64) db.set_old_blocks_time(Duration::from_millis(value));
    /// History length at which writes are slowed down; 0 = never.
    tp_set_max_purge_lag(db, value: u64) db.set_max_purge_lag(value);
    /// The longest such delay, in microseconds; 0 = a second.
    tp_set_max_purge_lag_delay(db, value: u64) db.set_max_purge_lag_delay(Duration::from_micros(value));
    /// Whether deadlocks are looked for.
    tp_set_deadlock_detect(db, value: u8) db.set_deadlock_detect(value != 0);
    tp_set_log_deadlocks(db, value: u8) db.set_log_deadlocks(value != 0);
    /// Whether REPEATABLE READ refuses to write rows newer than its snapshot.
    tp_set_lost_update_check(db, value: u8) db.set_lost_update_check(value != 0);
    /// Whether the advisor is on.
    tp_set_cache_advice(db, value: u8) db.set_cache_advice(value != 0)?;
    /// Whether the list of hot pages is saved, now and then and at shutdown.
    tp_set_dump_at_shutdown(db, value: u8) db.set_buffer_pool_dump_at_shutdown(value != 0);
    /// Days within which the scrub reads each page; 0: it does not.
    tp_set_scrub_days(db, value: u16) db.set_scrub_days(value);
    /// How pages are compressed: a `TP_COMPRESSION_…`.
    tp_set_page_compression(db, value: u8) db.set_page_compression(page_compression(value));
    /// Whether part of the pool may hold compressed images.
    tp_set_compressed_tier(db, value: u8) db.set_compressed_tier(compressed_tier(value));
    /// Whether tables are encrypted that do not say: a `TP_ENCRYPT_…`.
    tp_set_encrypt_tables(db, value: u8) db.set_encrypt_tables(encrypt_tables(value))?;
    /// How many newer versions of a key have older pages encrypted anew; 0: none.
    tp_set_encryption_rotate_key_age(db, value: u32) db.set_encryption_rotate_key_age(value);
    /// How many pages are encrypted anew in a second.
    tp_set_encryption_rotation_iops(db, value: u32) db.set_encryption_rotation_iops(value);
    /// Begins a pass of the scrub.
    tp_scrub(db, _now: u8) db.scrub()?;
    /// Makes the log durable up to an LSN.
    tp_flush_log(db, lsn: u64) db.flush_log_to(Lsn(lsn))?;
}

/// Whether a table can be made that is encrypted so.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_check_encryption(db: *const Db, options: *const FileOptions) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        let (db, options) = unsafe { (&*db, &*options) };
        db.check_encryption(&options.encryption())?;
        Ok(TP_OK)
    })
}

/// Begins to record a page trace of a share of all pages (0 to 1) into a new file.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_start_page_trace(
    db: *const Db,
    path: *const c_char,
    path_len: usize,
    sample: f64,
    max_bytes: u64,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        let (db, path) = unsafe { (&*db, text(path, path_len)) };
        let options = TraceOptions { sample: Sample::of_rate(sample), max_bytes };
        db.start_page_trace(Path::new(path.as_ref()), options)?;
        Ok(TP_OK)
    })
}

/// Ends the recording, if there is one.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_stop_page_trace(db: *const Db) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        unsafe { &*db }.stop_page_trace();
        Ok(TP_OK)
    })
}

/// Saves the list of hot pages, begins to load it, or ends that: 0, 1, 2.
///
/// # Safety
/// `db` is an open data directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_hot_list(db: *const Db, order: u8) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        let db = unsafe { &*db };
        match c_int::from(order) {
            TP_HOT_LIST_DUMP => db.dump_buffer_pool()?,
            TP_HOT_LIST_LOAD => db.load_buffer_pool()?,
            _ => db.abort_buffer_pool_load(),
        }
        Ok(TP_OK)
    })
}

/// The page size of the open data directory.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_page_size(db: *const Db, size: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        unsafe { *size = (*db).options().page_size as u64 };
        Ok(TP_OK)
    })
}

/// The server shuts down, and has sessions that may wait for space on the log's disk.
///
/// # Safety
/// `db` is an open data directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_begin_shutdown(db: *const Db) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        unsafe { &*db }.limit_wait_for_log_space();
        Ok(TP_OK)
    })
}

/// Makes all of the log durable.
///
/// # Safety
/// `db` is an open data directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_flush_all_log(db: *const Db) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        unsafe { &*db }.flush_log()?;
        Ok(TP_OK)
    })
}

/// The least size of the buffer pool that can be asked for, in bytes, beside 0.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_buffer_pool_size_min(page_size: u64, size: *mut u64) -> c_int {
    guard(|| {
        let page_size = usize::try_from(page_size).unwrap_or(usize::MAX);
        let options = Options { page_size, ..Options::default() };
        // SAFETY: valid pointers from the shim.
        unsafe { *size = options.buffer_pool_size_min_bytes() };
        Ok(TP_OK)
    })
}

/// Calls `counter` for every counter, and `sentence` for every figure that is a text.
///
/// # Safety
/// Valid pointers; both may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_status(
    db: *const Db,
    context: *mut c_void,
    counter: extern "C" fn(*mut c_void, *const c_char, usize, u64),
    sentence: extern "C" fn(*mut c_void, *const c_char, usize, *const c_char, usize),
) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        let status = unsafe { &*db }.status();
        for (name, value) in status.counters() {
            counter(context, name.as_ptr().cast(), name.len(), *value);
        }
        for (name, value) in status.texts() {
            let (name_at, value_at) = (name.as_ptr().cast(), value.as_ptr().cast());
            sentence(context, name_at, name.len(), value_at, value.len());
        }
        Ok(TP_OK)
    })
}

/// What the calling thread has done since it began: a `tp_thread_work`.
#[repr(C)]
pub struct ThreadWork {
    pages_accessed: u64,
    pages_updated: u64,
    pages_read: u64,
    read_ns: u64,
    pages_prefetched: u64,
    undo_records_read: u64,
}

/// Stores what the calling thread has done.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_thread_work_now(db: *const Db, work: *mut ThreadWork) {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        let (pages, undo_records_read) = unsafe { &*db }.thread_work();
        let now = ThreadWork {
            pages_accessed: pages.pages_accessed,
            pages_updated: pages.pages_updated,
            pages_read: pages.pages_read,
            read_ns: pages.read_time.as_nanos() as u64,
            pages_prefetched: pages.pages_prefetched,
            undo_records_read,
        };
        // SAFETY: a valid place from the shim.
        unsafe { work.write(now) };
        Ok(TP_OK)
    });
}

/// The text of `SHOW ENGINE TIDEPOOL STATUS`.
///
/// # Safety
/// As for [`tp_status`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_status_text(
    db: *const Db,
    context: *mut c_void,
    give: extern "C" fn(*mut c_void, *const c_char, usize),
) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        let db = unsafe { &*db };
        let title = "BUFFER POOL AND MEMORY\n----------------------";
        let mut status = format!("{title}\n{}\n{}", db.buffer_pool(), db.status());
        if let Some(deadlock) = db.deadlocks().first() {
            status.push_str(&format!("LATEST DEADLOCK\n---------------\n{deadlock}"));
        }
        give(context, status.as_ptr().cast(), status.len());
        Ok(TP_OK)
    })
}

/// Creates a table.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_create_table(
    db: *const Db,
    name: *const c_char,
    name_len: usize,
    indexes: *const IndexDefinition,
    index_count: usize,
    metadata: *const u8,
    metadata_len: usize,
    options: *const FileOptions,
    attached: *const AttachmentChanges,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (attached, options) = unsafe { (Attached::of(attached), &*options) };
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name, metadata) =
            unsafe { (&*db, text(name, name_len), bytes(metadata, metadata_len)) };
        // SAFETY: valid pointers and lengths from the shim.
        let mut def = unsafe { IndexDefinition::table(indexes, index_count, options) };
        def.metadata = metadata.to_vec();
        db.create_table_with(&name, &def, &attached.all())?;
        Ok(TP_OK)
    })
}

/// A table's name.
#[repr(C)]
pub struct Name {
    name: *const c_char,
    len: usize,
}

impl Name {
    /// # Safety
    /// A valid pointer and length for as long as the result is used.
    unsafe fn text<'a>(&self) -> Cow<'a, str> {
        // SAFETY: as the caller says.
        unsafe { text(self.name, self.len) }
    }
}

/// Drops tables, all of them or none.
///
/// # Safety
/// Valid pointers and lengths; `attached` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_drop_tables(
    db: *const Db,
    names: *const Name,
    count: usize,
    attached: *const AttachmentChanges,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, names, attached) =
            unsafe { (&*db, std::slice::from_raw_parts(names, count), Attached::of(attached)) };
        // SAFETY: each name is valid for its length.
        let names: Vec<_> = names.iter().map(|name| unsafe { name.text() }).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        db.drop_tables(&names, &attached.all())?;
        Ok(TP_OK)
    })
}

/// Does something with a table and the names of its indexes.
///
/// # Safety
/// Valid pointers and lengths.
unsafe fn with_index_names(
    db: *const Db,
    (name, len): (*const c_char, usize),
    (indexes, index_count): (*const IndexDefinition, usize),
    work: impl FnOnce(&Db, &str, &[&str]) -> Result<(), tidepool::Error>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (db, name) = unsafe { (&*db, text(name, len)) };
        // SAFETY: the caller's contract.
        let indexes = unsafe { std::slice::from_raw_parts(indexes, index_count) };
        // SAFETY: each name is valid for its length.
        let names = indexes.iter().map(|index| unsafe { text(index.name, index.name_len) });
        let names: Vec<Cow<'_, str>> = names.collect();
        work(db, &name, &names.iter().map(|name| &**name).collect::<Vec<_>>())?;
        Ok(TP_OK)
    })
}

/// Gives the indexes of a table other names; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_rename_indexes(
    db: *const Db,
    name: *const c_char,
    len: usize,
    indexes: *const IndexDefinition,
    index_count: usize,
) -> c_int {
    // SAFETY: valid pointers and lengths from the shim.
    unsafe { with_index_names(db, (name, len), (indexes, index_count), Db::rename_indexes) }
}

/// Sets the names of a table's indexes; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_learn_index_names(
    db: *const Db,
    name: *const c_char,
    len: usize,
    indexes: *const IndexDefinition,
    index_count: usize,
) -> c_int {
    // SAFETY: valid pointers and lengths from the shim.
    unsafe { with_index_names(db, (name, len), (indexes, index_count), Db::learn_index_names) }
}

/// Calls `give` for every index of a table, in the order of its trees; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths; `give` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_index_names(
    db: *const Db,
    name: *const c_char,
    len: usize,
    context: *mut c_void,
    give: extern "C" fn(*mut c_void, *const c_char, usize, u8),
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name) = unsafe { (&*db, text(name, len)) };
        for index in &db.table_def(&name)?.indexes {
            give(context, index.name.as_ptr().cast(), index.name.len(), index.unique.into());
        }
        Ok(TP_OK)
    })
}

/// Empties a table by giving it a new space.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_truncate_table(
    db: *const Db,
    name: *const c_char,
    len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name) = unsafe { (&*db, text(name, len)) };
        db.truncate_table(&name)?;
        Ok(TP_OK)
    })
}

/// Copies a table's present metadata; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths; `metadata` has room for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_metadata(
    db: *const Db,
    name: *const c_char,
    len: usize,
    metadata: *mut u8,
    capacity: usize,
    metadata_len: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name) = unsafe { (&*db, text(name, len)) };
        let def = db.table_def(&name)?;
        let copied = def.metadata.len().min(capacity);
        // SAFETY: copied <= capacity bytes are writable at metadata.
        unsafe {
            std::ptr::copy_nonoverlapping(def.metadata.as_ptr(), metadata, copied);
            *metadata_len = def.metadata.len();
        }
        Ok(TP_OK)
    })
}

/// Other metadata of a table.
#[repr(C)]
pub struct TableMetadata {
    name: *const c_char,
    name_len: usize,
    metadata: *const u8,
    metadata_len: usize,
}

impl TableMetadata {
    /// Names and metadata of `count` tables.
    ///
    /// # Safety
    /// Valid pointers and lengths for as long as the result is used; `tables` may be null if there
    /// is none.
    pub(crate) unsafe fn all<'a>(
        tables: *const TableMetadata,
        count: usize,
    ) -> Vec<(Cow<'a, str>, &'a [u8])> {
        if count == 0 {
            return Vec::new();
        }
        // SAFETY: count > 0 tables are there, as the caller says.
        let tables = unsafe { std::slice::from_raw_parts(tables, count) };
        // SAFETY: each pointer is valid for its length.
        let one = |table: &TableMetadata| unsafe {
            (text(table.name, table.name_len), bytes(table.metadata, table.metadata_len))
        };
        tables.iter().map(one).collect()
    }
}

/// A table's names of before and afterwards.
#[repr(C)]
pub struct Rename {
    from: Name,
    to: Name,
}

/// What changes in the catalog at one moment; see bridge.h.
#[repr(C)]
pub struct CatalogChange {
    renames: *const Rename,
    rename_count: usize,
    tables: *const TableMetadata,
    table_count: usize,
    attached: AttachmentChanges,
}

/// Changes names, metadata and attachments of tables at one moment; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths; `renames` may be null if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_tables(db: *const Db, change: *const CatalogChange) -> c_int {
    guard(|| {
        // SAFETY: an open data directory and a valid pointer from the shim.
        let (db, change) = unsafe { (&*db, &*change) };
        // SAFETY: valid pointers and lengths from the shim.
        let (metadata, attached) = unsafe {
            let metadata = TableMetadata::all(change.tables, change.table_count);
            (metadata, Attached::of(&change.attached))
        };
        let metadata: Vec<_> =
            metadata.iter().map(|(name, metadata)| (&**name, *metadata)).collect();
        let renames = match change.rename_count {
            0 => &[],
            // SAFETY: count > 0 of them are there.
            count => unsafe { std::slice::from_raw_parts(change.renames, count) },
        };
        // SAFETY: each name is valid for its length.
        let one = |rename: &Rename| unsafe { (rename.from.text(), rename.to.text()) };
        let renames: Vec<_> = renames.iter().map(one).collect();
        let renames: Vec<_> = renames.iter().map(|(from, to)| (&**from, &**to)).collect();
        let copies: Vec<_> =
            renames.iter().map(|(from, _)| *from).filter(|from| is_copy(from)).collect();
        db.change_tables(&DefinitionChange {
            renames: &renames,
            replacements: &copies,
            metadata: &metadata,
            attachments: &attached.all(),
        })?;
        Ok(TP_OK)
    })
}

/// Whether a table has a name that the server gives to what a statement works on: the copy that an
/// ALTER makes, say.
pub(crate) fn is_intermediate(name: &str) -> bool {
    name.rsplit('/').next().unwrap_or(name).starts_with("#sql")
}

/// Whether a table is a session's temporary one, or one that was dropped while a transaction used
/// it: `TEMPORARY_PREFIX` of `shim/table_share.h`.
pub(crate) fn is_temporary(name: &str) -> bool {
    name.starts_with("#tmp/")
}

/// Whether the table of this name is one that ALTER TABLE or a partition statement has made and
/// filled: its rename makes it known.
fn is_copy(name: &str) -> bool {
    is_intermediate(name) || name.ends_with("#TMP#")
}

/// Whether the data directory had been closed cleanly when it was opened: 1 or 0.
///
/// # Safety
/// An open data directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_was_clean(db: *const Db) -> u8 {
    // SAFETY: an open data directory from the shim.
    guard_or(0, || unsafe { &*db }.was_clean().into())
}

/// Counts the tables whose names begin so.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_count_tables(
    db: *const Db,
    prefix: *const c_char,
    prefix_len: usize,
    count: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, prefix) = unsafe { (&*db, text(prefix, prefix_len)) };
        let found = db.count_tables(&prefix)?;
        // SAFETY: count is a valid place to store to.
        unsafe { *count = found };
        Ok(TP_OK)
    })
}

/// Calls `give` for every table's name.
///
/// # Safety
/// Valid pointers; `give` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_names(
    db: *const Db,
    context: *mut c_void,
    give: extern "C" fn(*mut c_void, *const c_char, usize),
) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        for name in unsafe { &*db }.table_names()? {
            give(context, name.as_ptr().cast(), name.len());
        }
        Ok(TP_OK)
    })
}

/// Calls `give` for the XID of every prepared transaction that no session owns.
///
/// # Safety
/// Valid pointers; `give` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_recovered_xids(
    db: *const Db,
    context: *mut c_void,
    give: extern "C" fn(*mut c_void, *const u8, usize),
) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        for xid in unsafe { &*db }.recovered_xids() {
            give(context, xid.as_ptr(), xid.len());
        }
        Ok(TP_OK)
    })
}

/// Whether the data directory was a backup, and [`tp_end_restore`] has not succeeded since.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_is_restored(db: *const Db, is_restored: *mut bool) -> c_int {
    guard(|| {
        // SAFETY: an open data directory, and a place for the answer, from the shim.
        unsafe { *is_restored = (*db).is_restored()? };
        Ok(TP_OK)
    })
}

/// All is decided about the prepared transactions of a restored backup.
///
/// # Safety
/// A valid pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_end_restore(db: *const Db) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        unsafe { &*db }.end_restore()?;
        Ok(TP_OK)
    })
}

/// Commits a prepared transaction that no session owns.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_commit_prepared(db: *const Db, xid: *const u8, len: usize) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, xid) = unsafe { (&*db, bytes(xid, len)) };
        db.commit_prepared(xid)?;
        Ok(TP_OK)
    })
}

/// Rolls back a prepared transaction that no session owns.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_rollback_prepared(db: *const Db, xid: *const u8, len: usize) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, xid) = unsafe { (&*db, bytes(xid, len)) };
        db.rollback_prepared(xid)?;
        Ok(TP_OK)
    })
}
