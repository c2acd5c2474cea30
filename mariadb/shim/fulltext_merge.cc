/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "fulltext_merge.h"
#include "engine.h"
#include "errors.h"
#include "fulltext_pending.h"
#include "performance_schema.h"
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <system_error>
#include <thread>

namespace tidepool {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint WRITES_BETWEEN_LOOKS = 64;
constexpr size_t MERGE_ROWS = 512;
/* Pending rows of a tree: from which on they are merged at once, and from which on no row more is
   pending. */
constexpr uint64 MANY = 256, PENDING_MAX = 2048;
constexpr std::chrono::milliseconds SOON{100};
/* After a merge that could do little. After one that failed the wait doubles. */
constexpr std::chrono::milliseconds LATER{1000};
constexpr uint DOUBLINGS_MAX = 6;

std::atomic<uint64> rows_merged{0};

/* Pending rows of a tree, with those that are deleted and not purged yet, but at most `max`. */
uint64 count_pending(const Table_share &shared, uint tree, uint64 max) {
  const tp_key_range all{pending_begin, pending_end};
  uint64_t rows = 0;
  return tp_count_traces(shared.table, tree, &all, max, &rows) == TP_OK ? rows : 0;
}

/* ---- one merge */

/* What merging rows does to entries. */
class Entry_changes {
public:
  /* false: the pending row can't be understood, or a parser failed. */
  bool add(const Fulltext_index &index, const Pending_row &row);
  int apply(tp_transaction *transaction, tp_table *table, uint tree);

private:
  enum Kind : uchar { INSERT, UPDATE, DELETE };
  struct Change {
    uint64 head; /* the first bytes of the key, to compare fast */
    size_t at;   /* the key, then the value */
    uint32 key_len, value_len;
    Kind kind;
  };
  void push(Kind kind, tp_bytes word, tp_bytes pk, tp_bytes value);
  tp_bytes key(const Change &change) const { return {bytes.data() + change.at, change.key_len}; }

  std::vector<Change> changes;
  std::vector<uchar> bytes;
  Row_words before;
};

void Entry_changes::push(Kind kind, tp_bytes word, tp_bytes pk, tp_bytes value) {
  Change change{0, bytes.size(), static_cast<uint32>(word.len + pk.len),
                static_cast<uint32>(value.len), kind};
  for (const tp_bytes &part : {word, pk, value})
    bytes.insert(bytes.end(), part.data, part.data + part.len);
  uchar first[8] = {};
  memcpy(first, bytes.data() + change.at, MY_MIN(change.key_len, sizeof first));
  change.head = mi_uint8korr(first);
  changes.push_back(change);
}

/* Both are sorted: words of one alone go and come, those of both change where their values do. */
bool Entry_changes::add(const Fulltext_index &index, const Pending_row &row) {
  Texts texts;
  if (!row.get_texts(&texts) || !before.parse(index, texts)) return false;
  uchar room[8], value[Fulltext_index::VALUE_MAX];
  const tp_bytes pk = clustered_key_of(row.id, room), none{room, 0};
  Pending_words words(row.words);
  bool has_word = words.next();
  for (size_t old = 0; old < before.size() || has_word;) {
    const int order = old == before.size() ? 1
                      : has_word           ? compare_bytes(before.key(old), words.key)
                                           : -1;
    if (order < 0) {
      push(DELETE, before.key(old), pk, none);
    } else if (order > 0) {
      push(INSERT, words.key, pk, words.value);
    } else if (compare_bytes({value, before.put_value(old, value)}, words.value) != 0) {
      push(UPDATE, words.key, pk, words.value);
    }
    old += order <= 0;
    if (order >= 0) has_word = words.next();
  }
  return !words.is_bad;
}

int Entry_changes::apply(tp_transaction *transaction, tp_table *table, uint tree) {
  std::sort(changes.begin(), changes.end(), [this](const Change &a, const Change &b) {
    return a.head != b.head ? a.head < b.head : compare_bytes(key(a), key(b)) < 0;
  });
  for (const Change &change : changes) {
    const tp_bytes value{bytes.data() + change.at + change.key_len, change.value_len};
    int result = TP_OK;
    switch (change.kind) {
      case INSERT:
        result = tp_insert(transaction, table, tree, key(change), value, TP_LOCK_NONE);
        break;
      case UPDATE: result = tp_update(transaction, table, tree, key(change), value); break;
      case DELETE: result = tp_delete(transaction, table, tree, key(change)); break;
    }
    if (result != TP_OK) return result == TP_DUPLICATE ? TP_CORRUPT : result;
  }
  return TP_OK;
}

struct Close_transaction {
  void operator()(tp_transaction *transaction) const { tp_transaction_free(transaction); }
};
struct Close_reader {
  void operator()(tp_reader *reader) const { tp_reader_close(reader); }
};

/* A TP_* code; what is unfinished is rolled back. *merged: rows that are no longer pending. */
int merge(const Table_share &shared, uint tree, size_t *merged) {
  std::unique_ptr<tp_transaction, Close_transaction> transaction;
  std::unique_ptr<tp_reader, Close_reader> reader;
  tp_transaction *made = nullptr;
  tp_savepoint unused;
  int result = tp_transaction_new(engine.db, &made);
  if (result != TP_OK) return result;
  transaction.reset(made);
  result = tp_transaction_begin(made, TP_READ_COMMITTED);
  if (result == TP_OK) result = tp_statement_begin(made, 0, &unused);
  if (result != TP_OK) return result;
  tp_reader *opened = nullptr;
  if ((result = tp_reader_open(shared.table, &opened)) != TP_OK) return result;
  reader.reset(opened);
  tp_reader_set_lock(opened, TP_LOCK_EXCLUSIVE, TP_SKIP_LOCKED);
  Pending_rows rows;
  result = rows.read(opened, made, tree, MERGE_ROWS);
  if (result != TP_OK || rows.all().empty()) return result;

  const Fulltext_index &index = *shared.layouts.trees[tree].fulltext();
  Entry_changes changes;
  for (const Pending_row &row : rows.all())
    if (!changes.add(index, row)) return TP_CORRUPT;
  if ((result = changes.apply(made, shared.table, tree)) != TP_OK) return result;
  std::vector<uchar> key(shared.layouts.trees[0].key_max() + 1);
  for (const Pending_row &row : rows.all()) {
    uchar room[8];
    const size_t len = put_pending_key(key.data(), clustered_key_of(row.id, room));
    result = tp_delete(made, shared.table, tree, {key.data(), len});
    if (result != TP_OK) return result;
  }
  uint64_t lsn;
  result = tp_commit_no_flush(made, &lsn);
  if (result == TP_OK) *merged = rows.all().size();
  return result;
}

enum class Left { NOTHING, MANY_ROWS, FEW_ROWS, ALL_ROWS, DAMAGE };

/* Writes the first of several failures alike to the error log. */
void note_failure(Table_share *shared, int result) {
  Merge_state &state = shared->merge;
  state.failures++;
  if (state.failure == result) return;
  state.failure = result;
  sql_print_warning(
      "Tidepool: table %s: words of new rows could not be merged into a FULLTEXT "
      "index; searches find them, and the merge is tried again: %s",
      shared->name.c_str(), last_error_text().c_ptr_safe());
}

/* Merges some rows of each tree. */
Left merge_table(Table_share *shared) {
  Merge_state &state = shared->merge;
  const std::lock_guard<std::mutex> under_way(state.merging);
  Left left = Left::NOTHING;
  for (uint tree : shared->layouts.secondary) {
    if (!shared->layouts.trees[tree].fulltext() || count_pending(*shared, tree, 1) == 0) continue;
    size_t merged = 0;
    const int result = merge(*shared, tree, &merged);
    if (unlikely(result == TP_CORRUPT || result == TP_NOT_FOUND)) {
      sql_print_error(
          "Tidepool: table %s: pending words of a FULLTEXT index do not agree with its "
          "entries, and are not merged any more; run CHECK TABLE",
          shared->name.c_str());
      left = Left::DAMAGE;
      break;
    }
    if (unlikely(result != TP_OK)) {
      note_failure(shared, result);
      left = Left::ALL_ROWS;
      break;
    }
    if (merged != 0) {
      state.failures = 0;
      state.failure = TP_OK;
    }
    rows_merged += merged;
    if (merged == MERGE_ROWS)
      left = Left::MANY_ROWS;
    else if (left == Left::NOTHING && count_pending(*shared, tree, 1) != 0)
      left = Left::FEW_ROWS;
  }
  return left;
}

/* ---- the thread */

class Merger {
public:
  void ask(Table_share *shared, Clock::duration wait);
  void pause(Table_share *shared);
  void go_on(Table_share *shared);
  void forget(const std::string &name);
  void end();

private:
  void run();
  void enlist(Table_share *shared, Clock::time_point at);

  /* Protects all of this, and what Merge_state says. Innermost. */
  std::mutex mutex;
  std::condition_variable changed;
  std::map<Table_share *, Clock::time_point> due;
  Table_share *current = nullptr; /* whose rows are being merged, without the mutex */
  bool is_ending = false;
  std::thread thread;
};

Merger merger;

void Merger::enlist(Table_share *shared, Clock::time_point at) {
  if (shared->merge.pauses != 0 || is_ending) return;
  const auto [place, is_new] = due.emplace(shared, at);
  place->second = MY_MIN(place->second, at);
  shared->merge.is_asked = true;
}

void Merger::ask(Table_share *shared, Clock::duration wait) {
  const std::lock_guard<std::mutex> guard(mutex);
  enlist(shared, Clock::now() + wait);
  if (!thread.joinable() && !due.empty()) {
    try {
      thread = std::thread([this] { run(); });
    } catch (const std::system_error &) {
      /* The next who asks tries again. */
      for (auto &one : due) one.first->merge.is_asked = false;
      due.clear();
    }
  }
  changed.notify_all();
}

void Merger::pause(Table_share *shared) {
  std::unique_lock<std::mutex> lock(mutex);
  shared->merge.pauses++;
  shared->merge.is_asked = false;
  due.erase(shared);
  changed.wait(lock, [&] { return current != shared; });
}

void Merger::go_on(Table_share *shared) {
  const std::lock_guard<std::mutex> guard(mutex);
  shared->merge.pauses--;
}

void Merger::forget(const std::string &name) {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return !current || current->name != name; });
  for (auto one = due.begin(); one != due.end();) {
    if (one->first->name == name) {
      one->first->merge.is_asked = false;
      one = due.erase(one);
    } else {
      ++one;
    }
  }
}

void Merger::end() {
  std::thread ended;
  {
    const std::lock_guard<std::mutex> guard(mutex);
    is_ending = true;
    due.clear();
    ended.swap(thread);
  }
  changed.notify_all();
  if (ended.joinable()) ended.join();
  /* The plugin may be installed again. */
  const std::lock_guard<std::mutex> guard(mutex);
  is_ending = false;
}

/* What is wrong, a full disk perhaps, may last. */
Clock::duration wait_after(uint failures) {
  return LATER * (1 << MY_MIN(failures - 1, DOUBLINGS_MAX));
}

void Merger::run() {
  constexpr char NAME[] = "tidepool-words";
  pthread_setname_np(pthread_self(), NAME);
  const Observed_thread observed(NAME);
  const auto is_earlier = [](const auto &a, const auto &b) { return a.second < b.second; };
  std::unique_lock<std::mutex> lock(mutex);
  while (!is_ending) {
    const auto next = std::min_element(due.begin(), due.end(), is_earlier);
    if (next == due.end()) {
      changed.wait(lock);
      continue;
    }
    if (const Clock::time_point at = next->second; at > Clock::now()) {
      changed.wait_until(lock, at);
      continue;
    }
    Table_share *const shared = current = next->first;
    due.erase(next);
    /* Before the rows are looked at: who makes one more pending asks again. */
    shared->merge.is_asked = false;
    lock.unlock();
    const Left left = merge_table(shared);
    lock.lock();
    if (left == Left::DAMAGE) shared->merge.pauses++;
    if (left == Left::MANY_ROWS) enlist(shared, Clock::now());
    if (left == Left::FEW_ROWS) enlist(shared, Clock::now() + LATER);
    if (left == Left::ALL_ROWS) enlist(shared, Clock::now() + wait_after(shared->merge.failures));
    current = nullptr;
    changed.notify_all();
  }
}

} // namespace

bool may_be_pending(Table_share *shared, uint tree) {
  /* It goes with its session, whose transaction DDL of it may follow. */
  if (shared->is_temporary()) return false;
  Pending_state &state = shared->pending[tree];
  if (state.writes++ % WRITES_BETWEEN_LOOKS == 0) {
    const uint64 pending = count_pending(*shared, tree, PENDING_MAX);
    state.is_full = pending == PENDING_MAX;
    if (pending >= MANY) merger.ask(shared, Clock::duration::zero());
  }
  return !state.is_full;
}

void ask_for_merge(Table_share *shared) {
  if (!shared->merge.is_asked) merger.ask(shared, SOON);
}

void end_merges(Table_share *shared) { merger.pause(shared); }
Merges_paused::~Merges_paused() { merger.go_on(shared); }
void end_merges_of(const std::string &name) { merger.forget(name); }
void end_merge_thread() { merger.end(); }
uint64 merged_rows() { return rows_merged; }

} // namespace tidepool
