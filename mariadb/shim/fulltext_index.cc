/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "fulltext_index.h"
#include "row_codec.h"

namespace tidepool {

const char *const built_in_stopwords[] = {
    "a",    "about", "an",  "are",  "as",   "at",    "be",  "by",   "com",  "de",  "en",   "for",
    "from", "how",   "i",   "in",   "is",   "it",    "la",  "of",   "on",   "or",  "that", "the",
    "this", "to",    "was", "what", "when", "where", "who", "will", "with", "und", "www",  nullptr};

/* ---- words in keys */

namespace {
constexpr uchar END_OF_WORD = 0x00, PAGED = 0xC0, PLAIN = 0xFF;
/* Begins words whose weights are any bytes. */
constexpr uchar WORD = 0x01;
constexpr uint SINGLE_MAX = 0xBF;
/* Where most letters have their weights: in Unicode's collations of 4.0.0 and 5.2.0, and of
   14.0.0. */
constexpr uint FIRST_PAGES = 0x0E00, SECOND_PAGES = 0x1C00, PAGES_LEN = 0x400, PAGE_LEN = 0x80;
} // namespace

uchar *Word_codec::put_pairs(uchar *to, const uchar *text, size_t len, uchar *scratch,
                             size_t scratch_len) const {
  const uchar *const end = scratch + string.pairs(scratch, scratch_len, text, len);
  for (const uchar *from = scratch; from + 1 < end; from += 2) {
    const uint weight = mi_uint2korr(from);
    uint page = 0;
    if (weight > 0 && weight <= SINGLE_MAX) {
      *to++ = static_cast<uchar>(weight);
      continue;
    }
    if (weight - FIRST_PAGES < PAGES_LEN) {
      page = (weight - FIRST_PAGES) / PAGE_LEN;
    } else if (weight - SECOND_PAGES < PAGES_LEN) {
      page = PAGES_LEN / PAGE_LEN + (weight - SECOND_PAGES) / PAGE_LEN;
    } else {
      *to++ = PLAIN;
      *to++ = from[0];
      *to++ = from[1];
      continue;
    }
    *to++ = static_cast<uchar>(PAGED + page);
    *to++ = static_cast<uchar>(0x80 | weight % PAGE_LEN);
  }
  return to;
}

uchar *Word_codec::encode(uchar *to, const uchar *text, size_t len, uchar *scratch,
                          size_t scratch_len) const {
  if (!is_short) {
    *to++ = WORD;
    return string.encode(to, text, len, scratch, scratch_len);
  }
  to = put_pairs(to, text, len, scratch, scratch_len);
  *to++ = END_OF_WORD;
  return to;
}

uchar *Word_codec::encode_beginning(uchar *to, const uchar *text, size_t len, uchar *scratch,
                                    size_t scratch_len) const {
  if (is_short) return put_pairs(to, text, len, scratch, scratch_len);
  *to++ = WORD;
  return string.encode_beginning(to, text, len, scratch, scratch_len);
}

const uchar *Word_codec::skip(const uchar *from, const uchar *end) const {
  if (!is_short) return from < end && *from == WORD ? string.skip(from + 1, end, 0) : nullptr;
  while (from < end) {
    const uchar first = *from;
    const ptrdiff_t len = first == PLAIN ? 3 : first >= PAGED ? 2 : 1;
    if (end - from < len) return nullptr;
    from += len;
    if (first == END_OF_WORD) return from;
  }
  return nullptr;
}

/* ---- settings */

void Fulltext_settings::put(std::string *to) const {
  uchar head[5];
  int2store(head, chars_min);
  int2store(head + 2, chars_max);
  head[4] = stopwords;
  to->append(reinterpret_cast<char *>(head), sizeof head);
  if (stopwords != LISTED_STOPWORDS) return;
  uchar count[4];
  int4store(count, static_cast<uint32>(listed.size()));
  to->append(reinterpret_cast<char *>(count), sizeof count);
  for (const std::string &word : listed) {
    uchar len[2];
    int2store(len, static_cast<uint16>(word.size()));
    to->append(reinterpret_cast<char *>(len), sizeof len);
    *to += word;
  }
}

bool Fulltext_settings::get(const uchar **from, const uchar *end) {
  if (end - *from < 5) return false;
  chars_min = uint2korr(*from);
  chars_max = uint2korr(*from + 2);
  const uchar kind = (*from)[4];
  *from += 5;
  listed.clear();
  if (kind > LISTED_STOPWORDS) return false;
  stopwords = static_cast<Stopwords>(kind);
  if (stopwords != LISTED_STOPWORDS) return true;
  if (end - *from < 4) return false;
  const uint32 count = uint4korr(*from);
  *from += 4;
  for (uint32 i = 0; i < count; i++) {
    if (end - *from < 2) return false;
    const size_t len = uint2korr(*from);
    *from += 2;
    if (static_cast<size_t>(end - *from) < len) return false;
    listed.emplace_back(reinterpret_cast<const char *>(*from), len);
    *from += len;
  }
  return true;
}

Fulltext_index::Fulltext_index(const TABLE_SHARE *share, const KEY *key)
    : cs(share->field[key->key_part[0].field->field_index]->charset()), words(cs) {
  for (uint i = 0; i < key->user_defined_key_parts; i++)
    texts.emplace_back(share->field[key->key_part[i].field->field_index], share);
  if ((key->flags & HA_USES_PARSER) && key->parser)
    plugin = static_cast<const st_mysql_ftparser *>(plugin_decl(key->parser)->info);
  set(made_with);
}

void Fulltext_index::set(const Fulltext_settings &settings) {
  made_with = settings;
  left_out.clear();
  may_be_left_out.reset();
  std::vector<uchar> key(word_key_max()), scratch(scratch_size());
  const auto leave_out = [&](const char *word, size_t len) {
    if (len > CHARS_MAX * cs->mbmaxlen) return;
    const uchar *const end = words.encode(key.data(), reinterpret_cast<const uchar *>(word), len,
                                          scratch.data(), scratch.size());
    left_out.emplace(reinterpret_cast<char *>(key.data()), end - key.data());
    may_be_left_out[filter_of(key.data(), end - key.data())] = true;
  };
  if (settings.stopwords == Fulltext_settings::BUILT_IN_STOPWORDS) {
    for (const char *const *word = built_in_stopwords; *word; word++) {
      char text[64];
      uint errors;
      leave_out(text, copy_and_convert(text, sizeof text, cs, *word, strlen(*word),
                                       &my_charset_latin1, &errors));
    }
  }
  for (const std::string &word : settings.listed) leave_out(word.data(), word.size());
}

} // namespace tidepool
