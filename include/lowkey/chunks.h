/* lowkey: how relevant the chunks of a context are to a query, and classes of chunks by that.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A context is cut into equal chunks of tokens, counted from the first token after the sinks.
 * Scores say how relevant each is to the query; classes say which of a plan's three widths it
 * is kept at (Cocktail, arXiv 2503.23294: 2, 4 and 16 bits). Scores are the host's own, or come
 * from here; a higher one is more relevant. The functions below know no cache and no device,
 * keep nothing, and any threads may call them at once. On failure no output is written. */
#ifndef LOWKEY_CHUNKS_H
#define LOWKEY_CHUNKS_H

#include <lowkey/plan.h>

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
LK_API lk_status lk_chunks_bm25(const lk_bm25 *options, const uint32_t *tokens,
                                const uint64_t *starts, uint32_t n_chunks, const uint32_t *query,
                                uint32_t n_query_tokens, float *scores);

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
    uint32_t row_chunks;   /* chunks of a row, at least 1; 1 where a chunk is a page or longer; 4 */
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

#ifdef __cplusplus
}
#endif
#endif
