// Statistics of a cache: counts of the thread that uses it, and what other threads may read.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_MEMORY_STATISTICS_H
#define LK_CORE_MEMORY_STATISTICS_H

#include "format/page.h"

#include <lowkey/cache.h>

#include <mutex>
#include <new>

namespace lk {

// Bytes of a page that the statistics count apart.
struct PageBytes {
    uint64_t payload;
    uint64_t metadata;
    uint64_t recent;
};
PageBytes page_bytes(const PageFormat &format);

struct Statistics {
    // n_added pages of a format more, or fewer where it is negative.
    void count_pages(const PageFormat &format, int64_t n_added);
    // Let other threads read the counts as they are now.
    void publish();
    lk_cache_stats read() const;
    // In a process that fork() made: a thread that is not here may have held the lock.
    void enter_child() const { new (&mutex_) std::mutex; }

    lk_cache_stats counts{};  // of the caller that has the cache

  private:
    mutable std::mutex mutex_;
    lk_cache_stats published_{};
};

}  // namespace lk

#endif
