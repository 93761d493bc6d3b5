// SPDX-License-Identifier: Apache-2.0
#include "rig_device.h"
#include "vulkan/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BLOCKS 256

// A buffer of a tensor's exact size, mapped.
typedef struct block {
    vulkan_buffer buffer;
    lk_context *context;  // that knows it
} block;
static block g_blocks[MOST_BLOCKS];
static pthread_mutex_t g_blocks_mutex = PTHREAD_MUTEX_INITIALIZER;

static void check(lk_status status) {
    if (!status)
        return;
    char sentence[512];
    lk_last_error(sentence, sizeof sentence, NULL);
    test_check(sentence);
}

// The block that `memory` is in, NULL for a free one. The mutex is held.
static block *find(const void *memory) {
    for (int i = 0; i < MOST_BLOCKS; ++i) {
        const char *first = g_blocks[i].buffer.mapped;
        if (memory ? first && (const char *)memory >= first &&
                         (const char *)memory < first + g_blocks[i].buffer.bytes
                   : !first)
            return &g_blocks[i];
    }
    test_check("no such block of memory");
    return NULL;
}

static void *buffer_alloc(size_t bytes) {
    pthread_mutex_lock(&g_blocks_mutex);
    block *own = find(NULL);
    test_check(vulkan_buffer_create(test_device(), bytes ? bytes : 4, VULKAN_BUFFER_USAGE, 1,
                                    &own->buffer));
    void *memory = own->buffer.mapped;
    pthread_mutex_unlock(&g_blocks_mutex);
    return memory;
}

static void buffer_release(void *memory) {
    test_wait();
    pthread_mutex_lock(&g_blocks_mutex);
    block *own = find(memory);
    if (own->context)
        check(lk_vulkan_buffer_remove(own->context, (uint64_t)own->buffer.handle));
    vulkan_buffer_destroy(test_device(), &own->buffer);
    own->context = NULL;
    pthread_mutex_unlock(&g_blocks_mutex);
}

static void buffer_point(lk_context *context, lk_tensor *tensor, void *memory) {
    tensor->data = NULL;
    tensor->buffer = 0;
    tensor->offset_bytes = 0;
    if (!memory)
        return;
    pthread_mutex_lock(&g_blocks_mutex);
    block *own = find(memory);
    if (!own->context) {
        const uint64_t buffer = (uint64_t)own->buffer.handle;
        lk_status status;
        do  // a test that makes an allocation fail means one of a verb
            status = lk_vulkan_buffer_add(context, buffer, own->buffer.bytes, own->buffer.usage);
        while (status == LK_E_NOMEM);
        check(status);
    }
    own->context = context;
    tensor->buffer = (uint64_t)own->buffer.handle;
    tensor->offset_bytes = (uint64_t)((char *)memory - (char *)own->buffer.mapped);
    pthread_mutex_unlock(&g_blocks_mutex);
}

static void *buffer_first(const lk_tensor *tensor) {
    pthread_mutex_lock(&g_blocks_mutex);
    char *first = NULL;
    for (int i = 0; i < MOST_BLOCKS && !first; ++i)
        if ((uint64_t)g_blocks[i].buffer.handle == tensor->buffer)
            first = g_blocks[i].buffer.mapped;
    pthread_mutex_unlock(&g_blocks_mutex);
    return first + tensor->offset_bytes;
}

// The queue may still read what is overwritten.
static void copy(void *to, const void *from, size_t bytes) {
    test_wait();
    memcpy(to, from, bytes);
}

static void *host_alloc(size_t bytes) { return calloc(1, bytes ? bytes : 1); }

static void describe(lk_context_desc *desc) {
    static lk_vulkan_desc vulkan;
    test_describe(desc, &vulkan);
}

void rig_vulkan_mask(const char *names) { test_mask(names); }

static const lk_queue *queue(void) {
    static lk_queue own;
    lk_queue_init(&own, sizeof own);
    own.kind = LK_QUEUE_VULKAN_SUBMIT;
    own.handle = test_device()->queue;
    return &own;
}

const rig_device *rig_vulkan(void) {
    static rig_device device = {.backend = LK_BACKEND_VULKAN,
                                .memory = LK_MEMORY_HOST,
                                .alloc = host_alloc,
                                .release = free,
                                .put = copy,
                                .get = copy,
                                .wait = test_wait,
                                .describe = describe};
    device.queue = queue();
    return &device;
}

const rig_device *rig_vulkan_buffers(void) {
    static rig_device device = {.backend = LK_BACKEND_VULKAN,
                                .memory = LK_MEMORY_VULKAN,
                                .alloc = buffer_alloc,
                                .release = buffer_release,
                                .put = copy,
                                .get = copy,
                                .wait = test_wait,
                                .point = buffer_point,
                                .first = buffer_first,
                                .describe = describe};
    device.queue = queue();
    return &device;
}
