/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Versions of a table's rows. ALTER TABLE that adds, drops or moves columns leaves the rows as they
  are, and begins a new version: rows are written in the newest one, and each says in its first byte
  which one it is of.

  A version is the list of the columns that its rows store, in the order in which they are stored. A
  column has a number, which no other column of the table has ever had; by it the present
  definition's columns, which are those of the newest version, are found in older rows. A column
  that an older version lacks was added later: it has the value in `defaults`, evaluated once, by
  that ALTER.

  A table that was never altered so has no list: its rows are of version 0. A copy of a table begins
  there again.

  In the metadata of a table (see table_share.h), numbers little-endian:

  length of all that follows (4 bytes) format of this list, 1 (1 byte) | number of the next column
  (4 bytes) | number of versions (1 byte) for each version, from 0:  number of columns (2 bytes) for
  each: its number (2 bytes) | bit 0: can be NULL, bit 1: has its length before it (1 byte) its
  size, 0 if it has its length before it (4 bytes) number of defaults (2 bytes) for each:  number of
  the column (2 bytes) | 1 if NULL (1 byte) | length (4 bytes) | the value as a row stores it
*/
#ifndef TIDEPOOL_ROW_VERSIONS_H
#define TIDEPOOL_ROW_VERSIONS_H

#include "server.h"
#include <map>
#include <string>
#include <vector>

namespace tidepool {

class Row_layout;

/* What is needed to pass over a value without the server's Field. */
struct Stored_column {
  uint16 id = 0;
  bool nullable = false;
  bool has_length = false;
  uint32 size = 0; /* if it has no length before it */
};

/* Of a column in rows that are older than it. */
struct Default_value {
  bool is_null = true;
  std::string bytes; /* as a row stores them, without a length */
};

struct Row_versions {
  /* Further ones need a copy of the table. */
  static constexpr size_t COUNT_MAX = 127;
  static constexpr size_t LENGTH_MAX = 256 << 10;

  /* empty: the rows are of version 0, as the table's definition has them */
  std::vector<std::vector<Stored_column>> versions;
  std::map<uint16, Default_value> defaults;
  uint32 next_id = 0;

  bool empty() const { return versions.empty(); }
  uint newest() const { return versions.empty() ? 0 : static_cast<uint>(versions.size() - 1); }

  /* Begins a version: rows of `next`, whose field i is field old_of[i] of `now`, or a new one if
     that is negative: then its default is in `record`. false: not to be done so; nothing is to be
     used of it then. */
  bool add(const Row_layout &now, const Row_layout &next, const std::vector<int> &old_of,
           const uchar *record);

  /* Appends the list. */
  void put(std::string *to) const;
  /* false: of a format that this version of Tidepool doesn't know, or cut short. */
  bool get(const uchar *from, size_t len);
};

} // namespace tidepool

#endif
