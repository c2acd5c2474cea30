/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* Foreign keys in CREATE TABLE and ALTER TABLE. */
#ifndef TIDEPOOL_FOREIGN_KEY_DEFINITION_H
#define TIDEPOOL_FOREIGN_KEY_DEFINITION_H

#include "foreign_key.h"

namespace tidepool {

/*
  The constraints that the table will have: `form` is what the statement makes of it, `path_name`
  the engine's name for it as of now. Of a table that is altered, those that it keeps are among
  them. Waits for metadata locks, so no mutex of ours is held. Returns an HA_ERR_* code; warnings
  say what is wrong with which constraint.
*/
int foreign_keys_of_statement(THD *thd, TABLE *form, const HA_CREATE_INFO *info,
                              const Alter_info *alter, const std::string &path_name,
                              Constraint_list *keys);

/* The columns that ALTER TABLE renames. */
Renamed_columns renamed_columns(const Alter_info *alter);

/* The table that ALTER TABLE, or a statement like it, changes; empty: the statement is none. */
std::string altered_table(THD *thd);

/* The name by which users will know the table that `form` describes and that is being made under
   the engine's name `path_name`. */
std::string user_name_of(THD *thd, const TABLE *form, const std::string &path_name);

/* Whether the constraints of `table`, and those that reference it, still have the indexes that they
   need in `form`. If not, the error has been sent. */
bool has_indexes_for_foreign_keys(THD *thd, const TABLE_SHARE *form, const KEY *form_keys,
                                  const std::string &table, const Constraint_list &own,
                                  const Alter_info *alter);

/*
  Whether the constraints of other tables that reference `table` have in `next`, which ALTER TABLE
  is about to make of it, the columns and indexes that they have in `now`. If not, the error has
  been sent. The caller has the table's exclusive metadata lock. While it was at work, a CREATE
  TABLE may have made such a constraint, which looked at the table as it was. It is known by now,
  for such a statement has a metadata lock on the parent from that look to its end. (ALTER TABLE …
  ADD FOREIGN KEY has one that excludes an ALTER of the parent.)
*/
bool keeps_its_children(THD *thd, const TABLE_SHARE *now, const TABLE_SHARE *next,
                        const KEY *next_keys, const std::string &table, const Alter_info *alter);
/* The same where a copy is about to take the table's place; of files without their extensions. */
bool keeps_its_children(THD *thd, const std::string &now_path, const std::string &next_path,
                        const std::string &table);

/* Whether existing constraints fit a table of their parent's name that is being created. An
   HA_ERR_* code. */
int check_referencing(THD *thd, TABLE *form, const std::string &name);

/* The constraint that forbids that this table is dropped; or null. */
Constraint_ptr forbids_drop(THD *thd, const std::string &name);

} // namespace tidepool

#endif
