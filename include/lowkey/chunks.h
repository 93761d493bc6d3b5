/* lowkey: scores of a context's chunks for a query, and chunk classes by these scores.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A context consists of equal chunks of tokens; the first one follows the sinks. The score of a
 * chunk states how relevant it is to the query; a higher score is more relevant. The class of a
 * chunk is one of the plan's three widths (Cocktail, arXiv 2503.23294: 2, 4 and 16 bits). Scores
 * come from the host, from embeddings, from token ids, or from the attention of the query to the
 * context. Functions without a cache and a context need no device and keep no state; any threads
 * may call them at once. */
#ifndef LOWKEY_CHUNKS_H
#define LOWKEY_CHUNKS_H

#include <lowkey/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Scores from embeddings (equation 1 of Cocktail):
 * scores[i] = c_i . q / (|c_i| |q|), between -1 and 1.
 *
 * embeddings  c, [n_chunks][1][n_channels] in host memory, F16, BF16 or F32; token_stride is the
 *             distance of chunks, head_stride is not used
 * query       q, [1][1][n_channels] in host memory, of any of these types
 * n_chunks    may be 0; then the pointers may be NULL
 * n_channels  of an embedding, at least 1
 * scores      [n_chunks]
 *
 * Sums are FP32 in 16 lanes, in an order that depends on n_channels alone, so all CPUs give the
 * same bits. If the squares of an embedding leave FP32's range, its sums are FP64.
 *
 * Errors: LK_E_ARGUMENT, LK_E_DATA (an element is not finite, or all are zero; the sentence names
 * the chunk), LK_E_NOMEM. */
LK_API lk_status lk_chunks_cosine(const lk_tensor *embeddings, const lk_tensor *query,
                                  uint32_t n_chunks, uint32_t n_channels, float *scores);

/* Compute the scores of lk_chunks_cosine() on a context's device, for embeddings that are in the
 * device's memory already.
 *
 * queue       orders the work; NULL on the CPU, optional on Vulkan. The tensors stay valid until
 *             the queue has run the work
 * embeddings  c, [n_chunks][1][n_channels]
 * query       q, [1][1][n_channels]
 * n_chunks    at least 1
 * n_channels  of an embedding, at least 1
 * scores      F32, [n_chunks][1][1]; overlaps no other tensor
 *
 * Sums are FP32, in an order of the device. If the squares of an embedding leave FP32's range, it
 * is divided by a power of two first. A device gives the score NaN to an embedding that is all
 * zeros or not finite, and to all chunks if the query's embedding is; lk_chunks_by_thresholds() and
 * lk_chunks_by_quota() refuse such scores and name the chunk. A device may flush FP32 subnormals to
 * zero.
 *
 * Errors: as lk_chunks_cosine(), but no LK_E_DATA on a device; LK_E_UNSUPPORTED (memory or queue
 * kind), LK_E_DEVICE. */
LK_API lk_status lk_chunks_score_cosine(const lk_context *context, const lk_queue *queue,
                                        const lk_tensor *embeddings, const lk_tensor *query,
                                        uint32_t n_chunks, uint32_t n_channels,
                                        const lk_tensor *scores);

/* Options of BM25. Start from lk_bm25_init(). */
typedef struct lk_bm25 {
    uint32_t size;         /* sizeof(lk_bm25) */
    uint32_t chunk_tokens; /* tokens of each chunk if starts is NULL; 32 from init */
    double k1;             /* saturation of repeated tokens, at least 0; 1.2 from init */
    double b;              /* penalty for long chunks, 0 to 1; 0.75 from init */
} lk_bm25;

/* Fill with the defaults above. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_bm25_init(lk_bm25 *options, size_t struct_bytes);

/* Scores from token ids, by BM25 with the chunks of the context as its documents:
 *
 *   scores[i] = sum over the query's tokens t of
 *               idf(t) f (k1 + 1) / (f + k1 (1 - b + b l_i / mean l)),
 *   idf(t)    = ln(1 + (N - n_t + 0.5) / (n_t + 0.5)),
 *
 * where f is the count of t in chunk i, l_i the number of tokens of chunk i, N = n_chunks, and n_t
 * the number of chunks that contain t. A token that the query repeats counts as many times. Sums
 * are FP64.
 *
 * options         starts from lk_bm25_init()
 * tokens          ids; chunk i has tokens[starts[i]] to tokens[starts[i + 1] - 1]
 * starts          [n_chunks + 1], ascending; NULL: starts[i] is i * options->chunk_tokens. Chunks
 *                 differ in length if the host leaves out frequent or special tokens
 * n_chunks        may be 0; then all pointers but options may be NULL
 * query           [n_query_tokens] ids
 * n_query_tokens  may be 0; then every score is 0
 * scores          [n_chunks]
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOMEM. */
LK_API lk_status lk_chunks_score_bm25(const lk_bm25 *options, const uint32_t *tokens,
                                      const uint64_t *starts, uint32_t n_chunks,
                                      const uint32_t *query, uint32_t n_query_tokens,
                                      float *scores);

/* Choose classes by thresholds within the range of the scores (section III-B of Cocktail):
 *
 *   T_low = s_min + (s_max - s_min) alpha,   T_high = s_max - (s_max - s_min) beta;
 *   s < T_low: LK_CHUNK_LOW,   s > T_high: LK_CHUNK_HIGH,   else LK_CHUNK_MIDDLE.
 *
 * Both comparisons are strict: if all scores are equal, all chunks are LK_CHUNK_MIDDLE. The paper
 * has alpha 0.6 and beta 0.1. Thresholds do not bound memory; lk_chunks_by_quota() does.
 *
 * scores    [n_chunks], finite
 * n_chunks  may be 0; then scores and classes may be NULL
 * alpha     at least 0
 * beta      at least 0; alpha + beta below 1
 * classes   [n_chunks]
 * low       set to T_low in FP64, 0 without chunks; may be NULL
 * high      set to T_high in FP64, 0 without chunks; may be NULL
 *
 * Errors: LK_E_ARGUMENT, LK_E_DATA (a score that is not finite; the sentence names the chunk). */
LK_API lk_status lk_chunks_by_thresholds(const float *scores, uint32_t n_chunks, double alpha,
                                         double beta, lk_chunk_class *classes, double *low,
                                         double *high);

/* Shares of chunks for each class. The chunks of a block have one width: a block of page_tokens
 * tokens has page_tokens / chunk_tokens chunks. All classes but LK_CHUNK_HIGH get whole blocks, so
 * the bytes that the quota counts are the bytes that the cache stores. Start from
 * lk_chunk_quota_init(). */
typedef struct lk_chunk_quota {
    uint32_t size;         /* sizeof(lk_chunk_quota) */
    uint32_t block_chunks; /* chunks of a block, at least 1; 1 if a chunk has page_tokens tokens or
                            * more; 4 from init */
    double low_share;      /* share of low chunks, used without a budget; 0.6 from init */
    double high_share;     /* share of high chunks; low_share + high_share at most 1; 0.1 from
                            * init */
    uint64_t budget_bytes; /* bytes of all chunks; 0, from init: no budget */
    uint64_t low_bytes;    /* bytes of a low chunk, all layers and heads; not 0 with a budget */
    uint64_t middle_bytes; /* bytes of a middle chunk; more than low_bytes */
    uint64_t high_bytes;   /* bytes of a high chunk; more than middle_bytes */
} lk_chunk_quota;

/* Fill with the defaults above. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_chunk_quota_init(lk_chunk_quota *quota, size_t struct_bytes);

/* Choose classes by rank: the chunks of the highest scores are LK_CHUNK_HIGH, those of the lowest
 * LK_CHUNK_LOW. Of equal scores the earlier chunk ranks higher.
 *
 * Without a budget, the shares give the class of each rank. Each boundary is at the nearest whole
 * block, counted from the lowest score; a tie goes to the wider class.
 *
 * With a budget, all whole blocks start as LK_CHUNK_LOW, and the rest of the budget raises blocks
 * in the order of their rank: first from low to high, up to high_share of the chunks (the nearest
 * block, at least one if the share is not 0); then from low to middle; and, if no low block is
 * left, from middle to high. Each step raises as many blocks as the budget holds, so the bytes
 * left are fewer than the next block needs.
 *
 * scores    [n_chunks], finite
 * n_chunks  may be 0; then scores and classes may be NULL
 * quota     starts from lk_chunk_quota_init()
 * classes   [n_chunks]
 * n_bytes   set to the bytes of all chunks, by the quota's bytes of a chunk; may be NULL
 *
 * Errors: LK_E_ARGUMENT, LK_E_DATA (a score is not finite; the sentence names the chunk),
 * LK_E_BUDGET (even the lowest classes do not fit; the sentence has the bytes needed),
 * LK_E_NOMEM. */
LK_API lk_status lk_chunks_by_quota(const float *scores, uint32_t n_chunks,
                                    const lk_chunk_quota *quota, lk_chunk_class *classes,
                                    uint64_t *n_bytes);

/* The attention that lk_chunks_score_attention() sums. Start from lk_chunk_attention_init(). */
typedef struct lk_chunk_attention {
    uint32_t size;           /* sizeof(lk_chunk_attention) */
    uint32_t n_query_tokens; /* the query: the step's last new tokens, at least 1 */
    uint32_t chunk_tokens;   /* 8 to 256; 32 from init */
    uint32_t n_chunks;       /* at least 1; the first chunk follows the plan's sinks. The context
                              * ends at the query's first token or before */
    uint32_t n_layers;       /* of layers; 0: all layers without a sliding window */
    uint32_t reserved;       /* 0 */
    const uint32_t *layers;  /* [n_layers] ascending; read during the call */
} lk_chunk_attention;

/* Fill with the defaults above. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_chunk_attention_init(lk_chunk_attention *options, size_t struct_bytes);

/* Request attention scores of a sequence's chunks from its next step. In that step, each
 * lk_attend() of a chosen layer also computes, for the query tokens and every query head, the
 * softmax of the layer's logits (scale and soft-cap included) over the context's tokens alone, and
 * sums it for each chunk. The score of a chunk is the mean of these sums over layers, heads and
 * query tokens, so the scores of a context sum to 1.
 *
 * The context may be committed already or belong to the same step. Its keys are read as the cache
 * stores them after lk_append(): at 16 bits while packing is deferred or not due, else packed. Key
 * centers are left out if they add the same to all logits of a query, that is, without a soft-cap.
 * The work equals n_query_tokens rows of the step's products of queries and keys.
 *
 * id       a sequence of the cache. A new request replaces the sequence's former one and its
 *          scores
 * options  read during the call; NULL cancels the request and frees its memory
 *
 * The call allocates memory, which the budget counts: up to 16 MiB, or the bytes of one KV head of
 * one chosen layer for 64 query rows, 512 bytes for each chunk. Memory and scores stay until the
 * sequence is removed or the request is cancelled or replaced. Scores also end when the sequence is
 * truncated within the context, its chunks are assigned classes or a step lays chunks out. Forks
 * and snapshots have no request and no scores.
 *
 * lk_step_begin() of that step returns LK_E_ARGUMENT, and the request stays, if the step has fewer
 * new tokens than the query, if it has a draft tree for this sequence, if the context does not end
 * before the query, or if the context leaves out some of the chunks that lk_chunks_assign() or
 * this step has reordered. lk_attend() and lk_step_replay() return LK_E_STATE in a captured graph.
 * After a discard, or a commit that keeps none of the sequence's tokens, the request applies to the
 * next step.
 *
 * Errors, nothing is changed: LK_E_ARGUMENT, LK_E_NOT_FOUND (sequence, layer), LK_E_UNSUPPORTED
 * (a chosen layer has a sliding window, or all layers have), LK_E_BUSY (a step is open), LK_E_STATE
 * (the cache's queue is being captured into a graph), LK_E_BUDGET (the sentence has the bytes
 * needed), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_chunks_score_attention(lk_cache *cache, lk_sequence id,
                                           const lk_chunk_attention *options);

/* Read the attention scores of a sequence's chunks after the commit of their step. The mean is over
 * the layers that were attended in that step. The call waits for the cache's queue; the host has
 * submitted the commands of a recorded step before.
 *
 * n_chunks  as in lk_chunk_attention
 * scores    [n_chunks]
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND, LK_E_STATE (no step with a request was committed, or the
 * cache's queue is being captured into a graph), LK_E_BUSY (a step is open), LK_E_DATA (a query was
 * not finite; the sentence names the first chunk), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_chunks_attention_scores(lk_cache *cache, lk_sequence id, uint32_t n_chunks,
                                            float *scores);

/* Modes of deferral, which keeps a sequence at 16 bits until its chunks have classes. */
typedef uint32_t lk_defer;
enum {
    LK_DEFER_OFF = 0,    /* pages are packed by the plan */
    LK_DEFER_REFUSE = 1, /* on a shortfall lk_step_begin() reclaims bytes as for any sequence, else
                          * it returns LK_E_BUDGET */
    LK_DEFER_PACK = 2    /* on a shortfall lk_step_begin() first packs the oldest chunks that have
                          * left the recent tokens, as LK_CHUNK_MIDDLE, except shared blocks;
                          * lk_chunks_get() lists them */
};

/* Keep a sequence's tokens at 16 bits from the next step on, until lk_chunks_assign() or
 * LK_DEFER_OFF. The budget counts their bytes. Packed pages stay packed. A fork has the mode of its
 * parent. Any mode but LK_DEFER_OFF forgets pending classes (lk_chunks_assign()): their chunks stay
 * at 16 bits.
 *
 * Errors: LK_E_ARGUMENT (mode), LK_E_NOT_FOUND, LK_E_UNSUPPORTED (the cache's plan has no chunks),
 * LK_E_BUSY (a step is open). */
LK_API lk_status lk_sequence_defer(lk_cache *cache, lk_sequence id, lk_defer mode);

/* Assign classes to the chunks of a sequence's context, and end its deferral.
 *
 * Chunks are the whole runs of the plan's chunk_tokens tokens after the sinks. The rest of the
 * context, the query and all later tokens stay at 16 bits (lk_chunk_rule.hold).
 *
 * With lk_chunk_rule.reorder, chunks of one class become neighbours: blocks of low chunks, then of
 * middle ones, then of high ones, each class in the order of the context, followed by the tokens at
 * 16 bits. Results of attention do not depend on the order of committed tokens: positions are part
 * of the keys and move with them. If the chunks of a class do not fill whole blocks, the remaining
 * chunks of highest score are kept one class wider, never narrower. Without reorder a chunk is a
 * block and keeps its position; a chunk whose tokens a window has partly freed stays as it is.
 *
 * A later call may assign other classes, for a new query, and may add chunks after those that have
 * classes. Blocks that keep all of their chunks stay as they are. Other blocks are laid out again:
 * a chunk that moves or gets narrower is packed from the values of its codes, which adds a little
 * error. A chunk can become wider only if it has originals (lk_chunks_retain()); otherwise it keeps
 * its width, and lk_chunks_info.n_narrower counts it.
 *
 * The cache frees the old blocks when all new ones are complete, so during the call the budget must
 * hold both, and up to two blocks at 16 bits. Forks keep the blocks that they share.
 *
 * Scores that need no keys (BM25, embeddings, the host's own) are known before the prefill. Then
 * assign the classes first: n_context_tokens may be more than the sequence has, and the classes of
 * chunks that are still to come are pending. Each lk_step_begin() with the sequence lays out the
 * blocks whose chunks are all committed and have left the recent tokens. Other chunks wait at 16
 * bits for the rest of their block: with reorder fewer than a block of each class, and fewer than a
 * block of chunks that fill none. The first lk_step_begin() after token n_context_tokens lays out
 * the rest. Classes, order and, of the same keys and values, bytes of pages are then those of an
 * assignment at the end of the context. In a model, later steps of the prefill attend to the chunks
 * that are packed already.
 *
 * A prefill in steps of S tokens thus needs the final bytes, S tokens at 16 bits in all layers, and
 * a few blocks more; lk_plan_chunk_prefill_bytes() tells the budget. S = n_context_tokens / layers
 * makes S tokens as large as the context in one layer: 4096 tokens of 131072 in 32 layers. A step
 * that has the whole context keeps all of it at 16 bits until the next step: cut it into steps. If
 * the budget does not hold the new blocks next to the old ones, lk_step_begin() lays out fewer
 * chunks at once, then reclaims bytes, else returns LK_E_BUDGET; the next one goes on. The host has
 * submitted the commands of recorded steps (LK_QUEUE_VULKAN_RECORD) before a step begins.
 *
 * Pending classes end a deferral. Discards and truncations keep them and forks have them: the next
 * tokens are the context's. Another lk_chunks_assign() replaces them; chunks that have a class
 * already get the new one at once. A snapshot leaves them out: a loaded sequence has the chunks
 * that were laid out and LK_DEFER_REFUSE, and the host assigns the classes again.
 *
 * A truncation within the context keeps the chunks before it. Pages that lose chunks are
 * dequantized: their remaining chunks stay at 16 bits, with the values of their codes. Forks and
 * snapshots have the classes and the order of the sequence.
 *
 * n_context_tokens  tokens of the context, sinks included; more than the sequence's length if they
 *                   are still to come
 * n_chunks          whole chunks of the context, at least as many as are laid out already; may be 0
 * classes           [n_chunks]
 * scores            [n_chunks], a higher score is more relevant; NULL: later chunks rank higher
 *
 * Errors, nothing is changed: LK_E_ARGUMENT, LK_E_NOT_FOUND, LK_E_UNSUPPORTED (the cache's plan has
 * no chunks), LK_E_DATA (a score is a NaN), LK_E_STATE (tokens of the context were packed without a
 * class, or the cache's queue is being captured into a graph), LK_E_BUSY (a step is open),
 * LK_E_BUDGET (the sentence has the shortfall), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_chunks_assign(lk_cache *cache, lk_sequence id, uint64_t n_context_tokens,
                                  uint32_t n_chunks, const lk_chunk_class *classes,
                                  const float *scores);

/* Keep the originals of a sequence's context, from its first lk_chunks_assign() on, in host memory
 * of the context's hooks and within a budget that is separate from the cache's. A later
 * lk_chunks_assign() then packs chunks, wider ones too, from their 16-bit values, byte for byte as
 * a first assignment would; so does a truncation with the chunks that remain in their pages. There
 * are no originals of chunks that were packed before (LK_DEFER_PACK), that a window has partly
 * freed, or that a later call adds to the context. Originals of pending chunks are copied as the
 * chunks are laid out; the first assignment allocates them all. There are none of chunks that come
 * after a fork or a truncation. Forks share originals. A snapshot has neither
 * originals nor their budget.
 *
 * budget_bytes  at most the 16-bit bytes of the context's pages are needed; with a smaller budget
 *               lk_chunks_assign() returns LK_E_BUDGET. 0: free all originals and keep none
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND, LK_E_UNSUPPORTED (the cache's plan has no chunks),
 * LK_E_BUSY (a step is open), LK_E_BUDGET (budget_bytes is less than the originals take). */
LK_API lk_status lk_chunks_retain(lk_cache *cache, lk_sequence id, uint64_t budget_bytes);

/* The chunks of a sequence. */
typedef struct lk_chunks_info {
    uint32_t size;           /* sizeof(lk_chunks_info) */
    uint32_t n_chunks;       /* chunks with classes, while classes are pending those that have come;
                              * before an assignment, the whole chunks of all tokens */
    uint32_t chunk_tokens;   /* of each chunk */
    uint32_t is_assigned;    /* 1 after an assignment */
    lk_defer deferral;       /* mode that lk_sequence_defer() or an assignment has set */
    uint32_t n_low;          /* kept as LK_CHUNK_LOW */
    uint32_t n_middle;       /* kept as LK_CHUNK_MIDDLE */
    uint32_t n_high;         /* kept as LK_CHUNK_HIGH */
    uint32_t n_wider;        /* kept wider than assigned, to fill blocks or after a truncation */
    uint32_t n_narrower;     /* kept narrower than assigned, because they have no originals */
    uint64_t first_token;    /* of the first chunk: the number of sinks */
    uint64_t retained_bytes; /* of originals in host memory, which forks share */
    uint32_t n_pending;      /* chunks of a context that is still to come that are not in a block
                              * with a class, as they or others of the block have not come; 0 once
                              * the whole context is laid out */
    uint32_t reserved;       /* 0 */
} lk_chunks_info;

/* Set all to zero. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_chunks_info_init(lk_chunks_info *info, size_t struct_bytes);

/* Read the classes and the order of a sequence's chunks.
 *
 * info      NULL, or starts from its init; set also if the capacity is too small
 * capacity  elements of each list
 * assigned  NULL, or [capacity]: each chunk's class of lk_chunks_assign(); LK_CHUNK_NONE before
 * stored    NULL, or [capacity]: the class at which each chunk is kept. A chunk at 16 bits is
 *           LK_CHUNK_HIGH if that class has 16 bits, else LK_CHUNK_NONE; a chunk that was packed
 *           without a class is LK_CHUNK_NONE. Ladders may have shrunk pages below their class
 * order     NULL, or [capacity]: the chunk at each position after the sinks, a permutation
 *
 * Errors: LK_E_ARGUMENT (also a capacity below n_chunks if there is a list), LK_E_NOT_FOUND,
 * LK_E_UNSUPPORTED (the cache's plan has no chunks). */
LK_API lk_status lk_chunks_get(const lk_cache *cache, lk_sequence id, lk_chunks_info *info,
                               uint32_t capacity, lk_chunk_class *assigned, lk_chunk_class *stored,
                               uint32_t *order);

#ifdef __cplusplus
}
#endif
#endif
