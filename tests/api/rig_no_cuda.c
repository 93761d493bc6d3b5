// A build without CUDA.
//
// SPDX-License-Identifier: Apache-2.0
#include "rig_device.h"

#include <stdio.h>
#include <stdlib.h>

const rig_device *rig_cuda(void) {
    puts("skipped: this build has no CUDA");
    exit(77);
}
