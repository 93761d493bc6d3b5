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
 * On a device all work of a step is ordered by its queue, and calls return when it is
 * queued: the host reads outputs after its own wait, and the memory of tensors must stay
 * until the queue has passed the call. Truncation and removal are ordered by the queue of
 * the last step; of a step that was recorded, by the context's queue. No call waits for the
 * step's own work, but for those with tensors in host memory on Vulkan. lk_step_begin() may
 * wait for earlier work: when the host is several steps ahead, when a slab is taken or given
 * back, and when many pages are packed; so may lk_append() of more than LK_DRAFT_TOKENS tokens.
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

/* Open a step: pack the pages that have left the recent window, copy the last page of a
 * sequence where others have it, reserve what the new tokens need. One step is open at a
 * time. Packing stays when the step is discarded.
 *
 * queue        orders all of the step's work. NULL on the CPU. On CUDA of kind
 *              LK_QUEUE_CUDA_STREAM, a stream of the context's device; it must live until
 *              the cache has another queue or is destroyed. On Vulkan NULL, or of kind
 *              LK_QUEUE_VULKAN_SUBMIT or LK_QUEUE_VULKAN_RECORD: see lk_queue
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
 * On a device an infinity or a NaN may be found after the step that had it was
 * committed. Then the first lk_step_begin() that knows of it returns LK_E_DATA, once,
 * and changes nothing; call it again to go on. The sentence names sequence, layer, head
 * and token. The sequence holds zeros in place of the numbers that were not finite:
 * truncate or remove it, or keep it so. A graph that ran in a step of another shape is
 * told in the same way.
 *
 * Errors: LK_E_ARGUMENT (also a NULL queue on CUDA, or a queue of another device),
 * LK_E_NOT_FOUND (an id), LK_E_STATE (a step is open, or the queue is being captured
 * into a graph), LK_E_UNSUPPORTED (queue kind), LK_E_DATA (above), LK_E_BUDGET (the
 * sentence names the bytes missing; nothing changed but packing that was due),
 * LK_E_NOMEM (on a device also sequences with too many pages in one step: it takes 262144
 * pages, a shared one once for each, or what the budget holds), LK_E_DEVICE. */
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
 * An infinity or a NaN poisons the step: append, attend and commit return LK_E_DATA and
 * it can only be discarded. The CPU knows when this call returns. A device finds it when
 * the work runs, and the calls that come after it is known return it; lk_cache_poll()
 * asks.
 *
 * Errors: LK_E_STATE (no step, or this layer has its keys already), LK_E_ARGUMENT
 * (layer, tensor, a host pointer where a device's is due), LK_E_UNSUPPORTED (memory kind;
 * while the queue is being captured, a sequence with more than LK_DRAFT_TOKENS new
 * tokens), LK_E_DATA (an infinity or a NaN; the sentence names layer, head, token and
 * sequence), LK_E_NOMEM, LK_E_DEVICE. */
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
 * LK_E_DATA (the step is poisoned), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_attend(lk_cache *cache, uint32_t layer, const lk_tensor *q,
                           const lk_tensor *out, const lk_tensor *lse);

/* Say that the layers of this step run from a graph: append and attend of all layers,
 * captured in an earlier step of this cache with as many sequences and as many new tokens
 * of each, in this order. It takes the place of lk_append() and lk_attend():
 *
 *   first step of a shape                      later steps of the shape
 *   lk_step_begin(cache, queue, ...);          lk_step_begin(cache, queue, ...);
 *   begin the capture of the queue             lk_step_replay(cache);
 *   for each layer: lk_append, lk_attend       launch the graph on the queue
 *   end it, launch the graph on the queue      lk_step_commit(cache, NULL);
 *   lk_step_commit(cache, NULL);
 *
 * A graph holds no lengths, pages, ids or draft trees, so it stays right while sequences
 * grow, are removed and added; what else the cache does between replays, steps without a
 * graph included, does not matter. The host launches it once in each such step, the one
 * of its capture included, on the step's queue and before the next lk_step_begin(). Begin,
 * commit and discard stay outside it. Tensors are where they were at the capture. A graph
 * that meets a step of another shape does nothing but poison it. It must not run after its
 * cache is destroyed.
 *
 * Errors: LK_E_ARGUMENT, LK_E_STATE (no step; a layer was appended in it; no step of this
 * shape was captured), LK_E_DATA (poisoned), LK_E_UNSUPPORTED (the CPU and Vulkan). */
LK_API lk_status lk_step_replay(lk_cache *cache);

/* Close the step and make its tokens part of their sequences.
 *
 * keep  NULL: all. Else [n_sequences]: how many of each sequence's new tokens to keep,
 *       0 .. n_tokens. Of a draft tree the kept ones must be a chain (each the parent of
 *       the next); lk_step_commit_tokens() keeps any path. A sequence with more than
 *       LK_DRAFT_TOKENS new tokens keeps all or none.
 *
 * Errors: LK_E_STATE (no step; a layer has no keys; a layer whose plan ranks channels by
 * queries was not attended), LK_E_ARGUMENT (keep), LK_E_DATA (poisoned). */
LK_API lk_status lk_step_commit(lk_cache *cache, const uint32_t *keep);

/* Close the step and keep chosen tokens of its draft trees: of each sequence one path from
 * the root. Their keys and values are moved together in the 16-bit pages, exactly, so the
 * sequence is as if the path alone had been appended; a kept token's position is the one
 * that its parents gave it.
 *
 * n_kept  [n_sequences] how many of each sequence's new tokens to keep, 0 .. n_tokens; all
 *         or none of more than LK_DRAFT_TOKENS
 * kept    [sum of n_kept] their indices within the sequence's new tokens, root first: the
 *         parent of the first is -1, that of each other one the one before it. Of a
 *         sequence without parents 0, 1, 2 and so on
 *
 * On a device the moves are ordered by the step's queue; of a step that was recorded, by
 * the context's queue, so the host has submitted its command buffer before.
 *
 * Errors: as lk_step_commit(); LK_E_ARGUMENT also for what is no such path, LK_E_STATE
 * also while the queue is being captured into a graph, LK_E_DEVICE (the step is open:
 * discard it). */
LK_API lk_status lk_step_commit_tokens(lk_cache *cache, const uint32_t *n_kept,
                                       const uint32_t *kept);

/* Close the step and drop its tokens: the sequences are as after lk_step_begin(). A
 * fault of the step is forgotten.
 * Errors: LK_E_ARGUMENT, LK_E_STATE (no step). */
LK_API lk_status lk_step_discard(lk_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
