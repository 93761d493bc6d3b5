/* lowkey: steps. Prefill, chunked prefill, decode and verification of drafts are the
 * same calls with other counts:
 *
 *   lk_step_begin(cache, queue, n, ids, counts, NULL);
 *   for each layer l of the model:
 *       compute q, k, v of the new tokens; apply RoPE to q and k
 *       lk_append(cache, l, &k, &v);
 *       lk_attend(cache, l, &q, &out, NULL);
 *   lk_step_commit(cache, NULL);
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_STEP_H
#define LOWKEY_STEP_H

#include <lowkey/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Up to this many new tokens of a sequence in one step go through 16-bit pages, and
 * any of them can be dropped at commit without loss. */
#define LK_DRAFT_TOKENS 64

/* Open a step: pack the pages that have left the recent window, reserve what the new
 * tokens need. One step is open at a time. Packing stays when the step is discarded.
 *
 * queue        orders all of the step's work; NULL on the CPU
 * n_sequences  1 .. max_sequences
 * ids          [n_sequences] distinct sequences
 * n_tokens     [n_sequences] new tokens of each, at least 1; their sum is at most
 *              max_step_tokens
 * parent       NULL: each token follows the one before it. Else [sum of n_tokens]: for
 *              each token the index of its parent within its sequence's new tokens,
 *              smaller than its own, or -1 for the sequence's last committed token.
 *              A token attends to the committed tokens, its ancestors and itself; its
 *              position is one after its parent's. Only for sequences of at most
 *              LK_DRAFT_TOKENS new tokens. Copied.
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (an id), LK_E_STATE (a step is open),
 * LK_E_UNSUPPORTED (queue kind), LK_E_BUDGET (the sentence names the bytes missing;
 * nothing changed but packing that was due), LK_E_NOMEM. */
LK_API lk_status lk_step_begin(lk_cache *cache, const lk_queue *queue, uint32_t n_sequences,
                               const lk_sequence *ids, const uint32_t *n_tokens,
                               const int32_t *parent);

/* Give a layer its new keys and values, once per layer and step, layers in any order.
 *
 * k, v  [sum of n_tokens][n_kv_heads][head_dim]; k after RoPE. Inputs are rounded to
 *       FP16 (nearest, ties to even); finite values beyond its range are clamped to
 *       +-65504 and counted. They must stay as they are until the layer's lk_attend()
 *       has run.
 *
 * Errors: LK_E_STATE (no step, or this layer has its keys already), LK_E_ARGUMENT
 * (layer, tensor), LK_E_UNSUPPORTED (memory kind), LK_E_DATA (an infinity or a NaN; the
 * sentence names layer, head and token; the step is poisoned and can only be
 * discarded). */
LK_API lk_status lk_append(lk_cache *cache, uint32_t layer, const lk_tensor *k, const lk_tensor *v);

/* Attention of the step's tokens over their sequences, on the packed bytes.
 *
 * layer  the one that lk_append() was called for last
 * q      [sum of n_tokens][n_query_heads][head_dim], after RoPE
 * out    [sum of n_tokens][n_query_heads][head_dim]; must not overlap q, k or v
 * lse    NULL, or an F32 tensor [sum of n_tokens][n_query_heads][1]: natural log of the
 *        sum of exp(logit), a learned sink included
 *
 * The new tokens of the step are attended at FP16 precision, earlier ones as their pages
 * hold them.
 *
 * Errors: LK_E_STATE (no step; the layer's keys are not there or not the last ones
 * appended; the layer was attended already), LK_E_ARGUMENT, LK_E_UNSUPPORTED,
 * LK_E_DATA (the step is poisoned). */
LK_API lk_status lk_attend(lk_cache *cache, uint32_t layer, const lk_tensor *q,
                           const lk_tensor *out, const lk_tensor *lse);

/* Close the step and make its tokens part of their sequences.
 *
 * keep  NULL: all. Else [n_sequences]: how many of each sequence's new tokens to keep,
 *       0 .. n_tokens. Of a draft tree the kept ones must be a chain (each the parent of
 *       the next). A sequence with more than LK_DRAFT_TOKENS new tokens keeps all or
 *       none.
 *
 * Errors: LK_E_STATE (no step; a layer has no keys; a layer whose plan ranks channels by
 * queries was not attended), LK_E_ARGUMENT (keep), LK_E_DATA (poisoned). */
LK_API lk_status lk_step_commit(lk_cache *cache, const uint32_t *keep);

/* Close the step and drop its tokens: the sequences are as after lk_step_begin().
 * Errors: LK_E_ARGUMENT, LK_E_STATE (no step). */
LK_API lk_status lk_step_discard(lk_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
