/* lowkey: merging attention over disjoint sets of keys.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_MERGE_H
#define LOWKEY_MERGE_H

#include <lowkey/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most splits that one lk_merge() joins. */
#define LK_MERGE_SPLITS 16

/* Join outputs of attention of the same queries over disjoint sets of keys, for example over a
 * sequence of a cache and over a prompt that several sequences share. Each split has the weight
 * exp(its LSE).
 *
 * queue     orders the work; NULL on the CPU, optional on Vulkan. The tensors stay valid until
 *           the queue has run the work
 * n_tokens  at least 1
 * n_heads   at least 1
 * head_dim  at least 1
 * n_splits  1 .. LK_MERGE_SPLITS
 * outs      [n_splits] outputs of the splits, each [n_tokens][n_heads][head_dim]
 * lses      [n_splits] LSEs of the splits as lk_attend() writes them, F32 [n_tokens][n_heads][1].
 *           If an LSE is minus infinity, the split had no key and its output is not read. If it
 *           is plus infinity or a NaN, the row is NaN in out and lse. At most one split includes a
 *           learned sink
 * out       [n_tokens][n_heads][head_dim]; zeros if no split had a key
 * lse       NULL, or the LSE over all splits, F32 [n_tokens][n_heads][1]
 *
 * out and lse overlap neither each other nor any other tensor.
 *
 * Errors: LK_E_ARGUMENT, LK_E_UNSUPPORTED (memory or queue kind), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_merge(const lk_context *context, const lk_queue *queue, uint32_t n_tokens,
                          uint32_t n_heads, uint32_t head_dim, uint32_t n_splits,
                          const lk_tensor *const *outs, const lk_tensor *const *lses,
                          const lk_tensor *out, const lk_tensor *lse);

#ifdef __cplusplus
}
#endif
#endif
