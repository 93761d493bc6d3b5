// The host's functions of lowkey/snapshot.h. An exception of one ends here as LK_E_IO: the frames
// below are compiled without exceptions, and what they hold would stay held.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SNAPSHOT_CALLBACKS_H
#define LK_CORE_SNAPSHOT_CALLBACKS_H

#include "base/status.h"

#include <lowkey/snapshot.h>

namespace lk {

// *result is what the host returned.
lk_status call_write(lk_write_fn write, void *user, const void *data, size_t n_bytes,
                     int32_t *result);
lk_status call_read(lk_read_fn read, void *user, void *data, size_t n_bytes, int64_t *result);
lk_status call_progress(const lk_snapshot_desc &desc, uint64_t done_bytes, uint64_t total_bytes,
                        int32_t *result);

}  // namespace lk

#endif
