/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "column.h"

namespace tidepool {

Column::Column(const Field *field, const TABLE_SHARE *share)
    : fieldnr(field->field_index), offset(static_cast<uint32>(field->ptr - share->default_values)),
      size(field->pack_length_in_rec()), cs(&my_charset_bin) {
  if (field->null_ptr) {
    null_mask = field->null_bit;
    null_offset = static_cast<uint32>(field->null_ptr - share->default_values);
  }
  switch (field->real_type()) {
    case MYSQL_TYPE_VARCHAR:
      storage = VARCHAR;
      length_bytes = static_cast<const Field_varstring *>(field)->length_bytes;
      size = field->field_length;
      cs = field->charset();
      break;
    case MYSQL_TYPE_TINY_BLOB:
    case MYSQL_TYPE_MEDIUM_BLOB:
    case MYSQL_TYPE_LONG_BLOB:
    case MYSQL_TYPE_BLOB:
    case MYSQL_TYPE_GEOMETRY:
      storage = BLOB;
      length_bytes =
          static_cast<uint8>(static_cast<const Field_blob *>(field)->pack_length_no_ptr());
      cs = field->charset();
      break;
    case MYSQL_TYPE_STRING:
    case MYSQL_TYPE_VAR_STRING:
      /* BINARY, INET4, INET6 and UUID sort as bytes and are stored whole. */
      if (field->sort_charset() != &my_charset_bin) {
        storage = CHAR;
        cs = field->charset();
      }
      break;
    default: break;
  }
  null_image = share->default_values + offset;
  switch (storage) {
    case FIXED:
    case CHAR: null_image_len = size; break;
    case VARCHAR: {
      size_t len;
      text(share->default_values, &len);
      null_image_len = static_cast<uint32>(length_bytes + len);
      break;
    }
    case BLOB: null_image_len = length_bytes + sizeof(uchar *); break;
  }
}

static uint32 read_le(const uchar *from, uint bytes) {
  uint32 n = 0;
  for (uint i = 0; i < bytes; i++) n |= static_cast<uint32>(from[i]) << (8 * i);
  return n;
}

const uchar *Column::text(const uchar *record, size_t *len) const {
  const uchar *at = record + offset;
  switch (storage) {
    case VARCHAR: *len = length_bytes == 1 ? *at : uint2korr(at); return at + length_bytes;
    case BLOB: {
      const uchar *bytes;
      *len = read_le(at, length_bytes);
      memcpy(&bytes, at + length_bytes, sizeof bytes);
      return bytes;
    }
    default: *len = size; return at;
  }
}

bool Column::same(const uchar *a, const uchar *b) const {
  const bool a_is_null = is_null(a);
  if (a_is_null != is_null(b)) return false;
  if (a_is_null) return true;
  if (storage == FIXED) return memcmp(a + offset, b + offset, size) == 0;
  size_t a_len, b_len;
  const uchar *a_text = text(a, &a_len), *b_text = text(b, &b_len);
  return a_len == b_len && (a_len == 0 || memcmp(a_text, b_text, a_len) == 0);
}

void Column::set_text_length(uchar *record, size_t len) const {
  uchar *at = record + offset;
  switch (storage) {
    case CHAR:
      if (len < size) cs->cset->fill(cs, reinterpret_cast<char *>(at) + len, size - len, ' ');
      break;
    case VARCHAR:
    case BLOB:
      for (uint i = 0; i < length_bytes; i++) at[i] = static_cast<uchar>(len >> (8 * i));
      break;
    case FIXED: break;
  }
}

bool uses(const TABLE *table, Item *expression, const std::vector<bool> &columns) {
  MY_BITMAP *used = const_cast<MY_BITMAP *>(&table->tmp_set);
  bitmap_clear_all(used);
  expression->walk(&Item::register_field_in_bitmap, 1, used);
  for (uint i = 0; i < columns.size(); i++)
    if (columns[i] && bitmap_is_set(used, i)) return true;
  return false;
}

bool add_computed(const TABLE *table, std::vector<bool> *columns,
                  const std::function<bool(const Field *)> &must_not_be) {
  for (bool found = true; found;) {
    found = false;
    for (uint i = 0; i < table->s->fields; i++) {
      const Field *field = table->field[i];
      const Virtual_column_info *computed = field->vcol_info;
      if ((*columns)[i] || !computed || !computed->expr || !uses(table, computed->expr, *columns))
        continue;
      if (must_not_be(field)) return false;
      (*columns)[i] = found = true;
    }
  }
  return true;
}

} // namespace tidepool
