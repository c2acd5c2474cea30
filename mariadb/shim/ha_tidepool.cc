/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* What the engine can do, opening and closing, locks and statements. */
#include "ha_tidepool.h"
#include "definition_files.h"
#include "description.h"
#include "engine.h"
#include "errors.h"
#include "foreign_key.h"
#include "server_versions.h"
#include "synced_names.h"

using namespace tidepool;

ha_tidepool::ha_tidepool(handlerton *hton, TABLE_SHARE *share) : handler(hton, share) {}
ha_tidepool::~ha_tidepool() = default;

handler::Table_flags ha_tidepool::table_flags() const {
  Table_flags flags =
      HA_REC_NOT_IN_SEQ | HA_NULL_IN_KEY | HA_CAN_VIRTUAL_COLUMNS | HA_CAN_INDEX_BLOBS |
      HA_CAN_SQL_HANDLER | HA_PRIMARY_KEY_REQUIRED_FOR_POSITION | HA_PRIMARY_KEY_IN_READ_INDEX |
      HA_CAN_GEOMETRY | HA_CAN_RTREEKEYS | HA_PARTIAL_COLUMN_READ | HA_TABLE_SCAN_ON_INDEX |
      HA_DUPLICATE_POS | HA_CONCURRENT_OPTIMIZE | HA_CAN_ONLINE_BACKUPS | HA_CRASH_SAFE |
      HA_ONLINE_ANALYZE | HA_CAN_SKIP_LOCKED | HA_CAN_TABLES_WITHOUT_ROLLBACK |
      /* Without gap locks a statement may see other rows on a replica: rows are
         logged. */
      HA_BINLOG_ROW_CAPABLE |
      /* A check before the write would miss rows that others insert at the same
         time. */
      HA_CHECK_UNIQUE_AFTER_WRITE |
      /* EXT: MATCH needs an index, as with InnoDB. */
      HA_CAN_FULLTEXT | HA_CAN_FULLTEXT_EXT |
      /* FLUSH TABLES … FOR EXPORT. */
      HA_CAN_EXPORT;
  /* Hashes of long keys are compared after the engine's own keys: of a row that is in the way by
     the last of those, REPLACE would conclude that no other one is. */
  if (table_share && table_share->long_unique_table) flags |= HA_DUPLICATE_KEY_NOT_IN_ORDER;
  /* Indexes on virtual columns: their old values are wanted to delete entries. */
  if (table_share && table_share->virtual_fields) flags |= HA_REQUIRES_KEY_COLUMNS_FOR_DELETE;
  return flags;
}

ulong ha_tidepool::index_flags(uint keynr, uint part, bool) const {
  /* It has words, in no order that a condition or ORDER BY could use. */
  if (table_share && is_fulltext(table_share->key_info[keynr])) return 0;
  /* Windows are searched for; what comes is in no order that a statement could use. */
  if (table_share && is_spatial(table_share->key_info[keynr]))
    return HA_READ_NEXT | HA_READ_RANGE | HA_KEY_SCAN_NOT_ROR;
  ulong flags = HA_READ_NEXT | HA_READ_PREV | HA_READ_ORDER | HA_READ_RANGE | HA_KEYREAD_ONLY;
  flags |= table_share && keynr == table_share->primary_key
               ? HA_CLUSTERED_INDEX
               : HA_DO_INDEX_COND_PUSHDOWN | HA_DO_RANGE_FILTER_PUSHDOWN;
  return flags;
}

int ha_tidepool::open(const char *name, int, uint) {
  lock_shared_ha_data();
  shared = static_cast<Table_share *>(get_ha_share_ptr());
  int error = 0;
  if (!shared) {
    auto made = std::make_unique<Table_share>(table, name, &error);
    if (!error) {
      shared = made.release();
      set_ha_share_ptr(shared);
      refresh_description(ha_thd(), shared->name, table);
    }
  }
  unlock_shared_ha_data();
  if (error) return error;
  if ((error = open_reader())) return error;
  if (table_share->table_type == TABLE_TYPE_SEQUENCE) {
    own_session = std::make_unique<Session>();
    if (int result = tp_transaction_new(engine.db, &own_session->transaction)) return fail(result);
  }

  size_t key_max = 0, scratch = 0;
  for (const Index_layout &layout : trees()) {
    key_max = MY_MAX(key_max, layout.key_max());
    scratch = MY_MAX(scratch, layout.scratch_size());
  }
  key_room.scratch = std::make_unique<uchar[]>(scratch);
  key_room.scratch_len = scratch;
  search = std::make_unique<uchar[]>(key_max);
  old_key = std::make_unique<uchar[]>(key_max);
  new_key = std::make_unique<uchar[]>(key_max);
  range_end = std::make_unique<uchar[]>(key_max);
  clustered = std::make_unique<uchar[]>(trees()[0].key_max());
  new_clustered = std::make_unique<uchar[]>(trees()[0].key_max());
  needed = std::make_unique<uchar[]>(table_share->fields);
  plan_known = false;
  /* A scan of the table is in the order of the primary key: an update of that mustn't meet its own
     rows again. */
  key_used_on_scan = table_share->primary_key;

  /* A position is the clustered key; one of varying length is padded, and its length is at the end,
     so that positions compare as keys do. */
  const size_t fixed = trees()[0].fixed_length();
  ref_length = static_cast<uint>(
      fixed ? fixed : 2 + MY_MIN(trees()[0].key_max(), tp_table_key_len_max(shared->table)));
  stats.block_size = 16384;
  uint64_t page_size;
  if (tp_page_size(engine.db, &page_size) == TP_OK && page_size)
    stats.block_size = static_cast<uint>(page_size);
  return info(HA_STATUS_NO_LOCK | HA_STATUS_VARIABLE | HA_STATUS_CONST);
}

/* An index merge reads by several handlers: each locks as the first does. */
handler *ha_tidepool::clone(const char *name, MEM_ROOT *root) {
  auto *copy = static_cast<ha_tidepool *>(handler::clone(name, root));
  if (copy) {
    copy->row_lock = row_lock;
    copy->skip_locked = skip_locked;
  }
  return copy;
}

int ha_tidepool::open_reader() {
  if (reader) tp_reader_close(reader);
  reader = nullptr;
  reader_generation = shared->generation;
  if (int result = tp_reader_open(shared->table, &reader)) return fail(result);
  tp_reader_set_lock(reader, row_lock, TP_WAIT);
  tp_reader_set_semi_consistent(reader, semi_consistent);
  tp_reader_set_prefixes(reader, prefixes);
  return 0;
}

int ha_tidepool::close() {
  drop_load();
  end_export();
  altering.reset();
  if (reader) tp_reader_close(reader);
  reader = nullptr;
  if (own_session && own_session->transaction) tp_transaction_free(own_session->transaction);
  own_session.reset();
  return 0;
}

/* After each statement. */
int ha_tidepool::reset() {
  if (reader) tp_reader_end(reader);
  row_buffer.give_back(tp_row_bytes_kept());
  try_semi_consistent_read(false);
  keyread_only = false;
  duplicate_lock = TP_LOCK_SHARED;
  last_write_known = false;
  if (unlikely(foreign != nullptr)) foreign->end_statement();
  plan_known = false;
  at_point = after_search = false;
  return 0;
}

int ha_tidepool::extra(enum ha_extra_function operation) {
  switch (operation) {
    case HA_EXTRA_KEYREAD:
      keyread_only = true;
      plan_known = false;
      break;
    case HA_EXTRA_INSERT_WITH_UPDATE:
    case HA_EXTRA_WRITE_CAN_REPLACE: duplicate_lock = TP_LOCK_EXCLUSIVE; break;
    case HA_EXTRA_WRITE_CANNOT_REPLACE: duplicate_lock = TP_LOCK_SHARED; break;
    case HA_EXTRA_NO_KEYREAD:
      keyread_only = false;
      plan_known = false;
      break;
    case HA_EXTRA_PREPARE_FOR_RENAME:
      /* The only call of these statements that comes under LOCK TABLES, too. */
      switch (thd_sql_command(ha_thd())) {
        case SQLCOM_CREATE_TRIGGER:
        case SQLCOM_DROP_TRIGGER:
          sync_at_end_of_statement(ha_thd(), "./" + database_of(shared->name));
      }
      break;
#if TIDEPOOL_COPIES_HAVE_ENDS
    case HA_EXTRA_BEGIN_COPY: begin_load(); break;
    case HA_EXTRA_END_COPY: return end_load();
    case HA_EXTRA_ABORT_COPY: drop_load(); break;
#endif
    default: break;
  }
  return 0;
}

void ha_tidepool::column_bitmaps_signal() { plan_known = false; }

THR_LOCK_DATA **ha_tidepool::store_lock(THD *thd, THR_LOCK_DATA **to, enum thr_lock_type type) {
  /* lock_count() is 0: the server's table locks are not used, metadata locks and row locks are. */
  if (type == TL_IGNORE || type == TL_UNLOCK) return to;
  skip_locked = type == TL_WRITE_SKIP_LOCKED || type == TL_READ_SKIP_LOCKED;
  row_lock = row_lock_of(type);
  /* The server asks so where it may log the statement, which writes to another engine: a replica
     would read what it finds, and the statement here reads a snapshot. */
  if (unlikely(type == TL_READ_NO_INSERT) && mysql_bin_log.is_open())
    thd->lex->set_stmt_unsafe(LEX::BINLOG_STMT_UNSAFE_MULTIPLE_ENGINES_AND_SELF_LOGGING_ENGINE);
  return to;
}

void ha_tidepool::set_row_lock(int lock, bool skip) {
  row_lock = lock;
  skip_locked = skip;
  int wait = TP_WAIT;
  if (lock != TP_LOCK_NONE)
    wait = skip ? TP_SKIP_LOCKED : lock_wait_timeout(ha_thd()) == 0 ? TP_NO_WAIT : TP_WAIT;
  tp_reader_set_lock(reader, lock, wait);
}

int ha_tidepool::external_lock(THD *thd, int type) {
  if (type == F_UNLCK) {
    end_export();
    const int error = own_session ? end_own_statement() : 0;
    session = nullptr;
    return error;
  }
  session = session_of(thd);
  if (!session) return HA_ERR_OUT_OF_MEM;
  if (reader_generation != shared->generation)
    if (int error = open_reader()) return error;
  set_row_lock(type == F_WRLCK ? TP_LOCK_EXCLUSIVE : row_lock, skip_locked);
  plan_known = false;
  if (unlikely(thd_sql_command(thd) == SQLCOM_FLUSH && (thd->lex->type & REFRESH_FOR_EXPORT)))
    if (int error = begin_export()) return error;
  const int error = own_session ? begin_own_statement() : begin_statement(thd, session);
  /* The server does not unlock what it could not lock. */
  if (unlikely(error)) end_export();
  return error;
}

int ha_tidepool::begin_own_statement() {
  THD *thd = ha_thd();
  const Session *connection = session_of(thd);
  if (!connection) return HA_ERR_OUT_OF_MEM;
  session = own_session.get();
  if (session->in_statement) return 0;
  /* A KILL raises what the connection's own transaction listens to. */
  tp_transaction_listen(session->transaction, connection->interrupt);
  int result = tp_transaction_begin(session->transaction, TP_READ_COMMITTED);
  if (result == TP_OK)
    result =
        tp_statement_begin(session->transaction, lock_wait_timeout(thd), &session->statement_start);
  session->in_transaction = session->in_statement = result == TP_OK;
  /* One that came before has just been forgotten. */
  if (unlikely(thd_kill_level(thd) != THD_IS_NOT_KILLED)) tp_interrupt_raise(connection->interrupt);
  return fail(result);
}

/*
  A number of a sequence is in rows of other transactions and other engines: after a crash the
  sequence must not give it again. And a sequence without its row can't be read. So this commit is
  durable, whatever flush_log_at_trx_commit says; there is one for each CACHE of numbers.
*/
int ha_tidepool::end_own_statement() {
  if (!own_session->in_statement) return 0;
  own_session->in_transaction = own_session->in_statement = false;
  return fail(commit_durably(own_session.get()));
}

int ha_tidepool::start_stmt(THD *thd, thr_lock_type type) {
  session = session_of(thd);
  if (!session) return HA_ERR_OUT_OF_MEM;
  if (reader_generation != shared->generation)
    if (int error = open_reader()) return error;
  set_row_lock(row_lock_of(type), type == TL_WRITE_SKIP_LOCKED || type == TL_READ_SKIP_LOCKED);
  plan_known = false;
  return own_session ? begin_own_statement() : begin_statement(thd, session);
}

int ha_tidepool::ready_slowly() {
  THD *thd = ha_thd();
  if (!session) session = session_of(thd);
  if (!session) return HA_ERR_OUT_OF_MEM;
  if (reader_generation != shared->generation)
    if (int error = open_reader()) return error;
  if (session->unsettled && session->last_row.statement != thd->query_id)
    if (int error = settle_last_row(session)) return error;
  return own_session ? begin_own_statement() : begin_statement(thd, session);
}

void ha_tidepool::print_error(int error, myf flags) {
  if (error == REPORTED) return;
  if (error == HA_ERR_TABLESPACE_MISSING) {
    my_error(ER_TABLESPACE_DISCARDED, flags, table_share->table_name.str);
    return;
  }
  /*
    REPLACE and ON DUPLICATE KEY UPDATE read the row that is in their way. MariaDB 10.11.14 forgets
    why that failed, and reports the duplicate: a client would not learn that a deadlock has undone
    its transaction, and go on in another.
  */
  if (error == HA_ERR_FOUND_DUPP_KEY && duplicate_unread) error = duplicate_unread;
  duplicate_unread = 0;
  /* The server has looked a row up after its write, and refuses it; an update with IGNORE by
     another error. */
  const bool is_refused = error == HA_ERR_FOUND_DUPP_KEY || error == HA_ERR_UNSUPPORTED;
  if (is_refused && is_checked_after_write() && is_last_write_refused() && session &&
      session->in_statement && !tp_must_rollback(session->transaction))
    take_last_write_back(error);
  if (error != HA_ERR_INDEX_COL_TOO_LONG) return handler::print_error(error, flags);
  /* The server's own text speaks of a column's definition; here it is the value, as it is stored in
     the key. */
  my_printf_error(ER_TOO_LONG_KEY, "Specified key was too long: Tidepool: %s", flags,
                  last_error_text().c_ptr_safe());
}

bool ha_tidepool::get_error_message(int error, String *buf) {
  if (error == HA_ERR_NO_REFERENCED_ROW || error == HA_ERR_ROW_IS_REFERENCED ||
      error == HA_ERR_FK_DEPTH_EXCEEDED) {
    if (const Session *of = session_of(ha_thd()))
      buf->copy(of->violated.data(), static_cast<uint32>(of->violated.size()), system_charset_info);
    return false;
  }
  if (error == HA_ERR_INTERNAL_ERROR || error == HA_ERR_TABLE_CORRUPT ||
      error == HA_ERR_TO_BIG_ROW) {
    String text = last_error_text();
    buf->copy(text.ptr(), text.length(), system_charset_info);
  }
  return false;
}
