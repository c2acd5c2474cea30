/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  The calls are those of the server's interface for instruments (mysql/psi). A server whose
  performance_schema is off answers them with functions that do nothing, and gives keys that are 0:
  then the engine gets no observer at all.
*/
#include "performance_schema.h"
#include "bridge.h"
#include "sysvars.h"
#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <string>

namespace tidepool {

namespace {

/* Of all instruments: thread/tidepool/cleaner. */
constexpr char CATEGORY[] = "tidepool";

/* ---- threads */

#ifdef HAVE_PSI_THREAD_INTERFACE

/*
  The instrument of the threads of this name, without what names of threads begin with: the
  instrument of "tidepool-words" is words. 0 if there is none, as where the performance_schema is
  off.
*/
PSI_thread_key instrument_of(std::string name) {
  static std::mutex mutex;
  static std::map<std::string, PSI_thread_key> instruments;
  if (const size_t dash = name.find('-'); dash != name.npos) name.erase(0, dash + 1);
  std::replace(name.begin(), name.end(), '-', '_');
  const std::lock_guard<std::mutex> guard(mutex);
  const auto [place, is_new] = instruments.emplace(name, 0);
  if (is_new) {
    PSI_thread_info info{&place->second, place->first.c_str(), 0};
    PSI_THREAD_CALL(register_thread)(CATEGORY, &info, 1);
  }
  return place->second;
}

void thread_begins(const char *name, size_t len) {
  try {
    PSI_thread *thread = PSI_THREAD_CALL(new_thread)(instrument_of({name, len}), nullptr, 0);
    PSI_THREAD_CALL(set_thread_os_id)(thread);
    PSI_THREAD_CALL(set_thread)(thread);
  } catch (const std::bad_alloc &) {
    /* It is not shown. */
  }
}

void thread_ends() { PSI_THREAD_CALL(delete_current_thread)(); }

void observe_threads() {
  if (instrument_of("tidepool-words") != 0) tp_set_thread_observer(thread_begins, thread_ends);
}

/* What a thread does is counted only if it is shown, and those that the engine starts for a few
   syncs are not: they are for the time of one operation. */
class Shown_for_operation {
  const bool is_new = !PSI_THREAD_CALL(get_thread)();

public:
  Shown_for_operation() {
    constexpr char NAME[] = "tidepool-sync";
    if (is_new) thread_begins(NAME, sizeof NAME - 1);
  }
  ~Shown_for_operation() {
    if (is_new) thread_ends();
  }
};

#else

void thread_begins(const char *, size_t) {}
void thread_ends() {}
void observe_threads() {}

#endif

/* ---- files */

#if defined(HAVE_PSI_FILE_INTERFACE) && defined(HAVE_PSI_THREAD_INTERFACE)

/* By tp_file_kind. */
PSI_file_key file_keys[TP_FILE_OTHER + 1];

void register_files() {
  PSI_file_info files[] = {
      {&file_keys[TP_FILE_TABLE], "table", 0}, {&file_keys[TP_FILE_REDO], "redo", 0},
      {&file_keys[TP_FILE_UNDO], "undo", 0},   {&file_keys[TP_FILE_SYSTEM], "system", 0},
      {&file_keys[TP_FILE_SORT], "sort", 0},   {&file_keys[TP_FILE_OTHER], "other", 0},
  };
  PSI_FILE_CALL(register_file)(CATEGORY, files, static_cast<int>(std::size(files)));
}

/* The name by which the server's table of files has it: a path. */
class Path {
  char path[FN_REFLEN];

public:
  Path(const char *name, size_t len) {
    const char *const dir = data_home_dir();
    const char *const base = test_if_hard_path(dir) ? "" : mysql_real_data_home;
    my_snprintf(path, sizeof path, "%s%s/%.*s", base, dir, static_cast<int>(len), name);
  }
  const char *get() const { return path; }
};

void *file_opened(const char *name, size_t len, int kind) {
  const Shown_for_operation shown;
  const Path path(name, len);
  PSI_file_locker_state state;
  PSI_file_locker *locker = PSI_FILE_CALL(get_thread_file_name_locker)(
      &state, file_keys[kind], PSI_FILE_OPEN, path.get(), &state);
  if (!locker) return nullptr;
  PSI_FILE_CALL(start_file_open_wait)(locker, __FILE__, __LINE__);
  /* Any result but null: it was opened. */
  return PSI_FILE_CALL(end_file_open_wait)(locker, &state);
}

void file_closed(void *file) {
  if (!file) return;
  const Shown_for_operation shown;
  PSI_file_locker_state state;
  PSI_file_locker *locker = PSI_FILE_CALL(get_thread_file_stream_locker)(
      &state, static_cast<PSI_file *>(file), PSI_FILE_CLOSE);
  if (!locker) return;
  PSI_FILE_CALL(start_file_close_wait)(locker, __FILE__, __LINE__);
  PSI_FILE_CALL(end_file_close_wait)(locker, 0);
}

void file_removed(const char *name, size_t len, int kind) {
  const Shown_for_operation shown;
  const Path path(name, len);
  PSI_file_locker_state state;
  PSI_file_locker *locker = PSI_FILE_CALL(get_thread_file_name_locker)(
      &state, file_keys[kind], PSI_FILE_DELETE, path.get(), &state);
  if (!locker) return;
  PSI_FILE_CALL(start_file_close_wait)(locker, __FILE__, __LINE__);
  PSI_FILE_CALL(end_file_close_wait)(locker, 0);
}

void file_operation(void *file, int operation, size_t bytes, void (*run)(void *), void *context) {
  constexpr PSI_file_operation OPERATIONS[] = {PSI_FILE_READ, PSI_FILE_WRITE, PSI_FILE_SYNC,
                                               PSI_FILE_CHSIZE};
  /* Not shown when it was opened. */
  if (!file) return run(context);
  const Shown_for_operation shown;
  PSI_file_locker_state state;
  PSI_file_locker *locker = PSI_FILE_CALL(get_thread_file_stream_locker)(
      &state, static_cast<PSI_file *>(file), OPERATIONS[operation]);
  if (!locker) return run(context);
  PSI_FILE_CALL(start_file_wait)(locker, bytes, __FILE__, __LINE__);
  run(context);
  PSI_FILE_CALL(end_file_wait)(locker, bytes);
}

void observe_files() {
  register_files();
  if (file_keys[TP_FILE_TABLE] != 0)
    tp_set_file_observer(file_opened, file_closed, file_removed, file_operation);
}

#else

void observe_files() {}

#endif

/* ---- stages */

/* By Stage. */
PSI_stage_info stages[] = {
    {0, "reading rows", PSI_FLAG_STAGE_PROGRESS},
    {0, "sorting and building indexes", PSI_FLAG_STAGE_PROGRESS},
    {0, "applying changes of other sessions", PSI_FLAG_STAGE_PROGRESS},
    {0, "exporting a table", PSI_FLAG_STAGE_PROGRESS},
    {0, "importing a table", PSI_FLAG_STAGE_PROGRESS},
    {0, "copying files to a backup", PSI_FLAG_STAGE_PROGRESS},
};

void register_stages() {
  PSI_stage_info *all[std::size(stages)];
  for (size_t i = 0; i < std::size(stages); i++) all[i] = &stages[i];
  mysql_stage_register(CATEGORY, all, static_cast<int>(std::size(all)));
}

} // namespace

void observe_engine() {
  observe_threads();
  observe_files();
  register_stages();
}

Observed_thread::Observed_thread(const char *name) { thread_begins(name, strlen(name)); }

Observed_thread::~Observed_thread() { thread_ends(); }

Shown_stage::Shown_stage(THD *thd, Stage stage) {
  thd->backup_stage(&before);
  next(stage);
}

Shown_stage::~Shown_stage() { mysql_set_stage(before.m_key); }

void Shown_stage::next(Stage stage) {
  progress = mysql_set_stage(stages[static_cast<size_t>(stage)].m_key);
}

void Shown_stage::reached(ulonglong done, ulonglong all) const {
  mysql_stage_set_work_completed(progress, MY_MIN(done, all));
  mysql_stage_set_work_estimated(progress, all);
}

} // namespace tidepool
