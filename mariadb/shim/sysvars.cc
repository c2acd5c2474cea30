/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "sysvars.h"
#include "backup.h"
#include "encryption.h"
#include "engine.h"
#include "errors.h"
#include "named_path.h"
#include "server_versions.h"

namespace tidepool {

namespace {

ulonglong buffer_pool_size, redo_log_capacity, max_purge_lag;
ulong page_size, buffer_pool_replacement, old_blocks_pct, old_blocks_time, max_purge_lag_delay,
    flush_log_at_trx_commit, open_files, force_recovery, page_compression, compressed_tier,
    memory_policy;
my_bool dump_at_shutdown, load_at_startup, dump_now, load_now, load_abort;
my_bool cache_advice, lost_update_check, deadlock_detect, direct_io, read_only, memory_guard;
my_bool print_all_deadlocks;
my_bool start_empty, accept_log_loss;
char *home_dir, *page_trace_file;
char nothing[] = "", *backup_to = nothing;
double page_trace_sample;
ulonglong page_trace_max_size;

ulong ft_min_token_size, ft_max_token_size;
ulonglong ft_result_cache_limit;
char *ft_server_stopword_table;

ulong scrub_days;
ulong encrypt_tables, encryption_rotate_key_age, encryption_rotation_iops;
my_bool encrypt_log;
my_bool scrub_now;

constexpr ulonglong MIB = 1024 * 1024;

const char *replacement_names[] = {"tide", "midpoint", NullS}; /* as TP_REPLACEMENT_… */
TYPELIB replacements =
    typelib("buffer_pool_replacement", replacement_names, array_elements(replacement_names) - 1);

const char *compression_names[] = {"AUTO", "OFF", "LZ4", "ZSTD", NullS}; /* as TP_COMPRESSION_… */
TYPELIB compressions =
    typelib("page_compression", compression_names, array_elements(compression_names) - 1);

const char *memory_policy_names[] = {"AUTO", "KEEP", "RETURN", NullS}; /* as TP_MEMORY_… */
TYPELIB memory_policies =
    typelib("memory_policy", memory_policy_names, array_elements(memory_policy_names) - 1);

const char *tier_names[] = {"OFF", "AUTO", NullS};
TYPELIB tiers = typelib("compressed_tier", tier_names, array_elements(tier_names) - 1);

const char *encrypt_names[] = {"OFF", "ON", "FORCE", NullS}; /* as TP_ENCRYPT_… */
TYPELIB encrypt_kinds = typelib("encrypt_tables", encrypt_names, array_elements(encrypt_names) - 1);

constexpr ulong OLD_PCT = 37, OLD_TIME_MS = 1000;
constexpr ulonglong REDO_MINIMUM = 8 * MIB, REDO_MAXIMUM = 512 * 1024 * MIB;

/* What is asked for, or the least there can be. */
ulonglong at_least_minimum(ulonglong asked) {
  uint64_t minimum = 0;
  if (!asked || tp_buffer_pool_size_min(page_size, &minimum) != TP_OK) return asked;
  return MY_MAX(asked, minimum);
}

/* What the server does for a variable of names that has no check. */
int check_enum(const TYPELIB &names, void *save, st_mysql_value *value) {
  longlong number = 0;
  if (value->value_type(value) == MYSQL_VALUE_TYPE_STRING) {
    char buffer[16];
    int length = sizeof buffer;
    const char *text = value->val_str(value, buffer, &length);
    number = text ? find_type(text, &names, FIND_TYPE_BASIC) - 1 : -1;
  } else if (value->val_int(value, &number)) {
    return 1;
  }
  if (number < 0 || number >= static_cast<longlong>(names.count)) return 1;
  *static_cast<ulong *>(save) = static_cast<ulong>(number);
  return 0;
}

/* An update function holds the lock of all variables, for which each new connection waits. What may
   take long is done without it; the session keeps the plugin in use. */
class Without_lock_of_variables {
public:
  Without_lock_of_variables() { mysql_mutex_unlock(&LOCK_global_system_variables); }
  Without_lock_of_variables(const Without_lock_of_variables &) = delete;
  Without_lock_of_variables &operator=(const Without_lock_of_variables &) = delete;
  ~Without_lock_of_variables() { mysql_mutex_lock(&LOCK_global_system_variables); }
};

template <typename Work>
int without_lock_of_variables(Work work) {
  const Without_lock_of_variables unlocked;
  return work();
}

/* The variable changes if the engine takes the value. */
template <typename T>
void apply(THD *thd, void *variable, const void *value, int result) {
  if (result != TP_OK)
    server_error(result, thd);
  else
    *static_cast<T *>(variable) = *static_cast<const T *>(value);
}

void set_flush_log(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const ulong v = *static_cast<const ulong *>(value);
  apply<ulong>(thd, variable, value,
               tp_set_flush_log_at_trx_commit(engine.db, static_cast<uint8_t>(v)));
}

void set_redo_capacity(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const ulonglong bytes = *static_cast<const ulonglong *>(value);
  apply<ulonglong>(thd, variable, value, without_lock_of_variables([bytes] {
                     return tp_set_redo_capacity(engine.db, bytes);
                   }));
}

/* As InnoDB: what is too small becomes the minimum, with a warning. 0 is not small: it means
   governed. */
int check_pool_size(THD *thd, st_mysql_sys_var *, void *save, st_mysql_value *value) {
  longlong asked = 0;
  if (value->val_int(value, &asked)) return 1;
  const bool negative = asked < 0 && !value->is_unsigned(value);
  const ulonglong bytes = at_least_minimum(negative ? 1 : static_cast<ulonglong>(asked));
  if (negative || bytes != static_cast<ulonglong>(asked))
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_TRUNCATED_WRONG_VALUE,
                        "Truncated incorrect tidepool_buffer_pool_size value: '%lld'; %llu is the "
                        "least, 0 lets the "
                        "engine govern the size",
                        asked, bytes);
  *static_cast<ulonglong *>(save) = bytes;
  return 0;
}

int check_redo_capacity(THD *thd, st_mysql_sys_var *, void *save, st_mysql_value *value) {
  longlong asked = 0;
  if (value->val_int(value, &asked)) return 1;
  const bool negative = asked < 0 && !value->is_unsigned(value);
  ulonglong bytes = negative ? 1 : static_cast<ulonglong>(asked);
  if (bytes) bytes = MY_MIN(MY_MAX(bytes, REDO_MINIMUM), REDO_MAXIMUM);
  if (negative || bytes != static_cast<ulonglong>(asked))
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_TRUNCATED_WRONG_VALUE,
                        "Truncated incorrect tidepool_redo_log_capacity value: '%lld'; it may be 0 "
                        "(automatic), or %llu "
                        "to %llu",
                        asked, REDO_MINIMUM, REDO_MAXIMUM);
  *static_cast<ulonglong *>(save) = bytes;
  return 0;
}

void set_pool_size(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  apply<ulonglong>(thd, variable, value,
                   tp_set_buffer_pool_size(engine.db, *static_cast<const ulonglong *>(value)));
}

void set_memory_guard(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const my_bool v = *static_cast<const my_bool *>(value);
  apply<my_bool>(thd, variable, value, tp_set_memory_guard(engine.db, v));
}

void set_memory_policy(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const auto which = static_cast<uint8_t>(*static_cast<const ulong *>(value));
  apply<ulong>(thd, variable, value, tp_set_memory_policy(engine.db, which));
}

/* A value for one policy is accepted while another policy is in force. It changes nothing then,
   so the session gets a warning. */
void warn_unless_midpoint(THD *thd, const char *variable) {
  if (buffer_pool_replacement == TP_REPLACEMENT_MIDPOINT) return;
  push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_WRONG_ARGUMENTS,
                      "%s has no effect: it counts only with "
                      "tidepool_buffer_pool_replacement=midpoint, an option of the "
                      "server's start; at present it is %s, which needs no setting",
                      variable, replacement_names[buffer_pool_replacement]);
}

void set_old_pct(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const ulong v = *static_cast<const ulong *>(value);
  warn_unless_midpoint(thd, "tidepool_old_blocks_pct");
  apply<ulong>(thd, variable, value, tp_set_old_blocks_pct(engine.db, static_cast<uint8_t>(v)));
}

void set_old_time(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  warn_unless_midpoint(thd, "tidepool_old_blocks_time");
  apply<ulong>(thd, variable, value,
               tp_set_old_blocks_time(engine.db, *static_cast<const ulong *>(value)));
}

void set_purge_lag(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  apply<ulonglong>(thd, variable, value,
                   tp_set_max_purge_lag(engine.db, *static_cast<const ulonglong *>(value)));
}

void set_purge_lag_delay(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  apply<ulong>(thd, variable, value,
               tp_set_max_purge_lag_delay(engine.db, *static_cast<const ulong *>(value)));
}

void set_lost_update(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const my_bool v = *static_cast<const my_bool *>(value);
  apply<my_bool>(thd, variable, value, tp_set_lost_update_check(engine.db, v));
}

void set_detect(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const my_bool v = *static_cast<const my_bool *>(value);
  apply<my_bool>(thd, variable, value, tp_set_deadlock_detect(engine.db, v));
}

void set_print_deadlocks(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const my_bool v = *static_cast<const my_bool *>(value);
  apply<my_bool>(thd, variable, value, tp_set_log_deadlocks(engine.db, v));
}

void set_cache_advice(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const my_bool v = *static_cast<const my_bool *>(value);
  apply<my_bool>(thd, variable, value, tp_set_cache_advice(engine.db, v));
}

void set_dump_at_shutdown(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const my_bool v = *static_cast<const my_bool *>(value);
  apply<my_bool>(thd, variable, value, tp_set_dump_at_shutdown(engine.db, v));
}

/* As InnoDB's variables of these names: setting them ON does it; they always read OFF. */
template <tp_hot_list_order ORDER>
void order_hot_list(THD *thd, st_mysql_sys_var *, void *, const void *value) {
  if (!*static_cast<const my_bool *>(value)) return;
  const Without_lock_of_variables unlocked;
  if (const int result = tp_hot_list(engine.db, ORDER); result != TP_OK) server_error(result, thd);
}

void set_scrub_days(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const ulong days = *static_cast<const ulong *>(value);
  apply<ulong>(thd, variable, value, tp_set_scrub_days(engine.db, static_cast<uint16_t>(days)));
}

void set_page_compression(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const ulong which = *static_cast<const ulong *>(value);
  apply<ulong>(thd, variable, value,
               tp_set_page_compression(engine.db, static_cast<uint8_t>(which)));
}

void set_compressed_tier(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const auto which = static_cast<uint8_t>(*static_cast<const ulong *>(value));
  apply<ulong>(thd, variable, value, without_lock_of_variables([which] {
                 return tp_set_compressed_tier(engine.db, which);
               }));
}

/* Without a key, no table could be made any more. */
int check_encrypt_tables(THD *thd, st_mysql_sys_var *variable, void *save, st_mysql_value *value) {
  if (check_enum(encrypt_kinds, save, value)) return 1;
  if (*static_cast<ulong *>(save) == TP_ENCRYPT_OFF || has_default_key()) return 0;
  my_printf_error(ER_GET_ERRMSG,
                  "Tidepool: tidepool_encrypt_tables can't be set: there is no encryption key 1; "
                  "load a key management plugin that has it",
                  MYF(0));
  return 1;
}

void set_encrypt_tables(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const auto which = static_cast<uint8_t>(*static_cast<const ulong *>(value));
  apply<ulong>(thd, variable, value, tp_set_encrypt_tables(engine.db, which));
}

void set_rotate_key_age(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const auto versions = static_cast<uint32_t>(*static_cast<const ulong *>(value));
  apply<ulong>(thd, variable, value, tp_set_encryption_rotate_key_age(engine.db, versions));
}

void set_rotation_iops(THD *thd, st_mysql_sys_var *, void *variable, const void *value) {
  const auto pages = static_cast<uint32_t>(*static_cast<const ulong *>(value));
  apply<ulong>(thd, variable, value, tp_set_encryption_rotation_iops(engine.db, pages));
}

/* ON begins a pass; it always reads OFF. */
void order_scrub(THD *thd, st_mysql_sys_var *, void *, const void *value) {
  if (!*static_cast<const my_bool *>(value)) return;
  if (const int result = tp_scrub(engine.db, 1); result != TP_OK) server_error(result, thd);
}

int start_page_trace(const char *path) {
  return tp_start_page_trace(engine.db, path, strlen(path), page_trace_sample, page_trace_max_size);
}

/* Where the trace is recorded to, as the variable shows it; nullptr = nowhere. */
const char *shown_trace(const char *path) {
  static char recording[FN_REFLEN];
  if (!path) return nullptr;
  strmake(recording, path, sizeof recording - 1);
  return recording;
}

/* Gives the path on with its links resolved. */
int check_page_trace(THD *thd, st_mysql_sys_var *, void *save, st_mysql_value *value) {
  char buffer[FN_REFLEN];
  int length = sizeof buffer;
  const char *named = value->val_str(value, buffer, &length);
  std::string path;
  if (named && *named && !may_use_path(thd, "tidepool_page_trace_file", named, &path)) return 1;
  *static_cast<const char **>(save) = thd_strmake(thd, path.data(), path.size());
  return 0;
}

/* A new name begins a trace, and ends the one before if that succeeds; empty ends it. */
void set_page_trace(THD *, st_mysql_sys_var *, void *variable, const void *value) {
  const char *path = *static_cast<const char *const *>(value);
  const bool is_named = path && *path;
  if ((is_named ? start_page_trace(path) : tp_stop_page_trace(engine.db)) == TP_OK) {
    *static_cast<const char **>(variable) = is_named ? shown_trace(path) : nullptr;
    return;
  }
  String text = last_error_text();
  my_printf_error(ER_GET_ERRMSG, "Tidepool: no page trace is recorded: %s", MYF(0),
                  text.c_ptr_safe());
}

/* The same for the option. A trace that can't be recorded is no reason not to start: the option may
   still be there at the next start, when its file exists. */
void start_page_trace_of_option() {
  const char *named = page_trace_file;
  page_trace_file = nullptr;
  if (!named || !*named) return;
  std::string path, why;
  if (leads_outside(named, &path, &why)) {
    if (start_page_trace(path.c_str()) == TP_OK) {
      page_trace_file = const_cast<char *>(shown_trace(path.c_str()));
      return;
    }
    String text = last_error_text();
    why = text.c_ptr_safe();
  }
  sql_print_error("Tidepool: tidepool_page_trace_file: no page trace is recorded: %s", why.c_str());
}

/* The statement is the backup, so it is made where it can fail. */
int check_backup_to(THD *thd, st_mysql_sys_var *, void *, st_mysql_value *value) {
  char buffer[FN_REFLEN];
  int length = sizeof buffer;
  const char *dir = value->val_str(value, buffer, &length);
  return dir && *dir && back_up(thd, dir);
}

/* It always reads empty. */
void no_change(THD *, st_mysql_sys_var *, void *, const void *) {}

MYSQL_SYSVAR_ULONGLONG(buffer_pool_size, buffer_pool_size, PLUGIN_VAR_RQCMDARG,
                       "The most memory that the buffer pool may have, in bytes; 0 = governed: "
                       "what the machine or the "
                       "container leaves free, as far as there is use for it",
                       check_pool_size, set_pool_size, 0, 0, ULONGLONG_MAX, 0);
MYSQL_SYSVAR_BOOL(
    memory_guard, memory_guard, PLUGIN_VAR_OPCMDARG,
    "The buffer pool stays below tidepool_buffer_pool_size while there isn't the memory for it; "
    "OFF = it "
    "has that size even if the server swaps or is killed for it (no effect on a size of 0)",
    nullptr, set_memory_guard, TRUE);
MYSQL_SYSVAR_ENUM(memory_policy, memory_policy, PLUGIN_VAR_RQCMDARG,
                  "Whether a governed buffer pool gives memory back whose loss costs hardly any "
                  "reads: AUTO = below the limit of a cgroup; KEEP = never; RETURN = everywhere",
                  nullptr, set_memory_policy, TP_MEMORY_AUTO, &memory_policies);
MYSQL_SYSVAR_ULONG(page_size, page_size, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_READONLY,
                   "Page size of a new data directory in bytes (a power of two from 4096 to "
                   "65536); 0 = 16384, or what "
                   "the data directory has",
                   nullptr, nullptr, 0, 0, 65536, 0);
MYSQL_SYSVAR_ENUM(
    buffer_pool_replacement, buffer_pool_replacement, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_READONLY,
    "Which pages leave the buffer pool: tide = found out by the engine, nothing to set; midpoint = "
    "young "
    "and old pages as InnoDB has them, set by tidepool_old_blocks_pct and tidepool_old_blocks_time",
    nullptr, nullptr, TP_REPLACEMENT_TIDE, &replacements);
MYSQL_SYSVAR_ENUM(
    page_compression, page_compression, PLUGIN_VAR_RQCMDARG,
    "How pages of tables are compressed when they are written: AUTO = by what brings most; OFF, "
    "LZ4 or ZSTD for "
    "who wants it so. Pages that are there already stay as they are until they are written again",
    nullptr, set_page_compression, TP_COMPRESSION_AUTO, &compressions);
MYSQL_SYSVAR_ENUM(compressed_tier, compressed_tier, PLUGIN_VAR_RQCMDARG,
                  "Whether part of the buffer pool holds compressed pages: AUTO = as much as saves "
                  "time, found out by the engine; OFF = none",
                  nullptr, set_compressed_tier, 1, &tiers);
MYSQL_SYSVAR_ENUM(encrypt_tables, encrypt_tables, PLUGIN_VAR_OPCMDARG,
                  "Whether tables without the option ENCRYPTED are encrypted: OFF; ON; FORCE = and "
                  "ENCRYPTED=NO is refused. Tables that exist follow in the background",
                  check_encrypt_tables, set_encrypt_tables, TP_ENCRYPT_OFF, &encrypt_kinds);
MYSQL_SYSVAR_BOOL(encrypt_log, encrypt_log, PLUGIN_VAR_OPCMDARG | PLUGIN_VAR_READONLY,
                  "The redo log is encrypted, with key 1", nullptr, nullptr, FALSE);
MYSQL_THDVAR_UINT(default_encryption_key_id, PLUGIN_VAR_RQCMDARG,
                  "ENCRYPTION_KEY_ID of tables that are made without this option", nullptr, nullptr,
                  1, 1, UINT_MAX32, 0);
MYSQL_SYSVAR_ULONG(encryption_rotate_key_age, encryption_rotate_key_age, PLUGIN_VAR_RQCMDARG,
                   "How many newer versions of its key there must be before a page is encrypted "
                   "anew in the background; 0 = never, and tables do not follow "
                   "tidepool_encrypt_tables either",
                   nullptr, set_rotate_key_age, 1, 0, 14, 0);
MYSQL_SYSVAR_ULONG(encryption_rotation_iops, encryption_rotation_iops, PLUGIN_VAR_RQCMDARG,
                   "Pages that are encrypted anew in a second, in the background", nullptr,
                   set_rotation_iops, 100, 0, 1000000, 0);
MYSQL_SYSVAR_ULONG(old_blocks_pct, old_blocks_pct, PLUGIN_VAR_RQCMDARG,
                   "With tidepool_buffer_pool_replacement=midpoint: percentage of the buffer pool "
                   "kept for pages that "
                   "were used once",
                   nullptr, set_old_pct, OLD_PCT, 5, 95, 0);
MYSQL_SYSVAR_ULONG(old_blocks_time, old_blocks_time, PLUGIN_VAR_RQCMDARG,
                   "With tidepool_buffer_pool_replacement=midpoint: milliseconds after its first "
                   "use in which more uses "
                   "of a page don't make it young",
                   nullptr, set_old_time, OLD_TIME_MS, 0, UINT_MAX32, 0);
MYSQL_SYSVAR_ULONGLONG(
    redo_log_capacity, redo_log_capacity, PLUGIN_VAR_RQCMDARG,
    "Size of the redo log in bytes; 0 = automatic, by the memory that the buffer pool holds",
    check_redo_capacity, set_redo_capacity, 0, 0, REDO_MAXIMUM, 0);
MYSQL_SYSVAR_ULONG(flush_log_at_trx_commit, flush_log_at_trx_commit, PLUGIN_VAR_OPCMDARG,
                   "1 = a commit is on the disk when it returns; 2 = the log is written at commit "
                   "and synced once a "
                   "second; 0 = written and synced once a second",
                   nullptr, set_flush_log, 1, 0, 2, 0);
MYSQL_THDVAR_ULONG(lock_wait_timeout, PLUGIN_VAR_RQCMDARG,
                   "Seconds that a statement waits for a row lock before it fails; 0 = not at all",
                   nullptr, nullptr, 50, 0, 100000000, 0);
MYSQL_SYSVAR_ULONGLONG(max_purge_lag, max_purge_lag, PLUGIN_VAR_RQCMDARG,
                       "History list length above which writes are slowed down; 0 = never", nullptr,
                       set_purge_lag, 0, 0, UINT_MAX32, 0);
MYSQL_SYSVAR_ULONG(max_purge_lag_delay, max_purge_lag_delay, PLUGIN_VAR_RQCMDARG,
                   "Longest such delay of one statement in microseconds; 0 = a second", nullptr,
                   set_purge_lag_delay, 0, 0, 10000000, 0);
MYSQL_SYSVAR_BOOL(
    lost_update_check, lost_update_check, PLUGIN_VAR_OPCMDARG,
    "REPEATABLE READ refuses to write or lock a row that was changed after the snapshot was taken",
    nullptr, set_lost_update, TRUE);
MYSQL_SYSVAR_BOOL(deadlock_detect, deadlock_detect, PLUGIN_VAR_OPCMDARG,
                  "Deadlocks are looked for; if not, lock waits end by tidepool_lock_wait_timeout",
                  nullptr, set_detect, TRUE);
MYSQL_SYSVAR_BOOL(print_all_deadlocks, print_all_deadlocks, PLUGIN_VAR_OPCMDARG,
                  "Each deadlock is written to the error log", nullptr, set_print_deadlocks, FALSE);
MYSQL_SYSVAR_BOOL(
    use_direct_io, direct_io, PLUGIN_VAR_OPCMDARG | PLUGIN_VAR_READONLY,
    "Files are read and written past the page cache of the operating system, where it allows that",
    nullptr, nullptr, TRUE);
MYSQL_SYSVAR_ULONG(open_files, open_files, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_READONLY,
                   "Table files that are open at the same time (there may be more tables: files "
                   "are closed and opened "
                   "again as needed); 0 = half of the file descriptors that the server may have",
                   nullptr, nullptr, 0, 0, 1000000, 0);
MYSQL_SYSVAR_BOOL(read_only, read_only, PLUGIN_VAR_OPCMDARG | PLUGIN_VAR_READONLY,
                  "The data directory is only read; it must have been closed cleanly", nullptr,
                  nullptr, FALSE);
MYSQL_SYSVAR_BOOL(accept_log_loss, accept_log_loss, PLUGIN_VAR_OPCMDARG | PLUGIN_VAR_READONLY,
                  "A start that finds the redo log damaged goes on without what was committed "
                  "behind the damage; for one start, "
                  "when there is no backup to restore",
                  nullptr, nullptr, FALSE);
MYSQL_SYSVAR_ULONG(force_recovery, force_recovery, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_READONLY,
                   "What a start on a damaged data directory does without, so that the tables can "
                   "be dumped: 1 = purge, 2 = "
                   "also the rollback of unfinished transactions, 3 = also all writes, 4 = also "
                   "the undo log, 5 = also the "
                   "redo log; 0 = nothing",
                   nullptr, nullptr, 0, 0, 5, 0);
MYSQL_SYSVAR_STR(data_home_dir, home_dir, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_READONLY,
                 "Directory of the engine's files; empty = tidepool in the server's data directory",
                 nullptr, nullptr, nullptr);
MYSQL_SYSVAR_BOOL(start_empty, start_empty, PLUGIN_VAR_OPCMDARG | PLUGIN_VAR_READONLY,
                  "A new directory of the engine's files is made even if the server has tables of "
                  "the engine's, whose data is lost then",
                  nullptr, nullptr, FALSE);

MYSQL_SYSVAR_BOOL(
    buffer_pool_dump_at_shutdown, dump_at_shutdown, PLUGIN_VAR_OPCMDARG,
    "The list of hot pages is saved, when it has changed once a minute, and at shutdown", nullptr,
    set_dump_at_shutdown, TRUE);
MYSQL_SYSVAR_BOOL(buffer_pool_load_at_startup, load_at_startup,
                  PLUGIN_VAR_OPCMDARG | PLUGIN_VAR_READONLY,
                  "The pages of the saved list are read in the background after the start", nullptr,
                  nullptr, TRUE);
MYSQL_SYSVAR_BOOL(buffer_pool_dump_now, dump_now, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_NOCMDOPT,
                  "ON saves the list of hot pages now", nullptr, order_hot_list<TP_HOT_LIST_DUMP>,
                  FALSE);
MYSQL_SYSVAR_BOOL(buffer_pool_load_now, load_now, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_NOCMDOPT,
                  "ON begins to load the pages of the saved list", nullptr,
                  order_hot_list<TP_HOT_LIST_LOAD>, FALSE);
MYSQL_SYSVAR_BOOL(buffer_pool_load_abort, load_abort, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_NOCMDOPT,
                  "ON ends the loading of the saved list", nullptr,
                  order_hot_list<TP_HOT_LIST_ABORT>, FALSE);
MYSQL_SYSVAR_BOOL(scrub, scrub_now, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_NOCMDOPT,
                  "ON begins to read and verify all pages of all tables, at the pace of scans",
                  nullptr, order_scrub, FALSE);
MYSQL_SYSVAR_ULONG(
    scrub_days, scrub_days, PLUGIN_VAR_RQCMDARG,
    "Days within which each page is read and verified once, in the background; 0 = never", nullptr,
    set_scrub_days, 7, 0, 365, 0);
MYSQL_SYSVAR_BOOL(cache_advice, cache_advice, PLUGIN_VAR_OPCMDARG,
                  "A sample of the page accesses is watched, to predict what other sizes of the "
                  "buffer pool would bring "
                  "(information_schema.TIDEPOOL_CACHE_ADVICE), and to tune page replacement",
                  nullptr, set_cache_advice, TRUE);
MYSQL_SYSVAR_STR(
    page_trace_file, page_trace_file, PLUGIN_VAR_RQCMDARG,
    "File that a trace of page accesses is recorded to, for replay over replacement "
    "policies and pool sizes: an absolute path outside of the data directory, where no "
    "file is yet; empty = none",
    check_page_trace, set_page_trace, nullptr);
MYSQL_SYSVAR_STR(backup_to, backup_to, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_NOCMDOPT,
                 "Setting it to a directory, which must be empty or not exist, makes a backup of "
                 "all tables there while they are in use",
                 check_backup_to, no_change, "");
MYSQL_THDVAR_STR(backup_incremental_from,
                 PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_MEMALLOC | PLUGIN_VAR_NOCMDOPT,
                 "The directory of an earlier backup: tidepool_backup_to backs up what was written "
                 "since; empty = everything",
                 nullptr, nullptr, "");
MYSQL_SYSVAR_DOUBLE(page_trace_sample, page_trace_sample, PLUGIN_VAR_RQCMDARG,
                    "Share of the pages that the next trace is of", nullptr, nullptr, 1, 0, 1, 0);
MYSQL_SYSVAR_ULONGLONG(page_trace_max_size, page_trace_max_size, PLUGIN_VAR_RQCMDARG,
                       "Bytes at which the next trace ends", nullptr, nullptr, 1024 * MIB, MIB,
                       ULONGLONG_MAX, 0);

MYSQL_SYSVAR_ULONG(ft_min_token_size, ft_min_token_size, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_READONLY,
                   "Characters of the shortest word that a FULLTEXT index made from now on has",
                   nullptr, nullptr, 3, 0, 16, 0);
MYSQL_SYSVAR_ULONG(ft_max_token_size, ft_max_token_size, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_READONLY,
                   "Characters of the longest word that a FULLTEXT index made from now on has",
                   nullptr, nullptr, 84, 10, 84, 0);
MYSQL_SYSVAR_ULONGLONG(ft_result_cache_limit, ft_result_cache_limit, PLUGIN_VAR_RQCMDARG,
                       "Bytes of memory that a search in a FULLTEXT index may take before it fails",
                       nullptr, nullptr, 2000000000, 1000000, ULONGLONG_MAX, 0);
MYSQL_THDVAR_BOOL(ft_enable_stopword, PLUGIN_VAR_OPCMDARG,
                  "FULLTEXT indexes made from now on leave stopwords out", nullptr, nullptr, TRUE);
MYSQL_SYSVAR_STR(ft_server_stopword_table, ft_server_stopword_table,
                 PLUGIN_VAR_OPCMDARG | PLUGIN_VAR_MEMALLOC,
                 "db/table with the stopwords of FULLTEXT indexes made from now on, in a column "
                 "value",
                 nullptr, nullptr, nullptr);
MYSQL_THDVAR_STR(ft_user_stopword_table, PLUGIN_VAR_OPCMDARG | PLUGIN_VAR_MEMALLOC,
                 "The same of this session: it counts before tidepool_ft_server_stopword_table",
                 nullptr, nullptr, nullptr);

} // namespace

st_mysql_sys_var *system_variables[] = {MYSQL_SYSVAR(buffer_pool_size),
                                        MYSQL_SYSVAR(memory_guard),
                                        MYSQL_SYSVAR(memory_policy),
                                        MYSQL_SYSVAR(page_size),
                                        MYSQL_SYSVAR(buffer_pool_replacement),
                                        MYSQL_SYSVAR(page_compression),
                                        MYSQL_SYSVAR(compressed_tier),
                                        MYSQL_SYSVAR(encrypt_tables),
                                        MYSQL_SYSVAR(encrypt_log),
                                        MYSQL_SYSVAR(default_encryption_key_id),
                                        MYSQL_SYSVAR(encryption_rotate_key_age),
                                        MYSQL_SYSVAR(encryption_rotation_iops),
                                        MYSQL_SYSVAR(old_blocks_pct),
                                        MYSQL_SYSVAR(old_blocks_time),
                                        MYSQL_SYSVAR(redo_log_capacity),
                                        MYSQL_SYSVAR(flush_log_at_trx_commit),
                                        MYSQL_SYSVAR(lock_wait_timeout),
                                        MYSQL_SYSVAR(max_purge_lag),
                                        MYSQL_SYSVAR(max_purge_lag_delay),
                                        MYSQL_SYSVAR(lost_update_check),
                                        MYSQL_SYSVAR(deadlock_detect),
                                        MYSQL_SYSVAR(print_all_deadlocks),
                                        MYSQL_SYSVAR(use_direct_io),
                                        MYSQL_SYSVAR(open_files),
                                        MYSQL_SYSVAR(read_only),
                                        MYSQL_SYSVAR(accept_log_loss),
                                        MYSQL_SYSVAR(force_recovery),
                                        MYSQL_SYSVAR(data_home_dir),
                                        MYSQL_SYSVAR(start_empty),
                                        MYSQL_SYSVAR(buffer_pool_dump_at_shutdown),
                                        MYSQL_SYSVAR(buffer_pool_load_at_startup),
                                        MYSQL_SYSVAR(buffer_pool_dump_now),
                                        MYSQL_SYSVAR(buffer_pool_load_now),
                                        MYSQL_SYSVAR(buffer_pool_load_abort),
                                        MYSQL_SYSVAR(scrub),
                                        MYSQL_SYSVAR(scrub_days),
                                        MYSQL_SYSVAR(cache_advice),
                                        MYSQL_SYSVAR(backup_to),
                                        MYSQL_SYSVAR(backup_incremental_from),
                                        MYSQL_SYSVAR(page_trace_file),
                                        MYSQL_SYSVAR(page_trace_sample),
                                        MYSQL_SYSVAR(page_trace_max_size),
                                        MYSQL_SYSVAR(ft_min_token_size),
                                        MYSQL_SYSVAR(ft_max_token_size),
                                        MYSQL_SYSVAR(ft_result_cache_limit),
                                        MYSQL_SYSVAR(ft_enable_stopword),
                                        MYSQL_SYSVAR(ft_server_stopword_table),
                                        MYSQL_SYSVAR(ft_user_stopword_table),
                                        nullptr};

ha_create_table_option table_options[] = {
    HA_TOPTION_ENUM("ENCRYPTED", encrypted, "DEFAULT,YES,NO", 0), /* as TP_ENCRYPTED_… */
    /* as TP_COMPRESSION_… */
    HA_TOPTION_ENUM("COMPRESSION", compression, "DEFAULT,OFF,LZ4,ZSTD", 0),
    HA_TOPTION_SYSVAR("ENCRYPTION_KEY_ID", encryption_key_id, default_encryption_key_id),
    HA_TOPTION_END};

bool is_default_home_dir() { return !home_dir || !*home_dir; }

bool may_start_empty() { return start_empty; }

const char *data_home_dir() {
  static char path[FN_REFLEN];
  if (!is_default_home_dir()) return home_dir;
  strxnmov(path, sizeof path - 1, mysql_real_data_home, DEFAULT_HOME_DIR, NullS);
  return path;
}

tp_options open_options() {
  tp_options options{};
  options.page_size = page_size;
  const ulonglong asked = buffer_pool_size;
  buffer_pool_size = at_least_minimum(asked);
  if (buffer_pool_size != asked)
    sql_print_warning(
        "Tidepool: tidepool_buffer_pool_size=%llu is too small, taking the least, %llu; 0 lets the "
        "engine "
        "govern the size",
        asked, buffer_pool_size);
  options.buffer_pool_size_bytes = buffer_pool_size;
  options.memory_guard = memory_guard;
  options.memory_policy = static_cast<uint8_t>(memory_policy);
  options.dump_at_shutdown = dump_at_shutdown;
  options.scrub_days = static_cast<uint16_t>(scrub_days);
  options.load_at_startup = load_at_startup;
  if (redo_log_capacity) redo_log_capacity = MY_MAX(redo_log_capacity, REDO_MINIMUM);
  options.redo_capacity_bytes = redo_log_capacity;
  options.lock_wait_timeout_s = 50;
  options.old_blocks_pct = old_blocks_pct;
  options.old_blocks_time_ms = old_blocks_time;
  options.max_purge_lag = max_purge_lag;
  options.max_purge_lag_delay_us = max_purge_lag_delay;
  options.flush_log_at_trx_commit = static_cast<uint8_t>(flush_log_at_trx_commit);
  options.deadlock_detect = deadlock_detect;
  options.lost_update_check = lost_update_check;
  options.direct_io = direct_io;
  options.open_files = open_files;
  options.read_only = read_only;
  options.accept_log_loss = accept_log_loss;
  options.force_recovery = static_cast<uint8_t>(force_recovery);
  /* The server does that after plugins have begun. */
  options.memory_locked = locked_in_memory;
  options.replacement = static_cast<uint8_t>(buffer_pool_replacement);
  options.page_compression = static_cast<uint8_t>(page_compression);
  options.compressed_tier = static_cast<uint8_t>(compressed_tier);
  options.encrypt_tables = static_cast<uint8_t>(encrypt_tables);
  options.encrypt_log = encrypt_log;
  options.encryption_rotate_key_age = static_cast<uint32_t>(encryption_rotate_key_age);
  options.encryption_rotation_iops = static_cast<uint32_t>(encryption_rotation_iops);
  return options;
}

void show_page_size(ulonglong size) { page_size = static_cast<ulong>(size); }

int apply_at_start() {
  if (buffer_pool_replacement != TP_REPLACEMENT_MIDPOINT &&
      (old_blocks_pct != OLD_PCT || old_blocks_time != OLD_TIME_MS))
    sql_print_warning(
        "Tidepool: tidepool_old_blocks_pct and tidepool_old_blocks_time have no effect: they count "
        "only with "
        "tidepool_buffer_pool_replacement=midpoint");
  start_page_trace_of_option();
  if (print_all_deadlocks)
    if (int result = tp_set_log_deadlocks(engine.db, 1)) return result;
  return cache_advice ? TP_OK : tp_set_cache_advice(engine.db, 0);
}

bool is_forced_read_only() { return force_recovery >= TP_FORCE_READ_ONLY; }

bool is_each_commit_durable() { return flush_log_at_trx_commit == 1; }

ulong session_lock_wait_timeout(THD *thd) { return THDVAR(thd, lock_wait_timeout); }

ulonglong fulltext_search_bytes() { return ft_result_cache_limit; }

Fulltext_variables session_fulltext_variables(THD *thd) {
  const char *const own = THDVAR(thd, ft_user_stopword_table);
  const bool has_own = own && *own;
  std::string table(has_own ? own : "");
  if (!has_own) {
    /* SET GLOBAL frees the text that was there, under this lock. */
    mysql_mutex_lock(&LOCK_global_system_variables);
    if (ft_server_stopword_table) table = ft_server_stopword_table;
    mysql_mutex_unlock(&LOCK_global_system_variables);
  }
  return {ft_min_token_size, ft_max_token_size, THDVAR(thd, ft_enable_stopword) != 0,
          std::move(table), has_own};
}

const char *session_backup_incremental_from(THD *thd) {
  return THDVAR(thd, backup_incremental_from);
}

} // namespace tidepool
