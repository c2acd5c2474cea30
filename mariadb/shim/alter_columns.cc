/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "alter_columns.h"
#include "server_versions.h"
#include <set>

namespace tidepool {

std::vector<int> old_columns(const TABLE *altered, const Alter_inplace_info *info) {
  std::vector<int> old_of;
  if (info->alter_info->create_list.elements != altered->s->fields) return old_of;
  List_iterator_fast<Create_field> all(info->alter_info->create_list);
  while (const Create_field *column = all++)
    old_of.push_back(column->field ? column->field->field_index : -1);
  return old_of;
}

bool same_places(const TABLE *table, const TABLE *altered, const std::vector<int> &old_of) {
  if (!table->part_info && !altered->part_info) return true;
  if (!table->part_info || !altered->part_info) return false;
  if (old_of.empty()) return false;
  Field *const *now = table->part_info->full_part_field_array;
  Field *const *next = altered->part_info->full_part_field_array;
  if (!now || !next) return false;
  std::set<int> columns;
  for (; *now; now++) columns.insert((*now)->field_index);
  for (; *next; next++)
    if (!(*next)->stored_in_db() || columns.erase(old_of[(*next)->field_index]) == 0) return false;
  return columns.empty();
}

int auto_increment_column(const TABLE *table) {
  return table->s->found_next_number_field ? (*table->s->found_next_number_field)->field_index : -1;
}

bool same_auto_increment(const TABLE *table, const TABLE *altered, const std::vector<int> &old_of) {
  const int now = auto_increment_column(table), next = auto_increment_column(altered);
  return next < 0 ? now < 0 : old_of[next] >= 0 && old_of[next] == now;
}

/* Whether a column's check holds for the value that record[0] has, and so for all rows that get it:
   it is about nothing else. (The time is the statement's.) What the check refuses or warns of, the
   copy says. */
static bool check_holds(TABLE *altered, const Field *field) {
  constexpr uint SAME_IN_ALL_ROWS = VCOL_FIELD_REF | VCOL_TIME_FUNC;
  std::vector<bool> others(altered->s->fields, true);
  others[field->field_index] = false;
  Virtual_column_info *const check = field->check_constraint;
  if ((check->flags & ~SAME_IN_ALL_ROWS) || uses(altered, check->expr, others)) return false;
  Dummy_error_handler conditions;
  altered->in_use->push_internal_handler(&conditions);
  const bool holds = check->expr->val_bool() || check->expr->null_value;
  altered->in_use->pop_internal_handler();
  return holds && !conditions.any_error();
}

/* Whether a value that was there has another text. The server compares them by the column's
   collation, and so takes another letter case for no change. */
static bool has_other_texts(const Field *was, const Field *is) {
  if (was->real_type() != MYSQL_TYPE_ENUM && was->real_type() != MYSQL_TYPE_SET) return false;
  const TYPELIB *const old = static_cast<const Field_enum *>(was)->typelib;
  const TYPELIB *const now = static_cast<const Field_enum *>(is)->typelib;
  for (uint i = 0; i < old->count; i++)
    if (i >= now->count || old->type_lengths[i] != now->type_lengths[i] ||
        memcmp(old->type_names[i], now->type_names[i], old->type_lengths[i]) != 0)
      return true;
  return false;
}

bool is_shown_otherwise(const Field *was, const Field *is) {
  return was->decimals() != is->decimals() || was->field_length != is->field_length ||
         ((was->flags ^ is->flags) & ZEROFILL_FLAG) || has_other_texts(was, is);
}

/* Expressions go by names: one may mean a new column from here on, where it meant one that the
   statement drops; or a virtual column of another expression, by way of other virtual ones too;
   or a column of another length, where the server sees no other type. Checks of the new stored
   columns alone are not looked at here; they are not asked anew of a column that has got another
   length either. */
bool same_computations(const TABLE *table, const TABLE *altered, const Alter_inplace_info *info,
                       const std::vector<int> &old_of, const std::vector<bool> *converted) {
  if (old_of.empty()) return false;
  const bool is_computed_anew = info->handler_flags & ALTER_VIRTUAL_GCOL_EXPR;
  const auto is_kept = [](const Field *field) {
    return field->stored_in_db() || (field->flags & (PART_KEY_FLAG | PART_INDIRECT_KEY_FLAG));
  };
  std::vector<bool> other(altered->s->fields), shown_otherwise(altered->s->fields);
  for (uint i = 0; i < altered->s->fields; i++) {
    const Field *field = altered->field[i];
    /* Which one it is, the server does not say. */
    const bool is_virtual = is_computed_anew && !field->stored_in_db();
    if (is_virtual && old_of[i] >= 0 && is_kept(field)) return false;
    other[i] = is_virtual || old_of[i] < 0;
    shown_otherwise[i] = old_of[i] >= 0 && (is_shown_otherwise(table->field[old_of[i]], field) ||
                                            (converted && (*converted)[i]));
    if (shown_otherwise[i] && field->vcol_info && is_kept(field)) return false;
  }
  if (!add_computed(altered, &other, is_kept) || !add_computed(altered, &shown_otherwise, is_kept))
    return false;
  if (!altered->check_constraints) return true;
  std::set<const Virtual_column_info *> of_new;
  for (uint i = 0; i < altered->s->fields; i++)
    if (old_of[i] < 0 && altered->field[i]->stored_in_db())
      of_new.insert(altered->field[i]->check_constraint);
  for (Virtual_column_info **check = altered->check_constraints; *check; check++)
    if (of_new.count(*check) == 0 && (uses(altered, (*check)->expr, other) ||
                                      (converted && uses(altered, (*check)->expr, *converted))))
      return false;
  return true;
}

bool changes_versioning(const TABLE *table, const TABLE *altered, const std::vector<int> &old_of) {
  if (!table->versioned() && !altered->versioned()) return false;
  if (!table->versioned(VERS_TIMESTAMP) || !altered->versioned(VERS_TIMESTAMP) ||
      !table->part_info != !altered->part_info || old_of.empty())
    return true;
  const auto is_other = [&](const Field *was, const Field *is) {
    return old_of[is->field_index] < 0 || old_of[is->field_index] != was->field_index;
  };
  return is_other(table->vers_start_field(), altered->vers_start_field()) ||
         is_other(table->vers_end_field(), altered->vers_end_field());
}

bool set_defaults(TABLE *altered, const std::vector<int> &old_of) {
  /* The time is the statement's. (What depends on the session may differ: RAND() is among it.) */
  constexpr uint SAME_IN_ALL_ROWS = VCOL_TIME_FUNC;
  constexpr int OK = 0, OK_WITH_A_NOTE = 3; /* DATETIME to DATE or TIME */
  for (uint i = 0; i < altered->s->fields; i++) {
    Field *field = altered->field[i];
    if (old_of[i] >= 0 || !field->stored_in_db()) continue;
    if (field->vcol_info || field->compression_method()) return false;
    if (field->real_type() == MYSQL_TYPE_GEOMETRY && !field->real_maybe_null()) return false;
    if (field->default_value && (field->default_value->flags & ~SAME_IN_ALL_ROWS)) return false;
    const int result = field->set_default();
    if (result != OK && result != OK_WITH_A_NOTE) return false;
    if (field->check_constraint && !check_holds(altered, field)) return false;
  }
  return true;
}

bool can_be_built(const KEY &key) {
  if ((is_special_index(key) && !is_fulltext(key) && !is_spatial(key)) || key.without_overlaps)
    return false;
  for (uint i = 0; is_special_index(key) && i < key.user_defined_key_parts; i++)
    if (!key.key_part[i].field->stored_in_db()) return false;
  return true;
}

std::vector<Field *> virtual_key_columns(const TABLE *table) {
  std::vector<Field *> columns;
  for (Field **field = table->vfield; field && *field; field++)
    if (!(*field)->stored_in_db() && ((*field)->flags & PART_KEY_FLAG)) columns.push_back(*field);
  return columns;
}

bool compute(const std::vector<Field *> &columns) {
  for (Field *field : columns)
    if (field->table->update_virtual_field(field, true)) return false;
  return true;
}

} // namespace tidepool
