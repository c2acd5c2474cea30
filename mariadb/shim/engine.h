/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* The one open data directory, and the handlerton through which the server knows the engine. */
#ifndef TIDEPOOL_ENGINE_H
#define TIDEPOOL_ENGINE_H

#include "bridge.h"
#include "server.h"
#include <shared_mutex>

namespace tidepool {

constexpr char ENGINE_NAME[] = "Tidepool";

struct Engine {
  tp_db *db = nullptr;
  handlerton *hton = nullptr;
  /* Statements that read the information_schema tables hold no reference to the engine's plugin:
     they have this shared, so that the engine is not closed under their hands. */
  std::shared_mutex explaining;
};
extern Engine engine;

} // namespace tidepool

#endif
