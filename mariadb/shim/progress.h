/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* How far a statement is, as the server shows it in its list of processes. */
#ifndef TIDEPOOL_PROGRESS_H
#define TIDEPOOL_PROGRESS_H

#include "engine.h"

namespace tidepool {

/* From its beginning to its end, in one stage. */
class Progress {
  THD *thd;

public:
  Progress(THD *session, const char *what) : thd(session) {
    thd_proc_info(thd, what);
    thd_progress_init(thd, 1);
  }
  Progress(const Progress &) = delete;
  Progress &operator=(const Progress &) = delete;
  ~Progress() {
    thd_progress_end(thd);
    thd_proc_info(thd, nullptr);
  }
  /* Shows it. Whether the statement goes on: it was not killed. */
  int reached(uint64 done, uint64 total) const {
    thd_progress_report(thd, MY_MIN(done, total), total);
    return !thd_kill_level(thd);
  }
};

} // namespace tidepool

#endif
