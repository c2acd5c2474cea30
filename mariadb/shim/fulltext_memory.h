/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  The memory of a search in a FULLTEXT index: its lists of rows, and what they point to. A search
  that would take more than tidepool_ft_result_cache_limit ends with Search_too_large, which is
  thrown before the memory is taken, and caught where the search begins (ha_tidepool::run_search).
  Between the two are no frames but those of the search.

  A search runs in one thread. So what this thread has taken since the search began is the search's.
*/
#ifndef TIDEPOOL_FULLTEXT_MEMORY_H
#define TIDEPOOL_FULLTEXT_MEMORY_H

#include "server.h"
#include <cstdint>
#include <memory>

namespace tidepool {

struct Search_too_large {};

class Search_memory {
public:
  /* Limits what the thread takes, until this ends. */
  explicit Search_memory(uint64_t bytes) : before(limit) {
    limit = taken + static_cast<int64_t>(MY_MIN(bytes, static_cast<uint64_t>(INT64_MAX / 2)));
  }
  ~Search_memory() { limit = before; }
  Search_memory(const Search_memory &) = delete;
  Search_memory &operator=(const Search_memory &) = delete;

  static void take(size_t bytes) {
    if (taken + static_cast<int64_t>(bytes) > limit) throw Search_too_large{};
    taken += static_cast<int64_t>(bytes);
  }
  static void give_back(size_t bytes) { taken -= static_cast<int64_t>(bytes); }

private:
  static thread_local int64_t taken, limit;
  const int64_t before;
};

/* For what a search keeps much of. */
template <typename T>
struct Search_allocator {
  using value_type = T;
  Search_allocator() = default;
  template <typename Other>
  Search_allocator(const Search_allocator<Other> &) {}
  T *allocate(size_t count) {
    Search_memory::take(count * sizeof(T));
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T *from, size_t count) {
    std::allocator<T>().deallocate(from, count);
    Search_memory::give_back(count * sizeof(T));
  }
  bool operator==(const Search_allocator &) const { return true; }
  bool operator!=(const Search_allocator &) const { return false; }
};

} // namespace tidepool

#endif
