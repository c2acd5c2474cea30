/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  One table moves between servers: FLUSH TABLES … FOR EXPORT, ALTER TABLE … DISCARD TABLESPACE and
  … IMPORT TABLESPACE.

  FLUSH TABLES locks the table against writes, and the engine writes all its rows to one file in the
  database's directory, db/t.tpx (decision 30). The file is whole and durable when the statement
  ends, and removed by UNLOCK TABLES. IMPORT reads such a file, which has the table's name here, and
  removes it when its rows are the table's.

  Definitions are compared as text (table_definition.h), and the layouts by their fingerprint, as at
  each opening of a table. The rows may be of versions that the table here never had: it takes the
  list of versions over, and which tree belongs to which key. Foreign keys stay those of the table
  here.

  Paths: the directory is the database's, the file's name is the table's, in the encoding of file
  names, which has no slash. A link in the place of the file is not followed.
*/
#include "ddl.h"
#include "description.h"
#include "engine.h"
#include "errors.h"
#include "ha_tidepool.h"
#include "progress.h"
#include "synced_names.h"
#include "table_definition.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

using namespace tidepool;

namespace {

/* Of an export by the entries that it writes, of an import by the bytes that it reads. */
struct Export_progress {
  Progress shown;
  uint64 entries, bytes; /* in all; 0: unknown */

  static int go_on(void *context, uint64_t entries_done, uint64_t bytes_done) {
    const auto *self = static_cast<Export_progress *>(context);
    return self->bytes ? self->shown.reached(bytes_done, self->bytes)
                       : self->shown.reached(entries_done, self->entries);
  }
};

std::string file_of(const std::string &name) { return name + EXPORT_EXT; }

std::string path_of(const std::string &name) {
  return std::string(mysql_real_data_home) + file_of(name);
}

/* The statement's error, with the text of the engine's last one. */
int report(THD *thd, int result, const char *what) {
  if (result == TP_INTERRUPTED && thd->killed) {
    thd->send_kill_message();
    return REPORTED;
  }
  String text = last_error_text();
  sql_print_error("Tidepool: %s: %s", what, text.c_ptr_safe());
  my_printf_error(ER_GET_ERRMSG, "Tidepool: %s: %s", MYF(0), what, text.c_ptr_safe());
  return REPORTED;
}

int report_file(const std::string &name, const char *what, int error) {
  const std::string file = file_of(name);
  my_printf_error(ER_GET_ERRMSG, "Tidepool: %s can't be %s: %s", MYF(0), file.c_str(), what,
                  strerror(error));
  return REPORTED;
}

struct Exported_index {
  std::string name;
  bool is_unique;
};

void take_index(void *context, const char *name, size_t len, uint8_t is_unique) {
  static_cast<std::vector<Exported_index> *>(context)->push_back(
      {std::string(name, len), is_unique != 0});
}

struct Free_export {
  void operator()(tp_export *exported) const { tp_export_free(exported); }
};
using Export = std::unique_ptr<tp_export, Free_export>;

int mismatch(const std::string &why) {
  my_error(ER_TABLE_SCHEMA_MISMATCH, MYF(0), why.c_str());
  return REPORTED;
}

/* The metadata that the table has after the import; without foreign keys. An error that was
   reported, or 0. */
int metadata_of_export(const TABLE *table, const tp_export *exported, std::string *metadata) {
  tp_exported header;
  tp_export_header(exported, &header);
  Table_definition theirs;
  if (!theirs.get(header.description.data, header.description.len))
    return mismatch("the export is not one of a MariaDB server, or of a newer Tidepool");
  const std::string difference = Table_definition(table).difference(theirs);
  if (!difference.empty()) return mismatch(difference);

  std::vector<Exported_index> indexes;
  tp_export_indexes(exported, &indexes, take_index);
  std::vector<std::string> names;
  for (const Exported_index &index : indexes) names.push_back(index.name);
  Metadata has;
  if (!has.get(header.metadata.data, header.metadata.len))
    return mismatch("the export is of a newer Tidepool: upgrade this server");
  const std::unique_ptr<Layouts> layouts = Layouts::by_names(table->s, table->key_info, names);
  bool fits = layouts && has.fingerprint == layouts->fingerprint() &&
              has.has_spatial == layouts->has_spatial && layouts->row->set_versions(has.versions) &&
              layouts->set_fulltext(has.fulltext);
  for (size_t tree = 0; fits && tree < indexes.size(); tree++)
    fits = indexes[tree].is_unique == layouts->trees[tree].is_unique();
  if (!fits)
    return mismatch(
        "rows and keys of the export are stored in another way than those of a table "
        "that this server makes of the same definition");
  *metadata = has.put();
  return 0;
}

} // namespace

void tidepool::remove_exports(const char *directory) {
  DIR *const entries = opendir(directory);
  if (!entries) return;
  constexpr size_t EXT_LEN = sizeof EXPORT_EXT - 1;
  while (const dirent *entry = readdir(entries)) {
    const size_t len = strlen(entry->d_name);
    if (len > EXT_LEN && !strcmp(entry->d_name + len - EXT_LEN, EXPORT_EXT))
      unlinkat(dirfd(entries), entry->d_name, 0);
  }
  closedir(entries);
}

/* Under the lock of FLUSH TABLES … FOR EXPORT. */
int ha_tidepool::begin_export() {
  THD *thd = ha_thd();
  const std::string &name = shared->name;
  if (table_share->tmp_table != NO_TMP_TABLE) {
    my_printf_error(ER_GET_ERRMSG, "Tidepool: a temporary table can't be exported", MYF(0));
    return REPORTED;
  }
  if (has_tables_of_indexes(table_share)) return report_vector_index();
  if (tp_table_is_discarded(shared->table)) return HA_ERR_TABLESPACE_MISSING;
  const std::string path = path_of(name);
  /* Of an earlier export, which a crash ended. */
  if (unlink(path.c_str()) && errno != ENOENT) return report_file(name, "removed", errno);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                        static_cast<mode_t>(my_umask));
  if (fd < 0) return report_file(name, "made", errno);
  exports = true;
  const std::string file = file_of(name), description = Table_definition(table).put();
  const auto bytes = [](const std::string &text) {
    return tp_bytes{reinterpret_cast<const uint8_t *>(text.data()), text.size()};
  };
  const tp_export_file to{fd, bytes(file), bytes(description)};
  const uint64 entries = tp_table_rows(shared->table) * trees().size();
  int result;
  {
    Export_progress progress{{thd, "Exporting a table of Tidepool", Stage::EXPORTING}, entries, 0};
    result = tp_export_table(engine.db, name.data(), name.size(), &to, &progress,
                             Export_progress::go_on);
  }
  ::close(fd);
  if (result == TP_OK && sync_directory("./" + database_of(name))) return 0;
  const int errno_of_sync = errno;
  end_export();
  if (result == TP_OK) return report_file(name, "made durable", errno_of_sync);
  return report(thd, result, "the table was not exported");
}

void ha_tidepool::end_export() {
  if (!exports) return;
  exports = false;
  const std::string path = path_of(shared->name);
  if (unlink(path.c_str()) && errno != ENOENT)
    sql_print_warning("Tidepool: %s can't be removed: %s", path.c_str(), strerror(errno));
}

int ha_tidepool::report_vector_index() {
  my_printf_error(ER_GET_ERRMSG,
                  "Tidepool: a table with a VECTOR index can't be exported or imported: drop the "
                  "index, and add it again afterwards",
                  MYF(0));
  return REPORTED;
}

int ha_tidepool::discard_or_import_tablespace(my_bool discard) {
  if (table_share->tmp_table != NO_TMP_TABLE) {
    my_error(ER_CANNOT_DISCARD_TEMPORARY_TABLE, MYF(0));
    return REPORTED;
  }
  if (has_tables_of_indexes(table_share)) return report_vector_index();
  return discard ? discard_rows() : import_rows();
}

int ha_tidepool::discard_rows() {
  const Merges_paused alone(shared);
  THD *thd = ha_thd();
  const std::string &name = shared->name;
  if (tp_table_is_discarded(shared->table)) {
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_TABLESPACE_DISCARDED,
                        ER_THD(thd, ER_TABLESPACE_DISCARDED), table_share->table_name.str);
    return 0;
  }
  /* As InnoDB: the rows of children would have no parents. */
  if (!thd_test_options(thd, OPTION_NO_FOREIGN_KEY_CHECKS))
    for (const Constraint_ptr &key : foreign_keys.of_parent(name))
      if (key->child != name) {
        if (Session *of = session_of(thd)) of->violated = foreign_key_of_table(thd, *key);
        return HA_ERR_ROW_IS_REFERENCED;
      }
  const int result = tp_discard_table(engine.db, name.data(), name.size());
  return result == TP_OK ? use_other_rows() : fail(result);
}

int ha_tidepool::import_rows() {
  const Merges_paused alone(shared);
  THD *thd = ha_thd();
  const std::string &name = shared->name;
  if (!tp_table_is_discarded(shared->table)) {
    my_error(ER_TABLESPACE_EXISTS, MYF(0), table_share->table_name.str);
    return REPORTED;
  }
  const std::string path = path_of(name), file = file_of(name);
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) {
    my_error(ER_TABLESPACE_MISSING, MYF(0), table_share->table_name.str);
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_GET_ERRMSG,
                        "Tidepool: there is no %s in the server's data directory: copy the export "
                        "there",
                        file.c_str());
    return REPORTED;
  }
  if (fd < 0) return report_file(name, "opened", errno);
  struct stat status;
  if (fstat(fd, &status) || !S_ISREG(status.st_mode)) {
    ::close(fd);
    return report_file(name, "read", EINVAL);
  }
  tp_export *opened;
  int result = tp_export_open(fd, file.data(), file.size(), &opened);
  constexpr char WHAT[] = "the table was not imported";
  if (result != TP_OK) return report(thd, result, WHAT);
  Export exported(opened);
  std::string metadata;
  if (const int error = metadata_of_export(table, opened, &metadata)) return error;
  metadata = metadata_with(metadata, foreign_keys.of_child(name));
  tp_exported header;
  tp_export_header(opened, &header);
  {
    Export_progress progress{
        {thd, "Importing a table of Tidepool", Stage::IMPORTING}, 0, header.file_bytes};
    result = tp_import_table(engine.db, name.data(), name.size(), exported.release(),
                             {reinterpret_cast<const uint8_t *>(metadata.data()), metadata.size()},
                             &progress, Export_progress::go_on);
  }
  if (result != TP_OK) return report(thd, result, WHAT);
  if (unlink(path.c_str()) && errno != ENOENT)
    sql_print_warning("Tidepool: %s is imported, and can't be removed: %s", path.c_str(),
                      strerror(errno));
  const int error = use_other_rows();
  if (!error) refresh_description(thd, name, table);
  return error;
}

/* The table has another file, and perhaps its trees in another order. No other session has it
   open. */
int ha_tidepool::use_other_rows() {
  if (const int error = shared->reload(table)) return error;
  {
    std::lock_guard<std::mutex> guard(foreign_keys.definitions);
    foreign_keys.touch(shared->name);
  }
  plan_known = false;
  return open_reader();
}
