/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  A part of a key: one column's value, or the beginning of it, as bytes that memcmp orders as the
  index does. key_codec.h says what they are, and what becomes of them in a descending part: here
  they are read as they stand there, and written as in an ascending one.
*/
#ifndef TIDEPOOL_KEY_PART_H
#define TIDEPOOL_KEY_PART_H

#include "bridge.h"
#include "collation.h"
#include "column.h"
#include <memory>
#include <myisampack.h>

namespace tidepool {

constexpr size_t ROW_ID_LENGTH = 8;
/* A geometry begins with the number of its system of coordinates. */
constexpr size_t SRID_LENGTH = 4;

/* Room in which keys are made: one for each open handler, large enough for any key of its table. */
struct Key_room {
  std::unique_ptr<uchar[]> scratch;
  size_t scratch_len = 0;
};

struct Part {
  /* TEXT_WORDS: a column of a FULLTEXT index, which has an entry for each word and no part of the
     column. CELL: a column of a SPATIAL index, of which the key has where its rectangle is
     (mariadb/src/spatial/cell.rs). */
  enum Image : uchar {
    RAW,
    UNSIGNED,
    SIGNED,
    FLOAT,
    DOUBLE,
    STRING,
    SORTED,
    ROW_ID,
    TEXT_WORDS,
    CELL
  };
  /* RECTANGLE: that of a geometry, which can't be read back from it. */
  enum Unpack : uchar { NOTHING, BYTES, TEXT, SPACES, RECTANGLE };

  Column column;
  Image image = RAW;
  Unpack unpack = NOTHING; /* of a part that covers its column */
  bool whole = true;       /* covers its column, not only the beginning */
  uchar mask = 0;          /* FF if descending */
  uint32 length = 0;       /* bytes of the column that count */
  uint32 image_length = 0; /* without the NULL byte; 0 = varies */
  uint32 encoded_max = 0;
  uint32 store_length = 0; /* in the server's key image */
  String_codec codec;
  const Field *geometry = nullptr; /* of a CELL: the column, in the TABLE_SHARE */

  Part() = default;
  Part(const TABLE_SHARE *share, const KEY_PART_INFO *info);
  static Part row_id();
  static Part text_words(const Column &column);
  static Part cell(const TABLE_SHARE *share, const KEY_PART_INFO *info);

  /* Can be read back from the key alone. */
  bool reversible() const { return whole && unpack == NOTHING && image != ROW_ID; }

  /* The value at `at` (in a record or in a key image); for a STRING `len` bytes of text there. */
  uchar *put(uchar *to, const uchar *at, size_t len, TABLE *table, Key_room &room) const;
  /* Of a CELL: the rectangle of the geometry in a record, of TP_RECTANGLE_LEN bytes. */
  void rectangle_of(const uchar *record, uchar *rectangle) const {
    geometry->get_key_image(rectangle, TP_RECTANGLE_LEN, record + column.offset, Field::itMBR);
  }
  /* Whether the record has a geometry in the column of a CELL. INSERT IGNORE leaves none. */
  bool has_geometry(const uchar *record) const {
    size_t len;
    column.text(record, &len);
    return len >= SRID_LENGTH;
  }

  /* Where the part that begins here ends; nullptr: corrupt, or cut short. */
  const uchar *skip(const uchar *from, const uchar *end) const;
  /* Sets the column of a reversible part, or of one with SPACES (*len is its text's
     length then). */
  const uchar *decode(uchar *record, const uchar *from, const uchar *end, size_t *len) const;

private:
  const uchar *decode_slowly(uchar *record, const uchar *from, const uchar *end, size_t *len) const;
};

/* Most keys are integers of four or eight bytes. */
inline const uchar *Part::decode(uchar *record, const uchar *from, const uchar *end,
                                 size_t *len) const {
  if ((image != SIGNED && image != UNSIGNED) || column.null_mask ||
      static_cast<size_t>(end - from) < image_length)
    return decode_slowly(record, from, end, len);
  uchar *const to = record + column.offset;
  const uint64 inverted = mask ? ~0ULL : 0;
  switch (image_length) {
    case 4: {
      const uint32 sign = image == SIGNED ? 1U << 31 : 0;
      int4store(to, static_cast<uint32>(mi_uint4korr(from) ^ inverted) ^ sign);
      return from + 4;
    }
    case 8: {
      const uint64 sign = image == SIGNED ? 1ULL << 63 : 0;
      int8store(to, mi_uint8korr(from) ^ inverted ^ sign);
      return from + 8;
    }
    default: return decode_slowly(record, from, end, len);
  }
}

inline const uchar *Part::skip(const uchar *from, const uchar *end) const {
  if (column.null_mask) {
    if (from >= end) return nullptr;
    if ((*from++ ^ mask) == 0) return from;
  }
  if (image == STRING) return codec.skip(from, end, mask);
  if (image == CELL) {
    const size_t len = from < end ? tp_spatial_key_len(*from) : 0;
    return len && static_cast<size_t>(end - from) >= len ? from + len : nullptr;
  }
  return static_cast<size_t>(end - from) < image_length ? nullptr : from + image_length;
}

} // namespace tidepool

#endif
