/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* SHOW STATUS LIKE 'Tidepool%' and SHOW ENGINE TIDEPOOL STATUS. */
#ifndef TIDEPOOL_STATUS_H
#define TIDEPOOL_STATUS_H

#include "server.h"

namespace tidepool {

extern st_mysql_show_var status_variables[];
bool show_status(handlerton *hton, THD *thd, stat_print_fn *print, enum ha_stat_type type);

} // namespace tidepool

#endif
