/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Referential actions: what becomes of the children of a row that is deleted or gets another key.

  They are done by the child's own handler. Mostly the server has opened it with the statement, for
  it asks a parent for its children. But it asks when a statement is prepared or a stored routine
  first runs, and a constraint may be younger than that: then the child is opened here, and closed
  when the statement ends.
*/
#include "engine.h"
#include "errors.h"
#include "ha_tidepool.h"
#include "table_cache.h"
#include <list>

using namespace tidepool;

/* ---- the child's handler */

static ha_tidepool *handler_of(TABLE *open, const std::string &name) {
  if (open->s->db_type() != engine.hton || open->file->ht != engine.hton) return nullptr;
  auto *handler = static_cast<ha_tidepool *>(open->file);
  return handler->is_of(name) ? handler : nullptr;
}

/* Opens a table as the server would for a statement. */
static int open_child(THD *thd, Session *session, const std::string &name) {
  if (!lock_definition_to_write(thd, name)) return error_of_wait(thd);
  Definition definition(thd, name);
  if (!definition.share) return HA_ERR_NO_SUCH_TABLE;
  auto *opened = static_cast<TABLE *>(
      my_malloc(PSI_NOT_INSTRUMENTED, sizeof(TABLE), MYF(MY_WME | MY_ZEROFILL)));
  if (!opened) return HA_ERR_OUT_OF_MEM;
  auto *share = const_cast<TABLE_SHARE *>(definition.share);
  if (open_table_from_share(thd, share, &share->table_name, HA_OPEN_KEYFILE | HA_TRY_READ_ONLY,
                            EXTRA_RECORD, thd->open_options, opened, false) != OPEN_FRM_OK) {
    my_free(opened);
    return HA_ERR_TABLE_DEF_CHANGED;
  }
  /* The table has the share from here on. */
  definition.share = nullptr;
  session->children.push_back(opened);
  return 0;
}

void tidepool::close_children(Session *session) {
  for (TABLE *child : session->children) {
    TABLE_SHARE *const share = child->s;
    closefrm(child);
    my_free(child);
    tdc_release_share(share);
  }
  session->children.clear();
}

/* A handler of the table with which the statement may write. One that the server has opened is left
   where it stands. */
int ha_tidepool::open_for_action(THD *thd, Session *session, const std::string &name,
                                 ha_tidepool **child) {
  for (TABLE *open = thd->open_tables; open; open = open->next)
    if (open->reginfo.lock_type >= TL_FIRST_WRITE && (*child = handler_of(open, name))) return 0;
  for (TABLE *open : session->children)
    if ((*child = handler_of(open, name))) return 0;
  if (int error = open_child(thd, session, name)) return error;
  *child = handler_of(session->children.back(), name);
  return *child ? 0 : HA_ERR_TABLE_DEF_CHANGED;
}

/* ---- the rows */

/* The parent's value for a child's column. false: it can't be that column's. */
static bool put_value(const Column &to, uchar *record, const Column &from, const uchar *parent) {
  if (from.is_null(parent)) {
    if (!to.null_mask) return false;
    to.set_null(record);
    return true;
  }
  to.set_not_null(record);
  if (to.storage == Column::FIXED) {
    memcpy(record + to.offset, parent + from.offset, to.size);
    return true;
  }
  size_t len;
  const uchar *text = from.text(parent, &len);
  const char *const start = reinterpret_cast<const char *>(text);
  if (from.storage == Column::CHAR || len > to.size) len = to.cs->lengthsp(start, len);
  if (len > to.size || to.cs->numchars(start, start + len) > to.size / to.cs->mbmaxlen)
    return false;
  memmove(to.text_room(record), text, len);
  to.set_text_length(record, len);
  return true;
}

namespace {
struct Reader_closer {
  void operator()(tp_reader *reader) const { tp_reader_close(reader); }
};
} // namespace

/* Does to the rows of this table whose entries in `index` begin with `prefix` what the constraint
   says. */
int ha_tidepool::change_children(const Constraint &key, uint index, const std::string &prefix,
                                 Constraint::Action action, const ha_tidepool *parent,
                                 const uchar *old_parent, const uchar *new_parent) {
  THD *thd = ha_thd();
  if (int error = ready_for_action()) return error;
  tp_reader *opened = nullptr;
  if (int result = tp_reader_open(shared->table, &opened)) return fail(result);
  const std::unique_ptr<tp_reader, Reader_closer> rows(opened);
  tp_reader_set_lock(opened, TP_LOCK_EXCLUSIVE, wait_mode(thd));

  std::vector<uint16> columns, parent_columns;
  std::string missing;
  if (!columns_of(table_share, key.columns, &columns, &missing) ||
      !columns_of(parent->table_share, key.referenced, &parent_columns, &missing))
    return HA_ERR_TABLE_DEF_CHANGED;
  const std::vector<uchar> all(table_share->fields, 1);
  const uint last = row_layout().last_needed(all.data());
  const auto old_record = std::make_unique<uchar[]>(table_share->reclength);
  const auto new_record = std::make_unique<uchar[]>(table_share->reclength);
  const auto pk_room = std::make_unique<uchar[]>(trees()[0].key_max());
  /* This handler may be the one that the statement reads by: it is left where it stands. */
  const std::string place(reinterpret_cast<const char *>(clustered.get()), clustered_len);
  const bool place_is_row = row_read;

  int error = 0;
  std::string at = prefix, end = prefix;
  size_t end_len = end.size();
  const bool has_end = successor(reinterpret_cast<uchar *>(&end[0]), &end_len);
  for (int how = TP_AT_OR_AFTER; !error; how = TP_AFTER) {
    if (thd_kill_level(thd) != THD_IS_NOT_KILLED) {
      error = HA_ERR_ABORTED_BY_USER;
      break;
    }
    if (has_end)
      tp_reader_set_end(opened, index, {reinterpret_cast<const uint8_t *>(end.data()), end_len});
    tp_entry entry;
    const tp_seek_request seek{
        index, {reinterpret_cast<const uint8_t *>(at.data()), at.size()}, how};
    int result = tp_seek(opened, session->transaction, &seek, &entry);
    if (result == TP_END) break;
    if (result != TP_OK) {
      error = fail(result);
      break;
    }
    if (entry.key_len < prefix.size() || memcmp(entry.key, prefix.data(), prefix.size()) != 0)
      break;
    at.assign(reinterpret_cast<const char *>(entry.key), entry.key_len);

    size_t pk_len = entry.key_len;
    const uchar *pk = entry.key;
    tp_bytes row{entry.value, entry.value_len};
    tp_entry found{};
    if (index != 0) {
      pk = trees()[index].clustered_key(entry.key, entry.key_len, entry.value, entry.value_len,
                                        pk_room.get(), &pk_len);
      if (!pk) {
        error = HA_ERR_CRASHED;
        break;
      }
      if (pk != pk_room.get()) memcpy(pk_room.get(), pk, pk_len);
      pk = pk_room.get();
      const tp_read_request request{0, {pk, pk_len}, TP_READ_WHOLE};
      result = tp_read(opened, session->transaction, &request, &found);
      row = {found.value, found.value_len};
      if (result != TP_OK) {
        error = result == TP_END ? HA_ERR_CRASHED : fail(result);
        break;
      }
    }
    if (pk_len > trees()[0].key_max()) {
      error = HA_ERR_CRASHED;
      break;
    }
    memcpy(clustered.get(), pk, pk_len);
    clustered_len = pk_len;
    memcpy(old_record.get(), table_share->default_values, table_share->reclength);
    if (!row_layout().decode(old_record.get(), row.data, row.len, all.data(), last) ||
        !trees()[0].decode_clustered(old_record.get(), clustered.get(), clustered_len,
                                     all.data())) {
      error = HA_ERR_CRASHED;
      break;
    }
    std::list<std::string> blobs;
    if ((error = compute_indexed_columns(old_record.get(), &blobs))) break;
    if (action == Constraint::CASCADE && !new_parent) {
      error = delete_complete(old_record.get());
      continue;
    }
    memcpy(new_record.get(), old_record.get(), table_share->reclength);
    for (size_t i = 0; i < columns.size() && !error; i++) {
      const Column to(table_share->field[columns[i]], table_share);
      if (action == Constraint::SET_NULL && to.null_mask) {
        to.set_null(new_record.get());
      } else if (action == Constraint::SET_NULL) {
        /* NOT NULL came later, which the server allows in a mode that is not strict. */
        error = violation(thd, session, key, HA_ERR_ROW_IS_REFERENCED);
      } else {
        const Column from(parent->table_share->field[parent_columns[i]], parent->table_share);
        if (from.same(old_parent, new_parent)) continue;
        if (!put_value(to, new_record.get(), from, new_parent))
          error = violation(thd, session, key, HA_ERR_ROW_IS_REFERENCED);
      }
    }
    if (!error) error = compute_indexed_columns(new_record.get(), &blobs);
    if (!error) error = update_complete(old_record.get(), new_record.get());
    if (error == HA_ERR_RECORD_IS_THE_SAME) error = 0;
  }
  memcpy(clustered.get(), place.data(), place.size());
  clustered_len = place.size();
  row_read = place_is_row;
  return error;
}

int ha_tidepool::ready_for_action() {
  if (likely(is_ready())) return 0;
  return ready_slowly();
}
