/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  The C ABI over the engine: what the Rust side (mariadb/src) exports and the shim calls.

  A change of a signature, a struct or a constant is made on both sides; mariadb/tests/bridge
  compares them.

  Rules of the boundary
  - Every function catches panics of the Rust side and turns them into TP_PANIC.
  - A function that returns int returns a TP_* code. tp_last_error() gives the text of the last
    failure on this thread.
  - tp_bytes that are handed out point into memory of the object asked; they are good until the next
    call on that object (tp_reader: until the next call on the same tp_reader and index).
  - Objects are made by tp_*_open or tp_*_new and must be given back by the matching tp_*_close or
    tp_*_free.
  - tp_db and tp_table may be used by many threads at once; tp_transaction and tp_reader by one at a
    time.
*/
#ifndef TIDEPOOL_BRIDGE_H
#define TIDEPOOL_BRIDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tp_db tp_db;
typedef struct tp_table tp_table;
typedef struct tp_transaction tp_transaction;
typedef struct tp_reader tp_reader;
typedef struct tp_spatial_statistics tp_spatial_statistics;
typedef struct tp_interrupt tp_interrupt;
typedef struct tp_index_change tp_index_change;
typedef struct tp_load tp_load;
typedef struct tp_backup tp_backup;
typedef struct tp_export tp_export;

typedef struct {
  const uint8_t *data;
  size_t len;
} tp_bytes;

enum tp_result {
  TP_OK = 0,
  TP_END = 1, /* no (more) such entry */
  TP_DUPLICATE = 2,
  TP_NOT_FOUND = 3,
  TP_LOCK_TIMEOUT = 4,
  TP_LOCK_NOWAIT = 5,
  TP_DEADLOCK = 6,
  TP_RECORD_CHANGED = 7,
  TP_INTERRUPTED = 8,
  TP_MUST_ROLLBACK = 9,
  TP_READ_ONLY = 10,
  TP_KEY_TOO_LONG = 11,
  TP_VALUE_TOO_LONG = 12,
  TP_TABLE_EXISTS = 13,
  TP_TABLE_MISSING = 14,
  TP_TABLE_BUSY = 15,
  TP_TOO_MANY_TRX = 16,
  TP_NO_SPACE = 17,
  TP_STORAGE = 18,
  TP_CORRUPT = 19,
  TP_FORMAT = 20,
  TP_CRASHED = 21,
  TP_INVALID = 22,
  TP_PANIC = 23,
  TP_OTHER = 24,
  TP_TABLE_CHANGED = 25,  /* since the transaction's snapshot */
  TP_OUT_OF_ORDER = 26,   /* a row that is loaded comes behind a greater one */
  TP_NO_KEY = 27,         /* of something that is encrypted */
  TP_TOO_MANY_LOCKS = 28, /* for the memory that they may take */
  TP_TABLE_DISCARDED = 29 /* until an export is imported */
};

enum tp_isolation {
  TP_READ_UNCOMMITTED = 0,
  TP_READ_COMMITTED = 1,
  TP_REPEATABLE_READ = 2,
  TP_SERIALIZABLE = 3
};
enum tp_lock { TP_LOCK_NONE = 0, TP_LOCK_SHARED = 1, TP_LOCK_EXCLUSIVE = 2 };
enum tp_wait { TP_WAIT = 0, TP_NO_WAIT = 1, TP_SKIP_LOCKED = 2 };
/* What a point read gives of a value: all of it; of one too long for a page, at least the beginning
   (is_cut); nothing. */
enum tp_read_part { TP_READ_WHOLE = 0, TP_READ_PREFIX = 1, TP_READ_NOTHING = 2 };
enum tp_seek_to { TP_AT_OR_AFTER = 0, TP_AFTER = 1, TP_AT_OR_BEFORE = 2, TP_BEFORE = 3 };
enum tp_log_level { TP_LOG_ERROR = 0, TP_LOG_WARNING = 1, TP_LOG_NOTE = 2 };

/* ---- errors and the log */

/* Text of the last failure on this thread, NUL-terminated, cut to `capacity`. Returns its full
   length. */
size_t tp_last_error(char *buffer, size_t capacity);
/* Makes it that again on this thread: another one met the failure. */
void tp_set_last_error(const char *text, size_t len);
/* Where the engine's log lines go. Called once, before tp_open. */
void tp_set_log(void (*log)(int level, const char *text, size_t len));

/* ---- what the performance_schema hears */

/* Each thread of the engine calls the first as it begins, with its name, and the second as it ends.
   Called at most once, before tp_open; without, threads call nothing. */
void tp_set_thread_observer(void (*begins)(const char *name, size_t len), void (*ends)(void));

enum tp_file_kind {
  TP_FILE_TABLE = 0,
  TP_FILE_REDO = 1,
  TP_FILE_UNDO = 2,
  TP_FILE_SYSTEM = 3,
  TP_FILE_SORT = 4,
  TP_FILE_OTHER = 5
};
enum tp_file_operation {
  TP_FILE_READ = 0,
  TP_FILE_WRITE = 1,
  TP_FILE_SYNC = 2,
  TP_FILE_RESIZE = 3
};
/* What is done with files. `opened` gives by what a file is known as long as it is open; its name
   is relative to the engine's directory. A file that is `removed` is not open any more. `operation`
   must call `run` once, with `run_context`: that does the operation, and never throws.
   Called at most once, before tp_open; without, files call nothing. */
void tp_set_file_observer(void *(*opened)(const char *name, size_t len, int kind),
                          void (*closed)(void *file),
                          void (*removed)(const char *name, size_t len, int kind),
                          void (*operation)(void *file, int operation, size_t bytes,
                                            void (*run)(void *context), void *run_context));

/* ---- the data directory */

typedef struct {
  uint64_t page_size;
  uint64_t buffer_pool_size_bytes;
  uint64_t redo_capacity_bytes;
  uint64_t lock_wait_timeout_s;
  uint64_t old_blocks_pct;
  uint64_t old_blocks_time_ms;
  uint64_t max_purge_lag;
  uint64_t max_purge_lag_delay_us;
  uint64_t open_files;
  uint16_t scrub_days;
  uint8_t flush_log_at_trx_commit;
  uint8_t deadlock_detect;
  uint8_t lost_update_check;
  uint8_t direct_io;
  uint8_t read_only;
  uint8_t accept_log_loss;
  uint8_t memory_guard;
  uint8_t memory_policy; /* TP_MEMORY_… */
  uint8_t dump_at_shutdown;
  uint8_t load_at_startup;
  uint8_t memory_locked;
  uint8_t replacement;      /* TP_REPLACEMENT_… */
  uint8_t force_recovery;   /* 0 to 5 */
  uint8_t page_compression; /* TP_COMPRESSION_… */
  uint8_t compressed_tier;  /* 0: off */
  uint8_t encrypt_tables;   /* TP_ENCRYPT_… */
  uint8_t encrypt_log;
  uint32_t encryption_rotate_key_age;
  uint32_t encryption_rotation_iops;
} tp_options;

/* From this level of force_recovery on nothing is written. */
enum { TP_FORCE_READ_ONLY = 3 };

enum { TP_REPLACEMENT_TIDE = 0, TP_REPLACEMENT_MIDPOINT = 1 };

enum { TP_MEMORY_AUTO = 0, TP_MEMORY_KEEP = 1, TP_MEMORY_RETURN = 2 };

enum {
  TP_COMPRESSION_AUTO = 0,
  TP_COMPRESSION_OFF = 1,
  TP_COMPRESSION_LZ4 = 2,
  TP_COMPRESSION_ZSTD = 3
};

enum { TP_ENCRYPT_OFF = 0, TP_ENCRYPT_ON = 1, TP_ENCRYPT_FORCE = 2 };

/* What a table's definition says: as TP_ENCRYPT_… has it, yes, or no. */
enum { TP_ENCRYPTED_DEFAULT = 0, TP_ENCRYPTED_YES = 1, TP_ENCRYPTED_NO = 2 };
typedef struct {
  uint32_t key_id;
  uint8_t encrypted;   /* TP_ENCRYPTED_… */
  uint8_t compression; /* TP_COMPRESSION_…; AUTO: as tidepool_page_compression has it */
} tp_file_options;

/* Where encryption keys come from; each answers 0 if it has the key. `len`: the capacity, then the
   length. Called once, before tp_open. */
void tp_set_keyring(int (*newest)(uint32_t id, uint32_t *version),
                    int (*key)(uint32_t id, uint32_t version, uint8_t *key, uint32_t *len));

/* An error if the engine must not start: a backup that was not finished lies in the server's data
   directory; or, unless `start_empty`, the server has tables of the engine's, and the engine's
   directory is new. */
int tp_check_data_dir(const char *data_dir, size_t data_dir_len, const char *engine_dir,
                      size_t engine_dir_len, uint8_t start_empty);
int tp_open(const char *dir, size_t dir_len, const tp_options *options, tp_db **db);
/* Whether it had been closed cleanly when it was opened. */
uint8_t tp_was_clean(const tp_db *db);
/* Clean shutdown; `db` is gone afterwards, whatever is returned. */
int tp_close(tp_db *db);

int tp_set_flush_log_at_trx_commit(tp_db *db, uint8_t value);
int tp_set_redo_capacity(tp_db *db, uint64_t bytes);
/* Returns at once; 0 = governed. */
int tp_set_buffer_pool_size(tp_db *db, uint64_t bytes);
int tp_set_memory_guard(tp_db *db, uint8_t on);
/* A TP_MEMORY_…. */
int tp_set_memory_policy(tp_db *db, uint8_t value);
/* The least size that can be asked for, beside 0. */
int tp_buffer_pool_size_min(uint64_t page_size, uint64_t *bytes);
int tp_set_old_blocks_pct(tp_db *db, uint8_t pct);
int tp_set_old_blocks_time(tp_db *db, uint64_t ms);
int tp_set_max_purge_lag(tp_db *db, uint64_t lag);
int tp_set_max_purge_lag_delay(tp_db *db, uint64_t us);
int tp_set_deadlock_detect(tp_db *db, uint8_t on);
int tp_set_lost_update_check(tp_db *db, uint8_t on);
int tp_set_cache_advice(tp_db *db, uint8_t on);
int tp_set_dump_at_shutdown(tp_db *db, uint8_t on);
int tp_set_scrub_days(tp_db *db, uint16_t days);
/* A TP_COMPRESSION_…. */
int tp_set_page_compression(tp_db *db, uint8_t value);
int tp_set_compressed_tier(tp_db *db, uint8_t value);
/* A TP_ENCRYPT_…. */
int tp_set_encrypt_tables(tp_db *db, uint8_t value);
int tp_set_encryption_rotate_key_age(tp_db *db, uint32_t versions);
int tp_set_encryption_rotation_iops(tp_db *db, uint32_t pages);
/* An error if no table can be made that is encrypted so. */
int tp_check_encryption(const tp_db *db, const tp_file_options *options);
/* Begins a pass of the scrub; `now` is not looked at. */
int tp_scrub(tp_db *db, uint8_t now);

enum tp_hot_list_order { TP_HOT_LIST_DUMP = 0, TP_HOT_LIST_LOAD = 1, TP_HOT_LIST_ABORT = 2 };
/* Loading returns at once. */
int tp_hot_list(const tp_db *db, uint8_t order);

/* Records which pages are accessed into a new file; `sample` is the share of the pages, 0 to 1. A
   recording under way ends when the new file is there; if that can't be made, it goes on. */
int tp_start_page_trace(const tp_db *db, const char *path, size_t path_len, double sample,
                        uint64_t max_bytes);
int tp_stop_page_trace(const tp_db *db);

/* A backup into a directory that is empty or does not exist: tables first, then the server's files
   of them, while definitions do not change; then its end, for which it is made complete. `info`:
   lines for its file tidepool_backup_info. One that is given back before leaves nothing. */
typedef struct {
  const char *dir;
  size_t dir_len;
  const char *base; /* of an incremental backup: an earlier one; null for a complete backup */
  size_t base_len;
} tp_backup_place;
int tp_backup_begin(const tp_db *db, const tp_backup_place *place, tp_backup **backup);
int tp_backup_copy(tp_backup *backup, void *context,
                   int (*go_on)(void *context, uint64_t copied, uint64_t total));
int tp_backup_definitions(tp_backup *backup, const char *data_dir, size_t data_dir_len);
int tp_backup_finish(tp_backup *backup, const char *info, size_t info_len);
void tp_backup_free(tp_backup *backup);

int tp_page_size(const tp_db *db, uint64_t *bytes);
int tp_flush_log(tp_db *db, uint64_t lsn);
int tp_flush_all_log(tp_db *db);
/* The server shuts down: a commit that waits for space on the disk of the redo log does so for a
   few seconds more. */
int tp_begin_shutdown(tp_db *db);
int tp_status(const tp_db *db, void *context,
              void (*counter)(void *context, const char *name, size_t name_len, uint64_t value),
              void (*sentence)(void *context, const char *name, size_t name_len, const char *text,
                               size_t text_len));
/* What the calling thread has done since it began: a difference says what a call took. */
typedef struct {
  uint64_t pages_accessed;
  uint64_t pages_updated;
  uint64_t pages_read; /* from files, while the thread waited */
  uint64_t read_ns;    /* how long it waited for those */
  uint64_t pages_prefetched;
  uint64_t undo_records_read;
} tp_thread_work;
void tp_thread_work_now(const tp_db *db, tp_thread_work *work);
int tp_status_text(const tp_db *db, void *context,
                   void (*text)(void *context, const char *text, size_t len));

/* ---- rows of the information_schema tables */

enum tp_explain_table {
  TP_BUFFER_POOL = 1,
  TP_BUFFER_POOL_BY_INDEX = 2,
  TP_TRANSACTIONS = 3,
  TP_LOCKS = 4,
  TP_CACHE_ADVICE = 5,
  TP_MEMORY_DECISIONS = 6,
  TP_TABLE_FILES = 7,
  TP_DEADLOCKS = 8,
  TP_ENCRYPTION = 9
};

enum tp_value_kind {
  TP_VALUE_NULL = 0,
  TP_VALUE_UNSIGNED = 1, /* number */
  TP_VALUE_REAL = 2,     /* real */
  TP_VALUE_TEXT = 3,     /* data, len: UTF-8 */
  TP_VALUE_NAME = 4,     /* data, len: part of a table's name as in file names */
  TP_VALUE_TIME = 5,     /* number: microseconds since 1970 */
  TP_VALUE_STATEMENT = 6 /* number: the connection whose statement it is */
};

typedef struct {
  int kind;
  uint64_t number;
  double real;
  const uint8_t *data;
  size_t len;
} tp_value;

/* Calls `row` with each row of a table, until it answers something else than 0. The values are good
   during the call. *is_truncated is set to 1 if there are more rows, for which no memory was to be
   spent. */
int tp_explain(const tp_db *db, int table, void *context,
               int (*row)(void *context, const tp_value *values, size_t count),
               uint8_t *is_truncated);

/* ---- tables */

typedef struct {
  const char *name;
  size_t name_len;
  uint8_t unique;
} tp_index_def;

/* Bytes that the catalog keeps under a name, a table's or another one: as a change of a definition
   leaves them. */
typedef struct {
  const char *name;
  size_t name_len;
  uint8_t kind; /* 1 to 15 */
  uint8_t is_removed;
  const uint8_t *data;
  size_t len;
} tp_attachment_change;

typedef struct {
  const tp_attachment_change *all;
  size_t count;
} tp_attachment_changes;

/* Gives an attachment to `take`. TP_NOT_FOUND: there is none. */
int tp_attachment(const tp_db *db, const char *name, size_t name_len, uint8_t kind, void *context,
                  void (*take)(void *context, const uint8_t *data, size_t len));

/* Attachments change at the moment of the definition. There may be none (null). */
int tp_create_table(tp_db *db, const char *name, size_t name_len, const tp_index_def *indexes,
                    size_t index_count, const uint8_t *metadata, size_t metadata_len,
                    const tp_file_options *options, const tp_attachment_changes *attached);
typedef struct {
  const char *name;
  size_t len;
} tp_name;

/* Drops tables at one moment: all of them or none. Attachments of their names go with them. */
int tp_drop_tables(tp_db *db, const tp_name *names, size_t count,
                   const tp_attachment_changes *attached);
/* Gives the indexes of a table the names of these, in their order; `unique` is not looked at. */
int tp_rename_indexes(tp_db *db, const char *name, size_t name_len, const tp_index_def *indexes,
                      size_t index_count);
/* Calls `index` with the name of each index of a table as the catalog has it, in the order of the
   trees, and whether it is unique. */
int tp_index_names(const tp_db *db, const char *name, size_t name_len, void *context,
                   void (*index)(void *context, const char *name, size_t len, uint8_t is_unique));
/* The names that they have in the server: should the catalog know others, reports say these from
   now on. */
int tp_learn_index_names(const tp_db *db, const char *name, size_t name_len,
                         const tp_index_def *indexes, size_t index_count);
int tp_truncate_table(tp_db *db, const char *name, size_t name_len);
/* The present metadata: at most `capacity` bytes of it are copied, *metadata_len is all of its
   length. */
int tp_table_metadata(const tp_db *db, const char *name, size_t name_len, uint8_t *metadata,
                      size_t capacity, size_t *metadata_len);

typedef struct {
  const char *name;
  size_t name_len;
  const uint8_t *metadata;
  size_t metadata_len;
} tp_table_metadata_of;

typedef struct {
  tp_name from;
  tp_name to;
} tp_rename;

/* What changes at one moment: */
typedef struct {
  /* tables get other names, and keep their attachments */
  const tp_rename *renames;
  size_t rename_count;
  /* tables get other metadata, by their names of before */
  const tp_table_metadata_of *tables;
  size_t table_count;
  /* by the names of afterwards */
  tp_attachment_changes attached;
} tp_catalog_change;

int tp_change_tables(tp_db *db, const tp_catalog_change *change);
/* Tables whose names begin so. */
int tp_count_tables(const tp_db *db, const char *prefix, size_t prefix_len, size_t *count);
int tp_table_names(const tp_db *db, void *context,
                   void (*name)(void *context, const char *name, size_t len));

int tp_table_open(tp_db *db, const char *name, size_t name_len, tp_table **table);
void tp_table_close(tp_table *table);
/* A temporary table is read by any snapshot of its session, also by one that is older than the
   table. */
void tp_table_set_temporary(const tp_table *table);
/* TP_TABLE_BUSY while a prepared transaction without a session has used the table of this name or
   one of its partitions. */
int tp_check_copy(const tp_db *db, const char *name, size_t name_len);
size_t tp_table_index_count(const tp_table *table);
size_t tp_table_key_len_max(const tp_table *table);
/* Longer values of an entry are in overflow pages. */
size_t tp_table_value_len_inline_max(const tp_table *table);
uint64_t tp_table_rows(const tp_table *table);
/* When a commit last changed rows, in seconds since 1970; 0: not since the start. */
uint64_t tp_table_changed_at(const tp_table *table);

typedef struct {
  uint64_t entries;
  uint64_t leaf_pages;
  uint64_t data_size_bytes;
} tp_index_statistics;

/* Length of the file; of it, images in use, and the rest. */
typedef struct {
  uint64_t file_bytes;
  uint64_t live_bytes;
  uint64_t dead_bytes;
} tp_file_usage;

/* Fills at most `index_capacity` of `indexes`. */
int tp_table_statistics_read(const tp_table *table, tp_index_statistics *indexes,
                             size_t index_capacity);
/* What the table's file takes on disk now. Reads nothing. */
int tp_table_file_usage(const tp_table *table, tp_file_usage *usage);
/* Shows `count` lists of neighbouring keys of an index, at random, each in order, with how many
   lists it stands for: the entries of a leaf and the bound to the next, or (bounds = 1) bounds
   between leaves only, if there is more than one leaf. A bound is greater than the keys before it,
   and cut short behind the first byte that makes it so. */
int tp_sample_keys(const tp_table *table, size_t index, int bounds, size_t count, void *context,
                   void (*list)(void *context, const tp_bytes *keys, size_t key_count,
                                double stands_for));
/* Entries with lo <= key < hi; a null pointer is an open end. */
int tp_estimate_range(const tp_table *table, size_t index, tp_bytes lo, tp_bytes hi,
                      uint64_t *entries);
/* Entries with lo <= key < hi, but at most `max`; in any version, so also those that are not
   committed, and those that are deleted and not purged yet. Looks at each leaf of them. */
typedef struct {
  tp_bytes lo;
  tp_bytes hi;
} tp_key_range;
int tp_count_traces(const tp_table *table, size_t index, const tp_key_range *range, uint64_t max,
                    uint64_t *entries);
/* Walks every tree. `problem` is called for each thing found wrong; `killed` is asked now
   and then. */
int tp_check(const tp_db *db, const tp_table *table, void *context,
             void (*problem)(void *context, const char *text, size_t len),
             int (*killed)(void *context));

/* The clustered key, of 8 bytes, for a new row of a table whose rows have no key of their own:
   above all that were given. */
int tp_next_row_id(const tp_table *table, uint8_t *row_id);

/* The next number. What is only expected lasts until the table is opened anew: then the counter
   follows the rows that were inserted, and what it was raised or reset to. */
uint64_t tp_auto_increment(const tp_table *table);
void tp_expect_auto_increment(const tp_table *table, uint64_t next);
int tp_raise_auto_increment(const tp_table *table, uint64_t next);
int tp_reset_auto_increment(const tp_table *table, uint64_t next);

/* ---- transactions */

/* A position in a transaction; copied freely, good until the transaction ends or rolls back past
   it. */
typedef struct {
  uint64_t opaque[5];
} tp_savepoint;

/* Sets the function that learns which transactions wait for which, of those whose connections have
   a name. Called once, before the first transaction, with a function that is called by the waiting
   thread when it is about to wait for another's lock: `holder` is 0 if that one has no name. The
   holder's transaction does not end before the function returns. The answer: 1 if the holder will
   be killed for it. */
/* statement_of: writes what a connection executes now to `text`, of `capacity` bytes, and gives its
   length; 0: not known. Called by a thread that waits for a lock, without a mutex of the engine. */
void tp_set_wait_observer(const tp_db *db, int (*waits_for)(uintptr_t waiter, uintptr_t holder),
                          size_t (*statement_of)(uint64_t connection, char *text, size_t capacity));
/* Whether each deadlock is written to the log. */
int tp_set_log_deadlocks(tp_db *db, uint8_t on);

int tp_transaction_new(tp_db *db, tp_transaction **transaction);
/* Rolls back what is unfinished. */
void tp_transaction_free(tp_transaction *transaction);
/* Before the first statement of a transaction. */
int tp_transaction_begin(tp_transaction *transaction, int isolation);
/* After tp_transaction_begin: the engine reports this transaction's lock waits, and those of others
   for it, to the observer under this token (not 0). It forgets the token before the transaction's
   commit, rollback or detach returns. */
void tp_transaction_set_session_token(tp_transaction *transaction, uintptr_t token);
/* Before each statement: forgets a stale KILL, sets the lock wait timeout. */
int tp_statement_begin(tp_transaction *transaction, uint64_t lock_wait_timeout_s,
                       tp_savepoint *savepoint);
int tp_statement_end(tp_transaction *transaction);
int tp_snapshot(tp_transaction *transaction);
int tp_savepoint_set(tp_transaction *transaction, tp_savepoint *savepoint);
/* If the transaction has only read, the tables that it has used since are free. */
int tp_rollback_to(tp_transaction *transaction, const tp_savepoint *savepoint);
/* Whether there are writes after it that were not undone. */
uint8_t tp_has_written_since(const tp_transaction *transaction, const tp_savepoint *savepoint);
/* Whether it has written nothing, and holds no lock. */
uint8_t tp_has_only_read(const tp_transaction *transaction);
int tp_commit(tp_transaction *transaction);
int tp_commit_no_flush(tp_transaction *transaction, uint64_t *lsn);
int tp_rollback(tp_transaction *transaction);
int tp_prepare(tp_transaction *transaction, const uint8_t *xid, size_t xid_len);
int tp_detach(tp_transaction *transaction);
int tp_has_writes(const tp_transaction *transaction);
int tp_must_rollback(const tp_transaction *transaction);

/* Sets the connection's number, for reports. */
void tp_transaction_set_session_number(tp_transaction *transaction, uint64_t number);

/* The coming operations are on behalf of a referential constraint (or no longer): locking reads and
   writes are about what is there now, whatever the isolation level; no snapshot makes them fail,
   and they lock no gaps. Reads without a lock are as ever. */
void tp_transaction_set_referential(tp_transaction *transaction, int on);

/* The coming reads are those of a search (or no longer): of an index without a lock, to find rows
   that the statement locks, and of these rows, locked by their keys. The former see what was
   committed when the statement began to read, at every isolation level, and make no snapshot. If a
   row has got another key since, the latter end with TP_RECORD_CHANGED, for the statement would
   miss it. Not at SERIALIZABLE. */
void tp_transaction_set_searching(tp_transaction *transaction, int on);
/* Whether searches of the statement have seen more than the transaction's snapshot, and nothing
   that has changed since may be locked. What the snapshot would have found besides has changed as
   well: to lock it ends with TP_RECORD_CHANGED. */
uint8_t tp_searches_beyond_snapshot(const tp_transaction *transaction);
/* How long the coming operations of the statement wait for a lock. */
void tp_transaction_set_lock_wait_timeout(tp_transaction *transaction, uint64_t seconds);

/* Ends the waits of a transaction from another thread. */
int tp_interrupt_new(const tp_transaction *transaction, tp_interrupt **interrupt);
void tp_interrupt_raise(const tp_interrupt *interrupt);
/* From here on the transaction's waits end by the interrupt of another one, for which it works.
   Before its first operation. */
void tp_transaction_listen(tp_transaction *transaction, const tp_interrupt *interrupt);
void tp_interrupt_free(tp_interrupt *interrupt);

int tp_recovered_xids(const tp_db *db, void *context,
                      void (*xid)(void *context, const uint8_t *xid, size_t len));
/* Whether the directory was a backup. The shim ends the restore once it has decided about the
   prepared transactions. */
int tp_is_restored(const tp_db *db, bool *is_restored);
int tp_end_restore(const tp_db *db);
int tp_commit_prepared(tp_db *db, const uint8_t *xid, size_t xid_len);
int tp_rollback_prepared(tp_db *db, const uint8_t *xid, size_t xid_len);

/* ---- writes. On TP_DUPLICATE, tp_duplicate_value gives the value of the entry that exists, unless
   that is a row. */

int tp_insert(tp_transaction *transaction, const tp_table *table, size_t index, tp_bytes key,
              tp_bytes value, int duplicate_lock);
/* Into the clustered index. The counter becomes at least `auto_increment`, unless that is 0, as
   durably as the row. */
typedef struct {
  tp_bytes key;
  tp_bytes value;
  uint64_t auto_increment;
  int duplicate_lock;
} tp_new_row;
int tp_insert_row(tp_transaction *transaction, const tp_table *table, const tp_new_row *row);
int tp_update(tp_transaction *transaction, const tp_table *table, size_t index, tp_bytes key,
              tp_bytes value);
int tp_move_away(tp_transaction *transaction, const tp_table *table, size_t index, tp_bytes key);
int tp_delete(tp_transaction *transaction, const tp_table *table, size_t index, tp_bytes key);
void tp_unlock(tp_transaction *transaction, const tp_table *table, size_t index, tp_bytes key);
tp_bytes tp_duplicate_value(const tp_transaction *transaction);

/* ---- reads: one tp_reader for each open handler; its cursors are kept from one statement to the
   next */

typedef struct {
  const uint8_t *key;
  size_t key_len;
  const uint8_t *value;
  size_t value_len;
  uint8_t is_cut;    /* the value is only the beginning of the row */
  uint8_t is_recent; /* of a locking read: what searches of the statement see may be older */
} tp_entry;

/* A point read: of which entry, and what of its value. */
typedef struct {
  size_t index;
  tp_bytes key;
  int part; /* a tp_read_part */
} tp_read_request;

/* Where a cursor goes. */
typedef struct {
  size_t index;
  tp_bytes key;
  int seek; /* a tp_seek_to */
} tp_seek_request;

int tp_reader_open(const tp_table *table, tp_reader **reader);
void tp_reader_close(tp_reader *reader);
/* How the coming reads lock. */
void tp_reader_set_lock(tp_reader *reader, int lock, int wait);
/* Whether the coming locking moves in the clustered index do not wait, at READ COMMITTED and
   below: a row that another transaction has locked is then given as it was committed last, and not
   locked. */
void tp_reader_set_semi_consistent(tp_reader *reader, int on);
/* Whether that is so of the row which the last move in the clustered index gave. */
int tp_is_peeked(const tp_reader *reader);
/* Whether the coming moves in the clustered index give only the beginning of a row too long for a
   page (is_cut): the rest is on pages of its own. tp_read with TP_READ_WHOLE gives all of such a
   row, before anything else is done. Moves that lock give whole rows. */
void tp_reader_set_prefixes(tp_reader *reader, int on);
/* Point read of an entry, locked as the reader locks: TP_OK or TP_END. Of the entry found, the key
   is the one asked for. */
int tp_read(tp_reader *reader, tp_transaction *transaction, const tp_read_request *request,
            tp_entry *found);
/* Moves the cursor of an index to a key, or beside it. */
int tp_seek(tp_reader *reader, tp_transaction *transaction, const tp_seek_request *request,
            tp_entry *entry);
int tp_first(tp_reader *reader, tp_transaction *transaction, size_t index, tp_entry *entry);
int tp_last(tp_reader *reader, tp_transaction *transaction, size_t index, tp_entry *entry);
int tp_next(tp_reader *reader, tp_transaction *transaction, size_t index, tp_entry *entry);
int tp_prev(tp_reader *reader, tp_transaction *transaction, size_t index, tp_entry *entry);
/* The present entry of the clustered index (tp_is_peeked) again, locked; if it is gone, the next in
   the same direction. */
int tp_lock_current(tp_reader *reader, tp_transaction *transaction, size_t index, tp_entry *entry);
/* The reading of this index that the next tp_seek or tp_first begins, forward, ends before this
   key. What is there or beyond is neither read nor locked, nor waited for. Only a reading that
   locks gaps, at SERIALIZABLE, may go on. */
void tp_reader_set_end(tp_reader *reader, size_t index, tp_bytes key);
/* The coming reads of this index are a scan of the whole of it (or not). */
void tp_reader_set_scan(tp_reader *reader, size_t index, int scan);
/* Unpositions all cursors, and gives back the memory that long values have taken. */
void tp_reader_end(tp_reader *reader);
/* Memory for rows that a handler keeps between statements, in bytes; what is beyond is
   given back. */
size_t tp_row_bytes_kept(void);

/* ---- SPATIAL indexes (src/spatial): a tree with one entry for each row. A rectangle is
   TP_RECTANGLE_LEN bytes, as the server gives it in a key: x from and to, y from and to, as
   little-endian doubles. */

enum { TP_SPATIAL_KEY_MAX = 13, TP_SPATIAL_VALUE_MAX = 33, TP_RECTANGLE_LEN = 32 };
/* How an entry lies to the window: they have a point in common; the entry has no point outside of
   the window; the window none outside of the entry; no point is common; they are the same. */
enum tp_spatial_relation {
  TP_ENTRY_INTERSECTS = 0,
  TP_ENTRY_INSIDE = 1,
  TP_ENTRY_AROUND = 2,
  TP_ENTRY_DISJOINT = 3,
  TP_ENTRY_EQUAL = 4
};
typedef struct {
  size_t index;
  tp_bytes rectangle; /* the window */
  int relation;       /* a tp_spatial_relation */
} tp_spatial_request;

/* Writes the key of a rectangle, without the clustered key behind it; gives its length, at most
   TP_SPATIAL_KEY_MAX; 0: it is none. */
size_t tp_spatial_key(tp_bytes rectangle, uint8_t *key);
/* Writes what the value of its entry begins with; gives its length, at most
   TP_SPATIAL_VALUE_MAX. */
size_t tp_spatial_value(tp_bytes rectangle, uint8_t *value);
/* How long a key is that begins with this byte; 0: none does. */
size_t tp_spatial_key_len(uint8_t first);
/* How long the rectangle is in a value that begins with this byte; 0: none does. */
size_t tp_spatial_value_len(uint8_t first);
/* Whether a rectangle is one that is searched for. */
int tp_spatial_takes(const tp_spatial_request *request, tp_bytes entry);
/* Begins a search by the cursor of the index, and gives the first entry found, in the order of
   keys. */
int tp_spatial_first(tp_reader *reader, tp_transaction *transaction,
                     const tp_spatial_request *request, tp_entry *entry);
/* The next entry of the reader's last search. */
int tp_spatial_next(tp_reader *reader, tp_transaction *transaction, tp_entry *entry);
/* Counts where the entries of an index are, by some hundred descents. */
int tp_spatial_count(const tp_table *table, size_t index, tp_spatial_statistics **statistics);
void tp_spatial_statistics_free(tp_spatial_statistics *statistics);
/* About how many entries a search will find, by that, in an index that has as many as there are
   rows. */
uint64_t tp_spatial_estimate(const tp_spatial_statistics *statistics,
                             const tp_spatial_request *request, uint64_t rows);

/* ---- indexes added and dropped in place */

typedef struct {
  const char *name;
  size_t name_len;
  int64_t from; /* which of the table's present trees it is; negative: a new one */
  uint8_t unique;
} tp_changed_index;

/* Most trees that one change makes and drops together. */
size_t tp_changed_indexes_max(void);
/* The trees of `indexes` are those that the table will have, in this order. Others may write the
   table until tp_change_stop_writes; if there is no new tree, it takes no writes (TP_TABLE_BUSY)
   until the change is committed or freed. A dropped tree, and a new one, must have no values that
   are too long for their entries. */
int tp_change_indexes(tp_db *db, const char *name, size_t name_len, const tp_changed_index *indexes,
                      size_t index_count, tp_index_change **change);
/* The same of a table that is rebuilt: all of its trees are new, the clustered one too, in a file
   of these options. */
int tp_rebuild_table(tp_db *db, const char *name, size_t name_len, const tp_index_def *indexes,
                     size_t index_count, const tp_file_options *options, tp_index_change **change);
/* A row of a table that is rebuilt, with a key above those of all before: it needs no sorting.
   Either all rows come so, or all by tp_change_add to tree 0. */
int tp_change_push_row(tp_index_change *change, tp_bytes key, tp_bytes value);
/* Before the first row: where it finds no row for long, tp_change_next_row ends with TP_INTERRUPTED
   when this is raised. */
void tp_change_set_interrupt(tp_index_change *change, const tp_interrupt *interrupt);
/* The next row of the table: clustered key and value; good until the next one. TP_END after the
   last. */
int tp_change_next_row(tp_index_change *change, tp_entry *row);
/* An entry of the new tree at `index` of the trees to come; in a round, one that is added to it. */
int tp_change_add(tp_index_change *change, size_t index, tp_bytes key, tp_bytes value);
/* After the last entry. `killed` is asked now and then. TP_DUPLICATE: two entries have the same
   key. */
int tp_change_build(tp_index_change *change, void *context, int (*killed)(void *context));
/* A round: what others have committed since the new trees were built, or since the last round. */
int tp_change_begin_round(tp_index_change *change);
/* A row that differs: its clustered key, its value before and after; null where there is none. */
typedef struct {
  tp_bytes key;
  tp_bytes before;
  tp_bytes after;
} tp_changed_row;
/* Good until the next one. TP_END after the last. */
int tp_change_next_changed(tp_index_change *change, tp_changed_row *row);
/* An entry that is removed from the new tree. */
int tp_change_remove(tp_index_change *change, size_t index, tp_bytes key, tp_bytes value);
typedef struct {
  uint64_t rows;        /* that differed */
  uint64_t writes_open; /* logged, and left to the next round: of unfinished transactions */
  uint64_t writes_left; /* these, and what was logged since it began */
} tp_round;
/* TP_DUPLICATE as of tp_change_build. */
int tp_change_end_round(tp_index_change *change, void *context, int (*killed)(void *context),
                        tp_round *round);
/* The table takes no more writes (TP_TABLE_BUSY). Then comes a last round, and the commit.
   TP_TABLE_BUSY while a transaction that has used the table is unfinished. */
int tp_change_stop_writes(tp_index_change *change);
/* Of which tree, and the later one of the two. */
int tp_change_duplicate(const tp_index_change *change, size_t *index, tp_entry *entry);
/* The row with this clustered key, of a table that is rebuilt the new one's; or TP_END. */
int tp_change_row(tp_index_change *change, tp_bytes key, tp_bytes *row);
/* Makes the changes, of a table each, and gives tables other metadata and attachments, these or
   others: all at one moment, or nothing. The changes are gone afterwards, whatever is returned.
   Open tp_table of these tables are void if it succeeds. */
int tp_change_commit(tp_index_change *const *changes, size_t change_count,
                     const tp_table_metadata_of *tables, size_t table_count,
                     const tp_attachment_changes *attached);
/* Leaves the table as it was. */
void tp_change_free(tp_index_change *change);

/* ---- an empty table that no other session knows is filled, without undo or locks */

/* Until the load is committed or freed the table takes no writes (TP_TABLE_BUSY), and its
   definition stays. */
int tp_load_begin(tp_db *db, const char *name, size_t name_len, tp_load **load);
/* An entry of the clustered index, whose key is greater than all before. It can go on after
   TP_OUT_OF_ORDER, TP_DUPLICATE (of the one before) and TP_KEY_TOO_LONG. */
int tp_load_row(tp_load *load, tp_bytes key, tp_bytes value);
/* An entry of another index, in any order. */
int tp_load_add(tp_load *load, size_t index, tp_bytes key, tp_bytes value);
/* After the last entry. `killed` is asked now and then. TP_DUPLICATE: two entries have the same
   key. */
int tp_load_build(tp_load *load, void *context, int (*killed)(void *context));
/* Of which index, and the later one of the two. */
int tp_load_duplicate(const tp_load *load, size_t *index, tp_entry *entry);
/* The row with this clustered key, or TP_END; after tp_load_build, and be it in vain. */
int tp_load_find(tp_load *load, tp_bytes key, tp_bytes *row);
/* Makes the rows the table's, durably. The load is gone afterwards, whatever is returned. Open
   tp_table of the table are void if it succeeds. */
int tp_load_commit(tp_load *load);
/* Leaves the table empty. */
void tp_load_free(tp_load *load);

/* ---- one table moves between servers */

typedef struct {
  int fd;               /* open for writing; it stays the caller's */
  tp_bytes name;        /* what errors call it */
  tp_bytes description; /* kept for the importing server */
} tp_export_file;
/* Writes the rows of a table that are committed to an open file, and syncs it. `go_on` is asked now
   and then: entries and bytes written so far; 0 = TP_INTERRUPTED. */
int tp_export_table(tp_db *db, const char *name, size_t name_len, const tp_export_file *file,
                    void *context, int (*go_on)(void *context, uint64_t entries, uint64_t bytes));
/* Opens an export to be imported. The file is closed with it, or at once if this fails. */
int tp_export_open(int fd, const char *name, size_t name_len, tp_export **exported);
typedef struct {
  tp_bytes table; /* its name where it was exported */
  tp_bytes metadata;
  tp_bytes description;
  uint64_t file_bytes;
} tp_exported;
void tp_export_header(const tp_export *exported, tp_exported *header);
/* Calls `index` for each index, in the order of the trees. */
void tp_export_indexes(const tp_export *exported, void *context,
                       void (*index)(void *context, const char *name, size_t len,
                                     uint8_t is_unique));
/* Makes the rows of an export those of a table that was discarded (TP_TABLE_EXISTS if it was not),
   with the export's indexes and other metadata, at one moment. The export is gone afterwards,
   whatever is returned. Open tp_table of the table are void if it succeeds. */
int tp_import_table(tp_db *db, const char *name, size_t name_len, tp_export *exported,
                    tp_bytes metadata, void *context,
                    int (*go_on)(void *context, uint64_t entries, uint64_t bytes));
void tp_export_free(tp_export *exported);
/* Takes the rows of a table away: it is empty, and TP_TABLE_DISCARDED to all who use it until an
   export is imported. Open tp_table of the table are void if it succeeds. */
int tp_discard_table(tp_db *db, const char *name, size_t name_len);
int tp_table_is_discarded(const tp_table *table);

#ifdef __cplusplus
}
#endif
#endif
