/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "fulltext_pending.h"
#include "row_codec.h"
#include <algorithm>

namespace tidepool {

namespace {
constexpr uchar FIRST_KEY[] = {Word_codec::PENDING}, END_KEY[] = {Word_codec::PENDING + 1};

void put_number(std::string *to, size_t number) {
  uchar bytes[8];
  to->append(reinterpret_cast<char *>(bytes), put_length(bytes, number) - bytes);
}

void put_bytes(std::string *to, tp_bytes bytes) {
  put_number(to, bytes.len);
  to->append(reinterpret_cast<const char *>(bytes.data), bytes.len);
}

void put_words(std::string *to, const Row_words &words) {
  uchar value[Fulltext_index::VALUE_MAX];
  for (size_t i = 0; i < words.size(); i++) {
    put_bytes(to, words.key(i));
    put_bytes(to, {value, words.put_value(i, value)});
  }
}

/* Takes what is behind its length off the front. false: there is less. */
bool get_bytes(const uchar **from, const uchar *end, tp_bytes *bytes) {
  *from = get_length(*from, end, &bytes->len);
  if (!*from || static_cast<size_t>(end - *from) < bytes->len) return false;
  bytes->data = *from;
  *from += bytes->len;
  return true;
}

bool is_before(const Pending_row &row, const Hit &id) { return compare_hits(row.id, id) < 0; }
} // namespace

const tp_bytes pending_begin{FIRST_KEY, 1}, pending_end{END_KEY, 1};

size_t put_pending_key(uchar *to, tp_bytes pk) {
  to[0] = Word_codec::PENDING;
  memcpy(to + 1, pk.data, pk.len);
  return 1 + pk.len;
}

void put_pending(std::string *to, const Texts *entries_of, const Row_words *words) {
  std::string texts;
  if (entries_of) {
    for (const tp_bytes &text : *entries_of) {
      put_number(&texts, text.data ? text.len + 1 : 0);
      if (text.data) texts.append(reinterpret_cast<const char *>(text.data), text.len);
    }
  }
  to->clear();
  put_bytes(to, {reinterpret_cast<const uchar *>(texts.data()), texts.size()});
  if (words) put_words(to, *words);
}

void put_pending_after(std::string *to, const Pending_row &earlier, const Row_words &words) {
  to->clear();
  put_bytes(to, earlier.texts);
  put_words(to, words);
}

bool Pending_words::next() {
  if (at == end) return false;
  if (get_bytes(&at, end, &key) && get_bytes(&at, end, &value)) return true;
  is_bad = true;
  at = end;
  return false;
}

bool Pending_row::decode(const uchar *value, size_t len) {
  const uchar *const end = value + len;
  if (!get_bytes(&value, end, &texts)) return false;
  words = {value, static_cast<size_t>(end - value)};
  return true;
}

bool Pending_row::get_texts(Texts *to) const {
  static const uchar empty = 0;
  to->clear();
  const uchar *from = texts.data, *const end = texts.data + texts.len;
  while (from < end) {
    size_t len;
    if (!(from = get_length(from, end, &len))) return false;
    if (len == 0) {
      to->push_back({nullptr, 0});
      continue;
    }
    len--;
    if (static_cast<size_t>(end - from) < len) return false;
    to->push_back({len ? from : &empty, len});
    from += len;
  }
  return true;
}

int Pending_rows::read(tp_reader *reader, tp_transaction *transaction, uint tree, size_t max) {
  rows.clear();
  tp_reader_set_end(reader, tree, pending_end);
  tp_entry entry;
  const tp_seek_request seek{tree, pending_begin, TP_AT_OR_AFTER};
  int result = tp_seek(reader, transaction, &seek, &entry);
  while (result == TP_OK && entry.key[0] == Word_codec::PENDING) {
    Pending_row row;
    if (!row.decode(arena.keep(entry.value, entry.value_len), entry.value_len)) return TP_CORRUPT;
    row.id = hit_in(&arena, entry.key + 1, entry.key_len - 1, 0);
    rows.push_back(row);
    if (rows.size() == max) return TP_OK;
    result = tp_next(reader, transaction, tree, &entry);
  }
  return result == TP_END ? TP_OK : result;
}

const Pending_row *Pending_rows::find(const Hit &id) const {
  const auto found = std::lower_bound(rows.begin(), rows.end(), id, is_before);
  return found != rows.end() && compare_hits(found->id, id) == 0 ? &*found : nullptr;
}

} // namespace tidepool
