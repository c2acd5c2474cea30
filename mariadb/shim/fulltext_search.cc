/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "fulltext_search.h"
#include "fulltext_pending.h"
#include "key_codec.h"
#include <algorithm>
#include <cmath>

namespace tidepool {

namespace {

constexpr size_t ARENA_BLOCK = 64 * 1024;
/* A look-up of one row's entry costs as much as this number of entries in a scan. */
constexpr uint64 LOOK_UP_COST = 16;
constexpr uint ENTRIES_BETWEEN_LOOKS = 4096;

bool is_before(const Hit &a, const Hit &b) { return compare_hits(a, b) < 0; }

/* Those of both, with the sum of their relevances. */
Hits both(const Hits &a, const Hits &b) {
  Hits found;
  auto at = a.begin(), other = b.begin();
  while (at != a.end() && other != b.end()) {
    const int order = compare_hits(*at, *other);
    if (order == 0) {
      found.push_back(*at);
      found.back().rank += (other++)->rank;
      ++at;
    } else if (order < 0) {
      ++at;
    } else {
      ++other;
    }
  }
  return found;
}

/* Those of either. */
Hits either(Hits a, Hits b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  Hits found;
  found.reserve(a.size() + b.size());
  auto at = a.begin(), other = b.begin();
  while (at != a.end() && other != b.end()) {
    const int order = compare_hits(*at, *other);
    if (order > 0) {
      found.push_back(*other++);
      continue;
    }
    found.push_back(*at++);
    if (order == 0) found.back().rank += (other++)->rank;
  }
  found.insert(found.end(), at, a.end());
  found.insert(found.end(), other, b.end());
  return found;
}

/* Calls `change` for each hit of `hits` that is among the others too. */
template <typename Change>
void for_common(Hits *hits, const Hits &others, Change change) {
  auto other = others.begin();
  for (Hit &hit : *hits) {
    while (other != others.end() && is_before(*other, hit)) ++other;
    if (other == others.end()) return;
    if (compare_hits(*other, hit) == 0) change(hit, *other);
  }
}

Hits without(const Hits &hits, const Hits &others) {
  Hits left;
  auto other = others.begin();
  for (const Hit &hit : hits) {
    while (other != others.end() && is_before(*other, hit)) ++other;
    if (other == others.end() || compare_hits(*other, hit) != 0) left.push_back(hit);
  }
  return left;
}

bool has_prefix(const uchar *key, size_t len, const std::string &prefix) {
  return len >= prefix.size() && memcmp(key, prefix.data(), prefix.size()) == 0;
}

tp_bytes bytes_of(const std::string &text) {
  return {reinterpret_cast<const uchar *>(text.data()), text.size()};
}

/* Positions of each word of a phrase, in the order of its words. */
using Positions = std::vector<std::vector<uint>>;

bool stand_together(const Query_term &phrase, const Positions &positions) {
  for (const uint first : positions[0]) {
    bool all = true;
    for (size_t i = 1; all && i < positions.size(); i++) {
      const uint wanted = first + phrase.terms[i].offset - phrase.terms[0].offset;
      all = std::binary_search(positions[i].begin(), positions[i].end(), wanted);
    }
    if (all) return true;
  }
  return false;
}

/* Whether there is a place where all are among `distance` words that follow each other. */
bool stand_near(uint distance, const Positions &positions) {
  std::vector<size_t> at(positions.size(), 0);
  for (;;) {
    uint least = UINT_MAX, most = 0;
    size_t first = 0;
    for (size_t i = 0; i < positions.size(); i++) {
      if (at[i] == positions[i].size()) return false;
      const uint here = positions[i][at[i]];
      most = MY_MAX(most, here);
      if (here < least) {
        least = here;
        first = i;
      }
    }
    if (most - least < distance) return true;
    at[first]++;
  }
}

bool is_phrase_at(const Query_term &phrase, const Positions &positions) {
  return phrase.distance ? stand_near(phrase.distance, positions)
                         : stand_together(phrase, positions);
}

/* The words of a phrase that count: nearness asks for indexed words alone. */
std::vector<const Query_term *> words_of(const Query_term &phrase) {
  std::vector<const Query_term *> words;
  for (const Query_term &word : phrase.terms)
    if (!phrase.distance || word.is_indexed) words.push_back(&word);
  return words;
}

bool has_phrase_in(const Query_term &phrase, const Row_words &words) {
  Positions positions;
  for (const Query_term *word : words_of(phrase)) {
    const size_t at = words.find(bytes_of(word->key));
    if (at == words.size()) return false;
    positions.emplace_back();
    for (uint i = 0; i < words.count(at); i++) positions.back().push_back(words.position(at, i));
  }
  return is_phrase_at(phrase, positions);
}

} // namespace

/* ---- hits */

int compare_hits(const Hit &a, const Hit &b) {
  if (a.head != b.head) return a.head < b.head ? -1 : 1;
  if (a.pk && b.pk) {
    const int order = memcmp(a.pk, b.pk, MY_MIN(a.pk_len, b.pk_len));
    if (order) return order;
  }
  return a.pk_len < b.pk_len ? -1 : a.pk_len > b.pk_len;
}

static uint64 head_of(const uchar *pk, size_t len) {
  if (len >= 8) return mi_uint8korr(pk);
  uchar first[8] = {};
  memcpy(first, pk, len);
  return mi_uint8korr(first);
}

Hit hit_at(const uchar *pk, size_t len) {
  return {head_of(pk, len), len > 8 ? pk : nullptr, static_cast<uint32>(len), 0};
}

const Hit *find_hit(const Hits &hits, const uchar *pk, size_t len) {
  const Hit wanted = hit_at(pk, len);
  const auto found = std::lower_bound(hits.begin(), hits.end(), wanted, is_before);
  return found != hits.end() && compare_hits(*found, wanted) == 0 ? &*found : nullptr;
}

tp_bytes clustered_key_of(const Hit &hit, uchar *room) {
  if (hit.pk) return {hit.pk, hit.pk_len};
  mi_int8store(room, hit.head);
  return {room, hit.pk_len};
}

const uchar *Arena::keep(const uchar *bytes, size_t len) {
  if (blocks.empty() || room - used < len) {
    room = used = 0;
    blocks.emplace_back(MY_MAX(ARENA_BLOCK, len));
    room = blocks.back().size();
  }
  uchar *const at = blocks.back().data() + used;
  memcpy(at, bytes, len);
  used += len;
  return at;
}

Hit hit_in(Arena *arena, const uchar *pk, size_t len, float rank) {
  return {head_of(pk, len), len > 8 ? arena->keep(pk, len) : nullptr, static_cast<uint32>(len),
          rank};
}

thread_local int64_t Search_memory::taken = 0, Search_memory::limit = INT64_MAX;

/* ---- entries */

int Fulltext_search::scan_entries(const std::string &prefix,
                                  const std::function<void(const tp_entry &)> &take) {
  std::string end = prefix;
  size_t end_len = end.size();
  if (successor(reinterpret_cast<uchar *>(&end[0]), &end_len))
    tp_reader_set_end(from.reader, from.tree,
                      {reinterpret_cast<const uchar *>(end.data()), end_len});
  tp_entry entry;
  const tp_seek_request seek{from.tree, bytes_of(prefix), TP_AT_OR_AFTER};
  int result = tp_seek(from.reader, from.transaction, &seek, &entry);
  for (uint count = 0; result == TP_OK && has_prefix(entry.key, entry.key_len, prefix); count++) {
    if (count % ENTRIES_BETWEEN_LOOKS == 0 && thd_kill_level(thd) != THD_IS_NOT_KILLED)
      return TP_INTERRUPTED;
    if (likely(entry.key[0] != Word_codec::PENDING)) take(entry);
    result = tp_next(from.reader, from.transaction, from.tree, &entry);
  }
  return result == TP_END ? TP_OK : result;
}

uint64 Fulltext_search::estimate(const std::string &prefix) const {
  std::string end = prefix;
  size_t end_len = end.size();
  const bool has_end = successor(reinterpret_cast<uchar *>(&end[0]), &end_len);
  uint64_t entries = 0;
  const tp_bytes high{has_end ? reinterpret_cast<const uchar *>(end.data()) : nullptr, end_len};
  if (tp_estimate_range(from.table, from.tree, bytes_of(prefix), high, &entries) != TP_OK)
    return rows;
  return entries;
}

/* How many rows may match. */
uint64 Fulltext_search::estimate(const Query_term &term) const {
  uint64 most = 0, least = rows;
  switch (term.kind) {
    case Query_term::WORD:
    case Query_term::BEGINNING: return estimate(term.key);
    case Query_term::PHRASE:
      for (const Query_term &word : term.terms)
        if (word.is_indexed) least = MY_MIN(least, estimate(word.key));
      return least;
    default:
      for (const Query_term &one : term.terms) most += estimate(one);
      return most;
  }
}

int Fulltext_search::read_postings(const std::string &key, const Hits *only, Keep keep,
                                   Postings *to) {
  if (only) {
    const uint64 entries = estimate(key);
    if (only->size() * LOOK_UP_COST < entries) {
      to->rows_with = ulonglong2double(entries);
      return look_up_postings(key, *only, keep, to);
    }
  }
  const int result = scan_entries(key, [&](const tp_entry &entry) {
    const auto count = static_cast<float>(word_count(entry.value, entry.value_len));
    to->hits.push_back(hit_of(entry.key + key.size(), entry.key_len - key.size(), count));
    if (keep == VALUES)
      to->values.emplace_back(arena->keep(entry.value, entry.value_len),
                              static_cast<uint32>(entry.value_len));
  });
  if (result != TP_OK) return result;
  if (int damage = apply_pending(key, WORD, to)) return damage;
  to->rows_with = static_cast<double>(to->hits.size());
  return TP_OK;
}

/* What a pending row says of a word, or of words that begin so: how often it has them, and the
   value of the last. */
struct Pending_count {
  uint count = 0;
  tp_bytes value{nullptr, 0};
  /* A TP_* code. */
  int take(const Pending_row &row, const std::string &key, bool exactly) {
    Pending_words words(row.words);
    while (words.next()) {
      const int order = memcmp(words.key.data, key.data(), MY_MIN(words.key.len, key.size()));
      if (order > 0) break;
      if (order < 0 || words.key.len < key.size()) continue;
      if (exactly && words.key.len != key.size()) break;
      value = words.value;
      count += word_count(value.data, value.len);
    }
    return words.is_bad ? TP_CORRUPT : TP_OK;
  }
};

/* Corrects what was read from entries, all of them or those of a word. */
int Fulltext_search::apply_pending(const std::string &key, Wanted_key wanted, Postings *to) {
  const bool has_values = to->values.size() == to->hits.size();
  Postings all;
  size_t done = 0;
  const auto copy_up_to = [&](size_t end) {
    all.hits.insert(all.hits.end(), to->hits.begin() + done, to->hits.begin() + end);
    if (has_values)
      all.values.insert(all.values.end(), to->values.begin() + done, to->values.begin() + end);
    done = end;
  };
  bool differs = false;
  for (const Pending_row &row : from.pending->all()) {
    Pending_count has;
    if (int damage = has.take(row, key, wanted == WORD)) return damage;
    if (!has.count && !row.has_entries()) continue;
    const auto place = std::lower_bound(to->hits.begin() + done, to->hits.end(), row.id, is_before);
    const bool is_there = place != to->hits.end() && compare_hits(*place, row.id) == 0;
    if (!has.count && !is_there) continue;
    differs = true;
    copy_up_to(place - to->hits.begin());
    done += is_there;
    if (!has.count) continue;
    all.hits.push_back(row.id);
    all.hits.back().rank = static_cast<float>(has.count);
    if (has_values) all.values.emplace_back(has.value.data, static_cast<uint32>(has.value.len));
  }
  if (!differs) return TP_OK;
  copy_up_to(to->hits.size());
  *to = std::move(all);
  return TP_OK;
}

int Fulltext_search::look_up_postings(const std::string &key, const Hits &only, Keep keep,
                                      Postings *to) {
  std::string wanted = key;
  for (const Hit &hit : only) {
    if (thd_kill_level(thd) != THD_IS_NOT_KILLED) return TP_INTERRUPTED;
    if (const Pending_row *const row = from.pending->find(hit)) {
      Pending_count has;
      if (int damage = has.take(*row, key, true)) return damage;
      if (!has.count) continue;
      to->hits.push_back(hit);
      to->hits.back().rank = static_cast<float>(has.count);
      if (keep == VALUES)
        to->values.emplace_back(has.value.data, static_cast<uint32>(has.value.len));
      continue;
    }
    uchar room[8];
    const tp_bytes pk = clustered_key_of(hit, room);
    wanted.resize(key.size());
    wanted.append(reinterpret_cast<const char *>(pk.data), pk.len);
    const tp_read_request request{from.tree, bytes_of(wanted), TP_READ_WHOLE};
    tp_entry found;
    const int result = tp_read(from.reader, from.transaction, &request, &found);
    if (result == TP_END) continue;
    if (result != TP_OK) return result;
    to->hits.push_back(hit);
    to->hits.back().rank = static_cast<float>(word_count(found.value, found.value_len));
    if (keep == VALUES)
      to->values.emplace_back(arena->keep(found.value, found.value_len),
                              static_cast<uint32>(found.value_len));
  }
  return TP_OK;
}

/* idf². A word that all rows have is worth next to nothing, but a row that is found must not seem
   to match in no way. */
double Fulltext_search::weight(double rows_with) const {
  const double all = ulonglong2double(rows);
  const double idf = rows_with >= all ? std::log10(1.0001) : std::log10(all / rows_with);
  return idf * idf;
}

/* ---- terms */

int Fulltext_search::find_words(const Query_term &term, const Hits *only, Hits *hits) {
  Postings postings;
  if (term.kind == Query_term::WORD) {
    if (int result = read_postings(term.key, only, COUNTS, &postings)) return result;
    *hits = std::move(postings.hits);
  } else {
    /* The rows of one word after the other. */
    bool good = true;
    const int result = scan_entries(term.key, [&](const tp_entry &entry) {
      const uchar *const end = entry.key + entry.key_len;
      const uchar *const pk = index.codec().skip(entry.key, end);
      good = good && pk;
      const auto count = static_cast<float>(word_count(entry.value, entry.value_len));
      if (pk) hits->push_back(hit_of(pk, end - pk, count));
    });
    if (result != TP_OK) return result;
    if (!good) return TP_CORRUPT;
    std::sort(hits->begin(), hits->end(), is_before);
    Hits merged;
    for (const Hit &hit : *hits) {
      if (!merged.empty() && compare_hits(merged.back(), hit) == 0)
        merged.back().rank += hit.rank;
      else
        merged.push_back(hit);
    }
    postings.hits = std::move(merged);
    if (int damage = apply_pending(term.key, BEGINNING, &postings)) return damage;
    *hits = std::move(postings.hits);
    postings.rows_with = static_cast<double>(hits->size());
  }
  const auto factor = static_cast<float>(weight(postings.rows_with));
  for (Hit &hit : *hits) hit.rank *= factor;
  return TP_OK;
}

/* Whether the words stand in the row as the phrase has them. The entries say so, unless they lack
   positions. */
int Fulltext_search::has_phrase(const Query_term &phrase, const Hit &hit,
                                const std::vector<Word_value> &values, bool *has) {
  /* A plugin may give other words when all are asked for. */
  bool are_known = !index.parser();
  Positions positions;
  for (const Word_value &value : values) {
    are_known = are_known && value.positions.size() == value.count;
    positions.push_back(value.positions);
  }
  if (are_known && values.size() == words_of(phrase).size()) {
    *has = is_phrase_at(phrase, positions);
    return TP_OK;
  }
  uchar room[8];
  Row_words words;
  words.keep_all(true);
  if (int result = read_row(clustered_key_of(hit, room), &words)) return result;
  *has = has_phrase_in(phrase, words);
  return TP_OK;
}

int Fulltext_search::find_phrase(const Query_term &phrase, const Hits *only, Hits *hits) {
  /* The rarest word first; the others are wanted of its rows alone. */
  std::vector<std::pair<uint64, const Query_term *>> words;
  for (const Query_term &word : phrase.terms)
    if (word.is_indexed) words.emplace_back(estimate(word.key), &word);
  std::sort(words.begin(), words.end());
  Hits rows_left;
  std::vector<Postings> all(words.size());
  for (size_t i = 0; i < words.size(); i++) {
    Postings &found = all[i];
    const Hits *const among = i ? &rows_left : only;
    if (int result = read_postings(words[i].second->key, among, VALUES, &found)) return result;
    rows_left = i ? both(rows_left, found.hits) : found.hits;
    if (rows_left.empty()) return TP_OK;
  }
  if (only) rows_left = both(rows_left, *only);

  std::vector<size_t> at(all.size(), 0);
  for (Hit hit : rows_left) {
    if (thd_kill_level(thd) != THD_IS_NOT_KILLED) return TP_INTERRUPTED;
    std::vector<Word_value> values(words.size());
    hit.rank = 0;
    for (size_t i = 0; i < all.size(); i++) {
      Postings &found = all[i];
      while (is_before(found.hits[at[i]], hit)) at[i]++;
      const auto &[value, len] = found.values[at[i]];
      /* In the order of the phrase. */
      size_t place = 0;
      for (const Query_term &word : phrase.terms) {
        if (&word == words[i].second) break;
        place += word.is_indexed;
      }
      if (!values[place].read(value, len)) return TP_CORRUPT;
      hit.rank += found.hits[at[i]].rank * static_cast<float>(weight(found.rows_with));
    }
    bool has = false;
    if (int result = has_phrase(phrase, hit, values, &has)) return result;
    if (has) hits->push_back(hit);
  }
  return TP_OK;
}

int Fulltext_search::find_group(const Query_term &group, const Hits *only, Hits *hits) {
  std::vector<std::pair<uint64, const Query_term *>> required;
  std::vector<const Query_term *> optional;
  for (const Query_term &term : group.terms) {
    if (term.kind == Query_term::GROUP && term.terms.empty()) continue;
    if (term.demand == Query_term::REQUIRED) required.emplace_back(estimate(term), &term);
    if (term.demand == Query_term::OPTIONAL) optional.push_back(&term);
  }
  std::sort(required.begin(), required.end());
  for (size_t i = 0; i < required.size(); i++) {
    Hits found;
    if (int result = find(*required[i].second, i ? hits : only, &found)) return result;
    *hits = i ? both(*hits, found) : std::move(found);
    if (hits->empty()) return TP_OK;
  }
  if (!required.empty()) {
    for (const Query_term *term : optional) {
      Hits found;
      if (int result = find(*term, hits, &found)) return result;
      for_common(hits, found, [](Hit &hit, const Hit &other) { hit.rank += other.rank; });
    }
  } else {
    /* Merged as a balanced tree: of many words no list is gone through for each. */
    std::vector<Hits> lists(optional.size());
    for (size_t i = 0; i < optional.size(); i++)
      if (int result = find(*optional[i], only, &lists[i])) return result;
    for (size_t step = 1; step < lists.size(); step *= 2)
      for (size_t i = 0; i + step < lists.size(); i += 2 * step)
        lists[i] = either(std::move(lists[i]), std::move(lists[i + step]));
    if (!lists.empty()) *hits = std::move(lists[0]);
  }
  for (const Query_term &term : group.terms) {
    if (hits->empty()) return TP_OK;
    if (term.demand != Query_term::LOWERING && term.demand != Query_term::EXCLUDED) continue;
    Hits found;
    if (int result = find(term, hits, &found)) return result;
    if (term.demand == Query_term::EXCLUDED)
      *hits = without(*hits, found);
    else
      for_common(hits, found, [](Hit &hit, const Hit &) { hit.rank -= 1; });
  }
  return TP_OK;
}

/* `only`: no other row is of interest; those that are found may still be others. */
int Fulltext_search::find(const Query_term &term, const Hits *only, Hits *hits) {
  int result;
  switch (term.kind) {
    case Query_term::GROUP: result = find_group(term, only, hits); break;
    case Query_term::PHRASE: result = find_phrase(term, only, hits); break;
    default: result = find_words(term, only, hits);
  }
  if (term.adjustment)
    for (Hit &hit : *hits) hit.rank += static_cast<float>(term.adjustment);
  return result;
}

int Fulltext_search::run(const Query_term &root, Arena *keep, Hits *hits) {
  arena = keep;
  if (int result = find(root, nullptr, hits)) return result;
  for (Hit &hit : *hits)
    if (hit.rank == 0) hit.rank = LEAST_RELEVANCE;
  return TP_OK;
}

/* ---- one row */

static bool matches_group(const Query_term &group, const Words_of_row &words) {
  bool any_required = false, any_optional = false, has_optional = false;
  for (const Query_term &term : group.terms) {
    if (term.kind == Query_term::GROUP && term.terms.empty()) continue;
    if (term.demand == Query_term::LOWERING) continue;
    const bool has = matches(term, words);
    if (term.demand == Query_term::EXCLUDED && has) return false;
    if (term.demand == Query_term::REQUIRED && !has) return false;
    any_required |= term.demand == Query_term::REQUIRED;
    any_optional |= term.demand == Query_term::OPTIONAL;
    has_optional |= term.demand == Query_term::OPTIONAL && has;
  }
  return any_required || (any_optional && has_optional);
}

bool matches(const Query_term &term, const Words_of_row &words) {
  switch (term.kind) {
    case Query_term::WORD: return words.indexed.find(bytes_of(term.key)) < words.indexed.size();
    case Query_term::BEGINNING: {
      const size_t at = words.indexed.lower_bound(bytes_of(term.key));
      if (at == words.indexed.size()) return false;
      const tp_bytes key = words.indexed.key(at);
      return has_prefix(key.data, key.len, term.key);
    }
    case Query_term::PHRASE: return has_phrase_in(term, words.all);
    default: return matches_group(term, words);
  }
}

} // namespace tidepool
