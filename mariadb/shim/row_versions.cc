/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "row_versions.h"
#include "row_codec.h"

namespace tidepool {

namespace {

constexpr uint LIST_FORMAT = 1;
constexpr uint NULLABLE = 1, HAS_LENGTH = 2;

void append(std::string *to, uint64 value, uint bytes) {
  for (uint i = 0; i < bytes; i++) to->push_back(static_cast<char>(value >> (8 * i)));
}

/* Once something is missing, nothing more is there. */
struct Source {
  const uchar *at, *end;
  bool good = true;

  bool has(size_t bytes) {
    good = good && static_cast<size_t>(end - at) >= bytes;
    return good;
  }
  uint32 number(uint bytes) {
    if (!has(bytes)) return 0;
    uint32 value = 0;
    for (uint i = 0; i < bytes; i++) value |= static_cast<uint32>(at[i]) << (8 * i);
    at += bytes;
    return value;
  }
  std::string text(size_t len) {
    if (!has(len)) return {};
    at += len;
    return std::string(reinterpret_cast<const char *>(at - len), len);
  }
};

Default_value default_in(const Column &column, const uchar *record) {
  Default_value value;
  value.is_null = column.is_null(record);
  if (value.is_null) return value;
  size_t len;
  const uchar *text = column.text(record, &len);
  if (column.storage == Column::CHAR)
    len = column.cs->lengthsp(reinterpret_cast<const char *>(text), len);
  if (len) value.bytes.assign(reinterpret_cast<const char *>(text), len);
  return value;
}

/* Whether values of one are values of the other, in a row. A NULL must be able to stay one. */
bool stays(const Column &was, const Column &is) {
  const bool has_length_of_its_own = is.storage == Column::VARCHAR || is.storage == Column::BLOB;
  return was.storage == is.storage && was.cs == is.cs &&
         (has_length_of_its_own ? was.size <= is.size || is.storage == Column::BLOB
                                : was.size == is.size) &&
         (!was.null_mask || is.null_mask);
}

} // namespace

bool Row_versions::add(const Row_layout &now, const Row_layout &next,
                       const std::vector<int> &old_of, const uchar *record) {
  if (versions.empty()) {
    versions.push_back(now.stored_columns());
    next_id = static_cast<uint32>(versions[0].size());
  }
  if (versions.size() >= COUNT_MAX) return false;
  std::map<int, size_t> before; /* by fieldnr: where in the rows of now */
  for (size_t i = 0; i < now.column_count(); i++) before[now.column(i).fieldnr] = i;

  std::vector<Stored_column> version = next.stored_columns();
  std::map<uint16, Default_value> kept;
  for (size_t i = 0; i < version.size(); i++) {
    const Column &column = next.column(i);
    const int old = old_of[column.fieldnr];
    if (old < 0) {
      if (next_id > UINT_MAX16) return false;
      version[i].id = static_cast<uint16>(next_id++);
      kept[version[i].id] = default_in(column, record);
      continue;
    }
    const auto found = before.find(old);
    if (found == before.end() || !stays(now.column(found->second), column)) return false;
    version[i].id = versions.back()[found->second].id;
    if (const auto value = defaults.find(version[i].id); value != defaults.end())
      kept.insert(*value);
    before.erase(found);
  }
  /* What is left is dropped: no reader may come to look for it elsewhere, say in the key. */
  for (const auto &dropped : before)
    for (const int old : old_of)
      if (old == dropped.first) return false;
  defaults = std::move(kept);
  versions.push_back(std::move(version));
  std::string bytes;
  put(&bytes);
  return bytes.size() <= LENGTH_MAX;
}

void Row_versions::put(std::string *to) const {
  std::string list;
  append(&list, LIST_FORMAT, 1);
  append(&list, next_id, 4);
  append(&list, versions.size(), 1);
  for (const auto &version : versions) {
    append(&list, version.size(), 2);
    for (const Stored_column &column : version) {
      append(&list, column.id, 2);
      append(&list, (column.nullable ? NULLABLE : 0) | (column.has_length ? HAS_LENGTH : 0), 1);
      append(&list, column.size, 4);
    }
  }
  append(&list, defaults.size(), 2);
  for (const auto &value : defaults) {
    append(&list, value.first, 2);
    append(&list, value.second.is_null, 1);
    append(&list, value.second.bytes.size(), 4);
    list += value.second.bytes;
  }
  append(to, list.size(), 4);
  *to += list;
}

bool Row_versions::get(const uchar *from, size_t len) {
  Source source{from, from + len};
  const size_t length = source.number(4);
  if (!source.has(length)) return false;
  source.end = source.at + length;
  if (source.number(1) != LIST_FORMAT) return false;
  next_id = source.number(4);
  versions.resize(source.number(1));
  for (auto &version : versions) {
    const uint count = source.number(2);
    if (!source.has(count * size_t{7})) return false;
    version.resize(count);
    for (Stored_column &column : version) {
      column.id = static_cast<uint16>(source.number(2));
      const uint flags = source.number(1);
      if (flags & ~(NULLABLE | HAS_LENGTH)) return false;
      column.nullable = flags & NULLABLE;
      column.has_length = flags & HAS_LENGTH;
      column.size = source.number(4);
    }
  }
  for (uint count = source.number(2); source.good && count > 0; count--) {
    Default_value &value = defaults[static_cast<uint16>(source.number(2))];
    value.is_null = source.number(1);
    value.bytes = source.text(source.number(4));
  }
  return source.good && source.at == source.end && !versions.empty() &&
         versions.size() <= COUNT_MAX;
}

} // namespace tidepool
