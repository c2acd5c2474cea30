/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* The one open data directory, and the handlerton through which the server knows the engine. */
#ifndef TIDEPOOL_ENGINE_H
#define TIDEPOOL_ENGINE_H

#include "bridge.h"
#include "server.h"

namespace tidepool {

struct Engine {
  tp_db *db = nullptr;
  handlerton *hton = nullptr;
};
extern Engine engine;

} // namespace tidepool

#endif
