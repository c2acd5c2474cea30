/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* The plugin's declaration, its start and its end. */
#include "backup.h"
#include "ddl.h"
#include "definition_files.h"
#include "encryption.h"
#include "engine.h"
#include "foreign_key.h"
#include "errors.h"
#include "fulltext_merge.h"
#include "ha_tidepool.h"
#include "i_s.h"
#include "performance_schema.h"
#include "status.h"
#include "synced_names.h"
#include "sysvars.h"
#include <sys/resource.h>

/* In the server's sql_show.cc, without a declaration in a header. */
extern void ignore_db_dirs_append(const char *name);

namespace tidepool {

Engine engine;

namespace {

void server_log(int level, const char *text, size_t len) {
  const int length = static_cast<int>(MY_MIN(len, size_t{4000}));
  switch (level) {
    case TP_LOG_ERROR: sql_print_error("Tidepool: %.*s", length, text); break;
    case TP_LOG_WARNING: sql_print_warning("Tidepool: %.*s", length, text); break;
    default: sql_print_information("Tidepool: %.*s", length, text);
  }
}

handler *create_handler(handlerton *hton, TABLE_SHARE *share, MEM_ROOT *mem_root) {
  return new (mem_root) ha_tidepool(hton, share);
}

const char *no_extensions[] = {nullptr};

/* A table is a file that stays open: the server's own limit counts only its own files. */
void raise_open_files_limit() {
  constexpr rlim_t WANTED = 65536;
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= WANTED) return;
  const rlimit allowed{limit.rlim_max, limit.rlim_max},
      privileged{WANTED, MY_MAX(WANTED, limit.rlim_max)};
  if (limit.rlim_max >= WANTED || setrlimit(RLIMIT_NOFILE, &privileged) != 0)
    setrlimit(RLIMIT_NOFILE, &allowed);
}

/*
  Before the server closes its binary log (or the tc.log that takes its place), with all sessions
  gone. Whether the server looks into the binary log at the next start, to tell which prepared
  transactions were committed, depends on how it was closed; and after a clean close it refuses to
  start if there are any. Behind the binary log, a commit is durable here only with the next flush.
  So if the last flush fails, be it that the log failed long ago and the server went on for who
  reads, the process ends here and now: the binary log is then as after a crash, and the next start
  recovers by itself.
*/
void pre_shutdown() {
  end_merge_thread();
  if (!engine.db) return;
  tp_begin_shutdown(engine.db);
  if (tp_flush_all_log(engine.db) == TP_OK) return;
  String text = last_error_text();
  sql_print_error(
      "Tidepool: %s. The server ends here, without closing its binary log, so that the next start "
      "recovers "
      "all that was committed: just start it",
      text.c_ptr_safe());
  /* No supervisor restarts a server that it asked to stop: for mysqld_safe, a pid file that stays
     means a crash. */
  unlink(pidfile_name);
  _exit(EXIT_FAILURE);
}

my_bool make_mandatory(THD *, plugin_ref plugin, void *) {
  if (is_same_name(plugin_name(plugin)->str, ENGINE_NAME))
    plugin_ref_to_int(plugin)->load_option = PLUGIN_FORCE;
  return false;
}

/* A server that is configured to have the engine does not start without it, as it does not without
   InnoDB. It would settle its binary log, and transactions over two engines, with the other engines
   alone, and take those prepared here for a mistake later, or roll them back, though they were
   acknowledged. */
int refuse_start() {
  if (mysqld_server_started) return 1;
  plugin_foreach_with_mask(nullptr, make_mandatory, MYSQL_STORAGE_ENGINE_PLUGIN,
                           PLUGIN_IS_UNINITIALIZED, nullptr);
  sql_print_error(
      "Tidepool: the server does not start without the engine: it would settle transactions of the "
      "last run without it. To start all the same, with the engine's tables out of reach: "
      "--tidepool=OFF");
  return 1;
}

/* What is missing until the next start, if the plugin is loaded while the server runs. */
void warn_of_late_start() {
  if (!opt_bin_log)
    sql_print_warning(
        "Tidepool: restart the server before you use XA transactions, or transactions over two "
        "engines: until then the server has no log for them, and XA PREPARE keeps nothing");
  size_t prepared = 0;
  tp_recovered_xids(engine.db, &prepared,
                    [](void *count, const uint8_t *, size_t) { ++*static_cast<size_t *>(count); });
  if (prepared)
    sql_print_warning(
        "Tidepool: %zu transactions are prepared, and hold their locks: the server asks for such "
        "at its start only. Restart it with the plugin in its configuration",
        prepared);
}

int start(void *p) {
  auto *hton = static_cast<handlerton *>(p);
  engine.hton = hton;
  tp_set_log(server_log);
  give_keyring();
  observe_engine();
  raise_open_files_limit();

  const tp_options options = open_options();
  const char *dir = data_home_dir();
  if (tp_check_data_dir(mysql_real_data_home, strlen(mysql_real_data_home), dir, strlen(dir),
                        may_start_empty()) != TP_OK ||
      tp_open(dir, strlen(dir), &options, &engine.db) != TP_OK) {
    String text = last_error_text();
    sql_print_error("Tidepool: can't open %s: %s", dir, text.c_ptr_safe());
    engine.db = nullptr;
    return refuse_start();
  }
  /* Our directory in the server's data directory is not a database. */
  if (is_default_home_dir()) ignore_db_dirs_append(DEFAULT_HOME_DIR);
  uint64_t page_size;
  if (tp_page_size(engine.db, &page_size) == TP_OK) show_page_size(page_size);

  if (apply_at_start() != TP_OK) {
    String text = last_error_text();
    sql_print_warning("Tidepool: an option is not in force: %s", text.c_ptr_safe());
  }

  hton->db_type = DB_TYPE_AUTOASSIGN;
  hton->create = create_handler;
  hton->drop_table = drop_table;
  hton->drop_database = drop_database;
  hton->check_version = check_version;
  hton->show_status = show_status;
  hton->create_partitioning_metadata = Hook<keep_partitioned_files>();
  hton->tablefile_extensions = no_extensions;
  hton->table_options = table_options;
  hton->flags = HTON_SUPPORTS_EXTENDED_KEYS;
  hton->pre_shutdown = pre_shutdown;
  hton->prepare_for_backup = Hook<warn_of_other_backup>();
  hton->signal_ddl_recovery_done = Hook<after_ddl_recovery>();
  setup_transactions(hton);
  setup_costs(hton);
  if (!options.read_only && options.force_recovery < TP_FORCE_READ_ONLY) {
    drop_temporary_tables();
    if (roll_back_unlogged() != TP_OK) {
      String text = last_error_text();
      sql_print_error("Tidepool: can't end the restore of a backup: %s", text.c_ptr_safe());
      tp_close(engine.db);
      engine.db = nullptr;
      return refuse_start();
    }
  }
  foreign_keys.load();
  restore_partitioned_files();
  if (mysqld_server_started) warn_of_late_start();
  return 0;
}

int stop(void *) {
  end_merge_thread();
  std::unique_lock<std::shared_mutex> nobody_reads(engine.explaining);
  if (!engine.db) return 0;
  sync_changed_names();
  if (tp_close(engine.db) != TP_OK) {
    String text = last_error_text();
    sql_print_error("Tidepool: the shutdown was not clean, the next start will recover: %s",
                    text.c_ptr_safe());
  }
  engine.db = nullptr;
  return 0;
}

st_mysql_storage_engine storage_engine = {MYSQL_HANDLERTON_INTERFACE_VERSION};

} // namespace

} // namespace tidepool

maria_declare_plugin(tidepool){
    MYSQL_STORAGE_ENGINE_PLUGIN,
    &tidepool::storage_engine,
    tidepool::ENGINE_NAME,
    "the Tidepool authors",
    "Transactions, row locks, crash safety, and a buffer pool that looks after itself",
    PLUGIN_LICENSE_GPL,
    tidepool::start,
    tidepool::stop,
    0x0001,
    tidepool::status_variables,
    tidepool::system_variables,
    "0.1",
    MariaDB_PLUGIN_MATURITY_GAMMA,
},
    tidepool::i_s::plugin(tidepool::i_s::BUFFER_POOL,
                          "The buffer pool: its size, where it is going, and why"),
    tidepool::i_s::plugin(tidepool::i_s::BUFFER_POOL_BY_INDEX,
                          "Which index has how many of its pages in the buffer pool"),
    tidepool::i_s::plugin(tidepool::i_s::TRX, "Transactions, and what each waits for"),
    tidepool::i_s::plugin(tidepool::i_s::LOCKS, "Locks of rows and of ranges, held and waited for"),
    tidepool::i_s::plugin(tidepool::i_s::CACHE_ADVICE,
                          "What other sizes of the buffer pool would bring"),
    tidepool::i_s::plugin(tidepool::i_s::MEMORY_DECISIONS,
                          "When and why the buffer pool got another size"),
    tidepool::i_s::plugin(tidepool::i_s::TABLE_FILES, "What the file of each table takes on disk"),
    tidepool::i_s::plugin(tidepool::i_s::DEADLOCKS, "The newest deadlocks, with all statements"),
    tidepool::i_s::plugin(tidepool::i_s::ENCRYPTION,
                          "How the file of each table is encrypted") maria_declare_plugin_end;
