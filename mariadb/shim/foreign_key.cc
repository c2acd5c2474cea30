/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* The constraints of all tables, in memory and in the engine's catalog. */
#include "definition_files.h"
#include "foreign_key.h"
#include "engine.h"
#include "errors.h"
#include "foreign_key_index.h"
#include "server_versions.h"
#include "table_share.h"
#include <algorithm>

namespace tidepool {

Foreign_keys foreign_keys;

Constraint_ptr Constraint::note_of_copy(const std::string &copy, const std::string &of) {
  auto note = std::make_shared<Constraint>();
  note->child = copy;
  note->parent = of;
  note->is_copied = true;
  return note;
}

/* ---- names */

bool is_intermediate(const std::string &table) {
  const size_t slash = table.find('/');
  return slash != std::string::npos && table.compare(slash + 1, 4, "#sql") == 0;
}

std::string engine_name(const LEX_CSTRING &db, const LEX_CSTRING &table) {
  char name[NAME_LEN * 5 + 1];
  std::string whole(name, tablename_to_filename(db.str, name, sizeof name));
  whole += '/';
  return whole.append(name, tablename_to_filename(table.str, name, sizeof name));
}

void server_names(const std::string &table, std::string *db, std::string *name) {
  const size_t slash = table.find('/');
  char text[NAME_LEN * 5 + 1];
  size_t len = filename_to_tablename(table.substr(0, slash).c_str(), text, sizeof text, true);
  db->assign(text, len);
  if (is_intermediate(table)) {
    *name = table.substr(slash + 1);
    return;
  }
  len = filename_to_tablename(table.substr(slash + 1).c_str(), text, sizeof text, true);
  name->assign(text, len);
}

bool same_identifier(const std::string &a, const std::string &b) {
  return is_same_name(a.c_str(), b.c_str());
}

static void append_quoted(THD *thd, std::string *to, const std::string &name) {
  StringBuffer<NAME_LEN * 2> quoted(system_charset_info);
  append_identifier(thd, &quoted, name.data(), name.size());
  to->append(quoted.ptr(), quoted.length());
}

static void append_columns(THD *thd, std::string *to, const std::vector<std::string> &columns) {
  to->append(" (");
  for (size_t i = 0; i < columns.size(); i++) {
    if (i) to->append(", ");
    append_quoted(thd, to, columns[i]);
  }
  to->append(")");
}

static void append_action(std::string *to, const char *event, Constraint::Action action) {
  static const char *const names[] = {nullptr, "NO ACTION", "CASCADE", "SET NULL"};
  if (names[action]) to->append(" ON ").append(event).append(" ").append(names[action]);
}

std::string foreign_key_clause(THD *thd, const Constraint &key) {
  std::string text = "CONSTRAINT ", db, table;
  append_quoted(thd, &text, key.name);
  text += " FOREIGN KEY";
  append_columns(thd, &text, key.columns);
  text += " REFERENCES ";
  server_names(key.parent, &db, &table);
  if (database_of(key.parent) != database_of(key.child)) {
    append_quoted(thd, &text, db);
    text += '.';
  }
  append_quoted(thd, &text, table);
  append_columns(thd, &text, key.referenced);
  append_action(&text, "DELETE", key.on_delete);
  append_action(&text, "UPDATE", key.on_update);
  return text;
}

std::string foreign_key_of_table(THD *thd, const Constraint &key) {
  std::string text, db, table;
  server_names(key.child, &db, &table);
  append_quoted(thd, &text, db);
  text += '.';
  append_quoted(thd, &text, table);
  return text + ", " + foreign_key_clause(thd, key);
}

/* ---- stored */

constexpr uchar FOREIGN_KEYS_VERSION = 1;

static void put_number(std::string *to, size_t number, uint bytes) {
  for (uint i = 0; i < bytes; i++) to->push_back(static_cast<char>(number >> (8 * i)));
}

static void put_name(std::string *to, const std::string &name) {
  put_number(to, name.size(), 2);
  *to += name;
}

namespace {
/* Reads what was put; once something is missing, nothing more is there. */
struct Taker {
  const std::string &bytes;
  size_t at, end;
  bool good = true;

  size_t number(uint count) {
    if (!good || end - at < count) {
      good = false;
      return 0;
    }
    size_t value = 0;
    for (uint i = 0; i < count; i++)
      value |= static_cast<size_t>(static_cast<uchar>(bytes[at + i])) << (8 * i);
    at += count;
    return value;
  }
  std::string name() {
    const size_t len = number(2);
    if (!good || end - at < len) {
      good = false;
      return {};
    }
    at += len;
    return bytes.substr(at - len, len);
  }
  Constraint::Action action() {
    const size_t value = number(1);
    if (value > Constraint::SET_NULL) good = false;
    return good ? static_cast<Constraint::Action>(value) : Constraint::RESTRICT;
  }
};
} // namespace

static bool has_part(const std::string &metadata) {
  return !metadata.empty() && (static_cast<uchar>(metadata[0]) & Metadata::HAS_FOREIGN_KEYS);
}

std::string metadata_with(const std::string &metadata, const Constraint_list &keys) {
  std::string whole = metadata;
  if (has_part(metadata)) {
    Taker length{metadata, metadata.size() - MY_MIN(metadata.size(), 4), metadata.size()};
    whole.resize(metadata.size() - MY_MIN(metadata.size(), 4 + length.number(4)));
    whole[0] &= static_cast<char>(~Metadata::HAS_FOREIGN_KEYS);
  }
  if (keys.empty()) return whole;
  std::string part(1, static_cast<char>(FOREIGN_KEYS_VERSION));
  put_number(&part, keys.size(), 2);
  for (const Constraint_ptr &key : keys) {
    put_name(&part, key->name);
    put_name(&part, key->parent);
    part.push_back(static_cast<char>(key->on_delete));
    part.push_back(static_cast<char>(key->on_update));
    put_number(&part, key->columns.size(), 2);
    for (size_t i = 0; i < key->columns.size(); i++) {
      put_name(&part, key->columns[i]);
      put_name(&part, key->referenced[i]);
    }
  }
  whole[0] |= static_cast<char>(Metadata::HAS_FOREIGN_KEYS);
  whole += part;
  put_number(&whole, part.size(), 4);
  return whole;
}

bool metadata_foreign_keys(const std::string &metadata, const std::string &child,
                           Constraint_list *keys) {
  keys->clear();
  if (!has_part(metadata)) return true;
  if (metadata.size() < 4) return false;
  Taker length{metadata, metadata.size() - 4, metadata.size()};
  const size_t len = length.number(4);
  if (len > metadata.size() - 4) return false;
  Taker part{metadata, metadata.size() - 4 - len, metadata.size() - 4};
  if (part.number(1) != FOREIGN_KEYS_VERSION) return false;
  const size_t count = part.number(2);
  for (size_t i = 0; part.good && i < count; i++) {
    auto key = std::make_shared<Constraint>();
    key->child = child;
    key->name = part.name();
    key->parent = part.name();
    key->on_delete = part.action();
    key->on_update = part.action();
    const size_t columns = part.number(2);
    for (size_t column = 0; part.good && column < columns; column++) {
      key->columns.push_back(part.name());
      key->referenced.push_back(part.name());
    }
    keys->push_back(std::move(key));
  }
  return part.good && part.at == part.end;
}

/* ---- all of them */

static void take_table(void *context, const char *name, size_t len) {
  static_cast<std::vector<std::string> *>(context)->emplace_back(name, len);
}

void Foreign_keys::load() {
  std::lock_guard<std::mutex> guard(definitions);
  std::vector<std::string> tables;
  tp_table_names(engine.db, &tables, take_table);
  By_child found;
  for (const std::string &table : tables) {
    if (is_prefix(table.c_str(), TEMPORARY_PREFIX)) continue;
    std::string metadata;
    Constraint_list keys;
    if (table_metadata(table, &metadata) != TP_OK) continue;
    if (!metadata_foreign_keys(metadata, table, &keys)) {
      sql_print_error(
          "Tidepool: table %s: its foreign keys were written by another version of Tidepool, and "
          "this one does not enforce them: drop them, and add them again",
          table.c_str());
      continue;
    }
    if (!keys.empty()) found[table] = std::move(keys);
  }
  {
    std::lock_guard<std::mutex> nobody_looks(mutex);
    by_child.clear();
  }
  take(std::move(found));
}

Constraint_list Foreign_keys::all_of_child(const std::string &table) const {
  std::lock_guard<std::mutex> guard(mutex);
  const auto found = by_child.find(table);
  return found == by_child.end() ? Constraint_list{} : found->second;
}

static bool is_note(const Constraint_ptr &key) { return key->is_note(); }

Constraint_list Foreign_keys::of_child(const std::string &table) const {
  Constraint_list keys = all_of_child(table);
  keys.erase(std::remove_if(keys.begin(), keys.end(), is_note), keys.end());
  return keys;
}

Constraint_list Foreign_keys::of_parent(const std::string &table) const {
  std::lock_guard<std::mutex> guard(mutex);
  const auto found = by_parent.find(table);
  return found == by_parent.end() ? Constraint_list{} : found->second;
}

bool Foreign_keys::is_concerned(const std::string &table) const {
  std::lock_guard<std::mutex> guard(mutex);
  return by_child.count(table) || by_parent.count(table);
}

bool Foreign_keys::has_name(const std::string &name, const std::string &child,
                            const std::string &but) const {
  std::lock_guard<std::mutex> guard(mutex);
  const std::string db = database_of(child);
  for (const auto &table : by_child) {
    if (table.first == child || table.first == but || is_intermediate(table.first) ||
        database_of(table.first) != db)
      continue;
    for (const Constraint_ptr &key : table.second)
      if (same_identifier(key->name, name)) return true;
  }
  return false;
}

/* Takes over the constraints of these children; an empty list: the table has none, or is gone. */
void Foreign_keys::take(By_child changed) {
  std::lock_guard<std::mutex> guard(mutex);
  for (auto &table : changed) {
    if (table.second.empty()) {
      by_child.erase(table.first);
      continue;
    }
    /* So that a definition looks the same however it came about. */
    std::sort(table.second.begin(), table.second.end(),
              [](const Constraint_ptr &a, const Constraint_ptr &b) { return a->name < b->name; });
    by_child[table.first] = std::move(table.second);
  }
  by_parent.clear();
  for (const auto &table : by_child) {
    if (is_intermediate(table.first)) continue;
    for (const Constraint_ptr &key : table.second) by_parent[key->parent].push_back(key);
  }
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

void Foreign_keys::set(const std::string &child, Constraint_list keys) {
  aside.erase(child);
  const bool had = !all_of_child(child).empty();
  if (!had && keys.empty()) {
    note_change_of(child);
    return;
  }
  By_child changed;
  changed[child] = std::move(keys);
  take(std::move(changed));
}

void Foreign_keys::note_change_of(const std::string &table) {
  if (is_concerned(table)) generation_.fetch_add(1, std::memory_order_acq_rel);
}

void Foreign_keys::touch(const std::string &table) {
  note_change_of(table);
  close_foreign_indexes_of(table);
}

void Foreign_keys::forget(const std::string &child) {
  set(child, {});
  close_foreign_indexes_of(child);
}

namespace {
/* Metadata of tables, by their names. */
using Metadata_of_tables = std::map<std::string, std::string>;

/* The same as the engine wants them, as long as they live. */
std::vector<tp_table_metadata_of> all_of(const Metadata_of_tables &metadata) {
  std::vector<tp_table_metadata_of> tables;
  for (const auto &table : metadata)
    tables.push_back({table.first.data(), table.first.size(),
                      reinterpret_cast<const uint8_t *>(table.second.data()), table.second.size()});
  return tables;
}

/* Metadata as they are now, but with these constraints. A TP_* code. */
int metadata_of(const std::map<std::string, Constraint_list> &changed,
                Metadata_of_tables *metadata) {
  for (const auto &table : changed) {
    std::string now;
    if (int result = table_metadata(table.first, &now)) return result;
    (*metadata)[table.first] = metadata_with(now, table.second);
  }
  return TP_OK;
}
} // namespace

/* Writes the constraints of these tables (by their names of before) to the catalog, with a rename
   if there is one. */
int Foreign_keys::store(const By_child &changed, Attachments &attached, const std::string *from,
                        const std::string *to) {
  Metadata_of_tables metadata;
  if (int result = metadata_of(changed, &metadata)) return result;
  const std::vector<tp_table_metadata_of> tables = all_of(metadata);
  tp_catalog_change change{};
  tp_rename rename{};
  if (from) {
    rename = {{from->data(), from->size()}, {to->data(), to->size()}};
    change.renames = &rename;
    change.rename_count = 1;
  }
  change.tables = tables.data();
  change.table_count = tables.size();
  change.attached = *attached.get();
  return tp_change_tables(engine.db, &change);
}

int Foreign_keys::replace(const std::string &child, const Constraint_list &keys,
                          Attachments &attached) {
  By_child changed;
  changed[child] = keys;
  const int result = store(changed, attached);
  if (result == TP_OK) take(std::move(changed));
  return result;
}

std::string renamed_constraint(const std::string &name, const std::string &from,
                               const std::string &to) {
  std::string db, old_table, new_table;
  server_names(from, &db, &old_table);
  server_names(to, &db, &new_table);
  const std::string prefix = old_table + "_ibfk_";
  if (name.compare(0, prefix.size(), prefix) != 0 || name.size() == prefix.size() ||
      !std::all_of(name.begin() + prefix.size(), name.end(),
                   [](char c) { return c >= '0' && c <= '9'; }))
    return name;
  return new_table + name.substr(old_table.size());
}

int Foreign_keys::rename(const std::string &from, const std::string &to, std::string altered,
                         Attachments &attached) {
  const bool is_users = !is_intermediate(from) && !is_intermediate(to);
  By_child stored, taken;
  Constraint_list own = all_of_child(from);
  const auto note = std::find_if(own.begin(), own.end(), is_note);
  const bool has_note = note != own.end() && !is_intermediate(to);
  if (has_note) {
    if (altered.empty()) altered = (*note)->parent;
    own.erase(note);
  }
  Constraint_list renamed;
  for (const Constraint_ptr &key : own) {
    auto copy = std::make_shared<Constraint>(*key);
    copy->child = to;
    copy->is_copied = false;
    if (is_users) {
      copy->name = renamed_constraint(key->name, from, to);
      if (copy->parent == from) copy->parent = to;
      if (has_name(copy->name, to, from)) return TP_DUPLICATE;
    }
    renamed.push_back(std::move(copy));
  }
  if ((is_users && !own.empty()) || has_note) stored[from] = renamed;
  /* A statement that changes a parent's rows must always find its child known, for it does not wait
     for a name that it doesn't know. So what ALTER TABLE renames aside stays here, under its name,
     until what takes its place is there. */
  const bool goes_aside = !is_intermediate(from) && is_intermediate(to);
  if (!own.empty() || has_note || aside.count(to)) {
    if (!goes_aside) taken[from] = {};
    taken[to] = std::move(renamed);
  }
  const bool has_moved =
      !is_intermediate(to) && !altered.empty() && altered != to && aside.count(altered);
  if (has_moved) taken[altered] = {};
  const std::string &referenced = is_users ? from : altered;
  if (!is_intermediate(to) && !referenced.empty() && referenced != to) {
    for (const Constraint_ptr &referencing : of_parent(referenced)) {
      if (referencing->child == from || referencing->child == referenced ||
          stored.count(referencing->child))
        continue;
      Constraint_list keys;
      for (const Constraint_ptr &key : of_child(referencing->child)) {
        auto copy = std::make_shared<Constraint>(*key);
        if (copy->parent == referenced) copy->parent = to;
        keys.push_back(std::move(copy));
      }
      stored[referencing->child] = keys;
      taken[referencing->child] = std::move(keys);
    }
  }
  if (int result = store(stored, attached, &from, &to)) return result;
  if (goes_aside && !own.empty()) aside.insert(from);
  aside.erase(to);
  if (has_moved) aside.erase(altered);
  const bool touched = !taken.empty();
  if (touched) take(std::move(taken));
  touch(from);
  touch(to);
  return TP_OK;
}

/* The constraints of tables, where they mention columns that have other names now. */
Foreign_keys::By_child Foreign_keys::with_renamed_columns(const std::string &table,
                                                          const Renamed_columns &renamed) const {
  By_child changed;
  if (renamed.empty()) return changed;
  auto rename_in = [&](std::vector<std::string> *columns) {
    bool is_one = false;
    for (std::string &column : *columns)
      for (const auto &pair : renamed)
        if (same_identifier(column, pair.first)) {
          column = pair.second;
          is_one = true;
          break;
        }
    return is_one;
  };
  std::set<std::string> children{table};
  for (const Constraint_ptr &key : of_parent(table)) children.insert(key->child);
  for (const std::string &child : children) {
    Constraint_list keys;
    bool differ = false;
    for (const Constraint_ptr &key : of_child(child)) {
      auto copy = std::make_shared<Constraint>(*key);
      if (copy->child == table) differ |= rename_in(&copy->columns);
      if (copy->parent == table) differ |= rename_in(&copy->referenced);
      keys.push_back(std::move(copy));
    }
    if (differ) changed[child] = std::move(keys);
  }
  return changed;
}

int Foreign_keys::rename_columns(const std::string &table, const Renamed_columns &renamed,
                                 Attachments &attached) {
  By_child changed = with_renamed_columns(table, renamed);
  const int result = store(changed, attached);
  if (result == TP_OK && !changed.empty()) take(std::move(changed));
  return result;
}

int Foreign_keys::commit_changes(const std::vector<Table_change> &changes,
                                 const Renamed_columns &renamed, Attachments &attached) {
  By_child changed;
  Metadata_of_tables metadata;
  std::vector<tp_index_change *> all;
  for (const Table_change &change : changes) {
    all.push_back(change.change);
    changed.merge(with_renamed_columns(change.table, renamed));
  }
  if (int result = metadata_of(changed, &metadata)) {
    for (tp_index_change *change : all) tp_change_free(change);
    return result;
  }
  for (const Table_change &change : changes) {
    const auto keys = changed.find(change.table);
    metadata[change.table] = metadata_with(
        change.metadata, keys == changed.end() ? of_child(change.table) : keys->second);
  }
  const std::vector<tp_table_metadata_of> tables = all_of(metadata);
  const int result =
      tp_change_commit(all.data(), all.size(), tables.data(), tables.size(), attached.get());
  if (result == TP_OK && !changed.empty()) take(std::move(changed));
  for (const Table_change &change : changes) touch(change.table);
  return result;
}

} // namespace tidepool
