/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  CHECK TABLE.

  First the engine walks every tree: pages, order, fences, chains of long values. Then, in one
  snapshot, each index is compared with the table both ways: the entry that a row should have must
  be there with the value it should have, and the row of each entry must be there and have just that
  entry. A row with pending words must have just these, and the entries must be those of the texts
  that the pending row says (fulltext_pending.h). The first few differences are reported by name.
*/
#include "engine.h"
#include "errors.h"
#include "fulltext_pending.h"
#include "ha_tidepool.h"

using namespace tidepool;

namespace {

constexpr uint REPORTED_MAX = 10;

struct Checking {
  THD *thd;
  const TABLE_SHARE *share;
  uint problems = 0;

  void report(const char *text, size_t len) {
    if (problems++ < REPORTED_MAX) {
      String copy;
      copy.append(text, len);
      push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_NOT_KEYFILE, "Tidepool: %s",
                          copy.c_ptr_safe());
      sql_print_error("Tidepool: CHECK TABLE %s.%s: %s", share->db.str, share->table_name.str,
                      copy.c_ptr_safe());
    }
  }
  void report(const std::string &text) { report(text.data(), text.size()); }
};

void take_problem(void *context, const char *text, size_t len) {
  static_cast<Checking *>(context)->report(text, len);
}
int is_killed(void *context) {
  return thd_kill_level(static_cast<Checking *>(context)->thd) != THD_IS_NOT_KILLED;
}

std::string hex(const uchar *bytes, size_t len) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < MY_MIN(len, 32); i++) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text + (len > 32 ? "…" : "");
}

} // namespace

int ha_tidepool::check(THD *thd, HA_CHECK_OPT *options) {
  if (tp_table_is_discarded(shared->table)) {
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_TABLESPACE_DISCARDED,
                        ER_THD(thd, ER_TABLESPACE_DISCARDED), table_share->table_name.str);
    return HA_ADMIN_FAILED;
  }
  Checking checking{thd, table_share};
  int result = tp_check(engine.db, shared->table, &checking, take_problem, is_killed);
  if (result == TP_INTERRUPTED) return HA_ADMIN_FAILED;
  if (result != TP_OK) {
    server_error(result, thd);
    return HA_ADMIN_CORRUPT;
  }
  if (checking.problems) return HA_ADMIN_CORRUPT;
  if (options->flags & T_QUICK) return HA_ADMIN_OK;

  /* A transaction and readers of its own: one snapshot for all trees, and no locks. */
  tp_transaction *transaction = nullptr;
  tp_reader *rows = nullptr, *entries = nullptr;
  tp_savepoint unused;
  result = tp_transaction_new(engine.db, &transaction);
  if (result == TP_OK) result = tp_transaction_begin(transaction, TP_REPEATABLE_READ);
  if (result == TP_OK) result = tp_statement_begin(transaction, 0, &unused);
  if (result == TP_OK) result = tp_snapshot(transaction);
  if (result == TP_OK) result = tp_reader_open(shared->table, &rows);
  if (result == TP_OK) result = tp_reader_open(shared->table, &entries);

  /* All columns, the virtual ones that are in indexes too. */
  MY_BITMAP *const old_read_set = table->read_set;
  table->read_set = &table_share->all_set;
  memset(needed.get(), 1, table_share->fields);
  last_needed = row_layout().last_needed(needed.get());
  key_needed = row_layout().key_needed(needed.get());
  uchar *const record = table->record[0];
  std::vector<uint64> expected(trees().size(), 0);
  auto name_of = [&](uint index) {
    const uint keynr = shared->layouts.key_of(index);
    return std::string(keynr < MAX_KEY ? table->key_info[keynr].name.str : "(row id)");
  };

  std::vector<Pending_rows> pending(trees().size());

  /* The entry that a row should have. */
  const auto compare = [&](uint index, tp_bytes key, tp_bytes value) {
    expected[index]++;
    tp_entry found;
    const tp_read_request request{index, key, TP_READ_WHOLE};
    const int got = tp_read(entries, transaction, &request, &found);
    const auto row = [&] { return " of the row with key " + hex(clustered.get(), clustered_len); };
    if (got == TP_END)
      checking.report("index " + name_of(index) + " lacks the entry" + row());
    else if (got != TP_OK)
      server_error(got, thd), checking.problems++;
    else if (found.value_len != value.len || memcmp(found.value, value.data, value.len) != 0)
      checking.report("index " + name_of(index) + " has another value for the entry" + row());
  };

  const auto check_entries = [&](uint index, const Texts &texts, tp_bytes pk) {
    const auto word = [&](tp_bytes key, tp_bytes value) { compare(index, key, value); };
    if (!for_each_word(index, texts, pk, word))
      checking.report("the parser of index " + name_of(index) + " failed");
  };
  /* The words that the row has: in entries, or pending. */
  const auto check_words = [&](uint index, const uchar *of, const Pending_rows &pending_rows) {
    const tp_bytes pk{clustered.get(), clustered_len};
    const Texts texts = texts_of(*trees()[index].fulltext(), of);
    const Pending_row *const row = pending_rows.find(hit_at(pk.data, pk.len));
    if (!row) return check_entries(index, texts, pk);
    std::string wanted;
    if (!words.parse(*trees()[index].fulltext(), texts))
      return checking.report("the parser of index " + name_of(index) + " failed");
    put_pending_after(&wanted, *row, words);
    Pending_row should;
    if (!should.decode(reinterpret_cast<const uchar *>(wanted.data()), wanted.size()) ||
        compare_bytes(should.words, row->words) != 0)
      checking.report("index " + name_of(index) + " has other pending words of the row with key " +
                      hex(pk.data, pk.len));
  };
  for (uint i = 1; result == TP_OK && i < trees().size(); i++) {
    if (!trees()[i].fulltext()) continue;
    result = pending[i].read(entries, transaction, i, SIZE_MAX);
    for (const Pending_row &row : pending[i].all()) {
      uchar room[8];
      const tp_bytes pk = clustered_key_of(row.id, room);
      Texts texts;
      tp_entry found;
      const tp_read_request request{0, pk, TP_READ_NOTHING};
      if (!row.get_texts(&texts) || pk.len > trees()[0].key_max()) {
        checking.report("index " + name_of(i) + " has pending words that can't be read");
        continue;
      }
      clustered_len = pk.len;
      memcpy(clustered.get(), pk.data, pk.len);
      check_entries(i, texts, pk);
      if (row.words.len && tp_read(rows, transaction, &request, &found) != TP_OK)
        checking.report("index " + name_of(i) +
                        " has pending words without a row: " + hex(pk.data, pk.len));
    }
  }

  tp_entry at;
  if (result == TP_OK) {
    tp_reader_set_scan(rows, 0, 1);
    result = tp_first(rows, transaction, 0, &at);
  }
  while (result == TP_OK && !is_killed(&checking)) {
    expected[0]++;
    const bool fits = at.key_len <= trees()[0].key_max();
    if (fits) memcpy(clustered.get(), at.key, at.key_len);
    clustered_len = fits ? at.key_len : 0;
    if (!fits || decode_row(record, {at.value, at.value_len}, false)) {
      checking.report("a row can't be read: key " + hex(at.key, at.key_len));
    } else {
      if (table->vfield) table->update_virtual_fields(this, VCOL_UPDATE_FOR_READ);
      for (uint i = 1; i < trees().size(); i++) {
        if (trees()[i].fulltext()) {
          check_words(i, record, pending[i]);
          continue;
        }
        bool bare;
        const size_t key_len =
            trees()[i].encode(new_key.get(), record, table, clustered.get(), key_room, &bare);
        uchar *value = value_buffer.room(trees()[i].value_max(record));
        const size_t value_len =
            trees()[i].encode_value(value, record, clustered.get(), clustered_len, bare);
        compare(i, {new_key.get(), key_len}, {value, value_len});
      }
    }
    result = tp_next(rows, transaction, 0, &at);
  }

  /* Each index against the rows: an entry more than there are rows is one that no row has. */
  for (uint i = 1; result == TP_END && i < trees().size(); i++) {
    uint64 count = 0;
    tp_reader_set_scan(entries, i, 1);
    for (result = tp_first(entries, transaction, i, &at); result == TP_OK && !is_killed(&checking);
         result = tp_next(entries, transaction, i, &at)) {
      if (trees()[i].fulltext() && at.key_len && at.key[0] == Word_codec::PENDING) continue;
      count++;
      size_t len;
      const uchar *pk = trees()[i].clustered_key(at.key, at.key_len, at.value, at.value_len,
                                                 clustered.get(), &len);
      tp_entry row;
      const tp_read_request request{0, {pk, len}, TP_READ_WHOLE};
      if (pk && !pending[i].all().empty() && pending[i].find(hit_at(pk, len))) continue;
      if (!pk) {
        checking.report("index " + name_of(i) +
                        " has an entry that can't be read: " + hex(at.key, at.key_len));
      } else if (tp_read(rows, transaction, &request, &row) != TP_OK) {
        checking.report("index " + name_of(i) +
                        " has an entry without a row: " + hex(at.key, at.key_len));
      }
    }
    tp_reader_set_scan(entries, i, 0);
    if (result == TP_END && count != expected[i])
      checking.report("index " + name_of(i) + " has " + std::to_string(count) +
                      " entries, the rows have " + std::to_string(expected[i]));
  }

  table->read_set = old_read_set;
  plan_known = false;
  if (rows) tp_reader_close(rows);
  if (entries) tp_reader_close(entries);
  if (transaction) tp_transaction_free(transaction);
  if (is_killed(&checking)) return HA_ADMIN_FAILED;
  if (result != TP_END) {
    server_error(result, thd);
    return HA_ADMIN_CORRUPT;
  }
  return checking.problems ? HA_ADMIN_CORRUPT : HA_ADMIN_OK;
}
