/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* SET GLOBAL tidepool_backup_to = '…': a backup of all tables while they are in use; and backups
   that other programs make. */
#ifndef TIDEPOOL_BACKUP_H
#define TIDEPOOL_BACKUP_H

#include "server.h"

namespace tidepool {

/* Makes a backup in the directory `named`. True, and the statement has its error, if it failed;
   nothing is left of it then. */
bool back_up(THD *thd, const char *named);
/* Logs that a backup by other means has none of our data. */
void warn_of_other_backup();

} // namespace tidepool

#endif
