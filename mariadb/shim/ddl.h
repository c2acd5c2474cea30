/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* Tables that are dropped without an open handler. */
#ifndef TIDEPOOL_DDL_H
#define TIDEPOOL_DDL_H

#include "server.h"
#include <string>

namespace tidepool {

int drop_table(handlerton *hton, const char *path);
void drop_database(handlerton *hton, char *path);
/* After a crash within an ALTER in place: 0 if the table is what the ALTER makes of it. */
int check_version(handlerton *hton, const char *path, const LEX_CUSTRING *version, ulonglong before);
/* At start: what a server that ended without order left behind. */
void drop_temporary_tables();
/* A temporary table that has lost its owner, at once or when the prepared transaction that has used it is over. */
void drop_ownerless(const std::string &name, THD *thd);
/* After the end of a prepared transaction: those that it has kept. */
void drop_ownerless_tables();

} // namespace tidepool

#endif
