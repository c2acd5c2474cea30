/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  A table's description: what it takes to read its rows, and to make the table anew, where there is
  no server and no .frm file. `tidepool salvage` and `tidepool check` go by it; nothing in the
  server does. The engine keeps it with the table.

  Integers are little-endian; text is UTF-8, with its length before it (4 bytes).

  version 1 (1 byte) text: the CREATE TABLE statement behind the table's name, without foreign keys:
  the metadata have these number of columns (2); for each, in the order of the table: text: its name
  place (1): 0 = not stored, 1 = read from the clustered key, 2 = in the row flags (1): bit 0 can be
  NULL, 1 unsigned, 2 generated, 3 of the system's versioning, 4 hidden, 5 compressed storage (1): 0
  = fixed length, 1 = CHAR, 2 = VARCHAR, 3 = BLOB kind (1): see Kind decimals (1), precision (1): of
  DECIMAL; decimals of a time, too size (4): bytes in the record, of fixed length and CHAR text:
  name of the character set number of values (2), for each: text (ENUM, SET) number of trees (2);
  for each: text: name of its key flags (1): bit 0 unique, bit 1 entries without NULL have the
  clustered key in their value parts that are the key's (2), parts in all (2); for each: column (2;
  FFFF = row id), image (1), unpack (1): as in key_part.h flags (1): bit 0 whole column, 1
  descending, 2 can be NULL length (4), bytes without the NULL byte (4; 0 = varies) number of levels
  (1), for each: width of a space (1; 0 = ends by 00 00), its bytes number of pieces (2), for each:
  part (2), mask (1): of these the clustered key is made; none: the appended parts are it
*/
#ifndef TIDEPOOL_DESCRIPTION_H
#define TIDEPOOL_DESCRIPTION_H

#include "server.h"
#include <string>

namespace tidepool {

class Attachments;

constexpr uchar DESCRIPTION_VERSION = 1;

/* Kinds of columns: how the bytes of one are read. Part of the format. */
enum class Kind : uchar {
  OTHER = 0, /* bytes */
  INTEGER = 1,
  FLOAT = 2,
  DOUBLE = 3,
  DECIMAL = 4,
  BIT = 5,
  YEAR = 6,
  DATE = 7,
  TIME = 8,
  DATETIME = 9,
  TIMESTAMP = 10,
  ENUM = 11,
  SET = 12,
  TEXT = 13,
  BINARY = 14,
  INET4 = 15,
  INET6 = 16,
  UUID = 17,
};

/* The description of a table, whose keys may have other positions than their trees: they go by
   their names. */
std::string describe(THD *thd, TABLE *table);
/* Adds it to a change of the definition of the engine's table `name`. */
void attach_description(THD *thd, const std::string &name, TABLE *table, Attachments *to);
/* Writes it if the catalog has none, or another one: of a table that was renamed by a change of
   partitions, say. */
void refresh_description(THD *thd, const std::string &name, TABLE *table);

} // namespace tidepool

#endif
