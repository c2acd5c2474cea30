/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* Columns of TIDEPOOL_TRX, TIDEPOOL_LOCKS and TIDEPOOL_DEADLOCKS, in the order of
   mariadb/src/explain.rs. */
#include "i_s.h"

namespace tidepool::i_s {

constexpr uint LOCK_ID_LENGTH = 64, KEY_LENGTH = 2048;

const ST_FIELD_INFO trx_columns[] = {
    /* before the first write: a number above all ids */
    Column("trx_id", ULonglong(), NOT_NULL),
    /* RUNNING, LOCK WAIT, PREPARED, COMMITTING or ROLLING BACK */
    Column("trx_state", Varchar(13), NOT_NULL),
    /* NULL: before the server was started, or by the engine itself */
    Column("trx_started", Datetime(6), NULLABLE),
    Column("trx_requested_lock_id", Varchar(LOCK_ID_LENGTH), NULLABLE),
    Column("trx_wait_started", Datetime(6), NULLABLE), Column("trx_weight", ULonglong(), NOT_NULL),
    /* NULL: no connection runs it */
    Column("trx_mysql_thread_id", ULonglong(), NULLABLE),
    Column("trx_query", Varchar(QUERY_LENGTH_MAX), NULLABLE),
    Column("trx_tables_in_use", ULonglong(), NOT_NULL),
    Column("trx_rows_locked", ULonglong(), NOT_NULL),
    Column("trx_rows_modified", ULonglong(), NOT_NULL),
    Column("trx_isolation_level", Varchar(16), NULLABLE), CEnd()};

const ST_FIELD_INFO locks_columns[] = {
    Column("lock_id", Varchar(LOCK_ID_LENGTH), NOT_NULL),
    Column("lock_trx_id", ULonglong(), NOT_NULL),
    /* S or X */
    Column("lock_mode", Varchar(1), NOT_NULL),
    /* RECORD or RANGE */
    Column("lock_type", Varchar(8), NOT_NULL),
    /* GRANTED or WAITING */
    Column("lock_status", Varchar(8), NOT_NULL),
    Column("table_schema", Varchar(NAME_CHAR_LEN), NULLABLE),
    Column("table_name", Varchar(3 * NAME_CHAR_LEN), NULLABLE),
    Column("index_name", Varchar(NAME_CHAR_LEN), NULLABLE),
    /* in hexadecimal; of a range, its first and last key, NULL = to the end of the index */
    Column("lock_key", Varchar(KEY_LENGTH), NOT_NULL),
    Column("lock_key_last", Varchar(KEY_LENGTH), NULLABLE),
    /* the first of those that a request waits for, and how many there are */
    Column("blocking_trx_id", ULonglong(), NULLABLE),
    Column("blocking_trxs", ULonglong(), NOT_NULL), CEnd()};

const ST_FIELD_INFO deadlocks_columns[] = {
    Column("deadlock_id", ULonglong(), NOT_NULL), Column("found_at", Datetime(6), NOT_NULL),
    /* each waited for the next, the last for the first */
    Column("position", ULonglong(), NOT_NULL), Column("trx_id", ULonglong(), NOT_NULL),
    Column("trx_mysql_thread_id", ULonglong(), NULLABLE),
    Column("trx_query", Varchar(QUERY_LENGTH_MAX), NULLABLE),
    /* the lock that it waited for; NULL: of a table that is gone */
    Column("table_schema", Varchar(NAME_CHAR_LEN), NULLABLE),
    Column("table_name", Varchar(3 * NAME_CHAR_LEN), NULLABLE),
    Column("index_name", Varchar(NAME_CHAR_LEN), NULLABLE),
    /* in hexadecimal */
    Column("lock_key", Varchar(KEY_LENGTH), NOT_NULL),
    Column("trx_rows_modified", ULonglong(), NOT_NULL),
    /* YES or NO */
    Column("is_victim", Varchar(3), NOT_NULL), CEnd()};

} // namespace tidepool::i_s
