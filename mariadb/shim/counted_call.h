/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  What a call of a handler takes of the engine, for ANALYZE FORMAT=JSON and the slow log (with
  log_slow_verbosity=engine). The server gives a handler the place to add to, if it wants them.

  The engine counts for each thread all the time. A call reads the thread's counters when it begins
  and when it ends; a call within a call counts nothing itself.
*/
#ifndef TIDEPOOL_COUNTED_CALL_H
#define TIDEPOOL_COUNTED_CALL_H

#include "bridge.h"
#include "server.h"

namespace tidepool {

class Counted_call {
  ha_handler_stats *&place;
  ha_handler_stats *const wanted;
  tp_thread_work before;

  void begin();
  void end();

public:
  explicit Counted_call(handler *file) : place(file->handler_stats), wanted(place) {
    if (unlikely(wanted != nullptr)) begin();
  }
  Counted_call(const Counted_call &) = delete;
  Counted_call &operator=(const Counted_call &) = delete;
  ~Counted_call() {
    if (unlikely(wanted != nullptr)) end();
  }
};

} // namespace tidepool

#endif
