// SPDX-License-Identifier: Apache-2.0
#include "verbs.h"

#include <lowkey/merge.h>
#include <lowkey/vulkan.h>

#include <stddef.h>

#define CONTEXT_VERBS(X)                                                \
    X(lk_context_device, (context, NULL))                               \
    X(lk_context_supports, (context, NULL))                             \
    X(lk_cache_create, (context, NULL, NULL, NULL, &(lk_cache *){0}))   \
    X(lk_merge, (context, NULL, 1, 1, 32, 1, NULL, NULL, NULL, NULL))   \
    X(lk_chunks_score_cosine, (context, NULL, NULL, NULL, 1, 32, NULL)) \
    X(lk_vulkan_buffer_add, (context, 1, 1, 1))                         \
    X(lk_vulkan_buffer_remove, (context, 1))                            \
    X(lk_vulkan_pipeline_cache, (context, NULL, 0, NULL))

#define CACHE_VERBS(X)                                                \
    X(lk_cache_get_stats, (cache, NULL))                              \
    X(lk_cache_get_budget, (cache, NULL))                             \
    X(lk_cache_set_budget, (cache, 0))                                \
    X(lk_cache_shrink, (cache, 0, 2))                                 \
    X(lk_cache_poll, (cache))                                         \
    X(lk_sequence_add, (cache, NULL))                                 \
    X(lk_sequence_fork, (cache, id, 1, NULL))                         \
    X(lk_sequence_remove, (cache, id))                                \
    X(lk_sequence_length, (cache, id, NULL))                          \
    X(lk_sequence_truncate, (cache, id, 0))                           \
    X(lk_sequence_find_state, (cache, id, 0, NULL))                   \
    X(lk_sequence_rollback, (cache, id, 0, NULL))                     \
    X(lk_sequence_defer, (cache, id, 0))                              \
    X(lk_step_begin, (cache, NULL, 0, NULL, NULL, NULL))              \
    X(lk_step_begin_spans, (cache, NULL, 0, NULL, NULL, NULL, 0, 0))  \
    X(lk_step_set_queue, (cache, NULL))                               \
    X(lk_step_state, (cache, 0, 0, NULL))                             \
    X(lk_step_read_state, (cache, 0, 0, NULL, 0))                     \
    X(lk_step_write_state, (cache, 0, 0, NULL, 0))                    \
    X(lk_append, (cache, 0, NULL, NULL))                              \
    X(lk_attend, (cache, 0, NULL, NULL, NULL))                        \
    X(lk_step_replay, (cache))                                        \
    X(lk_step_commit, (cache, NULL))                                  \
    X(lk_step_commit_tokens, (cache, NULL, NULL))                     \
    X(lk_step_discard, (cache))                                       \
    X(lk_chunks_score_attention, (cache, id, NULL))                   \
    X(lk_chunks_attention_scores, (cache, id, 0, NULL))               \
    X(lk_chunks_assign, (cache, id, 0, 0, NULL, NULL))                \
    X(lk_chunks_retain, (cache, id, 0))                               \
    X(lk_chunks_get, (cache, id, NULL, 0, NULL, NULL, NULL))          \
    X(lk_snapshot_save, (cache, 0, NULL, NULL, NULL, NULL))           \
    X(lk_snapshot_save_memory, (cache, 0, NULL, NULL, NULL, 0, NULL)) \
    X(lk_snapshot_save_file, (cache, 0, NULL, NULL, NULL))            \
    X(lk_snapshot_load, (cache, NULL, NULL, NULL, 0, NULL, NULL))     \
    X(lk_snapshot_load_memory, (cache, NULL, NULL, 0, 0, NULL, NULL)) \
    X(lk_snapshot_load_file, (cache, NULL, NULL, 0, NULL, NULL))

#define CALL(name, arguments)                                                            \
    static lk_status call_##name(lk_context *context, lk_cache *cache, lk_sequence id) { \
        (void)context, (void)cache, (void)id;                                            \
        return name arguments;                                                           \
    }
CONTEXT_VERBS(CALL)
CACHE_VERBS(CALL)

#define CONTEXT_ROW(name, arguments) {#name, 0, call_##name},
#define CACHE_ROW(name, arguments) {#name, 1, call_##name},
const verb verbs[] = {CONTEXT_VERBS(CONTEXT_ROW) CACHE_VERBS(CACHE_ROW)};
const int n_verbs = sizeof verbs / sizeof *verbs;
