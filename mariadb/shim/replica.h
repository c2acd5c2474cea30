/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Transactions that a replica applies ahead of their turn.

  With slave_parallel_mode=optimistic a row may be looked for before the transaction that inserts it
  has begun. In STRICT mode that is an error, for which the server rolls back, waits until all that
  comes before is committed, and tries again. In IDEMPOTENT mode, and for the errors that
  slave_skip_errors names, it passes the row over, as one that
  is missing for good, and also a row that a foreign key refuses. InnoDB's gap locks keep the place:
  who comes to insert there has the other rolled back. There are none here, so such an error becomes
  a deadlock, which is never passed over. The second attempt is in its turn, and its errors are what
  they are.

  Duplicates are left alone: the row that is in the way is there to be locked, and the transaction
  that takes it away comes upon the lock.
*/
#ifndef TIDEPOOL_REPLICA_H
#define TIDEPOOL_REPLICA_H

#include "server.h"

namespace tidepool {

/* Whether the transaction is applied ahead of its turn, and rows that don't fit are passed over. */
bool is_passing_over_early(const THD *thd);
/* The same, for a row that is looked for because of the log, and not by a trigger or for the
   position of the replica. */
bool is_passing_over_early(const THD *thd, const handler *reads, const TABLE *table);

} // namespace tidepool

#endif
