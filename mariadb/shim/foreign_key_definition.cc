/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* CREATE and ALTER: constraints from a statement, and whether they can be. */
#include "foreign_key_definition.h"
#include "engine.h"
#include "foreign_key_index.h"
#include "server_versions.h"
#include <algorithm>
#include <set>

namespace tidepool {

namespace {

bool checks_are_on(THD *thd) { return !thd_test_options(thd, OPTION_NO_FOREIGN_KEY_CHECKS); }

std::string text_of(const LEX_CSTRING &name) { return std::string(name.str, name.length); }

std::string referenced_name(const std::string &child, const ::Foreign_key *key) {
  char db[NAME_LEN + 1], table[NAME_LEN + 1];
  LEX_CSTRING db_name = key->ref_db, table_name = key->ref_table;
  if (lower_case_table_names) {
    strmake_buf(table, table_name.str);
    table_name = LEX_CSTRING{table, to_lower_case(table, sizeof table)};
    if (db_name.str) {
      strmake_buf(db, db_name.str);
      db_name = LEX_CSTRING{db, to_lower_case(db, sizeof db)};
    }
  }
  if (db_name.str) return engine_name(db_name, table_name);
  return database_of(child) + "/" + engine_name({STRING_WITH_LEN("d")}, table_name).substr(2);
}

std::string list_of(List<Key_part_spec> columns) {
  std::string text = "(";
  List_iterator_fast<Key_part_spec> at(columns);
  while (const Key_part_spec *column = at++)
    text += (text.size() > 1 ? ", " : "") + text_of(column->field_name);
  return text + ")";
}

/* A constraint under examination. */
struct Candidate {
  THD *thd;
  const TABLE *form;
  std::string table; /* the child, as the user knows it */
  std::string said;  /* the constraint, as the user wrote it */

  int refuse(const std::string &why) const {
    std::string db, name;
    server_names(table, &db, &name);
    Abort_on_warning_instant_set no_error(thd, false);
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, HA_ERR_CANNOT_ADD_FOREIGN,
                        "Foreign key %s of table %s.%s can't be: %s", said.c_str(), db.c_str(),
                        name.c_str(), why.c_str());
    return HA_ERR_CANNOT_ADD_FOREIGN;
  }
};

/* Names as the table has them, in place of those of the statement. */
void take_names(const TABLE_SHARE *share, const std::vector<uint16> &columns,
                std::vector<std::string> *names) {
  for (size_t i = 0; i < columns.size(); i++)
    (*names)[i] = text_of(share->field[columns[i]]->field_name);
}

/* Whether a stored generated column is computed from one of these, be it by way of virtual ones. */
bool is_base_of_stored(const TABLE *form, const std::vector<uint16> &columns) {
  if (!form->vfield) return false;
  std::vector<bool> bases(form->s->fields);
  for (uint16 column : columns) bases[column] = true;
  return !add_computed(form, &bases, [](const Field *field) { return field->stored_in_db(); });
}

/* The side of the parent, which `share` describes. */
int check_parent_side(const Candidate &candidate, const TABLE_SHARE *share, const KEY *keys,
                      const TABLE_SHARE *own, const std::vector<uint16> &columns, Constraint *key) {
  std::vector<uint16> referenced;
  std::string missing;
  if (!columns_of(share, key->referenced, &referenced, &missing))
    return candidate.refuse("the referenced table has no column " + missing);
  take_names(share, referenced, &key->referenced);
  if (share->versioned) return candidate.refuse("the referenced table has system versioning");
  for (size_t i = 0; i < columns.size(); i++)
    if (!are_comparable(own, columns[i], share, referenced[i]))
      return candidate.refuse("the type or the collation of column " + key->columns[i] +
                              " is not that of the referenced column " + key->referenced[i]);
  bool is_prefix = false;
  if (tree_of_columns(Layouts(share, keys), referenced, &is_prefix) < 0)
    return candidate.refuse(
        is_prefix
            ? "the index of the referenced table has only the beginning of a column"
            : "the referenced table has no index in which the referenced columns are the first");
  return 0;
}

Constraint::Action action_of(const Candidate &candidate, enum_fk_option option, const char *event) {
  switch (option) {
    case FK_OPTION_CASCADE: return Constraint::CASCADE;
    case FK_OPTION_SET_NULL: return Constraint::SET_NULL;
    case FK_OPTION_NO_ACTION: return Constraint::NO_ACTION;
    case FK_OPTION_SET_DEFAULT:
      push_warning_printf(
          candidate.thd, Sql_condition::WARN_LEVEL_WARN, ER_ILLEGAL_HA_CREATE_OPTION,
          "Tidepool: foreign key %s: ON %s SET DEFAULT is not supported, and acts as RESTRICT",
          candidate.said.c_str(), event);
      return Constraint::RESTRICT;
    default: return Constraint::RESTRICT;
  }
}

/* Actions write the columns of the constraint and nothing else of a row. A server that looks at
   this itself comes first (10.11.18 does). */
int check_computed_columns(const Candidate &candidate, const std::vector<uint16> &columns,
                           const Constraint &key) {
  const bool sets_null =
      key.on_delete == Constraint::SET_NULL || key.on_update == Constraint::SET_NULL;
  if ((sets_null || key.on_update == Constraint::CASCADE) &&
      is_base_of_stored(candidate.form, columns))
    return candidate.refuse("a stored generated column is computed from one of its columns");
  return 0;
}

/* `user_name` is the table as it will be known. */
int examine(const Candidate &candidate, const std::string &user_name, const Layouts &layouts,
            Constraint *key) {
  const TABLE *form = candidate.form;
  std::vector<uint16> columns;
  std::string missing;
  if (!columns_of(form->s, key->columns, &columns, &missing))
    return candidate.refuse("there is no column " + missing);
  take_names(form->s, columns, &key->columns);
  for (uint16 column : columns)
    if (!can_be_in_foreign_key(form->s, column))
      return candidate.refuse("column " + text_of(form->s->field[column]->field_name) +
                              " is virtual or compressed, or a BLOB or TEXT");
  if (form->versioned()) return candidate.refuse("the table has system versioning");
  const bool sets_null =
      key->on_delete == Constraint::SET_NULL || key->on_update == Constraint::SET_NULL;
  for (uint16 column : columns)
    if (sets_null && !form->field[column]->real_maybe_null())
      return candidate.refuse("column " + text_of(form->s->field[column]->field_name) +
                              " is NOT NULL, and SET NULL would set it to NULL");
  if (int error = check_computed_columns(candidate, columns, *key)) return error;
  if (tree_of_columns(layouts, columns) < 0)
    return candidate.refuse("the table has no index in which its columns are the first");

  /* Rows that a copy is filled with are checked against the table that is there, which must have
     the index, too. */
  const bool is_in_copy = is_intermediate(key->child) && altered_table(candidate.thd) == user_name;
  if (key->parent == user_name) {
    const int error = check_parent_side(candidate, form->s, form->key_info, form->s, columns, key);
    if (error || !is_in_copy) return error;
  }
  if (!lock_definition(candidate.thd, key->parent)) return HA_ERR_LOCK_WAIT_TIMEOUT;
  const Definition parent(candidate.thd, key->parent);
  if (!parent.share) {
    std::string db, name;
    server_names(key->parent, &db, &name);
    if (!checks_are_on(candidate.thd)) return 0;
    return candidate.refuse(
        "the referenced table " + db + "." + name +
        (parent.is_foreign ? " is partitioned, or of another engine" : " does not exist"));
  }
  return check_parent_side(candidate, parent.share, parent.share->key_info, form->s, columns, key);
}

/* The greatest n of names `<table>_ibfk_<n>`. */
ulong greatest_number(const std::string &table, const Constraint_list &keys) {
  const std::string prefix = table + "_ibfk_";
  ulong greatest = 0;
  for (const Constraint_ptr &key : keys)
    if (key->name.compare(0, prefix.size(), prefix) == 0)
      greatest = std::max(greatest, strtoul(key->name.c_str() + prefix.size(), nullptr, 10));
  return greatest;
}

} // namespace

std::string altered_table(THD *thd) {
  switch (thd_sql_command(thd)) {
    case SQLCOM_ALTER_TABLE:
    case SQLCOM_CREATE_INDEX:
    case SQLCOM_DROP_INDEX: {
      const TABLE_LIST *table = thd->lex->query_tables;
      return table ? engine_name(table->db, table->table_name) : std::string();
    }
    default: return {};
  }
}

std::string user_name_of(THD *thd, const TABLE *form, const std::string &path_name) {
  if (!is_intermediate(path_name)) return path_name;
  const std::string shown = engine_name(form->s->db, form->s->table_name);
  return is_intermediate(shown) ? altered_table(thd) : shown;
}

Renamed_columns renamed_columns(const Alter_info *alter) {
  Renamed_columns renamed;
  List_iterator_fast<Create_field> fields(const_cast<Alter_info *>(alter)->create_list);
  while (const Create_field *field = fields++)
    if (field->field &&
        !same_identifier(text_of(field->field->field_name), text_of(field->field_name)))
      renamed.emplace_back(text_of(field->field->field_name), text_of(field->field_name));
  return renamed;
}

/* Columns as they are called after the statement. */
static std::vector<std::string> names_after(const std::vector<std::string> &names,
                                            const Alter_info *alter) {
  std::vector<std::string> now = names;
  if (alter)
    for (const auto &[before, after] : renamed_columns(alter))
      for (size_t i = 0; i < names.size(); i++)
        if (same_identifier(names[i], before)) now[i] = after;
  return now;
}

int foreign_keys_of_statement(THD *thd, TABLE *form, const HA_CREATE_INFO *info,
                              const Alter_info *alter, const std::string &path_name,
                              Constraint_list *keys) {
  keys->clear();
  if (!alter) return 0;
  const bool is_copy = is_intermediate(path_name);
  const std::string altered = altered_table(thd);
  const std::string user_name = user_name_of(thd, form, path_name);
  std::string db, user_table;
  server_names(user_name, &db, &user_table);
  const bool is_renamed = is_copy && !altered.empty() && altered != user_name;

  std::unique_ptr<Layouts> layouts;
  std::vector<bool> unnamed;
  List_iterator_fast<Key> statement_keys(const_cast<Alter_info *>(alter)->key_list);
  while (Key *one = statement_keys++) {
    if (one->type != Key::FOREIGN_KEY) continue;
    /* CREATE TABLE … LIKE gets them, too, and makes none. */
    const bool is_old = one->old;
    if (is_old && altered.empty() && !is_copy) continue;
    auto *said = static_cast<::Foreign_key *>(one);
    auto key = std::make_shared<Constraint>();
    key->child = path_name;
    key->name = said->constraint_name.str ? text_of(said->constraint_name) : std::string();
    key->is_copied = is_old;
    Candidate candidate{thd, form, user_name,
                        key->name.empty() ? list_of(said->columns) : key->name};
    if (info->tmp_table()) return candidate.refuse("a temporary table has no foreign keys");
    List_iterator_fast<Key_part_spec> own(said->columns), other(said->ref_columns);
    while (const Key_part_spec *column = own++) key->columns.push_back(text_of(column->field_name));
    while (const Key_part_spec *column = other++)
      key->referenced.push_back(text_of(column->field_name));
    if (key->columns.size() != key->referenced.size() || key->columns.empty())
      return candidate.refuse("the referenced columns are not as many as its own");
    key->parent = referenced_name(user_name, said);
    if (is_renamed && key->parent == altered) key->parent = user_name;
    key->on_delete = action_of(candidate, said->delete_opt, "DELETE");
    key->on_update = action_of(candidate, said->update_opt, "UPDATE");
    if (is_old && is_renamed) key->name = renamed_constraint(key->name, altered, user_name);
    if (!layouts) layouts = std::make_unique<Layouts>(form);
    if (is_old && form->versioned()) return candidate.refuse("the table gets system versioning");
    if (is_old && key->parent != user_name) {
      /* The parent keeps its name, and its columns theirs, until this is done; both were read
         before that was certain. */
      if (!lock_definition(thd, key->parent)) return HA_ERR_LOCK_WAIT_TIMEOUT;
      const Constraint_list now = foreign_keys.of_child(altered.empty() ? user_name : altered);
      const bool is_there = std::any_of(now.begin(), now.end(), [&](const Constraint_ptr &one) {
        return one->parent == key->parent && one->referenced == key->referenced;
      });
      if (!is_there) return HA_ERR_TABLE_DEF_CHANGED;
    }
    if (is_old) {
      /* The server has looked at its columns, and perhaps not at what the statement adds that is
         computed from them; indexes are looked at by has_indexes_for_foreign_keys(). */
      std::vector<uint16> columns;
      std::string missing;
      if (columns_of(form->s, names_after(key->columns, alter), &columns, &missing))
        if (int error = check_computed_columns(candidate, columns, *key)) return error;
      keys->push_back(std::move(key));
      continue;
    }
    if (int error = examine(candidate, user_name, *layouts, key.get())) return error;
    keys->push_back(std::move(key));
  }

  ulong number = std::max(
      greatest_number(user_table, *keys),
      greatest_number(user_table, foreign_keys.of_child(altered.empty() ? user_name : altered)));
  for (Constraint_ptr &key : *keys) {
    if (!key->name.empty()) continue;
    auto named = std::make_shared<Constraint>(*key);
    named->name = user_table + "_ibfk_" + std::to_string(++number);
    key = std::move(named);
  }
  for (size_t i = 0; i < keys->size(); i++) {
    const std::string &name = (*keys)[i]->name;
    bool is_taken = foreign_keys.has_name(name, user_name, altered);
    for (size_t other = 0; other < i; other++)
      is_taken |= same_identifier((*keys)[other]->name, name);
    if (!is_taken) continue;
    Abort_on_warning_instant_set no_error(thd, false);
    push_warning_printf(
        thd, Sql_condition::WARN_LEVEL_WARN, HA_ERR_FOUND_DUPP_KEY,
        "Foreign key %s of table %s.%s can't be: the database has a constraint of this name",
        name.c_str(), db.c_str(), user_table.c_str());
    return HA_ERR_FOUND_DUPP_KEY;
  }
  return 0;
}

static bool has_index(const TABLE_SHARE *form, const Layouts &layouts,
                      const std::vector<std::string> &names, const Alter_info *alter) {
  std::vector<uint16> columns;
  std::string missing;
  return columns_of(form, names_after(names, alter), &columns, &missing) &&
         tree_of_columns(layouts, columns) >= 0;
}

bool has_indexes_for_foreign_keys(THD *thd, const TABLE_SHARE *form, const KEY *form_keys,
                                  const std::string &table, const Constraint_list &own,
                                  const Alter_info *alter) {
  const Constraint_list referencing = foreign_keys.of_parent(table);
  if (own.empty() && referencing.empty()) return true;
  if (form->versioned && !referencing.empty()) {
    Abort_on_warning_instant_set no_error(thd, false);
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, HA_ERR_CANNOT_ADD_FOREIGN,
                        "Foreign key %s: a referenced table can't have system versioning",
                        referencing[0]->name.c_str());
    my_error(ER_CANNOT_ADD_FOREIGN, MYF(0), form->table_name.str);
    return false;
  }
  const Layouts layouts(form, form_keys);
  bool good = true;
  for (const Constraint_ptr &key : own)
    good = good && has_index(form, layouts, key->columns, alter);
  if (checks_are_on(thd))
    for (const Constraint_ptr &key : referencing) {
      /* One that goes with this statement. */
      const bool stays = key->child != table ||
                         std::any_of(own.begin(), own.end(), [&](const Constraint_ptr &one) {
                           return same_identifier(one->name, key->name);
                         });
      good = good && (!stays || has_index(form, layouts, key->referenced, alter));
    }
  if (good) return true;
  const char *dropped = "?";
  if (alter) {
    List_iterator_fast<Alter_drop> drops(const_cast<Alter_info *>(alter)->drop_list);
    while (const Alter_drop *drop = drops++)
      if (drop->type == Alter_drop::KEY) dropped = c_str(drop->name);
  }
  if (*dropped == '?' && thd->lex) {
    List_iterator_fast<Alter_drop> drops(thd->lex->alter_info.drop_list);
    while (const Alter_drop *drop = drops++)
      if (drop->type == Alter_drop::KEY) dropped = c_str(drop->name);
  }
  my_error(ER_DROP_INDEX_FK, MYF(0), dropped);
  return false;
}

/* Whether the columns that other tables reference are still there, with values that compare as
   before. Those that did not fit in `now` need not. */
static bool keeps_referenced_columns(const TABLE_SHARE *now, const TABLE_SHARE *next,
                                     const std::string &table, const Alter_info *alter) {
  for (const Constraint_ptr &key : foreign_keys.of_parent(table)) {
    std::vector<uint16> before, after;
    std::string missing, db, child;
    if (key->child == table || !columns_of(now, key->referenced, &before, &missing)) continue;
    server_names(key->child, &db, &child);
    const std::string of_child = db + "." + child;
    if (!columns_of(next, names_after(key->referenced, alter), &after, &missing)) {
      my_error(ER_FK_COLUMN_CANNOT_DROP_CHILD, MYF(0), missing.c_str(), key->name.c_str(),
               of_child.c_str());
      return false;
    }
    for (size_t i = 0; i < before.size(); i++) {
      if (!can_be_in_foreign_key(now, before[i]) || are_comparable(now, before[i], next, after[i]))
        continue;
      my_error(ER_FK_COLUMN_CANNOT_CHANGE_CHILD, MYF(0), key->referenced[i].c_str(),
               key->name.c_str(), of_child.c_str());
      return false;
    }
  }
  return true;
}

bool keeps_its_children(THD *thd, const TABLE_SHARE *now, const TABLE_SHARE *next,
                        const KEY *next_keys, const std::string &table, const Alter_info *alter) {
  if (!checks_are_on(thd)) return true;
  return keeps_referenced_columns(now, next, table, alter) &&
         has_indexes_for_foreign_keys(thd, next, next_keys, table, {}, alter);
}

namespace {
/* A definition as a .frm file has it, of which the server's cache does not learn: the file is about
   to be another. */
class Definition_in_file {
public:
  Definition_in_file(THD *thd, const std::string &table, const std::string &path) : path(path) {
    server_names(table, &db, &name);
    init_private_share(thd, &share, db.c_str(), name.c_str(), this->path.c_str(), 0);
    is_read = open_table_def(thd, &share, GTS_TABLE) == OPEN_FRM_OK;
  }
  ~Definition_in_file() { free_table_share(&share); }
  Definition_in_file(const Definition_in_file &) = delete;
  Definition_in_file &operator=(const Definition_in_file &) = delete;

  TABLE_SHARE share;
  bool is_read;

private:
  std::string path, db, name;
};
} // namespace

bool keeps_its_children(THD *thd, const std::string &now_path, const std::string &next_path,
                        const std::string &table) {
  const Constraint_list referencing = foreign_keys.of_parent(table);
  const bool is_parent =
      std::any_of(referencing.begin(), referencing.end(),
                  [&](const Constraint_ptr &key) { return key->child != table; });
  if (!is_parent || !checks_are_on(thd)) return true;
  const Definition_in_file now(thd, table, now_path), next(thd, table, next_path);
  if (!now.is_read || !next.is_read) {
    if (!thd->is_error()) my_error(ER_TABLE_DEF_CHANGED, MYF(0));
    return false;
  }
  if (next.share.db_type() != engine.hton) {
    my_error(ER_FEATURE_NOT_SUPPORTED_WITH_PARTITIONING, MYF(0), "FOREIGN KEY");
    return false;
  }
  return keeps_its_children(thd, &now.share, &next.share, next.share.key_info, table, nullptr);
}

int check_referencing(THD *thd, TABLE *form, const std::string &name) {
  if (!checks_are_on(thd)) return 0;
  for (const Constraint_ptr &key : foreign_keys.of_parent(name)) {
    if (key->child == name) continue;
    if (!lock_definition(thd, key->child)) return HA_ERR_LOCK_WAIT_TIMEOUT;
    const Definition child(thd, key->child);
    if (!child.share) continue;
    Candidate candidate{thd, form, key->child, key->name};
    std::vector<uint16> columns;
    std::string missing;
    if (!columns_of(child.share, key->columns, &columns, &missing)) continue;
    Constraint copy = *key;
    if (int error =
            check_parent_side(candidate, form->s, form->key_info, child.share, columns, &copy))
      return error;
  }
  return 0;
}

/* Whether the statement that drops a table of `database` drops this one, too: not if it is a
   temporary table that has this name. */
static bool is_dropped_too(THD *thd, const std::string &database, const std::string &child) {
  if (thd_sql_command(thd) == SQLCOM_DROP_DB) return database_of(child) == database;
  if (thd_sql_command(thd) != SQLCOM_DROP_TABLE) return false;
  for (const TABLE_LIST *table = thd->lex->query_tables; table; table = table->next_global)
    if (engine_name(table->db, table->table_name) == child)
      /* Within LOCK TABLES it will have an exclusive one when it is this table's turn. */
      return thd->mdl_context.is_lock_owner(MDL_key::TABLE, table->db.str, table->table_name.str,
                                            MDL_SHARED_NO_READ_WRITE);
  return false;
}

/* A child that goes with its parent must be one that can go: a constraint on that forbids both. */
static Constraint_ptr forbids_drop_of(THD *thd, const std::string &database,
                                      const std::string &name, std::set<std::string> *seen) {
  if (!seen->insert(name).second) return nullptr;
  for (const Constraint_ptr &key : foreign_keys.of_parent(name)) {
    if (key->child == name) continue;
    if (!is_dropped_too(thd, database, key->child)) return key;
    if (Constraint_ptr further = forbids_drop_of(thd, database, key->child, seen)) return further;
  }
  return nullptr;
}

Constraint_ptr forbids_drop(THD *thd, const std::string &name) {
  /* What the server finishes after a crash was allowed before. */
  if (!mysqld_server_started) return nullptr;
  if (!thd || !checks_are_on(thd) || is_intermediate(name)) return nullptr;
  std::set<std::string> seen;
  return forbids_drop_of(thd, database_of(name), name, &seen);
}

} // namespace tidepool
