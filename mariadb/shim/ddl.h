/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* Tables that are dropped without an open handler. */
#ifndef TIDEPOOL_DDL_H
#define TIDEPOOL_DDL_H

#include "server.h"

namespace tidepool {

int drop_table(handlerton *hton, const char *path);
void drop_database(handlerton *hton, char *path);
/* After a crash within an ALTER in place: 0 if the table is what the ALTER makes of it. */
int check_version(handlerton *hton, const char *path, const LEX_CUSTRING *version, ulonglong before);
/* At start: what a server that ended without order left behind. */
void drop_temporary_tables();

} // namespace tidepool

#endif
