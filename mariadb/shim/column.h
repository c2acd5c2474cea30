/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* A column: how its value lies in a record of the server, and how it gets there. */
#ifndef TIDEPOOL_COLUMN_H
#define TIDEPOOL_COLUMN_H

#include "server.h"
#include <functional>
#include <vector>

namespace tidepool {

/* How a column lies in a record of the server. */
struct Column {
  enum Storage : uchar { FIXED, CHAR, VARCHAR, BLOB };
  uint16 fieldnr = 0;
  Storage storage = FIXED;
  uint8 length_bytes = 0; /* VARCHAR, BLOB */
  uchar null_mask = 0;    /* 0 = NOT NULL */
  uint32 offset = 0;
  uint32 null_offset = 0;
  uint32 size = 0; /* FIXED, CHAR: bytes in the record; VARCHAR: longest text */
  uint32 null_image_len = 0;
  const uchar *null_image = nullptr; /* in the TABLE_SHARE */
  CHARSET_INFO *cs = nullptr;

  Column() = default;
  Column(const Field *field, const TABLE_SHARE *share);

  bool is_null(const uchar *record) const { return null_mask && (record[null_offset] & null_mask); }
  /* The server compares the bytes of a NULL too: they are set as in its record of
     default values. */
  void set_null(uchar *record) const {
    record[null_offset] |= null_mask;
    memcpy(record + offset, null_image, null_image_len);
  }
  void set_not_null(uchar *record) const {
    if (null_mask) record[null_offset] &= ~null_mask;
  }
  /* The text of a CHAR (with its padding), VARCHAR or BLOB. */
  const uchar *text(const uchar *record, size_t *len) const;
  /* Room for the text of a CHAR or VARCHAR. */
  uchar *text_room(uchar *record) const {
    return record + offset + (storage == VARCHAR ? length_bytes : 0);
  }
  /* Whether two records have the same bytes here (which is stricter than what the
     collation says). */
  bool same(const uchar *a, const uchar *b) const;
  /* After the text was written there: sets the length, or pads. */
  void set_text_length(uchar *record, size_t len) const;
};

/* Whether an expression of the table names one of these of its columns. */
bool uses(const TABLE *table, Item *expression, const std::vector<bool> &columns);

/* Adds the columns that are computed from these, be it by way of others. false: there is one among
   them that must not be, and those that are computed from it may not have been added. */
bool add_computed(const TABLE *table, std::vector<bool> *columns,
                  const std::function<bool(const Field *)> &must_not_be);

} // namespace tidepool

#endif
