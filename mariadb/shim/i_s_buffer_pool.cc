/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* Columns of TIDEPOOL_BUFFER_POOL and TIDEPOOL_BUFFER_POOL_BY_INDEX, in the order of mariadb/src/explain.rs. */
#include "i_s.h"

namespace tidepool::i_s {

const ST_FIELD_INFO buffer_pool_columns[] = {
    /* idle, growing, shrinking or stuck */
    Column("STATE", Varchar(16), NOT_NULL),
    Column("SIZE_BYTES", ULonglong(), NOT_NULL),
    Column("RESIDENT_BYTES", ULonglong(), NOT_NULL),
    Column("TARGET_BYTES", ULonglong(), NOT_NULL),
    /* NULL: nobody set one */
    Column("CEILING_BYTES", ULonglong(), NULLABLE),
    /* the tightest limit on the process's memory, and where it is set */
    Column("LIMIT_BYTES", ULonglong(), NULLABLE),
    Column("LIMIT_SET_BY", Varchar(512), NULLABLE),
    Column("WHY", Varchar(512), NOT_NULL),
    Column("GOVERNED", Varchar(3), NOT_NULL),
    Column("PAGE_SIZE", ULonglong(), NOT_NULL),
    Column("PAGES_TOTAL", ULonglong(), NOT_NULL),
    Column("PAGES_FREE", ULonglong(), NOT_NULL),
    Column("PAGES_DATA", ULonglong(), NOT_NULL),
    Column("PAGES_DIRTY", ULonglong(), NOT_NULL),
    Column("PAGES_OLD", ULonglong(), NOT_NULL),
    Column("HIT_RATIO", Decimal(SHARE_DIGITS), NULLABLE),
    Column("RESIZE_LONGEST_WAIT_US", ULonglong(), NOT_NULL),
    CEnd()};

const ST_FIELD_INFO buffer_pool_by_index_columns[] = {
    /* NULL: pages of no table */
    Column("TABLE_SCHEMA", Varchar(NAME_CHAR_LEN), NULLABLE),
    Column("TABLE_NAME", Varchar(3 * NAME_CHAR_LEN), NULLABLE),
    /* NULL: what a table's file has beside its indexes */
    Column("INDEX_NAME", Varchar(NAME_CHAR_LEN), NULLABLE),
    Column("PAGES", ULonglong(), NOT_NULL),
    Column("MB", Decimal(MB_DIGITS), NOT_NULL),
    Column("MB_HOT", Decimal(MB_DIGITS), NOT_NULL),
    Column("MB_COLD", Decimal(MB_DIGITS), NOT_NULL),
    Column("MB_DIRTY", Decimal(MB_DIGITS), NOT_NULL),
    CEnd()};

} // namespace tidepool::i_s
