/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Windows in SPATIAL indexes.

  The server asks an index for the rectangles that lie to a window in one of five ways, reads the
  row of each, and checks its own condition. Keys and searches are in mariadb/src/spatial; here the
  rows are read, as those of any secondary index are.

  At SERIALIZABLE a locking statement locks the entries that it reads of the index, and the gaps. At
  lower levels it reads the index by a view of the statement (tp_transaction_set_searching), and
  locks the rows alone, each as it is by then:
  - the rectangle of a row that was committed since is compared with the window once more;
  - a row that has got another primary key since is an error: the statement would miss it;
  - so is what an older snapshot has in the window besides, for it has changed, as what is new to
    the snapshot is.
*/
#include "errors.h"
#include "ha_tidepool.h"

using namespace tidepool;

namespace {

/* How the server asks for entries; false: not as an index of rectangles can be asked. */
bool relation_of(enum ha_rkey_function flag, int *relation) {
  switch (flag) {
    case HA_READ_MBR_INTERSECT: *relation = TP_ENTRY_INTERSECTS; return true;
    case HA_READ_MBR_CONTAIN: /* the window contains the entry */
      *relation = TP_ENTRY_INSIDE;
      return true;
    case HA_READ_MBR_WITHIN: /* the window is within the entry */
      *relation = TP_ENTRY_AROUND;
      return true;
    case HA_READ_MBR_DISJOINT: *relation = TP_ENTRY_DISJOINT; return true;
    case HA_READ_MBR_EQUAL:
    case HA_READ_KEY_EXACT: /* a replica that looks for a row, HANDLER */
      *relation = TP_ENTRY_EQUAL;
      return true;
    default: return false;
  }
}

} // namespace

bool ha_tidepool::window_request(const uchar *key, enum ha_rkey_function flag,
                                 tp_spatial_request *request) {
  *request = {tree, {key, TP_RECTANGLE_LEN}, 0};
  return relation_of(flag, &request->relation);
}

/* The first entry of the search, or the next one. A TP_* code. */
int ha_tidepool::move_in_window(bool first) {
  const bool locks_later = locks_after_search();
  if (locks_later) tp_reader_set_lock(reader, TP_LOCK_NONE, TP_WAIT);
  const int result = first ? tp_spatial_first(reader, session->transaction, &in_window, &entry)
                           : tp_spatial_next(reader, session->transaction, &entry);
  if (locks_later) set_row_lock(row_lock, skip_locked);
  return result;
}

int ha_tidepool::read_window(uchar *buf, const uchar *key, enum ha_rkey_function flag) {
  range_end_known = false;
  begin_reading();
  memcpy(window, key, sizeof window);
  if (!window_request(window, flag, &in_window)) return HA_ERR_UNSUPPORTED;
  reads_window = true;
  const int error = read_in_window(buf, true);
  return error == HA_ERR_END_OF_FILE ? HA_ERR_KEY_NOT_FOUND : error;
}

int ha_tidepool::read_next_in_window(uchar *buf) { return read_in_window(buf, false); }

/* The row of the first entry, or of the next one whose row is wanted. */
int ha_tidepool::read_in_window(uchar *buf, bool first) {
  const int error = find_in_window(buf, first);
  if (error != HA_ERR_END_OF_FILE || !locks_after_search()) return error;
  return tp_searches_beyond_snapshot(session->transaction) ? check_snapshot_of_window() : error;
}

int ha_tidepool::find_in_window(uchar *buf, bool first) {
  const Search_scope for_locks(searching_transaction());
  for (;; first = false) {
    const int result = move_in_window(first);
    if (result == TP_END) return HA_ERR_END_OF_FILE;
    if (unlikely(result != TP_OK)) return fail(result);
    const int error = read_entry(buf);
    /* Each call finds an entry at once, so the engine has not looked whether it is killed. */
    if (error == PASS_OVER && thd_kill_level(ha_thd()) != THD_IS_NOT_KILLED)
      return HA_ERR_ABORTED_BY_USER;
    if (error == PASS_OVER) continue;
    if (error) return error;
    const bool is_dirty = row_lock == TP_LOCK_NONE && session->isolation == TP_READ_UNCOMMITTED;
    if (likely(!is_newer_than_search() && !is_dirty)) return 0;
    if (!row_read || is_still_in_window(buf)) return 0;
    unlock_row();
  }
}

/* At the end of a search that has seen more than the snapshot: locks the rows that the snapshot has
   in the window. Those found are locked already. The others have changed since, which is an error;
   else HA_ERR_END_OF_FILE. */
int ha_tidepool::check_snapshot_of_window() {
  for (bool first = true;; first = false) {
    int result = move_in_window(first);
    if (result == TP_END) return HA_ERR_END_OF_FILE;
    if (unlikely(result != TP_OK)) return fail(result);
    if (thd_kill_level(ha_thd()) != THD_IS_NOT_KILLED) return HA_ERR_ABORTED_BY_USER;
    if (!follow_entry()) return HA_ERR_CRASHED;
    tp_entry row;
    result = read_row(TP_READ_NOTHING, &row);
    if (unlikely(result != TP_OK && result != TP_END)) return fail(result);
  }
}

/* Whether the row that was read has a rectangle that is searched for. */
bool ha_tidepool::is_still_in_window(const uchar *record) const {
  const Part &part = trees()[tree].all_parts()[0];
  uchar rectangle[TP_RECTANGLE_LEN];
  part.rectangle_of(record, rectangle);
  return tp_spatial_takes(&in_window, {rectangle, sizeof rectangle});
}

ha_rows ha_tidepool::records_in_window(uint tree_asked, const key_range &range) {
  tp_spatial_request request{tree_asked, {range.key, TP_RECTANGLE_LEN}, 0};
  if (!relation_of(range.flag, &request.relation)) return HA_POS_ERROR;
  std::lock_guard<std::mutex> guard(shared->statistics_mutex);
  if (!shared->spatial[tree_asked]) return HA_POS_ERROR;
  const ha_rows rows = tp_table_rows(shared->table);
  const auto *statistics = shared->spatial[tree_asked].get();
  /* 0 means certainly none. */
  return MY_MAX(1, MY_MIN(tp_spatial_estimate(statistics, &request, rows), rows));
}
