/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "row_conversion.h"
#include "alter_columns.h"

namespace tidepool {

Row_conversion::Row_conversion(TABLE *table, const Layouts &now, TABLE *altered,
                               std::vector<int> old_of)
    : table(table), now(now), altered(altered), old_of(std::move(old_of)),
      wanted(table->s->fields, 0) {}

bool Row_conversion::begin() {
  memcpy(altered->record[0], altered->s->default_values, altered->s->reclength);
  if (!set_defaults(altered, old_of)) {
    my_error(ER_UNKNOWN_ERROR, MYF(0));
    return false;
  }
  copies.reset(new Copy_field[altered->s->fields]);
  copy_count = 0;
  for (uint i = 0; i < altered->s->fields; i++) {
    Field *const to = altered->field[i];
    if (old_of[i] < 0 || !to->stored_in_db()) continue;
    Field *const from = table->field[old_of[i]];
    if (to->check_assignability_from(from, false)) return false;
    copies[copy_count++].set(to, from, false);
    wanted[from->field_index] = 1;
  }
  last = now.row->last_needed(wanted.data());
  from_key = now.row->key_needed(wanted.data());
  return true;
}

Row_conversion::Result Row_conversion::convert(tp_bytes key, tp_bytes row) {
  uchar *const record = table->record[0];
  if ((last && !now.row->decode(record, row.data, row.len, wanted.data(), last)) ||
      (from_key && !now.trees[0].decode_clustered(record, key.data, key.len, wanted.data())))
    return CORRUPT;
  for (size_t i = 0; i < copy_count; i++) copies[i].do_copy(&copies[i]);
  return table->in_use->is_error() ? REFUSED : CONVERTED;
}

} // namespace tidepool
