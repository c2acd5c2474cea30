/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  What the engine keeps for a connection: one transaction, used again and again.

  A statement begins with the first call of a handler in it (external_lock, start_stmt, or, under
  LOCK TABLES and for INSERT, where the server calls neither, the first read or write) and ends with
  the handlerton's commit or rollback, which the server calls because the statement was registered.
  The position at its beginning is kept: a statement that fails is rolled back to there. Statements
  of functions and triggers are part of the statement that calls them.
*/
#ifndef TIDEPOOL_SESSION_H
#define TIDEPOOL_SESSION_H

#include "bridge.h"
#include "server.h"
#include <atomic>
#include <set>
#include <string>
#include <vector>

class ha_tidepool;

namespace tidepool {

/* A table whose rows are being changed, by the statement or by a referential action. */
struct Cascade_step {
  const std::string *table;
  bool is_delete;
};

/*
  The last row that a function or trigger has written to a partition, where the server may still
  refuse it (a hash as a unique key, WITHOUT OVERLAPS). It does so without a word to the partition,
  and a function that handles the error goes on. So the row is looked at when its statement is over:
  if it is still the last that was written, and the server has not counted it, it was refused, and
  is taken back.
*/
struct Unsettled_row {
  TABLE *table; /* open to the end of the statement that calls the function */
  tp_savepoint before, after;
  ulonglong counted; /* the rows that the server had counted as changed before */
  query_id_t statement;
};

/* A row of a versioned table that the statement's last two writes have moved from one partition to
   another. */
struct Moved_row {
  ha_tidepool *to = nullptr, *from = nullptr;
  tp_savepoint after{};
};

/* A table whose partitions a statement has dropped, or given the name of another table, at one
   moment. The server asks for one after the
   other. */
struct Partitions_together {
  query_id_t statement = 0;
  std::string from, to; /* to: empty if they were dropped */
};

/* The copy that an ALTER TABLE has made of a table. */
struct Copy_of_table {
  query_id_t statement = 0;
  std::string table, path; /* path: of the copy, without an extension */
};

struct Session {
  THD *thd = nullptr;
  tp_transaction *transaction = nullptr;
  tp_interrupt *interrupt = nullptr;
  tp_savepoint statement_start{};
  uint64_t commit_lsn = 0;
  int ordered_result = 0;
  std::string ordered_error;   /* its text: the thread that leads a group commits for others */
  bool in_transaction = false; /* the engine's transaction has begun */
  bool in_statement = false;   /* registered with the server */
  bool unsettled = false;      /* there is such a row: */
  Unsettled_row last_row{};
  Moved_row moved;
  bool ordered = false; /* commit_ordered ran; commit has yet to */
  bool prepared = false;
  /* XA PREPARE: the server may part it from the connection (see session.cc) */
  std::atomic<bool> xa_prepared{false};
  std::string xid;                 /* then */
  const void *xid_entry = nullptr; /* then: the server's entry for it; only compared */
  int isolation = TP_REPEATABLE_READ;
  uint duplicate_key = MAX_KEY; /* of the statement's last duplicate */
  Partitions_together together;
  Copy_of_table copy;
  std::vector<std::string> dropped; /* tables that go when the transaction ends: it has used them */
  uint64 ownerless_generation = 0;  /* ownerless_generation() when the transaction began */
  /* what is done now is on behalf of a constraint (foreign_key_index.h) */
  uint referential_depth = 0;
  /* how it came to that: from the row that the statement changes on */
  std::vector<Cascade_step> cascade;
  /* tables that were opened for referential actions, until the statement ends */
  std::vector<TABLE *> children;
  /* the constraint that the statement's last error of this kind is about, or the child */
  std::string violated;
  /* the child's unique key, if a referential action would have made a duplicate */
  std::string violated_key;
  /* What is prepared is a part of a transaction that changed other engines, too. */
  bool with_other_engines = false;
  std::set<std::string> unsynced; /* directories that the statement's end syncs (synced_names.h) */
};

/* The connection's session, made on first use; nullptr when there is no memory. */
Session *session_of(THD *thd);
/* While this lives, the transaction's reads are those of a search for rows that the statement locks
   (tp_transaction_set_searching). nullptr: they are not. Scopes are not nested. */
class Search_scope {
public:
  explicit Search_scope(tp_transaction *transaction) : transaction(transaction) {
    if (transaction) tp_transaction_set_searching(transaction, 1);
  }
  ~Search_scope() {
    if (transaction) tp_transaction_set_searching(transaction, 0);
  }
  Search_scope(const Search_scope &) = delete;
  Search_scope &operator=(const Search_scope &) = delete;

private:
  tp_transaction *const transaction;
};
/* Begins the statement if it has not begun. Returns an HA_ERR_* code. */
int begin_statement(THD *thd, Session *session);
/* The statement of the last row is over. Returns an HA_ERR_* code. */
int settle_last_row(Session *session);
/* How the rows of a table are locked that the server locks like this. */
inline int row_lock_of(enum thr_lock_type type) {
  return type >= TL_FIRST_WRITE                                             ? TP_LOCK_EXCLUSIVE
         : type == TL_READ_WITH_SHARED_LOCKS || type == TL_READ_SKIP_LOCKED ? TP_LOCK_SHARED
                                                                            : TP_LOCK_NONE;
}
/* The timeout of lock waits in this statement: the smaller of the engine's and the server's (which
   NOWAIT and WAIT n set), in seconds. */
ulong lock_wait_timeout(THD *thd);
/* While this lives, the statement waits for no lock. */
class Wait_for_no_lock {
public:
  explicit Wait_for_no_lock(const Session *session) : session(session) {
    tp_transaction_set_lock_wait_timeout(session->transaction, 0);
  }
  ~Wait_for_no_lock() {
    tp_transaction_set_lock_wait_timeout(session->transaction, lock_wait_timeout(session->thd));
  }
  Wait_for_no_lock(const Wait_for_no_lock &) = delete;
  Wait_for_no_lock &operator=(const Wait_for_no_lock &) = delete;

private:
  const Session *const session;
};
/* Copies what a connection is executing now to `text`, and gives its length; 0 if the connection is
   gone, idle, or too busy to be asked. */
size_t statement_of(uint64_t connection, char *text, size_t capacity, CHARSET_INFO **charset);

/* Closes tables that were opened for referential actions (foreign_key_action.cc). */
void close_children(Session *session);

/* Informs the engine of the prepared transactions that the server has parted from their
   connections; of this connection's alone. */
void give_away_parted();
void give_away_if_parted(Session *session);

/* Commits, durably whatever flush_log_at_trx_commit says. A result code. */
int commit_durably(Session *session);

void setup_transactions(handlerton *hton);

/* At the first start of a restored backup: rolls back what the server was about to commit at its
   end. A result code. */
int roll_back_unlogged();

} // namespace tidepool

#endif
