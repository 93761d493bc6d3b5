// SPDX-License-Identifier: Apache-2.0
#include "rig_device.h"

#include <stdlib.h>
#include <string.h>

static void *host_alloc(size_t bytes) { return calloc(1, bytes ? bytes : 1); }
static void host_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static void host_wait(void) {}

const rig_device *rig_host(void) {
    static const rig_device device = {LK_BACKEND_CPU, LK_MEMORY_HOST, NULL,      host_alloc,
                                      free,           host_copy,      host_copy, host_wait};
    return &device;
}
