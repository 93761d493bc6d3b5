// A build without Vulkan.
//
// SPDX-License-Identifier: Apache-2.0
#include "rig_device.h"

#include <stdio.h>
#include <stdlib.h>

const rig_device *rig_vulkan(void) {
    puts("skipped: this build has no Vulkan");
    exit(77);
}
const rig_device *rig_vulkan_buffers(void) { return rig_vulkan(); }
void rig_vulkan_mask(const char *names) {
    (void)names;
    rig_vulkan();
}
