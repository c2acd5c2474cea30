/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* CREATE, DROP, RENAME, TRUNCATE. */
#include "ddl.h"
#include "definition_files.h"
#include "description.h"
#include "encryption.h"
#include "engine.h"
#include "errors.h"
#include "foreign_key_definition.h"
#include "fulltext_stopwords.h"
#include "ha_tidepool.h"
#include "synced_names.h"
#include <set>

using namespace tidepool;

/* Names of before and afterwards. */
using Renames = std::vector<std::pair<std::string, std::string>>;

/* Renames tables of the engine at one moment, with what is attached to them. A TP_* code. */
static int rename_stored(const Renames &renames, Attachments &attached) {
  std::vector<tp_rename> given;
  for (const auto &[from, to] : renames)
    given.push_back({{from.data(), from.size()}, {to.data(), to.size()}});
  tp_catalog_change change{};
  change.renames = given.data();
  change.rename_count = given.size();
  change.attached = *attached.get();
  return tp_change_tables(engine.db, &change);
}

/* Drops tables of the engine at one moment, with what is attached to them. A TP_* code. */
static int drop_stored(const std::vector<std::string> &names, Attachments attached) {
  std::vector<tp_name> given;
  for (const std::string &name : names) given.push_back({name.data(), name.size()});
  return tp_drop_tables(engine.db, given.data(), given.size(), attached.get());
}

static int drop_stored(const std::string &name) {
  return drop_stored({name}, Attachments::of_drop(name));
}

/*
  The server calls create() where it believes that the name is free. If the engine has a table of
  this name all the same, the server has forgotten it: DROP TABLE, while the plugin was not loaded,
  has removed the .frm file alone, or that was lost. Whether its rows are wanted the engine can't
  know, so it is kept, under a name that can be used in SQL. It references no table any more, else
  its rows would forbid changes of others. With `definitions` held.
*/
static int set_forgotten_aside(const std::vector<std::string> &files, const std::string &name,
                               std::string *aside) {
  static std::atomic<uint> count{0};
  give_away_parted();
  *aside = database_of(name) + "/tidepool_lost_" +
           std::to_string(my_hrtime().val / HRTIME_RESOLUTION) + "_" + std::to_string(count++);
  Renames renames;
  for (const std::string &file : files) {
    Attachments nothing;
    if (int result = foreign_keys.replace(file, {}, nothing)) return result;
    renames.emplace_back(file, *aside + file.substr(name.size()));
  }
  Attachments attached = files.front() == name ? Attachments::of_rename(name, *aside)
                                               : Attachments::of_rename_all(name, *aside);
  const int result = rename_stored(renames, attached);
  if (result == TP_OK)
    for (const std::string &file : files) foreign_keys.touch(file);
  return result;
}

static int set_forgotten_aside(THD *thd, const std::string &name) {
  std::string aside;
  if (int result = set_forgotten_aside({name}, name, &aside)) return result;
  const std::string what = "the engine still had '" + name +
                           "', without a .frm file: the table was dropped while the plugin was not "
                           "loaded, or has lost its file. It is '" +
                           aside + "' now";
  std::string db, table;
  server_names(aside, &db, &table);
  sql_print_warning(
      "Tidepool: CREATE TABLE: %s. To remove it: DROP TABLE `%s`.`%s`. To read it: copy "
      "its old .frm file, or that of a table with the same definition, to %s.frm",
      what.c_str(), db.c_str(), table.c_str(), aside.c_str());
  Abort_on_warning_instant_set no_error(thd, false);
  push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_GET_ERRMSG, "Tidepool: %s",
                      what.c_str());
  return TP_OK;
}

/* Beside a .frm file: the names of a table's partitions. */
constexpr char PARTITION_LIST_EXT[] = ".par";

int ha_tidepool::create(const char *path, TABLE *form, HA_CREATE_INFO *info) {
  THD *thd = ha_thd();
  warn_of_ignored_options(thd, info);
  if (form->part_info && has_passing_primary_key(form->s, form->key_info)) {
    Abort_on_warning_instant_set no_error(thd, false);
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, HA_ERR_UNSUPPORTED,
                        "Tidepool: a later unique key without NULL would become the primary key of "
                        "table %s.%s when partitions are added "
                        "or dropped, and its rows be in the order of another: add a PRIMARY KEY, "
                        "or drop the key and add it again",
                        form->s->db.str, form->s->table_name.str);
    return HA_ERR_UNSUPPORTED;
  }

  const tp_file_options file_options = file_options_of(info->option_struct);
  if (!may_encrypt(file_options)) return HA_WRONG_CREATE_OPTION;

  const Layouts layouts(form);
  const std::vector<tp_index_def> indexes = layouts.definitions(form);
  Metadata metadata;
  metadata.fingerprint = layouts.fingerprint();
  metadata.has_spatial = layouts.has_spatial;
  for (uint tree = 0; tree < layouts.trees.size(); tree++)
    if (const Fulltext_index *index = layouts.trees[tree].fulltext())
      if (!fulltext_settings_of_session(thd, *index, &metadata.fulltext[tree]))
        return HA_ERR_GENERIC;
  const std::string bytes = metadata.put();

  const std::string name = table_name_of(path);
  Constraint_list keys;
  if (int error = foreign_keys_of_statement(thd, form, info, info->alter_info, name, &keys))
    return error;
  if (is_intermediate(name)) {
    const std::string altered = altered_table(thd);
    if (!altered.empty() && !has_indexes_for_foreign_keys(thd, form->s, form->key_info, altered,
                                                          keys, info->alter_info))
      return HA_ERR_CANNOT_ADD_FOREIGN;
    if (Session *session = altered.empty() ? nullptr : session_of(thd))
      session->copy = {thd->query_id, altered,
                       std::string(path).substr(0, std::string(path).find(PARTITION_SEPARATOR))};
    if (!altered.empty() && altered != user_name_of(thd, form, name))
      keys.push_back(Constraint::note_of_copy(name, altered));
  } else if (int error = check_referencing(thd, form, name)) {
    return error;
  }
  const std::string all = metadata_with(bytes, keys);
  Attachments attached = Attachments::of_create(name, form);
  attach_description(thd, name, form, &attached);
  {
    std::lock_guard<std::mutex> guard(foreign_keys.definitions);
    const auto create_table = [&] {
      return tp_create_table(engine.db, name.data(), name.size(), indexes.data(), indexes.size(),
                             reinterpret_cast<const uint8_t *>(all.data()), all.size(),
                             &file_options, attached.get());
    };
    int result = create_table();
    if (result == TP_TABLE_EXISTS && !is_prefix(name.c_str(), TEMPORARY_PREFIX) &&
        (result = set_forgotten_aside(thd, name)) == TP_OK)
      result = create_table();
    if (result != TP_OK) return server_error(result, thd);
    foreign_keys.set(name, keys);
  }
  if (info->auto_increment_value > 1) {
    tp_table *created;
    int result = tp_table_open(engine.db, name.data(), name.size(), &created);
    if (result == TP_OK) {
      result = tp_reset_auto_increment(created, info->auto_increment_value);
      tp_table_close(created);
    }
    if (result != TP_OK) {
      const int error = server_error(result, thd);
      std::lock_guard<std::mutex> guard(foreign_keys.definitions);
      if (drop_stored(name) == TP_OK) foreign_keys.forget(name);
      return error;
    }
  }
  return 0;
}

namespace tidepool {

void warn_of_ignored_options(THD *thd, const HA_CREATE_INFO *info) {
  const auto warn = [thd](const char *what) {
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_ILLEGAL_HA_CREATE_OPTION,
                        "Tidepool ignores %s", what);
  };
  if (info->data_file_name || info->index_file_name)
    warn("DATA DIRECTORY and INDEX DIRECTORY: its files are in tidepool_data_home_dir");
  const ulong used = info->used_fields;
  if ((used & HA_CREATE_USED_ROW_FORMAT) && info->row_type == ROW_TYPE_COMPRESSED)
    warn("ROW_FORMAT=COMPRESSED: it compresses the pages of all tables, as COMPRESSION says");
  if ((used & HA_CREATE_USED_KEY_BLOCK_SIZE) && info->key_block_size)
    warn("KEY_BLOCK_SIZE: a page takes the space on disk that it shrinks to");
}

/* Their names are free at once; the tables go when the transactions that have used them are over.
   Nobody else comes to them. Only what is prepared without a session stands in the way, and what a
   connection has prepared that was reset since: a verdict is still to come. `attached` is what
   becomes of their attachments; those that the engine takes along are removed. */
static int set_aside(const std::vector<std::string> &names, Attachments attached,
                     std::vector<std::string> *aside) {
  static std::atomic<uint> count{0};
  give_away_parted();
  Renames renames;
  for (const std::string &name : names) {
    aside->push_back(std::string(TEMPORARY_PREFIX) + "dropped-" + std::to_string(my_hrtime().val) +
                     "-" + std::to_string(count++));
    attached.remove_all(aside->back());
    renames.emplace_back(name, aside->back());
  }
  return rename_stored(renames, attached);
}

static int set_aside(const std::string &name, std::string *aside) {
  std::vector<std::string> names;
  const int result = set_aside({name}, Attachments::of_drop(name), &names);
  *aside = names.front();
  return result;
}

namespace {
struct Names {
  std::string prefix;
  std::vector<std::string> names;
};
} // namespace

static void take_name(void *context, const char *name, size_t len) {
  auto *wanted = static_cast<Names *>(context);
  std::string found(name, len);
  if (found.compare(0, wanted->prefix.size(), wanted->prefix) == 0)
    wanted->names.push_back(std::move(found));
}

static std::vector<std::string> names_with(const std::string &prefix) {
  Names wanted{prefix, {}};
  tp_table_names(engine.db, &wanted, take_name);
  return wanted.names;
}

int make_way_for(const std::string &name, std::string *aside) {
  std::vector<std::string> files = names_with(name + PARTITION_SEPARATOR);
  if (files.empty()) files.push_back(name);
  std::lock_guard<std::mutex> guard(foreign_keys.definitions);
  return set_forgotten_aside(files, name, aside);
}

/*
  A crash in CREATE TABLE … PARTITION BY. The server's DDL log then has the engine drop the table
  by the name that no partition has, and forgets the partitions and the .par file (10.11.18; those
  of InnoDB stay, and the next CREATE TABLE fails). The log speaks only of a table that this
  statement was about to make, so its partitions are that statement's, too.
*/
static bool drop_unfinished_partitions(const char *path, const std::string &name) {
  const std::string par = std::string(path) + PARTITION_LIST_EXT;
  if (unlink(par.c_str()) != 0 && errno != ENOENT)
    sql_print_warning("Tidepool: %s can't be removed: %s", par.c_str(), strerror(errno));
  std::lock_guard<std::mutex> guard(foreign_keys.definitions);
  const std::vector<std::string> partitions = names_with(name + PARTITION_SEPARATOR);
  if (partitions.empty()) return false;
  const int result = drop_stored(partitions, Attachments::of_drop_all(name));
  server_error(result, nullptr);
  return result == TP_OK;
}

/*
  The server drops a partitioned table, or renames it, partition by partition, and a power cut in
  between leaves a table that has neither
  its old partitions nor its new ones: its log of definition changes may be lost with the files. So
  the first of these calls does all of it
  in one commit of the catalog, and the others find it done.
*/
static bool is_done_together(THD *thd, const std::string &partition, const std::string &to) {
  std::string metadata;
  const Session *session = thd && is_partition(partition) ? session_of(thd) : nullptr;
  return session && session->together.statement == thd->query_id &&
         session->together.from == server_table_of(partition) && session->together.to == to &&
         table_metadata(partition, &metadata) == TP_TABLE_MISSING;
}

static void note_together(Session *session, THD *thd, const std::string &from,
                          const std::string &to) {
  if (session) session->together = {thd->query_id, from, to};
}

/* Whether the statement drops all partitions of the table of this one. ALTER TABLE also drops
   single ones, but not of its copies. */
static bool drops_all_partitions(THD *thd, const std::string &partition) {
  if (!thd || !mysqld_server_started || !is_partition(partition) ||
      is_prefix(partition.c_str(), TEMPORARY_PREFIX))
    return false;
  switch (thd_sql_command(thd)) {
    case SQLCOM_DROP_TABLE:
    case SQLCOM_DROP_DB:
    case SQLCOM_CREATE_TABLE: return true;
    default: return is_intermediate(partition);
  }
}

static int drop_partitions(const std::string &table, THD *thd) {
  Session *session = session_of(thd);
  const std::vector<std::string> partitions = names_with(table + PARTITION_SEPARATOR);
  std::lock_guard<std::mutex> guard(foreign_keys.definitions);
  std::vector<std::string> aside;
  int result = drop_stored(partitions, Attachments::of_drop_all(table));
  if (result == TP_TABLE_BUSY)
    result = set_aside(partitions, Attachments::of_drop_all(table), &aside);
  if (result != TP_OK) {
    /* The server has removed it before it asked. Without it the table can't be read, and the next
       DROP would leave its partitions. */
    restore_par_file(table);
    return server_error(result, thd);
  }
  for (const std::string &partition : partitions) foreign_keys.forget(partition);
  note_together(session, thd, table, {});
  for (const std::string &name : aside) {
    if (session && session->in_transaction)
      session->dropped.push_back(name);
    else
      drop_ownerless(name, thd);
  }
  return 0;
}

/* TP_NOT_FOUND: the caller renames them one by one, because a constraint of them is noted. */
static int rename_partitions(const std::string &from, const std::string &to) {
  Renames renames;
  for (const std::string &partition : names_with(from + PARTITION_SEPARATOR)) {
    const std::string renamed = to + partition.substr(from.size());
    if (foreign_keys.is_concerned(partition) || foreign_keys.is_concerned(renamed))
      return TP_NOT_FOUND;
    renames.emplace_back(partition, renamed);
  }
  if (renames.empty()) return TP_TABLE_MISSING;
  Attachments attached = Attachments::of_rename_all(from, to);
  return rename_stored(renames, attached);
}

int drop_table(handlerton *, const char *path) {
  const std::string name = table_name_of(path);
  THD *thd = current_thd;
  end_merges_of(name);
  sync_triggers_at_end(thd, name);
  /* The server asks every engine to drop a table that it doesn't know, and children may wait for
     one. */
  std::string metadata;
  if (table_metadata(name, &metadata) == TP_TABLE_MISSING) {
    if (is_done_together(thd, name, {})) return 0;
    if (!mysqld_server_started && drop_unfinished_partitions(path, name)) return 0;
    return server_error(TP_TABLE_MISSING, thd);
  }
  if (const Constraint_ptr key = forbids_drop(thd, name)) {
    if (Session *session = session_of(thd)) session->violated = foreign_key_of_table(thd, *key);
    return HA_ERR_ROW_IS_REFERENCED;
  }
  if (drops_all_partitions(thd, name)) return drop_partitions(server_table_of(name), thd);
  std::lock_guard<std::mutex> guard(foreign_keys.definitions);
  const int result = drop_stored(name);
  if (result == TP_OK) foreign_keys.forget(name);
  if (result != TP_TABLE_BUSY) return server_error(result, thd);

  Session *session = thd ? session_of(thd) : nullptr;
  const bool is_in_transaction = session && session->in_transaction;
  /* Of a temporary table, the transaction may be prepared: then the connection is about to end, and
     another may already have ended it or be at it. */
  if (is_prefix(name.c_str(), TEMPORARY_PREFIX) && (!is_in_transaction || session->xa_prepared)) {
    drop_ownerless(name, thd);
    return 0;
  }
  /* This transaction has used it: a temporary table, or the one of a CREATE … SELECT that failed.
     Or another has, that has no metadata lock any more: it has read by HANDLER, and closed that. */
  std::string aside;
  if (const int renamed = set_aside(name, &aside)) return server_error(renamed, thd);
  foreign_keys.forget(name);
  if (is_in_transaction)
    session->dropped.push_back(aside);
  else
    drop_ownerless(aside, thd);
  return 0;
}

static void forget_database(const std::string &name) {
  std::string options;
  if (attachment(options_name(name), DATABASE_OPTIONS, &options) != TP_OK) return;
  Attachments attached = Attachments::of_drop_database(name);
  server_error(rename_stored({}, attached), nullptr);
}

void drop_database(handlerton *, char *path) {
  remove_exports(path);
  /* "./db/": what the server dropped already is gone; here go tables that lost their .frm files. */
  std::string name(path);
  while (!name.empty() && name.back() == FN_LIBCHAR) name.pop_back();
  const size_t slash = name.rfind(FN_LIBCHAR);
  if (slash != std::string::npos) name.erase(0, slash + 1);
  if (name.empty()) return;
  forget_database(name);
  std::lock_guard<std::mutex> guard(foreign_keys.definitions);
  for (const std::string &table : names_with(name + "/")) {
    int result = drop_stored(table);
    std::string aside;
    const bool is_busy = result == TP_TABLE_BUSY;
    if (is_busy) result = set_aside(table, &aside);
    /* Without a .frm file there is no metadata lock on it either, so a transaction may be using it
       for a check: not forget(). */
    if (result == TP_OK) foreign_keys.set(table, {});
    if (result == TP_OK && is_busy) drop_ownerless(aside, nullptr);
    server_error(result, nullptr);
  }
}

/*
  ALTER TABLE writes a copy, #sql-alter-…, and keeps the table as #sql-backup-… until that is in its
  place. After a crash the server goes on or back, by its own log. What is still there then, and has
  no definition, may be all that is left of a table if that log was lost or not understood: so it
  stays. (Before the server has done that, it is what the log speaks of.)
*/
static void report_left_behind() {
  for (const std::string &name : names_with("")) {
    if (!is_intermediate(name)) continue;
    const std::string file = "./" + name.substr(0, name.find("#P#")) + reg_ext;
    if (access(file.c_str(), F_OK) == 0 || errno != ENOENT) continue;
    std::string db, table;
    server_names(name, &db, &table);
    sql_print_warning(
        "Tidepool: table %s of database %s has no .frm file: an ALTER TABLE left it behind. It "
        "stays, as the engine can't know whether its rows are also elsewhere. If they are, remove "
        "it: DROP TABLE "
        "`%s`.`#mysql50#%s`",
        table.c_str(), db.c_str(), db.c_str(), table.c_str());
  }
}

int after_ddl_recovery() {
  restore_definitions();
  report_left_behind();
  return 0;
}

/*
  What a transaction has used can't go before it is over. If it is prepared, that may be after its
  connection, and after this server's life; only temporary tables come here then. InnoDB lets these
  go with the connection, for it undoes nothing in them after a restart; here they are as other
  tables. Nobody can name them any more: the next connection's get other names (see table_name_of).
*/
static std::mutex ownerless_mutex;
static std::set<std::string> ownerless;
static std::atomic<uint64> generation{0};

uint64 ownerless_generation() { return generation.load(); }

void drop_ownerless(const std::string &name, THD *thd) {
  std::lock_guard<std::mutex> guard(ownerless_mutex);
  /* First: a transaction that ends behind the attempt sees it, and waits for the mutex. */
  generation++;
  const int result = drop_stored(name);
  if (result == TP_TABLE_BUSY)
    ownerless.insert(name);
  else
    server_error(result, thd);
}

void drop_ownerless_tables() {
  std::lock_guard<std::mutex> guard(ownerless_mutex);
  for (auto name = ownerless.begin(); name != ownerless.end();) {
    const int result = drop_stored(*name);
    if (result == TP_TABLE_BUSY) {
      name++;
    } else {
      server_error(result, nullptr);
      name = ownerless.erase(name);
    }
  }
}

void drop_temporary_tables() {
  for (const std::string &name : names_with(TEMPORARY_PREFIX)) drop_ownerless(name, nullptr);
}

} // namespace tidepool

int ha_tidepool::delete_table(const char *name) { return tidepool::drop_table(ht, name); }

/* Before a copy takes the place of its table: whether the constraints that reference the table can
   be with the copy. The table is renamed aside before, or, if it gets another name, dropped
   afterwards. */
static bool may_be_replaced(THD *thd, const std::string &from, const char *from_path,
                            const std::string &to) {
  Session *session = thd && mysqld_server_started ? session_of(thd) : nullptr;
  if (!session || session->copy.statement != thd->query_id) return true;
  const Copy_of_table copy = session->copy;
  const bool is_table = from == copy.table && is_intermediate(to),
             is_copy = server_table_of(from_path) == copy.path && !is_intermediate(to);
  if (!is_table && !is_copy) return true;
  session->copy = {};
  return keeps_its_children(thd, "./" + copy.table, copy.path, copy.table);
}

int ha_tidepool::rename_table(const char *from, const char *to) {
  const std::string old_name = table_name_of(from), new_name = table_name_of(to);
  if (!may_be_replaced(ha_thd(), old_name, from, new_name)) return HA_ERR_CANNOT_ADD_FOREIGN;
  end_merges_of(old_name);
  give_away_parted();
  sync_triggers_at_end(ha_thd(), old_name);
  /* The copy that takes the place of a table that ALTER TABLE also renames is what others mean from
     here on. */
  const std::string altered =
      is_intermediate(old_name) && ha_thd() ? altered_table(ha_thd()) : std::string();
  if (is_partition(old_name) && is_partition(new_name) &&
      server_table_of(old_name) != server_table_of(new_name)) {
    THD *thd = ha_thd();
    Session *session = thd ? session_of(thd) : nullptr;
    const std::string old_table = server_table_of(old_name), new_table = server_table_of(new_name);
    if (is_done_together(thd, old_name, new_table)) return 0;
    std::lock_guard<std::mutex> guard(foreign_keys.definitions);
    const int result = tidepool::rename_partitions(old_table, new_table);
    if (result == TP_OK) note_together(session, thd, old_table, new_table);
    if (result != TP_NOT_FOUND) return fail(result);
  }
  Attachments attached = Attachments::of_rename(old_name, new_name);
  std::lock_guard<std::mutex> guard(foreign_keys.definitions);
  const int result = foreign_keys.rename(old_name, new_name, altered, attached);
  /* After a crash in an ALTER TABLE that copies one partitioned table into another, the server's
     DDL log asks the engine of the partitions, not the partitioning engine, to rename the copy. */
  if (result == TP_TABLE_MISSING && !is_partition(old_name) && !is_partition(new_name)) {
    const int of_partitions = tidepool::rename_partitions(old_name, new_name);
    if (of_partitions != TP_NOT_FOUND) return fail(of_partitions);
  }
  return fail(result);
}

int ha_tidepool::truncate() {
  const Merges_paused alone(shared);
  int result = tp_truncate_table(engine.db, shared->name.data(), shared->name.size());
  if (result == TP_TABLE_BUSY && table_share->tmp_table != NO_TMP_TABLE) {
    /* Written by this very transaction: row by row. */
    int error = ha_rnd_init(true);
    if (error) return error;
    while (!(error = ha_rnd_next(table->record[0])))
      if ((error = delete_row(table->record[0]))) break;
    ha_rnd_end();
    return error == HA_ERR_END_OF_FILE ? reset_auto_increment(1) : error;
  }
  if (result == TP_OK) {
    result = shared->reopen();
    std::lock_guard<std::mutex> guard(foreign_keys.definitions);
    foreign_keys.touch(shared->name);
  }
  if (result != TP_OK) return fail(result);
  return open_reader();
}

int ha_tidepool::reset_auto_increment(ulonglong value) {
  return fail(tp_reset_auto_increment(shared->table, value ? value : 1));
}

void ha_tidepool::update_create_info(HA_CREATE_INFO *info_to_fill) {
  if (!shared || (info_to_fill->used_fields & HA_CREATE_USED_AUTO) ||
      !table->found_next_number_field)
    return;
  info(HA_STATUS_AUTO);
  info_to_fill->auto_increment_value = stats.auto_increment_value;
}
