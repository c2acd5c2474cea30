/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  The handler: one open instance of a table in one session.

      ha_tidepool.cc         what the engine can do, opening and closing, locks and statements
      ha_tidepool_ddl.cc     CREATE, DROP, RENAME, TRUNCATE
      ha_tidepool_alter.cc   ALTER: what is done in place, indexes and columns added and dropped
      ha_tidepool_copy.cc    ALTER: how the copy is filled
      ha_tidepool_export.cc  a table moves to another server: EXPORT, DISCARD and IMPORT
      ha_tidepool_read.cc    index and table reads, positions
      ha_tidepool_write.cc   INSERT, UPDATE, DELETE, auto-increment
      ha_tidepool_fulltext.cc  words of rows in FULLTEXT indexes, and MATCH
      ha_tidepool_spatial.cc windows in SPATIAL indexes
      ha_tidepool_virtual.cc virtual columns that the server has not computed
      ha_tidepool_info.cc    statistics, ranges, ANALYZE
      ha_tidepool_check.cc   CHECK TABLE
      ha_tidepool_foreign.cc what the server asks about foreign keys
      foreign_key_check.cc   the checks of rows for foreign keys
      foreign_key_action.cc  referential actions
*/
#ifndef TIDEPOOL_HA_TIDEPOOL_H
#define TIDEPOOL_HA_TIDEPOOL_H

#include "bridge.h"
#include "counted_call.h"
#include "errors.h"
#include "foreign_key_check.h"
#include "fulltext_merge.h"
#include "fulltext_words.h"
#include "server_versions.h"
#include "session.h"
#include "table_share.h"
#include <list>

namespace tidepool {
class Index_change;
struct Fulltext_result;
class Pending_rows;
/* Of a read, and not errors of the server's: the reader passes the entry over, or it is past the
   end of the range. */
constexpr int PASS_OVER = HA_ERR_LAST + 1, PAST_RANGE = HA_ERR_LAST + 2;
/* The statement has its error already. */
constexpr int REPORTED = HA_ERR_LAST + 3;
/* Sets what single steps cost, where the server's optimizer has costs of engines. */
void setup_costs(handlerton *hton);
}

class ha_tidepool final : public handler {
public:
  ha_tidepool(handlerton *hton, TABLE_SHARE *share);
  ~ha_tidepool() override;

  Table_flags table_flags() const override;
  ulong index_flags(uint keynr, uint part, bool all_parts) const override;
  const char *index_type(uint keynr) override {
    if (!table_share) return "BTREE";
    const KEY &key = table_share->key_info[keynr];
    if (tidepool::is_fulltext(key)) return "FULLTEXT";
    return tidepool::is_spatial(key) ? "SPATIAL" : "BTREE";
  }
  uint max_supported_keys() const override { return MAX_KEY; }
  uint max_supported_key_length() const override { return 3072; }
  uint max_supported_key_part_length() const override { return 3072; }
  enum row_type get_row_type() const override { return ROW_TYPE_DYNAMIC; }
  const key_map *keys_to_use_for_scanning() override { return &key_map_full; }
  /* A cached result may be newer or older than a transaction's snapshot. (For partitions the server
     asks this alone.) */
  uint8 table_cache_type() override { return HA_CACHE_TBL_NOCACHE; }

  handler *clone(const char *name, MEM_ROOT *root) override;
  int open(const char *name, int mode, uint test_if_locked) override;
  int close() override;
  int reset() override;
  int extra(enum ha_extra_function operation) override;
  uint lock_count() const override { return 0; }
  THR_LOCK_DATA **store_lock(THD *thd, THR_LOCK_DATA **to, enum thr_lock_type type) override;
  int external_lock(THD *thd, int type) override;
  int start_stmt(THD *thd, thr_lock_type type) override;
  void column_bitmaps_signal() override;

  int create(const char *name, TABLE *form, HA_CREATE_INFO *info) override;
  int delete_table(const char *name) override;
  int rename_table(const char *from, const char *to) override;
  int truncate() override;
  int delete_all_rows() override { return HA_ERR_WRONG_COMMAND; }
  int reset_auto_increment(ulonglong value) override;
  int discard_or_import_tablespace(my_bool discard) override;
  void update_create_info(HA_CREATE_INFO *info) override;
  enum_alter_inplace_result check_if_supported_inplace_alter(TABLE *altered,
                                                             Alter_inplace_info *info) override;
  bool prepare_inplace_alter_table(TABLE *altered, Alter_inplace_info *info) override;
  bool inplace_alter_table(TABLE *altered, Alter_inplace_info *info) override;
  bool commit_inplace_alter_table(TABLE *altered, Alter_inplace_info *info, bool commit) override;
  bool check_if_incompatible_data(HA_CREATE_INFO *info, uint changes) override;
  bool can_convert_nocopy(const Field &field, const Column_definition &next) const override;
  Compare_keys compare_key_parts(const Field &field, const Column_definition &next,
                                 const KEY_PART_INFO &part,
                                 const KEY_PART_INFO &next_part) const override;

  int index_init(uint keynr, bool sorted) override;
  int index_end() override;
  int index_read_map(uchar *buf, const uchar *key, key_part_map map,
                     enum ha_rkey_function flag) override;
  int index_read_last_map(uchar *buf, const uchar *key, key_part_map map) override;
  int index_next(uchar *buf) override;
  int index_prev(uchar *buf) override;
  int index_first(uchar *buf) override;
  int index_last(uchar *buf) override;
  int index_next_same(uchar *buf, const uchar *key, uint key_len) override;
  int read_range_first(const key_range *start, const key_range *end, bool eq, bool sorted) override;
  int rnd_init(bool scan) override;
  int rnd_end() override;
  int rnd_next(uchar *buf) override;
  int rnd_pos(uchar *buf, uchar *pos) override;
  void position(const uchar *record) override;
  void unlock_row() override;
  void try_semi_consistent_read(bool yes) override;
  bool was_semi_consistent_read() override { return peeked; }
  Item *idx_cond_push(uint keynr, Item *condition) override;
  bool rowid_filter_push(Rowid_filter *filter) override;

  int ft_init() override;
  FT_INFO *ft_init_ext(uint flags, uint keynr, String *query) override;
  int ft_read(uchar *buf) override;

  void start_bulk_insert(ha_rows rows, uint) override { announced_rows = rows; }
  int write_row(const uchar *buf) override;
  int update_row(const uchar *old_data, const uchar *new_data) override;
  int delete_row(const uchar *buf) override;
  void get_auto_increment(ulonglong offset, ulonglong increment, ulonglong wanted, ulonglong *first,
                          ulonglong *reserved) override;

  int info(uint flag) override;
  ha_rows records_in_range(uint keynr, const key_range *min, const key_range *max,
                           page_range *pages) override;
  ha_rows estimate_rows_upper_bound() override;
#if TIDEPOOL_COSTS_ARE_PAGES
  double scan_time() override;
  double read_time(uint keynr, uint ranges, ha_rows rows) override;
  double keyread_time(uint keynr, uint ranges, ha_rows rows) override;
#endif
  int analyze(THD *thd, HA_CHECK_OPT *options) override;
  int optimize(THD *thd, HA_CHECK_OPT *options) override;
  int check(THD *thd, HA_CHECK_OPT *options) override;
  void print_error(int error, myf flags) override;
  bool get_error_message(int error, String *buf) override;

  char *get_foreign_key_create_info() override;
  void free_foreign_key_create_info(char *text) override;
  int get_foreign_key_list(THD *thd, List<FOREIGN_KEY_INFO> *list) override;
  int get_parent_foreign_key_list(THD *thd, List<FOREIGN_KEY_INFO> *list) override;
  bool referenced_by_foreign_key() const noexcept override;
  bool can_switch_engines() override;
  bool is_fk_defined_on_table_or_index(uint index) override;
  bool get_foreign_dup_key(char *child_table, uint child_table_len, char *child_key,
                           uint child_key_len) override;

  /* Of the row that was read last. */
  tp_bytes clustered_key_of_row() const { return {clustered.get(), clustered_len}; }
  float relevance_of_row(const tidepool::Fulltext_result &result);

  /* Whether this is the table that the engine knows by this name. */
  bool is_of(const std::string &name) const { return shared && shared->name == name; }

private:
  using Index_layout = tidepool::Index_layout;
  using Row_layout = tidepool::Row_layout;

  /* Before each read and write: the statement has begun, the reader is the present table's.
     HA_ERR_* code. */
  int ready();
  int ready_slowly();
  bool is_ready() const {
    return session && session->in_statement && !session->unsettled &&
           reader_generation == shared->generation;
  }
  int open_reader();
  int read_index(uchar *buf, const uchar *key, key_part_map map, enum ha_rkey_function flag);
  int read_next_row(uchar *buf);
  int read_position(uchar *buf, const uchar *pos);
  int in_turn(int error);
  int fail(int result) { return tidepool::server_error(result, ha_thd()); }

  const std::vector<Index_layout> &trees() const { return shared->layouts.trees; }
  const Row_layout &row_layout() const { return *shared->layouts.row; }

  void plan_columns();
  bool may_meet_newer_rows() const;
  void need_indexed_columns();
  int compare_with_entry(const uchar *record);
  void set_row_lock(int lock, bool skip_locked);
  int read_entry(uchar *buf);
  int read_secondary_entry(uchar *buf);
  bool follow_entry();
  int check_pushed_condition(uchar *buf);
  int check_rowid_filter();
  void note_range_end();
  bool is_past_range_end() const;
  void give_up();
  int row_part() const { return prefixes ? TP_READ_PREFIX : TP_READ_WHOLE; }
  int read_row(int part, tp_entry *found);
  bool decode_columns(uchar *buf, tp_bytes row) const;
  int decode_row(uchar *buf, tp_bytes row, bool is_cut);
  /* Whether a read stays among the entries that begin with the key searched for. */
  enum Bound { ANY_KEY, SAME_KEY };
  int cursor_result(uchar *buf, int result, bool forward, int if_none, Bound bound = ANY_KEY);
  void begin_reading();
  void tell_end(Bound bound);
  int seek(uchar *buf, const uchar *key, size_t len, int how, bool forward, int if_none,
           Bound bound = ANY_KEY);
  bool has_prefix() const;
  /* Before the rows are copied to a table that takes the place of this one. A TP_* code. */
  int check_copy() const;
  int step(uchar *buf, bool forward, Bound bound);
  /* Of a SPATIAL index: the entries that lie to a window of the server's as the flag says. */
  int read_window(uchar *buf, const uchar *key, enum ha_rkey_function flag);
  int read_next_in_window(uchar *buf);
  int read_in_window(uchar *buf, bool first);
  int find_in_window(uchar *buf, bool first);
  int move_in_window(bool first);
  int check_snapshot_of_window();
  bool is_still_in_window(const uchar *record) const;
  bool window_request(const uchar *key, enum ha_rkey_function flag, tp_spatial_request *request);
  ha_rows records_in_window(uint tree, const key_range &range);
  int lock_peeked(uchar *buf, bool forward, Bound bound);

  int mark_before_row(tp_savepoint *before);
  int take_row_back(const tp_savepoint &before, int error);
  /* Of records that have all virtual columns that are in indexes. */
  int write_complete(const uchar *record);
  int update_complete(const uchar *old_record, const uchar *new_record);
  int delete_complete(const uchar *record);
  int insert_row(const uchar *record);
  int insert_secondary(uint tree, const uchar *record);
  /* The entries that a FULLTEXT index has of a record whose clustered key is in `clustered`. */
  int load_words(uint tree, const uchar *record);
  /* A row's words change; the record of before or that of afterwards may be null. A TP_* code, as
     of those below. */
  int change_words(uint tree, tp_bytes pk, const uchar *before, const uchar *after);
  struct Words_of {
    uint tree;
    tp_bytes pk;
  };
  int make_pending(const Words_of &row);
  int find_trace(const Words_of &row, bool *has_trace);
  int make_entries(const Words_of &row);
  int change_entries(const Words_of &row);
  int insert_pending(const Words_of &row);
  int change_pending(const Words_of &row);
  int delete_pending(const Words_of &row);
  /* Longest value of a pending row. */
  size_t pending_max() const;
  bool parse_words(uint tree, const uchar *record, tidepool::Row_words *words);
  /* Gives the entries of texts, in `new_key`, one by one. false: the parser failed. */
  using Entry_taker = std::function<void(tp_bytes key, tp_bytes value)>;
  bool for_each_word(uint tree, const tidepool::Texts &texts, tp_bytes pk, const Entry_taker &take);
  int run_search(uint tree, uint flags, const String &query, tidepool::Fulltext_result *result);
  int add_hits_of_snapshot(uint flags, const String &query, tidepool::Fulltext_result *result);
  int match_again(const tidepool::Fulltext_result &result, const uchar *record, bool *is_match);
  int read_pending(uint tree, tidepool::Pending_rows *to);
  int search_in(uint tree, uint flags, const String &query, tidepool::Fulltext_result *result);
  int read_found(uchar *buf, const uchar *pk, size_t pk_len);
  /* The row of a clustered key that is no longer than one can be. */
  int read_by_clustered(uchar *buf, const uchar *pk, size_t pk_len);
  /* The filling of the copy that ALTER TABLE makes. */
  bool can_be_loaded() const;
  void begin_load();
  int load_row(const uchar *record);
  int end_load();
  void drop_load();
  int report_duplicate_of_load();
  int report_duplicate(uint tree);
  void encode_clustered(const uchar *record, bool new_row);
  void put_ref(const uchar *pk, size_t pk_len);
  ulonglong auto_increment_after(const uchar *record) const;
  int raise_auto_increment_after(const uchar *record);
  int last_auto_increment_row(uchar *record, bool *found);
  int set_auto_increment(ulonglong value);

  /* An HA_ERR_* code, or REPORTED. */
  int begin_export();
  void end_export();
  int discard_rows();
  int import_rows();
  int use_other_rows();
  static int report_vector_index();
  /* There is a file, from FLUSH TABLES … FOR EXPORT to UNLOCK TABLES. */
  bool exports = false;

  void sample_statistics(bool force);
  void show_file_usage();

  enum_alter_inplace_result check_without_rebuild(TABLE *altered, Alter_inplace_info *info);
  enum_alter_inplace_result check_definition_change(TABLE *altered, Alter_inplace_info *info);
  enum_alter_inplace_result check_index_change(TABLE *altered, Alter_inplace_info *info);
  enum_alter_inplace_result judgement_of_server(TABLE *altered, Alter_inplace_info *info);
  bool same_values(const TABLE *altered, const std::vector<int> &old_of) const;
  const char *refuses_rebuild(TABLE *altered, const Alter_inplace_info *info) const;
  const char *refuses_conversion(const TABLE *altered, const Alter_inplace_info *info,
                                 const std::vector<int> &old_of,
                                 std::vector<bool> *converted) const;
  bool prepare_rebuild(TABLE *altered, Alter_inplace_info *info);
  bool report_failed_build(TABLE *altered, tidepool::Index_change *context, int result);
  void report_duplicate_of_build(TABLE *altered, tidepool::Index_change *context);

  tidepool::Table_share *shared = nullptr;
  tp_reader *reader = nullptr;
  uint reader_generation = 0;
  tidepool::Session *session = nullptr;
  /* A SEQUENCE is not part of the user's transaction: each write to it is a transaction of
     its own. */
  std::unique_ptr<tidepool::Session> own_session;
  int begin_own_statement();
  int end_own_statement();

  /* Locking of this statement's reads. */
  int row_lock = TP_LOCK_NONE;
  bool skip_locked = false;
  /* UPDATE asks whether it wants a row before it waits for it: the row read last was not locked,
     but read as it was committed last. If the server wants it, it reads on, and means this one;
     else it calls unlock_row(). */
  bool semi_consistent = false, peeked = false;
  /* Whether the statement searches an index, by MATCH or with a window, without locks, and then
     locks the rows found. (At SERIALIZABLE it locks what it reads of the index.) */
  bool locks_after_search() const {
    return session && row_lock != TP_LOCK_NONE && session->isolation != TP_SERIALIZABLE;
  }
  tp_transaction *searching_transaction() const {
    return locks_after_search() ? session->transaction : nullptr;
  }
  /* The row that was read last may be newer than what such a search has seen. */
  bool is_newer_than_search() const { return row_is_recent && locks_after_search(); }
  bool keyread_only = false;
  /* Of a row that INSERT meets with its key: exclusive if the statement may change or
     replace it. */
  int duplicate_lock = TP_LOCK_SHARED;

  /* Columns to be set by reads: one byte each. */
  std::unique_ptr<uchar[]> needed;
  uint last_needed = 0;
  bool key_needed = false;
  bool prefixes = false; /* of long rows reads give only the beginnings */
  bool plan_known = false;

  /* Where the handler stands: an entry of `tree`. */
  uint tree = 0;
  bool scanning_started = false;
  bool entry_needed = false;      /* for columns that reads set */
  bool entry_suffices = true;     /* for reads of keys alone */
  bool compares_rows = false;     /* with the entries that lead to them */
  bool compares_computed = false; /* and the index has virtual columns */
  bool at_point = false;          /* the last read was a point read: the cursor is elsewhere */
  /* the last read met the end of the entries with the search key: that is the position */
  bool after_search = false;
  bool ends_with_search = false; /* the cursor ends there of itself */
  /* while the first entry of a range is read: where the range ends */
  const key_range *first_range_end = nullptr;
  /* the bridge writes it here: each field is read as it was written, which copies of the whole
     would wait for */
  tp_entry entry{};
  std::unique_ptr<uchar[]> search; /* the key searched for */
  size_t search_len = 0;
  /* The window searched for in a SPATIAL index. */
  uchar window[TP_RECTANGLE_LEN]{};
  tp_spatial_request in_window{};
  bool reads_window = false;
  /* Where the range that the server reads ends, if entries must be compared with that before they
     are decoded. */
  std::unique_ptr<uchar[]> range_end;
  size_t range_end_len = 0;
  bool range_end_known = false, range_end_excluded = false;
  /* Key of the row that was read last: the position, which writes of other rows leave as it is. (In
     an ordered scan of partitions each has read a row that the server changes later.) */
  std::unique_ptr<uchar[]> clustered;
  size_t clustered_len = 0;
  /* In its place while a new row is written. */
  std::unique_ptr<uchar[]> new_clustered;
  size_t new_clustered_len = 0;
  void swap_positions() {
    std::swap(clustered, new_clustered);
    std::swap(clustered_len, new_clustered_len);
  }
  /* A row was written since, and position() is asked for that one: the server checks it now. */
  bool looks_up_written = false;
  bool row_read = false;      /* the row itself, not only an entry that leads to it */
  bool row_is_recent = false; /* what was read last (tp_entry) */

  /* Foreign keys: those of the table and those that reference it, or null if there are none; as of
     a generation of all. */
  std::shared_ptr<tidepool::Foreign_checks> foreign;
  uint64 foreign_generation = 0;
  /* Those that a write must check. */
  tidepool::Foreign_checks *foreign_checks() {
    if (unlikely(foreign_generation != tidepool::foreign_keys.generation())) find_foreign_keys();
    if (likely(!foreign)) return nullptr;
    return thd_test_options(ha_thd(), OPTION_NO_FOREIGN_KEY_CHECKS) ? nullptr : foreign.get();
  }
  void find_foreign_keys();
  int lock_foreign_keys(bool parents, bool children,
                        std::shared_ptr<tidepool::Foreign_checks> *checks);
  int open_foreign_index(tidepool::Foreign_checks::Side &side, bool is_parent);
  /* After the row's entries are written: after an HA_ERR_* code the row must be taken back. */
  int check_foreign_insert(const uchar *record);
  int check_foreign_update(const uchar *old_record, const uchar *new_record);
  int check_foreign_delete(const uchar *record);
  int check_parent(tidepool::Foreign_checks::Side &side, const uchar *record);
  int act_on_children(tidepool::Foreign_checks::Side &side, tidepool::Constraint::Action action,
                      const uchar *record, const uchar *next);
  static int open_for_action(THD *thd, tidepool::Session *session, const std::string &name,
                             ha_tidepool **child);
  int ready_for_action();
  /* A copy of a record, with the virtual columns that are in indexes. */
  struct Completed_record {
    std::unique_ptr<uchar[]> bytes;
    std::list<std::string> blobs;
  };
  /* Whether one is not among the columns that a record is known to have: those that were read, or
     those that are written. */
  bool lacks_indexed_columns(const MY_BITMAP *known) const {
    return unlikely(table->vfield != nullptr) && has_indexed_column_outside(*known);
  }
  bool has_indexed_column_outside(const MY_BITMAP &columns) const;
  int complete_record(const uchar *record, Completed_record *completed);
  int compute_indexed_columns(uchar *record, std::list<std::string> *blobs);
  int change_children(const tidepool::Constraint &key, uint index, const std::string &prefix,
                      tidepool::Constraint::Action action, const ha_tidepool *parent,
                      const uchar *old_parent, const uchar *new_parent);

  /* ALTER TABLE in place: HA_ALTER_INPLACE_COPY_NO_LOCK = foreign keys have no say in it. */
  enum_alter_inplace_result check_foreign_key_change(Alter_inplace_info *info);
  bool prepare_foreign_keys(TABLE *altered, Alter_inplace_info *info);
  int commit_foreign_keys(TABLE *altered, Alter_inplace_info *info);

  /* While the copy is filled by it; then rows are not written to the table itself. */
  tp_load *load = nullptr;
  ha_rows announced_rows = 0; /* by the server, as an estimate; 0: none, or unknown */

  /* Room for writes. */
  tidepool::Key_room key_room;
  std::unique_ptr<uchar[]> old_key, new_key;
  tidepool::Buffer row_buffer, value_buffer;
  tidepool::Row_words words, old_words;
  std::string pending_value;
  std::unique_ptr<tidepool::Merges_paused> altering; /* ALTER TABLE changes trees in place */
  uchar row_id[tidepool::ROW_ID_LENGTH]{};

  /* Where the server checks a row only after the write (a hash as a unique key, WITHOUT OVERLAPS)
     and then refuses it, the row is taken back here: within a function or trigger that handles the
     error, the server does not do it. */
  bool is_checked_after_write() const {
    return table_share->long_unique_table || table_share->period.unique_keys;
  }
  tp_savepoint before_last_write{};
  bool last_write_known = false;
  bool is_last_write_refused() const {
    return last_write_known && lookup_errkey != static_cast<uint>(-1);
  }
  int take_last_write_back(int error);
  /* The same for rows of partitions (session.h), where the server does not ask the engine. */
  bool is_written_unsettled() const {
    return unlikely(is_checked_after_write()) && table->file != this && ha_thd()->in_sub_stmt;
  }
  int note_written();
  bool is_move_of_last_row() const {
    return unlikely(session->unsettled) && session->last_row.table == table &&
           session->last_row.counted == tidepool::counted_changes(*table->file) &&
           !tp_has_written_since(session->transaction, &session->last_row.after);
  }
  bool last_write_is_update = false; /* the server's own, not that of a referential action */
  tp_savepoint after_last_update{};  /* of a partition */
  /* Of a row that can't become history, for the hash of another one of the same moment, the server
     tells nobody: it deletes the row. Its look at hashes is the only one that comes after each
     write, so what it found then is about that write; in partitions, about the last write to any of
     them. */
  bool is_update_refused() const {
    return table_share->long_unique_table && last_write_is_update && last_write_known &&
           table->file->lookup_errkey != static_cast<uint>(-1) &&
           (table->file == this || !tp_has_written_since(session->transaction, &after_last_update));
  }
  /* The same of a row that the update has moved here, to another partition: what is deleted is the
     row that it was there. */
  bool is_versioned_partition() const {
    return unlikely(table_share->long_unique_table) && table->file != this && table->versioned();
  }
  bool is_move_refused() const {
    return is_versioned_partition() && session->moved.to == this && session->moved.from &&
           table->file->lookup_errkey != static_cast<uint>(-1) &&
           !tp_has_written_since(session->transaction, &session->moved.after);
  }
  int delete_record(const uchar *record);
  /* Why the row could not be read that the last duplicate is of; 0 = it could be, or was not asked
     for. */
  int duplicate_unread = 0;
};

#endif
