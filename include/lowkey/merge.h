/* lowkey: merging attention over disjoint sets of keys.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_MERGE_H
#define LOWKEY_MERGE_H

#include <lowkey/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Parts that one lk_merge() joins, at most. */
#define LK_MERGE_SPLITS 16

/* Join outputs of attention of the same queries over sets of keys that share no key, for
 * example of a sequence in a cache and of a prompt that several of them have in common:
 * each part weighs exp(its LSE).
 *
 * queue    orders the work; NULL on the CPU, NULL or not on Vulkan. Memory of the tensors
 *          must stay until the queue has passed the call
 * n_splits  1 .. LK_MERGE_SPLITS
 * outs     [n_splits] outputs of the parts, each [n_tokens][n_heads][head_dim]
 * lses     [n_splits] their LSEs as lk_attend() gives them, F32 [n_tokens][n_heads][1]. A
 *          part whose LSE is minus infinity saw no key and its output is not looked at.
 *          A learned sink may be in one of them at most
 * out      [n_tokens][n_heads][head_dim]; zeros where no part saw a key
 * lse      NULL, or the LSE over all parts, F32 [n_tokens][n_heads][1]
 *
 * out and lse must not overlap each other or any other tensor.
 *
 * Errors: LK_E_ARGUMENT, LK_E_UNSUPPORTED (memory or queue kind), LK_E_DEVICE. */
LK_API lk_status lk_merge(const lk_context *context, const lk_queue *queue, uint32_t n_tokens,
                          uint32_t n_heads, uint32_t head_dim, uint32_t n_splits,
                          const lk_tensor *const *outs, const lk_tensor *const *lses,
                          const lk_tensor *out, const lk_tensor *lse);

#ifdef __cplusplus
}
#endif
#endif
