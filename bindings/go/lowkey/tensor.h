// SPDX-License-Identifier: Apache-2.0
// C code that several Go files share.
#ifndef LKGO_TENSOR_H
#define LKGO_TENSOR_H

#include <lowkey/lowkey.h>

// A tensor without its data, which is an argument of its own: C may get a pointer to Go's memory,
// but no Go memory that holds such a pointer.
typedef struct lkgo_view {
    uint32_t dtype, memory;
    int64_t token_stride, head_stride;
    uint64_t buffer, offset_bytes;
} lkgo_view;

static inline void lkgo_tensor(lk_tensor *t, const lkgo_view *view, void *data) {
    lk_tensor_init(t, sizeof *t);
    t->dtype = view->dtype;
    t->memory = view->memory;
    t->data = data;
    t->buffer = view->buffer;
    t->offset_bytes = view->offset_bytes;
    t->token_stride = view->token_stride;
    t->head_stride = view->head_stride;
}

// A queue, which has no Go pointer.
typedef struct lkgo_queue {
    uint32_t kind;
    uintptr_t handle;
} lkgo_queue;

// The queue of a call: *made, or NULL.
static inline const lk_queue *lkgo_queue_of(lkgo_queue queue, lk_queue *made) {
    lk_queue_init(made, sizeof *made);
    made->kind = queue.kind;
    made->handle = (void *)queue.handle;
    return queue.kind ? made : NULL;
}

#endif
