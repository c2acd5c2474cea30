/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "key_part.h"

namespace tidepool {

Part::Part(const TABLE_SHARE *share, const KEY_PART_INFO *info)
    : column(share->field[info->field->field_index], share),
      mask(info->key_part_flag & HA_REVERSE_SORT ? 0xFF : 0), length(info->length),
      store_length(info->store_length) {
  const Field *field = share->field[info->field->field_index];

  if (column.storage != Column::FIXED) {
    image = STRING;
    codec = String_codec(column.cs, column.storage == Column::CHAR);
    whole = column.storage != Column::BLOB && info->length >= column.size;
    encoded_max = static_cast<uint32>(codec.encoded_max(info->length));
    if (!codec.is_bytes())
      unpack = TEXT;
    else if (codec.pads() && column.storage == Column::VARCHAR)
      unpack = SPACES;
  } else {
    image_length = column.size;
    switch (field->real_type()) {
      case MYSQL_TYPE_TINY:
      case MYSQL_TYPE_SHORT:
      case MYSQL_TYPE_INT24:
      case MYSQL_TYPE_LONG:
      case MYSQL_TYPE_LONGLONG:
      case MYSQL_TYPE_YEAR:
        image = (field->flags & UNSIGNED_FLAG) || field->real_type() == MYSQL_TYPE_YEAR ? UNSIGNED
                                                                                        : SIGNED;
        break;
      case MYSQL_TYPE_ENUM:
      case MYSQL_TYPE_SET:
      case MYSQL_TYPE_NEWDATE: image = UNSIGNED; break;
      case MYSQL_TYPE_FLOAT:
        image = FLOAT; /* -0 and 0 are one key: the bytes are kept beside it */
        unpack = BYTES;
        break;
      case MYSQL_TYPE_DOUBLE:
        image = DOUBLE;
        unpack = BYTES;
        break;
      case MYSQL_TYPE_NEWDECIMAL:
      case MYSQL_TYPE_BIT:
      case MYSQL_TYPE_STRING:
      case MYSQL_TYPE_TIMESTAMP2:
      case MYSQL_TYPE_DATETIME2:
      case MYSQL_TYPE_TIME2:
        image = RAW;
        if (info->length < column.size) {
          whole = false;
          image_length = info->length;
        }
        break;
      default: /* old formats */
        image = SORTED;
        unpack = BYTES;
        image_length = field->sort_length();
        break;
    }
    encoded_max = image_length;
  }
  if (column.null_mask) encoded_max++;
}

Part Part::row_id() {
  Part part;
  part.image = ROW_ID;
  part.image_length = part.encoded_max = ROW_ID_LENGTH;
  return part;
}

Part Part::text_words(const Column &column) {
  Part part;
  part.column = column;
  part.image = TEXT_WORDS;
  return part;
}

Part Part::cell(const TABLE_SHARE *share, const KEY_PART_INFO *info) {
  Part part;
  part.geometry = share->field[info->field->field_index];
  part.column = Column(part.geometry, share);
  part.image = CELL;
  part.unpack = RECTANGLE;
  part.whole = false;
  part.encoded_max = TP_SPATIAL_KEY_MAX;
  return part;
}

/* Big-endian, sign flipped so that negative numbers come first. */
static inline uchar *put_integer(uchar *to, const uchar *from, size_t len, uchar flip) {
  for (size_t i = 0; i < len; i++) to[i] = from[len - 1 - i];
  to[0] ^= flip;
  return to + len;
}

template <typename Bits>
static uchar *put_real(uchar *to, Bits bits) {
  constexpr Bits sign = Bits(1) << (8 * sizeof(Bits) - 1);
  bits = bits & sign ? ~bits : bits | sign;
  for (size_t i = 0; i < sizeof bits; i++)
    to[i] = static_cast<uchar>(bits >> (8 * (sizeof bits - 1 - i)));
  return to + sizeof bits;
}

uchar *Part::put(uchar *to, const uchar *at, size_t len, TABLE *table, Key_room &room) const {
  switch (image) {
    case RAW: memcpy(to, at, image_length); return to + image_length;
    case UNSIGNED: return put_integer(to, at, image_length, 0);
    case SIGNED: return put_integer(to, at, image_length, 0x80);
    case FLOAT: {
      float value;
      memcpy(&value, at, sizeof value);
      if (value == 0) value = 0;
      uint32 bits;
      memcpy(&bits, &value, sizeof bits);
      return put_real(to, bits);
    }
    case DOUBLE: {
      double value;
      memcpy(&value, at, sizeof value);
      if (value == 0) value = 0;
      uint64 bits;
      memcpy(&bits, &value, sizeof bits);
      return put_real(to, bits);
    }
    case SORTED: {
      Field *field = table->field[column.fieldnr];
      uchar *const saved = field->ptr;
      field->ptr = const_cast<uchar *>(at);
      field->sort_string(to, image_length);
      field->ptr = saved;
      return to + image_length;
    }
    case STRING: {
      len = MY_MIN(len, length);
      CHARSET_INFO *cs = column.cs;
      if (cs->mbmaxlen > 1 && !whole)
        len = MY_MIN(len, cs->charpos(at, at + len, length / cs->mbmaxlen));
      return codec.encode(to, at, len, room.scratch.get(), room.scratch_len);
    }
    case ROW_ID: memcpy(to, at, ROW_ID_LENGTH); return to + ROW_ID_LENGTH;
    case CELL: {
      uchar rectangle[TP_RECTANGLE_LEN];
      geometry->get_key_image(rectangle, sizeof rectangle, at, Field::itMBR);
      return to + tp_spatial_key({rectangle, sizeof rectangle}, to);
    }
    case TEXT_WORDS: break;
  }
  return to;
}

const uchar *Part::decode_slowly(uchar *record, const uchar *from, const uchar *end,
                                 size_t *len) const {
  if (column.null_mask) {
    if (from >= end) return nullptr;
    if ((*from++ ^ mask) == 0) {
      column.set_null(record);
      return from;
    }
    column.set_not_null(record);
  }
  if (image == STRING) {
    from = codec.decode(column.text_room(record), column.size, len, from, end, mask);
    if (from) column.set_text_length(record, *len);
    return from;
  }
  const size_t n = image_length;
  if (static_cast<size_t>(end - from) < n) return nullptr;
  uchar *to = record + column.offset;
  if (image == RAW) {
    for (size_t i = 0; i < n; i++) to[i] = from[i] ^ mask;
  } else {
    const uchar flip = mask ^ (image == SIGNED ? 0x80 : 0);
    to[n - 1] = from[0] ^ flip;
    for (size_t i = 1; i < n; i++) to[n - 1 - i] = from[i] ^ mask;
  }
  return from + n;
}

} // namespace tidepool
