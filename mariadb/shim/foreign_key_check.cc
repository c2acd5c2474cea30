/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* Rows written and deleted: the checks of foreign keys, and when an action follows from them. */
#include "foreign_key_check.h"
#include "engine.h"
#include "errors.h"
#include "foreign_key_definition.h"
#include "ha_tidepool.h"
#include "replica.h"
#include <algorithm>

namespace tidepool {

Foreign_checks::Foreign_checks(const std::string &table) {
  for (Constraint_ptr &key : foreign_keys.of_child(table)) own.push_back({std::move(key), nullptr});
  for (Constraint_ptr &key : foreign_keys.of_parent(table))
    referencing.push_back({std::move(key), nullptr});
  /* InnoDB's order, which shows where several actions meet. */
  auto comes_before = [](const Side &a, const Side &b) {
    const std::string a_db = database_of(a.key->child), b_db = database_of(b.key->child);
    return a_db != b_db ? a_db < b_db : a.key->name < b.key->name;
  };
  std::sort(own.begin(), own.end(), comes_before);
  std::sort(referencing.begin(), referencing.end(), comes_before);
}

int error_of_wait(THD *thd) {
  if (thd_kill_level(thd) != THD_IS_NOT_KILLED) return HA_ERR_ABORTED_BY_USER;
  return server_error(thd->is_error() && thd->get_stmt_da()->sql_errno() == ER_LOCK_DEADLOCK
                          ? TP_DEADLOCK
                          : TP_LOCK_TIMEOUT,
                      thd);
}

int Foreign_checks::lock(THD *thd, const std::vector<Side> &sides, bool parents, bool *locked) {
  if (likely(*locked)) return 0;
  for (const Side &side : sides) {
    if (side.key->is_self_reference() || side.key->is_copied) continue;
    if (!lock_definition_for_rows(thd, parents ? side.key->parent : side.key->child))
      return error_of_wait(thd);
  }
  *locked = true;
  return 0;
}

/* ---- what the two directions share */

int wait_mode(THD *thd) { return lock_wait_timeout(thd) == 0 ? TP_NO_WAIT : TP_WAIT; }

int violation(THD *thd, Session *session, const Constraint &key, int error) {
  if (unlikely(is_passing_over_early(thd))) return server_error(TP_DEADLOCK, thd);
  if (!is_intermediate(key.child)) {
    session->violated = foreign_key_of_table(thd, key);
    return error;
  }
  /* By the name that the user knows. */
  Constraint named = key;
  named.child = altered_table(thd);
  session->violated = foreign_key_of_table(thd, named.child.empty() ? key : named);
  return error;
}

/* A constraint that can't be checked is not satisfied. */
static int unusable(THD *thd, Session *session, const Constraint &key, const std::string &problem,
                    int error) {
  /* Beside the error, in whose place strict mode must not put it. */
  Abort_on_warning_instant_set no_error(thd, false);
  push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_CANNOT_ADD_FOREIGN,
                      "Tidepool: foreign key %s: %s", key.name.c_str(), problem.c_str());
  return violation(thd, session, key, error);
}

namespace {
/* A step of the session's cascade, while its actions are at work. */
class Step {
public:
  Step(Session *of, const std::string &table, bool is_delete) : session(of) {
    session->cascade.push_back({&table, is_delete});
  }
  ~Step() { session->cascade.pop_back(); }

private:
  Session *session;
};
} // namespace

/* Whether the statement, or an action that leads here, updates rows of the table. */
static bool is_being_updated(const Session *session, const std::string &table) {
  return std::any_of(
      session->cascade.begin(), session->cascade.end(),
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

/* The constraints as they are under the metadata locks of the other tables. None: *checks
   is null. */
int ha_tidepool::lock_foreign_keys(bool parents, bool children,
                                   std::shared_ptr<Foreign_checks> *checks) {
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
    /* No metadata lock protects what a prepared transaction without a session has written to the
       parent. */
    give_away_parted();
    if (int result = tp_check_copy(engine.db, key.parent.data(), key.parent.size()))
      return fail(result);
  }
  auto index = std::make_unique<Foreign_index>();
  const int error =
      is_parent ? index->open(ha_thd(), key.parent, key.referenced, table_share, key.columns)
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
        if (same_identifier((*field)->field_name.str, name) &&
            (*field)->is_null(record - table->record[0]))
          return 0;
    return unusable(thd, session, key, problem, HA_ERR_NO_REFERENCED_ROW);
  }
  if (!side.index->encode(record, table)) return 0;
  /* While ALTER TABLE checks the rows that it copies, no session writes the parent: a million locks
     would say no more. */
  const int lock = thd_sql_command(thd) == SQLCOM_ALTER_TABLE ? TP_LOCK_NONE : TP_LOCK_SHARED;
  const Referential_scope scope(session);
  const int result = side.index->find(session->transaction, lock, wait_mode(thd));
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
    if (!side.index->key_differs(old_record, new_record)) continue;
    if (int error = check_parent(side, new_record)) return error;
  }
  const Step step(session, shared->name, false);
  for (Foreign_checks::Side &side : checks->referencing) {
    if (int error = open_foreign_index(side, false)) return error;
    if (!side.index->key_differs(old_record, new_record)) continue;
    if (int error = act_on_children(side, side.key->on_update, old_record, new_record))
      return error;
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
int ha_tidepool::act_on_children(Foreign_checks::Side &side, Constraint::Action action,
                                 const uchar *record, const uchar *next) {
  THD *thd = ha_thd();
  const Constraint &key = *side.key;
  Foreign_index &index = *side.index;
  if (unlikely(!index.problem().empty()))
    return unusable(thd, session, key, index.problem(), HA_ERR_ROW_IS_REFERENCED);
  if (!index.encode(record, table)) return 0;
  const std::string children(reinterpret_cast<const char *>(index.key()), index.key_len());
  if (next && action != Constraint::CASCADE) {
    /* 'a' to 'A' may be no change of the key. */
    if (index.encode(next, table) && children.size() == index.key_len() &&
        memcmp(children.data(), index.key(), index.key_len()) == 0)
      return 0;
    index.encode(record, table);
  }
  const Referential_scope scope(session);
  const bool is_update = action == Constraint::SET_NULL || (next && action == Constraint::CASCADE);
  if (!Constraint::changes_rows(action) || (is_update && is_being_updated(session, key.child))) {
    const int result = index.find(session->transaction, TP_LOCK_SHARED, wait_mode(thd));
    if (result == TP_END) return 0;
    return result == TP_OK ? violation(thd, session, key, HA_ERR_ROW_IS_REFERENCED) : fail(result);
  }
  /* Most have none. */
  const int result = index.find(session->transaction, TP_LOCK_EXCLUSIVE, wait_mode(thd));
  if (result == TP_END) return 0;
  if (result != TP_OK) return fail(result);
  if (session->cascade.size() > CASCADES_MAX)
    return violation(thd, session, key, HA_ERR_FK_DEPTH_EXCEEDED);
  ha_tidepool *child = nullptr;
  if (int error = open_for_action(thd, session, key.child, &child)) return error;
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
      if (tree_of_key >= 0)
        session->duplicate_key = shared->layouts.key_of(static_cast<uint>(tree_of_key));
    }
    return session->duplicate_key == MAX_KEY
               ? violation(thd, session, key, HA_ERR_ROW_IS_REFERENCED)
               : HA_ERR_FOREIGN_DUPLICATE_KEY;
  }
  return error;
}
