// SPDX-License-Identifier: Apache-2.0
#include "core/pages/work_queues.h"

#include "core/cache.h"

namespace lk {

lk_status flush_packs(lk_cache *cache) {
    lk_status status = cache->stat_queue.flush();
    if (!status && !cache->work.packs.empty())
        status = cache->device->pack(cache->work.packs.data(),
                                     static_cast<uint32_t>(cache->work.packs.size()));
    cache->work.packs.clear();
    return status;
}

lk_status flush_dequantizes(lk_cache *cache) {
    lk_status status = LK_OK;
    if (!cache->work.dequantizes.empty())
        status = cache->device->dequantize(cache->work.dequantizes.data(),
                                           static_cast<uint32_t>(cache->work.dequantizes.size()));
    cache->work.dequantizes.clear();
    return status;
}

lk_status flush_moves(lk_cache *cache) {
    lk_status status = LK_OK;
    if (!cache->work.moves.empty())
        status = cache->device->move(cache->work.moves.data(),
                                     static_cast<uint32_t>(cache->work.moves.size()));
    cache->work.moves.clear();
    return status;
}

}  // namespace lk
