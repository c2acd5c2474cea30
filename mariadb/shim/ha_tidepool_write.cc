/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  INSERT, UPDATE, DELETE, auto-increment.

  A row is the entry of the clustered index and one entry in each secondary index. A row of which
  one entry can't be written is undone as a whole, to the position before it: the statement may go
  on (INSERT IGNORE, ON DUPLICATE KEY UPDATE, REPLACE). That needs a position only where an entry
  after the first can fail for a reason that leaves the statement alive, so it is taken for tables
  with more than one index.

  Secondary indexes are written in the order of the server's keys, which may not be that of their
  trees: of a conflict with the last unique key REPLACE concludes that no other has one, and updates
  the row that is in its way. All writes go in that order, as their locks do.
*/
#include "engine.h"
#include "errors.h"
#include "ha_tidepool.h"

using namespace tidepool;

/* The clustered key of a record into `clustered`; a new row of a table without a primary key gets
   its row id there. */
void ha_tidepool::encode_clustered(const uchar *record, bool new_row) {
  bool bare;
  if (shared->layouts.has_row_id) {
    if (new_row) memcpy(clustered.get(), row_id, ROW_ID_LENGTH);
    clustered_len = ROW_ID_LENGTH;
    return;
  }
  clustered_len = trees()[0].encode(clustered.get(), record, table, nullptr, key_room, &bare);
}

/* Remembers which index and which row the conflict is with, for errkey and dup_ref. */
int ha_tidepool::report_duplicate(uint index) {
  session->duplicate_key = shared->layouts.key_of(index);
  duplicate_unread = 0;
  /* What the server found about an earlier row, be it in an earlier statement: it would go by that
     key, and among partitions by that row. It looks anew only after a row is written. */
  table->file->lookup_errkey = static_cast<uint>(-1);
  const uchar *pk = clustered.get();
  size_t len = clustered_len;
  if (index != 0 && trees()[index].has_bare_entries()) {
    /* Only a unique entry without NULL can be there already: the clustered key is in its value. */
    const tp_bytes value = tp_duplicate_value(session->transaction);
    pk = trees()[index].bare_clustered_key(value.data, value.len, &len);
    if (!pk) return HA_ERR_CRASHED;
  }
  memcpy(dup_ref, pk, len);
  if (!trees()[0].fixed_length()) {
    memset(dup_ref + len, 0, ref_length - 2 - len);
    int2store(dup_ref + ref_length - 2, static_cast<uint16>(len));
  }
  return HA_ERR_FOUND_DUPP_KEY;
}

/* The entry of one secondary index for a record whose clustered key is in `clustered`. */
int ha_tidepool::insert_secondary(uint index, const uchar *record) {
  const Index_layout &layout = trees()[index];
  if (unlikely(layout.fulltext() != nullptr))
    return fail(change_words(index, {clustered.get(), clustered_len}, nullptr, record));
  if (unlikely(!layout.has_all_geometries(record))) return HA_ERR_NULL_IN_SPATIAL;
  bool bare;
  const size_t key_len =
      layout.encode(new_key.get(), record, table, clustered.get(), key_room, &bare);
  uchar *value = value_buffer.room(layout.value_max(record));
  const size_t value_len = layout.encode_value(value, record, clustered.get(), clustered_len, bare);
  const int result = tp_insert(session->transaction, shared->table, index, {new_key.get(), key_len},
                               {value, value_len}, duplicate_lock);
  if (likely(result == TP_OK)) return 0;
  return result == TP_DUPLICATE ? report_duplicate(index) : fail(result);
}

int ha_tidepool::insert_row(const uchar *record) {
  encode_clustered(record, true);
  const size_t row_len = row_layout().encode(row_buffer, record);
  const tp_new_row row = {{clustered.get(), clustered_len},
                          {row_buffer.data(), row_len},
                          table->found_next_number_field ? auto_increment_after(record) : 0,
                          duplicate_lock};
  const int result = tp_insert_row(session->transaction, shared->table, &row);
  if (unlikely(result != TP_OK)) return result == TP_DUPLICATE ? report_duplicate(0) : fail(result);
  for (uint index : shared->layouts.secondary)
    if (int error = insert_secondary(index, record)) return error;
  return 0;
}

/* A row is about to be written from this position on. (Not for deletes: what the server refuses is
   a row that it wrote.) */
int ha_tidepool::mark_before_row(tp_savepoint *before) {
  if (int result = tp_savepoint_set(session->transaction, before)) return fail(result);
  before_last_write = *before;
  last_write_known = true;
  last_write_is_update = false;
  return 0;
}

/* Undoes what there is of it, unless all of the transaction will be. Returns the error, or another
   one met on the way. */
int ha_tidepool::take_row_back(const tp_savepoint &before, int error) {
  if (!tp_must_rollback(session->transaction))
    if (int result = tp_rollback_to(session->transaction, &before)) return fail(result);
  return error;
}

/* The same for one that the server refuses after it was written. */
int ha_tidepool::take_last_write_back(int error) {
  last_write_known = false;
  return take_row_back(before_last_write, error);
}

/* What was written since the mark may be refused by the server, of which the partition does not
   hear. */
int ha_tidepool::note_written() {
  session->last_row = {
      table, before_last_write, {}, counted_changes(*table->file), ha_thd()->query_id};
  session->unsettled = true;
  return fail(tp_savepoint_set(session->transaction, &session->last_row.after));
}

int ha_tidepool::write_row(const uchar *record) {
  const Counted_call counted(this);
  if (unlikely(!is_ready()))
    if (int error = ready_slowly()) return error;
  if (table->next_number_field && record == table->record[0])
    if (int error = update_auto_increment()) return error;
  int error;
  swap_positions();
  if (likely(!lacks_indexed_columns(table->write_set))) {
    error = write_complete(record);
  } else {
    Completed_record completed;
    error = complete_record(record, &completed);
    if (!error) error = write_complete(completed.bytes.get());
  }
  swap_positions();
  looks_up_written = is_checked_after_write() && !error;
  if (likely(!error) && table->found_next_number_field)
    tp_expect_auto_increment(shared->table, auto_increment_after(record));
  if (likely(!error) && is_written_unsettled()) error = note_written();
  if (likely(!error) && is_versioned_partition()) {
    session->moved = {this, nullptr, {}};
    error = fail(tp_savepoint_set(session->transaction, &session->moved.after));
  }
  if (unlikely(own_session != nullptr))
    if (int result = end_own_statement()) return result;
  return error;
}

int ha_tidepool::write_complete(const uchar *record) {
  if (shared->layouts.has_row_id)
    if (int result = tp_next_row_id(shared->table, row_id)) return fail(result);
  if (unlikely(load != nullptr)) {
    const int error = load_row(record);
    /* In the order of another key: what came so far is in the table, and the rest goes the common
       way. */
    if (load || error) return error;
  }
  const bool has_parents = foreign_checks() && foreign->has_own();
  if (trees().size() == 1 && !is_checked_after_write() && likely(!has_parents))
    return insert_row(record);
  tp_savepoint before;
  int error = mark_before_row(&before);
  if (unlikely(error)) return error;
  error = insert_row(record);
  if (unlikely(has_parents) && !error) error = check_foreign_insert(record);
  return unlikely(error) ? take_row_back(before, error) : 0;
}

int ha_tidepool::update_row(const uchar *old_record, const uchar *new_record) {
  const Counted_call counted(this);
  if (unlikely(!is_ready()))
    if (int error = ready_slowly()) return error;
  const bool old_lacks = lacks_indexed_columns(table->read_set),
             new_lacks = lacks_indexed_columns(table->write_set);
  int error = 0;
  if (likely(!old_lacks && !new_lacks)) {
    error = update_complete(old_record, new_record);
  } else {
    Completed_record was, is;
    if (old_lacks) error = complete_record(old_record, &was);
    if (new_lacks && !error) error = complete_record(new_record, &is);
    if (!error)
      error = update_complete(old_lacks ? was.bytes.get() : old_record,
                              new_lacks ? is.bytes.get() : new_record);
  }
  looks_up_written = false;
  if (unlikely(error)) return error;
  last_write_is_update = true;
  if (unlikely(is_checked_after_write()) && table->file != this)
    if (int result = tp_savepoint_set(session->transaction, &after_last_update))
      return fail(result);
  if (table->found_next_number_field && new_record == table->record[0] &&
      bitmap_is_set(table->write_set, table->found_next_number_field->field_index))
    if (int result = raise_auto_increment_after(new_record)) return result;
  if (is_written_unsettled()) return note_written();
  return unlikely(own_session != nullptr) ? end_own_statement() : 0;
}

/* Deletes and inserts what differs; `clustered` holds the old clustered key when this begins. */
int ha_tidepool::update_complete(const uchar *old_record, const uchar *new_record) {
  bool bare;
  const Index_layout &primary = trees()[0];
  const bool key_differs = !shared->layouts.has_row_id && primary.changed(old_record, new_record);
  /* All columns were read, so this is known even where the server could not compare. */
  if (!key_differs && row_layout().same(old_record, new_record)) return HA_ERR_RECORD_IS_THE_SAME;

  tp_savepoint before;
  if (int error = mark_before_row(&before)) return error;
  encode_clustered(old_record, false);
  bool moved = false;
  std::unique_ptr<uchar[]> old_clustered;
  const size_t old_clustered_len = clustered_len;
  auto undone = [&](int error) {
    if (moved) {
      memcpy(clustered.get(), old_clustered.get(), old_clustered_len);
      clustered_len = old_clustered_len;
    }
    return take_row_back(before, error);
  };
  if (key_differs) {
    const size_t len = primary.encode(new_key.get(), new_record, table, nullptr, key_room, &bare);
    moved = len != clustered_len || memcmp(new_key.get(), clustered.get(), len) != 0;
    if (moved) {
      old_clustered = std::make_unique<uchar[]>(clustered_len);
      memcpy(old_clustered.get(), clustered.get(), clustered_len);
      memcpy(clustered.get(), new_key.get(), len);
      clustered_len = len;
    }
  }

  const size_t row_len = row_layout().encode(row_buffer, new_record);
  int result;
  if (moved) {
    result = tp_insert(session->transaction, shared->table, 0, {clustered.get(), clustered_len},
                       {row_buffer.data(), row_len}, TP_LOCK_SHARED);
    if (result == TP_OK)
      result = tp_move_away(session->transaction, shared->table, 0,
                            {old_clustered.get(), old_clustered_len});
  } else {
    result = tp_update(session->transaction, shared->table, 0, {clustered.get(), clustered_len},
                       {row_buffer.data(), row_len});
  }
  if (unlikely(result != TP_OK))
    return undone(result == TP_DUPLICATE ? report_duplicate(0) : fail(result));

  for (uint i : shared->layouts.secondary) {
    const Index_layout &layout = trees()[i];
    if (!moved && !layout.changed(old_record, new_record)) continue;
    if (unlikely(layout.fulltext() != nullptr)) {
      const tp_bytes pk{clustered.get(), clustered_len};
      if (moved) {
        result = change_words(i, {old_clustered.get(), old_clustered_len}, old_record, nullptr);
        if (result == TP_OK) result = change_words(i, pk, nullptr, new_record);
      } else {
        result = change_words(i, pk, old_record, new_record);
      }
      if (unlikely(result != TP_OK)) return undone(fail(result));
      continue;
    }
    if (unlikely(!layout.has_all_geometries(new_record))) return undone(HA_ERR_NULL_IN_SPATIAL);
    bool old_bare;
    const size_t old_len =
        layout.encode(old_key.get(), old_record, table,
                      moved ? old_clustered.get() : clustered.get(), key_room, &old_bare);
    const size_t new_len =
        layout.encode(new_key.get(), new_record, table, clustered.get(), key_room, &bare);
    uchar *value = value_buffer.room(layout.value_max(new_record));
    const size_t value_len =
        layout.encode_value(value, new_record, clustered.get(), clustered_len, bare);
    if (old_len == new_len && memcmp(old_key.get(), new_key.get(), new_len) == 0) {
      /* Equal to the index but not the same ('a' and 'A'), or the row has moved under a
         unique key. */
      result = tp_update(session->transaction, shared->table, i, {new_key.get(), new_len},
                         {value, value_len});
      if (unlikely(result != TP_OK)) return undone(fail(result));
      continue;
    }
    result = tp_move_away(session->transaction, shared->table, i, {old_key.get(), old_len});
    if (result == TP_OK)
      result = tp_insert(session->transaction, shared->table, i, {new_key.get(), new_len},
                         {value, value_len}, TP_LOCK_SHARED);
    if (unlikely(result != TP_OK))
      return undone(result == TP_DUPLICATE ? report_duplicate(i) : fail(result));
  }
  if (unlikely(foreign_checks() != nullptr))
    if (int error = check_foreign_update(old_record, new_record)) return undone(error);
  return 0;
}

int ha_tidepool::delete_row(const uchar *record) {
  const Counted_call counted(this);
  if (unlikely(!is_ready()))
    if (int error = ready_slowly()) return error;
  if (unlikely(is_update_refused()))
    if (int error = take_last_write_back(0)) return error;
  if (unlikely(is_move_refused())) {
    ha_tidepool *const from = session->moved.from;
    session->moved = {};
    if (int error = take_last_write_back(0)) return error;
    return from->delete_record(record);
  }
  /* An update that moves a row between partitions is a write and a delete, and is refused as a
     whole. */
  const bool is_move = is_move_of_last_row();
  const bool is_from = is_versioned_partition() && record == table->record[1] &&
                       session->moved.to && session->moved.to != this &&
                       session->moved.to->table == table && !session->moved.from &&
                       !tp_has_written_since(session->transaction, &session->moved.after);
  if (int error = delete_record(record)) return error;
  if (unlikely(is_from)) {
    session->moved.from = this;
    if (int result = tp_savepoint_set(session->transaction, &session->moved.after))
      return fail(result);
  }
  return unlikely(is_move) ? fail(tp_savepoint_set(session->transaction, &session->last_row.after))
                           : 0;
}

int ha_tidepool::delete_record(const uchar *record) {
  if (likely(!lacks_indexed_columns(table->read_set))) return delete_complete(record);
  Completed_record completed;
  if (int error = complete_record(record, &completed)) return error;
  return delete_complete(completed.bytes.get());
}

int ha_tidepool::delete_complete(const uchar *record) {
  encode_clustered(record, false);
  /* DELETE IGNORE makes a warning of an error and goes on: a row may not be half gone then. */
  tp_savepoint before;
  const bool is_referenced = foreign_checks() && foreign->is_referenced();
  if (trees().size() > 1 || unlikely(is_referenced))
    if (int result = tp_savepoint_set(session->transaction, &before)) return fail(result);
  int result = tp_delete(session->transaction, shared->table, 0, {clustered.get(), clustered_len});
  const bool row_gone = result == TP_OK;
  for (uint i : shared->layouts.secondary) {
    if (unlikely(result != TP_OK)) break;
    if (unlikely(trees()[i].fulltext() != nullptr)) {
      result = change_words(i, {clustered.get(), clustered_len}, record, nullptr);
      continue;
    }
    bool bare;
    const size_t len =
        trees()[i].encode(old_key.get(), record, table, clustered.get(), key_room, &bare);
    result = tp_delete(session->transaction, shared->table, i, {old_key.get(), len});
    if (unlikely(result == TP_NOT_FOUND)) {
      sql_print_error(
          "Tidepool: table %s: index %s lacks the entry of a row that is deleted; run CHECK TABLE",
          shared->name.c_str(), table->key_info[shared->layouts.key_of(i)].name.str);
    }
  }
  int error = row_gone && result == TP_NOT_FOUND ? HA_ERR_CRASHED : fail(result);
  if (unlikely(is_referenced) && !error) error = check_foreign_delete(record);
  return unlikely(error) && row_gone ? take_row_back(before, error) : error;
}

/* ---- auto-increment: the counter is the next value to be given, and stays when a transaction is
   rolled back. It is logged with each row, so a restart goes on behind the last of them: values
   that no row has got are given again then, as InnoDB does. */

void ha_tidepool::get_auto_increment(ulonglong offset, ulonglong increment, ulonglong wanted,
                                     ulonglong *first, ulonglong *reserved) {
  const ulonglong max = table->next_number_field->get_max_int_value();
  if (increment == 0) increment = 1;
  if (offset == 0 || offset > increment) offset = 1; /* as the server's documentation has it */
  if (wanted == 0) wanted = 1;

  std::lock_guard<std::mutex> guard(shared->auto_increment_mutex);
  const ulonglong next = tp_auto_increment(shared->table);
  /* The smallest offset + n × increment that is not below the counter. */
  ulonglong value = offset;
  if (next > offset) {
    const ulonglong steps = (next - offset) / increment + ((next - offset) % increment != 0);
    value =
        steps > (ULONGLONG_MAX - offset) / increment ? ULONGLONG_MAX : offset + steps * increment;
  }
  if (next > max || value > max) {
    /* All values are used: the server reports a value that the column can't hold, or, with the
       largest number of all, that there is none (ER_AUTOINC_READ_FAILED). */
    *first = MY_MAX(next, value);
    *reserved = 0;
    return;
  }
  const ulonglong count = MY_MIN(wanted, (max - value) / increment + 1);
  const ulonglong last = value + (count - 1) * increment;
  /* The next value of this sequence, or what is past the column's last. */
  const ulonglong past = max == ULONGLONG_MAX ? max : max + 1;
  const ulonglong after = past - last < increment ? past : last + increment;
  /* The rows' own inserts make it last. */
  tp_expect_auto_increment(shared->table, after);
  *first = value;
  *reserved = count;
}

/* The counter that a row asks for; 0: the row asks for none. */
ulonglong ha_tidepool::auto_increment_after(const uchar *record) const {
  Field *field = table->found_next_number_field;
  const my_ptrdiff_t shift = record - table->record[0];
  field->move_field_offset(shift);
  const longlong value = field->val_int();
  const bool is_unsigned = field->flags & UNSIGNED_FLAG;
  const ulonglong max = field->get_max_int_value();
  field->move_field_offset(-shift);
  if (value <= 0 && !(is_unsigned && value < 0)) return 0;
  const auto given = static_cast<ulonglong>(value);
  if (given > max) return 0; /* of a real number: past those that are counted by ones */
  return given == ULONGLONG_MAX ? given : given + 1;
}

/* An UPDATE has given a row this number. The counter may be there already, but no row. */
int ha_tidepool::raise_auto_increment_after(const uchar *record) {
  return fail(tp_raise_auto_increment(shared->table, auto_increment_after(record)));
}

/* The number of the row that has the greatest, in a record; of rows that are not committed, too. */
int ha_tidepool::last_auto_increment_row(uchar *record, bool *found) {
  const uint index = shared->layouts.tree_of(table_share->next_number_index);
  const Index_layout &layout = trees()[index];
  tp_transaction *transaction = nullptr;
  tp_reader *entries = nullptr;
  tp_savepoint unused;
  tp_entry at;
  int result = tp_transaction_new(engine.db, &transaction);
  if (result == TP_OK) result = tp_transaction_begin(transaction, TP_READ_UNCOMMITTED);
  if (result == TP_OK) result = tp_statement_begin(transaction, 0, &unused);
  if (result == TP_OK) result = tp_reader_open(shared->table, &entries);
  if (result == TP_OK)
    result = layout.all_parts()[0].mask ? tp_first(entries, transaction, index, &at)
                                        : tp_last(entries, transaction, index, &at);
  *found = result == TP_OK;
  if (*found) {
    std::vector<uchar> wanted(table_share->fields, 0);
    wanted[table->found_next_number_field->field_index] = 1;
    bool good;
    if (index != 0)
      good = layout.decode(record, at.key, at.key_len, at.value, at.value_len, wanted.data());
    else
      good = row_layout().decode(record, at.value, at.value_len, wanted.data(),
                                 row_layout().last_needed(wanted.data())) &&
             layout.decode_clustered(record, at.key, at.key_len, wanted.data());
    if (!good) result = TP_CORRUPT;
  }
  const int error = result == TP_END                 ? 0
                    : result == TP_CORRUPT && *found ? HA_ERR_CRASHED
                                                     : fail(result);
  if (entries) tp_reader_close(entries);
  if (transaction) tp_transaction_free(transaction);
  return error;
}

/* The counter that a user has asked for, or the least that no row has reached. */
int ha_tidepool::set_auto_increment(ulonglong value) {
  bool found;
  if (int error = last_auto_increment_row(table->record[0], &found)) return error;
  const ulonglong least = found ? auto_increment_after(table->record[0]) : 0;
  return fail(tp_reset_auto_increment(shared->table, MY_MAX(value, least)));
}
