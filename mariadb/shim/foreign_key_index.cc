/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "foreign_key_index.h"
#include "engine.h"
#include "errors.h"
#include "server_versions.h"
#include "session.h"
#include "sql_base.h"
#include "table_cache.h"
#include <map>
#include <mutex>
#include <set>

namespace tidepool {

/* ---- definitions by name */

namespace {
/* A request for a metadata lock on a table. */
struct Request {
  std::string db, name;
  MDL_request request;

  Request(const std::string &table, enum_mdl_type type,
          enum_mdl_duration duration = MDL_TRANSACTION) {
    server_names(table, &db, &name);
    MDL_REQUEST_INIT(&request, MDL_key::TABLE, db.c_str(), name.c_str(), type, duration);
  }
  bool lock(THD *thd, double timeout_s) {
    return !thd->mdl_context.acquire_lock(&request, timeout_s);
  }
  bool is_held(THD *thd) const {
    return thd->mdl_context.is_lock_owner(MDL_key::TABLE, db.c_str(), name.c_str(), request.type);
  }
  bool try_lock(THD *thd) { return !thd->mdl_context.try_acquire_lock(&request) && request.ticket; }
};

/* Takes the error of a wait that was too long. */
class Timeout_handler final : public Internal_error_handler {
public:
  bool met = false;
  bool handle_condition(THD *, uint code, const char *, Sql_condition::enum_warning_level *,
                        const char *, Sql_condition **) override {
    if (code != ER_LOCK_WAIT_TIMEOUT) return false;
    return met = true;
  }
};

constexpr double QUEUE_PASSED_AFTER_S = 1;

double timeout_of(THD *thd) { return static_cast<double>(thd->variables.lock_wait_timeout); }
} // namespace

bool lock_definition(THD *thd, const std::string &table) {
  /* ALTER TABLE holds it with the least of locks since it has read the constraints
     (try_lock_definition()), and asks for no more: behind one who waits for that lock it would wait
     for itself. */
  const bool is_held = Request(table, MDL_SHARED_HIGH_PRIO).is_held(thd);
  return Request(table, is_held ? MDL_SHARED_HIGH_PRIO : MDL_SHARED_READ)
      .lock(thd, timeout_of(thd));
}

bool lock_definition_for_rows(THD *thd, const std::string &table) {
  const double timeout_s = timeout_of(thd), first_s = MY_MIN(timeout_s, QUEUE_PASSED_AFTER_S);
  Timeout_handler timeout;
  thd->push_internal_handler(&timeout);
  const bool locked = Request(table, MDL_SHARED_READ).lock(thd, first_s);
  thd->pop_internal_handler();
  if (locked || !timeout.met) return locked;
  /* This one waits for those alone who have the table to themselves, not for those who want it. It
     keeps the definition as it is, and more is not asked for. */
  return Request(table, MDL_SHARED_HIGH_PRIO).lock(thd, timeout_s - first_s);
}

bool lock_definition_to_write(THD *thd, const std::string &table) {
  return Request(table, MDL_SHARED_WRITE).lock(thd, timeout_of(thd));
}

bool try_lock_definition(THD *thd, const std::string &table) {
  return Request(table, MDL_SHARED_HIGH_PRIO, MDL_STATEMENT).try_lock(thd);
}

Definition::Definition(THD *thd, const std::string &table) {
  std::string db, name;
  server_names(table, &db, &name);
  const LEX_CSTRING db_name{db.c_str(), db.size()}, table_name{name.c_str(), name.size()};
  TABLE_LIST reference;
  reference.init_one_table(&db_name, &table_name, nullptr, TL_READ);
  Dummy_error_handler quiet;
  thd->push_internal_handler(&quiet);
  TABLE_SHARE *found = tdc_acquire_share(thd, &reference, GTS_TABLE);
  thd->pop_internal_handler();
  if (!found) return;
  if (found->db_type() != engine.hton) {
    is_foreign = true;
    tdc_release_share(found);
    return;
  }
  share = found;
}

Definition::~Definition() {
  if (share) tdc_release_share(const_cast<TABLE_SHARE *>(share));
}

/* ---- columns and indexes */

bool columns_of(const TABLE_SHARE *share, const std::vector<std::string> &names,
                std::vector<uint16> *columns, std::string *missing) {
  columns->clear();
  for (const std::string &name : names) {
    uint i = 0;
    while (i < share->fields && !is_same_name(share->field[i]->field_name.str, name.c_str())) i++;
    if (i == share->fields) {
      *missing = name;
      return false;
    }
    columns->push_back(static_cast<uint16>(i));
  }
  return true;
}

static bool begins_with(const Index_layout &layout, const std::vector<uint16> &columns,
                        bool *is_prefix) {
  if (layout.fulltext() || layout.is_spatial()) return false;
  const std::vector<Part> &parts = layout.all_parts();
  /* Of a unique index, the clustered key stands behind the parts only where one is NULL. */
  const size_t count = layout.is_unique() ? layout.user_parts() : parts.size();
  if (columns.size() > count) return false;
  bool whole = true;
  for (size_t i = 0; i < columns.size(); i++) {
    if (parts[i].image == Part::ROW_ID || parts[i].column.fieldnr != columns[i]) return false;
    whole &= parts[i].whole;
  }
  if (!whole && is_prefix) *is_prefix = true;
  return whole;
}

bool is_whole_key(const Layouts &layouts, int tree, size_t columns) {
  const Index_layout &layout = layouts.trees[tree];
  return layout.is_unique() &&
         (tree == 0 ? layout.all_parts().size() : layout.user_parts()) == columns;
}

int tree_of_columns(const Layouts &layouts, const std::vector<uint16> &columns, bool *is_prefix) {
  int found = -1;
  for (uint tree = 0; tree < layouts.trees.size(); tree++) {
    if (!begins_with(layouts.trees[tree], columns, is_prefix)) continue;
    if (is_whole_key(layouts, tree, columns.size())) return tree;
    if (found < 0) found = tree;
  }
  return found;
}

bool can_be_in_foreign_key(const TABLE_SHARE *share, uint16 column) {
  const Field *field = share->field[column];
  return field->stored_in_db() && !(field->flags & BLOB_FLAG) && !field->compression_method();
}

Part part_of_column(const TABLE_SHARE *share, uint16 column) {
  KEY_PART_INFO info{};
  info.field = share->field[column];
  info.fieldnr = static_cast<uint16>(column + 1);
  info.length = static_cast<uint16>(info.field->key_length());
  return Part(share, &info);
}

bool are_comparable(const TABLE_SHARE *a, uint16 a_column, const TABLE_SHARE *b, uint16 b_column) {
  if (!can_be_in_foreign_key(a, a_column) || !can_be_in_foreign_key(b, b_column)) return false;
  const Field *a_field = a->field[a_column], *b_field = b->field[b_column];
  const Part x = part_of_column(a, a_column), y = part_of_column(b, b_column);
  if (x.image != y.image) return false;
  if (x.image == Part::STRING)
    return x.column.cs == y.column.cs && x.codec.pads() == y.codec.pads() &&
           x.codec.is_bytes() == y.codec.is_bytes();
  if (x.image_length != y.image_length || x.column.size != y.column.size) return false;
  switch (x.image) {
    case Part::RAW:
    case Part::SORTED:
      return a_field->real_type() == b_field->real_type() &&
             a_field->type_handler() == b_field->type_handler() &&
             a_field->decimals() == b_field->decimals() &&
             a_field->field_length == b_field->field_length;
    default: return true;
  }
}

/* ---- one index */

namespace {
/* Those that have a table open, by its name. Statements look here only when they open one. */
std::mutex open_indexes_mutex;
std::map<std::string, std::set<Foreign_index *>> open_indexes;
} // namespace

Foreign_index::~Foreign_index() {
  if (!room.empty()) {
    std::lock_guard<std::mutex> guard(open_indexes_mutex);
    const auto found = open_indexes.find(name);
    if (found != open_indexes.end() && found->second.erase(this) && found->second.empty())
      open_indexes.erase(found);
  }
  if (reader) tp_reader_close(reader);
  if (opened) tp_table_close(opened);
}

void close_foreign_indexes_of(const std::string &table) {
  std::vector<std::pair<tp_table *, tp_reader *>> closed;
  {
    std::lock_guard<std::mutex> guard(open_indexes_mutex);
    const auto found = open_indexes.find(table);
    if (found == open_indexes.end()) return;
    for (Foreign_index *index : found->second) {
      closed.emplace_back(index->opened, index->reader);
      index->opened = nullptr;
      index->reader = nullptr;
    }
    open_indexes.erase(found);
  }
  for (const auto &[opened, reader] : closed) {
    tp_reader_close(reader);
    tp_table_close(opened);
  }
}

bool Foreign_index::key_differs(const uchar *a, const uchar *b) const {
  return own_columns.empty() ||
         std::any_of(own_columns.begin(), own_columns.end(),
                     [=](const Column &column) { return !column.same(a, b); });
}

int Foreign_index::open(THD *thd, const std::string &table, const std::vector<std::string> &columns,
                        const TABLE_SHARE *own_share, const std::vector<std::string> &own_names) {
  name = table;
  std::vector<uint16> there, here;
  std::string missing;
  if (!columns_of(own_share, own_names, &here, &missing)) {
    problem_ = "there is no column " + missing;
    return 0;
  }
  for (uint16 column : here) {
    own_columns.emplace_back(own_share->field[column], own_share);
    own_columns.back().null_image = nullptr;
  }
  const Definition definition(thd, table);
  if (!definition.share) {
    problem_ = definition.is_foreign ? "the other table is not a plain table of this engine"
                                     : "the other table does not exist";
    return 0;
  }
  if (!columns_of(definition.share, columns, &there, &missing)) {
    problem_ = "there is no column " + missing;
    return 0;
  }
  for (size_t i = 0; i < there.size(); i++)
    if (!are_comparable(own_share, here[i], definition.share, there[i])) {
      problem_ = "the types of " + own_names[i] + " and " + columns[i] + " differ";
      return 0;
    }
  std::unique_ptr<Layouts> trees;
  const int read = Layouts::of_trees(definition.share, definition.share->key_info, table, &trees);
  if (read == TP_TABLE_MISSING) {
    problem_ = "the other table does not exist";
    return 0;
  }
  if (read != TP_OK) return server_error(read, thd);
  const Layouts &layouts = *trees;
  const int found = tree_of_columns(layouts, there);
  if (found < 0) {
    problem_ = "no index of the other table begins with the columns";
    return 0;
  }
  tree_ = static_cast<uint>(found);
  is_point = is_whole_key(layouts, found, there.size());
  size_t key_max = 0;
  for (size_t i = 0; i < there.size(); i++) {
    own.push_back(part_of_column(own_share, here[i]));
    other.push_back(layouts.trees[found].all_parts()[i]);
    /* Nothing of the definition is used later, but what collations are. */
    own.back().column.null_image = other.back().column.null_image = nullptr;
    const Part &part = other.back();
    key_max += 1 + own.back().encoded_max;
    if (part.image != Part::STRING) continue;
    key_max += part.codec.encoded_max(own.back().column.size);
    scratch.scratch_len =
        MY_MAX(scratch.scratch_len, part.codec.scratch_size(own.back().column.size));
  }
  room.resize(key_max);
  scratch.scratch = std::make_unique<uchar[]>(scratch.scratch_len);
  return open_reader(thd);
}

int Foreign_index::open_reader(THD *thd) {
  const int result = tp_table_open(engine.db, name.data(), name.size(), &opened);
  if (result == TP_TABLE_MISSING) {
    opened = nullptr;
    problem_ = "the other table does not exist";
    return 0;
  }
  if (result != TP_OK) {
    opened = nullptr;
    return server_error(result, thd);
  }
  if (const int failed = tp_reader_open(opened, &reader)) {
    reader = nullptr;
    return server_error(failed, thd);
  }
  std::lock_guard<std::mutex> guard(open_indexes_mutex);
  open_indexes[name].insert(this);
  return 0;
}

bool Foreign_index::encode(const uchar *record, TABLE *own_table) {
  uchar *to = room.data();
  for (size_t i = 0; i < own.size(); i++) {
    const Part &from = own[i], &part = other[i];
    if (from.column.is_null(record)) return false;
    uchar *const start = to;
    if (part.column.null_mask) *to++ = 1;
    if (part.image == Part::STRING) {
      /* Not put(), which would cut what is longer than the other column can be. */
      size_t text_len;
      const uchar *text = from.column.text(record, &text_len);
      if (from.column.storage == Column::CHAR)
        text_len = from.column.cs->lengthsp(reinterpret_cast<const char *>(text), text_len);
      to = part.codec.encode(to, text, text_len, scratch.scratch.get(), scratch.scratch_len);
    } else {
      to = from.put(to, record + from.column.offset, 0, own_table, scratch);
    }
    if (part.mask)
      for (uchar *at = start; at < to; at++) *at ^= part.mask;
  }
  len = to - room.data();
  return true;
}

int Foreign_index::find(tp_transaction *transaction, int lock, int wait) {
  tp_reader_set_lock(reader, lock, wait);
  tp_entry entry;
  if (is_point) {
    const tp_read_request request{tree_, {room.data(), len}, TP_READ_NOTHING};
    return tp_read(reader, transaction, &request, &entry);
  }
  std::vector<uchar> end(room.begin(), room.begin() + len);
  size_t end_len = len;
  if (successor(end.data(), &end_len)) tp_reader_set_end(reader, tree_, {end.data(), end_len});
  const tp_seek_request seek{tree_, {room.data(), len}, TP_AT_OR_AFTER};
  int result = tp_seek(reader, transaction, &seek, &entry);
  if (result == TP_OK && (entry.key_len < len || memcmp(entry.key, room.data(), len) != 0))
    result = TP_END;
  tp_reader_end(reader);
  return result;
}

/* ---- on behalf of a constraint */

Referential_scope::Referential_scope(Session *of) : session(of) {
  if (session->referential_depth++ == 0) tp_transaction_set_referential(session->transaction, 1);
}

Referential_scope::~Referential_scope() {
  if (--session->referential_depth == 0) tp_transaction_set_referential(session->transaction, 0);
}

} // namespace tidepool
