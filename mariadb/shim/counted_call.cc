/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "counted_call.h"
#include "engine.h"

namespace tidepool {

void Counted_call::begin() {
  place = nullptr;
  tp_thread_work_now(engine.db, &before);
}

void Counted_call::end() {
  tp_thread_work now;
  tp_thread_work_now(engine.db, &now);
  wanted->pages_accessed += now.pages_accessed - before.pages_accessed;
  wanted->pages_updated += now.pages_updated - before.pages_updated;
  wanted->pages_read_count += now.pages_read - before.pages_read;
  wanted->pages_prefetched += now.pages_prefetched - before.pages_prefetched;
  wanted->undo_records_read += now.undo_records_read - before.undo_records_read;
  const double seconds = static_cast<double>(now.read_ns - before.read_ns) / 1e9;
  wanted->pages_read_time += static_cast<ulonglong>(seconds * timer_tracker_frequency());
  place = wanted;
}

} // namespace tidepool
