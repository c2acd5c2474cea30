/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* How far a statement is, as the server shows it in its list of processes and in the
   performance_schema. */
#ifndef TIDEPOOL_PROGRESS_H
#define TIDEPOOL_PROGRESS_H

#include "engine.h"
#include "performance_schema.h"

namespace tidepool {

/* A state of the list of processes, from its beginning to its end. */
class Shown_state {
  THD *thd;

public:
  Shown_state(THD *session, const char *what) : thd(session) { thd_proc_info(thd, what); }
  ~Shown_state() { thd_proc_info(thd, nullptr); }
  Shown_state(const Shown_state &) = delete;
  Shown_state &operator=(const Shown_state &) = delete;
};

/* From its beginning to its end, in one stage. */
class Progress {
  THD *thd;
  /* Before the stage, which a state of the list ends. */
  Shown_state state;
  Shown_stage stage;

public:
  Progress(THD *session, const char *what, Stage in)
      : thd(session), state(session, what), stage(session, in) {
    thd_progress_init(thd, 1);
  }
  ~Progress() { thd_progress_end(thd); }
  /* Shows it. Whether the statement goes on: it was not killed. */
  int reached(uint64 done, uint64 total) const {
    thd_progress_report(thd, MY_MIN(done, total), total);
    stage.reached(done, total);
    return !thd_kill_level(thd);
  }
};

} // namespace tidepool

#endif
