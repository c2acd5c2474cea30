/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  ALTER TABLE that writes all rows anew while others read and write the table: FORCE, OPTIMIZE
  TABLE, ENGINE=Tidepool, another primary key, other options of the file, other types of columns.

      prepare    alone with the table: the engine makes a file with empty trees, and logs which rows
                 are written
      alter      rows of a snapshot are converted, and go with their entries to the new trees; then,
                 in rounds, what was written meanwhile (index_build.h)
      commit     alone again: the last round; the engine's catalog takes the new file

  A row must become the same whenever it is converted, and its place must follow from it. So the
  server's copy does what depends on more: new columns with values that differ by row, row ids in
  place of a primary key, values that may be cut outside of strict mode, what is computed from
  converted columns, columns of foreign keys. It also checks what is new to be checked.
*/
#include "alter_columns.h"
#include "encryption.h"
#include "engine.h"
#include "errors.h"
#include "foreign_key_definition.h"
#include "fulltext_stopwords.h"
#include "ha_tidepool.h"
#include "index_build.h"
#include "server_versions.h"

using namespace tidepool;

namespace {

/* What a statement may say. The server sends ALTER_CONVERT_TO and the like beside what follows. */
constexpr alter_table_operations MAY_CHANGE =
    ALTER_RECREATE_TABLE | ALTER_CHANGE_CREATE_OPTION | ALTER_CONVERT_TO | ALTER_ADD_PK_INDEX |
    ALTER_DROP_PK_INDEX | ALTER_ADD_NON_UNIQUE_NON_PRIM_INDEX |
    ALTER_DROP_NON_UNIQUE_NON_PRIM_INDEX | ALTER_ADD_UNIQUE_INDEX | ALTER_DROP_UNIQUE_INDEX |
    ALTER_RENAME_INDEX | ALTER_INDEX_IGNORABILITY | ALTER_INDEX_ORDER | ALTER_CHANGE_INDEX_COMMENT |
    ALTER_RENAME | ALTER_PARTITIONED | ALTER_ADD_STORED_BASE_COLUMN | ALTER_DROP_STORED_COLUMN |
    ALTER_STORED_COLUMN_ORDER | ALTER_STORED_COLUMN_TYPE | ALTER_COLUMN_TYPE_CHANGE_BY_ENGINE |
    ALTER_COLUMN_NULLABLE | ALTER_COLUMN_NOT_NULLABLE | ALTER_COLUMN_INDEX_LENGTH |
    ALTER_ADD_VIRTUAL_COLUMN | ALTER_DROP_VIRTUAL_COLUMN | ALTER_VIRTUAL_COLUMN_ORDER |
    ALTER_COLUMN_NAME | ALTER_COLUMN_DEFAULT | ALTER_COLUMN_OPTION | ALTER_DROP_CHECK_CONSTRAINT;

bool is_partition_column(const TABLE *table, const Field *field) {
  if (!table->part_info) return false;
  Field *const *part = table->part_info->full_part_field_array;
  for (; part && *part; part++)
    if ((*part)->field_index == field->field_index) return true;
  return false;
}

/* Whether rows come in the order of the new clustered index, read in that of the present one. */
bool is_order_kept(const Layouts &now, const Layouts &next, const std::vector<int> &old_of,
                   const std::vector<bool> &converted) {
  if (now.has_row_id != next.has_row_id || !now.trees[0].same(next.trees[0], &old_of)) return false;
  for (const Part &part : next.trees[0].all_parts())
    if (part.image != Part::ROW_ID && converted[part.column.fieldnr]) return false;
  return true;
}

} // namespace

/* Sets which columns get other values, or other bytes for them. Why that is for the copy; null: it
   is not. */
const char *ha_tidepool::refuses_conversion(const TABLE *altered, const Alter_inplace_info *info,
                                            const std::vector<int> &old_of,
                                            std::vector<bool> *converted) const {
  converted->assign(altered->s->fields, false);
  List_iterator_fast<Create_field> all(info->alter_info->create_list);
  bool is_any = false;
  for (uint i = 0; i < altered->s->fields; i++) {
    const Create_field *column = all++;
    if (old_of[i] < 0) continue;
    const Field *was = table->field[old_of[i]], *is = altered->field[i];
    if (was->stored_in_db() != is->stored_in_db()) return "a column is stored, or is not any more";
    if (!is->stored_in_db()) continue;
    if (is->vcol_info && !was->vcol_info) return "a column is computed from here on";
    if (is->check_constraint &&
        (!was->check_constraint || !is_same_check(was->check_constraint, is->check_constraint)))
      return "rows must be checked anew";
    /* Where NULL may be from here on, the values there are stay. */
    if (was->is_equal(*column) && was->compression_method() == is->compression_method() &&
        (is->real_maybe_null() || !was->real_maybe_null()))
      continue;
    (*converted)[i] = is_any = true;
    if (was->vcol_info || is->vcol_info) return "a computed column has another type";
    if (is->check_constraint) return "rows must be checked anew";
    if (was->compression_method() || is->compression_method())
      return "a compressed column has another type";
    if (was->real_type() == MYSQL_TYPE_GEOMETRY || is->real_type() == MYSQL_TYPE_GEOMETRY)
      return "a geometry has another type";
    if (is_partition_column(table, was)) return "rows may belong to other partitions";
  }
  if (is_any && !ha_thd()->is_strict_mode()) return "values may be cut outside of strict mode";
  if (is_any && foreign_keys.is_concerned(shared->name))
    return "columns of tables with foreign keys may have another type";
  return nullptr;
}

/* Why the copy must be made; null: it need not. */
const char *ha_tidepool::refuses_rebuild(TABLE *altered, const Alter_inplace_info *info) const {
  if (info->handler_flags & ~MAY_CHANGE) return "only the copy makes such a change";
  if (info->ignore) return "IGNORE drops rows";
  if (info->error_if_not_empty) return "rows have no value for a new column";
  if (table_share->tmp_table != NO_TMP_TABLE || own_session) return "it is a temporary table";
  if (table_share->table_type == TABLE_TYPE_SEQUENCE || info->create_info->sequence)
    return "it is a sequence";
  if (is_checked_after_write() || altered->s->long_unique_table || altered->s->period.unique_keys)
    return "a unique key is a hash, or WITHOUT OVERLAPS";
  if (altered->part_info && has_passing_primary_key(altered->s, altered->key_info) &&
      !(table->part_info && has_passing_primary_key(table_share, table->key_info)))
    return "another unique key would become the primary key";
  /* Of partitions, the first one's handler does all at the end, and knows no other's number. */
  if (table->part_info && (info->create_info->used_fields & HA_CREATE_USED_AUTO))
    return "AUTO_INCREMENT of a partitioned table";
  if ((info->handler_flags & ALTER_DROP_STORED_COLUMN) && foreign_keys.is_concerned(shared->name))
    return "a table with foreign keys loses a column";

  const std::vector<int> old_of = old_columns(altered, info);
  std::vector<bool> converted;
  if (old_of.empty()) return "only the copy makes such a change";
  if (changes_versioning(table, altered, old_of)) return "system versioning changes";
  if (!same_places(table, altered, old_of)) return "rows may belong to other partitions";
  if (!same_auto_increment(table, altered, old_of)) return "another column is AUTO_INCREMENT";
  if (const char *why = refuses_conversion(altered, info, old_of, &converted)) return why;
  if (!same_computations(table, altered, info, old_of, &converted))
    return "what is computed from columns changes";
  if (!set_defaults(altered, old_of)) return "a new column has values that differ by row";
  for (uint i = 0; i < altered->s->keys; i++)
    if (!can_be_built(altered->key_info[i]))
      return "a FULLTEXT index is on a virtual column, or an index is a hash";
  /* Which row would get which id, nothing says. */
  if (altered->s->primary_key >= MAX_KEY && !shared->layouts.has_row_id)
    return "the rows would have no key";
  return nullptr;
}

bool ha_tidepool::prepare_rebuild(TABLE *altered, Alter_inplace_info *info) {
  const tp_file_options file_options = file_options_of(info->create_info->option_struct);
  if (!may_encrypt(file_options)) return true;
  auto *context = new Index_change(altered, shared->name, Metadata());
  info->handler_ctx = context;
  const std::vector<int> old_of = old_columns(altered, info);
  std::vector<bool> converted;
  if (old_of.empty() || refuses_conversion(altered, info, old_of, &converted)) {
    print_error(HA_ERR_WRONG_COMMAND, MYF(0));
    return true;
  }
  Metadata &metadata = context->metadata;
  metadata.fingerprint = context->layouts.fingerprint();
  metadata.has_spatial = context->layouts.has_spatial;
  for (uint tree = 0; tree < context->layouts.trees.size(); tree++) {
    context->built.push_back(tree);
    if (const Fulltext_index *index = context->layouts.trees[tree].fulltext())
      if (!fulltext_settings_of_session(ha_thd(), *index, &metadata.fulltext[tree])) return true;
  }
  context->layouts.set_fulltext(metadata.fulltext);
  context->rows_in_order = is_order_kept(shared->layouts, context->layouts, old_of, converted);
  context->conversion = std::make_unique<Row_conversion>(table, shared->layouts, altered, old_of);
  const std::vector<tp_index_def> indexes = context->layouts.definitions(altered);
  altering = std::make_unique<Merges_paused>(shared);
  const int result =
      tp_rebuild_table(engine.db, shared->name.data(), shared->name.size(), indexes.data(),
                       indexes.size(), &file_options, &context->change);
  if (result == TP_OK) return false;
  altering.reset();
  context->change = nullptr;
  print_error(fail(result), MYF(0));
  return true;
}
