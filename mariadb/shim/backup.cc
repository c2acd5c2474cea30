/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  A backup in the server's order of things:

    tables         are copied, for as long as that takes; nothing waits
    definitions    are copied while statements that change some wait, and those that write to tables
                   without transactions, as in BACKUP STAGE BLOCK_DDL
    the end        while commits wait, as in BACKUP STAGE BLOCK_COMMIT: a log's rest, and where the binary log is

  A lock against commits waits for writes to tables without transactions too, however long they take,
  and commits wait behind its request. So these writes are waited for before, by a lock that lets
  commits through.

  Since no commit is under way at the end, none is prepared with its fate in the binary log, which
  is not in the backup; and the position there is that of the backup, so a replica can begin with
  both. What waits on a replica for earlier commits may be prepared, before it is in the binary log:
  the first start of the backup rolls it back (roll_back_unlogged).
*/
#include "backup.h"
#include "engine.h"
#include "errors.h"
#include "named_path.h"
#include "progress.h"
#include "sysvars.h"
#include "table_share.h"
#include "tztime.h"

namespace tidepool {

namespace {

/* One of the server's locks against what other statements do; given back at the end. */
class Backup_lock {
  THD *thd;
  MDL_request request;

public:
  explicit Backup_lock(THD *session) : thd(session) { request.ticket = nullptr; }
  Backup_lock(const Backup_lock &) = delete;
  Backup_lock &operator=(const Backup_lock &) = delete;
  ~Backup_lock() { give_back(); }

  void give_back() {
    if (request.ticket) thd->mdl_context.release_lock(request.ticket);
    request.ticket = nullptr;
  }

  /* True, and the statement has its error, if it could not be had. */
  bool take(enum_mdl_type type) {
    MDL_REQUEST_INIT(&request, MDL_key::BACKUP, "", "", type, MDL_EXPLICIT);
    return thd->mdl_context.acquire_lock(&request, thd->variables.lock_wait_timeout);
  }

  /* The same, of a lock that is held, for one against more. */
  bool raise(enum_mdl_type type) {
    return thd->mdl_context.upgrade_shared_lock(request.ticket, type,
                                                thd->variables.lock_wait_timeout);
  }
};

constexpr int DEADLOCK_TRIES = 6;

/* Waits for writes to tables without transactions, then for changes of definitions, and holds both
   back. A statement that does one inside the other (CREATE TABLE … SELECT) may wait for us as we
   wait for it: then it goes first. */
bool hold_back_writes(THD *thd, Backup_lock *writes, Backup_lock *definitions) {
  ulong pause_us = 1000;
  for (int tries = 1;; tries++, pause_us *= 5) {
    if (!writes->take(MDL_BACKUP_WAIT_FLUSH) && !definitions->take(MDL_BACKUP_BLOCK_DDL))
      return false;
    if (thd->get_stmt_da()->sql_errno() != ER_LOCK_DEADLOCK || thd->killed ||
        tries == DEADLOCK_TRIES)
      return true;
    thd->clear_error();
    writes->give_back();
    my_sleep(pause_us);
  }
}

int go_on(void *context, uint64_t copied, uint64_t total) {
  return static_cast<const Progress *>(context)->reached(copied, total);
}

bool report(THD *thd, int result) {
  if (result == TP_OK) return false;
  if (result == TP_INTERRUPTED && thd->killed) {
    thd->send_kill_message();
    return true;
  }
  String text = last_error_text();
  my_printf_error(ER_GET_ERRMSG, "Tidepool: no backup was made: %s", MYF(0), text.c_ptr_safe());
  return true;
}

/* Of which moment the backup is. Commits wait. */
String describe(THD *thd) {
  String info;
  info.append(STRING_WITH_LEN("server_version = "));
  info.append(server_version, strlen(server_version));
  char time[MAX_DATE_STRING_REP_LENGTH];
  MYSQL_TIME now;
  thd->variables.time_zone->gmt_sec_to_TIME(&now, my_time(0));
  info.append(STRING_WITH_LEN("\nfinished_at = "));
  info.append(time, my_datetime_to_str(&now, time, 0));
  if (mysql_bin_log.is_open()) {
    LOG_INFO at;
    mysql_bin_log.get_current_log(&at);
    info.append(STRING_WITH_LEN("\nbinlog_file = "));
    const char *name = at.log_file_name + dirname_length(at.log_file_name);
    info.append(name, strlen(name));
    info.append(STRING_WITH_LEN("\nbinlog_position = "));
    info.append_ulonglong(at.pos);
    info.append(STRING_WITH_LEN("\ngtid_binlog_pos = "));
    String gtid;
    if (!mysql_bin_log.append_state_pos(&gtid)) info.append(gtid);
  }
  info.append('\n');
  return info;
}

bool copy(THD *thd, tp_backup *backup) {
  Progress progress(thd, "Copying Tidepool's tables to a backup", Stage::BACKING_UP);
  if (report(thd, tp_backup_copy(backup, &progress, go_on))) return true;
  Backup_lock writes(thd), definitions(thd);
  if (hold_back_writes(thd, &writes, &definitions) ||
      report(thd,
             tp_backup_definitions(backup, mysql_real_data_home, strlen(mysql_real_data_home))))
    return true;
  /* Most of what was added to the log since, so that commits wait for little. */
  if (report(thd, tp_backup_copy(backup, &progress, go_on))) return true;
  if (writes.raise(MDL_BACKUP_WAIT_COMMIT)) return true;
  const String info = describe(thd);
  return report(thd, tp_backup_finish(backup, info.ptr(), info.length()));
}

/* Backups under way, and when the last one was complete, in seconds since 1970 (0 = none since the
   start). */
std::atomic<uint> running{0};
std::atomic<time_t> last{0};

void count_table(void *context, const char *name, size_t len) {
  const std::string table(name, len);
  if (!is_prefix(table.c_str(), TEMPORARY_PREFIX)) ++*static_cast<size_t *>(context);
}

} // namespace

/*
  At BACKUP STAGE START, which mariadb-backup begins with: it copies all .frm files, the data of the
  engines that it knows, and says "completed OK". (Our own backup takes locks, but no stage.)
*/
void warn_of_other_backup() {
  if (running) return;
  size_t tables = 0;
  if (tp_table_names(engine.db, &tables, count_table) != TP_OK || !tables) return;
  char made[64] = "none was made since the start";
  if (const time_t at = last) {
    tm local;
    localtime_r(&at, &local);
    strftime(made, sizeof made, "the last one was complete at %F %T", &local);
  }
  const ulonglong connection = current_thd ? thd_get_thread_id(current_thd) : 0;
  sql_print_warning(
      "Tidepool: connection %llu begins a backup by BACKUP STAGE. If that is "
      "mariadb-backup, none of the data of the %zu tables of Tidepool is in it, though "
      "it ends with \"completed OK\". They are backed up by SET GLOBAL "
      "tidepool_backup_to = '<directory>'; %s",
      connection, tables, made);
}

bool back_up(THD *thd, const char *named) {
  /* In a data directory it would be taken for a database, and be part of the next backup. */
  std::string dir, base;
  if (!may_use_path(thd, "tidepool_backup_to", named, &dir)) return true;
  const char *from = session_backup_incremental_from(thd);
  if (!from) from = "";
  if (*from && !may_use_path(thd, "tidepool_backup_incremental_from", from, &base)) return true;
  const tp_backup_place place{dir.data(), dir.size(), *from ? base.data() : nullptr, base.size()};
  tp_backup *backup = nullptr;
  if (report(thd, tp_backup_begin(engine.db, &place, &backup))) return true;
  running++;
  const bool failed = copy(thd, backup);
  tp_backup_free(backup);
  running--;
  if (failed) return true;
  last = time(nullptr);
  const char *kind = *from ? "an incremental" : "a complete";
  sql_print_information("Tidepool: %s backup was made in '%s'", kind, dir.c_str());
  return false;
}

} // namespace tidepool
