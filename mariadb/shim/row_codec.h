/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Rows: a record of the server as the value of an entry of the clustered index.

      format (1 byte) | NULL bits | NOT NULL columns of fixed length | all other columns

  - Not stored: virtual columns, and columns of the primary key that can be read back from the key.
  - NULL bits: one for each stored column that can be NULL, in the order of the columns, lowest bit first; 1 = NULL.
  - Columns are in the order of the table, in each of the two groups. A NULL takes no bytes.
  - FIXED: the bytes of the record. CHAR: without trailing spaces, length before. VARCHAR, BLOB: length, bytes.
  - Lengths: one byte below 251; FB and 2 bytes; FC and 4 bytes. Little-endian.
*/
#ifndef TIDEPOOL_ROW_CODEC_H
#define TIDEPOOL_ROW_CODEC_H

#include "key_codec.h"

namespace tidepool {

constexpr uchar ROW_FORMAT = 1;

uchar *put_length(uchar *to, size_t len);
const uchar *get_length(const uchar *from, const uchar *end, size_t *len);

/* Bytes that grow and are kept. */
class Buffer {
public:
  ~Buffer() { my_free(bytes); }
  Buffer() = default;
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  uchar *room(size_t len) {
    if (len > capacity) grow(len);
    return bytes;
  }
  uchar *data() const { return bytes; }

private:
  void grow(size_t len);
  uchar *bytes = nullptr;
  size_t capacity = 0;
};

class Row_layout {
public:
  Row_layout(const TABLE_SHARE *share, const Index_layout &primary);

  size_t encode(Buffer &to, const uchar *record) const;
  /* Sets the columns with needed[fieldnr], up to the last one of them. BLOBs point into `row`. false: corrupt, or of
     a format that this version doesn't know. */
  bool decode(uchar *record, const uchar *row, size_t len, const uchar *needed, uint last_needed) const;
  /* Whether two records have the same in all columns that the row has. */
  bool same(const uchar *a, const uchar *b) const;
  /* Where in the order of decoding the last needed column is; 0 = none is needed. */
  uint last_needed(const uchar *needed) const;
  /* Whether the clustered key has columns that the row lacks, of those needed. */
  bool key_needed(const uchar *needed) const;
  /* What the layout depends on: two tables with the same fingerprint can read each other's rows. */
  uint64 fingerprint() const { return print; }

private:
  struct Stored {
    Column column;
    int null_bit; /* -1 = NOT NULL */
  };
  std::vector<Stored> columns; /* in the order in which they are stored */
  std::vector<uint16> in_key;  /* fieldnr of those that are only in the key */
  uint plain = 0;              /* how many of them are NOT NULL and of fixed length */
  size_t null_bytes = 0;
  size_t fixed_size = 0; /* format, NULL bits, and all columns of fixed length */
  uint64 print = 0;
};

} // namespace tidepool

#endif
