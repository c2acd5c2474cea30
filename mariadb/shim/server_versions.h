/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  What the server calls by another name, or with other arguments, in other versions. Each is found out from the headers, not from the
  version's number: distributions patch, and fixes are ported back.
*/
#ifndef TIDEPOOL_SERVER_VERSIONS_H
#define TIDEPOOL_SERVER_VERSIONS_H

#include "server.h"

namespace tidepool {

namespace versions {

/* Before 10.11.15 names of tables count, so that columns of a table and of its altered self are never the same. */
template <typename Expression>
auto is_equal(const Expression *a, const Expression *b, int) -> decltype(a->is_equal(b, true)) {
  return a->is_equal(b, true);
}
template <typename Expression> bool is_equal(const Expression *a, const Expression *b, long) { return a->is_equal(b); }

} // namespace versions

/* Whether two checks, or two expressions of generated columns, are the same. False may mean that the server cannot tell. */
inline bool is_same_expression(const Virtual_column_info *a, const Virtual_column_info *b) {
  return versions::is_equal(a, b, 0);
}

} // namespace tidepool

#endif
