/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* Tables that are dropped without an open handler. */
#ifndef TIDEPOOL_DDL_H
#define TIDEPOOL_DDL_H

#include "server.h"
#include <string>

namespace tidepool {

/* Warns of each table option that a CREATE or ALTER names and that changes nothing here. */
void warn_of_ignored_options(THD *thd, const HA_CREATE_INFO *info);
int drop_table(handlerton *hton, const char *path);
void drop_database(handlerton *hton, char *path);
/* Removes files of exports from a database's directory: what a crash has left would keep it. */
void remove_exports(const char *directory);
/* After a crash within an ALTER in place: 0 if the table is what the ALTER makes of it. */
int check_version(handlerton *hton, const char *path, const LEX_CUSTRING *version,
                  ulonglong before);
/* At start: what a server that ended without order left behind. */
void drop_temporary_tables();
/* When the server has cleared up after a crash: writes files that a power cut took, and reports
   copies by ALTER TABLE that are still there. */
int after_ddl_recovery();
/* Gives a table, or one of partitions, a name that is free, because the server has something else
   under its own: see set_forgotten_aside(). A TP_* code. */
int make_way_for(const std::string &name, std::string *aside);
/* Drops a table that no statement can name any more, at once or when the transactions that have
   used it are over. */
void drop_ownerless(const std::string &name, THD *thd);
/* After the end of a transaction that may have kept some. */
void drop_ownerless_tables();
/* Another one since a transaction began: a table has lost its owner meanwhile, and the transaction
   may be what it waits for. */
uint64 ownerless_generation();

} // namespace tidepool

#endif
