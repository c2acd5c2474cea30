/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "i_s.h"
#include "engine.h"
#include "errors.h"
#include "session.h"
#include "server_versions.h"
#include "sql_acl.h"
#include "sql_parse.h"
#include "tztime.h"

namespace tidepool::i_s {

st_mysql_information_schema interface = {MYSQL_INFORMATION_SCHEMA_INTERFACE_VERSION};

namespace {

constexpr const Schema_table *TABLES[] = {
    &BUFFER_POOL,      &BUFFER_POOL_BY_INDEX, &TRX,       &LOCKS,     &CACHE_ADVICE,
    &MEMORY_DECISIONS, &TABLE_FILES,          &DEADLOCKS, &ENCRYPTION};

const Schema_table *table_named(const char *name) {
  for (const Schema_table *table : TABLES)
    if (!strcasecmp(table->name, name)) return table;
  return nullptr;
}

/*
  A part of a table's name, from the spelling of file names. That of a partition ("t#P#p0") and of a
  table that the server has yet to rename ("#sql-…") consists of parts between '#' marks; a '#' of
  the name itself is spelt "@0023".
*/
void store_name(Field *field, const char *from, size_t len) {
  char text[FN_REFLEN + 1], piece[FN_REFLEN + 1];
  size_t filled = 0;
  const char *end = from + len;
  while (from < end) {
    const char *mark = static_cast<const char *>(memchr(from, '#', end - from));
    const size_t here = MY_MIN(static_cast<size_t>((mark ? mark : end) - from), sizeof piece - 1);
    if (here) {
      memcpy(piece, from, here);
      piece[here] = 0;
      filled += filename_to_tablename(piece, text + filled, sizeof text - filled, true);
    }
    from = mark ? mark : end;
    while (from < end && *from == '#' && filled < sizeof text - 1) text[filled++] = *from++;
    if (filled >= sizeof text - 1) break;
  }
  field->store(text, filled, system_charset_info);
}

void store_time(THD *thd, Field *field, uint64_t micros) {
  MYSQL_TIME time;
  thd->variables.time_zone->gmt_sec_to_TIME(&time, static_cast<my_time_t>(micros / 1000000));
  thd->used |= THD::TIME_ZONE_USED;
  time.second_part = micros % 1000000;
  field->store_time(&time);
}

/* What a connection is executing now; null if it is gone, idle, or too busy to be asked. */
void store_statement(Field *field, uint64_t connection) {
  char text[QUERY_LENGTH_MAX * 3 + 1];
  CHARSET_INFO *charset = system_charset_info;
  const size_t len = statement_of(connection, text, sizeof text, &charset);
  if (!len) {
    field->set_null();
    return;
  }
  field->store(text, len, charset);
}

void store(THD *thd, Field *field, const tp_value &value) {
  if (value.kind == TP_VALUE_NULL) {
    field->set_null();
    return;
  }
  field->set_notnull();
  const auto *text = reinterpret_cast<const char *>(value.data);
  switch (value.kind) {
    case TP_VALUE_UNSIGNED: field->store(static_cast<longlong>(value.number), true); break;
    case TP_VALUE_REAL: field->store(value.real); break;
    case TP_VALUE_TEXT: field->store(text, value.len, system_charset_info); break;
    case TP_VALUE_NAME: store_name(field, text, value.len); break;
    case TP_VALUE_TIME: store_time(thd, field, value.number); break;
    case TP_VALUE_STATEMENT: store_statement(field, value.number); break;
  }
}

struct Rows {
  THD *thd;
  TABLE *table;
  bool failed;
};

int take_row(void *context, const tp_value *values, size_t count) {
  auto *rows = static_cast<Rows *>(context);
  if (rows->thd->killed) return 1;
  restore_record(rows->table, s->default_values);
  for (size_t i = 0; i < count && i < rows->table->s->fields; i++)
    store(rows->thd, rows->table->field[i], values[i]);
  rows->failed = schema_table_store_record(rows->thd, rows->table);
  return rows->failed;
}

int fill(THD *thd, TABLE_LIST *tables, COND *) {
  if (check_global_access(thd, PROCESS_ACL)) return 0;
  const Schema_table *table = table_named(c_str(tables->schema_table->table_name));
  std::shared_lock<std::shared_mutex> open(engine.explaining);
  if (!table || !engine.db) {
    push_warning_printf(
        thd, Sql_condition::WARN_LEVEL_WARN, ER_CANT_FIND_SYSTEM_REC,
        "Tidepool: SELECTing from INFORMATION_SCHEMA.%s but the engine is not running",
        c_str(tables->schema_table->table_name));
    return 0;
  }
  Rows rows{thd, tables->table, false};
  uint8_t is_truncated = 0;
  const int result = tp_explain(engine.db, table->rows, &rows, take_row, &is_truncated);
  if (is_truncated)
    push_warning_printf(
        thd, Sql_condition::WARN_LEVEL_WARN, ER_UNKNOWN_ERROR,
        "Tidepool: %s has more rows than are shown, for the memory that they would take",
        table->name);
  if (result) {
    const String text = last_error_text();
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_UNKNOWN_ERROR, "Tidepool: %s (%d)",
                        text.ptr() ? text.ptr() : "", result);
  }
  return rows.failed;
}

} // namespace

int init(void *p) {
  auto *schema_table = static_cast<ST_SCHEMA_TABLE *>(p);
  const Schema_table *table = table_named(c_str(schema_table->table_name));
  if (!table) return 1;
  /* The server only reads it. */
  schema_table->fields_info = const_cast<ST_FIELD_INFO *>(table->columns);
  schema_table->fill_table = fill;
  return 0;
}

int deinit(void *) { return 0; }

} // namespace tidepool::i_s
