/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "synced_names.h"
#include "definition_files.h"
#include "engine.h"
#include "foreign_key.h"
#include "session.h"
#include <fcntl.h>
#include <mutex>
#include <set>

namespace tidepool {

bool sync_directory(const std::string &path) {
  const int directory = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return false;
  const bool synced = fsync(directory) == 0;
  close(directory);
  return synced;
}

/* A directory that is gone has no names to keep. */
static void sync_or_warn(const std::string &directory) {
  if (sync_directory(directory) || errno == ENOENT) return;
  sql_print_warning(
      "Tidepool: the directory %s can't be synced (errno %d): a power cut may bring "
      "files there back that were renamed or removed, or take new ones",
      directory.c_str(), errno);
}

void sync_at_end_of_statement(THD *thd, const std::string &directory) {
  /* While the server goes on or back after a crash, there is no statement. The end of that syncs
     all directories (definition_restore.cc). */
  if (!thd || !mysqld_server_started) return;
  Session *session = session_of(thd);
  if (!session) return;
  give_away_if_parted(session);
  session->unsynced.insert(directory);
  trans_register_ha(thd, false, engine.hton, 0);
}

void sync_triggers_at_end(THD *thd, const std::string &table) {
  const std::string path = "./" + server_table_of(table) + TRIGGERS_EXTENSION;
  if (access(path.c_str(), F_OK) == 0) sync_at_end_of_statement(thd, "./" + database_of(table));
}

void sync_names(Session *session) {
  if (likely(session->unsynced.empty())) return;
  for (const std::string &directory : session->unsynced) sync_or_warn(directory);
  session->unsynced.clear();
}

static std::mutex changed_mutex;
static std::set<std::string> changed;

void note_changed_names(const std::string &database) {
  std::lock_guard<std::mutex> guard(changed_mutex);
  changed.insert(database);
}

void sync_changed_names() {
  std::lock_guard<std::mutex> guard(changed_mutex);
  if (changed.empty()) return;
  for (const std::string &database : changed) sync_or_warn("./" + database);
  sync_or_warn(".");
  changed.clear();
}

} // namespace tidepool
