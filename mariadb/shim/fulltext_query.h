/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  What MATCH searches for, as a tree. Of a natural language query: a group of optional words, and of
  phrases, in quotes.

  Boolean mode: a row matches a group if it has all that is REQUIRED, nothing that is EXCLUDED, and,
  where nothing is required, something OPTIONAL. A LOWERING term lowers the relevance of rows that
  match without it.
  Operators count where a word could begin; within a word they separate, as other punctuation does.
*/
#ifndef TIDEPOOL_FULLTEXT_QUERY_H
#define TIDEPOOL_FULLTEXT_QUERY_H

#include "fulltext_words.h"

namespace tidepool {

struct Query_term {
  enum Kind : uchar { WORD, BEGINNING, PHRASE, GROUP };
  enum Demand : uchar { OPTIONAL, REQUIRED, EXCLUDED, LOWERING };
  Kind kind = GROUP;
  Demand demand = OPTIONAL;
  int adjustment = 0; /* > is 1, < is -1: added to the relevance */
  std::string key;    /* of a WORD, as entries begin; of a BEGINNING, as entries with it begin */
  uint offset = 0;    /* of a word of a phrase: how far it is behind the first one */
  bool is_indexed = true;
  /* Of a PHRASE: all words among this number of words, in any order; 0: one after the other. */
  uint distance = 0;
  std::vector<Query_term> terms; /* of a GROUP; the words of a PHRASE */
};

/* What is wrong with a query, or nullptr. */
const char *parse_query(const Fulltext_index &index, const String &query, bool boolean_mode,
                        Query_term *root);

/* A group of the words of a text, each once, as optional terms. false: the parser failed. */
bool add_words(const Fulltext_index &index, const uchar *text, size_t len, Query_term *group);

} // namespace tidepool

#endif
