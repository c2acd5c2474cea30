/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Rows: a record of the server as the value of an entry of the clustered index.

  version (1 byte) | NULL bits | NOT NULL columns of fixed length | all other columns

  - The version says which columns these are: 01 = version 0, 80 + n = version n (row_versions.h).
    Rows are written in the newest one, which is read by the table's definition alone; older ones
    are read column by column as their version has them.
  - Not stored: virtual columns, and columns of the primary key that can be read back from the key.
  - NULL bits: one for each stored column that can be NULL, in the order of the columns, lowest bit
    first; 1 = NULL.
  - Columns are in the order of the table, in each of the two groups. A NULL takes no bytes.
  - FIXED: the bytes of the record. CHAR: without trailing spaces, length before. VARCHAR, BLOB:
    length, bytes.
  - Lengths: one byte below 251; FB and 2 bytes; FC and 4 bytes. Little-endian.
*/
#ifndef TIDEPOOL_ROW_CODEC_H
#define TIDEPOOL_ROW_CODEC_H

#include "key_codec.h"
#include "row_versions.h"

namespace tidepool {

/* First byte of a row of this version. */
constexpr uchar row_tag(uint version) {
  return static_cast<uchar>(version == 0 ? 1 : 0x80 + version);
}

uchar *put_length(uchar *to, size_t len);
const uchar *get_length(const uchar *from, const uchar *end, size_t *len);

/* Bytes that grow, and are kept until they are given back. */
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
  /* If there are more than these. */
  void give_back(size_t kept) {
    if (capacity > kept) release();
  }

private:
  void grow(size_t len);
  void release();
  uchar *bytes = nullptr;
  size_t capacity = 0;
};

class Row_layout {
public:
  Row_layout(const TABLE_SHARE *share, const Index_layout &primary);

  /* Rows are of these versions. false: the newest one is not this layout. */
  bool set_versions(const Row_versions &versions);
  /* The columns as a version has them, numbered from 0. */
  std::vector<Stored_column> stored_columns() const;
  size_t column_count() const { return columns.size(); }
  /* One of them, in the order in which they are stored. */
  const Column &column(size_t at) const { return columns[at].column; }

  size_t encode(Buffer &to, const uchar *record) const;
  /* Sets the columns with needed[fieldnr], up to the last one of them. BLOBs point into `row`.
     false: corrupt, or of a version that the table doesn't have. */
  bool decode(uchar *record, const uchar *row, size_t len, const uchar *needed,
              uint last_needed) const;
  /* Whether a row is of a version that the table has. */
  bool knows(const uchar *row, size_t len) const {
    return len > 0 && (*row == tag || older_of(*row) != nullptr);
  }
  /* Whether two records have the same in all columns that the row has. */
  bool same(const uchar *a, const uchar *b) const;
  /* Where in the order of decoding the last needed column is; 0 = none is needed. */
  uint last_needed(const uchar *needed) const;
  /* Whether the beginning of a long row has all columns up to the last needed one, most likely:
     what is long is behind them. */
  bool prefix_may_do(uint last_needed) const {
    return last_needed <= before_blobs && last_needed < up_to_long;
  }
  /* Whether the clustered key has columns that the row lacks, of those needed. */
  bool key_needed(const uchar *needed) const;
  /* What the layout depends on: two tables with the same fingerprint can read each other's rows. */
  uint64 fingerprint() const { return print; }

private:
  struct Stored {
    Column column;
    int null_bit; /* -1 = NOT NULL */
  };
  /* A row of an older version: what is stored there, one after the other, and which columns are
     not. */
  struct Older {
    struct Value {
      int column; /* in `columns`; -1 = dropped */
      Stored_column stored;
    };
    std::vector<Value> values;
    std::vector<std::pair<uint, Default_value>> absent; /* columns in `columns` */
    size_t null_bytes = 0;
  };
  const Older *older_of(uchar first_byte) const {
    if (first_byte != row_tag(0) && first_byte < row_tag(1)) return nullptr;
    const size_t version = first_byte == row_tag(0) ? 0 : first_byte - 0x80U;
    return version < older.size() ? &older[version] : nullptr;
  }
  bool decode_older(uchar *record, const uchar *row, size_t len, const uchar *needed) const;

  std::vector<Stored> columns; /* in the order in which they are stored */
  std::vector<uint16> in_key;  /* fieldnr of those that are only in the key */
  uint plain = 0;              /* how many of them are NOT NULL and of fixed length */
  uint before_blobs = 0;       /* how many there are before the first BLOB */
  uint up_to_long = 0;         /* and up to the last one that may be long; 0 = there is none */
  size_t null_bytes = 0;
  uchar tag = row_tag(0);
  std::vector<Older> older; /* all versions but the newest */
  size_t fixed_size = 0;    /* version, NULL bits, and all columns of fixed length */
  uint64 print = 0;
};

} // namespace tidepool

#endif
