/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  What two tables must have in common so that the rows and entries of one are those of the other:
  columns and keys, as text that a user understands. An export has it, and an import compares.

  format (1 byte) | for each: what it is of, and what the definition says of it: texts with their
  length before them (4 bytes, little-endian)
*/
#ifndef TIDEPOOL_TABLE_DEFINITION_H
#define TIDEPOOL_TABLE_DEFINITION_H

#include "server.h"
#include <string>
#include <utility>
#include <vector>

namespace tidepool {

class Table_definition {
public:
  Table_definition() = default;
  explicit Table_definition(const TABLE *table);

  std::string put() const;
  /* false: of a format that this version doesn't know, or cut short. */
  bool get(const uchar *from, size_t len);
  /* What differs in the definition of an export; empty: nothing. */
  std::string difference(const Table_definition &exported) const;

private:
  std::vector<std::pair<std::string, std::string>> parts;
};

} // namespace tidepool

#endif
