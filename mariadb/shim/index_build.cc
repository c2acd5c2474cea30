/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "index_build.h"
#include "alter_columns.h"
#include "fulltext_words.h"
#include "performance_schema.h"
#include <algorithm>

namespace tidepool {

namespace {

constexpr uint ROWS_BETWEEN_LOOKS = 1000;
/* Logged writes that the last round may find: some milliseconds. */
constexpr uint64_t LEFT_FOR_THE_END = 500;
/* Rounds that leave more, though few of these are by unfinished transactions. If writers are as
   fast as rounds, more of them would leave no less. */
constexpr uint ROUNDS_MOST = 30;
/* While unfinished transactions have written more, rounds come with rests, for each goes through
   all that these have written. */
constexpr ulonglong RESTS_PER_ROUND = 4, REST_MIN_US = 5000, REST_MAX_US = 5000000;
constexpr ulonglong REST_SLICE_US = 100000;
/* What SHOW PROCESSLIST has as stages: reading, sorting, catching up. */
constexpr uint STAGES = 3;

int is_killed(void *thd) { return thd_kill_level(static_cast<THD *>(thd)) != THD_IS_NOT_KILLED; }

/* The progress of a statement, to its end. */
class Progress {
public:
  Progress(THD *thd, Stage first) : thd(thd), stage(thd, first) {
    thd_progress_init(thd, STAGES);
    for (uint i = 0; i < static_cast<uint>(first); i++) thd_progress_next_stage(thd);
  }
  ~Progress() { thd_progress_end(thd); }
  void next_stage(Stage next) {
    thd_progress_next_stage(thd);
    stage.next(next);
    done = 0;
  }
  void report(ulonglong more, ulonglong all) { reached(done + more, all); }
  void reached(ulonglong now, ulonglong all) {
    done = now;
    thd_progress_report(thd, MY_MIN(done, all), all);
    stage.reached(done, all);
  }
  THD *const thd;

private:
  Shown_stage stage;
  ulonglong done = 0;
};

/* For tp_change_build, which looks at the statement once in ROWS_BETWEEN_LOOKS entries. */
struct Sorting {
  Progress *progress;
  ulonglong entries;
};

int look_while_sorting(void *context) {
  auto *sorting = static_cast<Sorting *>(context);
  sorting->progress->report(ROWS_BETWEEN_LOOKS, sorting->entries);
  return is_killed(sorting->progress->thd);
}

/* A value that would be cut is an error, as in the server's copy. */
class Strict_conversion {
public:
  explicit Strict_conversion(THD *thd)
      : level(thd, CHECK_FIELD_WARN), aborts(thd, thd->is_strict_mode()) {
    thd->get_stmt_da()->reset_current_row_for_warning(1);
  }

private:
  Check_level_instant_set level;
  Abort_on_warning_instant_set aborts;
};

/* Makes the entries that the new trees have of a row. */
class Entry_maker {
public:
  Entry_maker(TABLE *altered, const Index_change &context)
      : altered(altered), context(context), wanted(altered->s->fields, 0) {
    size_t key_max = 0;
    for (uint tree : context.built) {
      const Index_layout &layout = context.layouts.trees[tree];
      key_max = MY_MAX(key_max, layout.key_max());
      room.scratch_len = MY_MAX(room.scratch_len, layout.scratch_size());
      for (const Part &part : layout.all_parts())
        if (part.image != Part::ROW_ID) wanted[part.column.fieldnr] = 1;
    }
    for (Field *field : virtual_key_columns(altered))
      if (wanted[field->field_index]) computed.push_back(field);
    /* What they are computed from. */
    if (!computed.empty())
      for (uint i = 0; i < altered->s->fields; i++) wanted[i] = altered->field[i]->stored_in_db();
    room.scratch = std::make_unique<uchar[]>(room.scratch_len);
    key = std::make_unique<uchar[]>(key_max);
    if (context.conversion) {
      new_clustered = std::make_unique<uchar[]>(context.layouts.trees[0].key_max());
      return;
    }
    last = context.layouts.row->last_needed(wanted.data());
    from_key = context.layouts.row->key_needed(wanted.data());
  }

  /* Reads the columns that the entries are made of. TP_CORRUPT: they can't be read. */
  int read(tp_bytes clustered, tp_bytes row) {
    uchar *const record = altered->record[0];
    pk = clustered;
    const Layouts &layouts = context.layouts;
    if (context.conversion) {
      const auto result = context.conversion->convert(clustered, row);
      if (result == Row_conversion::CONVERTED) {
        encode_row();
        return compute_virtual();
      }
      if (result == Row_conversion::REFUSED) return Index_build::REFUSED;
    } else if ((!last || layouts.row->decode(record, row.data, row.len, wanted.data(), last)) &&
               (!from_key ||
                layouts.trees[0].decode_clustered(record, pk.data, pk.len, wanted.data())))
      return compute_virtual();
    const std::string text =
        "table " + context.name + ": a row is not of the table's definition: check the table";
    tp_set_last_error(text.data(), text.size());
    return TP_CORRUPT;
  }

  /* Gives the entries that a tree has of the row to `take`, in the order of their keys, each good
     until the next one. Ends with the first code but TP_OK that it returns. */
  template <typename Take>
  int make(uint tree, Take take) {
    if (tree == 0) return take(pk, new_row);
    if (context.layouts.trees[tree].fulltext()) return make_words(tree, take);
    if (!context.layouts.trees[tree].has_all_geometries(altered->record[0]))
      return Index_build::NO_GEOMETRY;
    tp_bytes entry_key, value;
    make_one(tree, &entry_key, &value);
    return take(entry_key, value);
  }

private:
  int compute_virtual() {
    if (computed.empty() || compute(computed)) return TP_OK;
    const std::string text = "table " + context.name +
                             ": a virtual column of an index can't be computed for one of the rows";
    tp_set_last_error(text.data(), text.size());
    return TP_OTHER;
  }

  /* The row in the new clustered tree. Row ids stay. */
  void encode_row() {
    const Layouts &layouts = context.layouts;
    const uchar *const record = altered->record[0];
    bool bare;
    if (!layouts.has_row_id)
      pk = {new_clustered.get(),
            layouts.trees[0].encode(new_clustered.get(), record, altered, nullptr, room, &bare)};
    const size_t len = layouts.row->encode(row_buffer, record);
    new_row = {row_buffer.data(), len};
  }

  template <typename Take>
  int make_words(uint tree, Take take) {
    if (!words.parse(*context.layouts.trees[tree].fulltext(), altered->record[0])) {
      const std::string text =
          "table " + context.name + ": a parser plugin of a FULLTEXT index has failed";
      tp_set_last_error(text.data(), text.size());
      return TP_OTHER;
    }
    uchar value[Fulltext_index::VALUE_MAX];
    for (size_t i = 0; i < words.size(); i++) {
      const tp_bytes word = words.key(i);
      memcpy(key.get(), word.data, word.len);
      memcpy(key.get() + word.len, pk.data, pk.len);
      const tp_bytes bytes{value, words.put_value(i, value)};
      if (int result = take(tp_bytes{key.get(), word.len + pk.len}, bytes)) return result;
    }
    return TP_OK;
  }

  void make_one(uint tree, tp_bytes *entry_key, tp_bytes *value) {
    const Index_layout &layout = context.layouts.trees[tree];
    const uchar *const record = altered->record[0];
    bool bare;
    *entry_key = {key.get(), layout.encode(key.get(), record, altered, pk.data, room, &bare)};
    uchar *const bytes = values.room(layout.value_max(record));
    *value = {bytes, layout.encode_value(bytes, record, pk.data, pk.len, bare)};
  }

  TABLE *const altered;
  const Index_change &context;
  std::vector<uchar> wanted;
  std::vector<Field *> computed; /* virtual columns */
  Key_room room;
  std::unique_ptr<uchar[]> key;
  std::unique_ptr<uchar[]> new_clustered;
  Buffer row_buffer;
  Buffer values;
  Row_words words;
  uint last = 0;
  bool from_key = false;
  tp_bytes pk{}, new_row{};
};

std::string copy_of(tp_bytes bytes) {
  return {reinterpret_cast<const char *>(bytes.data), bytes.len};
}

tp_bytes bytes_of(const std::string &copy) {
  return {reinterpret_cast<const uchar *>(copy.data()), copy.size()};
}

struct Entry_copy {
  std::string key, value;
  bool operator<(const Entry_copy &other) const {
    return key != other.key ? key < other.key : value < other.value;
  }
};
using Entry_copies = std::vector<Entry_copy>; /* sorted */

} // namespace

int Index_build::fill(Index_change *context, uint64_t rows_expected) {
  if (context->conversion && !context->conversion->begin()) return REFUSED;
  Strict_conversion strict(thd);
  Progress progress(thd, Stage::READING_ROWS);
  Entry_maker maker(altered, *context);
  tp_index_change *const change = context->change;
  tp_entry row;
  int result;
  ulonglong rows = 0, entries = 0;
  for (; (result = tp_change_next_row(change, &row)) == TP_OK; rows++) {
    if (rows % ROWS_BETWEEN_LOOKS == 0) {
      if (is_killed(thd)) return TP_INTERRUPTED;
      progress.report(ROWS_BETWEEN_LOOKS, MY_MAX(rows_expected, rows));
    }
    if ((result = maker.read({row.key, row.key_len}, {row.value, row.value_len}))) return result;
    thd->get_stmt_da()->inc_current_row_for_warning();
    for (uint tree : context->built) {
      const auto add = [&](tp_bytes key, tp_bytes value) {
        if (tree == 0 && context->rows_in_order) return tp_change_push_row(change, key, value);
        entries++;
        return tp_change_add(change, tree, key, value);
      };
      if ((result = maker.make(tree, add))) return result;
    }
  }
  if (result != TP_END) return result;
  progress.next_stage(Stage::BUILDING_INDEXES);
  Sorting sorting{&progress, entries};
  return tp_change_build(change, &sorting, look_while_sorting);
}

/* A round of one table. */
int Index_build::round(Index_change *context, tp_round *report) {
  Strict_conversion strict(thd);
  Entry_maker maker(altered, *context);
  tp_index_change *const change = context->change;
  int result = tp_change_begin_round(change);
  if (result != TP_OK) return result;
  std::vector<Entry_copies> before(context->built.size());
  Entry_copies after;
  tp_changed_row row;
  const auto copy = [&](uint tree, Entry_copies *to) {
    to->clear();
    return maker.make(tree, [to](tp_bytes key, tp_bytes value) {
      to->push_back({copy_of(key), copy_of(value)});
      return TP_OK;
    });
  };
  for (uint rows = 0; (result = tp_change_next_changed(change, &row)) == TP_OK; rows++) {
    if (rows % ROWS_BETWEEN_LOOKS == 0 && is_killed(thd)) return TP_INTERRUPTED;
    if (row.before.data) {
      if ((result = maker.read(row.key, row.before))) return result;
      for (size_t i = 0; i < before.size(); i++)
        if ((result = copy(context->built[i], &before[i]))) return result;
    } else {
      for (Entry_copies &none : before) none.clear();
    }
    if (row.after.data && (result = maker.read(row.key, row.after))) return result;
    for (size_t i = 0; i < before.size(); i++) {
      const uint tree = context->built[i];
      after.clear();
      if (row.after.data && (result = copy(tree, &after))) return result;
      const auto is_in = [](const Entry_copies &all, const Entry_copy &entry) {
        return std::binary_search(all.begin(), all.end(), entry);
      };
      for (const Entry_copy &entry : after)
        if (!is_in(before[i], entry) &&
            (result = tp_change_add(change, tree, bytes_of(entry.key), bytes_of(entry.value))))
          return result;
      for (const Entry_copy &entry : before[i])
        if (!is_in(after, entry) &&
            (result = tp_change_remove(change, tree, bytes_of(entry.key), bytes_of(entry.value))))
          return result;
    }
  }
  if (result != TP_END) return result;
  return tp_change_end_round(change, thd, is_killed, report);
}

/* Rests; false: the statement is killed. */
bool Index_build::rest(ulonglong time_us) {
  for (const ulonglong end = microsecond_interval_timer() + time_us;;) {
    if (is_killed(thd)) return false;
    const ulonglong now = microsecond_interval_timer();
    if (now >= end) return true;
    my_sleep(MY_MIN(end - now, REST_SLICE_US));
  }
}

int Index_build::catch_up(const std::vector<Index_change *> &all, Index_change **failed) {
  Progress progress(thd, Stage::CATCHING_UP);
  const ulonglong patience = thd->variables.lock_wait_timeout * 1000000ULL;
  const ulonglong end = microsecond_interval_timer() + patience;
  uint64_t most = 0;
  for (uint rounds = 0; rounds < ROUNDS_MOST;) {
    const ulonglong start = microsecond_interval_timer();
    uint64_t open = 0, left = 0;
    for (Index_change *context : all) {
      tp_round report{};
      *failed = context;
      if (int result = round(context, &report)) return result;
      open += report.writes_open;
      left += report.writes_left;
    }
    if (left <= LEFT_FOR_THE_END) break;
    most = MY_MAX(most, left);
    progress.reached(most - left, most);
    if (open <= LEFT_FOR_THE_END) {
      rounds++;
      continue;
    }
    const ulonglong now = microsecond_interval_timer();
    /* The server goes on to wait for them, as long as it does. */
    if (now >= end) break;
    if (!rest(MY_MIN(MY_MAX(RESTS_PER_ROUND * (now - start), REST_MIN_US), REST_MAX_US)))
      return TP_INTERRUPTED;
  }
  return TP_OK;
}

int Index_build::finish(const std::vector<Index_change *> &all, Index_change **failed) {
  for (Index_change *context : all) {
    tp_round report{};
    *failed = context;
    if (int result = tp_change_stop_writes(context->change)) return result;
    if (int result = round(context, &report)) return result;
  }
  return TP_OK;
}

} // namespace tidepool
