/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "session.h"
#include "ddl.h"
#include "engine.h"
#include "errors.h"
#include "server_versions.h"
#include "rpl_rli.h"
#include "sql_parse.h"
#include "synced_names.h"
#include "sysvars.h"
#include <algorithm>
#include <chrono>
#include <csignal>
#include <mutex>
#include <string_view>
#include <thread>

/* In the server's sql_class.cc, for engines, without a declaration in a header. */
extern "C" int thd_need_wait_reports(const MYSQL_THD thd);
extern "C" int thd_rpl_deadlock_check(MYSQL_THD waiter, MYSQL_THD holder);

namespace tidepool {

static bool ends_transaction(THD *thd, bool all) {
  return all || !thd_test_options(thd, OPTION_NOT_AUTOCOMMIT | OPTION_BEGIN);
}

Session *session_of(THD *thd) {
  auto *session = static_cast<Session *>(thd_get_ha_data(thd, engine.hton));
  if (likely(session != nullptr)) return session;
  session = new (std::nothrow) Session;
  if (!session) return nullptr;
  session->thd = thd;
  if (tp_transaction_new(engine.db, &session->transaction) != TP_OK ||
      tp_interrupt_new(session->transaction, &session->interrupt) != TP_OK) {
    if (session->transaction) tp_transaction_free(session->transaction);
    delete session;
    return nullptr;
  }
  tp_transaction_set_session_number(session->transaction, thd_get_thread_id(thd));
  thd_set_ha_data(thd, engine.hton, session);
  return session;
}

/* Whether the statement, or a function that it calls, locks rows of a table. Known before the first
   table is locked. */
static bool locks_rows(THD *thd) {
  for (const TABLE_LIST *table = thd->lex->query_tables; table; table = table->next_global)
    if (row_lock_of(table->lock_type) != TP_LOCK_NONE) return true;
  return false;
}

/* A separate transaction, whatever autocommit says, that reads tables as a whole. A statement that
   copies a table has its metadata lock before it reads the first row, so no session writes there,
   and the snapshot has all there is. */
static bool is_scan_alone(int command) {
  switch (command) {
    case SQLCOM_ALTER_TABLE:
    case SQLCOM_CREATE_INDEX:
    case SQLCOM_DROP_INDEX:
    case SQLCOM_OPTIMIZE:
    case SQLCOM_REPAIR:
    case SQLCOM_ANALYZE: return true;
    default: return false;
  }
}

static bool is_single_read(int command) {
  return command == SQLCOM_SELECT || command == SQLCOM_CHECKSUM || command == SQLCOM_HA_READ;
}

/*
  Whether a worker of a parallel replica finds rows by conditions: those of a statement in the log,
  or of a trigger. It may be ahead of a transaction whose rows it would find. Ranges are locked
  then, so that the other comes upon the lock, and the server has this one tried again in its turn.
*/
static bool may_find_too_little(const THD *thd) {
  const rpl_group_info *group = thd->rgi_slave;
  if (likely(!group) || !group->is_parallel_exec) return false;
  const bool applies_row_event = thd_sql_command(thd) == SQLCOM_END && !thd->in_sub_stmt;
  return !applies_row_event || slave_run_triggers_for_rbr != SLAVE_RUN_TRIGGERS_FOR_RBR_NO;
}

static int isolation_of(THD *thd) {
  const int command = thd_sql_command(thd);
  /* At SERIALIZABLE it would lock each row; at READ UNCOMMITTED copy what a rollback has not come
     to yet. */
  if (is_scan_alone(command)) return TP_REPEATABLE_READ;
  if (unlikely(may_find_too_little(thd))) return TP_SERIALIZABLE;
  switch (thd_tx_isolation(thd)) {
    case ISO_READ_UNCOMMITTED: return TP_READ_UNCOMMITTED;
    case ISO_READ_COMMITTED: return TP_READ_COMMITTED;
    case ISO_SERIALIZABLE:
      /* A single statement that only reads is serializable as a consistent read, if it reads by
         that alone. */
      if (!thd_test_options(thd, OPTION_NOT_AUTOCOMMIT | OPTION_BEGIN) && is_single_read(command) &&
          !locks_rows(thd))
        return TP_REPEATABLE_READ;
      return TP_SERIALIZABLE;
    default: return TP_REPEATABLE_READ;
  }
}

ulong lock_wait_timeout(THD *thd) {
  return MY_MIN(session_lock_wait_timeout(thd), thd->variables.lock_wait_timeout);
}

/*
  ---- prepared transactions and their connections

  What XA PREPARE has prepared is the connection's until the server parts the two: when the
  connection ends, but also at COM_RESET_CONNECTION and COM_CHANGE_USER, and of these it tells no
  engine. From then on the transaction is ended by its XID, from any connection; its metadata locks
  are gone; and the connection's next statement begins another. So it is given away by whoever comes
  first: the connection's next statement, its end, the verdict, or who must know of all that belong
  to nobody.
*/

static std::mutex prepared_mutex;
static std::vector<Session *> prepared_sessions;

static void forget_prepared(Session *session) {
  prepared_sessions.erase(std::find(prepared_sessions.begin(), prepared_sessions.end(), session));
}

/* Under the mutex; the session's own thread is not in the engine, or it is the caller. */
static void give_away(Session *session) {
  forget_prepared(session);
  if (session->prepared) {
    tp_detach(session->transaction);
  } else {
    tp_rollback(session->transaction); /* it has only read here */
    if (session->ownerless_generation != ownerless_generation()) drop_ownerless_tables();
  }
  session->in_transaction = session->in_statement = session->unsettled = session->ordered =
      session->prepared = false;
  session->xa_prepared = false; /* last: its own thread looks at this alone */
}

static void give_away_if_prepared(Session *session) {
  if (likely(!session->xa_prepared)) return;
  std::lock_guard<std::mutex> guard(prepared_mutex);
  if (session->xa_prepared) give_away(session);
}

/* Under the mutex. The server's own reading of system tables, in a transaction beside, doesn't part
   a connection from what it has prepared. */
static bool is_parted(const Session *session) {
  return session->thd->default_transaction.xid_state.xid_cache_element != session->xid_entry;
}

/* For what the server ends without a statement of the engine before: that may be a statement after
   the prepared transaction was parted from the connection. */
void give_away_if_parted(Session *session) {
  if (likely(!session->xa_prepared)) return;
  std::lock_guard<std::mutex> guard(prepared_mutex);
  if (session->xa_prepared && is_parted(session)) give_away(session);
}

template <typename Is_one>
static void give_away_each(Is_one is_one) {
  std::lock_guard<std::mutex> guard(prepared_mutex);
  const std::vector<Session *> sessions = prepared_sessions;
  for (Session *session : sessions)
    if (is_one(session)) give_away(session);
}

void give_away_parted() {
  /* A connection doesn't end without the mutex, and parts before it lets go of its metadata
     locks. */
  give_away_each(is_parted);
}

int settle_last_row(Session *session) {
  if (likely(!session->unsettled)) return 0;
  session->unsettled = false;
  const Unsettled_row &row = session->last_row;
  if (tp_must_rollback(session->transaction) ||
      tp_has_written_since(session->transaction, &row.after) ||
      counted_changes(*row.table->file) != row.counted)
    return 0;
  return server_error(tp_rollback_to(session->transaction, &row.before), session->thd);
}

int begin_statement(THD *thd, Session *session) {
  if (session->in_statement) return 0;
  give_away_if_prepared(session);
  if (!session->in_transaction) {
    session->isolation = isolation_of(thd);
    session->ownerless_generation = ownerless_generation();
    if (int result = tp_transaction_begin(session->transaction, session->isolation))
      return server_error(result, thd);
    session->in_transaction = true;
    if (thd_need_wait_reports(thd))
      tp_transaction_set_session_token(session->transaction, reinterpret_cast<uintptr_t>(thd));
  }
  if (int result = tp_statement_begin(session->transaction, lock_wait_timeout(thd),
                                      &session->statement_start))
    return server_error(result, thd);
  session->in_statement = true;
  session->duplicate_key = MAX_KEY;
  session->moved = {};
  /* Killed while it was parsed or planned: the engine has just forgotten that. */
  if (unlikely(thd_kill_level(thd) != THD_IS_NOT_KILLED)) tp_interrupt_raise(session->interrupt);
  trans_register_ha(thd, false, engine.hton, 0);
  if (thd_test_options(thd, OPTION_NOT_AUTOCOMMIT | OPTION_BEGIN))
    trans_register_ha(thd, true, engine.hton, 0);
  return 0;
}

/* In parallel replication the server kills the holder and tries it again if the holder must commit
   after the waiter, since it waits for that with its locks. A thread of the server does the killing
   later, and only sets flags and wakes. Beside that, the binary log marks a transaction that had to
   wait as one that replicas had better not begin early, and a transaction that others wait for does
   not tarry in a group commit.

   thd_need_ordering_with() is not asked. It spares waits for gap locks, and there are none below
   SERIALIZABLE. There a range does not say what of it is gap, and a conflict of ranges ends as any
   other does: by this. */
static int waits_for(uintptr_t waiter, uintptr_t holder) {
  return thd_rpl_deadlock_check(reinterpret_cast<THD *>(waiter), reinterpret_cast<THD *>(holder));
}

size_t statement_of(uint64_t connection, char *text, size_t capacity, CHARSET_INFO **charset) {
  THD *thd = find_thread_by_id(static_cast<longlong>(connection));
  if (!thd) return 0;
  /* Its LOCK_thd_kill is ours: it can't end. */
  const size_t len = thd_query_safe(thd, text, capacity);
  *charset = thd->charset();
  mysql_mutex_unlock(&thd->LOCK_thd_kill);
  return len;
}

/* The same in UTF-8, for the report of a deadlock. */
static size_t statement_in_utf8(uint64_t connection, char *text, size_t capacity) {
  char as_sent[1024];
  CHARSET_INFO *charset = system_charset_info;
  const size_t len = statement_of(connection, as_sent, sizeof as_sent, &charset);
  if (!len) return 0;
  uint errors = 0;
  CHARSET_INFO *utf8 = &my_charset_utf8mb4_general_ci;
  return copy_and_convert(text, static_cast<uint32>(capacity), utf8, as_sent,
                          static_cast<uint32>(len), charset, &errors);
}

static void end_transaction(Session *session) {
  if (unlikely(session->xa_prepared)) {
    std::lock_guard<std::mutex> guard(prepared_mutex);
    if (session->xa_prepared) forget_prepared(session);
    session->xa_prepared = false;
  }
  session->in_transaction = session->in_statement = session->unsettled = session->ordered =
      session->prepared = false;
  for (const std::string &name : session->dropped) drop_ownerless(name, session->thd);
  session->dropped.clear();
  if (unlikely(session->ownerless_generation != ownerless_generation())) drop_ownerless_tables();
}

static Session *existing_session(THD *thd) {
  return static_cast<Session *>(thd_get_ha_data(thd, engine.hton));
}

static void commit_ordered(THD *thd, bool all) {
  Session *session = existing_session(thd);
  if (!session || !session->in_transaction || !ends_transaction(thd, all)) return;
  /* Visible here, in the order of the binary log; durable in commit(). May run in another thread:
     no errors here. */
  session->ordered_result = tp_commit_no_flush(session->transaction, &session->commit_lsn);
  if (unlikely(session->ordered_result != TP_OK))
    session->ordered_error = last_error_text().c_ptr_safe();
  session->ordered = true;
}

static int end_statement(THD *thd, Session *session) {
  /* It may have been registered for the names of files alone. */
  if (!session->in_statement) return 0;
  const int unsettled = settle_last_row(session);
  session->in_statement = false;
  const int error = server_error(tp_statement_end(session->transaction), thd);
  return unsettled ? unsettled : error;
}

/*
  Whether something outside this engine becomes durable after this commit, or is removed, and
  relies on it. Such a commit is durable when it returns, whatever flush_log_at_trx_commit says
  (docs/internals/recovery.md, "What others rely on").

  A change of definitions: after a crash the server's DDL log goes on from here, puts the copy in
  the place of the table that its rows come from, and drops that, which may be another engine's.
  XA COMMIT: the coordinator forgets the transaction at the answer, and could not decide about one
  that is found prepared again.
*/
static bool is_relied_on(THD *thd, const Session *session) {
  return stmt_causes_implicit_commit(thd, CF_IMPLICIT_COMMIT_END) || session->xa_prepared;
}

/*
  The same of a transaction that went through prepare() and commit_ordered(). prepare() has made it
  durable, and if the binary log has it, the next start commits it after a crash: nothing is left to
  flush. But the binary log may lose its end in a power cut, unless it is synced with each commit.
*/
static bool is_binary_log_enough() { return sync_binlog_period == 1 || !is_each_commit_durable(); }

/* The engines of the transaction, or of the statement, and the binary log. */
static Ha_trx_info *participants(THD *thd, bool all) {
  return (all ? thd->transaction->all : thd->transaction->stmt).ha_list;
}

/*
  Asked before the first engine commits, as an engine that has committed is not in the list any
  more. The list has the binary log, too.
*/
static bool changes_other_engines(THD *thd, bool all) {
  for (Ha_trx_info *info = participants(thd, all); info; info = info->next())
    if (info->is_trx_read_write() && info->ht() != engine.hton && !is_binary_log(info->ht()))
      return true;
  return false;
}

/* Whether the binary log has something of the transaction. */
static bool is_logged(THD *thd, bool all) {
  for (Ha_trx_info *info = participants(thd, all); info; info = info->next())
    if (is_binary_log(info->ht())) return true;
  return false;
}

int commit_durably(Session *session) {
  const int result = tp_commit_no_flush(session->transaction, &session->commit_lsn);
  return result == TP_OK ? tp_flush_log(engine.db, session->commit_lsn) : result;
}

static int commit(THD *thd, bool all) {
  Session *session = existing_session(thd);
  if (!session) return 0;
  sync_names(session);
  close_children(session);
  give_away_if_parted(session);
  if (!ends_transaction(thd, all)) return end_statement(thd, session);
  if (!session->in_transaction) return 0;
  if (settle_last_row(session)) {
    tp_rollback(session->transaction);
    end_transaction(session);
    return HA_ERR_COMMIT_ERROR;
  }
  int result;
  bool unflushed = false;
  if (session->ordered) {
    result = session->ordered_result;
    if (unlikely(result != TP_OK))
      tp_set_last_error(session->ordered_error.data(), session->ordered_error.size());
    thd_wakeup_subsequent_commits(thd, 0);
    /* Without a binary log, of a transaction of several engines, tc.log knows. But after a crash
       the server reads it and then rolls back all that is still prepared (10.11.18,
       xarecover_handlerton), acknowledged or not. So each engine's commit must be in its log before
       the answer. All have made theirs by now, in commit_ordered; InnoDB does not flush
       it either. */
    if (result == TP_OK) {
      if (!opt_bin_log || (session->with_other_engines && !is_binary_log_enough()))
        unflushed = ha_flush_logs();
      else if (!is_binary_log_enough() || is_relied_on(thd, session))
        unflushed = server_error(tp_flush_log(engine.db, session->commit_lsn), thd) != 0;
    }
  } else {
    result = is_relied_on(thd, session) ? commit_durably(session) : tp_commit(session->transaction);
  }
  if (result != TP_OK) {
    server_error(result, thd); /* first: what follows has other errors */
    tp_rollback(session->transaction);
    end_transaction(session);
    return HA_ERR_COMMIT_ERROR;
  }
  end_transaction(session);
  return unflushed ? HA_ERR_COMMIT_ERROR : 0;
}

static int rollback(THD *thd, bool all) {
  Session *session = existing_session(thd);
  if (!session) return 0;
  sync_names(session);
  close_children(session);
  give_away_if_parted(session);
  if (ends_transaction(thd, all)) {
    if (!session->in_transaction) return 0;
    const int error = server_error(tp_rollback(session->transaction), thd);
    end_transaction(session);
    return error;
  }
  if (!session->in_statement) return 0;
  session->in_statement = session->unsettled = false;
  int result = TP_OK;
  /* A transaction that the engine aborted can only be rolled back as a whole, which the server was
     asked to do. */
  if (!tp_must_rollback(session->transaction))
    result = tp_rollback_to(session->transaction, &session->statement_start);
  tp_statement_end(session->transaction);
  return server_error(result, thd);
}

/* ---- two-phase commit */

/* Return codes of the X/Open XA specification. */
constexpr int XA_OK = 0, XAER_NOTA = -4, XAER_RMFAIL = -7;

constexpr size_t XID_BYTES_MAX = 12 + XIDDATASIZE;

static size_t put_xid(uchar *to, const XID *xid) {
  int4store(to, static_cast<uint32>(xid->formatID));
  int4store(to + 4, static_cast<uint32>(xid->gtrid_length));
  int4store(to + 8, static_cast<uint32>(xid->bqual_length));
  const size_t len = xid->gtrid_length + xid->bqual_length;
  memcpy(to + 12, xid->data, len);
  return 12 + len;
}

static int prepare(THD *thd, bool all) {
  Session *session = existing_session(thd);
  if (!session) return 0;
  close_children(session);
  if (!ends_transaction(thd, all)) return end_statement(thd, session);
  if (!session->in_transaction) return 0;
  if (int error = settle_last_row(session)) return error;
  uchar xid[XID_BYTES_MAX];
  const size_t len = put_xid(xid, thd->get_xid());
  if (tp_has_writes(session->transaction)) {
    const int result = tp_prepare(session->transaction, xid, len);
    if (result != TP_OK) return server_error(result, thd);
    session->prepared = true;
    session->with_other_engines = changes_other_engines(thd, all);
  }
  /* A worker of a parallel replica commits in its turn. The server sees to that where the binary
     log takes the transaction, and where there is none; not where there is one, and the transaction
     is left out of it (10.11.18, TC_LOG_BINLOG::log_and_order). */
  if (unlikely(thd->rgi_slave != nullptr) && opt_bin_log && !is_logged(thd, all))
    if (int error = thd->wait_for_prior_commit()) return error;
  if (thd->transaction->xid_state.is_explicit_XA() && !session->xa_prepared) {
    std::lock_guard<std::mutex> guard(prepared_mutex);
    session->xid.assign(reinterpret_cast<char *>(xid), len);
    session->xid_entry = thd->transaction->xid_state.xid_cache_element;
    prepared_sessions.push_back(session);
    session->xa_prepared = true;
  }
  return 0;
}

namespace {
struct Xid_list {
  XID *list;
  uint capacity, count;
};
} // namespace

static void take_xid(void *context, const uint8_t *bytes, size_t len) {
  auto *found = static_cast<Xid_list *>(context);
  if (found->count == found->capacity || len < 12) return;
  XID *xid = found->list + found->count;
  const auto format = static_cast<int32>(uint4korr(bytes));
  const uint32 gtrid = uint4korr(bytes + 4), bqual = uint4korr(bytes + 8);
  if (gtrid > MAXGTRIDSIZE || bqual > MAXBQUALSIZE || 12 + gtrid + bqual != len) return;
  xid->set(format, reinterpret_cast<const char *>(bytes + 12), gtrid,
           reinterpret_cast<const char *>(bytes + 12 + gtrid), bqual);
  found->count++;
}

/* Always from the beginning: the server asks again only if its list came back full, and that has
   room for 131,072 (for less only if the server could not get these 19 MB). There are far fewer:
   each prepared transaction has an undo stream to itself, of which there are 1,361 with pages of 16
   KiB, and 5,457 with the largest. */
static int recover(XID *list, uint capacity) {
  Xid_list found{list, capacity, 0};
  if (list && capacity) tp_recovered_xids(engine.db, &found, take_xid);
  return static_cast<int>(found.count);
}

/*
  A commit of the server's is prepared under the lock that a backup takes at its end. But a replica
  that applies in parallel lets go of that lock while it waits for the commits before it, so the
  backup may have such transactions. The binary log had none of them at the place that the backup
  names, from which a replica goes on: they come again. What XA PREPARE has prepared stays.
*/
int roll_back_unlogged() {
  bool is_restored = false;
  const int known = tp_is_restored(engine.db, &is_restored);
  if (known != TP_OK || !is_restored) return known;
  std::vector<std::string> unlogged;
  tp_recovered_xids(engine.db, &unlogged, [](void *context, const uint8_t *bytes, size_t len) {
    XID xid;
    Xid_list found{&xid, 1, 0};
    take_xid(&found, bytes, len);
    if (found.count != 1 || xid.get_my_xid() == 0) return;
    auto *all = static_cast<std::vector<std::string> *>(context);
    all->emplace_back(reinterpret_cast<const char *>(bytes), len);
  });
  for (const std::string &xid : unlogged) {
    const auto *bytes = reinterpret_cast<const uint8_t *>(xid.data());
    const int result = tp_rollback_prepared(engine.db, bytes, xid.size());
    if (result != TP_OK) return result;
  }
  if (!unlogged.empty())
    sql_print_information(
        "Tidepool: this is a restored backup. %zu transactions that were about "
        "to commit when it ended are rolled back; the binary log has them behind "
        "the backup's place",
        unlogged.size());
  return tp_end_restore(engine.db);
}

/* The server takes two XIDs for the same if they differ in their format alone (xid_t::eq). */
static bool is_same_xid(std::string_view a, std::string_view b) {
  constexpr size_t FORMAT_BYTES = 4;
  return a.size() == b.size() && a.substr(FORMAT_BYTES) == b.substr(FORMAT_BYTES);
}

/* The XID that a transaction without a session was prepared under, of those that are the same; if
   there is none, `wanted`. */
static std::string prepared_xid(const std::string &wanted) {
  struct Search {
    const std::string &wanted;
    std::string found;
  } search{wanted, wanted};
  tp_recovered_xids(engine.db, &search, [](void *context, const uint8_t *bytes, size_t len) {
    auto *search = static_cast<Search *>(context);
    const std::string_view prepared(reinterpret_cast<const char *>(bytes), len);
    if (is_same_xid(prepared, search->wanted)) search->found = prepared;
  });
  return search.found;
}

static int by_xid(XID *xid, int (*end)(tp_db *, const uint8_t *, size_t)) {
  uchar bytes[XID_BYTES_MAX];
  const size_t len = put_xid(bytes, xid);
  const std::string wanted(reinterpret_cast<char *>(bytes), len);
  give_away_each([&](const Session *session) { return is_same_xid(session->xid, wanted); });
  const std::string found = prepared_xid(wanted);
  switch (end(engine.db, reinterpret_cast<const uint8_t *>(found.data()), found.size())) {
    case TP_OK: drop_ownerless_tables(); return XA_OK;
    case TP_NOT_FOUND: return XAER_NOTA;
    default:
      server_error(TP_OTHER, nullptr); /* to the error log */
      /* What is returned the server passes over. By the error it knows that the transaction is
         still to be ended. */
      if (current_thd) my_error(ER_XAER_RMERR, MYF(0));
      return XAER_RMFAIL;
  }
}

static int commit_by_xid(XID *xid) { return by_xid(xid, tp_commit_prepared); }
static int rollback_by_xid(XID *xid) { return by_xid(xid, tp_rollback_prepared); }

/*
  Whether somebody holds the binary log while he waits for the checkpoint: RESET MASTER does, and
  what is done by it (SET GLOBAL gtid_binlog_state), without a limit and deaf to KILL. Who rotates
  has let go of it before he asks for one, and commits hold it for moments. Which statement runs
  says less: this one may be in time, and another one's request be what RESET MASTER waits for.
*/
static bool is_binary_log_held() {
  using namespace std::chrono;
  constexpr auto MOMENT = seconds(5);
  mysql_mutex_t *const lock = mysql_bin_log.get_log_lock();
  for (const auto start = steady_clock::now(); steady_clock::now() - start < MOMENT;
       std::this_thread::sleep_for(milliseconds(1))) {
    if (mysql_mutex_trylock(lock) != 0) continue;
    mysql_mutex_unlock(lock);
    return false;
  }
  return true;
}

static void commit_checkpoint_request(void *cookie) {
  /* All that went through commit_ordered must be durable before the binary log forgets it. If it
     can't be made so, the server never learns that: after a restart it then still finds in the
     binary log what it has acknowledged. */
  if (tp_flush_all_log(engine.db) == TP_OK) {
    commit_checkpoint_notify_ha(cookie);
    return;
  }
  server_error(TP_OTHER, nullptr);
  if (!is_binary_log_held()) return;
  sql_print_error(
      "Tidepool: the log has failed, and a RESET MASTER waits for it, with every commit behind. "
      "The server ends here, so "
      "that the next start recovers all that was committed from the binary log, which is not "
      "reset");
  /* Unlike in pre_shutdown(), a restart is wanted: by this signal, and by the pid file that stays,
     it is seen to be a crash. */
  kill(getpid(), SIGKILL);
}

static bool flush_logs() { return tp_flush_all_log(engine.db) != TP_OK; }

/* ---- savepoints: the server keeps their data */

static int savepoint_set(THD *thd, void *data) {
  Session *session = session_of(thd);
  if (!session) return HA_ERR_OUT_OF_MEM;
  if (int error = settle_last_row(session)) return error;
  tp_savepoint savepoint;
  const int result = tp_savepoint_set(session->transaction, &savepoint);
  memcpy(data, &savepoint, sizeof savepoint);
  return server_error(result, thd);
}

static int savepoint_rollback(THD *thd, void *data) {
  Session *session = session_of(thd);
  if (!session) return HA_ERR_OUT_OF_MEM;
  session->unsettled = false;
  tp_savepoint savepoint;
  memcpy(&savepoint, data, sizeof savepoint);
  return server_error(tp_rollback_to(session->transaction, &savepoint), thd);
}

static int savepoint_release(THD *, void *) { return 0; }

/* Row locks stay after a rollback to a savepoint, and so must the metadata locks that protect them.
   Who only reads has none: a dump rolls back after each table, so that others may alter it. */
static bool savepoint_rollback_can_release_mdl(THD *thd) {
  const Session *session = session_of(thd);
  return session && tp_has_only_read(session->transaction);
}

/* ---- the rest of a connection's life */

static int start_consistent_snapshot(THD *thd) {
  /* Under LOCK_commit_ordered: nothing here may wait. */
  Session *session = session_of(thd);
  if (!session) return HA_ERR_OUT_OF_MEM;
  if (int error = begin_statement(thd, session)) return error;
  trans_register_ha(thd, true, engine.hton, 0);
  /* Others read anew with each statement, or what is newest and lock it: no snapshot would serve
     them. */
  if (session->isolation != TP_REPEATABLE_READ) {
    push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, HA_ERR_UNSUPPORTED,
                        "Tidepool: WITH CONSISTENT SNAPSHOT is ignored unless the isolation level "
                        "is REPEATABLE READ");
    return 0;
  }
  return server_error(tp_snapshot(session->transaction), thd);
}

static int close_connection(THD *thd) {
  Session *session = existing_session(thd);
  if (!session) return 0;
  /* Under LOCK_thd_data, which a KILL holds too: it sees the session whole or not at all. */
  thd_set_ha_data(thd, engine.hton, nullptr);
  give_away_if_prepared(session);
  if (session->prepared)
    tp_detach(session->transaction);
  else if (session->in_transaction)
    tp_rollback(session->transaction);
  end_transaction(session);
  close_children(session);
  tp_interrupt_free(session->interrupt);
  tp_transaction_free(session->transaction);
  delete session;
  return 0;
}

static void kill_query(THD *thd, enum thd_kill_levels) {
  /* A shutdown waits for its sessions, and a commit waits for space on a full disk. */
  if (abort_loop) tp_begin_shutdown(engine.db);
  if (Session *session = existing_session(thd)) tp_interrupt_raise(session->interrupt);
}

void setup_transactions(handlerton *hton) {
  tp_set_wait_observer(engine.db, waits_for, statement_in_utf8);
  hton->savepoint_offset = sizeof(tp_savepoint);
  hton->savepoint_set = Hook<savepoint_set>();
  hton->savepoint_rollback = Hook<savepoint_rollback>();
  hton->savepoint_release = Hook<savepoint_release>();
  hton->savepoint_rollback_can_release_mdl = Hook<savepoint_rollback_can_release_mdl>();
  hton->commit = Hook<commit>();
  hton->commit_ordered = Hook<commit_ordered>();
  hton->rollback = Hook<rollback>();
  hton->prepare = Hook<prepare>();
  hton->recover = Hook<recover>();
  hton->commit_by_xid = Hook<commit_by_xid>();
  hton->rollback_by_xid = Hook<rollback_by_xid>();
  hton->commit_checkpoint_request = commit_checkpoint_request;
  hton->flush_logs = Hook<flush_logs>();
  hton->start_consistent_snapshot = Hook<start_consistent_snapshot>();
  hton->close_connection = Hook<close_connection>();
  hton->kill_query = Hook<kill_query>();
}

} // namespace tidepool
