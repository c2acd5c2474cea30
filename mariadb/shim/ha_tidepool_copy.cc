/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  How the copy is filled that ALTER TABLE makes (ALGORITHM=COPY, FORCE, ENGINE=Tidepool, OPTIMIZE
  TABLE).

  The server creates the copy, opens it, tells the beginning, writes row by row, and tells the end;
  only then does the copy get the table's name. Nobody else knows of it until then. So the rows are
  loaded: without undo, locks or versions, the clustered index as they come, the others sorted at
  the end. What a crash leaves in between is an empty copy, which the server removes.

  Rows that come in another order than that of the copy's clustered index end the load: those so far
  are in the copy then, the rest are inserted. That is as slow as ever, and nothing else.

  Of rows that a unique index can't have together, inserts find the first in the order of the copied
  table; the load, in the order of the index.
*/
#include "engine.h"
#include "errors.h"
#include "ha_tidepool.h"

using namespace tidepool;

/* A second file, and its place in the catalog, cost some milliseconds of syncs. */
constexpr ha_rows ROWS_WORTH_A_LOAD = 1000;

static int is_killed(void *thd) {
  return thd_kill_level(static_cast<THD *>(thd)) != THD_IS_NOT_KILLED;
}

/*
  CREATE … SELECT tells of a copy, too, into a table that has its name already. Of partitions each
  would sort for itself. What is looked up in the copy while it is filled, or is checked against
  another table, must find the rows there. Virtual columns of a unique index are not in the row that
  a message shows.
*/
bool ha_tidepool::can_be_loaded() const {
  if (thd_sql_command(ha_thd()) == SQLCOM_CREATE_TABLE) return false;
  for (uint i = 0; table->vfield && i < table_share->keys; i++) {
    const KEY &key = table->key_info[i];
    for (uint part = 0; (key.flags & HA_NOSAME) && part < key.user_defined_key_parts; part++)
      if (!key.key_part[part].field->stored_in_db()) return false;
  }
  return is_intermediate(shared->name) && !table->part_info && !own_session &&
         !is_checked_after_write() && !table->versioned() &&
         foreign_keys.of_child(shared->name).empty();
}

/* The server does not look at an error of this. Without a load, rows are inserted, and those errors
   it looks at. */
void ha_tidepool::begin_load() {
  drop_load();
  if (announced_rows < ROWS_WORTH_A_LOAD || !can_be_loaded()) return;
  if (tp_load_begin(engine.db, shared->name.data(), shared->name.size(), &load) != TP_OK)
    load = nullptr;
}

void ha_tidepool::drop_load() {
  if (load) tp_load_free(load);
  load = nullptr;
}

/* If there is no load any more afterwards, and no error, the row is still to be inserted. */
int ha_tidepool::load_row(const uchar *record) {
  encode_clustered(record, true);
  const size_t row_len = row_layout().encode(row_buffer, record);
  int result = tp_load_row(load, {clustered.get(), clustered_len}, {row_buffer.data(), row_len});
  if (unlikely(result == TP_OUT_OF_ORDER)) return end_load();
  if (unlikely(result != TP_OK)) return result == TP_DUPLICATE ? report_duplicate(0) : fail(result);
  for (uint index : shared->layouts.secondary) {
    const Index_layout &layout = trees()[index];
    if (layout.fulltext()) {
      if (int error = load_words(index, record)) return error;
      continue;
    }
    if (!layout.has_all_geometries(record)) return HA_ERR_NULL_IN_SPATIAL;
    bool bare;
    const size_t key_len =
        layout.encode(new_key.get(), record, table, clustered.get(), key_room, &bare);
    uchar *value = value_buffer.room(layout.value_max(record));
    const size_t value_len =
        layout.encode_value(value, record, clustered.get(), clustered_len, bare);
    result = tp_load_add(load, index, {new_key.get(), key_len}, {value, value_len});
    if (unlikely(result != TP_OK)) return fail(result);
  }
  return 0;
}

/* From here on the rows are in the table, or it is empty and there is an error. */
int ha_tidepool::end_load() {
  if (!load) return 0;
  int result = tp_load_build(load, ha_thd(), is_killed);
  if (unlikely(result != TP_OK)) {
    const int error = result == TP_DUPLICATE ? report_duplicate_of_load() : fail(result);
    drop_load();
    return error;
  }
  tp_load *const built = load;
  load = nullptr;
  result = tp_load_commit(built);
  if (result == TP_OK) result = shared->reopen();
  return result == TP_OK ? open_reader() : fail(result);
}

/* The server makes the message of the record, and of the key that get_dup_key() returns. */
int ha_tidepool::report_duplicate_of_load() {
  const Layouts &layouts = shared->layouts;
  size_t tree;
  tp_entry entry;
  tp_bytes found;
  if (tp_load_duplicate(load, &tree, &entry) != TP_OK) return HA_ERR_CRASHED;
  const auto room = std::make_unique<uchar[]>(trees()[0].key_max());
  size_t len = 0;
  const uchar *pk = trees()[tree].clustered_key(entry.key, entry.key_len, entry.value,
                                                entry.value_len, room.get(), &len);
  if (!pk || tp_load_find(load, {pk, len}, &found) != TP_OK) return HA_ERR_CRASHED;
  /* The load is gone when the record is read, and BLOBs point into the row or the key. */
  memcpy(clustered.get(), pk, len);
  clustered_len = len;
  uchar *const row = row_buffer.room(found.len);
  memcpy(row, found.data, found.len);
  const std::vector<uchar> all(table_share->fields, 1);
  uchar *const record = table->record[0];
  if (!row_layout().decode(record, row, found.len, all.data(),
                           row_layout().last_needed(all.data())) ||
      !trees()[0].decode_clustered(record, clustered.get(), clustered_len, all.data()))
    return HA_ERR_CRASHED;
  session->duplicate_key = layouts.key_of(static_cast<uint>(tree));
  duplicate_unread = 0;
  return HA_ERR_FOUND_DUPP_KEY;
}
