/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* Rows written and deleted: the checks of foreign keys, and what follows from them. */
#include "foreign_key_check.h"
#include "engine.h"
#include "errors.h"
#include "ha_tidepool.h"
#include <algorithm>

namespace tidepool {

Foreign_checks::Foreign_checks(const std::string &table) {
  for (Constraint_ptr &key : foreign_keys.of_child(table)) own.push_back({std::move(key), nullptr});
  for (Constraint_ptr &key : foreign_keys.of_parent(table)) referencing.push_back({std::move(key), nullptr});
  /* InnoDB's order, which shows where several actions meet. */
  auto comes_before = [](const Side &a, const Side &b) {
    const std::string a_db = database_of(a.key->child), b_db = database_of(b.key->child);
    return a_db != b_db ? a_db < b_db : a.key->name < b.key->name;
  };
  std::sort(own.begin(), own.end(), comes_before);
  std::sort(referencing.begin(), referencing.end(), comes_before);
}

int Foreign_checks::lock(THD *thd, const std::vector<Side> &sides, bool parents, bool *locked) {
  if (likely(*locked)) return 0;
  for (const Side &side : sides) {
    if (side.key->is_self_reference() || side.key->is_copied) continue;
    if (!lock_definition(thd, parents ? side.key->parent : side.key->child))
      return server_error(thd->is_error() && thd->get_stmt_da()->sql_errno() == ER_LOCK_DEADLOCK ? TP_DEADLOCK : TP_LOCK_TIMEOUT,
                          thd);
  }
  *locked = true;
  return 0;
}

/* ---- what the two directions share */

static int wait_mode(THD *thd) { return lock_wait_timeout(thd) == 0 ? TP_NO_WAIT : TP_WAIT; }

static int violation(THD *thd, Session *session, const Constraint &key, int error) {
  session->violated = foreign_key_of_table(thd, key);
  return error;
}

/* A constraint that can't be checked is not satisfied. */
static int unusable(THD *thd, Session *session, const Constraint &key, const std::string &problem, int error) {
  /* Beside the error, in whose place strict mode must not put it. */
  Abort_on_warning_instant_set no_error(thd, false);
  push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_CANNOT_ADD_FOREIGN, "Tidepool: foreign key %s: %s", key.name.c_str(),
                      problem.c_str());
  return violation(thd, session, key, error);
}

static bool differ(const std::vector<Part> &parts, const uchar *a, const uchar *b) {
  return std::any_of(parts.begin(), parts.end(), [=](const Part &part) { return !part.column.same(a, b); });
}

namespace {
/* A step of the session's cascade, while its actions are at work. */
class Step {
public:
  Step(Session *of, const std::string &table, bool is_delete) : session(of) { session->cascade.push_back({&table, is_delete}); }
  ~Step() { session->cascade.pop_back(); }

private:
  Session *session;
};
} // namespace

/* Whether the statement, or an action that leads here, updates rows of the table. */
static bool is_being_updated(const Session *session, const std::string &table) {
  return std::any_of(session->cascade.begin(), session->cascade.end(),
                     [&](const Cascade_step &step) { return !step.is_delete && *step.table == table; });
}

} // namespace tidepool

using namespace tidepool;

/* ---- a handler's view of its constraints */

void ha_tidepool::find_foreign_keys() {
  foreign_generation = foreign_keys.generation();
  auto found = std::make_shared<Foreign_checks>(shared->name);
  foreign = found->is_empty() ? nullptr : std::move(found);
}

/* The constraints as they are under the metadata locks of the other tables. None: *checks is null. */
int ha_tidepool::lock_foreign_keys(bool parents, bool children, std::shared_ptr<Foreign_checks> *checks) {
  THD *thd = ha_thd();
  for (;;) {
    if (!foreign_checks()) {
      *checks = nullptr;
      return 0;
    }
    *checks = foreign;
    if (parents)
      if (int error = (*checks)->lock_parents(thd)) return error;
    if (children)
      if (int error = (*checks)->lock_children(thd)) return error;
    if (likely(foreign_generation == foreign_keys.generation())) return 0;
  }
}

/* The other table's index, opened once. */
int ha_tidepool::open_foreign_index(Foreign_checks::Side &side, bool is_parent) {
  if (likely(side.index != nullptr)) return 0;
  const Constraint &key = *side.key;
  if (is_parent && thd_sql_command(ha_thd()) == SQLCOM_ALTER_TABLE) {
    /* What a prepared transaction without a session has written to the parent, no metadata lock tells of. */
    give_away_parted();
    if (int result = tp_check_copy(engine.db, key.parent.data(), key.parent.size())) return fail(result);
  }
  auto index = std::make_unique<Foreign_index>();
  const int error = is_parent ? index->open(ha_thd(), key.parent, key.referenced, table_share, key.columns)
                              : index->open(ha_thd(), key.child, key.columns, table_share, key.referenced);
  if (!error) side.index = std::move(index);
  return error;
}

/* Whether the parent of this row is there. */
int ha_tidepool::check_parent(Foreign_checks::Side &side, const uchar *record) {
  THD *thd = ha_thd();
  const Constraint &key = *side.key;
  const std::string &problem = side.index->problem();
  if (unlikely(!problem.empty())) {
    /* A row without a value references nothing, whatever the parent. */
    for (const std::string &name : key.columns)
      for (Field **field = table->field; *field; field++)
        if (same_identifier((*field)->field_name.str, name) && (*field)->is_null(record - table->record[0])) return 0;
    return unusable(thd, session, key, problem, HA_ERR_NO_REFERENCED_ROW);
  }
  if (!side.index->encode(record, table)) return 0;
  /* While ALTER TABLE checks the rows that it copies, nobody writes the parent: a million locks would say no more. */
  const int lock = thd_sql_command(thd) == SQLCOM_ALTER_TABLE ? TP_LOCK_NONE : TP_LOCK_SHARED;
  const Referential_scope scope(session);
  const int result = side.index->find(session->trx, lock, wait_mode(thd));
  if (likely(result == TP_OK)) return 0;
  return result == TP_END ? violation(thd, session, key, HA_ERR_NO_REFERENCED_ROW) : fail(result);
}

int ha_tidepool::check_foreign_insert(const uchar *record) {
  std::shared_ptr<Foreign_checks> checks;
  if (int error = lock_foreign_keys(true, false, &checks)) return error;
  if (!checks) return 0;
  for (Foreign_checks::Side &side : checks->own) {
    if (side.key->is_copied) continue;
    if (int error = open_foreign_index(side, true)) return error;
    if (int error = check_parent(side, record)) return error;
  }
  return 0;
}

int ha_tidepool::check_foreign_update(const uchar *old_record, const uchar *new_record) {
  std::shared_ptr<Foreign_checks> checks;
  if (int error = lock_foreign_keys(true, true, &checks)) return error;
  if (!checks) return 0;
  for (Foreign_checks::Side &side : checks->own) {
    if (int error = open_foreign_index(side, true)) return error;
    if (side.index->problem().empty() && !differ(side.index->own_parts(), old_record, new_record)) continue;
    if (int error = check_parent(side, new_record)) return error;
  }
  const Step step(session, shared->name, false);
  for (Foreign_checks::Side &side : checks->referencing) {
    if (int error = open_foreign_index(side, false)) return error;
    if (side.index->problem().empty() && !differ(side.index->own_parts(), old_record, new_record)) continue;
    if (int error = act_on_children(side, side.key->on_update, old_record, new_record)) return error;
  }
  return 0;
}

int ha_tidepool::check_foreign_delete(const uchar *record) {
  std::shared_ptr<Foreign_checks> checks;
  if (int error = lock_foreign_keys(false, true, &checks)) return error;
  if (!checks) return 0;
  const Step step(session, shared->name, true);
  for (Foreign_checks::Side &side : checks->referencing) {
    if (int error = open_foreign_index(side, false)) return error;
    if (int error = act_on_children(side, side.key->on_delete, record, nullptr)) return error;
  }
  return 0;
}

/* A row that had this key has it no longer: `next` is what became of the row, if it is not gone. */
int ha_tidepool::act_on_children(Foreign_checks::Side &side, Constraint::Action action, const uchar *record, const uchar *next) {
  THD *thd = ha_thd();
  const Constraint &key = *side.key;
  Foreign_index &index = *side.index;
  if (unlikely(!index.problem().empty())) return unusable(thd, session, key, index.problem(), HA_ERR_ROW_IS_REFERENCED);
  if (!index.encode(record, table)) return 0;
  const std::string children(reinterpret_cast<const char *>(index.key()), index.key_len());
  if (next && action != Constraint::CASCADE) {
    /* 'a' to 'A' may be no change of the key. */
    if (index.encode(next, table) && children.size() == index.key_len() && memcmp(children.data(), index.key(), index.key_len())
    == 0)
      return 0;
    index.encode(record, table);
  }
  const Referential_scope scope(session);
  const bool is_update = action == Constraint::SET_NULL || (next && action == Constraint::CASCADE);
  if (!Constraint::changes_rows(action) || (is_update && is_being_updated(session, key.child))) {
    const int result = index.find(session->trx, TP_LOCK_SHARED, wait_mode(thd));
    if (result == TP_END) return 0;
    return result == TP_OK ? violation(thd, session, key, HA_ERR_ROW_IS_REFERENCED) : fail(result);
  }
  /* Most have none. */
  const int result = index.find(session->trx, TP_LOCK_EXCLUSIVE, wait_mode(thd));
  if (result == TP_END) return 0;
  if (result != TP_OK) return fail(result);
  if (session->cascade.size() > CASCADES_MAX) return HA_ERR_FK_DEPTH_EXCEEDED;
  ha_tidepool *const child = open_for_action(thd, key.child);
  if (!child) {
    /* The constraint is younger than this statement's list of tables. */
    Abort_on_warning_instant_set no_error(thd, false);
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_TABLE_DEF_CHANGED,
                        "Tidepool: foreign key %s: the child table was not opened with the statement; try again", key.name.c_str());
    return HA_ERR_TABLE_DEF_CHANGED;
  }
  const int error = child->change_children(key, index.tree(), children, action, this, record, next);
  if (error == HA_ERR_FOUND_DUPP_KEY) {
    std::vector<uint16> columns;
    std::string missing;
    session->violated = key.child;
    session->violated_key = session->duplicate_key < child->table_share->keys
                                ? child->table->key_info[session->duplicate_key].name.str
                                : "";
    session->duplicate_key = MAX_KEY;
    if (columns_of(table_share, key.referenced, &columns, &missing)) {
      const int tree_of_key = tree_of_columns(shared->layouts, columns);
      if (tree_of_key >= 0) session->duplicate_key = shared->layouts.key_of(static_cast<uint>(tree_of_key));
    }
    return session->duplicate_key == MAX_KEY ? violation(thd, session, key, HA_ERR_ROW_IS_REFERENCED)
                                             : HA_ERR_FOREIGN_DUPLICATE_KEY;
  }
  return error;
}

/* ---- referential actions */

/* A handler of the table with which the statement may write: the one that the server has opened for this very purpose, or another,
   which is left where it stands. */
ha_tidepool *ha_tidepool::open_for_action(THD *thd, const std::string &name) {
  for (TABLE *open = thd->open_tables; open; open = open->next) {
    if (open->s->db_type() != engine.hton || open->reginfo.lock_type < TL_FIRST_WRITE) continue;
    auto *handler = static_cast<ha_tidepool *>(open->file);
    if (handler->ht == engine.hton && handler->shared && handler->shared->name == name) return handler;
  }
  return nullptr;
}

/* Virtual columns that indexes have, of a record that was read without them. */
int ha_tidepool::compute_indexed_columns(uchar *record) {
  if (likely(!table->vfield)) return 0;
  int error = 0;
  std::vector<uchar> saved;
  for (Field **at = table->vfield; *at && !error; at++) {
    Field *field = *at;
    if (field->stored_in_db() || !(field->flags & PART_KEY_FLAG)) continue;
    /* Its value would be in a buffer that the next row's takes. */
    if (field->flags & BLOB_FLAG) return HA_ERR_UNSUPPORTED;
    if (saved.empty()) {
      saved.assign(table->record[0], table->record[0] + table_share->reclength);
      memcpy(table->record[0], record, table_share->reclength);
    }
    if (table->update_virtual_field(field, true)) error = HA_ERR_UNSUPPORTED;
  }
  if (!saved.empty()) {
    memcpy(record, table->record[0], table_share->reclength);
    memcpy(table->record[0], saved.data(), saved.size());
  }
  return error;
}

/* The parent's value for a child's column. false: it can't be that column's. */
static bool put_value(const Column &to, uchar *record, const Column &from, const uchar *parent) {
  if (from.is_null(parent)) {
    if (!to.null_mask) return false;
    to.set_null(record);
    return true;
  }
  to.set_not_null(record);
  if (to.storage == Column::FIXED) {
    memcpy(record + to.offset, parent + from.offset, to.size);
    return true;
  }
  size_t len;
  const uchar *text = from.text(parent, &len);
  const char *const start = reinterpret_cast<const char *>(text);
  if (from.storage == Column::CHAR || len > to.size) len = to.cs->lengthsp(start, len);
  if (len > to.size || to.cs->numchars(start, start + len) > to.size / to.cs->mbmaxlen) return false;
  memmove(to.text_room(record), text, len);
  to.set_text_length(record, len);
  return true;
}

namespace {
struct Reader_closer {
  void operator()(tp_reader *reader) const { tp_reader_close(reader); }
};
} // namespace

/* Does to the rows of this table whose entries in `index` begin with `prefix` what the constraint says. */
int ha_tidepool::change_children(const Constraint &key, uint index, const std::string &prefix, Constraint::Action action,
                                 const ha_tidepool *parent, const uchar *old_parent, const uchar *new_parent) {
  THD *thd = ha_thd();
  if (int error = ready_for_action()) return error;
  tp_reader *opened = nullptr;
  if (int result = tp_reader_open(shared->table, &opened)) return fail(result);
  const std::unique_ptr<tp_reader, Reader_closer> rows(opened);
  tp_reader_set_lock(opened, TP_LOCK_EXCLUSIVE, wait_mode(thd));

  std::vector<uint16> columns, parent_columns;
  std::string missing;
  if (!columns_of(table_share, key.columns, &columns, &missing) ||
      !columns_of(parent->table_share, key.referenced, &parent_columns, &missing))
    return HA_ERR_TABLE_DEF_CHANGED;
  const std::vector<uchar> all(table_share->fields, 1);
  const uint last = row_layout().last_needed(all.data());
  const auto old_record = std::make_unique<uchar[]>(table_share->reclength);
  const auto new_record = std::make_unique<uchar[]>(table_share->reclength);
  const auto pk_room = std::make_unique<uchar[]>(trees()[0].key_max());
  /* This handler may be the one that the statement reads by: it is left where it stands. */
  const std::string place(reinterpret_cast<const char *>(clustered.get()), clustered_len);
  const bool place_is_row = row_read;

  int error = 0;
  std::string at = prefix, end = prefix;
  size_t end_len = end.size();
  const bool has_end = successor(reinterpret_cast<uchar *>(&end[0]), &end_len);
  for (int how = TP_AT_OR_AFTER; !error; how = TP_AFTER) {
    if (thd_kill_level(thd) != THD_IS_NOT_KILLED) {
      error = HA_ERR_ABORTED_BY_USER;
      break;
    }
    if (has_end) tp_reader_set_end(opened, index, reinterpret_cast<const uint8_t *>(end.data()), end_len);
    tp_entry entry;
    int result = tp_seek(opened, session->trx, index, reinterpret_cast<const uint8_t *>(at.data()), at.size(), how, &entry);
    if (result == TP_END) break;
    if (result != TP_OK) {
      error = fail(result);
      break;
    }
    if (entry.key_len < prefix.size() || memcmp(entry.key, prefix.data(), prefix.size()) != 0) break;
    at.assign(reinterpret_cast<const char *>(entry.key), entry.key_len);

    size_t pk_len = entry.key_len;
    const uchar *pk = entry.key;
    tp_bytes row{entry.value, entry.value_len};
    if (index != 0) {
      pk = trees()[index].clustered_key(entry.key, entry.key_len, entry.value, entry.value_len, pk_room.get(), &pk_len);
      if (!pk || pk_len > trees()[0].key_max()) {
        error = HA_ERR_CRASHED;
        break;
      }
      if (pk != pk_room.get()) memcpy(pk_room.get(), pk, pk_len);
      pk = pk_room.get();
      result = tp_get(opened, session->trx, 0, pk, pk_len, &row);
      if (result != TP_OK) {
        error = result == TP_END ? HA_ERR_CRASHED : fail(result);
        break;
      }
    }
    memcpy(clustered.get(), pk, pk_len);
    clustered_len = pk_len;
    memcpy(old_record.get(), table_share->default_values, table_share->reclength);
    if (!row_layout().decode(old_record.get(), row.data, row.len, all.data(), last) ||
        !trees()[0].decode_clustered(old_record.get(), clustered.get(), clustered_len, all.data())) {
      error = HA_ERR_CRASHED;
      break;
    }
    if ((error = compute_indexed_columns(old_record.get()))) break;
    if (action == Constraint::CASCADE && !new_parent) {
      error = delete_row(old_record.get());
      continue;
    }
    memcpy(new_record.get(), old_record.get(), table_share->reclength);
    for (size_t i = 0; i < columns.size() && !error; i++) {
      const Column to(table_share->field[columns[i]], table_share);
      if (action == Constraint::SET_NULL) {
        to.set_null(new_record.get());
      } else {
        const Column from(parent->table_share->field[parent_columns[i]], parent->table_share);
        if (from.same(old_parent, new_parent)) continue;
        if (!put_value(to, new_record.get(), from, new_parent)) error = violation(thd, session, key, HA_ERR_ROW_IS_REFERENCED);
      }
    }
    if (!error) error = compute_indexed_columns(new_record.get());
    if (!error) error = update_row(old_record.get(), new_record.get());
    if (error == HA_ERR_RECORD_IS_THE_SAME) error = 0;
  }
  memcpy(clustered.get(), place.data(), place.size());
  clustered_len = place.size();
  row_read = place_is_row;
  return error;
}

int ha_tidepool::ready_for_action() {
  if (likely(session && session->in_statement && reader_generation == shared->generation)) return 0;
  return ready_slowly();
}
