/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* From texts to words: those of a row, as its entries in a FULLTEXT index, and those of a query. */
#ifndef TIDEPOOL_FULLTEXT_WORDS_H
#define TIDEPOOL_FULLTEXT_WORDS_H

#include "bridge.h"
#include "fulltext_index.h"
#include <functional>

namespace tidepool {

/* A word that a parser has found, in the character set of the index. */
struct Found_word {
  const uchar *text;
  size_t len;
  uint chars;
};

/* The next word of a text, as the built-in parser sees it: letters, digits and _. Moves *from
   behind it; false: there is none. */
bool next_word(CHARSET_INFO *cs, const uchar **from, const uchar *end, Found_word *word);

/* How a text is asked for words; as the modes of parser plugins. */
enum class Wanted_words { INDEXED, ALL };

/* Gives the words of a text in their order, by the parser of the index. false: that failed. */
bool parse_text(const Fulltext_index &index, const uchar *text, size_t len, Wanted_words wanted,
                const std::function<void(const Found_word &)> &take);

/* As keys are ordered. */
int compare_bytes(tp_bytes a, tp_bytes b);

/* Notes that a parser failed, as the last error; gives the TP_* code. */
int parser_failed();

/* The texts of a row's columns, in the order of the index; one without data is NULL. */
using Texts = std::vector<tp_bytes>;
Texts texts_of(const Fulltext_index &index, const uchar *record);

/* The distinct words of one row, sorted by their keys. Made once, and used for one row after the
   other. */
class Row_words {
public:
  /* false: the parser failed. Without a text in any column there are no words. */
  bool parse(const Fulltext_index &index, const uchar *record) {
    return parse(index, texts_of(index, record));
  }
  bool parse(const Fulltext_index &index, const Texts &texts);

  size_t size() const { return groups.size(); }
  tp_bytes key(size_t word) const {
    const Occurrence &first = occurrences[groups[word].first];
    return {keys.data() + first.key_at, first.key_len};
  }
  uint count(size_t word) const { return groups[word].count; }
  uint position(size_t word, size_t nth) const {
    return occurrences[groups[word].first + nth].position;
  }
  /* The word with this key; size() if there is none. */
  size_t find(tp_bytes key) const;
  /* The word whose key this is, or the first after it. */
  size_t lower_bound(tp_bytes key) const;
  /* The value of a word's entry: `to` has room for Fulltext_index::VALUE_MAX. */
  size_t put_value(size_t word, uchar *to) const;
  /* Words of the row that are not indexed are kept, too: for phrases that have such words. */
  void keep_all(bool all) { keeps_all = all; }

private:
  struct Occurrence {
    uint64 head; /* the first bytes of the key, to compare fast */
    uint32 key_at, key_len, position;
  };
  struct Group {
    uint32 first, count;
  };
  int compare(const Occurrence &a, const Occurrence &b) const;
  void add(const Fulltext_index &index, const Found_word &word, uint position);

  std::vector<uchar> keys, scratch;
  size_t keys_len = 0;
  std::vector<Occurrence> occurrences;
  std::vector<Group> groups;
  bool keeps_all = false;
};

/* What the value of an entry says. */
class Word_value {
public:
  /* false: it can't be understood. */
  bool read(const uchar *value, size_t len);
  uint count = 0;
  /* Ascending; fewer than `count` if they did not fit. */
  std::vector<uint> positions;
};

/* How often the row has the word; 0: the value can't be understood. */
uint word_count(const uchar *value, size_t len);

} // namespace tidepool

#endif
