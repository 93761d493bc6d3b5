/* lowkey: how relevant the chunks of a context are to a query, and classes of chunks by that.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A context is cut into equal chunks of tokens, counted from the first token after the sinks.
 * Scores say how relevant each is to the query; classes say which of a plan's three widths it
 * is kept at (Cocktail, arXiv 2503.23294: 2, 4 and 16 bits). Scores are the host's own, or come
 * from here; a higher one is more relevant: from embeddings, from token ids, or from the
 * attention that the query pays to the context. The functions that take no cache know no
 * device either, keep nothing, and any threads may call them at once. On failure no output is
 * written. */
#ifndef LOWKEY_CHUNKS_H
#define LOWKEY_CHUNKS_H

#include <lowkey/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Scores from embeddings (equation 1 of Cocktail):
 * scores[i] = c_i . q / (|c_i| |q|), between -1 and 1.
 *
 * embeddings  c, [n_chunks][1][n_channels], host memory, F16, BF16 or F32; token_stride is what
 *             lies between chunks, head_stride is not used
 * query       q, [1][1][n_channels], likewise, of any of these types
 * n_chunks    0 is fine, the pointers may then be NULL
 * n_channels  of an embedding, at least 1
 * scores      [n_chunks]
 *
 * Sums are FP32 in 16 lanes whose order depends on n_channels alone, so all CPUs give the same
 * bits; an embedding whose squares leave FP32's range is summed in FP64.
 *
 * Errors: LK_E_ARGUMENT, LK_E_DATA (an element that is not finite, or only zeros, which have no
 * direction; the sentence names the chunk), LK_E_NOMEM. */
LK_API lk_status lk_chunks_cosine(const lk_tensor *embeddings, const lk_tensor *query,
                                  uint32_t n_chunks, uint32_t n_channels, float *scores);

/* The same on a context's device, of tensors that it takes: for embeddings that a model has just
 * computed there.
 *
 * queue   orders the work; NULL on the CPU, NULL or not on Vulkan. Memory of the tensors must stay
 *         until the queue has passed the call
 * scores  F32, [n_chunks][1][1]; overlaps nothing
 *
 * n_chunks is at least 1. Sums are FP32, in an order of the device's own; an embedding whose
 * squares leave FP32's range is divided by a power of two first. On a device the score of an
 * embedding without a direction, or one that is not finite, is NaN, which lk_chunks_by_thresholds()
 * and lk_chunks_by_quota() refuse and name; all are where the query is such. A device may take
 * numbers below FP32's normal ones for zeros.
 *
 * Errors: as lk_chunks_cosine(), on a device without LK_E_DATA; LK_E_UNSUPPORTED (memory or queue
 * kind), LK_E_DEVICE. */
LK_API lk_status lk_chunks_score_cosine(const lk_context *context, const lk_queue *queue,
                                        const lk_tensor *embeddings, const lk_tensor *query,
                                        uint32_t n_chunks, uint32_t n_channels,
                                        const lk_tensor *scores);

/* How BM25 counts. */
typedef struct lk_bm25 {
    uint32_t size;         /* sizeof(lk_bm25) */
    uint32_t chunk_tokens; /* of each chunk, where no starts are given; 32 */
    double k1;             /* how late repetitions saturate, at least 0; 1.2 */
    double b;              /* how much long chunks are marked down, 0 to 1; 0.75 */
} lk_bm25;

/* Fill with the defaults above. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_bm25_init(lk_bm25 *options, size_t struct_bytes);

/* Scores from token ids, by BM25 with the chunks of the context as its documents:
 *
 *   scores[i] = sum over the query's tokens t of
 *               idf(t) f (k1 + 1) / (f + k1 (1 - b + b l_i / mean l)),
 *   idf(t)    = ln(1 + (N - n_t + 0.5) / (n_t + 0.5)),
 *
 * f how often t is in chunk i, l_i tokens of chunk i, N = n_chunks, n_t in how many chunks t is.
 * A token that the query repeats counts as often. Sums are FP64.
 *
 * tokens          ids; those of chunk i are tokens[starts[i]] up to tokens[starts[i + 1]]
 * starts          [n_chunks + 1], ascending; NULL for equal chunks, i * options->chunk_tokens. A
 *                 host that leaves out frequent or special tokens has chunks of several lengths
 * n_chunks        0 is fine, the pointers behind options may then be NULL
 * query           [n_query_tokens] ids; without one every score is 0
 * scores          [n_chunks]
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOMEM. */
LK_API lk_status lk_chunks_score_bm25(const lk_bm25 *options, const uint32_t *tokens,
                                      const uint64_t *starts, uint32_t n_chunks,
                                      const uint32_t *query, uint32_t n_query_tokens,
                                      float *scores);

/* Classes by thresholds within the range of the scores (section III-B of Cocktail):
 *
 *   T_low = s_min + (s_max - s_min) alpha,   T_high = s_max - (s_max - s_min) beta;
 *   s < T_low: LK_CHUNK_LOW,   s > T_high: LK_CHUNK_HIGH,   else LK_CHUNK_MIDDLE.
 *
 * Both comparisons are strict, so equal scores are all in the middle. The paper has alpha 0.6 and
 * beta 0.1. The thresholds bound no memory: lk_chunks_by_quota() does.
 *
 * scores    [n_chunks], finite
 * n_chunks  0 is fine, scores and classes may then be NULL
 * alpha     at least 0
 * beta      at least 0; alpha + beta below 1
 * classes   [n_chunks]
 * low       set to T_low, high to T_high, in FP64 as they were compared; both may be NULL, and
 *           are 0 without chunks
 *
 * Errors: LK_E_ARGUMENT, LK_E_DATA (a score that is not finite; the sentence names the chunk). */
LK_API lk_status lk_chunks_by_thresholds(const float *scores, uint32_t n_chunks, double alpha,
                                         double beta, lk_chunk_class *classes, double *low,
                                         double *high);

/* How many chunks each class gets. A row is what is stored at one width at once: a page of
 * page_tokens tokens holds page_tokens / chunk_tokens chunks. All classes but LK_CHUNK_HIGH get
 * whole rows, so what is counted here is what is stored. */
typedef struct lk_chunk_quota {
    uint32_t size;         /* sizeof(lk_chunk_quota) */
    uint32_t block_chunks; /* chunks of a row, at least 1; 1 where a chunk is a page or longer; 4 */
    double low_share;      /* of the chunks; without a budget alone; 0.6 */
    double high_share;     /* of the chunks; low_share + high_share at most 1; 0.1 */
    uint64_t budget_bytes; /* of all chunks; 0 for none: shares alone */
    uint64_t low_bytes;    /* of a LK_CHUNK_LOW one, all layers and heads; needed with a budget */
    uint64_t middle_bytes; /* of a LK_CHUNK_MIDDLE one; more than low_bytes */
    uint64_t high_bytes;   /* of a LK_CHUNK_HIGH one; more than middle_bytes */
} lk_chunk_quota;

/* Fill with the defaults above. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_chunk_quota_init(lk_chunk_quota *quota, size_t struct_bytes);

/* Classes by rank: the best chunks are LK_CHUNK_HIGH, the worst LK_CHUNK_LOW. Of equal scores the
 * earlier chunk is the better.
 *
 * Without a budget: the class of a rank follows from the shares, each boundary at the nearest
 * whole row counted from the worst chunk, halves to the wider side.
 * With one: all whole rows start as LK_CHUNK_LOW, and what is left of the budget raises rows, the
 * best first: up to high_share of the chunks (the nearest row, at least one where the share is
 * not 0) from low to high; then low to middle; when no low row is left, middle to high. Each
 * step takes as many rows as the budget holds, so what remains is less than the next row costs.
 *
 * scores    [n_chunks], finite
 * n_chunks  0 is fine, scores and classes may then be NULL
 * classes   [n_chunks]
 * n_bytes   set to what the classes take by the quota's bytes of a chunk; may be NULL
 *
 * Errors: LK_E_ARGUMENT, LK_E_DATA (a score that is not finite; the sentence names the chunk),
 * LK_E_BUDGET (not even the lowest classes fit; the sentence has the bytes needed), LK_E_NOMEM. */
LK_API lk_status lk_chunks_by_quota(const float *scores, uint32_t n_chunks,
                                    const lk_chunk_quota *quota, lk_chunk_class *classes,
                                    uint64_t *n_bytes);

/* Which attention lk_chunks_score_attention() gathers. */
typedef struct lk_chunk_attention {
    uint32_t size;           /* sizeof(lk_chunk_attention) */
    uint32_t n_query_tokens; /* the last ones of the step's, at least 1 */
    uint32_t chunk_tokens;   /* 8 to 256; 32 */
    uint32_t n_chunks;       /* at least 1, of chunk_tokens each from the first token after the
                              * plan's sinks on: the context, which ends where the query begins
                              * or before */
    uint32_t n_layers;       /* 0: all layers without a sliding window */
    uint32_t reserved;       /* 0 */
    const uint32_t *layers;  /* [n_layers] ascending; read during the call */
} lk_chunk_attention;

/* Fill with the defaults above. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_chunk_attention_init(lk_chunk_attention *watch, size_t struct_bytes);

/* Score the chunks of a sequence's context by attention in the next step that names it: each
 * lk_attend() of a watched layer then also takes, for the last n_query_tokens of the sequence's
 * new tokens and every query head, the softmax of the layer's logits (scale and soft-cap
 * included) over the context's tokens alone, and adds up what each chunk gets. The score of a
 * chunk is the mean over layers, and over the heads and query tokens of each, of the sum of its
 * tokens' softmax, so the scores of a context sum to 1.
 *
 * The context may be there already or be part of the same step. Its keys are read as the cache
 * holds them behind lk_append(): at 16 bits where packing is deferred or not due, else packed. A
 * layer's key centers are left out where they add the same to all logits of a row, that is
 * everywhere but under a soft-cap. The work is that of n_query_tokens rows of the step's
 * products of queries and keys.
 *
 * id     a sequence of the cache. A watch that it has is replaced, its scores go
 * watch  read during the call; NULL ends the sequence's watch and frees its memory
 *
 * Memory is taken here and counted in the budget: up to 16 MiB, or what a KV head of one watched
 * layer needs for 64 of its query rows, 512 bytes a chunk. It is kept, with the scores, until the
 * sequence is removed or the watch ends or is replaced; once there are scores, also until the
 * sequence is truncated within the context or its chunks are assigned classes. Forks and snapshots
 * have none.
 *
 * The step that is watched: lk_step_begin() refuses it with LK_E_ARGUMENT where it has fewer new
 * tokens than the query, a draft tree for this sequence, or a context that is not all there
 * before the query, or leaves out a part of the chunks that lk_chunks_assign() reordered; the
 * watch stays. lk_attend() and lk_step_replay() refuse it with LK_E_STATE
 * in a captured graph. Discarded, or with none of the sequence's tokens kept, the watch waits for
 * the next step.
 *
 * Errors, nothing is changed: LK_E_ARGUMENT, LK_E_NOT_FOUND (sequence, layer), LK_E_UNSUPPORTED
 * (a layer with a sliding window, or no layer without), LK_E_BUSY (a step is open), LK_E_STATE
 * (the cache's queue is being captured), LK_E_BUDGET (the sentence has the bytes needed),
 * LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_chunks_score_attention(lk_cache *cache, lk_sequence id,
                                           const lk_chunk_attention *watch);

/* The scores that a watch has gathered, once its step was committed. Of layers that were not
 * attended in that step there are none; the mean is over the others. Waits for the cache's
 * queue; a step that was recorded has been submitted before.
 *
 * n_chunks  as watched
 * scores    [n_chunks]
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND, LK_E_STATE (no watched step was committed, or the
 * cache's queue is being captured), LK_E_BUSY (a step is open), LK_E_DATA (a query was not
 * finite; the sentence names the first chunk), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_chunks_attention_scores(lk_cache *cache, lk_sequence id, uint32_t n_chunks,
                                            float *scores);

/* Tokens of a sequence that wait for classes at 16 bits. */
typedef uint32_t lk_defer;
enum {
    LK_DEFER_OFF = 0,    /* pages are packed as the plan has it */
    LK_DEFER_REFUSE = 1, /* where bytes are lacking, lk_step_begin() looks for them elsewhere as
                          * it does for any sequence, else returns LK_E_BUDGET */
    LK_DEFER_PACK = 2    /* first it packs the oldest chunks that have left the recent window, as
                          * LK_CHUNK_MIDDLE; lk_chunks_get() tells which. Never pages that other
                          * sequences have */
};

/* Hold a sequence's tokens at 16 bits from the next step on, counted in the budget, until
 * lk_chunks_assign() or LK_DEFER_OFF; what is packed already stays so. A fork is deferred as its
 * parent is.
 *
 * Errors: LK_E_ARGUMENT (mode), LK_E_NOT_FOUND, LK_E_UNSUPPORTED (the cache's plan has no chunks),
 * LK_E_BUSY (a step is open). */
LK_API lk_status lk_sequence_defer(lk_cache *cache, lk_sequence id, lk_defer mode);

/* Give the chunks of a sequence's context their classes, and end its deferral.
 *
 * Chunks are the whole runs of the plan's chunk_tokens tokens behind the sinks; the rest of the
 * context, the query and all later tokens stay at 16 bits (lk_chunk_rule.hold).
 *
 * With lk_chunk_rule.reorder, chunks of one class become neighbours: pages of low ones, then of
 * middle ones, then of high ones, in each class in the order of the context, and then the tokens
 * at 16 bits. Attention, which does not depend on the order of committed tokens, answers as
 * without; positions are in the keys and go with them. Where the chunks of a class do not fill
 * whole pages, the best of the rest are kept one class wider, never narrower. Without reorder
 * a chunk is a page and keeps its place; one of which a window has taken a part stays as it is.
 *
 * Classes may be assigned again, for a new query. Pages that keep all of their chunks stay as they
 * are. Others are laid out anew: a chunk that gets narrower is packed from what its codes stand
 * for, as one that only moves is, so both lose a little. A chunk cannot become wider than it is
 * kept unless there are originals (lk_chunks_retain()): it stays as it is, and
 * lk_chunks_info.n_narrower counts it. Chunks behind those that have
 * classes may join.
 *
 * The new pages are made beside the old ones, which go when all are there: the budget must hold
 * both for the duration of the call, and up to two pages at 16 bits. Pages that forks have stay
 * theirs.
 *
 * n_context_tokens  of the sequence, sinks included; at most its length
 * n_chunks          whole chunks of these; at least as many as have classes already. 0 is fine
 * classes           [n_chunks]
 * scores            [n_chunks], a higher one is better; NULL: the later chunk is
 *
 * A truncation within the context keeps the chunks before it; pages that lose chunks are reopened
 * and those that are left in them stay at 16 bits, with the values that their codes stand for.
 * Forks and snapshots have the classes and the order as they are.
 *
 * Errors, on all of which nothing has changed: LK_E_ARGUMENT, LK_E_NOT_FOUND, LK_E_UNSUPPORTED
 * (the cache's plan has no chunks), LK_E_DATA (a score is a NaN), LK_E_STATE (tokens of the context
 * were packed without a class; or the cache's queue is being captured into a graph), LK_E_BUSY (a
 * step is open), LK_E_BUDGET (the sentence has the bytes lacking), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_chunks_assign(lk_cache *cache, lk_sequence id, uint64_t n_context_tokens,
                                  uint32_t n_chunks, const lk_chunk_class *classes,
                                  const float *scores);

/* Keep the originals of a sequence's context in host memory, through the context's hooks, from its
 * first lk_chunks_assign() on: a budget of its own beside the cache's. Chunks that a later call
 * assigns, wider ones too, are then packed from their 16-bit values, byte for byte as if they had
 * been assigned so at first; so is what a truncation leaves of their pages. Chunks that were packed
 * before (LK_DEFER_PACK), of which a window has taken a part, or that join the context later, have
 * none. Forks share them. Snapshots hold neither them nor the budget: a sequence that was loaded is
 * one without originals.
 *
 * budget_bytes  at most; the 16-bit bytes of the context's pages, or lk_chunks_assign() returns
 *               LK_E_BUDGET. 0: keep none, and free what is kept
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND, LK_E_UNSUPPORTED (the cache's plan has no chunks),
 * LK_E_BUSY (a step is open), LK_E_BUDGET (less than is kept). */
LK_API lk_status lk_chunks_retain(lk_cache *cache, lk_sequence id, uint64_t budget_bytes);

/* The chunks of a sequence. */
typedef struct lk_chunks_info {
    uint32_t size;           /* sizeof(lk_chunks_info) */
    uint32_t n_chunks;       /* that have classes; before any were assigned, the whole chunks of all
                              * tokens */
    uint32_t chunk_tokens;   /* of each */
    uint32_t is_assigned;    /* 1 once classes were assigned */
    lk_defer deferral;       /* as lk_sequence_defer() or an assignment left it */
    uint32_t n_low;          /* kept as LK_CHUNK_LOW */
    uint32_t n_middle;       /* kept as LK_CHUNK_MIDDLE */
    uint32_t n_high;         /* kept as LK_CHUNK_HIGH */
    uint32_t n_wider;        /* kept wider than assigned, to fill pages or behind a truncation */
    uint32_t n_narrower;     /* kept narrower than assigned: what would be needed is gone */
    uint64_t first_token;    /* of the first chunk: the sinks */
    uint64_t retained_bytes; /* of originals in host memory, which forks share */
} lk_chunks_info;

/* Set all to zero. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_chunks_info_init(lk_chunks_info *info, size_t struct_bytes);

/* Which chunk lies where and how it is kept.
 *
 * info      or NULL; filled also where a list has too little room
 * capacity  of each list
 * assigned  NULL, or [n_chunks]: by chunk, as lk_chunks_assign() was told; LK_CHUNK_NONE before
 * stored    NULL, or [n_chunks]: by chunk, how it is kept. What is at 16 bits is LK_CHUNK_HIGH
 *           where that class is, else LK_CHUNK_NONE, as what the plan packed without a class is.
 *           A ladder may have taken pages of a layer below their class
 * order     NULL, or [n_chunks]: the chunk at each place, counted from the sinks: a permutation
 *
 * Errors: LK_E_ARGUMENT (also a capacity below n_chunks), LK_E_NOT_FOUND, LK_E_UNSUPPORTED (the
 * cache's plan has no chunks). */
LK_API lk_status lk_chunks_get(const lk_cache *cache, lk_sequence id, lk_chunks_info *info,
                               uint32_t capacity, lk_chunk_class *assigned, lk_chunk_class *stored,
                               uint32_t *order);

#ifdef __cplusplus
}
#endif
#endif
