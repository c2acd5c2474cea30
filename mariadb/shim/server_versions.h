/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  What the server calls by another name, or with other arguments, in other versions: 10.11 to 11.8.
  Where the headers can be asked they are, instead of the version's number: distributions patch, and
  fixes are ported back.
*/
#ifndef TIDEPOOL_SERVER_VERSIONS_H
#define TIDEPOOL_SERVER_VERSIONS_H

#include "server.h"
#include <string>

/* Until 11.0 the optimizer asks engines for costs in pages read. Since then it makes them of the
   costs of single steps. */
#define TIDEPOOL_COSTS_ARE_PAGES (MYSQL_VERSION_ID < 110000)

/*
  Whether the end of a copy is told to the engine (HA_EXTRA_END_COPY), and looked at what that
  answers. 10.11.18 is the first of which this is known. Of 11.x it is not known when online ALTER
  TABLE, which writes to the copy as well, tells it.
*/
#define TIDEPOOL_COPIES_HAVE_ENDS (MYSQL_VERSION_ID >= 101118 && MYSQL_VERSION_ID < 110000)

/* The binary log among those that take part in a transaction: in 10.11, and since 11.7. Only the one
   that there is has to be found by the linker. */
extern handlerton *binlog_hton;
struct transaction_participant;
extern transaction_participant binlog_tp;

namespace tidepool {

/* Whether a participant, of the type that the server has for one, is the binary log. */
inline bool is_binary_log(const handlerton *participant) { return participant == binlog_hton; }
inline bool is_binary_log(const transaction_participant *participant) {
  return participant == &binlog_tp;
}

/*
  One of the engine's functions that the server calls: assigned to a member of handlerton, it has
  the arguments that are wanted there. In 10.11 the first is the handlerton, which is always ours;
  11.8 has done without in most of them.
*/
template <auto function>
struct Hook;
template <typename Result, typename... Arguments, Result (*function)(Arguments...)>
struct Hook<function> {
  using Plain = Result (*)(Arguments...);
  using With_handlerton = Result (*)(handlerton *, Arguments...);
  operator Plain() const { return function; }
  operator With_handlerton() const {
    return [](handlerton *, Arguments... arguments) { return function(arguments...); };
  }
};

/* The names that a variable may have. How many members it has differs. */
inline TYPELIB typelib(const char *name, const char **names, uint count) {
  TYPELIB all{};
  all.count = count;
  all.name = name;
  all.type_names = names;
  return all;
}

/* Texts of the server, as they have become objects one after the other. */
inline const char *c_str(const char *text) { return text; }
inline const char *c_str(const LEX_CSTRING &text) { return text.str; }

/* Whether two names of columns, indexes or constraints are one. */
inline bool is_same_name(const char *a, const char *b) {
#ifdef my_strcasecmp
  return my_strcasecmp(system_charset_info, a, b) == 0;
#else
  return Lex_ident_ci::streq({a, strlen(a)}, {b, strlen(b)});
#endif
}

/* Turns the name of a table or database into lower case, in its place; gives its length. */
inline size_t to_lower_case(char *name, size_t capacity) {
#ifdef my_casedn_str
  (void)capacity;
  return my_casedn_str(system_charset_info, name);
#else
  const std::string given(name);
  return system_charset_info->casedn_z(given.data(), given.size(), name, capacity);
#endif
}

namespace versions {

template <typename Expression>
auto is_equal(Expression *a, Expression *b, int) -> decltype(a->is_equal(b, true)) {
  return a->is_equal(b, true);
}
/* As of 10.11.14 names of tables count, and a table's altered self has another; the text in its
   definition is without them. */
template <typename Expression>
bool is_equal(Expression *a, Expression *b, long) {
  StringBuffer<256> a_text(system_charset_info), b_text(system_charset_info);
  a->print(&a_text);
  b->print(&b_text);
  return a_text.length() == b_text.length() &&
         memcmp(a_text.ptr(), b_text.ptr(), a_text.length()) == 0;
}

template <typename Handler>
auto rows_changed(const Handler &file, int) -> decltype(ulonglong{file.rows_changed}) {
  return file.rows_changed;
}
/* As of 11.5. */
template <typename Handler>
ulonglong rows_changed(const Handler &file, long) {
  return file.rows_stats.inserted + file.rows_stats.updated + file.rows_stats.deleted;
}

template <typename Share>
auto has_tables_of_indexes(Share *share, int) -> decltype(share->hlindexes() > 0) {
  return share->hlindexes() > 0;
}
template <typename Share>
bool has_tables_of_indexes(Share *, long) {
  return false;
}

} // namespace versions

/* A definition that is read for one statement alone. Later versions ask whether one thread alone
   has it. */
template <typename Share>
auto init_private_share(THD *thd, Share *share, const char *db, const char *name, const char *path,
                        int) -> decltype(init_tmp_table_share(thd, share, db, 0, name, path)) {
  init_tmp_table_share(thd, share, db, 0, name, path);
}
template <typename Share>
void init_private_share(THD *thd, Share *share, const char *db, const char *name, const char *path,
                        long) {
  init_tmp_table_share(thd, share, db, 0, name, path, false);
}

/* Whether indexes of the table are tables to the engine: VECTOR indexes, as of 11.7. */
inline bool has_tables_of_indexes(TABLE_SHARE *share) {
  return versions::has_tables_of_indexes(share, 0);
}

/* The rows that the server has counted as changed by this handler. */
inline ulonglong counted_changes(const handler &file) { return versions::rows_changed(file, 0); }

/* Whether two checks are the same. */
inline bool is_same_check(Virtual_column_info *a, Virtual_column_info *b) {
  return versions::is_equal(a, b, 0);
}

inline bool is_fulltext(const KEY &key) {
#ifdef HA_FULLTEXT
  return key.flags & HA_FULLTEXT;
#else
  return key.algorithm == HA_KEY_ALG_FULLTEXT;
#endif
}

inline bool is_spatial(const KEY &key) {
#ifdef HA_SPATIAL
  return key.flags & HA_SPATIAL;
#else
  return key.algorithm == HA_KEY_ALG_RTREE;
#endif
}

/* An index over texts or places, not over ordered values. */
inline bool is_special_index(const KEY &key) {
  if (is_fulltext(key) || is_spatial(key)) return true;
  return key.algorithm != HA_KEY_ALG_UNDEF && key.algorithm != HA_KEY_ALG_BTREE;
}

} // namespace tidepool

#endif
