/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Words of rows in FULLTEXT indexes: written as a pending row, or as entries (fulltext_pending.h).

  Words are written as entries where an update changes few, where the pending row would be too long,
  and where too many rows are pending. That needs a tree that has no pending row of the row now. If
  it has no trace of one, in no version, that is sure without a lock. If there is a trace, the key
  of the pending row is written first, so that a merge of it is over, or passes over it.
*/
#include "engine.h"
#include "errors.h"
#include "foreign_key_index.h"
#include "fulltext_merge.h"
#include "fulltext_pending.h"
#include "ha_tidepool.h"

using namespace tidepool;

namespace {

/* Words that are cheaper to write as entries than a pending row is, and its merge. */
constexpr size_t FEW_WORDS = 4;

size_t put_key(uchar *to, tp_bytes word, tp_bytes pk) {
  memcpy(to, word.data, word.len);
  memcpy(to + word.len, pk.data, pk.len);
  return word.len + pk.len;
}

/* Calls `take` with each word that is in one of them: its place in the first, in the second; the
   size of them where it is not there. Ends with the first code but TP_OK. */
template <typename Take>
int for_each_of_both(const Row_words &first, const Row_words &second, Take take) {
  for (size_t a = 0, b = 0; a < first.size() || b < second.size();) {
    const int order = a == first.size()    ? 1
                      : b == second.size() ? -1
                                           : compare_bytes(first.key(a), second.key(b));
    const int result = take(order <= 0 ? a : first.size(), order >= 0 ? b : second.size());
    if (result != TP_OK) return result;
    a += order <= 0;
    b += order >= 0;
  }
  return TP_OK;
}

bool has_same_value(const Row_words &first, size_t a, const Row_words &second, size_t b) {
  if (first.count(a) != second.count(b)) return false;
  for (uint i = 0; i < first.count(a); i++)
    if (first.position(a, i) != second.position(b, i)) return false;
  return true;
}

/* Entries that one has and the other has not, or has with another value. */
size_t count_differences(const Row_words &first, const Row_words &second) {
  size_t count = 0;
  for_each_of_both(first, second, [&](size_t a, size_t b) -> int {
    count += a == first.size() || b == second.size() || !has_same_value(first, a, second, b);
    return TP_OK;
  });
  return count;
}

size_t total_length(const Texts &texts) {
  size_t len = 0;
  for (const tp_bytes &text : texts) len += text.len;
  return len;
}

tp_bytes bytes_of(const std::string &text) {
  return {reinterpret_cast<const uchar *>(text.data()), text.size()};
}

} // namespace

bool ha_tidepool::parse_words(uint tree, const uchar *record, Row_words *to) {
  return to->parse(*trees()[tree].fulltext(), record);
}

bool ha_tidepool::for_each_word(uint tree, const Texts &texts, tp_bytes pk,
                                const Entry_taker &take) {
  if (!words.parse(*trees()[tree].fulltext(), texts)) return false;
  uchar value[Fulltext_index::VALUE_MAX];
  for (size_t i = 0; i < words.size(); i++)
    take({new_key.get(), put_key(new_key.get(), words.key(i), pk)},
         {value, words.put_value(i, value)});
  return true;
}

int ha_tidepool::load_words(uint tree, const uchar *record) {
  int result = TP_OK;
  const auto add = [&](tp_bytes key, tp_bytes value) {
    if (result == TP_OK) result = tp_load_add(load, tree, key, value);
  };
  const Texts texts = texts_of(*trees()[tree].fulltext(), record);
  if (!for_each_word(tree, texts, {clustered.get(), clustered_len}, add))
    return fail(parser_failed());
  return fail(result);
}

int ha_tidepool::change_words(uint tree, tp_bytes pk, const uchar *before, const uchar *after) {
  const Fulltext_index &index = *trees()[tree].fulltext();
  const Texts old_texts = before ? texts_of(index, before) : Texts();
  if (!words.parse(index, after ? texts_of(index, after) : Texts())) return parser_failed();
  /* A row that comes without words has none: it is not there yet. */
  if (!before && words.size() == 0) return TP_OK;
  bool is_pending = total_length(old_texts) < Pending_row::LENGTH_MAX;
  /* A word whose entry has too long a key is refused now: each merge would fail of it. */
  if (pk.len + index.word_key_max() > tp_table_key_len_max(shared->table)) is_pending = false;
  if (before && after) {
    if (!old_words.parse(index, old_texts)) return parser_failed();
    const size_t differ = count_differences(old_words, words);
    if (differ == 0) return TP_OK;
    is_pending = is_pending && differ > FEW_WORDS;
  }
  if (is_pending && (is_pending = may_be_pending(shared, tree))) {
    put_pending(&pending_value, before ? &old_texts : nullptr, &words);
    is_pending = pending_value.size() <= pending_max();
  }
  if (is_pending) return make_pending({tree, pk});
  if ((!before || !after) && !old_words.parse(index, old_texts)) return parser_failed();
  return make_entries({tree, pk});
}

size_t ha_tidepool::pending_max() const {
  return MY_MIN(Pending_row::LENGTH_MAX, tp_table_value_len_inline_max(shared->table));
}

/* The row's lock is held, and says who may write. So what matters of a pending row is what it is
   now, not what a snapshot sees: it may have been merged since. */
int ha_tidepool::make_pending(const Words_of &row) {
  const Referential_scope as_it_is_now(session);
  const int result = insert_pending(row);
  return result == TP_DUPLICATE ? change_pending(row) : result;
}

/* Whether the row has a pending row in any version. Its key is the only one from it up to it with a
   zero behind. */
int ha_tidepool::find_trace(const Words_of &row, bool *has_trace) {
  uchar *const key = new_key.get();
  const size_t len = put_pending_key(key, row.pk);
  key[len] = 0;
  const tp_key_range only{{key, len}, {key, len + 1}};
  uint64_t entries = 0;
  const int result = tp_count_traces(shared->table, row.tree, &only, 1, &entries);
  *has_trace = entries != 0;
  return result;
}

/* From `old_words` to `words`. */
int ha_tidepool::make_entries(const Words_of &row) {
  bool has_trace;
  if (int result = find_trace(row, &has_trace)) return result;
  if (likely(!has_trace)) return change_entries(row);
  const Referential_scope as_it_is_now(session);
  put_pending(&pending_value, nullptr, nullptr);
  int result = insert_pending(row);
  if (result == TP_DUPLICATE) return change_pending(row);
  if (result == TP_OK) result = delete_pending(row);
  return result == TP_OK ? change_entries(row) : result;
}

/* Inserts `pending_value`. If there is a pending row, it is locked: TP_DUPLICATE. */
int ha_tidepool::insert_pending(const Words_of &row) {
  const tp_bytes key{new_key.get(), put_pending_key(new_key.get(), row.pk)};
  const int result = wait_past_merge(shared, session, [&] {
    return tp_insert(session->transaction, shared->table, row.tree, key, bytes_of(pending_value),
                     TP_LOCK_EXCLUSIVE);
  });
  if (result == TP_OK) ask_for_merge(shared);
  return result;
}

int ha_tidepool::delete_pending(const Words_of &row) {
  const tp_bytes key{new_key.get(), put_pending_key(new_key.get(), row.pk)};
  return tp_delete(session->transaction, shared->table, row.tree, key);
}

/* The row has a pending row, which insert_pending() has locked: it gets `words`. */
int ha_tidepool::change_pending(const Words_of &row) {
  const tp_bytes found = tp_duplicate_value(session->transaction);
  const std::string earlier(reinterpret_cast<const char *>(found.data), found.len);
  Pending_row pending;
  if (!pending.decode(bytes_of(earlier).data, earlier.size())) return TP_CORRUPT;
  if (!pending.has_entries() && words.size() == 0) return delete_pending(row);
  put_pending_after(&pending_value, pending, words);
  if (pending_value.size() <= pending_max()) {
    const tp_bytes key{new_key.get(), put_pending_key(new_key.get(), row.pk)};
    return tp_update(session->transaction, shared->table, row.tree, key, bytes_of(pending_value));
  }
  Texts texts;
  if (!pending.get_texts(&texts)) return TP_CORRUPT;
  if (!old_words.parse(*trees()[row.tree].fulltext(), texts)) return parser_failed();
  const int result = delete_pending(row);
  return result == TP_OK ? change_entries(row) : result;
}

/* Of `old_words` entries go, of `words` they come. */
int ha_tidepool::change_entries(const Words_of &row) {
  tp_transaction *const transaction = session->transaction;
  const auto write = [&](size_t old, size_t now) -> int {
    if (now == words.size()) {
      const size_t len = put_key(old_key.get(), old_words.key(old), row.pk);
      return tp_delete(transaction, shared->table, row.tree, {old_key.get(), len});
    }
    uchar room[Fulltext_index::VALUE_MAX];
    const tp_bytes key{new_key.get(), put_key(new_key.get(), words.key(now), row.pk)};
    const tp_bytes value{room, words.put_value(now, room)};
    if (old == old_words.size()) {
      const int result =
          tp_insert(transaction, shared->table, row.tree, key, value, TP_LOCK_SHARED);
      return result == TP_DUPLICATE ? TP_CORRUPT : result;
    }
    if (has_same_value(old_words, old, words, now)) return TP_OK;
    return tp_update(transaction, shared->table, row.tree, key, value);
  };
  return for_each_of_both(old_words, words, write);
}
