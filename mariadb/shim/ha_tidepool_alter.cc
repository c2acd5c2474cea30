/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  ALTER without a copy of the table: changes that only the .frm file knows of, indexes added and
  dropped, columns added, dropped and moved.

  The .frm file alone knows how long a VARCHAR may be and which of the BLOB types a column has, for
  rows and entries say how long a value is; and it alone has the virtual columns. Such a change is
  in place if the layouts of rows and keys stay as they are. AUTO_INCREMENT = n is in place too: it
  is one number of the engine's.

  An index is built from the rows of a snapshot, by the code that makes its entries when rows are
  inserted, while others read and write the table (index_build.h):
      prepare    alone with the table: the engine begins the change, and logs which rows are written
      alter      rows → entries → sorted → the new trees; then, in rounds, what was written meanwhile
      commit     alone again: the last round; the engine's catalog takes the new indexes, in the
  order of the new .frm A table whose rows must be written anew gets new trees for all of it, in
  another file: ha_tidepool_rebuild.cc.

  The server's log of definition changes knows whether a crash came before or after that, for the
  catalog is told at the same moment by which .frm file this is: see check_version.

  Columns that rows store are added, dropped and moved, and may become NULL, by a new version of the
  rows (row_versions.h): a change of indexes as above, mostly of none, with which the engine's
  catalog takes the list of versions. The rows stay as they are. When columns are renamed that
  constraints mention, the catalog has the new names in all tables' constraints at that moment.

  Partitions are tables of their own to the engine, each with its own indexes and versions of rows
  (a partition added later has rows of one version). Each has its change, and all are committed at
  one moment, by the first one.

  RENAME INDEX alone is in the .frm, and the engine's catalog is told of it for its reports; should
  a crash come between, the next opening of the table tells it (see Table_share).

  What is not surely right is left to the rebuild, or to the copy: hashes as unique keys, periods,
  system versioning that begins or ends, another primary key (or what the server takes for one),
  what places rows in partitions, indexes with values too long for their entries, columns whose
  default differs from row to row, what is computed from a column that another one takes the name
  of, and a version too many.
*/
#include "alter_columns.h"
#include "ddl.h"
#include "definition_files.h"
#include "description.h"
#include "encryption.h"
#include "engine.h"
#include "errors.h"
#include "foreign_key_definition.h"
#include "foreign_key_index.h"
#include "fulltext_stopwords.h"
#include "ha_tidepool.h"
#include "index_build.h"
#include "server_versions.h"

using namespace tidepool;

namespace tidepool {

/* Whether the catalog has been changed by the .frm file with this id. The partitions of a table
   are, all at one moment. */
int check_version(handlerton *, const char *path, const LEX_CUSTRING *id, ulonglong) {
  return has_definition(table_name_of(path), *id) ? 0 : 1;
}

} // namespace tidepool

namespace {

constexpr alter_table_operations INDEX_CHANGES =
    ALTER_ADD_NON_UNIQUE_NON_PRIM_INDEX | ALTER_ADD_UNIQUE_INDEX |
    ALTER_DROP_NON_UNIQUE_NON_PRIM_INDEX | ALTER_DROP_UNIQUE_INDEX;
/* What may come with them: the engine needs to know nothing of it but the indexes' names
   and order. */
constexpr alter_table_operations BESIDE_THEM = ALTER_RENAME_INDEX | ALTER_INDEX_IGNORABILITY |
                                               ALTER_INDEX_ORDER | ALTER_RENAME | ALTER_PARTITIONED;
/* What makes a new version of the rows. */
constexpr alter_table_operations ROW_CHANGES = ALTER_ADD_STORED_BASE_COLUMN |
                                               ALTER_DROP_STORED_COLUMN |
                                               ALTER_STORED_COLUMN_ORDER | ALTER_COLUMN_NULLABLE;
/* What may come with that: rows know nothing of virtual columns, and columns are found by the new
   definition. */
constexpr alter_table_operations BESIDE_ROW_CHANGES =
    ALTER_ADD_VIRTUAL_COLUMN | ALTER_DROP_VIRTUAL_COLUMN | ALTER_VIRTUAL_COLUMN_ORDER |
    ALTER_COLUMN_NAME | ALTER_COLUMN_DEFAULT | ALTER_COLUMN_OPTION | ALTER_DROP_CHECK_CONSTRAINT;
constexpr alter_table_operations VIRTUAL_CHANGES =
    ALTER_ADD_VIRTUAL_COLUMN | ALTER_DROP_VIRTUAL_COLUMN | ALTER_VIRTUAL_GCOL_EXPR;

/* Which key of the old table a key of the new one is; MAX_KEY: a new one. false: none, and not a
   new one either. */
bool old_key_of(const TABLE *table, const KEY &key, const Alter_inplace_info *info, uint *keynr) {
  *keynr = MAX_KEY;
  for (uint i = 0; i < info->index_add_count; i++)
    if (is_same_name(info->key_info_buffer[info->index_add_buffer[i]].name.str, key.name.str))
      return true;
  const LEX_CSTRING *old_name = &key.name;
  for (const auto &pair : info->rename_keys)
    if (is_same_name(pair.new_key->name.str, key.name.str)) old_name = &pair.old_key->name;
  for (uint i = 0; i < table->s->keys; i++)
    if (is_same_name(table->key_info[i].name.str, old_name->str)) {
      *keynr = i;
      return true;
    }
  return false;
}

/* The trees to come, each with the present one that it is. false: not to be done in place. */
bool plan(const TABLE *table, const Layouts &now, const TABLE *altered, const Layouts &next,
          const Alter_inplace_info *info, const std::vector<int> &old_of,
          std::vector<tp_changed_index> *indexes) {
  for (uint tree = 0; tree < next.trees.size(); tree++) {
    const uint keynr = next.key_of(tree);
    if (keynr >= MAX_KEY) { /* the row id */
      indexes->push_back({STRING_WITH_LEN("#row_id"), 0, next.trees[tree].is_unique()});
      continue;
    }
    const KEY &key = altered->key_info[keynr];
    uint old;
    if (!old_key_of(table, key, info, &old)) return false;
    int64_t from = -1;
    if (old < MAX_KEY) {
      from = now.tree_of(old);
      if (!now.trees[from].same(next.trees[tree], &old_of)) return false;
    }
    if ((from == 0) != (tree == 0)) return false;
    for (const tp_changed_index &other : *indexes)
      if (from >= 0 && other.from == from) return false;
    indexes->push_back({key.name.str, key.name.length, from, next.trees[tree].is_unique()});
  }
  return true;
}

/* The key of the new definition that each present tree is of, where the statement leaves the trees
   as they are. Empty: there is none. */
std::vector<uint> keys_of_trees(const TABLE *table, const Layouts &now, const TABLE *altered,
                                const Alter_inplace_info *info) {
  if (table->s->keys != altered->s->keys) return {};
  std::vector<uint> order(now.trees.size(), MAX_KEY);
  for (uint i = 0; i < altered->s->keys; i++) {
    uint old;
    if (!old_key_of(table, altered->key_info[i], info, &old) || old == MAX_KEY ||
        order[now.tree_of(old)] != MAX_KEY)
      return {};
    order[now.tree_of(old)] = i;
  }
  if ((order[0] < MAX_KEY ? order[0] : MAX_KEY) !=
      (altered->s->primary_key < MAX_KEY ? altered->s->primary_key : MAX_KEY))
    return {};
  return order;
}

bool is_blob(enum_field_types type) {
  return type == MYSQL_TYPE_TINY_BLOB || type == MYSQL_TYPE_BLOB ||
         type == MYSQL_TYPE_MEDIUM_BLOB || type == MYSQL_TYPE_LONG_BLOB;
}

} // namespace

/* What is not done in place by changes of trees or of definitions alone is a rebuild, or a copy. */
enum_alter_inplace_result ha_tidepool::check_if_supported_inplace_alter(TABLE *altered,
                                                                        Alter_inplace_info *info) {
  if (tp_table_is_discarded(shared->table)) {
    my_error(ER_TABLESPACE_DISCARDED, MYF(0), table_share->table_name.str);
    return HA_ALTER_ERROR;
  }
  const auto answer = check_without_rebuild(altered, info);
  if (answer != HA_ALTER_INPLACE_NOT_SUPPORTED) return answer;
  info->unsupported_reason = refuses_rebuild(altered, info);
  return info->unsupported_reason ? HA_ALTER_INPLACE_NOT_SUPPORTED : HA_ALTER_INPLACE_COPY_NO_LOCK;
}

enum_alter_inplace_result ha_tidepool::check_without_rebuild(TABLE *altered,
                                                             Alter_inplace_info *info) {
  /* The copy says why not. */
  if (altered->part_info && has_passing_primary_key(altered->s, altered->key_info) &&
      !(table->part_info && has_passing_primary_key(table_share, table->key_info)))
    return HA_ALTER_INPLACE_NOT_SUPPORTED;
  if (!has_same_file_options(table_share->option_struct, info->create_info->option_struct))
    return HA_ALTER_INPLACE_NOT_SUPPORTED;
  if (const auto answer = check_foreign_key_change(info); answer != HA_ALTER_INPLACE_COPY_NO_LOCK)
    return answer;
  if (info->handler_flags & (INDEX_CHANGES | ROW_CHANGES)) return check_index_change(altered, info);
  /* The server takes another expression of a virtual column for a change of the definition alone,
     if no index has that column; and other decimals or zeros before a number for no change
     at all. */
  if ((altered->vfield || (info->handler_flags & VIRTUAL_CHANGES)) &&
      !same_computations(table, altered, info, old_columns(altered, info)))
    return HA_ALTER_INPLACE_NOT_SUPPORTED;
  if ((info->handler_flags & ALTER_PARTITIONED) &&
      !same_places(table, altered, old_columns(altered, info)))
    return HA_ALTER_INPLACE_NOT_SUPPORTED;
  return check_definition_change(altered, info);
}

/* What the .frm file alone knows of, and the server's own judgement has a copy made for. */
enum_alter_inplace_result ha_tidepool::check_definition_change(TABLE *altered,
                                                               Alter_inplace_info *info) {
  constexpr alter_table_operations LAYOUTS_STAY =
      ALTER_COLUMN_INDEX_LENGTH | ALTER_ADD_VIRTUAL_COLUMN | ALTER_DROP_VIRTUAL_COLUMN |
      ALTER_VIRTUAL_COLUMN_ORDER;
  /* DEFAULT CHARACTER SET: of columns to come. */
  constexpr ulonglong NOTHING_TO_US = HA_CREATE_USED_DEFAULT_CHARSET | HA_CREATE_USED_PACK_KEYS |
                                      HA_CREATE_USED_CHECKSUM | HA_CREATE_USED_MAX_ROWS;

  if (info->handler_flags & (LAYOUTS_STAY | ALTER_COLUMN_TYPE_CHANGE_BY_ENGINE)) {
    const std::vector<uint> order = keys_of_trees(table, shared->layouts, altered, info);
    if (own_session || is_checked_after_write() || altered->s->long_unique_table ||
        altered->s->period.unique_keys ||
        changes_versioning(table, altered, old_columns(altered, info)) || order.empty() ||
        !shared->layouts.same(Layouts(altered->s, altered->key_info, order)))
      return HA_ALTER_INPLACE_NOT_SUPPORTED;
  }
  const alter_table_operations all = info->handler_flags;
  const auto used = info->create_info->used_fields;
  info->handler_flags &= ~LAYOUTS_STAY;
  info->create_info->used_fields &= ~NOTHING_TO_US;
  const auto answer = judgement_of_server(altered, info);
  info->handler_flags = all;
  info->create_info->used_fields = used;
  return answer;
}

/* The server has every system-versioned table copied. Where nothing of the versioning changes, it
   is asked about the rest as if the table had none; the share of the table to come is this
   statement's alone. */
enum_alter_inplace_result ha_tidepool::judgement_of_server(TABLE *altered,
                                                           Alter_inplace_info *info) {
  const auto versioned = altered->s->versioned;
  if (!changes_versioning(table, altered, old_columns(altered, info)))
    altered->s->versioned = VERS_UNDEFINED;
  const auto answer = handler::check_if_supported_inplace_alter(altered, info);
  altered->s->versioned = versioned;
  return answer;
}

/* Whether the bytes of every value of a column are those of the same value in a column of another
   definition. */
bool ha_tidepool::can_convert_nocopy(const Field &field, const Column_definition &next) const {
  /* The values of a virtual column are computed anew, and what indexes have of them was cut to the
     old length. */
  if (!field.stored_in_db()) return false;
  if (field.charset() != next.charset || field.compression_method() || next.compression_method())
    return false;
  if (field.real_type() == MYSQL_TYPE_VARCHAR)
    return next.type_handler() == field.type_handler() && next.length >= field.field_length;
  return is_blob(field.real_type()) && is_blob(next.type_handler()->real_field_type()) &&
         field.type_handler()->type_collection() == next.type_handler()->type_collection() &&
         next.pack_length >= field.pack_length();
}

/* Of a key over the whole column the entries stay, however long the column may be. */
Compare_keys ha_tidepool::compare_key_parts(const Field &field, const Column_definition &next,
                                            const KEY_PART_INFO &part,
                                            const KEY_PART_INFO &next_part) const {
  if (!field.is_equal(next) && !can_convert_nocopy(field, next)) return Compare_keys::NotEqual;
  if (part.length == next_part.length) return Compare_keys::Equal;
  const bool is_whole = part.length == field.key_length() && next_part.length == next.length;
  return is_whole ? Compare_keys::EqualButKeyPartLength : Compare_keys::NotEqual;
}

/* Whether the columns that stay have all their values as they are, and no rule that is new must be
   checked of them. */
bool ha_tidepool::same_values(const TABLE *altered, const std::vector<int> &old_of) const {
  if (!same_auto_increment(table, altered, old_of)) return false;
  for (uint i = 0; i < altered->s->fields; i++) {
    if (old_of[i] < 0) continue;
    const Field *was = table->field[old_of[i]], *is = altered->field[i];
    if (was->stored_in_db() != is->stored_in_db() || was->real_type() != is->real_type() ||
        was->compression_method() != is->compression_method())
      return false;
    if (is->check_constraint &&
        (!was->check_constraint || !is_same_check(was->check_constraint, is->check_constraint)))
      return false;
  }
  return true;
}

enum_alter_inplace_result ha_tidepool::check_index_change(TABLE *altered,
                                                          Alter_inplace_info *info) {
  constexpr auto COPY = HA_ALTER_INPLACE_NOT_SUPPORTED;
  const bool changes_rows = info->handler_flags & ROW_CHANGES;
  if (info->handler_flags &
      ~(INDEX_CHANGES | BESIDE_THEM | (changes_rows ? ROW_CHANGES | BESIDE_ROW_CHANGES : 0)))
    return COPY;
  /* ALTER IGNORE drops rows; of partitions, the first one's handler does all at the end, and knows
     the number of no other. */
  if (info->ignore || table_share->tmp_table != NO_TMP_TABLE ||
      (table->part_info && (info->create_info->used_fields & HA_CREATE_USED_AUTO)))
    return COPY;
  if (own_session || is_checked_after_write() || altered->s->long_unique_table ||
      altered->s->period.unique_keys ||
      changes_versioning(table, altered, old_columns(altered, info)))
    return COPY;
  /* What else the statement says must be nothing for the engine. */
  const alter_table_operations all = info->handler_flags;
  info->handler_flags &= ~(INDEX_CHANGES | ALTER_INDEX_ORDER);
  if (changes_rows) info->handler_flags &= ~(ROW_CHANGES | BESIDE_ROW_CHANGES);
  const auto beside = judgement_of_server(altered, info);
  info->handler_flags = all;
  if (beside != HA_ALTER_INPLACE_NO_LOCK) return COPY;

  const Layouts &now = shared->layouts;
  const Layouts next(altered);
  const std::vector<int> old_of = old_columns(altered, info);
  std::vector<tp_changed_index> indexes;
  if (old_of.empty() || !same_places(table, altered, old_of) || now.has_row_id != next.has_row_id ||
      !now.trees[0].same(next.trees[0], &old_of) ||
      !plan(table, now, altered, next, info, old_of, &indexes))
    return COPY;
  if (changes_rows) {
    Row_versions versions = shared->metadata.versions;
    if (info->error_if_not_empty || !same_values(altered, old_of) ||
        !same_computations(table, altered, info, old_of) || !set_defaults(altered, old_of) ||
        !versions.add(*now.row, *next.row, old_of, altered->record[0]))
      return COPY;
  } else if (now.row->fingerprint() != next.row->fingerprint() ||
             table_share->fields != altered->s->fields ||
             (altered->vfield && !same_computations(table, altered, info, old_of))) {
    return COPY;
  }

  /* Chains of long values are found by their entries alone: a tree that has some is not freed in
     place, and none is built. */
  const size_t inline_max = tp_table_value_len_inline_max(shared->table);
  std::vector<bool> kept(now.trees.size(), false);
  size_t added = 0, dropped = 0;
  for (uint tree = 0; tree < next.trees.size(); tree++) {
    if (indexes[tree].from >= 0) {
      kept[indexes[tree].from] = true;
      continue;
    }
    added++;
    if (!can_be_built(altered->key_info[next.key_of(tree)]) ||
        next.trees[tree].value_bound() > inline_max)
      return COPY;
  }
  for (uint tree = 0; tree < now.trees.size(); tree++) {
    if (kept[tree]) continue;
    dropped++;
    if (tree == 0 || now.trees[tree].value_bound() > inline_max) return COPY;
  }
  /* In the copy there is no such limit. */
  if ((added + dropped == 0 && !changes_rows) || added + dropped > tp_changed_indexes_max())
    return COPY;
  return added ? HA_ALTER_INPLACE_NOCOPY_NO_LOCK : HA_ALTER_INPLACE_INSTANT;
}

bool ha_tidepool::prepare_inplace_alter_table(TABLE *altered, Alter_inplace_info *info) {
  if (prepare_foreign_keys(altered, info)) return true;
  if (info->handler_flags & ALTER_CHANGE_CREATE_OPTION)
    warn_of_ignored_options(ha_thd(), info->create_info);
  const bool is_rebuilt = info->inplace_supported == HA_ALTER_INPLACE_COPY_NO_LOCK;
  if (!is_rebuilt && !(info->handler_flags & (INDEX_CHANGES | ROW_CHANGES))) return false;
  /* A parent keeps its name and its columns theirs until this is done: this table's metadata can't
     be changed in between. */
  for (const Constraint_ptr &key : foreign_keys.of_child(shared->name))
    if (!key->is_self_reference() && !lock_definition(ha_thd(), key->parent)) return true;
  if (is_rebuilt) return prepare_rebuild(altered, info);
  auto *context = new Index_change(altered, shared->name, shared->metadata);
  info->handler_ctx = context;
  const std::vector<int> old_of = old_columns(altered, info);
  Metadata &metadata = context->metadata;
  metadata.fingerprint = context->layouts.fingerprint();
  metadata.has_spatial = context->layouts.has_spatial;
  std::vector<tp_changed_index> indexes;
  /* The record has the defaults since this was found to be possible. */
  if (old_of.empty() ||
      !plan(table, shared->layouts, altered, context->layouts, info, old_of, &indexes) ||
      ((info->handler_flags & ROW_CHANGES) &&
       !metadata.versions.add(*shared->layouts.row, *context->layouts.row, old_of,
                              altered->record[0])) ||
      !context->layouts.row->set_versions(metadata.versions)) {
    print_error(HA_ERR_WRONG_COMMAND, MYF(0));
    return true;
  }
  /* Indexes that stay keep what they were made with. */
  metadata.fulltext.clear();
  for (uint tree = 0; tree < indexes.size(); tree++) {
    const Fulltext_index *const index = context->layouts.trees[tree].fulltext();
    if (!index) continue;
    Fulltext_settings *const settings = &metadata.fulltext[tree];
    if (indexes[tree].from >= 0)
      *settings = shared->layouts.trees[indexes[tree].from].fulltext()->settings();
    else if (!fulltext_settings_of_session(ha_thd(), *index, settings))
      return true;
  }
  context->layouts.set_fulltext(metadata.fulltext);
  for (uint tree = 0; tree < indexes.size(); tree++)
    if (indexes[tree].from < 0) context->built.push_back(tree);
  altering = std::make_unique<Merges_paused>(shared);
  const int result = tp_change_indexes(engine.db, shared->name.data(), shared->name.size(),
                                       indexes.data(), indexes.size(), &context->change);
  if (result == TP_OK) return false;
  altering.reset();
  context->change = nullptr;
  print_error(fail(result), MYF(0));
  return true;
}

static bool is_build(const Index_change *context) {
  return context && context->change && !context->built.empty();
}

/* The changes of all partitions, or that of the table, that build an index. */
static std::vector<Index_change *> builds_of(const Alter_inplace_info *info) {
  std::vector<Index_change *> builds;
  inplace_alter_handler_ctx *const alone[] = {info->handler_ctx, nullptr};
  for (auto *one = info->group_commit_ctx ? info->group_commit_ctx : alone; *one; one++)
    if (auto *context = dynamic_cast<Index_change *>(*one); is_build(context))
      builds.push_back(context);
  return builds;
}

/* One partition after the other is built; with the last, all get what was written meanwhile. */
bool ha_tidepool::inplace_alter_table(TABLE *altered, Alter_inplace_info *info) {
  auto *context = dynamic_cast<Index_change *>(info->handler_ctx);
  if (!is_build(context)) return false;
  Index_build build(ha_thd(), altered);
  /* Among rows that are deleted and not purged the engine goes on for long without coming back
     here. */
  if (const Session *of = session_of(ha_thd()))
    tp_change_set_interrupt(context->change, of->interrupt);
  int result = build.fill(context, tp_table_rows(shared->table));
  const std::vector<Index_change *> all = builds_of(info);
  if (result == TP_OK && context == all.back()) result = build.catch_up(all, &context);
  return result != TP_OK && report_failed_build(altered, context, result);
}

/* true: an error was sent. */
bool ha_tidepool::report_failed_build(TABLE *altered, Index_change *context, int result) {
  if (result == Index_build::REFUSED) return true;
  if (result == TP_DUPLICATE)
    report_duplicate_of_build(altered, context);
  else if (result == Index_build::NO_GEOMETRY)
    print_error(HA_ERR_NULL_IN_SPATIAL, MYF(0));
  else
    print_error(fail(result), MYF(0));
  return true;
}

/* Shows the server the row that can't have its key. */
void ha_tidepool::report_duplicate_of_build(TABLE *altered, Index_change *context) {
  const Layouts &layouts = context->layouts;
  size_t tree;
  tp_entry entry;
  tp_bytes row;
  const auto room = std::make_unique<uchar[]>(layouts.trees[0].key_max());
  size_t len = 0;
  const uchar *pk = nullptr;
  const bool is_found = tp_change_duplicate(context->change, &tree, &entry) == TP_OK;
  int result = TP_OK;
  if (is_found && tree == 0) {
    pk = entry.key;
    len = entry.key_len;
    row = {entry.value, entry.value_len};
  } else if (is_found) {
    pk = layouts.trees[tree].clustered_key(entry.key, entry.key_len, entry.value, entry.value_len,
                                           room.get(), &len);
    if (pk) result = tp_change_row(context->change, {pk, len}, &row);
  }
  const std::vector<uchar> all(altered->s->fields, 1);
  uchar *const record = altered->record[0];
  if (!pk || result != TP_OK ||
      !layouts.row->decode(record, row.data, row.len, all.data(),
                           layouts.row->last_needed(all.data())) ||
      !layouts.trees[0].decode_clustered(record, pk, len, all.data()) ||
      !compute(virtual_key_columns(altered))) {
    print_error(HA_ERR_CRASHED, MYF(0));
    return;
  }
  print_keydup_error(altered, &altered->key_info[layouts.key_of(static_cast<uint>(tree))], MYF(0));
}

/* The changes of all partitions, or that of the table. They are the caller's from here on. */
static std::vector<Table_change> changes_of(Alter_inplace_info *info) {
  std::vector<Table_change> changes;
  inplace_alter_handler_ctx *const alone[] = {info->handler_ctx, nullptr};
  for (auto *one = info->group_commit_ctx ? info->group_commit_ctx : alone; *one; one++)
    if (auto *context = dynamic_cast<Index_change *>(*one); context && context->change) {
      changes.push_back({context->change, context->name, context->metadata.put()});
      context->change = nullptr;
    }
  return changes;
}

bool ha_tidepool::commit_inplace_alter_table(TABLE *altered, Alter_inplace_info *info,
                                             bool commit) {
  /* After a commit this share is of the table as it was, and goes. */
  if (!commit) {
    altering.reset();
    if (auto *context = dynamic_cast<Index_change *>(info->handler_ctx);
        context && context->change) {
      tp_change_free(context->change);
      context->change = nullptr;
    }
    return false;
  }
  if (!keeps_its_children(ha_thd(), table_share, altered->s, altered->key_info, shared->name,
                          info->alter_info))
    return true;
  if (const std::vector<Index_change *> builds = builds_of(info); !builds.empty()) {
    Index_change *failed = nullptr;
    Index_build build(ha_thd(), altered);
    if (const int result = build.finish(builds, &failed))
      return report_failed_build(altered, failed, result);
  }
  const std::vector<Table_change> changes = changes_of(info);
  const HA_CREATE_INFO &asked = *info->create_info;
  int error = 0;
  /* The server also asks so, for 0, where the column is dropped. */
  if ((asked.used_fields & HA_CREATE_USED_AUTO) && table->found_next_number_field &&
      altered->found_next_number_field)
    error = set_auto_increment(std::max<ulonglong>(asked.auto_increment_value, 1));
  if (!error && changes.empty() && (info->handler_flags & ALTER_RENAME_INDEX)) {
    const Layouts next(altered->s, altered->key_info,
                       keys_of_trees(table, shared->layouts, altered, info));
    const std::vector<tp_index_def> indexes = next.definitions(altered);
    error = fail(tp_rename_indexes(engine.db, shared->name.data(), shared->name.size(),
                                   indexes.data(), indexes.size()));
  }
  /* Last, for with this the table is what the server's new .frm file says. */
  if (error) {
    for (const Table_change &change : changes) tp_change_free(change.change);
  } else if (!changes.empty()) {
    std::lock_guard<std::mutex> guard(foreign_keys.definitions);
    Attachments attached = Attachments::of_alter(shared->name, altered);
    attach_description(ha_thd(), shared->name, altered, &attached);
    error = fail(foreign_keys.commit_changes(changes, renamed_columns(info->alter_info), attached));
    info->group_commit_ctx = nullptr;
  } else {
    error = commit_foreign_keys(altered, info);
  }
  if (error) print_error(error, MYF(0));
  return error != 0;
}

/* Whether a table and the partitions of another have their rows in the same order, also after the
   statement: the server looks for keys of the same names, in whatever order, and takes the first
   for the primary one. */
static bool is_clustered_as(const TABLE *table, const TABLE *parted, bool is_sorted_again) {
  const uint key = table->s->primary_key, other = parted->s->primary_key;
  if (is_sorted_again && has_passing_primary_key(parted->s, parted->key_info)) return false;
  if (key >= MAX_KEY || other >= MAX_KEY) return key >= MAX_KEY && other >= MAX_KEY;
  return is_same_name(table->key_info[key].name.str, parted->key_info[other].name.str);
}

/* Whether both compute the same values of the same columns. The server has compared the columns'
   types, and the expressions of those that are computed in `table`; it takes no notice of those
   that are computed in the other table alone. */
static bool is_computed_as(const TABLE *table, const TABLE *parted) {
  if (table->s->fields != parted->s->fields) return false;
  bool is_computed = false, is_shown_alike = true;
  for (uint i = 0; i < table->s->fields; i++) {
    const Field *const field = table->field[i], *const other = parted->field[i];
    if (!field->vcol_info != !other->vcol_info || field->stored_in_db() != other->stored_in_db())
      return false;
    is_computed = is_computed || field->vcol_info;
    is_shown_alike = is_shown_alike && field->real_type() == other->real_type() &&
                     !is_shown_otherwise(field, other) && !is_shown_otherwise(other, field);
  }
  return !is_computed || is_shown_alike;
}

/* Columns of another length are those of can_convert_nocopy(). EXCHANGE PARTITION and CONVERT TABLE
   ask for the table; the partitioned one is the statement's first. A file keeps its encryption and
   compression, so those of the two tables must be the same. */
bool ha_tidepool::check_if_incompatible_data(HA_CREATE_INFO *, uint changes) {
  const LEX *lex = ha_thd()->lex;
  const auto asked =
      lex->alter_info.partition_flags & (ALTER_PARTITION_EXCHANGE | ALTER_PARTITION_CONVERT_IN);
  if (lex->sql_command == SQLCOM_ALTER_TABLE && asked) {
    const TABLE *parted = lex->query_tables ? lex->query_tables->table : nullptr;
    if (!parted || !is_clustered_as(table, parted, asked & ALTER_PARTITION_CONVERT_IN) ||
        !is_computed_as(table, parted) ||
        !has_same_file_options(table->s->option_struct, parted->s->option_struct))
      return COMPATIBLE_DATA_NO;
    /* A partition has no constraints, and is no parent. The server sees to that in EXCHANGE. */
    if ((asked & ALTER_PARTITION_CONVERT_IN) && foreign_keys.is_concerned(shared->name))
      return COMPATIBLE_DATA_NO;
  }
  return changes == IS_EQUAL_NO ? COMPATIBLE_DATA_NO : COMPATIBLE_DATA_YES;
}
