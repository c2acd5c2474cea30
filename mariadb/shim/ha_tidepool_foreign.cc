/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* What the server asks about foreign keys: for SHOW CREATE TABLE, information_schema, ALTER TABLE,
   and to open children. */
#include "definition_files.h"
#include "description.h"
#include "engine.h"
#include "foreign_key_definition.h"
#include "foreign_key_index.h"
#include "ha_tidepool.h"
#include <algorithm>

using namespace tidepool;

namespace {

LEX_CSTRING *name_for(THD *thd, const std::string &name) {
  return thd_make_lex_string(thd, nullptr, name.data(), name.size(), 1);
}

enum_fk_option option_of(Constraint::Action action) {
  switch (action) {
    case Constraint::CASCADE: return FK_OPTION_CASCADE;
    case Constraint::SET_NULL: return FK_OPTION_SET_NULL;
    case Constraint::NO_ACTION: return FK_OPTION_NO_ACTION;
    default: return FK_OPTION_RESTRICT;
  }
}

/* Where columns of one side can be NULL. */
void tell_nullable(THD *thd, FOREIGN_KEY_INFO *info, bool referenced, const TABLE_SHARE *share,
                   const std::vector<std::string> &names) {
  std::vector<uint16> columns;
  std::string missing;
  if (!share || !columns_of(share, names, &columns, &missing)) return;
  for (uint i = 0; i < columns.size(); i++)
    if (share->field[columns[i]]->real_maybe_null())
      info->set_nullable(thd, referenced, i, static_cast<uint>(columns.size()));
}

/* `share` is that of one of the two tables. Whether the other's columns can be NULL, and what its
   key is called, is asked for only if it is wanted: statements that change rows don't want it. */
FOREIGN_KEY_INFO *info_of(THD *thd, const Constraint &key, const TABLE_SHARE *share, bool is_child,
                          bool other_wanted) {
  void *const place = thd_alloc(thd, sizeof(FOREIGN_KEY_INFO));
  if (!place) return nullptr;
  auto *info = new (place) FOREIGN_KEY_INFO;
  std::string db, table;
  server_names(key.child, &db, &table);
  info->foreign_id = name_for(thd, key.name);
  info->foreign_db = name_for(thd, db);
  info->foreign_table = name_for(thd, table);
  server_names(key.parent, &db, &table);
  info->referenced_db = name_for(thd, db);
  info->referenced_table = name_for(thd, table);
  info->update_method = option_of(key.on_update);
  info->delete_method = option_of(key.on_delete);
  info->referenced_key_name = nullptr;
  for (const std::string &column : key.columns)
    info->foreign_fields.push_back(name_for(thd, column), thd->mem_root);
  for (const std::string &column : key.referenced)
    info->referenced_fields.push_back(name_for(thd, column), thd->mem_root);

  if (!other_wanted) return info;
  /* Of the other table nothing is said while somebody changes it. */
  const std::string &other = is_child ? key.parent : key.child;
  std::unique_ptr<Definition> definition;
  const TABLE_SHARE *other_share = nullptr;
  if (key.is_self_reference()) {
    other_share = share;
  } else if (try_lock_definition(thd, other)) {
    definition = std::make_unique<Definition>(thd, other);
    other_share = definition->share;
  }
  const TABLE_SHARE *child = is_child ? share : other_share,
                    *parent = is_child ? other_share : share;
  tell_nullable(thd, info, false, child, key.columns);
  tell_nullable(thd, info, true, parent, key.referenced);
  std::vector<uint16> columns;
  std::string missing;
  if (parent && columns_of(parent, key.referenced, &columns, &missing)) {
    const Layouts layouts(parent, parent->key_info);
    const int tree = tree_of_columns(layouts, columns);
    const uint keynr = tree < 0 ? MAX_KEY : layouts.key_of(static_cast<uint>(tree));
    if (keynr < MAX_KEY)
      info->referenced_key_name = name_for(thd, parent->key_info[keynr].name.str);
  }
  return info;
}

} // namespace

char *ha_tidepool::get_foreign_key_create_info() {
  std::string text;
  if (!shared) return nullptr; /* of a table that is being made */
  for (const Constraint_ptr &key : foreign_keys.of_child(shared->name))
    text += ",\n  " + foreign_key_clause(ha_thd(), *key);
  if (text.empty()) return nullptr;
  return my_strndup(PSI_NOT_INSTRUMENTED, text.data(), text.size(), MYF(MY_WME));
}

void ha_tidepool::free_foreign_key_create_info(char *text) { my_free(text); }

int ha_tidepool::get_foreign_key_list(THD *thd, List<FOREIGN_KEY_INFO> *list) {
  for (const Constraint_ptr &key : foreign_keys.of_child(shared->name))
    if (FOREIGN_KEY_INFO *info = info_of(thd, *key, table_share, true, true))
      list->push_back(info, thd->mem_root);
  return 0;
}

int ha_tidepool::get_parent_foreign_key_list(THD *thd, List<FOREIGN_KEY_INFO> *list) {
  const bool is_definition = !altered_table(thd).empty();
  /* The server opens the tables whose rows may be changed, by the event of its statement. Where an
     action changes rows here, a deletion becomes an update further on: then either event counts. */
  const Constraint_list own = foreign_keys.of_child(shared->name);
  const bool is_between =
      !is_definition && std::any_of(own.begin(), own.end(), [](const Constraint_ptr &key) {
        return Constraint::changes_rows(key->on_delete) || Constraint::changes_rows(key->on_update);
      });
  for (const Constraint_ptr &key : foreign_keys.of_parent(shared->name)) {
    FOREIGN_KEY_INFO *info = info_of(thd, *key, table_share, false, is_definition);
    if (!info) continue;
    if (is_between)
      info->delete_method = info->update_method = MY_MAX(info->delete_method, info->update_method);
    list->push_back(info, thd->mem_root);
  }
  return 0;
}

bool ha_tidepool::referenced_by_foreign_key() const noexcept {
  auto *self = const_cast<ha_tidepool *>(this);
  if (unlikely(foreign_generation != foreign_keys.generation())) self->find_foreign_keys();
  return unlikely(foreign != nullptr) && foreign->is_referenced();
}

bool ha_tidepool::can_switch_engines() { return !foreign_keys.is_concerned(shared->name); }

bool ha_tidepool::is_fk_defined_on_table_or_index(uint index) {
  if (index == MAX_KEY) return foreign_keys.is_concerned(shared->name);
  const Layouts &layouts = shared->layouts;
  const int tree = static_cast<int>(layouts.tree_of(index));
  auto needs = [&](const std::vector<std::string> &names) {
    std::vector<uint16> columns;
    std::string missing;
    return columns_of(table_share, names, &columns, &missing) &&
           tree_of_columns(layouts, columns) == tree;
  };
  for (const Constraint_ptr &key : foreign_keys.of_child(shared->name))
    if (needs(key->columns)) return true;
  for (const Constraint_ptr &key : foreign_keys.of_parent(shared->name))
    if (needs(key->referenced)) return true;
  return false;
}

bool ha_tidepool::get_foreign_dup_key(char *child_table, uint child_table_len, char *child_key,
                                      uint child_key_len) {
  const Session *of = session_of(ha_thd());
  if (!of || of->violated.empty()) return false;
  std::string db, name;
  server_names(of->violated, &db, &name);
  my_snprintf(child_table, child_table_len, "%s", name.c_str());
  my_snprintf(child_key, child_key_len, "%s", of->violated_key.c_str());
  return true;
}

/* ---- ALTER TABLE in place */

namespace {
/* Constraints alone are changed. */
class Foreign_key_change final : public inplace_alter_handler_ctx {
public:
  Constraint_list keys;
};

constexpr alter_table_operations FOREIGN_KEY_CHANGES =
    ALTER_ADD_FOREIGN_KEY | ALTER_DROP_FOREIGN_KEY;
} // namespace

enum_alter_inplace_result ha_tidepool::check_foreign_key_change(Alter_inplace_info *info) {
  const alter_table_operations flags = info->handler_flags;
  if (flags & FOREIGN_KEY_CHANGES) {
    /* Rows are checked as they are copied. */
    const bool needs_rows = (flags & ALTER_ADD_FOREIGN_KEY) &&
                            !thd_test_options(ha_thd(), OPTION_NO_FOREIGN_KEY_CHECKS);
    const bool is_alone = !(flags & ~FOREIGN_KEY_CHANGES) && !info->ignore;
    return is_alone && !needs_rows && table_share->tmp_table == NO_TMP_TABLE
               ? HA_ALTER_INPLACE_INSTANT
               : HA_ALTER_INPLACE_NOT_SUPPORTED;
  }
  /* The server knows of a copy which columns may not go. */
  if ((flags & ALTER_DROP_STORED_COLUMN) && foreign_keys.is_concerned(shared->name))
    return HA_ALTER_INPLACE_NOT_SUPPORTED;
  return HA_ALTER_INPLACE_COPY_NO_LOCK;
}

/* true: an error was sent. */
bool ha_tidepool::prepare_foreign_keys(TABLE *altered, Alter_inplace_info *info) {
  THD *thd = ha_thd();
  if (info->handler_flags & FOREIGN_KEY_CHANGES) {
    auto *change = new Foreign_key_change;
    info->handler_ctx = change;
    const int error = foreign_keys_of_statement(thd, altered, info->create_info, info->alter_info,
                                                shared->name, &change->keys);
    if (!error) return false;
    if (!thd->is_error())
      my_error(ER_CANT_CREATE_TABLE, MYF(0), table_share->db.str, table_share->table_name.str,
               error);
    return true;
  }
  return !has_indexes_for_foreign_keys(thd, altered->s, altered->key_info, shared->name,
                                       foreign_keys.of_child(shared->name), info->alter_info);
}

/* An HA_ERR_* code. */
int ha_tidepool::commit_foreign_keys(TABLE *altered, Alter_inplace_info *info) {
  std::lock_guard<std::mutex> guard(foreign_keys.definitions);
  auto *change = dynamic_cast<Foreign_key_change *>(info->handler_ctx);
  Attachments attached = Attachments::of_alter(shared->name, altered);
  attach_description(ha_thd(), shared->name, altered, &attached);
  if (!change)
    return fail(
        foreign_keys.rename_columns(shared->name, renamed_columns(info->alter_info), attached));
  for (Constraint_ptr &key : change->keys) {
    auto kept = std::make_shared<Constraint>(*key);
    kept->is_copied = false;
    key = std::move(kept);
  }
  return fail(foreign_keys.replace(shared->name, change->keys, attached));
}
