/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Virtual columns that indexes have.

  The server computes those that are marked as read or written, and for statements it marks all that
  are in indexes. Where events of a binary log are applied, by a replica or by BINLOG, it marks what
  the event names: partial row images leave virtual columns out, and no event has one that only the
  replica's table has, or, with a minimal image, has in an index. Entries would be made of the
  record's default values. So the columns are computed here. Referential actions read rows that the
  server doesn't see at all.
*/
#include "ha_tidepool.h"
#include <algorithm>

namespace {

bool is_indexed(const Field *field) {
  return !field->stored_in_db() && (field->flags & PART_KEY_FLAG);
}

/* Values of virtual BLOB columns are in the fields' own buffers, where the server may have those of
   the row that it stands at: while this lives, others are there. */
class Kept_blobs {
public:
  explicit Kept_blobs(TABLE *of) : table(of) {
    size_t count = 0;
    for (Field **field = table->vfield; *field; field++) count++;
    values = std::make_unique<String[]>(count);
    swap();
  }
  ~Kept_blobs() { swap(); }
  Kept_blobs(const Kept_blobs &) = delete;
  Kept_blobs &operator=(const Kept_blobs &) = delete;

private:
  void swap() {
    String *value = values.get();
    for (Field **field = table->vfield; *field; field++, value++)
      if ((*field)->flags & BLOB_FLAG) static_cast<Field_blob *>(*field)->swap(*value, false);
  }
  TABLE *table;
  std::unique_ptr<String[]> values;
};

} // namespace

bool ha_tidepool::has_indexed_column_outside(const MY_BITMAP &columns) const {
  /* A row of an event that replaces another is marked as if it were whole, and so are those that
     follow it. */
  const THD *thd = ha_thd();
  const bool applies_events = thd->rgi_slave || thd->rgi_fake;
  /* The server computes virtual columns of a versioned table once more before it hands over a
     change, and then those of the row of the past are in the same buffer as those of the new
     one. */
  const bool shares_buffers = table->versioned();
  for (Field **field = table->vfield; *field; field++)
    if (is_indexed(*field) && (applies_events || !bitmap_is_set(&columns, (*field)->field_index) ||
                               (shares_buffers && ((*field)->flags & BLOB_FLAG))))
      return true;
  return false;
}

/* The server's record stays as it is: what it has in its own buffers belongs to it. */
int ha_tidepool::complete_record(const uchar *record, Completed_record *completed) {
  completed->bytes = std::make_unique<uchar[]>(table_share->reclength);
  memcpy(completed->bytes.get(), record, table_share->reclength);
  return compute_indexed_columns(completed->bytes.get(), &completed->blobs);
}

/* Of a record that has all stored columns, and is not the server's own. What long values it gets
   are in `blobs`. */
int ha_tidepool::compute_indexed_columns(uchar *record, std::list<std::string> *blobs) {
  if (likely(!table->vfield)) return 0;
  if (!std::any_of(table->vfield, table->vfield + table_share->virtual_fields, is_indexed))
    return 0;

  int error = 0;
  const std::string saved(reinterpret_cast<const char *>(table->record[0]), table_share->reclength);
  const Kept_blobs kept(table);
  memcpy(table->record[0], record, table_share->reclength);
  for (Field **field = table->vfield; *field && !error; field++)
    if (is_indexed(*field) && table->update_virtual_field(*field, true)) error = HA_ERR_UNSUPPORTED;
  /* Only now: one that is computed from another has made the server compute that again. */
  for (Field **field = table->vfield; *field && !error; field++) {
    if (!is_indexed(*field) || !((*field)->flags & BLOB_FLAG) || (*field)->is_null()) continue;
    auto *blob = static_cast<Field_blob *>(*field);
    blobs->emplace_back(reinterpret_cast<const char *>(blob->get_ptr()), blob->get_length());
    blob->set_ptr(blob->get_length(), reinterpret_cast<uchar *>(&blobs->back()[0]));
  }
  memcpy(record, table->record[0], table_share->reclength);
  memcpy(table->record[0], saved.data(), saved.size());
  return error;
}
