// Where the tensors of steps lie, and what orders the work on them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_API_RIG_DEVICE_H
#define LK_TESTS_API_RIG_DEVICE_H

#include <lowkey/lowkey.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rig_device {
    lk_backend backend;
    lk_memory memory;
    const lk_queue *queue;         // NULL on the CPU
    void *(*alloc)(size_t bytes);  // zeros
    void (*release)(void *memory);
    void (*put)(void *to, const void *from, size_t bytes);
    void (*get)(void *to, const void *from, size_t bytes);  // behind the work on the queue
    void (*wait)(void);                                     // for the work on the queue
} rig_device;

const rig_device *rig_host(void);
// The first GPU. Ends the program as skipped, with the reason, when there is none.
const rig_device *rig_cuda(void);

#ifdef __cplusplus
}
#endif
#endif
