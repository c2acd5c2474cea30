/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Pending rows of FULLTEXT indexes (fulltext_pending.h) are merged: made into entries.

  One thread merges those of all tables. A write that makes a row pending, and a search that meets
  some, ask it for the table; it begins a tenth of a second later, or at once where many rows are
  pending. Where PENDING_MAX are, further words are written as entries at once, so a search meets a
  bounded number of pending rows.

  A merge is a transaction by itself. It takes the first MERGE_ROWS pending rows that no transaction
  has locked, and writes what their entries lack and have too many of, in the order of the keys, so
  that rows which share words share pages.

  Locks. A merge waits for no transaction: it passes over locked pending rows, and entries of the
  others no transaction has locked. For a writer locks the pending row before, and a search that
  locks what it reads locks all pending rows and the gaps between them before. A statement that
  waits for a merge waits for a thread that works. So whatever its lock wait timeout is, it goes on
  waiting until the merge is over, and fails only if another transaction has the lock, too
  (wait_past_merge).

  Definitions. The thread uses a Table_share without a statement's lock of the table. So who changes
  the table's trees, or must be alone with the table, ends its merges before; and so does the end of
  the share.
*/
#ifndef TIDEPOOL_FULLTEXT_MERGE_H
#define TIDEPOOL_FULLTEXT_MERGE_H

#include "session.h"
#include "table_share.h"

namespace tidepool {

/* Before a row's words are written to a tree: whether one more row of it may have pending words. */
bool may_be_pending(Table_share *shared, uint tree);

/* Some rows of the table have pending words. */
void ask_for_merge(Table_share *shared);

/* Calls what may wait for a merge's lock, and gives its TP_* code. After a timeout it is called
   once more, with no merge of the table under way and without a wait: what is locked then is locked
   by another transaction. */
template <typename Attempt>
int wait_past_merge(Table_share *shared, const Session *session, Attempt attempt) {
  const int result = attempt();
  if (likely(result != TP_LOCK_TIMEOUT)) return result;
  const std::lock_guard<std::mutex> none_under_way(shared->merge.merging);
  const Wait_for_no_lock at_once(session);
  return attempt();
}

/* The thread does not use the table from here on. */
void end_merges(Table_share *shared);

/* The same, until this ends. */
class Merges_paused {
public:
  explicit Merges_paused(Table_share *shared) : shared(shared) { end_merges(shared); }
  ~Merges_paused();
  Merges_paused(const Merges_paused &) = delete;
  Merges_paused &operator=(const Merges_paused &) = delete;

private:
  Table_share *const shared;
};

/* From here on no merge of a table of this name is under way, or asked for. Before a table is
   dropped or renamed, which no statement uses: the server may still have a share of a partition. */
void end_merges_of(const std::string &name);

/* Ends the thread, before the engine is closed. */
void end_merge_thread();

/* Pending rows that were merged since the start. */
uint64 merged_rows();

} // namespace tidepool

#endif
