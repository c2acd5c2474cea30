/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "row_codec.h"

namespace tidepool {

uchar *put_length(uchar *to, size_t len) {
  if (len < 251) {
    *to++ = static_cast<uchar>(len);
    return to;
  }
  if (len <= 0xFFFF) {
    *to = 251;
    int2store(to + 1, static_cast<uint16>(len));
    return to + 3;
  }
  *to = 252;
  int4store(to + 1, static_cast<uint32>(len));
  return to + 5;
}

const uchar *get_length(const uchar *from, const uchar *end, size_t *len) {
  if (from >= end) return nullptr;
  if (*from < 251) {
    *len = *from;
    return from + 1;
  }
  if (*from == 251) {
    if (end - from < 3) return nullptr;
    *len = uint2korr(from + 1);
    return from + 3;
  }
  if (*from != 252 || end - from < 5) return nullptr;
  *len = uint4korr(from + 1);
  return from + 5;
}

void Buffer::grow(size_t len) {
  const size_t wanted = MY_MAX(len, 2 * capacity);
  /* MY_WME and no check: the server ends a statement that runs out of memory, as it does
     everywhere. */
  bytes = static_cast<uchar *>(
      my_realloc(PSI_NOT_INSTRUMENTED, bytes, wanted, MYF(MY_ALLOW_ZERO_PTR | MY_FAE)));
  capacity = wanted;
}

void Buffer::release() {
  my_free(bytes);
  bytes = nullptr;
  capacity = 0;
}

Row_layout::Row_layout(const TABLE_SHARE *share, const Index_layout &primary) {
  std::vector<bool> from_key(share->fields, false);
  for (const Part &part : primary.all_parts())
    if (part.reversible()) from_key[part.column.fieldnr] = true;

  std::vector<Stored> others;
  int null_bits = 0;
  auto mix = [this](uint64 x) { print = (print ^ x) * 0x100000001B3ULL + (print >> 29); };
  for (uint i = 0; i < share->fields; i++) {
    const Field *field = share->field[i];
    if (!field->stored_in_db()) continue;
    if (from_key[i]) {
      in_key.push_back(static_cast<uint16>(i));
      mix(0x10000 + i);
      continue;
    }
    Stored stored{Column(field, share), -1};
    if (stored.column.null_mask) stored.null_bit = null_bits++;
    mix(stored.column.storage * 2 + (stored.null_bit >= 0));
    if (stored.column.storage == Column::FIXED) {
      fixed_size += stored.column.size;
      mix(stored.column.size);
    }
    if (stored.column.storage == Column::FIXED && stored.null_bit < 0)
      columns.push_back(stored);
    else
      others.push_back(stored);
  }
  plain = static_cast<uint>(columns.size());
  columns.insert(columns.end(), others.begin(), others.end());
  /* Longer ones than this are rare where a column may be longer. */
  constexpr uint LONG = 1024;
  before_blobs = static_cast<uint>(columns.size());
  for (uint i = before_blobs; i > 0; i--) {
    const Column &column = columns[i - 1].column;
    const bool is_blob = column.storage == Column::BLOB;
    if (is_blob) before_blobs = i - 1;
    if (!up_to_long && (is_blob || (column.storage == Column::VARCHAR && column.size > LONG)))
      up_to_long = i;
  }
  null_bytes = (null_bits + 7) / 8;
  fixed_size += 1 + null_bytes;
}

size_t Row_layout::encode(Buffer &buffer, const uchar *record) const {
  size_t bound = fixed_size;
  for (size_t i = plain; i < columns.size(); i++) {
    const Column &column = columns[i].column;
    size_t len = 0;
    if (column.storage != Column::FIXED && !column.is_null(record)) {
      if (column.storage == Column::CHAR)
        len = column.size;
      else
        column.text(record, &len);
      bound += 5 + len;
    }
  }
  uchar *const start = buffer.room(bound);
  uchar *to = start;
  *to++ = tag;
  uchar *const nulls = to;
  memset(nulls, 0, null_bytes);
  to += null_bytes;
  for (uint i = 0; i < plain; i++) {
    const Column &column = columns[i].column;
    memcpy(to, record + column.offset, column.size);
    to += column.size;
  }
  for (size_t i = plain; i < columns.size(); i++) {
    const Column &column = columns[i].column;
    if (column.is_null(record)) {
      nulls[columns[i].null_bit >> 3] |= 1 << (columns[i].null_bit & 7);
      continue;
    }
    if (column.storage == Column::FIXED) {
      memcpy(to, record + column.offset, column.size);
      to += column.size;
      continue;
    }
    size_t len;
    const uchar *text = column.text(record, &len);
    if (column.storage == Column::CHAR)
      len = column.cs->lengthsp(reinterpret_cast<const char *>(text), len);
    to = put_length(to, len);
    if (len) memcpy(to, text, len);
    to += len;
  }
  return to - start;
}

bool Row_layout::same(const uchar *a, const uchar *b) const {
  for (const Stored &stored : columns)
    if (!stored.column.same(a, b)) return false;
  return true;
}

uint Row_layout::last_needed(const uchar *needed) const {
  for (size_t i = columns.size(); i > 0; i--)
    if (needed[columns[i - 1].column.fieldnr]) return static_cast<uint>(i);
  return 0;
}

bool Row_layout::key_needed(const uchar *needed) const {
  for (uint16 fieldnr : in_key)
    if (needed[fieldnr]) return true;
  return false;
}

/* Sets a column to a value as a row stores it. false: it doesn't fit. */
static inline bool set_value(const Column &column, uchar *record, const uchar *from, size_t len) {
  switch (column.storage) {
    case Column::FIXED: memcpy(record + column.offset, from, len); break;
    case Column::CHAR:
    case Column::VARCHAR:
      if (len > column.size) return false;
      memcpy(column.text_room(record), from, len);
      column.set_text_length(record, len);
      break;
    case Column::BLOB:
      column.set_text_length(record, len);
      memcpy(record + column.offset + column.length_bytes, &from, sizeof from);
      break;
  }
  return true;
}

bool Row_layout::decode(uchar *record, const uchar *row, size_t row_len, const uchar *needed,
                        uint last) const {
  const uchar *const end = row + row_len;
  if (unlikely(row_len == 0 || *row != tag)) return decode_older(record, row, row_len, needed);
  if (row_len < 1 + null_bytes) return false;
  const uchar *const nulls = row + 1;
  const uchar *from = nulls + null_bytes;
  const Stored *stored = columns.data();
  const Stored *const stop = stored + last;
  const Stored *const plain_stop = stored + MY_MIN(plain, last);
  for (; stored < plain_stop; stored++) {
    const Column &column = stored->column;
    if (static_cast<size_t>(end - from) < column.size) return false;
    if (needed[column.fieldnr]) memcpy(record + column.offset, from, column.size);
    from += column.size;
  }
  for (; stored < stop; stored++) {
    const Column &column = stored->column;
    const bool wanted = needed[column.fieldnr];
    if (stored->null_bit >= 0) {
      if (nulls[stored->null_bit >> 3] & (1 << (stored->null_bit & 7))) {
        if (wanted) column.set_null(record);
        continue;
      }
      if (wanted) column.set_not_null(record);
    }
    size_t len = column.size;
    if (column.storage != Column::FIXED) from = get_length(from, end, &len);
    if (!from || static_cast<size_t>(end - from) < len) return false;
    if (wanted && !set_value(column, record, from, len)) return false;
    from += len;
  }
  return true;
}

bool Row_layout::decode_older(uchar *record, const uchar *row, size_t row_len,
                              const uchar *needed) const {
  const Older *version = row_len ? older_of(*row) : nullptr;
  if (!version || row_len < 1 + version->null_bytes) return false;
  const uchar *const end = row + row_len;
  const uchar *const nulls = row + 1;
  const uchar *from = nulls + version->null_bytes;
  uint null_bit = 0;
  for (const Older::Value &value : version->values) {
    const Stored_column &stored = value.stored;
    const Column *column = value.column < 0 ? nullptr : &columns[value.column].column;
    if (column && !needed[column->fieldnr]) column = nullptr;
    if (stored.nullable) {
      const uint bit = null_bit++;
      if (nulls[bit >> 3] & (1 << (bit & 7))) {
        if (column) column->set_null(record);
        continue;
      }
    }
    size_t len = stored.size;
    if (stored.has_length) from = get_length(from, end, &len);
    if (!from || static_cast<size_t>(end - from) < len) return false;
    if (column) {
      column->set_not_null(record);
      if (!set_value(*column, record, from, len)) return false;
    }
    from += len;
  }
  for (const auto &absent : version->absent) {
    const Column &column = columns[absent.first].column;
    const Default_value &value = absent.second;
    if (!needed[column.fieldnr]) continue;
    if (value.is_null) {
      column.set_null(record);
      continue;
    }
    column.set_not_null(record);
    /* A BLOB points there: the layout outlives what is read by it. */
    if (!set_value(column, record, reinterpret_cast<const uchar *>(value.bytes.data()),
                   value.bytes.size()))
      return false;
  }
  return true;
}

std::vector<Stored_column> Row_layout::stored_columns() const {
  std::vector<Stored_column> all;
  for (const Stored &stored : columns) {
    const bool has_length = stored.column.storage != Column::FIXED;
    all.push_back({static_cast<uint16>(all.size()), stored.null_bit >= 0, has_length,
                   has_length ? 0 : stored.column.size});
  }
  return all;
}

bool Row_layout::set_versions(const Row_versions &list) {
  if (list.empty()) return true;
  const std::vector<Stored_column> &newest = list.versions.back();
  const std::vector<Stored_column> mine = stored_columns();
  if (newest.size() != mine.size()) return false;
  std::map<uint16, uint> by_id;
  for (uint i = 0; i < newest.size(); i++) {
    if (newest[i].nullable != mine[i].nullable || newest[i].has_length != mine[i].has_length ||
        newest[i].size != mine[i].size)
      return false;
    by_id[newest[i].id] = i;
  }
  if (by_id.size() != newest.size()) return false;
  std::vector<Older> all;
  for (uint version = 0; version < list.newest(); version++) {
    Older one;
    std::vector<bool> present(columns.size(), false);
    size_t null_bits = 0;
    for (const Stored_column &stored : list.versions[version]) {
      const auto found = by_id.find(stored.id);
      null_bits += stored.nullable;
      if (found == by_id.end()) {
        one.values.push_back({-1, stored});
        continue;
      }
      /* A value of a fixed length is copied as it is, and a NULL needs a bit. */
      const Stored_column &now = mine[found->second];
      if (present[found->second] || stored.has_length != now.has_length ||
          stored.size != now.size || (stored.nullable && !now.nullable))
        return false;
      present[found->second] = true;
      one.values.push_back({static_cast<int>(found->second), stored});
    }
    one.null_bytes = (null_bits + 7) / 8;
    for (uint i = 0; i < columns.size(); i++) {
      if (present[i]) continue;
      const auto value = list.defaults.find(newest[i].id);
      if (value == list.defaults.end() || (value->second.is_null && !mine[i].nullable) ||
          (!value->second.is_null && !mine[i].has_length &&
           value->second.bytes.size() != mine[i].size))
        return false;
      one.absent.emplace_back(i, value->second);
    }
    all.push_back(std::move(one));
  }
  older = std::move(all);
  tag = row_tag(list.newest());
  return true;
}

} // namespace tidepool
