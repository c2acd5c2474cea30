/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "table_definition.h"
#include "column.h"
#include "server_versions.h"
#include <algorithm>

namespace tidepool {

namespace {

constexpr uchar FORMAT = 1;

std::string quoted(const LEX_CSTRING &name) {
  return "`" + std::string(name.str, name.length) + "`";
}

void append(std::string *to, const String &text) { to->append(text.ptr(), text.length()); }

/* Whether a row or an entry has what is computed of this column: it is stored itself, or in an
   index, or a column is that is computed from it. */
bool is_kept(const TABLE *table, const Field *field) {
  if (field->stored_in_db()) return true;
  const auto is_written = [](const Field *computed) {
    return computed->stored_in_db() || (computed->flags & PART_KEY_FLAG);
  };
  std::vector<bool> columns(table->s->fields);
  columns[field->field_index] = true;
  return is_written(field) || !add_computed(table, &columns, is_written);
}

std::string of_column(const TABLE *table, const Field *field) {
  std::string says = quoted(field->field_name) + " ";
  StringBuffer<256> type(system_charset_info);
  field->sql_type(type);
  append(&says, type);
  const bool has_text = field->has_charset() || field->real_type() == MYSQL_TYPE_ENUM ||
                        field->real_type() == MYSQL_TYPE_SET;
  if (has_text) says.append(" COLLATE ").append(field->charset()->coll_name.str);
  says += field->real_maybe_null() ? " NULL" : " NOT NULL";
  if (field->compression_method()) says += " COMPRESSED";
  if (field->vers_sys_field()) says += " of SYSTEM VERSIONING";
  if (!field->vcol_info) return says;
  says += field->stored_in_db() ? " STORED" : " VIRTUAL";
  /* What no row and no entry has is computed by the table that it is in. */
  if (!is_kept(table, field)) return says;
  StringBuffer<256> expression(system_charset_info);
  field->vcol_info->print(&expression);
  says += " AS (";
  append(&says, expression);
  return says + ")";
}

std::string of_key(const KEY &key) {
  std::string says = is_fulltext(key)        ? "FULLTEXT"
                     : is_spatial(key)       ? "SPATIAL"
                     : key.flags & HA_NOSAME ? "UNIQUE"
                                             : "KEY";
  if (key.algorithm == HA_KEY_ALG_LONG_HASH) says += " USING HASH";
  says += " (";
  for (uint i = 0; i < key.user_defined_key_parts; i++) {
    const KEY_PART_INFO &part = key.key_part[i];
    if (i) says += ", ";
    says += quoted(part.field->field_name);
    if (part.key_part_flag & HA_PART_KEY_SEG) says += "(" + std::to_string(part.length) + " bytes)";
    if (part.key_part_flag & HA_REVERSE_SORT) says += " DESC";
  }
  says += ")";
  if ((key.flags & HA_USES_PARSER) && key.parser)
    says.append(" WITH PARSER ").append(plugin_name(key.parser)->str);
  return says;
}

void put_text(std::string *to, const std::string &text) {
  uchar len[4];
  int4store(len, static_cast<uint32>(text.size()));
  to->append(reinterpret_cast<char *>(len), sizeof len);
  *to += text;
}

bool get_text(const uchar **at, const uchar *end, std::string *text) {
  if (end - *at < 4) return false;
  const size_t len = uint4korr(*at);
  *at += 4;
  if (static_cast<size_t>(end - *at) < len) return false;
  text->assign(reinterpret_cast<const char *>(*at), len);
  *at += len;
  return true;
}

} // namespace

Table_definition::Table_definition(const TABLE *table) {
  const TABLE_SHARE *share = table->s;
  for (uint i = 0; i < share->fields; i++)
    parts.emplace_back("column " + std::to_string(i + 1), of_column(table, table->field[i]));
  for (uint i = 0; i < share->keys; i++)
    parts.emplace_back("key " + quoted(table->key_info[i].name), of_key(table->key_info[i]));
  const bool has_primary = share->primary_key < MAX_KEY;
  parts.emplace_back("order of the rows", has_primary
                                              ? quoted(table->key_info[share->primary_key].name)
                                              : std::string("as inserted, without a primary key"));
}

std::string Table_definition::put() const {
  std::string bytes(1, static_cast<char>(FORMAT));
  for (const auto &[what, says] : parts) {
    put_text(&bytes, what);
    put_text(&bytes, says);
  }
  return bytes;
}

bool Table_definition::get(const uchar *from, size_t len) {
  parts.clear();
  if (!len || *from != FORMAT) return false;
  const uchar *at = from + 1, *const end = from + len;
  while (at < end) {
    std::string what, says;
    if (!get_text(&at, end, &what) || !get_text(&at, end, &says)) return false;
    parts.emplace_back(what, says);
  }
  return true;
}

std::string Table_definition::difference(const Table_definition &exported) const {
  const auto of = [](const Table_definition &definition, const std::string &what) {
    const auto found = std::find_if(definition.parts.begin(), definition.parts.end(),
                                    [&what](const auto &part) { return part.first == what; });
    return found == definition.parts.end() ? std::string() : found->second;
  };
  for (const auto &[what, says] : exported.parts) {
    const std::string here = of(*this, what);
    if (here.empty()) return what + " of the export is missing here: " + says;
    if (here != says) return what + " is " + here + ", and in the export " + says;
  }
  for (const auto &[what, says] : parts)
    if (of(exported, what).empty()) return what + " is not in the export: " + says;
  return std::string();
}

} // namespace tidepool
