/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  FULLTEXT indexes: a secondary tree with one entry for each distinct word of a row. Rows written
  of late may have one entry with all of their words instead (fulltext_pending.h).

      tree key   01, unless the collation's weights are two bytes each
                 ‖ the word
                 ‖ the clustered key
      value      how often the row has the word, as a length (row_codec.h)
                 ‖ its positions, ascending: each as the length of the step from the one before;
                   as many as fit into POSITIONS_MAX bytes

  A word is written as a string of the column's collation (collation.h). But where that is weights
  of two bytes each, only equality and beginnings matter here, and most take one byte or two:
      0001 … 00BF                  1 byte, the lower one
      0E00 … 11FF, 1C00 … 1FFF     C0 … CF, which of these 16 times 128; the lower 7 bits, and 80
      others                       FF, and the two bytes
      the end                      00

  Words that the collation holds for equal are one word. A position counts all words of the text,
  those that the index leaves out as well; the first of a column is COLUMN_GAP beyond the last of
  the column before.

  What counts as a word is kept with the table (Fulltext_settings): variables that change later hold
  for indexes made later.
*/
#ifndef TIDEPOOL_FULLTEXT_INDEX_H
#define TIDEPOOL_FULLTEXT_INDEX_H

#include "collation.h"
#include "column.h"
#include <bitset>
#include <mysql/plugin_ftparser.h>
#include <unordered_set>

namespace tidepool {

/* Words in keys. */
class Word_codec {
public:
  /* Begins the keys of entries that are no words' (fulltext_pending.h): none of a word does. */
  static constexpr uchar PENDING = 0xD0;
  explicit Word_codec(CHARSET_INFO *cs) : string(cs, false), is_short(string.has_pairs()) {}
  /* Longest encoding of `bytes` bytes of text, and room that encode() wants. */
  size_t encoded_max(size_t bytes) const {
    return is_short ? string.scratch_size(bytes) / 2 * 3 + 1 : 1 + string.encoded_max(bytes);
  }
  size_t scratch_size(size_t bytes) const { return string.scratch_size(bytes); }
  /* Writes the word at `to`, gives its end. */
  uchar *encode(uchar *to, const uchar *text, size_t len, uchar *scratch, size_t scratch_len) const;
  /* Begins the encoding of each word that begins so. */
  uchar *encode_beginning(uchar *to, const uchar *text, size_t len, uchar *scratch,
                          size_t scratch_len) const;
  /* The end of a word; nullptr if it has none before `end`. */
  const uchar *skip(const uchar *from, const uchar *end) const;

private:
  uchar *put_pairs(uchar *to, const uchar *text, size_t len, uchar *scratch,
                   size_t scratch_len) const;
  String_codec string;
  bool is_short;
};

/* Of an index: which words it leaves out. */
struct Fulltext_settings {
  enum Stopwords : uchar { NO_STOPWORDS, BUILT_IN_STOPWORDS, LISTED_STOPWORDS };
  uint16 chars_min = 3, chars_max = 84;
  Stopwords stopwords = BUILT_IN_STOPWORDS;
  std::vector<std::string> listed; /* in the character set of the index */

  void put(std::string *to) const;
  /* Takes one off the front; false: not understood. */
  bool get(const uchar **from, const uchar *end);
};

/* InnoDB's default list. */
extern const char *const built_in_stopwords[];

class Fulltext_index {
public:
  /* Longest word that is indexed, in characters. */
  static constexpr uint CHARS_MAX = 84;
  static constexpr size_t POSITIONS_MAX = 200;
  static constexpr uint COLUMN_GAP = 1024;
  /* Longest value of an entry. */
  static constexpr size_t VALUE_MAX = 5 + POSITIONS_MAX;

  Fulltext_index(const TABLE_SHARE *share, const KEY *key);

  void set(const Fulltext_settings &settings);
  const Fulltext_settings &settings() const { return made_with; }
  CHARSET_INFO *charset() const { return cs; }
  const Word_codec &codec() const { return words; }
  const std::vector<Column> &columns() const { return texts; }
  /* The plugin that finds the words; nullptr: the built-in parser does. */
  const st_mysql_ftparser *parser() const { return plugin; }
  size_t word_key_max() const { return words.encoded_max(CHARS_MAX * cs->mbmaxlen); }
  size_t scratch_size() const { return words.scratch_size(CHARS_MAX * cs->mbmaxlen); }

  /* Whether there is room for a word where word_key_max() and scratch_size() are: more can't be
     indexed. */
  bool fits(uint chars, size_t len) const {
    return chars <= CHARS_MAX && len <= CHARS_MAX * cs->mbmaxlen;
  }
  /* Whether a word of this length, with this key, has entries. */
  bool takes(uint chars, const uchar *key, size_t len) const {
    return chars >= made_with.chars_min && chars <= made_with.chars_max &&
           !(may_be_left_out[filter_of(key, len)] && is_left_out(key, len));
  }
  /* Whether entries of the other are entries of this one; it may leave other words out. */
  bool same(const Fulltext_index &other) const { return cs == other.cs && plugin == other.plugin; }

private:
  static constexpr uint FILTER_SIZE = 1024;
  static uint filter_of(const uchar *key, size_t len) {
    uint hash = static_cast<uint>(len);
    for (size_t i = 0; i < len && i < 6; i++) hash = hash * 31 + key[i];
    return hash % FILTER_SIZE;
  }
  bool is_left_out(const uchar *key, size_t len) const {
    return left_out.count(std::string(reinterpret_cast<const char *>(key), len)) != 0;
  }

  CHARSET_INFO *cs;
  Word_codec words;
  std::vector<Column> texts;
  const st_mysql_ftparser *plugin = nullptr;
  Fulltext_settings made_with;
  std::unordered_set<std::string> left_out; /* keys of stopwords */
  std::bitset<FILTER_SIZE> may_be_left_out;
};

} // namespace tidepool

#endif
