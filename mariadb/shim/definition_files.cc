/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "definition_files.h"
#include "engine.h"
#include "errors.h"
#include "foreign_key.h"
#include "synced_names.h"
#include "table_share.h"
#include <algorithm>
#include <fcntl.h>

namespace tidepool {

std::string server_table_of(const std::string &name) {
  return name.substr(0, name.find(PARTITION_SEPARATOR));
}

/* ---- files */

namespace {
enum class Reading { AS_IT_IS, SYNCED };

bool read_whole(const std::string &path, Reading how, std::string *bytes) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  bytes->clear();
  char room[16384];
  ssize_t len;
  while ((len = read(file, room, sizeof room)) > 0) bytes->append(room, static_cast<size_t>(len));
  const bool done = len == 0 && (how == Reading::AS_IT_IS || fsync(file) == 0);
  close(file);
  return done;
}

/* The server does not sync the bytes of a new .par file. */
bool read_par_file(const std::string &path, std::string *bytes) {
  return read_whole(path + PAR_EXTENSION, Reading::SYNCED, bytes) && is_par_image(*bytes);
}

constexpr size_t FRM_HEADER = 64, FRM_EXTRA_LENGTH_AT = 4, FRM_LENGTH_AT = 10;

const uchar *at(const std::string &bytes, size_t offset) {
  return reinterpret_cast<const uchar *>(bytes.data()) + offset;
}
} // namespace

bool read_file(const std::string &path, std::string *bytes) {
  return read_whole(path, Reading::AS_IT_IS, bytes);
}

bool is_frm_image(const std::string &bytes) {
  return bytes.size() > FRM_HEADER && *at(bytes, 0) == 254 && *at(bytes, 1) == 1 &&
         uint4korr(at(bytes, FRM_LENGTH_AT)) == bytes.size();
}

/* Behind the header: number, length (a byte, or 0 and two bytes), value. */
std::string frm_property(const std::string &frm, uchar which) {
  if (!is_frm_image(frm)) return {};
  const size_t end = MY_MIN(frm.size(), FRM_HEADER + uint2korr(at(frm, FRM_EXTRA_LENGTH_AT)));
  for (size_t next = FRM_HEADER; next + 2 <= end;) {
    const uchar number = *at(frm, next);
    size_t len = *at(frm, next + 1);
    next += 2;
    if (len == 0 && next + 2 <= end) {
      len = uint2korr(at(frm, next));
      next += 2;
    }
    if (len == 0 || next + len > end) break;
    if (number == which) return frm.substr(next, len);
    next += len;
  }
  return {};
}

std::string definition_id(const std::string &frm) {
  constexpr uchar ID = 0;
  return frm_property(frm, ID);
}

bool has_definition(const std::string &name, const LEX_CUSTRING &id) {
  std::string image;
  return attachment(server_table_of(name), FRM_IMAGE, &image) == TP_OK &&
         definition_id(image) == std::string(reinterpret_cast<const char *>(id.str), id.length);
}

/*
  length of all in words (4 bytes) | checksum: all words together are 0 by exclusive or | number of
  partitions an engine each (1 byte), up to a full word | length of the names | names, each with its
  0, up to a full word
*/
bool partition_names(const std::string &par, std::vector<std::string> *names) {
  constexpr size_t WORD = 4, HEAD = 3 * WORD;
  if (par.size() < HEAD + WORD) return false;
  const size_t words = uint4korr(at(par, 0)), count = uint4korr(at(par, 2 * WORD));
  if (words > par.size() / WORD || count > par.size()) return false;
  uint32 checksum = 0;
  for (size_t word = 0; word < words; word++) checksum ^= uint4korr(at(par, word * WORD));
  const size_t length_at = HEAD + (count + WORD - 1) / WORD * WORD, names_at = length_at + WORD;
  if (checksum || names_at > words * WORD) return false;
  const size_t end = names_at + uint4korr(at(par, length_at));
  if (end > words * WORD) return false;
  names->clear();
  for (size_t next = names_at; next < end;) {
    const size_t stop = par.find('\0', next);
    if (stop == std::string::npos || stop >= end) return false;
    names->push_back(par.substr(next, stop - next));
    next = stop + 1;
  }
  return true;
}

bool is_par_image(const std::string &bytes) {
  std::vector<std::string> names;
  return partition_names(bytes, &names);
}

/* ---- images in the catalog */

static void take_bytes(void *context, const uint8_t *data, size_t len) {
  static_cast<std::string *>(context)->assign(reinterpret_cast<const char *>(data), len);
}

int attachment(const std::string &name, Attachment_kind kind, std::string *bytes) {
  return tp_attachment(engine.db, name.data(), name.size(), kind, bytes, take_bytes);
}

void Attachments::set(const std::string &name, Attachment_kind kind, std::string bytes) {
  all.push_back({name, std::move(bytes), kind, false});
}

void Attachments::remove_all(const std::string &name) {
  for (const Attachment_kind kind : ATTACHMENT_KINDS) all.push_back({name, {}, kind, true});
}

const tp_attachment_changes *Attachments::get() {
  changes.clear();
  for (const One &one : all)
    changes.push_back({one.name.data(), one.name.size(), one.kind, one.is_removed,
                       reinterpret_cast<const uint8_t *>(one.bytes.data()), one.bytes.size()});
  given = {changes.data(), changes.size()};
  return &given;
}

/* The images that the table's files are, as far as they are there. */
void Attachments::set_from_files(const std::string &table) {
  std::string bytes;
  if (!read_file("./" + table + reg_ext, &bytes) || !is_frm_image(bytes)) return;
  set(table, FRM_IMAGE, bytes);
  if (read_par_file("./" + table, &bytes)) set(table, PAR_IMAGE, bytes);
}

/*
  A partition comes or goes. Files to come are in the catalog then, until they are in their place,
  and change nothing before. While the
  server goes on or back after a crash, any files may be there: restore_definitions() looks for what
  fits when that is over.
*/
void Attachments::set_from_statement(const std::string &table) {
  std::string coming;
  if (mysqld_server_started && attachment(table, COMING_FRM_IMAGE, &coming) != TP_OK)
    set_from_files(table);
}

bool Attachments::set_from_coming(const std::string &table) {
  std::string frm, par;
  if (attachment(table, COMING_FRM_IMAGE, &frm) != TP_OK ||
      attachment(table, COMING_PAR_IMAGE, &par) != TP_OK)
    return false;
  std::string old_frm, old_par;
  if (attachment(table, FRM_IMAGE, &old_frm) == TP_OK &&
      attachment(table, PAR_IMAGE, &old_par) == TP_OK) {
    set(table, FORMER_FRM_IMAGE, std::move(old_frm));
    set(table, FORMER_PAR_IMAGE, std::move(old_par));
  }
  set(table, FRM_IMAGE, std::move(frm));
  set(table, PAR_IMAGE, std::move(par));
  for (const Attachment_kind kind : {COMING_FRM_IMAGE, COMING_PAR_IMAGE})
    all.push_back({table, {}, kind, true});
  return true;
}

/* "db/#sql-shadow-1f-t" → "db/t", whose files to come have this name. Empty: it is no such name. */
static std::string table_of_files_to_come(const std::string &name) {
  const std::string mark = std::string("/") + tmp_file_prefix + "-shadow-";
  const size_t at = name.find(mark),
               behind_thread = at == std::string::npos ? at : name.find('-', at + mark.size());
  if (behind_thread == std::string::npos) return {};
  char table[NAME_LEN * 5 + 1];
  return name.substr(0, at + 1).append(
      table, tablename_to_filename(name.c_str() + behind_thread + 1, table, sizeof table));
}

int keep_partitioned_files(const char *path, const char *old_path, chf_create_flags what) {
  Attachments attachments;
  if (what == CHF_CREATE_FLAG && path) {
    const std::string table = table_of_files_to_come(table_name_of(path));
    std::string frm, par;
    if (table.empty() || !read_file(std::string(path) + reg_ext, &frm)) return 0;
    if (!read_par_file(path, &par)) return 0;
    note_changed_names(database_of(table));
    attachments.set(table, COMING_FRM_IMAGE, std::move(frm));
    attachments.set(table, COMING_PAR_IMAGE, std::move(par));
  } else if (what == CHF_RENAME_FLAG && path && old_path) {
    const std::string table = table_of_files_to_come(table_name_of(old_path));
    if (table.empty() || table != table_name_of(path) || !attachments.set_from_coming(table))
      return 0;
  } else {
    return 0;
  }
  tp_catalog_change change{};
  change.attached = *attachments.get();
  return server_error(tp_change_tables(engine.db, &change), current_thd) ? 1 : 0;
}

void Attachments::move_all(const std::string &from, const std::string &to) {
  std::string bytes;
  for (const Attachment_kind kind : ATTACHMENT_KINDS)
    if (attachment(from, kind, &bytes) == TP_OK) set(to, kind, bytes);
  remove_all(from);
}

static bool is_temporary(const std::string &name) {
  return is_prefix(name.c_str(), TEMPORARY_PREFIX);
}

/* Whether this is the only one of the engine's tables that the server's table has. */
static bool is_last_partition(const std::string &name) {
  const std::string prefix = server_table_of(name) + PARTITION_SEPARATOR;
  size_t count = 0;
  return tp_count_tables(engine.db, prefix.data(), prefix.size(), &count) == TP_OK && count <= 1;
}

/* The server has no call to an engine that says when these change. */
void Attachments::set_options_of_database(const std::string &name) {
  const std::string database = database_of(name);
  std::string bytes;
  if (!read_file("./" + database + "/" + OPTIONS_FILE, &bytes) || bytes.empty()) return;
  set(options_name(database), DATABASE_OPTIONS, bytes);
}

Attachments Attachments::of_create(const std::string &name, const TABLE *form) {
  Attachments attachments;
  if (is_temporary(name)) return attachments;
  const std::string table = server_table_of(name);
  note_changed_names(database_of(name));
  attachments.set_options_of_database(name);
  /* A new table's definition is in memory, and its .par file is there. (A partition is added by its
     table's present definition.) */
  const LEX_CUSTRING *image = form->s->tmp_table != NO_TMP_TABLE ? form->s->frm_image : nullptr;
  if (!image || !image->str) {
    attachments.set_from_statement(table);
    return attachments;
  }
  attachments.set(table, FRM_IMAGE,
                  std::string(reinterpret_cast<const char *>(image->str), image->length));
  std::string bytes;
  if (is_partition(name) && read_par_file("./" + table, &bytes))
    attachments.set(table, PAR_IMAGE, bytes);
  return attachments;
}

/* A partition that the present image of its table names. */
static bool is_in_image(const std::string &name, const std::string &table) {
  std::string par;
  std::vector<std::string> names;
  if (attachment(table, PAR_IMAGE, &par) != TP_OK || !partition_names(par, &names)) return false;
  const std::string partition = name.substr(table.size() + sizeof PARTITION_SEPARATOR - 1);
  return std::find(names.begin(), names.end(), partition) != names.end();
}

Attachments Attachments::of_drop(const std::string &name) {
  Attachments attachments;
  if (is_temporary(name)) return attachments;
  note_changed_names(database_of(name));
  if (!is_partition(name)) return attachments;
  const std::string table = server_table_of(name);
  if (is_last_partition(name))
    attachments.remove_all(table);
  else if (mysqld_server_started)
    attachments.set_from_statement(table);
  else if (is_in_image(name, table))
    /* The server goes on after a crash: going back, it drops partitions that were to come. */
    attachments.set_from_coming(table);
  return attachments;
}

Attachments Attachments::of_drop_all(const std::string &table) {
  Attachments attachments;
  if (is_temporary(table)) return attachments;
  note_changed_names(database_of(table));
  attachments.remove_all(table);
  return attachments;
}

Attachments Attachments::of_drop_database(const std::string &database) {
  Attachments attachments;
  attachments.all.push_back({options_name(database), {}, DATABASE_OPTIONS, true});
  return attachments;
}

Attachments Attachments::of_rename(const std::string &from, const std::string &to) {
  Attachments attachments;
  const std::string old_table = server_table_of(from), new_table = server_table_of(to);
  if (!is_temporary(from)) note_changed_names(database_of(from));
  if (!is_temporary(to)) {
    note_changed_names(database_of(to));
    if (database_of(from) != database_of(to)) attachments.set_options_of_database(to);
  }
  if (!is_partition(from) && !is_partition(to)) {
    /* The engine takes them along; a table that is only kept until it can be dropped needs none. */
    if (is_temporary(to)) attachments.remove_all(to);
    return attachments;
  }
  if (old_table == new_table) {
    /* A partition to come gets its name. The server does so only when it goes on, also after a
       crash. */
    if (mysqld_server_started || !attachments.set_from_coming(new_table))
      attachments.set_from_statement(new_table);
    return attachments;
  }
  if (is_partition(from) && is_partition(to)) {
    if (is_last_partition(from)) attachments.move_all(old_table, new_table);
    return attachments;
  }
  /* A partition and a table change places, or one becomes the other. The table's own file stays
     where it is. */
  if (is_partition(from)) {
    if (!is_temporary(to)) attachments.set_from_files(to);
    if (is_last_partition(from))
      attachments.remove_all(old_table);
    else
      attachments.set_from_statement(old_table);
  } else {
    attachments.remove_all(to);
    attachments.set_from_statement(new_table);
  }
  return attachments;
}

Attachments Attachments::of_rename_all(const std::string &from, const std::string &to) {
  Attachments attachments;
  note_changed_names(database_of(from));
  note_changed_names(database_of(to));
  if (database_of(from) != database_of(to)) attachments.set_options_of_database(to);
  attachments.move_all(from, to);
  return attachments;
}

Attachments Attachments::of_alter(const std::string &name, const TABLE *altered) {
  Attachments attachments;
  std::string bytes;
  if (!is_temporary(name)) note_changed_names(database_of(name));
  if (!is_temporary(name) &&
      read_file(std::string(altered->s->normalized_path.str) + reg_ext, &bytes) &&
      is_frm_image(bytes))
    attachments.set(server_table_of(name), FRM_IMAGE, bytes);
  return attachments;
}

} // namespace tidepool
