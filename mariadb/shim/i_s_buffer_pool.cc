/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* Columns of TIDEPOOL_BUFFER_POOL, TIDEPOOL_BUFFER_POOL_BY_INDEX, TIDEPOOL_CACHE_ADVICE,
   TIDEPOOL_MEMORY_DECISIONS and TIDEPOOL_TABLE_FILES, in the order of mariadb/src/explain.rs. */
#include "i_s.h"

namespace tidepool::i_s {

const ST_FIELD_INFO buffer_pool_columns[] = {
    /* idle, growing, shrinking or stuck */
    Column("STATE", Varchar(16), NOT_NULL), Column("SIZE_BYTES", ULonglong(), NOT_NULL),
    Column("RESIDENT_BYTES", ULonglong(), NOT_NULL), Column("TARGET_BYTES", ULonglong(), NOT_NULL),
    /* NULL: none was set */
    Column("CEILING_BYTES", ULonglong(), NULLABLE),
    /* the tightest limit on the process's memory, and where it is set */
    Column("LIMIT_BYTES", ULonglong(), NULLABLE), Column("LIMIT_SET_BY", Varchar(512), NULLABLE),
    Column("WHY", Varchar(512), NOT_NULL), Column("GOVERNED", Varchar(3), NOT_NULL),
    Column("PAGE_SIZE", ULonglong(), NOT_NULL), Column("PAGES_TOTAL", ULonglong(), NOT_NULL),
    Column("PAGES_FREE", ULonglong(), NOT_NULL), Column("PAGES_DATA", ULonglong(), NOT_NULL),
    Column("PAGES_DIRTY", ULonglong(), NOT_NULL), Column("PAGES_OLD", ULonglong(), NOT_NULL),
    Column("COMPRESSED_TIER_BYTES", ULonglong(), NOT_NULL),
    Column("COMPRESSED_TIER_PAGES", ULonglong(), NOT_NULL),
    Column("HIT_RATIO", Decimal(SHARE_DIGITS), NULLABLE),
    Column("RESIZE_LONGEST_WAIT_US", ULonglong(), NOT_NULL), CEnd()};

const ST_FIELD_INFO buffer_pool_by_index_columns[] = {
    /* NULL: pages of no table */
    Column("TABLE_SCHEMA", Varchar(NAME_CHAR_LEN), NULLABLE),
    Column("TABLE_NAME", Varchar(3 * NAME_CHAR_LEN), NULLABLE),
    /* NULL: what a table's file has beside its indexes */
    Column("INDEX_NAME", Varchar(NAME_CHAR_LEN), NULLABLE), Column("PAGES", ULonglong(), NOT_NULL),
    Column("MB", Decimal(MB_DIGITS), NOT_NULL), Column("MB_HOT", Decimal(MB_DIGITS), NOT_NULL),
    Column("MB_COLD", Decimal(MB_DIGITS), NOT_NULL),
    Column("MB_DIRTY", Decimal(MB_DIGITS), NOT_NULL), CEnd()};

const ST_FIELD_INFO memory_decisions_columns[] = {
    Column("DECIDED_AT", Datetime(6), NOT_NULL),
    /* what it answered to */
    Column("SIGNAL_NAME", Varchar(64), NOT_NULL), Column("FROM_BYTES", ULonglong(), NOT_NULL),
    Column("TO_BYTES", ULonglong(), NOT_NULL), Column("REASON", Varchar(512), NOT_NULL),
    /* NULL: the pool is on its way */
    Column("DURATION_US", ULonglong(), NULLABLE), CEnd()};

const ST_FIELD_INFO cache_advice_columns[] = {
    Column("SIZE_MB", Decimal(MB_DIGITS), NOT_NULL),
    /* relative to the present size */
    Column("SIZE_FACTOR", Decimal(MB_DIGITS), NOT_NULL),
    Column("PREDICTED_HIT_RATIO", Decimal(SHARE_DIGITS), NOT_NULL),
    Column("PREDICTED_READS_PER_SECOND", Decimal(MB_DIGITS), NOT_NULL), CEnd()};

const ST_FIELD_INFO table_files_columns[] = {
    Column("TABLE_SCHEMA", Varchar(NAME_CHAR_LEN), NOT_NULL),
    Column("TABLE_NAME", Varchar(3 * NAME_CHAR_LEN), NOT_NULL),
    Column("FILE_NAME", Varchar(64), NOT_NULL),
    /* NULL from here on: the file can't be opened */
    Column("FILE_BYTES", ULonglong(), NULLABLE), Column("OCCUPIED_BYTES", ULonglong(), NULLABLE),
    Column("LIVE_BYTES", ULonglong(), NULLABLE), Column("DEAD_BYTES", ULonglong(), NULLABLE),
    CEnd()};

const ST_FIELD_INFO encryption_columns[] = {
    Column("SPACE", ULonglong(), NOT_NULL),
    Column("TABLE_SCHEMA", Varchar(NAME_CHAR_LEN), NOT_NULL),
    Column("TABLE_NAME", Varchar(3 * NAME_CHAR_LEN), NOT_NULL),
    Column("ENCRYPTION_SCHEME", ULonglong(), NOT_NULL),
    /* 0: some pages are not encrypted, or it is not known yet */
    Column("MIN_KEY_VERSION", ULonglong(), NOT_NULL),
    Column("CURRENT_KEY_VERSION", ULonglong(), NOT_NULL),
    /* NULL: no rotation is under way */
    Column("KEY_ROTATION_PAGE_NUMBER", ULonglong(), NULLABLE),
    Column("KEY_ROTATION_MAX_PAGE_NUMBER", ULonglong(), NULLABLE),
    Column("CURRENT_KEY_ID", ULonglong(), NOT_NULL),
    Column("ROTATING_OR_FLUSHING", ULonglong(), NOT_NULL), CEnd()};

} // namespace tidepool::i_s
