/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  ALTER TABLE: which columns of the new definition are columns of the old one, and what depends on
  them.
*/
#ifndef TIDEPOOL_ALTER_COLUMNS_H
#define TIDEPOOL_ALTER_COLUMNS_H

#include "column.h"
#include "server.h"
#include <vector>

namespace tidepool {

/* Which column of the table each column of the new definition is; -1: a new one. Empty: that is not
   known. */
std::vector<int> old_columns(const TABLE *altered, const Alter_inplace_info *info);

/* Whether rows stay in the partitions that they are in: what places them goes by names, and one may
   mean another column from here on. */
bool same_places(const TABLE *table, const TABLE *altered, const std::vector<int> &old_of);

/* The number of the AUTO_INCREMENT column; -1: there is none. */
int auto_increment_column(const TABLE *table);

/* Whether that is the same column as before. */
bool same_auto_increment(const TABLE *table, const TABLE *altered, const std::vector<int> &old_of);

/* Whether a value may read otherwise, or be rounded otherwise when it is computed, though the bytes
   of those that are stored stay. The columns are of one type. */
bool is_shown_otherwise(const Field *was, const Field *is);

/* Whether what is kept of computed values, in stored columns and in indexes, stays right, and what
   holds of the rows. `converted`, if given: columns of the new definition that get other values. */
bool same_computations(const TABLE *table, const TABLE *altered, const Alter_inplace_info *info,
                       const std::vector<int> &old_of,
                       const std::vector<bool> *converted = nullptr);

/* Whether system versioning begins or ends, or has other columns for the times of rows, or a
   versioned table gets or loses partitions. Else rows of the past are rows like others, keep their
   times, and stay in their partitions. */
bool changes_versioning(const TABLE *table, const TABLE *altered, const std::vector<int> &old_of);

/* Sets the columns that are new to their defaults, in record[0]: what the copy would set them to in
   each row. false: that differs from row to row, or is refused. */
bool set_defaults(TABLE *altered, const std::vector<int> &old_of);

/* A key whose entries are made of what a row stores, and of what is computed from that. */
bool can_be_built(const KEY &key);

/* The virtual columns that indexes of the table have. */
std::vector<Field *> virtual_key_columns(const TABLE *table);
/* Computes them in record[0], which has all stored columns. As when a row is read, what the session
   would refuse or warn of is of no account: the row is there. false: a value can't be computed. */
bool compute(const std::vector<Field *> &columns);

} // namespace tidepool

#endif
