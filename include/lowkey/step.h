/* lowkey: steps. Prefill, chunked prefill, decode and the verification of drafts use the same
 * calls with different numbers of tokens:
 *
 *   lk_step_begin(cache, queue, n, ids, counts, NULL);
 *   for each layer l of the model:
 *       compute q, k, v of the new tokens; apply RoPE to q and k
 *       lk_append(cache, l, &k, &v);
 *       lk_attend(cache, l, &q, &out, NULL);
 *   lk_step_commit(cache, NULL);
 *
 * On a device, a step's queue orders all work of the step, and a call returns when its work is
 * queued. The host waits by itself before it reads outputs, and tensors stay valid until the queue
 * has run the call's work. The queue of the last step orders truncation and removal; after a
 * recorded step the context's queue does. No call waits for the step's own work, except on Vulkan
 * with tensors in host memory. lk_step_begin() may wait for earlier work: if the host is several
 * steps ahead, if the cache allocates or frees a slab, or if many pages are packed. So may
 * lk_append() of more than LK_DRAFT_TOKENS tokens.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_STEP_H
#define LOWKEY_STEP_H

#include <lowkey/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most draft tokens of a sequence in one step. A step writes up to this many new tokens into 16-bit
 * pages, and a commit can drop any of them without loss. */
#define LK_DRAFT_TOKENS 64

/* Open a step: pack the pages that have left the recent tokens, lay out chunks whose classes were
 * pending (lk_chunks_assign()), copy the last block of a sequence if other sequences share it,
 * reserve the bytes of the new tokens. A cache has at most one open
 * step. Pages stay packed if the step is discarded.
 *
 * queue        orders all work of the step. NULL on the CPU. On CUDA of kind
 *              LK_QUEUE_CUDA_STREAM: a stream of the context's device, which must live until the
 *              cache has another queue or is destroyed. On Vulkan NULL, or of kind
 *              LK_QUEUE_VULKAN_SUBMIT or LK_QUEUE_VULKAN_RECORD: see lk_queue
 * n_sequences  1 .. max_sequences
 * ids          [n_sequences] different sequences
 * n_tokens     [n_sequences] new tokens of each, at least 1; at most max_step_tokens in sum
 * parent       NULL: each token follows the one before it. Else a draft tree, [sum of n_tokens]:
 *              for each token the index of its parent within its sequence's new tokens, smaller
 *              than its own index, or -1 for the sequence's last committed token. A token attends
 *              to the committed tokens, its ancestors and itself; its position is one after its
 *              parent's. Only for sequences of at most LK_DRAFT_TOKENS new tokens. Copied.
 *
 * A device may find an infinity or a NaN after the commit of its step. Then the next
 * lk_step_begin() returns LK_E_DATA once and changes nothing; call it again to open the step. The
 * sentence names sequence, layer, head and token. The sequence holds zeros instead of the values
 * that were not finite: truncate it, remove it or keep it. A graph that ran in a step of another
 * shape is reported in the same way.
 *
 * Errors: LK_E_ARGUMENT (also a NULL queue on CUDA, a queue of another device, an invalid answer of
 * the pressure callback), LK_E_NOT_FOUND (an id), LK_E_STATE (a step is open, or the queue is being
 * captured into a graph), LK_E_UNSUPPORTED (queue kind), LK_E_DATA (above), LK_E_BUDGET (the
 * sentence has the shortfall; nothing is changed, except that pages due for packing are packed),
 * LK_E_NOMEM (on a device also too many blocks in one step: the limit is 262144 blocks, each
 * counted once for each sequence, or as many as the budget holds), LK_E_DEVICE. */
LK_API lk_status lk_step_begin(lk_cache *cache, const lk_queue *queue, uint32_t n_sequences,
                               const lk_sequence *ids, const uint32_t *n_tokens,
                               const int32_t *parent);

/* A flag of lk_step_begin_spans(). */
#define LK_SPANS_WINDOWED 1u

/* Open a step in which spans of new tokens see each other both ways, as the tokens of an image do
 * in Gemma 3. A token of a span attends to the committed tokens, to the new tokens before the span
 * and to all tokens of its span. Other tokens attend as lk_step_begin() says, and all positions
 * follow each other. A span is whole in one step.
 *
 * spans    [n_spans][3] index of the span's sequence in ids; the span's first token and its end,
 *          counted in the sequence's new tokens. In the order of sequences and tokens, without
 *          overlap. Copied
 * n_spans  0: the step is that of lk_step_begin() without a draft tree
 * flags    LK_SPANS_WINDOWED: the layers with a sliding window have the spans, as in Gemma 4; the
 *          others attend as lk_step_begin() says. 0: all layers have them, as in Gemma 3
 *
 * The sliding window of a layer begins where it does without spans.
 *
 * Errors: as lk_step_begin(), LK_E_ARGUMENT (an unknown flag; a span that is empty, ends after its
 * sequence's new tokens, or begins before the end of the one before it). */
LK_API lk_status lk_step_begin_spans(lk_cache *cache, const lk_queue *queue, uint32_t n_sequences,
                                     const lk_sequence *ids, const uint32_t *n_tokens,
                                     const uint32_t *spans, uint32_t n_spans, uint32_t flags);

/* Change the queue of the open step: later calls of the step put their work there. For a host on
 * Vulkan that records a model's step into several command buffers and submits some of them before
 * the last is recorded. A layer's lk_append() may be in one and its lk_attend() in the next.
 *
 * queue  as in lk_step_begin(). The host submits every command buffer that the step had, once, in
 *        the order in which the step had them, and all recorded ones before a queue of kind
 *        LK_QUEUE_VULKAN_SUBMIT follows them. After this call nothing more goes into the one that
 *        the step had. The counts n of lk_queue_kind go on
 *
 * Errors: LK_E_ARGUMENT, LK_E_STATE (no step is open), LK_E_UNSUPPORTED (the CPU and CUDA; queue
 * kind), LK_E_DATA (the step is poisoned: discard it), LK_E_DEVICE. */
LK_API lk_status lk_step_set_queue(lk_cache *cache, const lk_queue *queue);

/* Append the new keys and values of a layer: once per layer and step, layers in any order.
 *
 * k  [sum of n_tokens][n_kv_heads][head_dim], after RoPE
 * v  [sum of n_tokens][n_kv_heads][value_dim]. NULL for a latent layer, whose values are channels
 * of its keys
 *
 * K and V are rounded to FP16 (nearest, ties to even); finite values beyond its range are clamped
 * to +-65504 and counted (lk_cache_stats.values_saturated). Both tensors stay unchanged until the
 * layer's lk_attend() has run.
 *
 * An infinity or a NaN poisons the step: append, attend and commit return LK_E_DATA, and the host
 * discards the step. The CPU finds it in this call. A device finds it when the work runs; calls
 * after that return it, and lk_cache_poll() reads it.
 *
 * A reading layer (lk_layer.kv_layer) has no keys and values, so this call is not for it.
 *
 * Errors: LK_E_STATE (no step is open, or this layer was appended already), LK_E_ARGUMENT (layer, a
 * reading one included, tensor, a v for a latent layer, a host pointer instead of a device's),
 * LK_E_UNSUPPORTED (memory kind; a sequence with spans, or with more than LK_DRAFT_TOKENS new
 * tokens, while the queue is being captured), LK_E_DATA (an infinity or a NaN; the sentence names
 * layer, head, token and sequence), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_append(lk_cache *cache, uint32_t layer, const lk_tensor *k, const lk_tensor *v);

/* Compute attention of the step's new tokens over their sequences, on the packed bytes.
 *
 * layer  the one that lk_append() was called for last. A reading layer: at any time after the
 *        lk_append() of its KV layer, whose new tokens it attends to as well
 * q      [sum of n_tokens][n_query_heads][head_dim], after RoPE
 * out    [sum of n_tokens][n_query_heads][value_dim]; overlaps none of q, k and v
 * lse    NULL, or an F32 tensor [sum of n_tokens][n_query_heads][1]: natural logarithm of the
 *        sum of exp(logit), a learned sink included
 *
 * The keys and values of new tokens have FP16 precision here, those of earlier tokens the width of
 * their pages.
 *
 * A query is a row of q, of one token and head. Its elements are numbers of a magnitude of at most
 *
 *   2^50 * min(1, soft_cap, if it is on) / max(1, scale)
 *
 * so that no logit leaves FP32. On every backend a query with a larger element, an infinity or a
 * NaN, which is a fault of the model, gives NaN in its rows of out and lse and changes no other
 * row. The call returns LK_OK: it does not wait for queries. Query statistics
 * (LK_RANKING_QUERY_RANGE) count such an element as 65504, and lk_chunks_attention_scores() returns
 * LK_E_DATA for such a question.
 *
 * Errors: LK_E_STATE (no step is open; the layer, or its KV layer, was not appended; a layer with
 * keys of its own was not appended last; the layer was attended already; the queue is being
 * captured in a step that scores chunks), LK_E_ARGUMENT (layer, tensor, tensors that overlap),
 * LK_E_UNSUPPORTED (memory kind; a captured step as in lk_append()), LK_E_DATA (the step is
 * poisoned: discard it), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_attend(lk_cache *cache, uint32_t layer, const lk_tensor *q,
                           const lk_tensor *out, const lk_tensor *lse);

/* Declare that graphs run calls of this step. The host captured lk_append() and lk_attend() of all
 * layers, or of some, in earlier steps of this cache with the same number of sequences and the same
 * new tokens of each, in this order; the step's captured calls are those that any graph of this
 * shape holds. Each captured call that the step has not made counts as made:
 *
 *   first step of a shape                      later steps of the shape
 *   lk_step_begin(cache, queue, ...);          lk_step_begin(cache, queue, ...);
 *   begin the capture of the queue             launch the graph on the queue
 *   for each layer: lk_append, lk_attend       lk_step_replay(cache);
 *   end it, launch the graph on the queue      lk_step_commit(cache, NULL);
 *   lk_step_commit(cache, NULL);
 *
 * The call changes state of the host alone, so the launch may also follow it, and a host that finds
 * out only afterwards which layers ran from a graph calls it before the commit. Layers that no
 * graph holds, or whose graphs the host does not launch, are appended and attended as ever, in the
 * same step, before this call. The commit refuses a step in which a layer has no keys.
 *
 * A graph holds no lengths, blocks, ids or draft trees. It stays valid while sequences grow, are
 * removed and added, and whatever else the cache does between replays, steps without a graph
 * included. The host launches each captured call once in each such step, the step of its capture
 * included, on the step's queue and before the next lk_step_begin(). Begin, commit and discard stay
 * outside of graphs. Tensors keep the addresses of the capture. A graph in a step of another shape
 * computes nothing and poisons the step. A graph must not run after its cache is destroyed.
 *
 * Errors: LK_E_ARGUMENT, LK_E_STATE (no step is open; no step of this shape was captured; chunks
 * are scored in this step), LK_E_DATA (the step is poisoned: discard it), LK_E_UNSUPPORTED (the CPU
 * and Vulkan; a step with spans). */
LK_API lk_status lk_step_replay(lk_cache *cache);

/* Close the step and add its new tokens to their sequences.
 *
 * keep  NULL: all tokens. Else [n_sequences]: how many of each sequence's new tokens to keep,
 *       0 .. n_tokens. The kept tokens of a draft tree must be a chain, each the parent of the
 *       next; lk_step_commit_tokens() keeps any path. A sequence with more than LK_DRAFT_TOKENS
 *       new tokens keeps all or none.
 *
 * Errors: LK_E_STATE (no step is open; a layer with keys of its own was not appended, or ranks
 * channels by queries and was not attended), LK_E_ARGUMENT (keep), LK_E_DATA (the step is poisoned:
 * discard it). */
LK_API lk_status lk_step_commit(lk_cache *cache, const uint32_t *keep);

/* Close the step and keep chosen tokens of its draft trees: one path from the root for each
 * sequence. The keys and values of the path move together within the 16-bit pages, exactly, so the
 * sequence is the same as after an append of the path alone. A kept token keeps its position.
 *
 * n_kept  [n_sequences] how many of each sequence's new tokens to keep, 0 .. n_tokens; all or none
 *         if there are more than LK_DRAFT_TOKENS
 * kept    [sum of n_kept] their indices within the sequence's new tokens, root first: the parent
 *         of the first token is -1, the parent of each later one is the token before it. For a
 *         sequence without a draft tree 0, 1, 2 and so on
 *
 * On a device the step's queue orders the moves. After a recorded step the context's queue does, so
 * the host submits its command buffer before this call.
 *
 * Errors: as lk_step_commit(); LK_E_ARGUMENT also if kept is no such path, LK_E_STATE also while
 * the queue is being captured into a graph, LK_E_DEVICE (the step stays open: discard it). */
LK_API lk_status lk_step_commit_tokens(lk_cache *cache, const uint32_t *n_kept,
                                       const uint32_t *kept);

/* Close the step and drop its new tokens: the sequences are as after lk_step_begin(). The step's
 * fault is cleared.
 *
 * Errors: LK_E_ARGUMENT, LK_E_STATE (no step is open). */
LK_API lk_status lk_step_discard(lk_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
