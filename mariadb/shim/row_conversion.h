/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  What a row becomes in the table that takes its table's place: its columns go from the record of
  the one to that of the other as in the server's copy, by Copy_field; new columns have their
  defaults.

  A row always becomes the same, for it is asked for again when others have changed it: so new
  columns have a value that is the same in all rows, and a value that would be cut is an error (the
  session is in strict mode if a column gets another type).
*/
#ifndef TIDEPOOL_ROW_CONVERSION_H
#define TIDEPOOL_ROW_CONVERSION_H

#include "bridge.h"
#include "server.h"
#include "table_share.h"
#include <memory>
#include <vector>

namespace tidepool {

class Row_conversion {
public:
  /* `now`: of `table`; it stays as long as this does. `old_of`: which column of `table` each column
     of `altered` is (alter_columns.h). Uses record[0] of both. */
  Row_conversion(TABLE *table, const Layouts &now, TABLE *altered, std::vector<int> old_of);

  /* false: an error was sent. Before the first row. */
  bool begin();

  enum Result { CONVERTED, CORRUPT, REFUSED /* an error was sent */ };
  /* Sets record[0] of `altered`, whose BLOBs may point into the key and the row. */
  Result convert(tp_bytes key, tp_bytes row);

private:
  TABLE *const table;
  const Layouts &now;
  TABLE *const altered;
  const std::vector<int> old_of;
  std::unique_ptr<Copy_field[]> copies;
  size_t copy_count = 0;
  std::vector<uchar> wanted; /* columns of `table` */
  uint last = 0;
  bool from_key = false;
};

} // namespace tidepool

#endif
