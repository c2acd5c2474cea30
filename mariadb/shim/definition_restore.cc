/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  At start, when the server has gone on or back with what its log of definition changes has: the
  files of the tables are compared with their images in the catalog.

  A file that is missing is written anew, at every start. The others are looked at only if the
  engine was not closed cleanly; else a file that differs is what somebody put there on purpose.
  After a crash:

      the file is the image                    nothing is to be done
  it differs, the image fits the engine's  the image is of the catalog's last commit, so the file is
  an older one, or cut
      tables                                   short: it is written anew
      it differs, and only the file fits, or   a statement that changes partitions was killed in the middle: the image, and the
  the image of before, or the one to come  file, are set to that
      neither fits                             nothing is done, and the error log says so
      a file of a table that the engine does   the table was dropped or renamed, or its CREATE was never acknowledged. Copies that
      not have                                 ALTER TABLE made go; other files get the extension .BAK, which DROP DATABASE knows

  Where force_recovery lets nothing be written, parts of the catalog may not have been read: files
  that are missing are written, and all others stay as and where they are.

  The options of a database are in the catalog, too, as they were when a table was created in it
  last, or at the last start: they are written if db.opt is missing or empty.

  An image fits if the engine has the table, or just the partitions that the .par image names.

  Before that, when the engine is opened, files of partitioned tables that are missing or not whole
  are written: without them the server can't find the partitions of a table that its log wants
  dropped or renamed. It syncs no .par file, so after a power cut the name may be there, and no
  bytes.
*/
#include "definition_files.h"
#include "ddl.h"
#include "engine.h"
#include "errors.h"
#include "foreign_key.h"
#include "server_versions.h"
#include "synced_names.h"
#include "sysvars.h"
#include "table_share.h"
#include <dirent.h>
#include <fcntl.h>
#include <map>
#include <set>
#include <sys/stat.h>

namespace tidepool {

namespace {

/* A table as the server knows it, and what the engine has of it. */
struct Stored_table {
  bool is_whole = false;
  std::set<std::string> partitions;
};
using Stored_tables = std::map<std::string, Stored_table>;

/* A .frm file or image, with the .par file or image beside it. */
struct Definition {
  std::string frm, par;
  bool has_frm = false, has_par = false;

  bool fits(const Stored_table &table) const {
    if (!is_frm_image(frm)) return false;
    if (table.is_whole) return true;
    std::vector<std::string> names;
    if (!has_par || !partition_names(par, &names)) return false;
    return std::set<std::string>(names.begin(), names.end()) == table.partitions;
  }
};

/* The server notes its own version in a .frm file when CHECK TABLE has looked at the table. */
constexpr size_t FRM_VERSION_AT = 51, FRM_VERSION_LEN = 4;

bool is_same(const Definition &a, const Definition &b) {
  if (a.par != b.par || a.frm.size() != b.frm.size()) return false;
  const size_t behind = FRM_VERSION_AT + FRM_VERSION_LEN;
  return a.frm.compare(0, FRM_VERSION_AT, b.frm, 0, FRM_VERSION_AT) == 0 &&
         (a.frm.size() < behind ||
          a.frm.compare(behind, std::string::npos, b.frm, behind, std::string::npos) == 0);
}

void take_table(void *context, const char *name, size_t len) {
  auto *tables = static_cast<Stored_tables *>(context);
  const std::string found(name, len);
  if (is_prefix(found.c_str(), TEMPORARY_PREFIX) || found.find('/') == std::string::npos) return;
  Stored_table &table = (*tables)[server_table_of(found)];
  const size_t separator = found.find(PARTITION_SEPARATOR);
  /* Partitions on their way in or out, of a statement that the server has not taken back
     or forth. */
  const auto is_on_its_way = [&](const char *mark) {
    return found.find(mark, separator) != std::string::npos;
  };
  if (separator == std::string::npos)
    table.is_whole = true;
  else if (!is_on_its_way("#TMP#") && !is_on_its_way("#REN#"))
    table.partitions.insert(found.substr(separator + sizeof PARTITION_SEPARATOR - 1));
}

Definition image_of(const std::string &name, Attachment_kind frm = FRM_IMAGE,
                    Attachment_kind par = PAR_IMAGE) {
  Definition image;
  image.has_frm = attachment(name, frm, &image.frm) == TP_OK;
  image.has_par = attachment(name, par, &image.par) == TP_OK;
  return image;
}

Definition files_of(const std::string &name) {
  Definition files;
  files.has_frm = read_file("./" + name + reg_ext, &files.frm);
  files.has_par = read_file("./" + name + PAR_EXTENSION, &files.par);
  return files;
}

bool is_there(const std::string &path) { return access(path.c_str(), F_OK) == 0; }

std::string directory_of(const std::string &name) { return "./" + name.substr(0, name.find('/')); }

/* Whole or not at all, and durable. */
bool write_file(const std::string &path, const std::string &bytes) {
  const std::string next = path + ".new";
  const int file = open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, my_umask);
  if (file < 0) return false;
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t len = write(file, bytes.data() + written, bytes.size() - written);
    if (len < 0 && errno == EINTR) continue;
    if (len <= 0) break;
    written += static_cast<size_t>(len);
  }
  bool done = written == bytes.size() && fsync(file) == 0;
  done = close(file) == 0 && done;
  return done && rename(next.c_str(), path.c_str()) == 0;
}

/* A name for messages. */
std::string shown(const std::string &name) {
  std::string db, table;
  server_names(name, &db, &table);
  return db + "." + table;
}

/* Whether there are options, which the server takes from now on. */
bool restore_options(const std::string &database) {
  const std::string directory = "./" + database, path = directory + "/" + OPTIONS_FILE;
  std::string options;
  if (attachment(options_name(database), DATABASE_OPTIONS, &options) != TP_OK) return false;
  if (!write_file(path, options) || !sync_directory(directory)) {
    sql_print_error("Tidepool: %s was lost, and can't be written (errno %d)", path.c_str(), errno);
    return false;
  }
  sql_print_warning("Tidepool: %s was lost: it is written anew, from the engine's catalog",
                    path.c_str());
  return true;
}

void make_directory_again(const std::string &database) {
  const bool has_options = restore_options(database);
  const char *const options =
      has_options ? "" : ", and its default character set is the server's now";
  sql_print_warning(
      "Tidepool: the directory of database %s was lost, and is made anew. "
      "Its triggers are lost%s",
      database.c_str(), options);
}

bool write_files(const std::string &name, const Definition &image, const char *why) {
  const std::string directory = directory_of(name), path = "./" + name;
  bool done = true;
  if (!is_there(directory)) {
    done = mkdir(directory.c_str(), my_umask_dir) == 0 && sync_directory(".");
    if (done) make_directory_again(database_of(name));
  }
  /* Without its .frm file, a .par file is of no table. */
  done = done && (!image.has_par || write_file(path + PAR_EXTENSION, image.par)) &&
         write_file(path + reg_ext, image.frm) && sync_directory(directory);
  if (done)
    sql_print_warning(
        "Tidepool: %s%s of table %s %s: it is written anew, from the engine's catalog",
        path.c_str(), reg_ext, shown(name).c_str(), why);
  else
    sql_print_error(
        "Tidepool: %s%s of table %s %s, and can't be written (errno %d): the table can't be opened "
        "until the next "
        "start that can write it",
        path.c_str(), reg_ext, shown(name).c_str(), why, errno);
  return done;
}

void keep_image_of(const std::string &name, const Definition &files) {
  Attachments attachments;
  attachments.set(name, FRM_IMAGE, files.frm);
  if (files.has_par) attachments.set(name, PAR_IMAGE, files.par);
  tp_catalog_change change{};
  change.attached = *attachments.get();
  if (const int result = tp_change_tables(engine.db, &change)) server_error(result, nullptr);
}

/* The engine that a .frm file names, of the partitions if there are some; empty if it
   is unknown. */
std::string engine_of(const std::string &frm) {
  constexpr uchar EXTRA_PARTITIONS_ENGINE = 1;
  if (!is_frm_image(frm)) return {};
  const auto *bytes = reinterpret_cast<const uchar *>(frm.data());
  const std::string of_partitions = frm_property(frm, EXTRA_PARTITIONS_ENGINE);
  if (!of_partitions.empty()) return of_partitions;
  const size_t key_length =
      uint2korr(bytes + 14) == 0xffff ? uint4korr(bytes + 47) : uint2korr(bytes + 14);
  size_t next = uint2korr(bytes + 6) + key_length + uint2korr(bytes + 16);
  if (next + 2 > frm.size()) return {};
  next += 2 + uint2korr(bytes + next); /* the connect string */
  if (next + 2 > frm.size()) return {};
  const size_t len = uint2korr(bytes + next);
  return next + 2 + len > frm.size() ? std::string() : frm.substr(next + 2, len);
}

/* The file of another engine's table, or of a view, in the place of ours. The server has it from a
   statement that it executed without the plugin, or while our file was gone; or a power cut has
   brought it back that an acknowledged ALTER TABLE … ENGINE=Tidepool had replaced. */
bool is_of_another(const std::string &frm) {
  constexpr char VIEW[] = "TYPE=VIEW\n";
  if (is_prefix(frm.c_str(), VIEW)) return true;
  const std::string found = engine_of(frm);
  return !found.empty() && !is_same_name(found.c_str(), ENGINE_NAME);
}

/* Gives our tables other names where the server has something else under theirs, and returns those
   for which that failed. After a crash InnoDB has removed the file of a table that it has not, so
   with the file the table is there; other files may be what a power cut has brought back. */
std::set<std::string> make_way(const Stored_tables &tables, bool only_missing) {
  std::set<std::string> failed;
  for (const auto &table : tables) {
    const std::string &name = table.first, path = "./" + name;
    if (!only_missing && !is_there(path + ".ibd")) continue;
    std::string frm, aside;
    if (!read_file(path + reg_ext, &frm) || !is_of_another(frm)) continue;
    if (const int result = make_way_for(name, &aside); result != TP_OK) {
      server_error(result, nullptr);
      failed.insert(name);
      sql_print_error(
          "Tidepool: %s%s is of another engine's table, or of a view, and the engine has a table "
          "of this name, too, which can't get another one",
          path.c_str(), reg_ext);
      continue;
    }
    sql_print_warning(
        "Tidepool: %s%s is of another engine's table, or of a view: table %s was dropped while the "
        "plugin was not loaded, or lost its file. The engine still has it. It is %s now, until "
        "you drop it",
        path.c_str(), reg_ext, shown(name).c_str(), shown(aside).c_str());
  }
  return failed;
}

void restore_table(const std::string &name, const Stored_table &table, bool only_missing) {
  const bool is_partitioned = !table.is_whole;
  const std::string path = "./" + name;
  if (only_missing && is_there(path + reg_ext) &&
      (!is_partitioned || is_there(path + PAR_EXTENSION)))
    return;
  const Definition image = image_of(name);
  Definition files = files_of(name);
  if (!only_missing && !is_partitioned && files.has_par) {
    /* Its partitions were removed. */
    if (unlink((path + PAR_EXTENSION).c_str()) == 0) sync_directory(directory_of(name));
    files.par.clear();
    files.has_par = false;
  }
  const bool is_missing = !files.has_frm || (is_partitioned && !files.has_par);
  if (!is_missing && (only_missing || (is_same(image, files) && image.fits(table)))) return;
  const char *const why = is_missing                ? "was lost"
                          : is_frm_image(files.frm) ? "was not the last one"
                                                    : "was not whole";
  if (files.has_frm && is_of_another(files.frm) &&
      rename((path + reg_ext).c_str(), (path + reg_ext + ".BAK").c_str()) == 0)
    sql_print_warning(
        "Tidepool: %s%s was of another engine's table, or of a view. The file is %s%s.BAK now",
        path.c_str(), reg_ext, path.c_str(), reg_ext);
  if (image.fits(table)) {
    write_files(name, image, why);
    return;
  }
  if (!is_missing && files.fits(table)) {
    keep_image_of(name, files);
    return;
  }
  for (const Definition &other : {image_of(name, FORMER_FRM_IMAGE, FORMER_PAR_IMAGE),
                                  image_of(name, COMING_FRM_IMAGE, COMING_PAR_IMAGE)})
    if (other.fits(table)) {
      if (write_files(name, other, why)) keep_image_of(name, other);
      return;
    }
  /* Without a .frm file it is of no table; it would stand in the way of DROP DATABASE. */
  if (!files.has_frm && files.has_par && !is_forced_read_only())
    rename((path + PAR_EXTENSION).c_str(), (path + PAR_EXTENSION + ".BAK").c_str());
  /* report_left_behind() reports copies by ALTER TABLE. */
  if (!is_intermediate(name))
    sql_print_error(
        "Tidepool: %s%s of table %s %s, and the engine's catalog has no image that fits: restore "
        "the file from a backup",
        path.c_str(), reg_ext, shown(name).c_str(), why);
}

/*
  The options of databases that have tables. The server changes them without a call to the engine,
  so a file that is there is taken for newer than its image. It does not sync the file, so that may
  be empty after a power cut.
*/
void restore_all_options(const Stored_tables &tables) {
  std::set<std::string> databases;
  for (const auto &table : tables) databases.insert(database_of(table.first));
  for (const std::string &database : databases) {
    std::string options, image;
    if (!read_file("./" + database + "/" + OPTIONS_FILE, &options) || options.empty()) {
      restore_options(database);
      continue;
    }
    const std::string name = options_name(database);
    if (attachment(name, DATABASE_OPTIONS, &image) == TP_OK && image == options) continue;
    Attachments attachments;
    attachments.set(name, DATABASE_OPTIONS, options);
    tp_catalog_change change{};
    change.attached = *attachments.get();
    /* An engine that may only read keeps what it has. */
    tp_change_tables(engine.db, &change);
  }
}

bool is_ours(const std::string &path) {
  std::string frm;
  return read_file(path, &frm) && is_same_name(engine_of(frm).c_str(), ENGINE_NAME);
}

std::vector<std::string> entries_of(const std::string &directory) {
  std::vector<std::string> names;
  if (DIR *open = opendir(directory.c_str())) {
    while (const dirent *entry = readdir(open))
      if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    closedir(open);
  }
  return names;
}

bool ends_with(const std::string &text, const std::string &end) {
  return text.size() > end.size() &&
         text.compare(text.size() - end.size(), std::string::npos, end) == 0;
}

/* The table that a .TRN file names, which has the name of a trigger. */
std::string table_of_trigger(const std::string &path) {
  constexpr char MARK[] = "\ntrigger_table=";
  std::string text;
  if (!read_file(path, &text)) return {};
  const size_t at = text.find(MARK);
  if (at == std::string::npos) return {};
  const size_t start = at + sizeof MARK - 1, end = text.find('\n', start);
  return end == std::string::npos ? std::string() : text.substr(start, end - start);
}

/* Triggers of a table that is no more: else a new table of that name would have them. */
void put_triggers_aside(const std::string &name) {
  const std::string file = "./" + name + TRIGGERS_EXTENSION, directory = directory_of(name) + "/";
  if (!is_there(file)) return;
  std::string db, table;
  server_names(name, &db, &table);
  for (const std::string &entry : entries_of(directory))
    if (ends_with(entry, TRIGGER_EXTENSION) && table_of_trigger(directory + entry) == table)
      rename((directory + entry).c_str(), (directory + entry + ".BAK").c_str());
  if (rename(file.c_str(), (file + ".BAK").c_str()) == 0)
    sql_print_warning(
        "Tidepool: %s has the triggers of a table that the engine does not have. "
        "The file is %s.BAK now",
        file.c_str(), file.c_str());
}

/* A table's files that are of no table any more. */
void put_aside(const std::string &name) {
  const std::string path = "./" + name;
  const bool is_copy = is_intermediate(name);
  for (const std::string &file : {path + reg_ext, path + PAR_EXTENSION}) {
    if (!is_there(file)) continue;
    if (is_copy ? unlink(file.c_str()) : rename(file.c_str(), (file + ".BAK").c_str())) {
      sql_print_error("Tidepool: %s is of no table, and can't be moved (errno %d): remove it",
                      file.c_str(), errno);
      return;
    }
  }
  if (is_copy) return;
  put_triggers_aside(name);
  sql_print_warning(
      "Tidepool: %s%s was of a table that the engine does not have: the table was "
      "dropped or renamed, or its CREATE was not finished when the server ended. "
      "The file is %s%s.BAK now",
      path.c_str(), reg_ext, path.c_str(), reg_ext);
}

/* Files of tables that the engine does not have. What is no database has no .frm files of ours. */
template <typename Take>
void for_each_stranger(const Stored_tables &tables, const Take &take) {
  for (const std::string &database : entries_of(".")) {
    for (const std::string &file : entries_of("./" + database)) {
      const bool is_par = ends_with(file, PAR_EXTENSION);
      if (!is_par && !ends_with(file, reg_ext)) continue;
      const std::string name = database + "/" + file.substr(0, file.size() - 4), path = "./" + name;
      if (tables.count(name)) continue;
      /* Another engine's .par file has its .frm file beside it. */
      if (is_par ? is_there(path + reg_ext) : !is_ours(path + reg_ext)) continue;
      take(name, file);
    }
  }
}

/* After a crash. */
void clear_strangers(const Stored_tables &tables) {
  for_each_stranger(tables, [](const std::string &name, const std::string &) { put_aside(name); });
  /* What the server has changed while it went on or back is not synced either. */
  for (const std::string &database : entries_of(".")) sync_directory("./" + database);
  sync_directory(".");
}

/* Where nothing is written, what can't be read of the catalog is passed over, and what the log has
   of it may be missing. So a table that seems not to be there may be. */
void report_strangers(const Stored_tables &tables) {
  size_t count = 0;
  std::string first;
  for_each_stranger(tables, [&](const std::string &name, const std::string &file) {
    if (!count++) first = directory_of(name) + "/" + file;
  });
  if (!count) return;
  sql_print_warning(
      "Tidepool: %zu files of definitions, the first of which is %s, are of tables that the engine "
      "does not have, or whose place in the catalog it could not read. As tidepool_force_recovery "
      "lets nothing be written, they stay where they are",
      count, first.c_str());
}

} // namespace

void restore_partitioned_files() {
  if (tp_was_clean(engine.db)) return;
  Stored_tables tables;
  if (tp_table_names(engine.db, &tables, take_table) != TP_OK) return;
  for (const auto &table : tables) {
    if (table.second.is_whole) continue;
    Definition files = files_of(table.first);
    if (is_of_another(files.frm)) continue;
    const bool has_frm = is_frm_image(files.frm), has_par = is_par_image(files.par);
    if (has_frm && has_par) continue;
    const Definition image = image_of(table.first);
    if (!is_frm_image(image.frm) || !is_par_image(image.par)) continue;
    /* What is whole stays: it may be newer than the image. */
    if (!has_frm) files.frm = image.frm;
    if (!has_par) files.par = image.par;
    files.has_frm = files.has_par = true;
    write_files(table.first, files, "was lost, or was not whole");
  }
}

void restore_definitions() {
  Stored_tables tables;
  if (tp_table_names(engine.db, &tables, take_table) != TP_OK) return;
  const bool was_clean = tp_was_clean(engine.db), is_read_only = is_forced_read_only(),
             only_missing = was_clean || is_read_only;
  const std::set<std::string> stay = make_way(tables, only_missing);
  tables.clear();
  if (tp_table_names(engine.db, &tables, take_table) != TP_OK) return;
  for (const auto &table : tables)
    if (!stay.count(table.first)) restore_table(table.first, table.second, only_missing);
  restore_all_options(tables);
  if (is_read_only)
    report_strangers(tables);
  else if (!was_clean)
    clear_strangers(tables);
}

void restore_par_file(const std::string &table) {
  const std::string path = "./" + table + PAR_EXTENSION;
  std::string image;
  if (is_there(path) || attachment(table, PAR_IMAGE, &image) != TP_OK) return;
  if (!write_file(path, image) || !sync_directory(directory_of(table)))
    sql_print_error("Tidepool: %s can't be written (errno %d): the next start writes it",
                    path.c_str(), errno);
}

} // namespace tidepool
