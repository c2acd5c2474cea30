/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Paths that variables name, at which the server makes or reads files: one check for all of them.

  SET GLOBAL tidepool_backup_to, SET tidepool_backup_incremental_from, may_use_path: the privilege
  FILE (the server asks for SUPER),
    tidepool_page_trace_file              secure_file_priv, and the rules below
    --tidepool-page-trace-file            leads_outside: the rules, as an option is the administrator's

  The rules: an absolute path, whose directory exists, outside of the server's data directory and
  the engine's. Both functions give the path with all links and '..' resolved, and the file is made
  at that path: a link that changes after the check leads nowhere else. The file is made with O_EXCL
  (a directory by mkdir), which follows no link in the last part.
*/
#ifndef TIDEPOOL_NAMED_PATH_H
#define TIDEPOOL_NAMED_PATH_H

#include "server.h"
#include <string>

namespace tidepool {

/* Whether files may be made at `path`, by the rules. `real` is then where it leads, else `why` says
   why not. */
bool leads_outside(const char *path, std::string *real, std::string *why);

/* The same for a statement that sets `variable`, with its privileges. False: the statement has its
   error. */
bool may_use_path(THD *thd, const char *variable, const char *path, std::string *real);

} // namespace tidepool

#endif
