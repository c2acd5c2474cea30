/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "fulltext_query.h"
#include <algorithm>

namespace tidepool {

namespace {

constexpr uint GROUPS_DEEP_MAX = 32;
constexpr uint DISTANCE_MAX = Fulltext_index::COLUMN_GAP - 1;

enum Form { WHOLE, BEGINS };

/* The key of a word of the query, which fits. */
std::string key_of(const Fulltext_index &index, const uchar *word, size_t len, Form form) {
  std::vector<uchar> room(index.word_key_max()), scratch(index.scratch_size());
  const Word_codec &codec = index.codec();
  uchar *const to = room.data();
  const uchar *const end =
      form == BEGINS ? codec.encode_beginning(to, word, len, scratch.data(), scratch.size())
                     : codec.encode(to, word, len, scratch.data(), scratch.size());
  return {reinterpret_cast<char *>(room.data()), static_cast<size_t>(end - room.data())};
}

Query_term word_term(const Fulltext_index &index, const Found_word &word) {
  Query_term term;
  term.kind = Query_term::WORD;
  if (!index.fits(word.chars, word.len)) {
    term.is_indexed = false;
    return term;
  }
  term.key = key_of(index, word.text, word.len, WHOLE);
  const auto *const key = reinterpret_cast<const uchar *>(term.key.data());
  term.is_indexed = index.takes(word.chars, key, term.key.size());
  return term;
}

/* Operators before a term. */
struct Operators {
  Query_term::Demand demand = Query_term::OPTIONAL;
  int adjustment = 0;
  void give(Query_term *term) const {
    term->demand = demand;
    term->adjustment = adjustment;
  }
};

/* Makes the tree, of what parsers find one after the other. */
class Builder {
public:
  Builder(const Fulltext_index &index, Query_term *root) : index(index), open{root} {}

  /* A word that the index leaves out, and no phrase has, asks for nothing. */
  void word(const Found_word &found, const Operators &operators, bool begins) {
    Query_term term = word_term(index, found);
    if (in_phrase) {
      term.offset = phrase_offset++;
      phrase.terms.push_back(std::move(term));
      return;
    }
    if (begins) {
      if (!index.fits(found.chars, found.len)) return;
      term.kind = Query_term::BEGINNING;
      term.key = key_of(index, found.text, found.len, BEGINS);
    } else if (!term.is_indexed) {
      return;
    }
    operators.give(&term);
    open.back()->terms.push_back(std::move(term));
  }
  bool open_group(const Operators &operators) {
    if (open.size() >= GROUPS_DEEP_MAX) return false;
    open.back()->terms.emplace_back();
    operators.give(&open.back()->terms.back());
    open.push_back(&open.back()->terms.back());
    return true;
  }
  void close_group() {
    if (open.size() > 1) open.pop_back();
  }
  void open_phrase(const Operators &operators) {
    phrase = {};
    phrase.kind = Query_term::PHRASE;
    operators.give(&phrase);
    phrase_offset = 0;
    in_phrase = true;
  }
  void close_phrase(uint distance) {
    in_phrase = false;
    phrase.distance = distance;
    const auto is_indexed = [](const Query_term &term) { return term.is_indexed; };
    /* Of words alone that no entry is of, nothing can be found. */
    if (!std::any_of(phrase.terms.begin(), phrase.terms.end(), is_indexed)) return;
    open.back()->terms.push_back(std::move(phrase));
  }
  bool is_in_phrase() const { return in_phrase; }

private:
  const Fulltext_index &index;
  std::vector<Query_term *> open;
  Query_term phrase;
  bool in_phrase = false;
  uint phrase_offset = 0;
};

/* The built-in parser of queries. */
class Query_parser {
public:
  Query_parser(const Fulltext_index &index, const uchar *from, const uchar *end)
      : index(index), at(from), end(end) {}

  /* Of a natural language query, where quotes alone have a meaning. */
  void parse_natural(Builder *builder, Query_term *root) {
    while (at < end) {
      const uchar *const quote = std::find(at, end, static_cast<uchar>('"'));
      add_words(index, at, quote - at, root);
      at = quote;
      if (at == end) return;
      at++;
      parse_phrase(builder, {});
    }
  }

  const char *parse(Builder *builder) {
    Operators operators;
    bool may_begin = true; /* a word, and so operators before it */
    while (at < end) {
      const uchar here = *at;
      if (here == '"') {
        at++;
        parse_phrase(builder, operators);
        operators = {};
        may_begin = true;
      } else if (here == '(') {
        at++;
        if (!builder->open_group(operators)) return "its groups are too deep";
        operators = {};
        may_begin = true;
      } else if (here == ')') {
        at++;
        builder->close_group();
        may_begin = true;
      } else if (may_begin && take_operator(here, &operators)) {
        at++;
      } else if (is_word_here()) {
        parse_word(builder, operators);
        operators = {};
        may_begin = false;
      } else {
        if (here == ' ' || here == '\t' || here == '\n' || here == '\r') {
          may_begin = true;
          operators = {};
        }
        skip_character();
      }
    }
    return nullptr;
  }

private:
  static bool take_operator(uchar here, Operators *to) {
    switch (here) {
      case '+': to->demand = Query_term::REQUIRED; return true;
      case '-': to->demand = Query_term::EXCLUDED; return true;
      case '~': to->demand = Query_term::LOWERING; return true;
      case '>': to->adjustment++; return true;
      case '<': to->adjustment--; return true;
      default: return false;
    }
  }

  bool is_word_here() const {
    const uchar *from = at;
    Found_word word;
    return next_word(index.charset(), &from, end, &word) && word.text == at;
  }

  void skip_character() {
    const int len = index.charset()->charlen(at, end);
    at += len > 0 ? len : 1;
    if (at > end) at = end;
  }

  void parse_word(Builder *builder, const Operators &operators) {
    Found_word word;
    next_word(index.charset(), &at, end, &word);
    const bool begins = at < end && *at == '*';
    if (begins) at++;
    builder->word(word, operators, begins);
  }

  void parse_phrase(Builder *builder, const Operators &operators) {
    const uchar *const close = std::find(at, end, static_cast<uchar>('"'));
    builder->open_phrase(operators);
    Found_word word;
    const uchar *from = at;
    while (next_word(index.charset(), &from, close, &word)) builder->word(word, {}, false);
    at = close < end ? close + 1 : end;
    builder->close_phrase(parse_distance());
  }

  /* @ and a number behind a phrase. */
  uint parse_distance() {
    const uchar *digit = at;
    while (digit < end && *digit == ' ') digit++;
    if (digit == end || *digit != '@') return 0;
    uint distance = 0;
    for (digit++; digit < end && my_isdigit(&my_charset_latin1, *digit); digit++)
      distance = MY_MIN(distance * 10 + (*digit - '0'), DISTANCE_MAX);
    at = digit;
    return distance;
  }

  const Fulltext_index &index;
  const uchar *at;
  const uchar *const end;
};

/* ---- boolean mode of parser plugins, which give words, parentheses and quotes one by one */

struct Plugin_parsing {
  const Fulltext_index &index;
  Builder *builder;
  bool is_too_deep = false;
};

Operators operators_of(const MYSQL_FTPARSER_BOOLEAN_INFO &info) {
  Operators operators;
  if (info.yesno > 0) operators.demand = Query_term::REQUIRED;
  if (info.yesno < 0) operators.demand = Query_term::EXCLUDED;
  if (info.yesno == 0 && info.wasign) operators.demand = Query_term::LOWERING;
  operators.adjustment = info.weight_adjust;
  return operators;
}

int take_token(MYSQL_FTPARSER_PARAM *param, const char *word, int len,
               MYSQL_FTPARSER_BOOLEAN_INFO *info) {
  auto *const parsing = static_cast<Plugin_parsing *>(param->mysql_ftparam);
  Builder *const builder = parsing->builder;
  switch (info->type) {
    case FT_TOKEN_WORD:
    case FT_TOKEN_STOPWORD: {
      const auto chars = static_cast<uint>(param->cs->numchars(word, word + len));
      const Found_word found{reinterpret_cast<const uchar *>(word), static_cast<size_t>(len),
                             chars};
      builder->word(found, operators_of(*info), info->trunc);
      break;
    }
    case FT_TOKEN_LEFT_PAREN:
      if (info->quot)
        builder->open_phrase(operators_of(*info));
      else if (!builder->open_group(operators_of(*info)))
        parsing->is_too_deep = true;
      break;
    case FT_TOKEN_RIGHT_PAREN:
      if (builder->is_in_phrase())
        builder->close_phrase(0);
      else
        builder->close_group();
      break;
    default: break;
  }
  return parsing->is_too_deep;
}

int parse_boolean_built_in(MYSQL_FTPARSER_PARAM *param, const char *text, int len) {
  auto *const parsing = static_cast<Plugin_parsing *>(param->mysql_ftparam);
  const auto *const from = reinterpret_cast<const uchar *>(text);
  return Query_parser(parsing->index, from, from + len).parse(parsing->builder) != nullptr;
}

const char *parse_by_plugin(const Fulltext_index &index, const String &query, Builder *builder) {
  Plugin_parsing parsing{index, builder};
  MYSQL_FTPARSER_PARAM param{};
  param.mysql_parse = parse_boolean_built_in;
  param.mysql_add_word = take_token;
  param.mysql_ftparam = &parsing;
  param.cs = index.charset();
  param.doc = query.ptr();
  param.length = static_cast<int>(query.length());
  param.mode = MYSQL_FTPARSER_FULL_BOOLEAN_INFO;
  const st_mysql_ftparser *const parser = index.parser();
  if (parser->init && parser->init(&param)) return "the parser plugin failed";
  const bool failed = parser->parse(&param) != 0;
  if (parser->deinit) parser->deinit(&param);
  if (parsing.is_too_deep) return "its groups are too deep";
  return failed ? "the parser plugin failed" : nullptr;
}

} // namespace

bool add_words(const Fulltext_index &index, const uchar *text, size_t len, Query_term *group) {
  const auto take = [&](const Found_word &word) {
    Query_term term = word_term(index, word);
    if (!term.is_indexed) return;
    for (const Query_term &other : group->terms)
      if (other.key == term.key) return;
    group->terms.push_back(std::move(term));
  };
  return parse_text(index, text, len, Wanted_words::INDEXED, take);
}

const char *parse_query(const Fulltext_index &index, const String &query, bool boolean_mode,
                        Query_term *root) {
  const auto *const text = reinterpret_cast<const uchar *>(query.ptr());
  Builder builder(index, root);
  Query_parser built_in(index, text, text + query.length());
  if (index.parser()) {
    if (boolean_mode) return parse_by_plugin(index, query, &builder);
    return add_words(index, text, query.length(), root) ? nullptr : "the parser plugin failed";
  }
  if (boolean_mode) return built_in.parse(&builder);
  built_in.parse_natural(&builder, root);
  return nullptr;
}

} // namespace tidepool
