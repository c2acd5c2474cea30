/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "fulltext_stopwords.h"
#include "engine.h"
#include "errors.h"
#include "foreign_key_index.h"
#include "server_versions.h"
#include "sql_acl.h"
#include "sql_parse.h"
#include "sysvars.h"
#include "table_share.h"

namespace tidepool {

namespace {

constexpr char COLUMN_NAME[] = "value";
/* They are in the catalog's entry of the table. */
constexpr size_t LIST_BYTES_MAX = 256 * 1024;

/* Reads the list from a table of the engine's, as its name is in the catalog. */
class Stopword_table {
public:
  Stopword_table(THD *thd, const char *name) : thd(thd), name(name) {}
  ~Stopword_table() {
    if (reader) tp_reader_close(reader);
    if (table) tp_table_close(table);
    if (transaction) tp_transaction_free(transaction);
  }
  Stopword_table(const Stopword_table &) = delete;
  Stopword_table &operator=(const Stopword_table &) = delete;

  /* false: an error was sent. */
  bool read(const Fulltext_index &index, std::vector<std::string> *words) {
    if (!lock_definition(thd, name)) return false;
    const Definition definition(thd, name);
    if (!definition.share) return refuse("it is no table of Tidepool");
    const TABLE_SHARE *const share = definition.share;
    uint fieldnr = 0;
    const auto name_of = [share](uint i) { return share->field[i]->field_name.str; };
    while (fieldnr < share->fields && !is_same_name(name_of(fieldnr), COLUMN_NAME)) fieldnr++;
    if (fieldnr == share->fields || share->field[fieldnr]->real_type() != MYSQL_TYPE_VARCHAR ||
        !share->field[fieldnr]->stored_in_db())
      return refuse("it has no column value of type VARCHAR");
    const int result = read_rows(share, fieldnr, index, words);
    if (result == TP_VALUE_TOO_LONG) return refuse("it has more than 256 KiB of words");
    if (result != TP_END) {
      server_error(result, thd);
      return thd->is_error() ? false : refuse("it can't be read");
    }
    return true;
  }

private:
  bool refuse(const char *why) {
    my_printf_error(ER_WRONG_ARGUMENTS,
                    "Tidepool: the table of stopwords '%s' can't be used: %s; set "
                    "tidepool_ft_user_stopword_table or tidepool_ft_server_stopword_table to the "
                    "name of another, as db/table",
                    MYF(0), name.c_str(), why);
    return false;
  }

  /* TP_END after the last row. */
  int read_rows(const TABLE_SHARE *share, uint fieldnr, const Fulltext_index &index,
                std::vector<std::string> *words) {
    std::unique_ptr<Layouts> layouts;
    std::string bytes;
    Metadata metadata;
    tp_savepoint unused;
    int result = Layouts::of_trees(share, share->key_info, name, &layouts);
    if (result == TP_OK) result = table_metadata(name, &bytes);
    const auto *const head = reinterpret_cast<const uchar *>(bytes.data());
    if (result == TP_OK &&
        (!metadata.get(head, bytes.size()) || !layouts->row->set_versions(metadata.versions)))
      result = TP_FORMAT;
    if (result == TP_OK) result = tp_table_open(engine.db, name.data(), name.size(), &table);
    if (result == TP_OK) result = tp_transaction_new(engine.db, &transaction);
    if (result == TP_OK) result = tp_transaction_begin(transaction, TP_READ_COMMITTED);
    if (result == TP_OK) result = tp_statement_begin(transaction, 0, &unused);
    if (result == TP_OK) result = tp_reader_open(table, &reader);

    const Column column(share->field[fieldnr], share);
    std::vector<uchar> needed(share->fields, 0);
    std::vector<uchar> record(share->default_values, share->default_values + share->reclength);
    needed[fieldnr] = 1;
    const uint last = layouts ? layouts->row->last_needed(needed.data()) : 0;
    size_t total = 0;
    tp_entry row;
    if (result == TP_OK) result = tp_first(reader, transaction, 0, &row);
    for (; result == TP_OK; result = tp_next(reader, transaction, 0, &row)) {
      if ((last &&
           !layouts->row->decode(record.data(), row.value, row.value_len, needed.data(), last)) ||
          !layouts->trees[0].decode_clustered(record.data(), row.key, row.key_len, needed.data()))
        return TP_CORRUPT;
      if (column.is_null(record.data())) continue;
      size_t len;
      const uchar *const text = column.text(record.data(), &len);
      std::string word(len * index.charset()->mbmaxlen + 1, 0);
      uint errors;
      const auto *const from = reinterpret_cast<const char *>(text);
      const auto room = static_cast<uint32>(word.size());
      word.resize(copy_and_convert(&word[0], room, index.charset(), from, static_cast<uint32>(len),
                                   column.cs, &errors));
      total += word.size() + 2;
      if (total > LIST_BYTES_MAX) return TP_VALUE_TOO_LONG;
      if (!errors && !word.empty()) words->push_back(std::move(word));
    }
    return result;
  }

  THD *const thd;
  const std::string name;
  tp_table *table = nullptr;
  tp_transaction *transaction = nullptr;
  tp_reader *reader = nullptr;
};

/* What searches do not find says what is in the table. So a session that names one itself must be
   allowed to read it, as a query that names it. Before anything is said of the table: whether there
   is one is not for everybody to know. false: an error was sent. */
bool may_read(THD *thd, const char *table) {
  std::string db, name;
  server_names(table, &db, &name);
  const LEX_CSTRING db_name{db.c_str(), db.size()}, table_name{name.c_str(), name.size()};
  TABLE_LIST reference;
  reference.init_one_table(&db_name, &table_name, nullptr, TL_READ);
  return !check_table_access(thd, SELECT_ACL, &reference, false, 1, false);
}

} // namespace

bool fulltext_settings_of_session(THD *thd, const Fulltext_index &index,
                                  Fulltext_settings *settings) {
  const Fulltext_variables variables = session_fulltext_variables(thd);
  settings->chars_min = static_cast<uint16>(variables.token_size_min);
  settings->chars_max = static_cast<uint16>(variables.token_size_max);
  settings->listed.clear();
  settings->stopwords = !variables.uses_stopwords          ? Fulltext_settings::NO_STOPWORDS
                        : variables.stopword_table.empty() ? Fulltext_settings::BUILT_IN_STOPWORDS
                                                           : Fulltext_settings::LISTED_STOPWORDS;
  if (settings->stopwords != Fulltext_settings::LISTED_STOPWORDS) return true;
  if (variables.stopword_table_is_own && !may_read(thd, variables.stopword_table.c_str()))
    return false;
  return Stopword_table(thd, variables.stopword_table.c_str()).read(index, &settings->listed);
}

} // namespace tidepool
