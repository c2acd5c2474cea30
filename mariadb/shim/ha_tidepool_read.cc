/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Index and table reads, positions.

  A key of the server becomes a prefix of tree keys: all entries with these values begin with its
  bytes. The server's ways to search are then seeks before or after all entries with that prefix
  (key_codec.h says why no other entry begins with it). A search by all columns of a unique index is
  a point read, which takes one descent and no cursor.
*/
#include "engine.h"
#include "errors.h"
#include "ha_tidepool.h"
#include "replica.h"

using namespace tidepool;

inline int ha_tidepool::ready() {
  if (likely(is_ready())) {
    if (unlikely(!plan_known)) plan_columns();
    return 0;
  }
  if (int error = ready_slowly()) return error;
  plan_columns();
  return 0;
}

/* Which columns reads set. Statements that write get all of them: what is not changed is written
   back, and the server compares columns that it has not asked for (WITHOUT OVERLAPS). */
void ha_tidepool::plan_columns() {
  const int command = thd_sql_command(ha_thd());
  const bool all = row_lock == TP_LOCK_EXCLUSIVE && command != SQLCOM_SELECT;
  last_needed = 0;
  for (uint i = 0; i < table_share->fields; i++) {
    const Field *field = table->field[i];
    needed[i] = bitmap_is_set(table->read_set, i) ||
                (all && (field->stored_in_db() ||
                         (keyread_only && field->part_of_key.is_set(active_index))));
  }
  /* An index merge reads keys alone, and compares them with the range's end, also where they are
     beginnings. Who means to change a row, or says FOR UPDATE, locks the row and not only the
     entry: others come by other indexes. Entries found in a window are not locked at all. */
  entry_needed = tree != 0 && trees()[tree].has_any_of(needed.get());
  const bool locks_rows =
      row_lock == TP_LOCK_EXCLUSIVE || (row_lock != TP_LOCK_NONE && trees()[tree].is_spatial());
  entry_suffices = tree == 0 || (!locks_rows && !trees()[tree].has_beginning_of(needed.get()));
  compares_rows = may_meet_newer_rows();
  if (unlikely(compares_rows)) need_indexed_columns();
  last_needed = row_layout().last_needed(needed.get());
  const bool wants_prefixes = !all && row_layout().prefix_may_do(last_needed);
  if (wants_prefixes != prefixes) tp_reader_set_prefixes(reader, prefixes = wants_prefixes);
  key_needed = row_layout().key_needed(needed.get());
  plan_known = true;
}

/* At READ UNCOMMITTED a row is read in its newest version, and that may be newer than the entry
   that led to it. The server does not compare it with what the index was searched for. (Rectangles
   are compared in ha_tidepool_spatial.cc.) */
bool ha_tidepool::may_meet_newer_rows() const {
  if (likely(session->isolation != TP_READ_UNCOMMITTED)) return false;
  return row_lock == TP_LOCK_NONE && tree != 0 && !trees()[tree].is_spatial() &&
         !trees()[tree].fulltext() && !(keyread_only && entry_suffices);
}

/* Those that rows are compared by; of an index on virtual columns all that there are, for any of
   them may be what such a column is computed from. */
void ha_tidepool::need_indexed_columns() {
  const KEY &key = table->key_info[shared->layouts.key_of(tree)];
  compares_computed = false;
  for (uint i = 0; i < key.user_defined_key_parts; i++) {
    const Field *field = key.key_part[i].field;
    needed[field->field_index] |= field->stored_in_db();
    compares_computed |= !field->stored_in_db();
  }
  for (uint i = 0; compares_computed && i < table_share->fields; i++)
    needed[i] |= table->field[i]->stored_in_db();
}

/* Whether the row that was read has the values that the entry has, as the index compares them. An
   HA_ERR_* code, or PASS_OVER. */
int ha_tidepool::compare_with_entry(const uchar *record) {
  const Index_layout &layout = trees()[tree];
  Completed_record completed;
  if (compares_computed) {
    if (int error = complete_record(record, &completed)) return error;
    record = completed.bytes.get();
  }
  const size_t len = layout.encode_user_parts(old_key.get(), record, table, key_room);
  const bool is_same = entry.key_len >= len && memcmp(entry.key, old_key.get(), len) == 0;
  return is_same ? 0 : PASS_OVER;
}

/* The result of a read. That there is no row is not final for a replica that is ahead of its turn
   (replica.h). */
inline int ha_tidepool::in_turn(int error) {
  if (likely(error != HA_ERR_KEY_NOT_FOUND && error != HA_ERR_END_OF_FILE)) return error;
  return unlikely(is_passing_over_early(ha_thd(), this, table)) ? fail(TP_DEADLOCK) : error;
}

/* ---- from entries to records */

/* Point read of the row with the key `clustered`. Returns a TP_* code. */
int ha_tidepool::read_row(int part, tp_entry *found) {
  const tp_read_request request{0, {clustered.get(), clustered_len}, part};
  return tp_read(reader, session->transaction, &request, found);
}

inline bool ha_tidepool::decode_columns(uchar *buf, tp_bytes row) const {
  const Row_layout &layout = row_layout();
  return last_needed ? layout.decode(buf, row.data, row.len, needed.get(), last_needed)
                     : layout.knows(row.data, row.len);
}

/* The row is that of `clustered`. If its beginning is not enough, the whole is read: by the same
   snapshot, so it is the same. At READ UNCOMMITTED there is no snapshot: the row may be gone. */
int ha_tidepool::decode_row(uchar *buf, tp_bytes row, bool is_cut) {
  if (unlikely(!decode_columns(buf, row))) {
    if (!is_cut) return HA_ERR_CRASHED;
    tp_entry whole;
    const int result = read_row(TP_READ_WHOLE, &whole);
    if (unlikely(result == TP_END))
      return session->isolation == TP_READ_UNCOMMITTED ? PASS_OVER : HA_ERR_CRASHED;
    if (unlikely(result != TP_OK)) return fail(result);
    if (!decode_columns(buf, {whole.value, whole.value_len})) return HA_ERR_CRASHED;
  }
  if (key_needed && !trees()[0].decode_clustered(buf, clustered.get(), clustered_len, needed.get()))
    return HA_ERR_CRASHED;
  return 0;
}

/* A condition on columns of the index is asked before the row is fetched. */
Item *ha_tidepool::idx_cond_push(uint keynr, Item *condition) {
  const KEY &key = table->key_info[keynr];
  for (uint i = 0; i < key.user_defined_key_parts; i++)
    if (!key.key_part[i].field->stored_in_db()) return condition;
  pushed_idx_cond = condition;
  pushed_idx_cond_keyno = keynr;
  return nullptr;
}

/* Which rows may be in the result at all: those whose positions a range of another index
   has given. */
bool ha_tidepool::rowid_filter_push(Rowid_filter *filter) {
  pushed_rowid_filter = filter;
  return false;
}

/*
  A read that passes entries over must see the end of the server's range by itself, or it would go
  on to the end of the index. The server's own comparison is of columns in the record; an entry that
  holds only the beginning of one is compared as it is.
*/
void ha_tidepool::note_range_end() {
  range_end_known = end_range && (rowid_filter_is_active ||
                                  (pushed_idx_cond && pushed_idx_cond_keyno == active_index));
  if (likely(!range_end_known)) return;
  Search made;
  range_end_len =
      trees()[tree].encode_search(range_end.get(), &table->key_info[active_index], end_range->key,
                                  end_range->keypart_map, table, key_room, &made);
  /* Of parts that the tree has in another order the end says nothing here: the server compares the
     row with it. */
  const bool is_whole = !(end_range->keypart_map >> made.parts);
  range_end_excluded = is_whole && end_range->flag == HA_READ_BEFORE_KEY;
}

bool ha_tidepool::is_past_range_end() const {
  if (!range_end_known) return false;
  const int order = memcmp(entry.key, range_end.get(), MY_MIN(entry.key_len, range_end_len));
  return order ? order > 0 : range_end_excluded && entry.key_len >= range_end_len;
}

/* The kill that no server code sees while entries are passed over. */
static bool is_ending(THD *thd) { return thd_kill_level(thd) > THD_ABORT_SOFTLY; }

int ha_tidepool::check_rowid_filter() {
  if (is_ending(ha_thd())) return HA_ERR_ABORTED_BY_USER;
  if (is_past_range_end()) return PAST_RANGE;
  put_ref(clustered.get(), clustered_len);
  if (pushed_rowid_filter->check(reinterpret_cast<char *>(ref))) return 0;
  give_up();
  return PASS_OVER;
}

int ha_tidepool::check_pushed_condition(uchar *buf) {
  if (is_past_range_end()) return PAST_RANGE;
  if (!trees()[tree].decode(buf, entry.key, entry.key_len, entry.value, entry.value_len,
                            needed.get()))
    return HA_ERR_CRASHED;
  /* The server is not to compare the record with the range's end: that was done. */
  key_range *const end = end_range;
  end_range = nullptr;
  const check_result_t checked = handler_index_cond_check(this);
  end_range = end;
  switch (checked) {
    case CHECK_POS: return 0;
    case CHECK_ABORTED_BY_USER: return HA_ERR_ABORTED_BY_USER;
    default: give_up(); return PASS_OVER;
  }
}

/* The present entry is not wanted after all: its lock, too, if the isolation level allows that. */
void ha_tidepool::give_up() {
  if (row_lock != TP_LOCK_NONE)
    tp_unlock(session->transaction, shared->table, tree, {entry.key, entry.key_len});
}

/* Sets the record from the present entry; for one of a secondary index that doesn't cover what is
   asked, from its row. PASS_OVER also if the row is locked by another transaction, and such are to
   be skipped. */
int ha_tidepool::read_entry(uchar *buf) {
  row_read = tree == 0;
  row_is_recent = entry.is_recent;
  looks_up_written = false;
  if (tree != 0) return read_secondary_entry(buf);
  if (unlikely(entry.key_len > trees()[0].key_max())) return HA_ERR_CRASHED;
  memcpy(clustered.get(), entry.key, entry.key_len);
  clustered_len = entry.key_len;
  return decode_row(buf, {entry.value, entry.value_len}, entry.is_cut);
}

/* The coming row is that of the present entry of a secondary index. false: the entry can't be
   understood. */
bool ha_tidepool::follow_entry() {
  size_t len;
  const uchar *pk = trees()[tree].clustered_key(entry.key, entry.key_len, entry.value,
                                                entry.value_len, clustered.get(), &len);
  if (!pk) return false;
  if (pk != clustered.get()) memcpy(clustered.get(), pk, len);
  clustered_len = len;
  return true;
}

int ha_tidepool::read_secondary_entry(uchar *buf) {
  const Index_layout &layout = trees()[tree];
  if (pushed_idx_cond && pushed_idx_cond_keyno == active_index && buf == table->record[0])
    if (int error = check_pushed_condition(buf)) return error;
  if (!follow_entry()) return HA_ERR_CRASHED;
  if (rowid_filter_is_active && buf == table->record[0])
    if (int error = check_rowid_filter()) return error;
  if (keyread_only) {
    /* Also if the row is fetched: it has no virtual columns, and the server doesn't compute them
       here. */
    if (entry_needed &&
        !layout.decode(buf, entry.key, entry.key_len, entry.value, entry.value_len, needed.get()))
      return HA_ERR_CRASHED;
    if (entry_suffices) return 0;
  }
  tp_entry row;
  const int result = read_row(row_part(), &row);
  row_read = result == TP_OK;
  if (row_read) {
    row_is_recent = row.is_recent;
    const int error = decode_row(buf, {row.value, row.value_len}, row.is_cut);
    return unlikely(compares_rows) && !error ? compare_with_entry(buf) : error;
  }
  if (result != TP_END) return fail(result);
  /* Of an uncommitted entry, the row may have been taken back by now. */
  if (row_lock != TP_LOCK_NONE || session->isolation == TP_READ_UNCOMMITTED) {
    give_up();
    return PASS_OVER;
  }
  sql_print_error("Tidepool: table %s: an entry of index %s has no row; run CHECK TABLE",
                  shared->name.c_str(), table->key_info[shared->layouts.key_of(tree)].name.str);
  return HA_ERR_CRASHED;
}

bool ha_tidepool::has_prefix() const {
  return entry.key_len >= search_len && memcmp(entry.key, search.get(), search_len) == 0;
}

/* The entry that the cursor gave, or the next that is not to be passed over. */
int ha_tidepool::cursor_result(uchar *buf, int result, bool forward, int if_none, Bound bound) {
  peeked = false;
  for (;;) {
    if (result == TP_END) return if_none;
    if (unlikely(result != TP_OK)) return fail(result);
    if (bound == SAME_KEY && !has_prefix()) {
      give_up();
      entry = tp_entry{};
      return if_none;
    }
    const int error = read_entry(buf);
    if (likely(error < PASS_OVER)) {
      peeked = semi_consistent && tree == 0 && error == 0 && tp_is_peeked(reader);
      return error;
    }
    if (error == PAST_RANGE) {
      give_up();
      return if_none;
    }
    result = forward ? tp_next(reader, session->transaction, tree, &entry)
                     : tp_prev(reader, session->transaction, tree, &entry);
  }
}

int ha_tidepool::seek(uchar *buf, const uchar *key, size_t len, int how, bool forward, int if_none,
                      Bound bound) {
  begin_reading();
  if (forward) tell_end(bound);
  const tp_seek_request seek{tree, {key, len}, how};
  const int result = tp_seek(reader, session->transaction, &seek, &entry);
  return cursor_result(buf, result, forward, if_none, bound);
}

/*
  Sets where a read ends, going forward: the cursor does not read beyond it, nor lock what is there.
  If it is exactly the end of the server's range, the server compares no rows with it. Only a cursor
  that locks gaps goes on.
*/
void ha_tidepool::tell_end(Bound bound) {
  uchar *const end = old_key.get();
  size_t len = search_len;
  ends_with_search = bound == SAME_KEY;
  if (ends_with_search) {
    memcpy(end, search.get(), len);
  } else if (first_range_end) {
    const Index_layout &layout = trees()[tree];
    Search made;
    len = layout.encode_search(end, &table->key_info[active_index], first_range_end->key,
                               first_range_end->keypart_map, table, key_room, &made);
    bool is_whole = made.parts == my_count_bits(first_range_end->keypart_map);
    for (uint i = 0; is_whole && i < made.parts; i++) is_whole = layout.all_parts()[i].whole;
    in_range_check_pushed_down = is_whole && session->isolation != TP_SERIALIZABLE;
    if (is_whole && first_range_end->flag == HA_READ_BEFORE_KEY) {
      tp_reader_set_end(reader, tree, {end, len});
      return;
    }
  } else {
    return;
  }
  if (successor(end, &len))
    tp_reader_set_end(reader, tree, {end, len});
  else
    in_range_check_pushed_down = false;
}

/* ---- index reads */

/* What is known of the reading before is not known of the one that begins: the server may go on by
   other searches in the same range, and compares what they find with its end. */
void ha_tidepool::begin_reading() {
  at_point = after_search = ends_with_search = in_range_check_pushed_down = false;
}

int ha_tidepool::index_init(uint keynr, bool) {
  active_index = keynr;
  tree = shared->layouts.tree_of(keynr);
  begin_reading();
  peeked = reads_window = false;
  plan_known = false;
  entry = tp_entry{};
  return 0;
}

int ha_tidepool::index_end() {
  active_index = MAX_KEY;
  at_point = after_search = false;
  return 0;
}

int ha_tidepool::index_read_map(uchar *buf, const uchar *key, key_part_map map,
                                enum ha_rkey_function flag) {
  const Counted_call counted(this);
  return in_turn(read_index(buf, key, map, flag));
}

int ha_tidepool::read_index(uchar *buf, const uchar *key, key_part_map map,
                            enum ha_rkey_function flag) {
  if (int error = ready()) return error;
  peeked = reads_window = false;
  begin_reading();
  const Index_layout &layout = trees()[tree];
  if (unlikely(layout.is_spatial())) return read_window(buf, key, flag);
  note_range_end();
  Search made;
  search_len = layout.encode_search(search.get(), &table->key_info[active_index], key, map, table,
                                    key_room, &made);

  const bool exact = flag == HA_READ_KEY_EXACT || flag == HA_READ_PREFIX;
  if (exact && layout.is_unique() && made.parts == layout.user_parts() && !made.has_null) {
    const tp_read_request request{
        tree, {search.get(), search_len}, tree == 0 ? row_part() : TP_READ_WHOLE};
    tp_entry found;
    const int result = tp_read(reader, session->transaction, &request, &found);
    /* The position is that of the key, whether it is there or not: HANDLER … READ NEXT goes on from
       it. */
    at_point = true;
    after_search = false;
    if (result == TP_END) return HA_ERR_KEY_NOT_FOUND;
    if (unlikely(result != TP_OK)) return fail(result);
    entry = found;
    const int error = read_entry(buf);
    return error >= PASS_OVER ? HA_ERR_KEY_NOT_FOUND : error;
  }

  int error;
  const int none = HA_ERR_KEY_NOT_FOUND;
  /* A bound past all entries with the prefix is made in the room of keys to be written. */
  uchar *const past = new_key.get();
  size_t past_len = search_len;
  auto make_past = [&] {
    memcpy(past, search.get(), search_len);
    return successor(past, &past_len);
  };
  switch (flag) {
    case HA_READ_KEY_EXACT:
    case HA_READ_PREFIX:
      error = seek(buf, search.get(), search_len, TP_AT_OR_AFTER, true, none, SAME_KEY);
      after_search = error == none;
      return error;
    case HA_READ_KEY_OR_NEXT:
      error = seek(buf, search.get(), search_len, TP_AT_OR_AFTER, true, none);
      after_search = error == none;
      return error;
    case HA_READ_AFTER_KEY:
      error = make_past() ? seek(buf, past, past_len, TP_AT_OR_AFTER, true, none) : none;
      at_point = false;
      after_search = error == none;
      return error;
    case HA_READ_BEFORE_KEY: return seek(buf, search.get(), search_len, TP_BEFORE, false, none);
    case HA_READ_KEY_OR_PREV:
    case HA_READ_PREFIX_LAST:
    case HA_READ_PREFIX_LAST_OR_PREV: {
      const Bound bound = flag == HA_READ_PREFIX_LAST ? SAME_KEY : ANY_KEY;
      if (make_past()) return seek(buf, past, past_len, TP_BEFORE, false, none, bound);
      begin_reading();
      const int result = tp_last(reader, session->transaction, tree, &entry);
      return cursor_result(buf, result, false, none, bound);
    }
    default: return HA_ERR_UNSUPPORTED;
  }
}

int ha_tidepool::index_read_last_map(uchar *buf, const uchar *key, key_part_map map) {
  return index_read_map(buf, key, map, HA_READ_PREFIX_LAST);
}

int ha_tidepool::step(uchar *buf, bool forward, Bound bound) {
  if (int error = ready()) return error;
  const int none = HA_ERR_END_OF_FILE;
  if (unlikely(peeked)) return lock_peeked(buf, forward, bound);
  if (bound == SAME_KEY && (at_point || after_search)) {
    at_point = false;
    after_search = true;
    return none;
  }
  if (at_point)
    return seek(buf, search.get(), search_len, forward ? TP_AFTER : TP_BEFORE, forward, none);
  if (after_search) {
    uchar *const past = new_key.get();
    size_t past_len = search_len;
    memcpy(past, search.get(), search_len);
    if (successor(past, &past_len))
      return seek(buf, past, past_len, forward ? TP_AT_OR_AFTER : TP_BEFORE, forward, none);
    if (forward) return none;
    begin_reading();
    const int result = tp_last(reader, session->transaction, tree, &entry);
    return cursor_result(buf, result, false, none);
  }
  const int result = forward ? tp_next(reader, session->transaction, tree, &entry)
                             : tp_prev(reader, session->transaction, tree, &entry);
  if (unlikely(result == TP_END && ends_with_search && forward && bound == ANY_KEY)) {
    /* More is wanted, after all. */
    ends_with_search = false;
    after_search = true;
    return step(buf, forward, bound);
  }
  const int error = cursor_result(buf, result, forward, none, bound);
  after_search = error == none && bound == SAME_KEY;
  return error;
}

/* The server wants the row that it was shown. */
int ha_tidepool::lock_peeked(uchar *buf, bool forward, Bound bound) {
  const int result = tp_lock_current(reader, session->transaction, 0, &entry);
  const int none = HA_ERR_END_OF_FILE;
  const int error = cursor_result(buf, result, forward, none, bound);
  after_search = error == none && bound == SAME_KEY;
  return error;
}

int ha_tidepool::index_next(uchar *buf) {
  const Counted_call counted(this);
  return in_turn(step(buf, true, ANY_KEY));
}

int ha_tidepool::index_prev(uchar *buf) {
  const Counted_call counted(this);
  return step(buf, false, ANY_KEY);
}

int ha_tidepool::index_next_same(uchar *buf, const uchar *key, uint key_len) {
  const Counted_call counted(this);
  if (unlikely(reads_window)) {
    const int error = ready();
    return error ? error : read_next_in_window(buf);
  }
  /* The search key is still there from index_read_map; a caller with another one is served by
     comparing columns. */
  if (search_len) return step(buf, true, SAME_KEY);
  return handler::index_next_same(buf, key, key_len);
}

int ha_tidepool::read_range_first(const key_range *start, const key_range *end, bool eq,
                                  bool sorted) {
  first_range_end = end;
  const int error = handler::read_range_first(start, end, eq, sorted);
  first_range_end = nullptr;
  return error;
}

int ha_tidepool::index_first(uchar *buf) {
  const Counted_call counted(this);
  if (int error = ready()) return error;
  note_range_end();
  begin_reading();
  search_len = 0;
  tell_end(ANY_KEY);
  const int result = tp_first(reader, session->transaction, tree, &entry);
  return cursor_result(buf, result, true, HA_ERR_END_OF_FILE);
}

int ha_tidepool::index_last(uchar *buf) {
  const Counted_call counted(this);
  if (int error = ready()) return error;
  note_range_end();
  begin_reading();
  search_len = 0;
  const int result = tp_last(reader, session->transaction, tree, &entry);
  return cursor_result(buf, result, false, HA_ERR_END_OF_FILE);
}

/* ---- table reads */

/* Of a table, and not of each partition when its turn comes: all are read by one snapshot, taken at
   the first. While the statement runs no transaction is prepared on the table, so none comes to be
   without a session. */
int ha_tidepool::check_copy() const {
  switch (thd_sql_command(ha_thd())) {
    case SQLCOM_ALTER_TABLE:
    case SQLCOM_CREATE_INDEX:
    case SQLCOM_DROP_INDEX:
    case SQLCOM_OPTIMIZE:
    case SQLCOM_REPAIR:
      if (table_share->tmp_table != NO_TMP_TABLE) return TP_OK;
      give_away_parted();
      return tp_check_copy(engine.db, shared->name.data(),
                           MY_MIN(shared->name.find("#P#"), shared->name.size()));
    default: return TP_OK;
  }
}

int ha_tidepool::rnd_init(bool scan) {
  if (int result = scan ? check_copy() : TP_OK) return fail(result);
  tree = 0;
  at_point = after_search = peeked = false;
  scanning_started = false;
  plan_known = false;
  entry = tp_entry{};
  if (scan) tp_reader_set_scan(reader, 0, 1);
  return 0;
}

int ha_tidepool::rnd_end() {
  if (reader) tp_reader_set_scan(reader, 0, 0);
  scanning_started = false;
  return 0;
}

int ha_tidepool::rnd_next(uchar *buf) {
  const Counted_call counted(this);
  const int error = in_turn(read_next_row(buf));
  if (likely(!own_session) || (error && error != HA_ERR_END_OF_FILE)) return error;
  /* Of a sequence, whose row is locked no longer than it is read: another handler of the same
     statement may draw a number, and has a transaction to itself as well. Nor is its snapshot kept
     until UNLOCK TABLES. */
  const int ended = end_own_statement();
  return error ? error : ended;
}

int ha_tidepool::read_next_row(uchar *buf) {
  if (int error = ready()) return error;
  if (unlikely(peeked)) return lock_peeked(buf, true, ANY_KEY);
  at_point = after_search = false;
  const int result = scanning_started ? tp_next(reader, session->transaction, 0, &entry)
                                      : tp_first(reader, session->transaction, 0, &entry);
  scanning_started = true;
  return cursor_result(buf, result, true, HA_ERR_END_OF_FILE);
}

/* ---- positions */

/* In place of the key's length: no row has this position. */
constexpr uint16 NO_POSITION = 0xFFFF;

void ha_tidepool::position(const uchar *record) {
  if (shared->layouts.has_row_id) {
    put_ref(looks_up_written ? row_id : clustered.get(), ROW_ID_LENGTH);
    return;
  }
  bool bare;
  const size_t len =
      trees()[0].encode(new_clustered.get(), record, table, nullptr, key_room, &bare);
  put_ref(new_clustered.get(), len);
}

/* The position of the row with this clustered key. A replica asks for those of rows that it has
   not, nor could have: of a key longer than a tree takes the position is one that no row has. */
void ha_tidepool::put_ref(const uchar *pk, size_t pk_len) {
  if (trees()[0].fixed_length()) {
    memcpy(ref, pk, pk_len);
    return;
  }
  const size_t room = ref_length - 2;
  const bool fits = pk_len <= room;
  const size_t len = fits ? pk_len : 0;
  memcpy(ref, pk, len);
  memset(ref + len, 0, room - len);
  int2store(ref + room, fits ? static_cast<uint16>(pk_len) : NO_POSITION);
}

int ha_tidepool::rnd_pos(uchar *buf, uchar *pos) {
  const Counted_call counted(this);
  const int error = in_turn(read_position(buf, pos));
  /* For REPLACE and the like, after a duplicate. */
  if (unlikely(error) && memcmp(pos, dup_ref, ref_length) == 0) duplicate_unread = error;
  return error;
}

int ha_tidepool::read_position(uchar *buf, const uchar *pos) {
  if (int error = ready()) return error;
  peeked = false;
  const size_t fixed = trees()[0].fixed_length();
  const size_t len = fixed ? fixed : uint2korr(pos + ref_length - 2);
  if (!fixed && len > ref_length - 2) return HA_ERR_KEY_NOT_FOUND;
  return read_by_clustered(buf, pos, len);
}

/* A row that a search has found, by its clustered key. */
int ha_tidepool::read_found(uchar *buf, const uchar *pk, size_t pk_len) {
  if (int error = ready()) return error;
  if (pk_len > trees()[0].key_max()) return HA_ERR_CRASHED;
  peeked = false;
  return read_by_clustered(buf, pk, pk_len);
}

int ha_tidepool::read_by_clustered(uchar *buf, const uchar *pk, size_t pk_len) {
  looks_up_written = false;
  memcpy(clustered.get(), pk, pk_len);
  clustered_len = pk_len;
  tp_entry row;
  const int result = read_row(row_part(), &row);
  row_read = result == TP_OK;
  if (result == TP_END) return HA_ERR_KEY_NOT_FOUND;
  if (unlikely(result != TP_OK)) return fail(result);
  row_is_recent = row.is_recent;
  const int error = decode_row(buf, {row.value, row.value_len}, row.is_cut);
  return unlikely(error == PASS_OVER) ? HA_ERR_KEY_NOT_FOUND : error;
}

void ha_tidepool::try_semi_consistent_read(bool yes) {
  semi_consistent = yes;
  peeked = false;
  if (reader) tp_reader_set_semi_consistent(reader, yes);
}

void ha_tidepool::unlock_row() {
  if (peeked) {
    peeked = false;
    return;
  }
  if (row_lock == TP_LOCK_NONE || !session || session->isolation > TP_READ_COMMITTED) return;
  if (tree != 0 && entry.key)
    tp_unlock(session->transaction, shared->table, tree, {entry.key, entry.key_len});
  /* Of a row that was not read, an earlier read may have the lock, and want it. */
  if (row_read) tp_unlock(session->transaction, shared->table, 0, {clustered.get(), clustered_len});
}
