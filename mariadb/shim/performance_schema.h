/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  What the server's performance_schema shows of the engine: its threads, its files, and the stages
  of long statements. If it is off, which it is by default, the engine is given nothing to call.
*/
#ifndef TIDEPOOL_PERFORMANCE_SCHEMA_H
#define TIDEPOOL_PERFORMANCE_SCHEMA_H

#include "server.h"

namespace tidepool {

/* Once, before the engine is opened. */
void observe_engine();

/* A thread that the shim starts, in that thread from its beginning to its end. */
class Observed_thread {
public:
  explicit Observed_thread(const char *name);
  ~Observed_thread();
  Observed_thread(const Observed_thread &) = delete;
  Observed_thread &operator=(const Observed_thread &) = delete;
};

/* stage/tidepool/… The first three are those of an index build, in their order. */
enum class Stage { READING_ROWS, BUILDING_INDEXES, CATCHING_UP, EXPORTING, IMPORTING, BACKING_UP };

/* A statement is in a stage, and then again in the one before. The state that SHOW PROCESSLIST
   shows stays. */
class Shown_stage {
public:
  Shown_stage(THD *thd, Stage stage);
  ~Shown_stage();
  Shown_stage(const Shown_stage &) = delete;
  Shown_stage &operator=(const Shown_stage &) = delete;
  void next(Stage stage);
  void reached(ulonglong done, ulonglong all) const;

private:
  PSI_stage_info before{};
  PSI_stage_progress *progress;
};

} // namespace tidepool

#endif
