/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "description.h"
#include "definition_files.h"
#include "engine.h"
#include "table_share.h"
#include <memory>

namespace tidepool {

namespace {

class Writer {
public:
  std::string bytes;
  void number(uint64 value, uint width) {
    for (uint i = 0; i < width; i++) bytes.push_back(static_cast<char>(value >> (8 * i)));
  }
  void text(const char *from, size_t len) {
    number(len, 4);
    bytes.append(from, len);
  }
  void text(const std::string &from) { text(from.data(), from.size()); }
};

std::string in_utf8(const char *from, size_t len, CHARSET_INFO *cs) {
  String converted;
  uint errors;
  if (converted.copy(from, len, cs, &my_charset_utf8mb4_bin, &errors))
    return std::string(from, len);
  return std::string(converted.ptr(), converted.length());
}

Kind kind_of(const Field *field, const Column &column) {
  switch (field->real_type()) {
    case MYSQL_TYPE_TINY:
    case MYSQL_TYPE_SHORT:
    case MYSQL_TYPE_INT24:
    case MYSQL_TYPE_LONG:
    case MYSQL_TYPE_LONGLONG: return Kind::INTEGER;
    case MYSQL_TYPE_FLOAT: return Kind::FLOAT;
    case MYSQL_TYPE_DOUBLE: return Kind::DOUBLE;
    case MYSQL_TYPE_NEWDECIMAL: return Kind::DECIMAL;
    case MYSQL_TYPE_BIT: return Kind::BIT;
    case MYSQL_TYPE_YEAR: return Kind::YEAR;
    case MYSQL_TYPE_NEWDATE: return Kind::DATE;
    case MYSQL_TYPE_TIME2: return Kind::TIME;
    case MYSQL_TYPE_DATETIME2: return Kind::DATETIME;
    case MYSQL_TYPE_TIMESTAMP2: return Kind::TIMESTAMP;
    case MYSQL_TYPE_ENUM: return Kind::ENUM;
    case MYSQL_TYPE_SET: return Kind::SET;
    case MYSQL_TYPE_STRING:
    case MYSQL_TYPE_VAR_STRING: {
      const std::string name(field->type_handler()->name().ptr(),
                             field->type_handler()->name().length());
      if (name == "inet4") return Kind::INET4;
      if (name == "inet6") return Kind::INET6;
      if (name == "uuid") return Kind::UUID;
      return column.storage == Column::CHAR ? Kind::TEXT : Kind::BINARY;
    }
    case MYSQL_TYPE_VARCHAR:
    case MYSQL_TYPE_TINY_BLOB:
    case MYSQL_TYPE_MEDIUM_BLOB:
    case MYSQL_TYPE_LONG_BLOB:
    case MYSQL_TYPE_BLOB: return field->charset() == &my_charset_bin ? Kind::BINARY : Kind::TEXT;
    case MYSQL_TYPE_GEOMETRY: return Kind::BINARY;
    default: /* times of old formats */ return Kind::OTHER;
  }
}

/* What SHOW CREATE TABLE says behind the table's name. */
std::string statement(THD *thd, TABLE *table) {
  /* One that is not open says nothing of foreign keys and of the next number, which change without
     a change of the definition. */
  const std::unique_ptr<handler> closed(get_new_handler(table->s, thd->mem_root, engine.hton));
  if (!closed) return std::string();
  TABLE_LIST list;
  list.init_one_table(&table->s->db, &table->s->table_name, nullptr, TL_READ);
  list.table = table;
  /* The server reads default values from the record. The table's handler may be one of partitions,
     which can't be asked before it is open. */
  const std::string record(reinterpret_cast<char *>(table->record[0]), table->s->reclength);
  handler *const file = table->file;
  const sql_mode_t sql_mode = thd->variables.sql_mode;
  const ulonglong options = thd->variables.option_bits;
  thd->variables.sql_mode = 0;
  thd->variables.option_bits |= OPTION_QUOTE_SHOW_CREATE;
  table->file = closed.get();
  String text;
  text.set_charset(system_charset_info);
  const int error = show_create_table_ex(thd, &list, nullptr, "t", &text, nullptr, WITHOUT_DB_NAME);
  table->file = file;
  thd->variables.option_bits = options;
  thd->variables.sql_mode = sql_mode;
  memcpy(table->record[0], record.data(), record.size());
  const std::string all(text.ptr(), text.length());
  const size_t begin = all.find(" (");
  return error || begin == std::string::npos ? std::string() : all.substr(begin + 1);
}

void put_column(Writer *to, const Field *field, const TABLE_SHARE *share,
                const Index_layout &clustered) {
  const Column column(field, share);
  const bool is_stored = field->stored_in_db();
  bool is_in_key = false;
  for (const Part &part : clustered.all_parts())
    is_in_key |= part.reversible() && part.column.fieldnr == field->field_index;
  to->text(field->field_name.str, field->field_name.length);
  to->number(!is_stored ? 0 : is_in_key ? 1 : 2, 1);
  to->number((field->null_ptr ? 1 : 0) | (field->flags & UNSIGNED_FLAG ? 2 : 0) |
                 (field->vcol_info ? 4 : 0) | (field->vers_sys_field() ? 8 : 0) |
                 (field->invisible > INVISIBLE_USER ? 16 : 0) |
                 (field->compression_method() ? 32 : 0),
             1);
  to->number(column.storage, 1);
  to->number(static_cast<uint>(kind_of(field, column)), 1);
  const bool is_decimal = field->real_type() == MYSQL_TYPE_NEWDECIMAL;
  to->number(field->decimals(), 1);
  to->number(is_decimal ? static_cast<const Field_new_decimal *>(field)->precision : 0, 1);
  to->number(column.size, 4);
  const LEX_CSTRING &cs = field->charset()->cs_name;
  to->text(cs.str, cs.length);
  const bool has_values =
      field->real_type() == MYSQL_TYPE_ENUM || field->real_type() == MYSQL_TYPE_SET;
  const TYPELIB *values = has_values ? static_cast<const Field_enum *>(field)->typelib : nullptr;
  to->number(values ? values->count : 0, 2);
  for (uint i = 0; values && i < values->count; i++)
    to->text(in_utf8(values->type_names[i], values->type_lengths[i], field->charset()));
}

void put_part(Writer *to, const Part &part) {
  const bool is_row_id = part.image == Part::ROW_ID;
  to->number(is_row_id ? 0xFFFF : part.column.fieldnr, 2);
  to->number(part.image, 1);
  to->number(part.unpack, 1);
  to->number((part.whole ? 1 : 0) | (part.mask ? 2 : 0) | (part.column.null_mask ? 4 : 0), 1);
  to->number(part.length, 4);
  to->number(part.image_length, 4);
  const std::vector<std::string> spaces =
      part.image == Part::STRING ? part.codec.spaces() : std::vector<std::string>();
  to->number(spaces.size(), 1);
  for (const std::string &space : spaces) {
    to->number(space.size(), 1);
    to->bytes += space;
  }
}

} // namespace

std::string describe(THD *thd, TABLE *table) {
  Writer to;
  const TABLE_SHARE *share = table->s;
  const Layouts layouts(table);
  to.number(DESCRIPTION_VERSION, 1);
  to.text(statement(thd, table));
  to.number(share->fields, 2);
  for (uint i = 0; i < share->fields; i++)
    put_column(&to, share->field[i], share, layouts.trees[0]);
  to.number(layouts.trees.size(), 2);
  for (uint i = 0; i < layouts.trees.size(); i++) {
    const Index_layout &tree = layouts.trees[i];
    const uint keynr = layouts.key_of(i);
    if (keynr < MAX_KEY)
      to.text(table->key_info[keynr].name.str, table->key_info[keynr].name.length);
    else
      to.text("");
    const uint flags = (tree.is_unique() ? 1 : 0) | (tree.has_bare_entries() ? 2 : 0);
    to.number(flags | (tree.fulltext() ? 4 : 0) | (tree.is_spatial() ? 8 : 0), 1);
    to.number(tree.user_parts(), 2);
    to.number(tree.all_parts().size(), 2);
    for (const Part &part : tree.all_parts()) put_part(&to, part);
    const auto &pieces = tree.pieces_of_clustered_key();
    to.number(pieces.size(), 2);
    for (const auto &piece : pieces) {
      to.number(piece.part, 2);
      to.number(piece.mask, 1);
    }
  }
  return to.bytes;
}

void attach_description(THD *thd, const std::string &name, TABLE *table, Attachments *to) {
  if (thd && !is_prefix(name.c_str(), TEMPORARY_PREFIX))
    to->set(server_table_of(name), DESCRIPTION, describe(thd, table));
}

void refresh_description(THD *thd, const std::string &name, TABLE *table) {
  if (!thd || is_prefix(name.c_str(), TEMPORARY_PREFIX)) return;
  const std::string bytes = describe(thd, table);
  std::string present;
  if (attachment(server_table_of(name), DESCRIPTION, &present) == TP_OK && present == bytes) return;
  Attachments attached;
  attached.set(server_table_of(name), DESCRIPTION, bytes);
  tp_catalog_change change{};
  change.attached = *attached.get();
  /* It is for the worst day, and nothing that a statement should fail for: the next open tries
     again. */
  tp_change_tables(engine.db, &change);
}

} // namespace tidepool
