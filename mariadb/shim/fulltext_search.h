/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  A search in a FULLTEXT index: from a query to the clustered keys of the rows that match, with
  their relevance.

  Rows with pending words (fulltext_pending.h) are few: of a list of rows that was read from entries
  they are taken out, and put in where their pending words have the word.

  The entries of a word come in the order of the clustered keys, so lists of rows are merged. Where
  few rows are left, a frequent word is looked up for each of them instead of being read as a whole.

  Relevance is InnoDB's: the sum over the words found of their frequency in the row × idf², with
  idf = log10(rows of the table / rows with the word); > and < add and subtract 1. So a statement
  that compares relevance means the same with both engines.
*/
#ifndef TIDEPOOL_FULLTEXT_SEARCH_H
#define TIDEPOOL_FULLTEXT_SEARCH_H

#include "bridge.h"
#include "fulltext_memory.h"
#include "fulltext_query.h"
#include <memory>

namespace tidepool {

/* A row found. */
struct Hit {
  uint64 head;     /* the first bytes of its clustered key, for comparisons */
  const uchar *pk; /* the whole of it, if that is longer; in an Arena */
  uint32 pk_len;
  float rank;
};
using Hits = std::vector<Hit, Search_allocator<Hit>>; /* in the order of the clustered keys */

/* In place of 0, which means that a row does not match. */
constexpr float LEAST_RELEVANCE = 1e-6F;

int compare_hits(const Hit &a, const Hit &b);
/* The hit with this clustered key; nullptr: there is none. */
const Hit *find_hit(const Hits &hits, const uchar *pk, size_t len);
/* The clustered key: in `room`, of 8 bytes, if the hit has no pointer to it. */
tp_bytes clustered_key_of(const Hit &hit, uchar *room);

/* A hit that points to the clustered key itself. */
Hit hit_at(const uchar *pk, size_t len);

/* Bytes that stay where they are until all go. */
class Arena {
public:
  const uchar *keep(const uchar *bytes, size_t len);

private:
  using Block = std::vector<uchar, Search_allocator<uchar>>;
  std::vector<Block> blocks;
  size_t used = 0, room = 0;
};

/* A hit that points to a copy of the clustered key. */
Hit hit_in(Arena *arena, const uchar *pk, size_t len, float rank);

class Pending_rows;
struct Pending_row;

class Fulltext_search {
public:
  /* Gives the words of a row of the index's table, also those that are not indexed. A TP_* code. */
  using Row_reader = std::function<int(tp_bytes clustered, Row_words *words)>;

  struct Source {
    tp_table *table;
    tp_reader *reader;
    tp_transaction *transaction;
    uint tree;
    const Pending_rows *pending; /* read before anything else, by the same view */
  };

  Fulltext_search(const Source &source, const Fulltext_index &index, THD *thd, Row_reader read_row)
      : from(source), index(index), thd(thd), read_row(std::move(read_row)),
        rows(tp_table_rows(source.table)) {}

  /* A TP_* code. The hits point into `arena`. */
  int run(const Query_term &root, Arena *arena, Hits *hits);

private:
  /* A list of rows with one word: what `rank` has is how often. */
  struct Postings {
    Hits hits;
    /* Of the entries, if they are asked for. */
    using Value = std::pair<const uchar *, uint32>;
    std::vector<Value, Search_allocator<Value>> values;
    double rows_with = 0;
  };
  enum Keep { COUNTS, VALUES };

  int find(const Query_term &term, const Hits *only, Hits *hits);
  int find_group(const Query_term &group, const Hits *only, Hits *hits);
  int find_words(const Query_term &term, const Hits *only, Hits *hits);
  int find_phrase(const Query_term &phrase, const Hits *only, Hits *hits);
  int read_postings(const std::string &key, const Hits *only, Keep keep, Postings *to);
  int look_up_postings(const std::string &key, const Hits &only, Keep keep, Postings *to);
  enum Wanted_key { WORD, BEGINNING };
  int apply_pending(const std::string &key, Wanted_key wanted, Postings *to);
  int scan_entries(const std::string &prefix, const std::function<void(const tp_entry &)> &take);
  uint64 estimate(const std::string &prefix) const;
  uint64 estimate(const Query_term &term) const;
  double weight(double rows_with) const;
  Hit hit_of(const uchar *pk, size_t len, float rank) { return hit_in(arena, pk, len, rank); }
  int has_phrase(const Query_term &phrase, const Hit &hit, const std::vector<Word_value> &values,
                 bool *has);

  const Source from;
  const Fulltext_index &index;
  THD *const thd;
  const Row_reader read_row;
  const uint64 rows;
  Arena *arena = nullptr;
};

/* The words of a row of the table, with those that are not indexed and without them. */
struct Words_of_row {
  const Row_words &all, &indexed;
};

/* Whether a row matches a query. */
bool matches(const Query_term &term, const Words_of_row &words);

} // namespace tidepool

#endif
