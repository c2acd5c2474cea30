/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "fulltext_words.h"
#include "row_codec.h"
#include <algorithm>

namespace tidepool {

/* ---- parsers */

namespace {

/* The length of the character here, and whether it is of a word. What is no character separates. */
inline int character(CHARSET_INFO *cs, const uchar *from, const uchar *end, bool *is_word) {
  int type = 0;
  const int len = cs->ctype(&type, from, end);
  *is_word = (type & (_MY_U | _MY_L | _MY_NMR)) || *from == '_';
  if (len > 0) return len;
  *is_word = false;
  return len == 0 ? 1 : MY_MIN(-len, static_cast<int>(end - from));
}

/* What a plugin gets as its context. */
struct Parsing {
  const std::function<void(const Found_word &)> &take;
};

int take_word(MYSQL_FTPARSER_PARAM *param, const char *word, int len,
              MYSQL_FTPARSER_BOOLEAN_INFO *) {
  auto *const parsing = static_cast<Parsing *>(param->mysql_ftparam);
  const size_t chars = param->cs->numchars(word, word + len);
  parsing->take(
      {reinterpret_cast<const uchar *>(word), static_cast<size_t>(len), static_cast<uint>(chars)});
  return 0;
}

int parse_built_in(MYSQL_FTPARSER_PARAM *param, const char *text, int text_len) {
  const uchar *from = reinterpret_cast<const uchar *>(text);
  const uchar *const end = from + text_len;
  Found_word word;
  while (next_word(param->cs, &from, end, &word)) {
    MYSQL_FTPARSER_BOOLEAN_INFO info{FT_TOKEN_WORD, 0, 0, 0, 0, ' ', nullptr};
    const char *const at = reinterpret_cast<const char *>(word.text);
    const int len = static_cast<int>(word.len);
    if (int error = param->mysql_add_word(param, at, len, &info)) return error;
  }
  return 0;
}

} // namespace

bool next_word(CHARSET_INFO *cs, const uchar **from, const uchar *end, Found_word *word) {
  const uchar *at = *from;
  bool is_word = false;
  int len = 0;
  while (at < end) {
    len = character(cs, at, end, &is_word);
    if (is_word) break;
    at += len;
  }
  if (at >= end) {
    *from = end;
    return false;
  }
  word->text = at;
  word->chars = 0;
  do {
    word->chars++;
    at += len;
    if (at >= end) break;
    len = character(cs, at, end, &is_word);
  } while (is_word);
  word->len = at - word->text;
  *from = at;
  return true;
}

bool parse_text(const Fulltext_index &index, const uchar *text, size_t len, Wanted_words wanted,
                const std::function<void(const Found_word &)> &take) {
  if (!index.parser()) {
    const uchar *const end = text + len;
    Found_word word;
    while (next_word(index.charset(), &text, end, &word)) take(word);
    return true;
  }
  Parsing parsing{take};
  MYSQL_FTPARSER_PARAM param{};
  param.mysql_parse = parse_built_in;
  param.mysql_add_word = take_word;
  param.mysql_ftparam = &parsing;
  param.cs = index.charset();
  param.doc = reinterpret_cast<const char *>(text);
  param.length = static_cast<int>(len);
  param.mode =
      wanted == Wanted_words::ALL ? MYSQL_FTPARSER_WITH_STOPWORDS : MYSQL_FTPARSER_SIMPLE_MODE;
  const st_mysql_ftparser *const parser = index.parser();
  if (parser->init && parser->init(&param)) return false;
  const bool failed = parser->parse(&param) != 0;
  if (parser->deinit) parser->deinit(&param);
  return !failed;
}

int parser_failed() {
  const std::string text = "a parser plugin of a FULLTEXT index has failed";
  tp_set_last_error(text.data(), text.size());
  return TP_OTHER;
}

/* ---- the words of a row */

int Row_words::compare(const Occurrence &a, const Occurrence &b) const {
  if (a.head != b.head) return a.head < b.head ? -1 : 1;
  const uchar *const a_key = keys.data() + a.key_at, *const b_key = keys.data() + b.key_at;
  const int order = memcmp(a_key, b_key, MY_MIN(a.key_len, b.key_len));
  if (order) return order;
  return a.key_len < b.key_len ? -1 : a.key_len > b.key_len;
}

void Row_words::add(const Fulltext_index &index, const Found_word &word, uint position) {
  if (!index.fits(word.chars, word.len)) return;
  const size_t room = index.word_key_max();
  if (keys.size() < keys_len + room) keys.resize(2 * keys.size() + room);
  uchar *const key = keys.data() + keys_len;
  const size_t len =
      index.codec().encode(key, word.text, word.len, scratch.data(), scratch.size()) - key;
  if (!keeps_all && !index.takes(word.chars, key, len)) return;
  uchar first[8] = {};
  memcpy(first, key, MY_MIN(len, sizeof first));
  occurrences.push_back(
      {mi_uint8korr(first), static_cast<uint32>(keys_len), static_cast<uint32>(len), position});
  keys_len += len;
}

Texts texts_of(const Fulltext_index &index, const uchar *record) {
  static const uchar empty = 0;
  Texts texts;
  texts.reserve(index.columns().size());
  for (const Column &column : index.columns()) {
    tp_bytes text{nullptr, 0};
    if (!column.is_null(record)) {
      text.data = column.text(record, &text.len);
      if (!text.len) text.data = &empty;
    }
    texts.push_back(text);
  }
  return texts;
}

bool Row_words::parse(const Fulltext_index &index, const Texts &texts) {
  keys_len = 0;
  occurrences.clear();
  groups.clear();
  if (scratch.size() < index.scratch_size()) scratch.resize(index.scratch_size());
  uint position = 0;
  bool good = true;
  for (const tp_bytes &text : texts) {
    if (!text.data) continue;
    const auto take = [&](const Found_word &word) { add(index, word, position++); };
    good = parse_text(index, text.data, text.len,
                      keeps_all ? Wanted_words::ALL : Wanted_words::INDEXED, take) &&
           good;
    position += Fulltext_index::COLUMN_GAP;
  }
  const auto is_before = [this](const Occurrence &a, const Occurrence &b) {
    const int order = compare(a, b);
    return order ? order < 0 : a.position < b.position;
  };
  std::sort(occurrences.begin(), occurrences.end(), is_before);
  for (uint32 i = 0; i < occurrences.size(); i++) {
    if (i > 0 && compare(occurrences[i - 1], occurrences[i]) == 0)
      groups.back().count++;
    else
      groups.push_back({i, 1});
  }
  return good;
}

int compare_bytes(tp_bytes a, tp_bytes b) {
  const int order = memcmp(a.data, b.data, MY_MIN(a.len, b.len));
  if (order) return order;
  return a.len < b.len ? -1 : a.len > b.len;
}

size_t Row_words::lower_bound(tp_bytes wanted) const {
  size_t low = 0, high = size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (compare_bytes(key(middle), wanted) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

size_t Row_words::find(tp_bytes wanted) const {
  const size_t at = lower_bound(wanted);
  return at < size() && compare_bytes(key(at), wanted) == 0 ? at : size();
}

size_t Row_words::put_value(size_t word, uchar *to) const {
  uchar *const start = to;
  to = put_length(to, count(word));
  uchar *const limit = to + Fulltext_index::POSITIONS_MAX;
  uint before = 0;
  for (uint i = 0; i < count(word); i++) {
    uchar step[8];
    const size_t len = put_length(step, position(word, i) - before) - step;
    if (to + len > limit) break;
    memcpy(to, step, len);
    to += len;
    before = position(word, i);
  }
  return to - start;
}

uint word_count(const uchar *value, size_t len) {
  size_t count;
  return get_length(value, value + len, &count) ? static_cast<uint>(count) : 0;
}

bool Word_value::read(const uchar *value, size_t len) {
  const uchar *const end = value + len;
  size_t number;
  positions.clear();
  if (!(value = get_length(value, end, &number)) || number == 0) return false;
  count = static_cast<uint>(number);
  for (uint position = 0; value < end;) {
    if (!(value = get_length(value, end, &number))) return false;
    position += static_cast<uint>(number);
    positions.push_back(position);
  }
  return positions.size() <= count;
}

} // namespace tidepool
