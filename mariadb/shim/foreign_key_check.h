/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  The constraints of one open table, seen from its rows: those that it has, and those that reference
  it.

  A check is one descent in the other table's index, after the row's own entries are written; what
  it finds is locked shared to the transaction's end. The row of the parent is what both sides meet
  at, so nothing else is locked:
      child written     the parent's entry is locked shared, and then it is there, or it is not
      parent deleted    the entry is delete-marked, which waits for those shared locks and keeps new ones away; then the
  children are looked at Whoever comes second sees what the first has committed: these reads, and
  what follows from them, are of what is there now, at every isolation level (Referential_scope).

  What an action does to children it does through the child's own handler (foreign_key_action.cc),
  which the server has mostly opened for that: it was told of the child by
  get_parent_foreign_key_list(). Checks of the child's own follow from there.

  All this is void when the generation of all constraints goes on, and as good as void before the
  other tables' metadata locks are held, which is once a statement: so a row is checked by what the
  generation says after that.
*/
#ifndef TIDEPOOL_FOREIGN_KEY_CHECK_H
#define TIDEPOOL_FOREIGN_KEY_CHECK_H

#include "foreign_key_index.h"

namespace tidepool {

/* As InnoDB's: referential actions that follow from one another. */
constexpr size_t CASCADES_MAX = 15;

/* How locks on the other table's entries are waited for. */
int wait_mode(THD *thd);
/* After a metadata lock was not to be had: what the statement fails with. */
int error_of_wait(THD *thd);
/* Notes which constraint it is; gives the error back, or a deadlock if it may be one of being too
   early (replica.h). */
int violation(THD *thd, Session *session, const Constraint &key, int error);

class Foreign_checks {
public:
  struct Side {
    Constraint_ptr key;
    std::unique_ptr<Foreign_index> index; /* of the other table; made on first use */
  };

  explicit Foreign_checks(const std::string &table);
  bool is_empty() const { return own.empty() && referencing.empty(); }
  bool has_own() const { return !own.empty(); }
  bool is_referenced() const { return !referencing.empty(); }

  /* The metadata locks of the parents, or of the children, once a statement. An HA_ERR_* code. */
  int lock_parents(THD *thd) { return lock(thd, own, true, &parents_locked); }
  int lock_children(THD *thd) { return lock(thd, referencing, false, &children_locked); }
  void end_statement() { parents_locked = children_locked = false; }

  std::vector<Side> own, referencing;

private:
  static int lock(THD *thd, const std::vector<Side> &sides, bool parents, bool *locked);
  bool parents_locked = false, children_locked = false;
};

} // namespace tidepool

#endif
