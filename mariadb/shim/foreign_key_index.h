/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  The index by which a constraint finds rows in the other table: a child's row its parent, a
  parent's row its children.

  The server opens the parent for no statement on the child. So the other table's definition is
  asked for by name, under a shared metadata lock to the transaction's end, and only the parts of
  the one index are kept of it: they say how a key of that index is written from this table's
  record. A column's type is the same on both sides (are_comparable), so a number's bytes are those
  of this table's own part; a string is written with the other's collation and padding; whether a
  NULL byte comes first, and whether the part is descending, is the other's.
*/
#ifndef TIDEPOOL_FOREIGN_KEY_INDEX_H
#define TIDEPOOL_FOREIGN_KEY_INDEX_H

#include "foreign_key.h"
#include "session.h"
#include "table_share.h"

namespace tidepool {

/* The definition of a table by its name, as long as this lives. No error is left behind if there is
   none. */
class Definition {
public:
  Definition(THD *thd, const std::string &table);
  ~Definition();
  Definition(const Definition &) = delete;
  Definition &operator=(const Definition &) = delete;
  /* nullptr: there is no such table. */
  const TABLE_SHARE *share = nullptr;
  /* The server has one, but of another engine, or a partitioned one: nothing to be referenced. */
  bool is_foreign = false;
};

/* A metadata lock on a table to the transaction's end. false, with an error sent: killed, a
   deadlock, or too long a wait. */
bool lock_definition(THD *thd, const std::string &table);
/* The same for a transaction that may have locked rows. Who waits for a metadata lock of all for
   himself, and others behind him, may be waiting for those rows, and neither the server nor the
   engine sees such a circle: so the queue is passed after a while. */
bool lock_definition_for_rows(THD *thd, const std::string &table);
/* For a statement that is about to change rows of the table, and has not opened it. */
bool lock_definition_to_write(THD *thd, const std::string &table);
/* For the statement, if it can be had at once. */
bool try_lock_definition(THD *thd, const std::string &table);

/* Numbers of columns by their names; false, with *missing set: there is none of this name. */
bool columns_of(const TABLE_SHARE *share, const std::vector<std::string> &names,
                std::vector<uint16> *columns, std::string *missing);

/* The tree whose keys begin with these columns, in this order; -1: none. *is_prefix is set if one
   begins with beginnings of them. */
int tree_of_columns(const Layouts &layouts, const std::vector<uint16> &columns,
                    bool *is_prefix = nullptr);
/* Whether the columns are all of a unique key's: one entry at most has their values, and they are
   its whole key. */
bool is_whole_key(const Layouts &layouts, int tree, size_t columns);

/* A column as a part of a key over the whole of it. */
Part part_of_column(const TABLE_SHARE *share, uint16 column);
bool can_be_in_foreign_key(const TABLE_SHARE *share, uint16 column);
/* Whether values of the two columns can be compared by the bytes of their keys. */
bool are_comparable(const TABLE_SHARE *a, uint16 a_column, const TABLE_SHARE *b, uint16 b_column);

/* The index of the other table, and what stands in its keys for columns of this one. */
class Foreign_index {
public:
  /* Looks for it; the other table's metadata lock is held. An HA_ERR_* code. Afterwards: */
  int open(THD *thd, const std::string &table, const std::vector<std::string> &columns,
           const TABLE_SHARE *own, const std::vector<std::string> &own_columns);
  /* Why it can't be used: the table, a column or the index is missing, or types differ. Empty: it
     can. */
  const std::string &problem() const { return problem_; }
  /* Whether two records of the own table differ in columns of the constraint. Known whatever the
     other table is like. */
  bool key_differs(const uchar *a, const uchar *b) const;

  /* The key of rows that have the values of this record. false: one is NULL, so there are none. */
  bool encode(const uchar *record, TABLE *own_table);
  const uchar *key() const { return room.data(); }
  size_t key_len() const { return len; }

  /* Looks for an entry with the key made last, of what is there now. TP_OK or TP_END, or why it is
     not known. */
  int find(tp_transaction *transaction, int lock, int wait);

  const std::string &table() const { return name; }
  uint tree() const { return tree_; }

  Foreign_index() = default;
  ~Foreign_index();
  Foreign_index(const Foreign_index &) = delete;
  Foreign_index &operator=(const Foreign_index &) = delete;

private:
  friend void close_foreign_indexes_of(const std::string &table);
  int open_reader(THD *thd);

  std::string name, problem_;
  std::vector<Column> own_columns;
  std::vector<Part> own, other;
  uint tree_ = 0;
  bool is_point = false;
  tp_table *opened = nullptr;
  tp_reader *reader = nullptr;
  std::vector<uchar> room;
  size_t len = 0;
  Key_room scratch;
};

/*
  Closes what Foreign_indexes have open of a table. A table that is dropped or gets another file
  would keep its file, and the space on disk, until the server closes handlers that no session uses.
  The caller has the table's exclusive metadata lock, and takes the generation of all constraints on
  (foreign_key.h): so none of these indexes is in use, and none is used again.
*/
void close_foreign_indexes_of(const std::string &table);

/* While this lives, what the transaction does is on behalf of a constraint
   (tp_transaction_set_referential). They may be nested. */
class Referential_scope {
public:
  explicit Referential_scope(Session *session);
  ~Referential_scope();

private:
  Session *session;
};

} // namespace tidepool

#endif
