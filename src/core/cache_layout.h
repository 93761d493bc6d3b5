// What a backend has to know of a cache before it opens it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CACHE_LAYOUT_H
#define LK_CORE_CACHE_LAYOUT_H

#include "base/status.h"

#include <lowkey/cache.h>

namespace lk {

// Does the backend support every pair of widths that pages of one head may have?
// LK_E_UNSUPPORTED.
lk_status check_support(const lk_cache &cache);
// Describe the cache to the backend and open its CacheDevice. LK_E_NOMEM, LK_E_DEVICE.
lk_status open_device(lk_cache *cache);

}  // namespace lk

#endif
