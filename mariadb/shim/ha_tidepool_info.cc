/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Statistics, ranges, ANALYZE.

  How many rows share the values of the first n columns of an index is estimated from a few of its
  leaves: between how many neighbours these columns change. Groups of many leaves are too seldom
  among them: those are seen in the bounds between leaves, of which a page holds hundreds. The
  larger number of groups counts, for neither way sees too many.
*/
#include "errors.h"
#include "ha_tidepool.h"
#include <algorithm>

using namespace tidepool;

namespace {

/* Leaves looked at in each index, as innodb_stats_persistent_sample_pages, and as many nodes with
   bounds. */
constexpr size_t SAMPLED_NODES = 20;
/* The part of the table that must change before statistics are sampled again, as InnoDB does. */
constexpr uint64 CHANGE_DIVISOR = 10;

struct Sample {
  const Index_layout &layout;
  std::vector<double> changes; /* neighbours that differ in the first n columns */
  double neighbours = 0;

  explicit Sample(const Index_layout &index) : layout(index), changes(index.user_parts(), 0.0) {}

  /* The first column in which the second key is known to differ; as many as there are if in none.
     Either may be cut short. */
  uint first_change(const tp_bytes &key, const tp_bytes &next) const {
    const uchar *const end = key.data + key.len;
    const uchar *const differs =
        std::mismatch(key.data, key.data + MY_MIN(key.len, next.len), next.data).first;
    const uchar *at = key.data;
    uint part = 0;
    for (; part < changes.size(); part++) {
      at = layout.skip_part_at(part, at, end);
      if (!at) break;
      if (differs < at) return part;
    }
    return differs < end && part < changes.size() ? part : static_cast<uint>(changes.size());
  }

  void take(const tp_bytes *keys, size_t count, double weight) {
    for (size_t i = 1; i < count; i++) {
      neighbours += weight;
      for (uint part = first_change(keys[i - 1], keys[i]); part < changes.size(); part++)
        changes[part] += weight;
    }
  }

  /* How many of `pairs` pairs of neighbours differ. */
  double changes_among(uint part, double pairs) const {
    return neighbours ? changes[part] / neighbours * pairs : 0;
  }
};

void take_keys(void *context, const tp_bytes *keys, size_t count, double weight) {
  static_cast<Sample *>(context)->take(keys, count, weight);
}

} // namespace

void ha_tidepool::sample_statistics(bool force) {
  auto wanted = [this] {
    const uint64 rows = tp_table_rows(shared->table), before = shared->rows_when_sampled;
    const uint64 change = rows > before ? rows - before : before - rows;
    return !shared->statistics_known || change > before / CHANGE_DIVISOR + 64;
  };
  if (likely(!force && !wanted())) return;
  /* One session samples; the others go on with what is known. */
  std::unique_lock<std::mutex> lock(shared->statistics_mutex, std::defer_lock);
  if (force || !shared->statistics_known)
    lock.lock();
  else if (!lock.try_lock())
    return;
  if (!force && !wanted()) return;

  const size_t n = trees().size();
  std::vector<tp_index_statistics> indexes(n);
  if (tp_table_statistics_read(shared->table, indexes.data(), n) != TP_OK) return;
  uint64 secondary = 0;
  for (size_t i = 1; i < n; i++) secondary += indexes[i].leaf_pages * stats.block_size;
  shared->clustered_size = indexes[0].leaf_pages * stats.block_size;
  shared->secondary_size = secondary;

  const double rows = ulonglong2double(MY_MAX(tp_table_rows(shared->table), 1));
  for (uint index = 0; index < n; index++) {
    const bool has_values = !trees()[index].fulltext() && !trees()[index].is_spatial();
    const uint parts = has_values ? trees()[index].user_parts() : 0;
    if (trees()[index].is_spatial()) {
      tp_spatial_statistics *counted;
      if (tp_spatial_count(shared->table, index, &counted) == TP_OK)
        shared->spatial[index].reset(counted);
    }
    Sample entries(trees()[index]), bounds(trees()[index]);
    if (parts) tp_sample_keys(shared->table, index, 0, SAMPLED_NODES, &entries, take_keys);
    if (parts) tp_sample_keys(shared->table, index, 1, SAMPLED_NODES, &bounds, take_keys);
    std::vector<double> &cardinality = shared->cardinalities[index].rows_per_key;
    cardinality.assign(parts, 1.0);
    for (uint part = 0; part < parts; part++) {
      /* Each change begins a group; the first group begins without one. */
      const double among_entries =
          entries.changes_among(part, ulonglong2double(MY_MAX(indexes[index].entries, 1) - 1));
      const double among_bounds =
          bounds.changes_among(part, ulonglong2double(indexes[index].leaf_pages - 1));
      cardinality[part] = MY_MAX(rows / (1 + MY_MAX(among_entries, among_bounds)), 1);
    }
    if (trees()[index].is_unique() && parts) cardinality[parts - 1] = 1.0;
  }
  shared->rows_when_sampled = tp_table_rows(shared->table);
  shared->statistics_known = true;
}

/*
  Sizes on disk, for SHOW TABLE STATUS, information_schema.TABLES and PARTITIONS: images in use,
  divided in proportion to the leaf pages of rows and of indexes, and what else the file has.
*/
void ha_tidepool::show_file_usage() {
  tp_file_usage usage{};
  if (tp_table_file_usage(shared->table, &usage) != TP_OK) return;
  /* Before the first pages are written: as they are in memory. */
  if (usage.live_bytes == 0) return;
  const double rows = ulonglong2double(stats.data_file_length),
               indexes = ulonglong2double(stats.index_file_length);
  const double share = rows + indexes > 0 ? indexes / (rows + indexes) : 0;
  stats.index_file_length = static_cast<ulonglong>(share * ulonglong2double(usage.live_bytes));
  stats.data_file_length = usage.live_bytes - stats.index_file_length;
  stats.delete_length = usage.dead_bytes;
}

int ha_tidepool::info(uint flag) {
  if (flag & HA_STATUS_ERRKEY) {
    /* The one asked may be the handler of another partition than that of the conflict. */
    const Session *asking = session ? session : session_of(ha_thd());
    errkey = asking ? asking->duplicate_key : MAX_KEY;
  }
  if (flag & (HA_STATUS_TIME | HA_STATUS_CONST)) {
    /* As other engines: when the definition was written. (Of partitions it is asked for with what
       is constant.) */
    MY_STAT definition;
    const std::string file = std::string(table_share->normalized_path.str) + reg_ext;
    if (my_stat(file.c_str(), &definition, MYF(0))) stats.create_time = definition.st_ctime;
    stats.update_time = static_cast<time_t>(tp_table_changed_at(shared->table));
  }
  if (flag & HA_STATUS_AUTO) stats.auto_increment_value = tp_auto_increment(shared->table);
  if (!(flag & (HA_STATUS_VARIABLE | HA_STATUS_CONST))) return 0;

  const Counted_call counted(this);
  sample_statistics(false);
  if (flag & HA_STATUS_VARIABLE) {
    /* 0 makes the optimizer believe that the table is empty; others want to know: SHOW TABLE
       STATUS, and the search for the first empty partition for history. */
    const bool exactly = flag & (HA_STATUS_TIME | HA_STATUS_OPEN);
    stats.records = MY_MAX(tp_table_rows(shared->table), exactly ? 0 : 2);
    stats.deleted = 0;
    stats.data_file_length = shared->clustered_size;
    stats.index_file_length = shared->secondary_size;
    stats.delete_length = 0;
    stats.mean_rec_length =
        stats.records ? static_cast<ulong>(stats.data_file_length / stats.records) : 0;
    /* What is shown. The optimizer asks without these flags before each plan: it counts pages in
       the pool. */
    if (flag & (HA_STATUS_VARIABLE_EXTRA | HA_STATUS_TIME)) show_file_usage();
  }
  if (flag & HA_STATUS_CONST) {
    std::lock_guard<std::mutex> guard(shared->statistics_mutex);
    for (uint i = 0; i < table_share->keys; i++) {
      KEY &key = table->key_info[i];
      const std::vector<double> &cardinality =
          shared->cardinalities[shared->layouts.tree_of(i)].rows_per_key;
      /* Unknown, as with InnoDB: nothing is looked up by a value. */
      if (is_spatial(key)) continue;
      for (uint p = 0; p < key.ext_key_parts; p++) {
        const double rows = p < cardinality.size() ? cardinality[p] : 1.0;
        key.rec_per_key[p] = static_cast<ulong>(MY_MAX(rows + 0.5, 1.0));
      }
    }
  }
  return 0;
}

ha_rows ha_tidepool::records_in_range(uint keynr, const key_range *min, const key_range *max,
                                      page_range *) {
  const Counted_call counted(this);
  const uint index = shared->layouts.tree_of(keynr);
  const KEY *key = &table->key_info[keynr];
  if (trees()[index].is_spatial()) return min ? records_in_window(index, *min) : HA_POS_ERROR;
  Search made;
  size_t lo_len = 0, hi_len = 0;
  bool hi_open = !max;
  auto past = [](uchar *bytes, size_t *len) {
    while (*len > 0 && bytes[*len - 1] == 0xFF) (*len)--;
    if (*len == 0) return false;
    bytes[*len - 1]++;
    return true;
  };
  if (min) {
    lo_len = trees()[index].encode_search(old_key.get(), key, min->key, min->keypart_map, table,
                                          key_room, &made);
    if (min->flag == HA_READ_AFTER_KEY && !past(old_key.get(), &lo_len)) return 1;
  }
  if (max) {
    hi_len = trees()[index].encode_search(new_key.get(), key, max->key, max->keypart_map, table,
                                          key_room, &made);
    if (max->flag == HA_READ_AFTER_KEY) hi_open = !past(new_key.get(), &hi_len);
  }
  uint64_t entries = 0;
  if (tp_estimate_range(shared->table, index, {min ? old_key.get() : nullptr, lo_len},
                        {hi_open ? nullptr : new_key.get(), hi_len}, &entries) != TP_OK)
    return HA_POS_ERROR;
  /* An estimate as large as the table would make the optimizer prefer a full scan; 0 means
     certainly none. */
  const ha_rows rows = tp_table_rows(shared->table);
  const ha_rows most = MY_MAX(rows - rows / 100, 1);
  return entries == 0 ? 1 : MY_MIN(static_cast<ha_rows>(entries), most);
}

ha_rows ha_tidepool::estimate_rows_upper_bound() {
  return 2 * tp_table_rows(shared->table) + stats.data_file_length / 32 + 100;
}

#if TIDEPOOL_COSTS_ARE_PAGES
/* Costs as InnoDB's, so that plans are the same: pages of the clustered index for a scan. */
double ha_tidepool::scan_time() {
  return ulonglong2double(stats.data_file_length) / stats.block_size;
}

double ha_tidepool::read_time(uint keynr, uint ranges, ha_rows rows) {
  if (keynr != table_share->primary_key) return handler::read_time(keynr, ranges, rows);
  if (rows <= 2) return rows2double(rows);
  const double whole = scan_time();
  const ha_rows all = estimate_rows_upper_bound();
  if (all < rows) return whole;
  return ranges + rows2double(rows) / rows2double(all) * whole;
}

double ha_tidepool::keyread_time(uint keynr, uint ranges, ha_rows rows) {
  if (keynr == table_share->primary_key) return read_time(keynr, ranges, rows);
  return handler::keyread_time(keynr, ranges, rows);
}
#endif

void tidepool::setup_costs([[maybe_unused]] handlerton *hton) {
#if !TIDEPOOL_COSTS_ARE_PAGES
  /* InnoDB's, in milliseconds, so that plans are the same. */
  hton->update_optimizer_costs = [](OPTIMIZER_COSTS *costs) {
    costs->row_next_find_cost = 0.00007013;
    costs->row_lookup_cost = 0.00076597;
    costs->key_next_find_cost = 0.00009900;
    costs->key_lookup_cost = 0.00079112;
    costs->row_copy_cost = 0.00006087;
  };
#endif
}

int ha_tidepool::analyze(THD *, HA_CHECK_OPT *) {
  sample_statistics(true);
  info(HA_STATUS_VARIABLE | HA_STATUS_CONST);
  return HA_ADMIN_OK;
}

int ha_tidepool::optimize(THD *, HA_CHECK_OPT *) {
  /* The server rebuilds the table and analyzes it. */
  return HA_ADMIN_TRY_ALTER;
}
