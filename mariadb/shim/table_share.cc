/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "table_share.h"
#include "engine.h"
#include "errors.h"
#include "fulltext_merge.h"
#include "server_versions.h"

namespace tidepool {

std::string table_name_of(const char *path) {
  const char *file = strrchr(path, FN_LIBCHAR);
  file = file ? file + 1 : path;
  if (is_prefix(file, "#sql-temptable-")) {
    static const std::string life = TEMPORARY_PREFIX + std::to_string(my_hrtime().val) + "-";
    return life + file;
  }
  /* The directory is the database's. */
  const char *directory = file > path ? file - 1 : path;
  while (directory > path && directory[-1] != FN_LIBCHAR) directory--;
  return directory;
}

constexpr LEX_CSTRING ROW_ID_INDEX{STRING_WITH_LEN("#row_id")};

Layouts::Layouts(const TABLE_SHARE *share, const KEY *keys, std::vector<uint> order) {
  has_row_id = share->primary_key >= MAX_KEY;
  primary_key = has_row_id ? MAX_KEY : share->primary_key;
  if (order.empty()) {
    order.push_back(primary_key);
    for (uint i = 0; i < share->keys; i++)
      if (i != primary_key) order.push_back(i);
  }
  key_of_tree = std::move(order);
  tree_of_key.resize(share->keys);
  trees.reserve(key_of_tree.size());
  for (uint tree = 0; tree < key_of_tree.size(); tree++) {
    const uint keynr = key_of_tree[tree];
    if (keynr < MAX_KEY) {
      tree_of_key[keynr] = tree;
      trees.emplace_back(share, &keys[keynr], tree ? &trees[0] : nullptr);
    } else {
      trees.push_back(Index_layout::row_id());
    }
    has_secondary_unique |= tree && trees.back().is_unique();
    has_spatial |= trees.back().is_spatial();
  }
  for (const uint tree : tree_of_key)
    if (tree) secondary.push_back(tree);
  row = std::make_unique<Row_layout>(share, trees[0]);
}

namespace {
struct Catalog_index {
  std::string name;
  bool is_unique;
};
} // namespace

static void take_index(void *context, const char *name, size_t len, uint8_t is_unique) {
  static_cast<std::vector<Catalog_index> *>(context)->push_back(
      {std::string(name, len), is_unique != 0});
}

/* The key of each tree. A name may be an older one (see Table_share), so the trees whose keys are
   not found take those that are left. */
static std::vector<uint> order_by_names(const TABLE_SHARE *share, const KEY *keys,
                                        const std::vector<Catalog_index> &indexes) {
  const uint primary = share->primary_key >= MAX_KEY ? MAX_KEY : share->primary_key;
  constexpr uint NONE = MAX_KEY + 1;
  std::vector<uint> order(indexes.size(), NONE);
  std::vector<bool> taken(share->keys, false);
  order[0] = primary;
  if (primary < MAX_KEY) taken[primary] = true;
  for (size_t tree = 1; tree < order.size(); tree++)
    for (uint i = 0; i < share->keys && order[tree] == NONE; i++)
      if (!taken[i] && is_same_name(keys[i].name.str, indexes[tree].name.c_str())) {
        order[tree] = i;
        taken[i] = true;
      }
  uint left = 0;
  for (uint &keynr : order) {
    if (keynr != NONE) continue;
    while (taken[left]) left++;
    keynr = left;
    taken[left] = true;
  }
  return order;
}

std::unique_ptr<Layouts> Layouts::by_names(const TABLE_SHARE *share, const KEY *keys,
                                           const std::vector<std::string> &names) {
  const bool has_row_id = share->primary_key >= MAX_KEY;
  if (names.size() != share->keys + (has_row_id ? 1 : 0)) return nullptr;
  std::vector<Catalog_index> indexes;
  for (const std::string &name : names) indexes.push_back({name, false});
  std::vector<uint> order = order_by_names(share, keys, indexes);
  for (size_t tree = 0; tree < order.size(); tree++)
    if (order[tree] < MAX_KEY && !is_same_name(keys[order[tree]].name.str, names[tree].c_str()))
      return nullptr;
  return std::make_unique<Layouts>(share, keys, std::move(order));
}

int Layouts::of_trees(const TABLE_SHARE *share, const KEY *keys, const std::string &name,
                      std::unique_ptr<Layouts> *layouts) {
  std::vector<Catalog_index> indexes;
  std::string bytes;
  Metadata metadata;
  int result = tp_index_names(engine.db, name.data(), name.size(), &indexes, take_index);
  if (result == TP_OK) result = table_metadata(name, &bytes);
  if (result != TP_OK) return result;
  *layouts = std::make_unique<Layouts>(share, keys);
  if (indexes.size() != (*layouts)->trees.size() ||
      !metadata.get(reinterpret_cast<const uchar *>(bytes.data()), bytes.size()))
    return TP_OK;
  auto named = std::make_unique<Layouts>(share, keys, order_by_names(share, keys, indexes));
  bool fits = metadata.fingerprint == named->fingerprint();
  for (size_t tree = 0; tree < indexes.size(); tree++)
    fits = fits && indexes[tree].is_unique == named->trees[tree].is_unique();
  /* A crash may have left names that were exchanged since. */
  if (fits) *layouts = std::move(named);
  return TP_OK;
}

/* The order in which the server sorts unique keys (sort_keys() there), and what it asks of the
   first to take it for a primary key. */
bool has_passing_primary_key(const TABLE_SHARE *share, const KEY *keys) {
  if (share->keys == 0 || is_same_name(keys[0].name.str, "PRIMARY")) return false;
  enum { WHOLE_COLUMNS, BEGINNINGS, CAN_BE_NULL, HASH, NOT_UNIQUE } first_rank = NOT_UNIQUE;
  uint first = MAX_KEY;
  for (uint i = 0; i < share->keys; i++) {
    auto rank = WHOLE_COLUMNS;
    if (!(keys[i].flags & HA_NOSAME)) continue;
    for (uint part = 0; part < keys[i].user_defined_key_parts; part++) {
      const KEY_PART_INFO &info = keys[i].key_part[part];
      const Field *field = share->field[info.fieldnr - 1];
      const bool is_whole = !(field->flags & BLOB_FLAG) && field->key_length() == info.length;
      rank = MY_MAX(rank, field->real_maybe_null() ? CAN_BE_NULL
                          : is_whole               ? WHOLE_COLUMNS
                                                   : BEGINNINGS);
    }
    if (keys[i].algorithm == HA_KEY_ALG_LONG_HASH) rank = HASH;
    if (rank >= first_rank) continue;
    first_rank = rank;
    first = i;
  }
  /* The first of beginnings alone stays what it is: none, or, of a BLOB's whole length, the primary
     key. */
  return first_rank == WHOLE_COLUMNS && first != share->primary_key;
}

uint64 Layouts::fingerprint() const {
  uint64 print = row->fingerprint();
  for (const Index_layout &tree : trees)
    for (const Part &part : tree.all_parts())
      print = print * 0x100000001B3ULL + part.column.fieldnr + (part.image << 16) +
              (part.unpack << 20) + (part.mask << 24) +
              static_cast<uint64>(part.whole ? 0 : part.length << 8) +
              (static_cast<uint64>(part.codec.is_codes()) << 40);
  return print;
}

bool Layouts::same(const Layouts &other) const {
  if (has_row_id != other.has_row_id || primary_key != other.primary_key ||
      trees.size() != other.trees.size() || fingerprint() != other.fingerprint())
    return false;
  for (size_t i = 0; i < trees.size(); i++)
    if (!trees[i].same(other.trees[i])) return false;
  return true;
}

std::vector<tp_index_def> Layouts::definitions(const TABLE *table) const {
  std::vector<tp_index_def> all;
  for (uint tree = 0; tree < trees.size(); tree++) {
    const uint keynr = key_of(tree);
    const LEX_CSTRING name = keynr < MAX_KEY ? table->key_info[keynr].name : ROW_ID_INDEX;
    all.push_back({name.str, name.length, trees[tree].is_unique()});
  }
  return all;
}

/* Formats of rows: of version 0 alone, or with a list of versions. */
constexpr uchar ROWS_OF_ONE_VERSION = 1, ROWS_OF_VERSIONS = 2;

bool Layouts::set_fulltext(const Fulltext_settings_of &settings) {
  for (uint tree = 0; tree < trees.size(); tree++) {
    if (!trees[tree].fulltext()) continue;
    const auto found = settings.find(tree);
    if (found == settings.end()) return false;
    trees[tree].fulltext()->set(found->second);
  }
  return true;
}

constexpr uchar FULLTEXT_FORMAT = 2;

static std::string put_fulltext(const Fulltext_settings_of &all) {
  uchar head[7];
  head[4] = FULLTEXT_FORMAT;
  int2store(head + 5, static_cast<uint16>(all.size()));
  std::string bytes(reinterpret_cast<char *>(head), sizeof head);
  for (const auto &[tree, settings] : all) {
    uchar number[2];
    int2store(number, static_cast<uint16>(tree));
    bytes.append(reinterpret_cast<char *>(number), sizeof number);
    settings.put(&bytes);
  }
  int4store(reinterpret_cast<uchar *>(&bytes[0]), static_cast<uint32>(bytes.size() - 4));
  return bytes;
}

/* Takes it off the front. */
static bool get_fulltext(const uchar **from, const uchar *limit, Fulltext_settings_of *all) {
  if (limit - *from < 7) return false;
  const size_t len = uint4korr(*from);
  if (len < 3 || static_cast<size_t>(limit - *from) - 4 < len || (*from)[4] != FULLTEXT_FORMAT)
    return false;
  const uint count = uint2korr(*from + 5);
  const uchar *at = *from + 7, *const end = *from + 4 + len;
  *from = end;
  for (uint i = 0; i < count; i++) {
    if (end - at < 2) return false;
    const uint tree = uint2korr(at);
    at += 2;
    if (!(*all)[tree].get(&at, end)) return false;
  }
  return at == end;
}

std::string Metadata::put() const {
  uchar head[SIZE];
  head[0] = KEY_FORMAT | (fulltext.empty() ? 0 : HAS_FULLTEXT) | (has_spatial ? HAS_SPATIAL : 0);
  head[1] = versions.empty() ? ROWS_OF_ONE_VERSION : ROWS_OF_VERSIONS;
  int8store(head + 2, fingerprint);
  std::string bytes(reinterpret_cast<char *>(head), sizeof head);
  if (!fulltext.empty()) bytes += put_fulltext(fulltext);
  if (!versions.empty()) versions.put(&bytes);
  return bytes;
}

bool Metadata::get(const uchar *from, size_t len) {
  constexpr uchar BITS = HAS_FOREIGN_KEYS | HAS_FULLTEXT | HAS_SPATIAL;
  if (len < SIZE || (from[0] & ~BITS) != KEY_FORMAT) return false;
  has_spatial = from[0] & HAS_SPATIAL;
  fingerprint = uint8korr(from + 2);
  versions = {};
  fulltext.clear();
  const uchar *at = from + SIZE, *const end = from + len;
  if ((from[0] & HAS_FULLTEXT) && !get_fulltext(&at, end, &fulltext)) return false;
  if (from[1] == ROWS_OF_ONE_VERSION) return true;
  return from[1] == ROWS_OF_VERSIONS && versions.get(at, end - at);
}

int table_metadata(const std::string &name, std::string *bytes) {
  size_t len = Metadata::SIZE;
  /* It may grow in between. */
  do {
    bytes->resize(len);
    const int result =
        tp_table_metadata(engine.db, name.data(), name.size(),
                          reinterpret_cast<uint8_t *>(&(*bytes)[0]), bytes->size(), &len);
    if (result != TP_OK) return result;
  } while (len > bytes->size());
  bytes->resize(len);
  return TP_OK;
}

/* The open table of this name. */
static int open_table(const std::string &name, tp_table **table) {
  const int result = tp_table_open(engine.db, name.data(), name.size(), table);
  if (result == TP_OK && is_prefix(name.c_str(), TEMPORARY_PREFIX)) tp_table_set_temporary(*table);
  return result;
}

Table_share::Table_share(const TABLE *form, const char *path, int *error)
    : name(table_name_of(path)), layouts(form), pending(new Pending_state[layouts.trees.size()]),
      cardinalities(layouts.trees.size()), spatial(layouts.trees.size()) {
  *error = server_error(open_table(name, &table), current_thd);
  if (*error) {
    table = nullptr;
    return;
  }
  if ((*error = read_definition(form))) {
    tp_table_close(table);
    table = nullptr;
  }
}

int Table_share::read_definition(const TABLE *form) {
  std::string bytes;
  std::unique_ptr<Layouts> found;
  int result = table_metadata(name, &bytes);
  if (result == TP_OK) result = Layouts::of_trees(form->s, form->key_info, name, &found);
  if (result != TP_OK) return server_error(result, current_thd);
  layouts = std::move(*found);
  /* Not HA_ERR_TABLE_DEF_CHANGED: the server would remove the .frm file, in the hope of another one
     from the engine. */
  if (!metadata.get(reinterpret_cast<const uchar *>(bytes.data()), bytes.size())) {
    sql_print_error(
        "Tidepool: table %s was written by another version of Tidepool, in a format that this one "
        "does not read: dump the table with that version, and load it here",
        name.c_str());
    return HA_ERR_INCOMPATIBLE_DEFINITION;
  }
  if (metadata.fingerprint != layouts.fingerprint() ||
      metadata.has_spatial != layouts.has_spatial ||
      tp_table_index_count(table) != layouts.trees.size() ||
      !layouts.row->set_versions(metadata.versions) || !layouts.set_fulltext(metadata.fulltext)) {
    sql_print_error(
        "Tidepool: table %s is not the one that its .frm file describes: restore the two from the "
        "same "
        "backup",
        name.c_str());
    return HA_ERR_INCOMPATIBLE_DEFINITION;
  }
  /* A crash may have come between the two places of a name. Without it, reports say another, and
     that is all. */
  const std::vector<tp_index_def> indexes = layouts.definitions(form);
  tp_learn_index_names(engine.db, name.data(), name.size(), indexes.data(), indexes.size());
  return 0;
}

bool Table_share::is_temporary() const { return is_prefix(name.c_str(), TEMPORARY_PREFIX); }

int Table_share::reload(const TABLE *form) {
  if (const int result = reopen()) return server_error(result, current_thd);
  return read_definition(form);
}

Table_share::~Table_share() {
  end_merges(this);
  if (table) tp_table_close(table);
}

int Table_share::reopen() {
  tp_table *opened;
  if (int result = open_table(name, &opened)) return result;
  tp_table_close(table);
  table = opened;
  statistics_known = false;
  generation++;
  return TP_OK;
}

} // namespace tidepool
