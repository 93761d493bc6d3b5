// SPDX-License-Identifier: Apache-2.0
#include "core/memory/statistics.h"

#include "base/memory.h"
#include "core/cache.h"

namespace lk {

PageBytes page_bytes(const PageFormat &format) {
    const uint64_t payload = payload_bytes(format.layout);
    return format.layout.is_raw() ? PageBytes{0, 0, payload}
                                  : PageBytes{payload, metadata_bytes(format.layout), 0};
}

void Statistics::count_pages(const PageFormat &format, int64_t n_added) {
    const PageLayout &layout = format.layout;
    const PageBytes bytes = page_bytes(format);
    const auto n = static_cast<uint64_t>(n_added);  // modulo 2^64, as are the sums
    for (uint32_t p = 0; p < kPlaneCount; ++p)
        counts.plane_bytes[p] +=
            n * layout.strips[p] * strip_bytes(layout.page_tokens, kPlaneBits[p]);
    counts.payload_bytes += n * bytes.payload;
    counts.metadata_bytes += n * bytes.metadata;
    counts.recent_bytes += n * bytes.recent;
}

void Statistics::publish() {
    const std::lock_guard<std::mutex> lock(mutex_);
    published_ = counts;
}

lk_cache_stats Statistics::read() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return published_;
}

}  // namespace lk
