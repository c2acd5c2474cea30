/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* System variables: InnoDB's names and meanings, with the prefix tidepool_. */
#ifndef TIDEPOOL_SYSVARS_H
#define TIDEPOOL_SYSVARS_H

#include "bridge.h"
#include "server.h"

namespace tidepool {

extern st_mysql_sys_var *system_variables[];

/* The directory of the engine's files: tidepool_data_home_dir, or <datadir>/tidepool. */
constexpr char DEFAULT_HOME_DIR[] = "tidepool";
const char *data_home_dir();
bool is_default_home_dir();
/* Whether that may be new although the server has tables of the engine's. */
bool may_start_empty();
/* The options that the variables give at start; size 0 of the buffer pool is replaced by what the
   engine chooses. */
tp_options open_options();
/* After the opening: shows the page size that the data directory has. */
void show_page_size(ulonglong page_size);

/* After the opening: what variables say on the command line that are no options of it. A result
   code. */
int apply_at_start();

ulong session_lock_wait_timeout(THD *thd);
const char *session_backup_incremental_from(THD *thd);
/* What a FULLTEXT index that is made now is made with. */
struct Fulltext_variables {
  ulong token_size_min, token_size_max;
  bool uses_stopwords;
  std::string stopword_table; /* the session's, or the server's; empty: neither names one */
  bool stopword_table_is_own; /* the session names it */
};
Fulltext_variables session_fulltext_variables(THD *thd);
ulonglong fulltext_search_bytes();
/* Whether force_recovery lets nothing be written. */
bool is_forced_read_only();
/* flush_log_at_trx_commit = 1 */
bool is_each_commit_durable();

} // namespace tidepool

#endif
