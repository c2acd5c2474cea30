/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Foreign keys: what they say, how they are stored, and who has which.

      foreign_key.cc             the constraints of all tables, in memory and in the engine's catalog
  foreign_key_definition.cc  CREATE and ALTER: constraints from a statement, and whether they can be
      foreign_key_index.cc       the index by which a constraint finds rows in the other table
      foreign_key_check.cc       rows written and deleted: the checks
      foreign_key_action.cc      what becomes of children
      ha_tidepool_foreign.cc     what the server asks of a handler

  A constraint is stored with its child table, in the table's metadata; a parent is known by its
  name alone, so it may be missing (foreign_key_checks = 0) and come later. Behind the other
  metadata:

  version of this part, 1 (1 byte) | number of constraints (2 bytes) for each:  name, name of the
  parent ("db/table", in file names' encoding) ON DELETE, ON UPDATE (1 byte each) number of columns
  (2 bytes); for each: its name, the name of the parent's column length of all this (4 bytes) A name
  is its length (2 bytes) and its bytes, in UTF-8. A table without constraints has none of it. One
  without columns is a note (note_of_copy), and gone once ALTER TABLE is done.

  All constraints of all tables are in memory, in one Foreign_keys, read when the engine starts.
  Each change of it takes the generation on; handlers keep what they have found out as long as that
  stays (foreign_key_check.h).

  Order of the mutexes: `definitions` → `mutex`. The first is held while a definition is changed in
  the engine's catalog and then here, so that the two agree; nobody waits for a metadata lock of the
  server with either.
*/
#ifndef TIDEPOOL_FOREIGN_KEY_H
#define TIDEPOOL_FOREIGN_KEY_H

#include "bridge.h"
#include "server.h"
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace tidepool {

/* One constraint; never changed once it is made. */
struct Constraint {
  enum Action : uchar { RESTRICT = 0, NO_ACTION = 1, CASCADE = 2, SET_NULL = 3 };

  std::string name;
  std::string child, parent; /* tables, as the engine names them */
  std::vector<std::string> columns, referenced;
  Action on_delete = RESTRICT, on_update = RESTRICT;
  /* Of the copy that ALTER TABLE fills: the rows satisfied it before. Not stored. */
  bool is_copied = false;

  /* No constraint, but a note in a copy that will have another name than `parent`, the table that
     ALTER TABLE copies. When the copy takes that name, the constraints of the table become its own,
     even after a crash, when no session knows of the statement any more. */
  static std::shared_ptr<const Constraint> note_of_copy(const std::string &copy,
                                                        const std::string &of);
  bool is_note() const { return columns.empty(); }

  bool is_self_reference() const { return child == parent; }
  static bool changes_rows(Action action) { return action == CASCADE || action == SET_NULL; }
};
using Constraint_ptr = std::shared_ptr<const Constraint>;
using Constraint_list = std::vector<Constraint_ptr>;

/* A table's metadata with these constraints in place of those that it has. */
std::string metadata_with(const std::string &metadata, const Constraint_list &keys);
/* The constraints in a table's metadata. false: not to be read by this version. */
bool metadata_foreign_keys(const std::string &metadata, const std::string &child,
                           Constraint_list *keys);

/* Whether the server has this name for a while only, for a copy or a backup within ALTER TABLE. */
bool is_intermediate(const std::string &table);
inline std::string database_of(const std::string &table) {
  return table.substr(0, table.find('/'));
}
/* "db/table" in the encoding of file names, as the server knows the two. */
std::string engine_name(const LEX_CSTRING &db, const LEX_CSTRING &table);
/* The other way round. */
void server_names(const std::string &table, std::string *db, std::string *name);
bool same_identifier(const std::string &a, const std::string &b);
/* A constraint's name after its table's name has changed: a generated one follows its table, others
   are as the user gave them. */
std::string renamed_constraint(const std::string &name, const std::string &from,
                               const std::string &to);

/* Names of before, and those of now. */
using Renamed_columns = std::vector<std::pair<std::string, std::string>>;

class Attachments;

/* What a change of a table's indexes or rows comes to. */
struct Table_change {
  tp_index_change *change;
  const std::string &table;
  std::string metadata;
};

class Foreign_keys {
public:
  /* Reads those of all tables; at start. */
  void load();
  /* Changes with every change of a constraint, and of a table that has one or is referenced
     by one. */
  uint64 generation() const { return generation_.load(std::memory_order_acquire); }

  /* The constraints of a table. */
  Constraint_list of_child(const std::string &table) const;
  /* Those that reference it, except copies that ALTER TABLE fills. */
  Constraint_list of_parent(const std::string &table) const;
  bool is_concerned(const std::string &table) const;

  /* Held over a change in the catalog and its counterpart here. */
  std::mutex definitions;

  /* ---- with `definitions` held */

  void set(const std::string &child, Constraint_list keys);
  /* The table is gone, or has changed, or is another. The caller has it to itself: what handlers of
     other tables have open of it is closed (close_foreign_indexes_of()). */
  void forget(const std::string &child);
  void touch(const std::string &table);

  /* Renames a table in the catalog and here, with all that is said of it. A TP_* code;
     TP_DUPLICATE: the other database has a constraint of one of the names. What is renamed aside
     and back is still referenced by the name that users know; a copy takes over what is said of
     `altered`, the table in whose place it comes (empty: the one that a note in the copy names, if
     there is one). Here and below, `attached` is set in the same catalog commit. */
  int rename(const std::string &from, const std::string &to, std::string altered,
             Attachments &attached);
  /* Columns of a table have other names now. A TP_* code. */
  int rename_columns(const std::string &table, const Renamed_columns &renamed,
                     Attachments &attached);
  /* The same together with the end of changes of indexes or rows, of a table or of the partitions
     of one. */
  int commit_changes(const std::vector<Table_change> &changes, const Renamed_columns &renamed,
                     Attachments &attached);
  /* Gives a table these constraints, in the catalog and here. A TP_* code. */
  int replace(const std::string &child, const Constraint_list &keys, Attachments &attached);
  /* Whether another table of the child's database has a constraint of this name. `but` is not
     looked at. */
  bool has_name(const std::string &name, const std::string &child, const std::string &but) const;

private:
  using By_child = std::map<std::string, Constraint_list>;
  /* With a note, if it has one. */
  Constraint_list all_of_child(const std::string &table) const;
  int store(const By_child &changed, Attachments &attached, const std::string *from = nullptr,
            const std::string *to = nullptr);
  By_child with_renamed_columns(const std::string &table, const Renamed_columns &renamed) const;
  void take(By_child changed);
  void note_change_of(const std::string &table);

  mutable std::mutex mutex;
  By_child by_child;
  std::map<std::string, Constraint_list> by_parent;
  std::atomic<uint64> generation_{1};
  /* Tables of `by_child` that ALTER TABLE has renamed aside; under `definitions`. */
  std::set<std::string> aside;
};
extern Foreign_keys foreign_keys;

/* ---- what SHOW CREATE TABLE and errors say */

/* CONSTRAINT … FOREIGN KEY … REFERENCES … */
std::string foreign_key_clause(THD *thd, const Constraint &key);
/* The table, too: what an error of a row names. */
std::string foreign_key_of_table(THD *thd, const Constraint &key);

} // namespace tidepool

#endif
