/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "replica.h"
#include "rpl_rli.h"
#include "slave.h"

namespace tidepool {

bool is_passing_over_early(const THD *thd) {
  const rpl_group_info *group = thd->rgi_slave;
  return unlikely(group != nullptr) && group->speculation == rpl_group_info::SPECULATE_OPTIMISTIC &&
         (slave_exec_mode_options == SLAVE_EXEC_MODE_IDEMPOTENT || use_slave_mask);
}

bool is_passing_over_early(const THD *thd, const handler *reads, const TABLE *table) {
  if (likely(!is_passing_over_early(thd))) return false;
  /* A handler beside the table's own looks for duplicates of a hash, and mostly finds none. A
     partition's handler is also not the table's own, and does not know whether the row is in
     another: at worst the transaction is tried again for nothing. */
  if (reads != table->file && !table->part_info) return false;
  const rpl_group_info *group = thd->rgi_slave;
  const TABLE_LIST *at = group->tables_to_lock;
  for (uint i = 0; at && i < group->tables_to_lock_count; at = at->next_global, i++)
    if (at->table == table) return true;
  return false;
}

} // namespace tidepool
