/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  The information_schema tables TIDEPOOL_*.

  Each is a separate plugin in the same library (the server calls that a plugin "of type
  INFORMATION SCHEMA"), so --plugin-load-add=ha_tidepool.so and INSTALL SONAME 'ha_tidepool' bring
  them together with the engine. A table is a name, a list of columns (i_s_buffer_pool.cc, …) and
  the number by which tp_explain() knows it; the rows come from there.

  Reading one takes the privilege PROCESS, as InnoDB's do.
*/
#ifndef TIDEPOOL_I_S_H
#define TIDEPOOL_I_S_H

#include "bridge.h"
#include "server.h"

namespace tidepool::i_s {

/* Types of columns; the server has others of the same names outside this namespace. */
using Show::CEnd;
using Show::Column;
using Show::Datetime;
using Show::Decimal;
using Show::ULonglong;
using Show::Varchar;

struct Schema_table {
  const char *name;
  const ST_FIELD_INFO *columns;
  tp_explain_table rows;
};

extern const ST_FIELD_INFO buffer_pool_columns[], buffer_pool_by_index_columns[], trx_columns[],
    locks_columns[], cache_advice_columns[], memory_decisions_columns[], table_files_columns[],
    deadlocks_columns[], encryption_columns[];

constexpr Schema_table BUFFER_POOL{"TIDEPOOL_BUFFER_POOL", buffer_pool_columns, TP_BUFFER_POOL},
    BUFFER_POOL_BY_INDEX{"TIDEPOOL_BUFFER_POOL_BY_INDEX", buffer_pool_by_index_columns,
                         TP_BUFFER_POOL_BY_INDEX},
    TRX{"TIDEPOOL_TRX", trx_columns, TP_TRANSACTIONS},
    LOCKS{"TIDEPOOL_LOCKS", locks_columns, TP_LOCKS},
    CACHE_ADVICE{"TIDEPOOL_CACHE_ADVICE", cache_advice_columns, TP_CACHE_ADVICE},
    MEMORY_DECISIONS{"TIDEPOOL_MEMORY_DECISIONS", memory_decisions_columns, TP_MEMORY_DECISIONS},
    TABLE_FILES{"TIDEPOOL_TABLE_FILES", table_files_columns, TP_TABLE_FILES},
    DEADLOCKS{"TIDEPOOL_DEADLOCKS", deadlocks_columns, TP_DEADLOCKS},
    ENCRYPTION{"TIDEPOOL_TABLESPACES_ENCRYPTION", encryption_columns, TP_ENCRYPTION};

extern st_mysql_information_schema interface;
int init(void *schema_table);
int deinit(void *);

constexpr st_maria_plugin plugin(const Schema_table &table, const char *description) {
  return {MYSQL_INFORMATION_SCHEMA_PLUGIN,
          &interface,
          table.name,
          "the Tidepool authors",
          description,
          PLUGIN_LICENSE_GPL,
          init,
          deinit,
          0x0001,
          nullptr,
          nullptr,
          "0.1",
          MariaDB_PLUGIN_MATURITY_GAMMA};
}

/* Characters of a statement that TIDEPOOL_TRX shows, as INNODB_TRX. */
constexpr uint QUERY_LENGTH_MAX = 1024;
/* Decimal columns: megabytes with three digits after the point, shares (0 to 1) with five. */
constexpr uint MB_DIGITS = 1803, SHARE_DIGITS = 605;

} // namespace tidepool::i_s

#endif
