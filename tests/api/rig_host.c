// SPDX-License-Identifier: Apache-2.0
#include "rig_device.h"

#include <stdlib.h>
#include <string.h>

static void *host_alloc(size_t bytes) { return calloc(1, bytes ? bytes : 1); }
static void host_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static void host_wait(void) {}

const rig_device *rig_host(void) {
    static const rig_device device = {.backend = LK_BACKEND_CPU,
                                      .memory = LK_MEMORY_HOST,
                                      .alloc = host_alloc,
                                      .release = free,
                                      .put = host_copy,
                                      .get = host_copy,
                                      .wait = host_wait};
    return &device;
}
