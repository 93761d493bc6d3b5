// A small model, its cache, and steps over it with values that depend on the token alone.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_API_RIG_H
#define LK_TESTS_API_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <lowkey/lowkey.h>

#include "rig_device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RIG_LAYERS 3
#define RIG_SEQUENCES 8
#define RIG_PLACED 16
// The largest difference of a fast answer from the reference's on the same pages, as test_steps.c
// derives it; a code of 2 bits stands for values within |minimum| + range as well.
#define RIG_MOST 3.6e-2f

// Host memory hooks that count and can fail.
typedef struct rig_memory {
    int64_t live_bytes;
    int64_t most_bytes;  // that were live at once
    int64_t n_calls;
    int64_t fail_at;  // the call that fails, counted from 1; 0 = none
} rig_memory;
void *rig_alloc(void *user, size_t bytes, size_t alignment);
void rig_free(void *user, void *pointer, size_t bytes, size_t alignment);

// Memory of the device for a tensor, of its exact size.
typedef struct rig_buffer {
    void *data;
    size_t bytes;
} rig_buffer;
enum { RIG_K, RIG_V, RIG_Q, RIG_OUT, RIG_BUFFERS };

typedef struct rig {
    const rig_device *device;  // NULL = the one of the program's arguments
    lk_context *context;
    lk_cache *cache;
    lk_plan *plan;
    lk_layer layers[RIG_LAYERS];
    lk_geometry geometry;
    rig_memory memory;
    uint32_t cpu_mask;  // LK_CPU_* bits
    uint32_t max_step_tokens;
    uint32_t copied_kv[RIG_LAYERS];      // 1 + the layer whose keys and values it gets; 0 = its own
    int has_keys_as_values[RIG_LAYERS];  // its values are the first channels of its keys, as those
                                         // of a latent layer are
    rig_buffer buffers[RIG_LAYERS][RIG_BUFFERS];
    void *placed[RIG_PLACED];
    uint32_t n_placed;
} rig;

// A token of a step: which chain it belongs to and its place there decide its values.
typedef struct rig_token {
    uint32_t chain;
    uint32_t place;
} rig_token;

// The device of rigs that name none: --device NAME, else the CPU. --mask NAMES takes features away
// from a Vulkan device. --only NAME runs one test.
void rig_arguments(int argc, char **argv);
const rig_device *rig_default(void);
// Kinds of memory and of queues that it does not take.
lk_memory_kind rig_other_memory(void);
lk_queue_kind rig_other_queue(void);
// How far the answers of two ways that mean the same may be apart: a device rounds weights to FP16
// relative to others in the same block, and cuts a batch into blocks by all of its sequences.
float rig_tolerance(void);
// The largest difference of n values; infinite when one is a NaN.
float rig_distance(const float *x, const float *y, size_t n);

void rig_geometry(rig *r, uint32_t n_layers, uint32_t n_query_heads, uint32_t n_kv_heads,
                  uint32_t head_dim);
// A desc of the rig's device with counting hooks and one thread.
void rig_context_desc(rig *r, lk_context_desc *desc);
void rig_open(rig *r);
void rig_close(rig *r);
void rig_drop_cache(rig *r);  // with its plan and tensors
void rig_preset(rig *r, const char *name);
void rig_recent(rig *r, uint32_t page_tokens, uint32_t sink_tokens, uint32_t recent_tokens);
void rig_query_ranking(rig *r);
lk_status rig_cache(rig *r, uint32_t max_sequences, uint32_t max_step_tokens,
                    uint64_t budget_bytes);

// Output elements of a token over all layers.
uint32_t rig_width(const rig *r);
// Channels of a layer's values and outputs.
uint32_t rig_value_dim(const lk_layer *layer);
// Queries, keys or values (RIG_Q, RIG_K, RIG_V) of tokens, [n][heads][channels]. Keys and values of
// a reading layer are its KV layer's.
void rig_values(const rig *r, uint32_t layer, uint32_t kind, const rig_token *tokens, uint32_t n,
                float *out);
// One layer of the open step, of which a reading layer appends nothing. out [n][rig_width] or NULL.
lk_status rig_layer(rig *r, uint32_t layer, const rig_token *tokens, uint32_t n, float *out);
// Append a layer's keys and values, without attention.
lk_status rig_append(rig *r, uint32_t layer, const rig_token *tokens, uint32_t n);
// The other half of rig_layer().
lk_status rig_attend(rig *r, uint32_t layer, const rig_token *tokens, uint32_t n, float *out);
// All layers of the open step.
lk_status rig_layers(rig *r, const rig_token *tokens, uint32_t n, float *out);
// A whole step of one sequence: `n` tokens of `chain` from `place` on.
lk_status rig_step(rig *r, lk_sequence id, uint32_t chain, uint32_t place, uint32_t n, float *out);
// One step of keys and values alone, without attention.
lk_status rig_append_tokens(rig *r, lk_sequence id, const rig_token *tokens, uint32_t n);
lk_status rig_append_step(rig *r, lk_sequence id, uint32_t chain, uint32_t place, uint32_t n);
// Steps of at most `chunk` tokens up to n.
lk_status rig_fill(rig *r, lk_sequence id, uint32_t chain, uint32_t place, uint32_t n,
                   uint32_t chunk, float *out);

// Memory of the device with these bytes, or zeros, until the rig is closed.
void *rig_place(rig *r, const void *from, size_t bytes);
// Place n values as an element type, its lower bits cut; they are zero, normal in it, or NaN.
void *rig_place_values(rig *r, const float *values, size_t n, lk_dtype dtype);
void rig_tensor(const rig *r, lk_tensor *tensor, void *data, uint32_t n_heads, uint32_t head_dim);
// Put a tensor's first element at memory of rig_place(), or nowhere (NULL); where it is.
void rig_point(const rig *r, lk_tensor *tensor, void *first);
void *rig_first(const rig *r, const lk_tensor *tensor);
lk_cache_stats rig_stats(const rig *r);
// Open a step on the device's queue.
lk_status rig_begin(rig *r, uint32_t n_sequences, const lk_sequence *ids, const uint32_t *n_tokens,
                    const int32_t *parent);
// The last sentence holds `text`.
void rig_sentence(const char *text);
// A call returned LK_OK; the case fails with its sentence otherwise.
void rig_is_ok(lk_status status);

#ifdef __cplusplus
}
#endif
#endif
