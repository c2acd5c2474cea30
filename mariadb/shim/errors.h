/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* The engine's errors as the server's. */
#ifndef TIDEPOOL_ERRORS_H
#define TIDEPOOL_ERRORS_H

#include "bridge.h"
#include "server.h"

namespace tidepool {

/*
  The HA_ERR_* code of a TP_* code. Marks the transaction for rollback where the engine has aborted
  it; writes what is serious to the error log, and adds a warning with the engine's own words for
  the client. `thd` may be null.
*/
int server_error(int result, THD *thd);

/* The text of the last failure on this thread. */
String last_error_text();

} // namespace tidepool

#endif
