/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  MATCH.

  A search is made when the server begins a statement. What it finds are clustered keys; the rows
  are read as those of any secondary index are, or the server reads rows in another way and asks of
  each how relevant it is.

  A consistent read searches by the transaction's snapshot. At SERIALIZABLE a locking statement
  locks what it reads of the index, too, and the gaps. At lower levels it searches by a view of the
  statement (tp_transaction_set_searching), and locks the rows alone, each as it is by then:
  - a row that was committed since must match once more, and may match only now;
  - a row that has got another primary key since is an error, where the server reads by the search:
    the statement would miss it;
  - what an older snapshot finds besides has changed, and is an error when it is locked, as what is
    new to the snapshot is.
*/
#include "engine.h"
#include "errors.h"
#include "fulltext_merge.h"
#include "fulltext_pending.h"
#include "ha_tidepool.h"
#include "sysvars.h"
#include <algorithm>

using namespace tidepool;

namespace tidepool {

/* A search and what it has found: the server's FT_INFO. */
struct Fulltext_result {
  _ft_vft *please;
  _ft_vft_ext *could_you;
  ha_tidepool *owner;
  uint tree;
  Query_term query;
  Pending_rows pending; /* hits point into it */
  Arena arena;
  std::unique_ptr<Fulltext_result> of_snapshot; /* some point into that */
  Hits hits;
  bool is_ranked;            /* rows are given in the order of their relevance */
  std::vector<uint32> order; /* a heap of what is not yet given, then what was given */
  size_t given = 0;

  bool is_less(uint32 a, uint32 b) const {
    return hits[a].rank != hits[b].rank ? hits[a].rank < hits[b].rank : a > b;
  }
  void rewind() {
    given = 0;
    if (!is_ranked) return;
    order.resize(hits.size());
    for (uint32 i = 0; i < order.size(); i++) order[i] = i;
    const auto less = [this](uint32 a, uint32 b) { return is_less(a, b); };
    std::make_heap(order.begin(), order.end(), less);
  }
  const Hit *next() {
    if (given == hits.size()) return nullptr;
    given++;
    if (!is_ranked) return &hits[given - 1];
    const auto end = order.end() - static_cast<ptrdiff_t>(given - 1);
    std::pop_heap(order.begin(), end, [this](uint32 a, uint32 b) { return is_less(a, b); });
    return &hits[*(end - 1)];
  }
};

static float relevance_of_row(FT_INFO *info) {
  const auto *const result = reinterpret_cast<Fulltext_result *>(info);
  return result->owner->relevance_of_row(*result);
}

static float find_relevance(FT_INFO *info, uchar *, uint) { return relevance_of_row(info); }
static void close_search(FT_INFO *info) { delete reinterpret_cast<Fulltext_result *>(info); }

static _ft_vft result_functions = {nullptr, find_relevance, close_search, relevance_of_row,
                                   nullptr};
static _ft_vft_ext result_functions_ext = {
    []() -> uint { return 1; }, []() -> ulonglong { return 0; },
    [](FT_INFO_EXT *) -> ulonglong { return 0; },
    [](FT_INFO_EXT *info) -> ulonglong {
      return reinterpret_cast<Fulltext_result *>(info)->hits.size();
    }};

} // namespace tidepool

/* Rows whose words a query is expanded by: the server's default of ft_query_expansion_limit, which
   plugins can't read. */
constexpr uint EXPANDING_ROWS = 20;

int ha_tidepool::run_search(uint tree_searched, uint flags, const String &query,
                            Fulltext_result *result) {
  const ulonglong limit = fulltext_search_bytes();
  const Search_memory limited(limit);
  try {
    return search_in(tree_searched, flags, query, result);
  } catch (const Search_too_large &) {
    my_printf_error(ER_OUT_OF_RESOURCES,
                    "Tidepool: MATCH needs more memory than the %llu bytes of "
                    "tidepool_ft_result_cache_limit: search for words that fewer rows have, or "
                    "raise it",
                    MYF(0), limit);
    return HA_ERR_GENERIC;
  }
}

/* A search that locks waits for those who have locked pending rows, also where it passes over
   locked rows: entries of a pending row mean nothing without it. */
int ha_tidepool::read_pending(uint tree_searched, Pending_rows *to) {
  const bool locks = row_lock != TP_LOCK_NONE && session->isolation == TP_SERIALIZABLE;
  if (locks) tp_reader_set_lock(reader, row_lock, TP_WAIT);
  const int result = wait_past_merge(shared, session, [&] {
    return to->read(reader, session->transaction, tree_searched, SIZE_MAX);
  });
  if (locks) set_row_lock(row_lock, skip_locked);
  if (!to->all().empty() && !shared->is_temporary()) ask_for_merge(shared);
  return result;
}

/* Texts of rows that the search has found are read into a record that only it has. */
int ha_tidepool::search_in(uint tree_searched, uint flags, const String &query,
                           Fulltext_result *result) {
  const Fulltext_index &index = *trees()[tree_searched].fulltext();
  if (const char *problem = parse_query(index, query, flags & FT_BOOL, &result->query)) {
    my_printf_error(ER_PARSE_ERROR, "Tidepool: the query of MATCH can't be searched for: %s",
                    MYF(0), problem);
    return HA_ERR_GENERIC;
  }
  std::vector<uchar> columns(table_share->fields, 0);
  for (const Column &column : index.columns()) columns[column.fieldnr] = 1;
  const uint last = row_layout().last_needed(columns.data());
  const bool from_key = row_layout().key_needed(columns.data());
  const auto record = std::make_unique<uchar[]>(table_share->reclength);
  memcpy(record.get(), table_share->default_values, table_share->reclength);
  std::string text;
  const auto read = [&](tp_bytes pk, const std::function<bool()> &use) -> int {
    tp_entry row;
    const tp_read_request request{0, pk, TP_READ_WHOLE};
    const int found = tp_read(reader, session->transaction, &request, &row);
    if (found != TP_OK) return found == TP_END ? TP_OK : found;
    if ((last &&
         !row_layout().decode(record.get(), row.value, row.value_len, columns.data(), last)) ||
        (from_key && !trees()[0].decode_clustered(record.get(), pk.data, pk.len, columns.data())))
      return TP_CORRUPT;
    return use() ? TP_OK : parser_failed();
  };
  const auto read_words = [&](tp_bytes pk, Row_words *to) {
    return read(pk, [&] { return to->parse(index, record.get()); });
  };
  if (int found = read_pending(tree_searched, &result->pending)) return fail(found);
  const Fulltext_search::Source source{shared->table, reader, session->transaction, tree_searched,
                                       &result->pending};
  Fulltext_search search(source, index, ha_thd(), read_words);
  if (int found = search.run(result->query, &result->arena, &result->hits)) return fail(found);
  if (!(flags & FT_EXPAND) || (flags & FT_BOOL)) return 0;

  /* The words of the rows that match best are searched for, too. */
  result->is_ranked = true;
  result->rewind();
  for (uint i = 0; i < EXPANDING_ROWS; i++) {
    const Hit *const hit = result->next();
    if (!hit) break;
    uchar room[8];
    const auto add = [&] {
      for (const Column &column : index.columns()) {
        size_t len;
        if (column.is_null(record.get())) continue;
        const uchar *const from = column.text(record.get(), &len);
        if (!add_words(index, from, len, &result->query)) return false;
      }
      return true;
    };
    if (int found = read(clustered_key_of(*hit, room), add)) return fail(found);
  }
  result->hits.clear();
  return fail(search.run(result->query, &result->arena, &result->hits));
}

FT_INFO *ha_tidepool::ft_init_ext(uint flags, uint keynr, String *query) {
  const Counted_call counted(this);
  if (keynr >= table_share->keys || !is_fulltext(table->key_info[keynr])) {
    my_error(ER_FT_MATCHING_KEY_NOT_FOUND, MYF(0));
    return nullptr;
  }
  if (int error = is_ready() ? 0 : ready_slowly()) {
    print_error(error, MYF(0));
    return nullptr;
  }
  auto result = std::make_unique<Fulltext_result>();
  result->please = &result_functions;
  result->could_you = &result_functions_ext;
  result->owner = this;
  result->tree = shared->layouts.tree_of(keynr);
  if (locks_after_search()) tp_reader_set_lock(reader, TP_LOCK_NONE, TP_WAIT);
  tp_reader_set_prefixes(reader, 0);
  int error;
  {
    const Search_scope for_locks(searching_transaction());
    error = run_search(result->tree, flags, *query, result.get());
  }
  if (!error && locks_after_search() && tp_searches_beyond_snapshot(session->transaction))
    error = add_hits_of_snapshot(flags, *query, result.get());
  tp_reader_set_prefixes(reader, prefixes);
  set_row_lock(row_lock, skip_locked);
  if (error) {
    if (!ha_thd()->is_error()) print_error(error, MYF(0));
    return nullptr;
  }
  result->is_ranked = flags & FT_SORTED;
  result->rewind();
  return reinterpret_cast<FT_INFO *>(result.release());
}

/* The present row of each will turn out to be newer than the snapshot, or gone. */
int ha_tidepool::add_hits_of_snapshot(uint flags, const String &query, Fulltext_result *result) {
  result->of_snapshot = std::make_unique<Fulltext_result>();
  const Hits &others = result->of_snapshot->hits;
  if (int error = run_search(result->tree, flags, query, result->of_snapshot.get())) return error;
  Hits all;
  std::set_union(result->hits.begin(), result->hits.end(), others.begin(), others.end(),
                 std::back_inserter(all),
                 [](const Hit &a, const Hit &b) { return compare_hits(a, b) < 0; });
  result->hits = std::move(all);
  return 0;
}

int ha_tidepool::ft_init() {
  /* Rows are read by their clustered keys. */
  tree = 0;
  at_point = after_search = ends_with_search = peeked = false;
  entry = tp_entry{};
  plan_known = false;
  if (ft_handler) reinterpret_cast<Fulltext_result *>(ft_handler)->rewind();
  return 0;
}

/* Whether a row matches as it is by now. */
int ha_tidepool::match_again(const Fulltext_result &result, const uchar *record, bool *is_match) {
  old_words.keep_all(true);
  const bool parsed =
      parse_words(result.tree, record, &words) && parse_words(result.tree, record, &old_words);
  old_words.keep_all(false);
  if (!parsed) return fail(parser_failed());
  *is_match = matches(result.query, {old_words, words});
  return 0;
}

/* The relevance of the row that was read last, by another index than the search's. A row that the
   search has not found may have come since, or had another primary key. */
float ha_tidepool::relevance_of_row(const Fulltext_result &result) {
  const tp_bytes row = clustered_key_of_row();
  const Hit *const hit = find_hit(result.hits, row.data, row.len);
  if (unlikely(is_newer_than_search())) {
    bool is_match = false;
    if (int error = match_again(result, table->record[0], &is_match)) print_error(error, MYF(0));
    if (!is_match) return 0;
    if (!hit) return LEAST_RELEVANCE;
  }
  return hit ? hit->rank : 0;
}

int ha_tidepool::ft_read(uchar *buf) {
  const Counted_call counted(this);
  auto *const result = reinterpret_cast<Fulltext_result *>(ft_handler);
  if (!result) return HA_ERR_END_OF_FILE;
  while (const Hit *hit = result->next()) {
    uchar room[8];
    const tp_bytes pk = clustered_key_of(*hit, room);
    int error;
    {
      const Search_scope of_search(searching_transaction());
      error = read_found(buf, pk.data, pk.len);
    }
    if (error == HA_ERR_KEY_NOT_FOUND) {
      /* Deleted since, or, in a snapshot, damage. */
      if (row_lock != TP_LOCK_NONE || session->isolation == TP_READ_UNCOMMITTED) continue;
      sql_print_error("Tidepool: table %s: an entry of index %s has no row; run CHECK TABLE",
                      shared->name.c_str(),
                      table->key_info[shared->layouts.key_of(result->tree)].name.str);
      return HA_ERR_CRASHED;
    }
    if (error || likely(!is_newer_than_search())) return error;
    bool is_match;
    if (int failed = match_again(*result, buf, &is_match)) return failed;
    if (is_match) return 0;
    unlock_row();
  }
  return HA_ERR_END_OF_FILE;
}
