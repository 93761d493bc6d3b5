/* lowkey: statistics of a model's keys and queries, and the plans that follow from them.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A calibrator takes samples of Q and K, after RoPE, from forward passes of the host,
 * in any number of calls, and keeps numbers per channel and head. lk_calibrator_chanmix()
 * turns them into a plan. It needs no context and no device; docs/CALIBRATION.md
 * describes the whole way and the files.
 *
 * Samples are host tensors (LK_MEMORY_HOST) in the layout of lk_tensor. They are rounded
 * to FP16 as lk_append() rounds them: nearest even, finite values beyond 65504 saturate. */
#ifndef LOWKEY_CALIBRATE_H
#define LOWKEY_CALIBRATE_H

#include <lowkey/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Statistics of a model. One thread at a time may feed it; const calls may run beside
 * each other. */
typedef struct lk_calibrator lk_calibrator;

/* Make an empty calibrator. Memory for a layer is taken with its first samples.
 *
 * geometry  read during the call, learned sink logits included
 * out       owned by the caller, ended with lk_calibrator_destroy()
 *
 * Errors: LK_E_ARGUMENT (geometry), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_create(const lk_geometry *geometry, lk_calibrator **out);

/* Destroy *calibrator and set it to NULL. NULL is fine. */
LK_API void lk_calibrator_destroy(lk_calibrator **calibrator);

/* Add keys of a layer to the statistics of its channels.
 *
 * keys      [n_tokens][n_kv_heads][head_dim], F16, BF16 or F32; read during the call
 * n_tokens  at least 1
 *
 * Minima and maxima do not depend on how samples are split into calls or ordered; nor do
 * means, as long as a channel's sum of |K| stays below 2^29.
 *
 * Errors, nothing is changed: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer), LK_E_NOMEM,
 * LK_E_DATA (an infinity or a NaN; the sentence names layer, head, channel and token). */
LK_API lk_status lk_calibrator_add_keys(lk_calibrator *calibrator, uint32_t layer,
                                        const lk_tensor *keys, uint32_t n_tokens);

/* Add queries of a layer: mean |Q| per channel, over the query heads of a KV head.
 *
 * queries  [n_tokens][n_query_heads][head_dim], otherwise as lk_calibrator_add_keys()
 *
 * No plan needs it yet but as a weight of errors. Errors: as lk_calibrator_add_keys(). */
LK_API lk_status lk_calibrator_add_queries(lk_calibrator *calibrator, uint32_t layer,
                                           const lk_tensor *queries, uint32_t n_tokens);

/* How a probe was made. A probe is one sentence of period_tokens tokens, repeated behind
 * prefix_tokens others (a BOS, say), and run through the model as one text. */
typedef struct lk_probe {
    uint32_t size;          /* sizeof(lk_probe) */
    uint32_t prefix_tokens; /* before the first sentence; 0 */
    uint32_t period_tokens; /* n, of one sentence; about 100 */
    uint32_t sink_tokens;   /* the first columns of the mask that are zero, the prefix
                             * included; 16 */
    uint32_t local_tokens;  /* a query's last keys, itself included, that are zero: at most
                             * period_tokens - 1, where the nearest copy is; 64 */
} lk_probe;

/* Zeros, size, sink_tokens 16 and local_tokens 64. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_probe_init(lk_probe *probe, size_t struct_bytes);

/* Write a probe's tokens: the prefix, then the sentence n_repeats times.
 *
 * prefix        [probe->prefix_tokens], NULL when there are none
 * sentence      [probe->period_tokens] token ids, any text; ChanMix uses about 100
 * n_repeats     at least 2; ChanMix uses about 30
 * tokens        [capacity], may be NULL with capacity 0
 * n_tokens      set to prefix_tokens + n_repeats * period_tokens
 *
 * Errors: LK_E_ARGUMENT (also a capacity that is not 0 and too small; n_tokens is set,
 * nothing is written). */
LK_API lk_status lk_probe_tokens(const lk_probe *probe, const uint32_t *prefix,
                                 const uint32_t *sentence, uint32_t n_repeats, uint32_t *tokens,
                                 uint64_t capacity, uint64_t *n_tokens);

/* Add a layer's attention in the forward pass of a probe to its heads' retrieval scores.
 *
 * queries   [n_tokens][n_query_heads][head_dim]
 * keys      [n_tokens][n_kv_heads][head_dim]
 * n_tokens  of the whole pass, at least prefix_tokens + 2 * period_tokens
 *
 * The score of a query head is the attention that passes the A-shape mask M,
 * sum of A_ij M_ij over queries i from the second sentence on, divided by their number
 * (ChanMix: S = sum_ij A_ij M_ij). M is 0 on the sink columns and on the last local_tokens
 * keys, else 1. A is the layer's attention, its scale, soft-cap, window and learned sinks
 * included. Time grows with n_tokens^2, memory with n_tokens. Several probes add up.
 *
 * Errors, nothing is changed: as lk_calibrator_add_keys(). */
LK_API lk_status lk_calibrator_add_probe(lk_calibrator *calibrator, uint32_t layer,
                                         const lk_probe *probe, const lk_tensor *queries,
                                         const lk_tensor *keys, uint32_t n_tokens);

/* What is known of each channel of a (layer, KV head). */
typedef uint32_t lk_statistic;
enum {
    LK_STATISTIC_KEY_MIN = 1,
    LK_STATISTIC_KEY_MAX = 2,
    LK_STATISTIC_KEY_RANGE = 3,      /* R_c = max K - min K */
    LK_STATISTIC_KEY_MEAN = 4,       /* the center that a plan subtracts */
    LK_STATISTIC_KEY_MAGNITUDE = 5,  /* mean |K| */
    LK_STATISTIC_QUERY_MAGNITUDE = 6 /* mean |Q| */
};

/* The statistic of every channel.
 *
 * values  [head_dim]
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer, head or statistic), LK_E_STATE (the layer
 * has had no such samples). */
LK_API lk_status lk_calibrator_get_channels(const lk_calibrator *calibrator, uint32_t layer,
                                            uint32_t kv_head, lk_statistic statistic,
                                            float *values);

/* Samples that a layer has had; each pointer may be NULL.
 *
 * n_keys, n_queries  tokens
 * n_probe_rows       queries that count in the retrieval scores
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND. */
LK_API lk_status lk_calibrator_get_counts(const lk_calibrator *calibrator, uint32_t layer,
                                          uint64_t *n_keys, uint64_t *n_queries,
                                          uint64_t *n_probe_rows);

/* A copy of the geometry: layers [n_layers], n_layers set.
 *
 * layers    may be NULL with capacity 0; element 0 says its size, as in lk_geometry.
 *           sink_logits is NULL.
 * Errors: LK_E_ARGUMENT (also a capacity that is not 0 and too small; n_layers is set). */
LK_API lk_status lk_calibrator_get_geometry(const lk_calibrator *calibrator, lk_layer *layers,
                                            uint32_t capacity, uint32_t *n_layers);

/* Classes of channels by their range, with the bits that ChanMix gives them. */
enum { LK_CHANNEL_SUBNORMAL = 1, LK_CHANNEL_NORMAL = 2, LK_CHANNEL_OUTLIER = 3 };

/* Which channels are clustered together. */
typedef uint32_t lk_scope;
enum {
    LK_SCOPE_HEAD = 1, /* those of a (layer, KV head) */
    LK_SCOPE_LAYER = 2 /* those of all KV heads of a layer */
};

/* Cluster channel ranges into subnormal, normal and outlier: 1-D K-means with k = 3,
 * initial centroids (R_min, R_median, R_max), Lloyd's iterations until no channel moves.
 * A range as far from two centroids belongs to the lower. An empty cluster keeps its
 * centroid. Ranges that are all equal (constant channels too) are all normal.
 *
 * classes    [head_dim] of LK_CHANNEL_*; may be NULL
 * centroids  [3] subnormal, normal, outlier; may be NULL
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND, LK_E_STATE (no keys), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_get_classes(const lk_calibrator *calibrator, uint32_t layer,
                                           uint32_t kv_head, lk_scope scope, uint8_t *classes,
                                           float *centroids);

/* The retrieval score of a KV head: the largest of its query heads', from 0 to 1.
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND, LK_E_STATE (the layer has had no probe). */
LK_API lk_status lk_calibrator_get_retrieval(const lk_calibrator *calibrator, uint32_t layer,
                                             uint32_t kv_head, float *score);

/* What of a retrieval head is kept at 4 bits. */
typedef uint32_t lk_retrieval;
enum {
    LK_RETRIEVAL_NONE = 1, /* there are no retrieval heads */
    LK_RETRIEVAL_KEY = 2,
    LK_RETRIEVAL_KEY_VALUE = 3
};

/* How a ChanMix plan is made. Start from lk_chanmix_init(). */
typedef struct lk_chanmix {
    uint32_t size;          /* sizeof(lk_chanmix) */
    lk_retrieval retrieval; /* LK_RETRIEVAL_KEY_VALUE */
    lk_scope scope;         /* LK_SCOPE_HEAD */
    uint32_t outliers;      /* 1: outliers 3 bits and as many subnormals 1 bit; 0: all 2 bits */
    uint32_t centers;       /* 1: keys are stored without their mean (lk_plan_set_key_centers()) */
    lk_metadata metadata;   /* LK_METADATA_F8 */
    uint32_t group;         /* tokens of keys and channels of values that share a range; 32 */
    uint32_t sink_tokens;   /* at 16 bits; 32 */
    uint32_t recent_tokens; /* likewise, recent; 128 */
    /* The part of all KV heads that are retrieval heads, those of the highest scores, to the
     * nearest head; ties go to the lower layer and head. From 0 to 1. -1: 0.3, or 0.19 when
     * every query head has a KV head of its own; with a budget, as many as fit it. */
    double retrieval_share;
    /* With budget_bytes not 0: at most so many retrieval heads that lk_plan_bytes() of the
     * numbers below has a cache_bytes of at most budget_bytes. */
    uint64_t budget_bytes;
    uint64_t budget_tokens;      /* of each sequence; 8192 */
    uint32_t budget_sequences;   /* 1 */
    uint32_t budget_step_tokens; /* 512 */
    lk_one_bit one_bit;          /* of 1-bit channels: LK_ONE_BIT_DEVIATION; LK_ONE_BIT_RANGE is the
                                  * paper's */
    uint32_t reserved;           /* 0 */
} lk_chanmix;
LK_API lk_status lk_chanmix_init(lk_chanmix *options, size_t struct_bytes);

/* Make a ChanMix plan: retrieval heads 4 bits; of the others' key channels outliers 3,
 * normal 2, and of the subnormal ones, smallest range first, as many 1 as there are
 * outliers, the rest 2. With more outliers than subnormals, the largest of them are 3 and
 * the rest 2. So a head that is no retrieval head takes the bytes of 2 bits for every
 * channel. Values are 4 or 2 bits per token.
 *
 * options  NULL = the defaults
 * out      owned by the caller; NULL on failure
 *
 * Errors: LK_E_ARGUMENT (options), LK_E_STATE (a layer without keys, or without a probe
 * when there are retrieval heads), LK_E_BUDGET (even 2 bits do not fit; the sentence has
 * the bytes that would do), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_chanmix(const lk_calibrator *calibrator, const lk_chanmix *options,
                                       lk_plan **out);

/* How an automatic plan is made. Start from lk_auto_init() and set a limit. */
typedef struct lk_auto {
    uint32_t size;          /* sizeof(lk_auto) */
    uint32_t centers;       /* 1: keys are stored without their mean (lk_plan_set_key_centers()) */
    uint32_t sink_tokens;   /* at 16 bits; 32 */
    uint32_t recent_tokens; /* likewise, recent; 128 */
    double bits_per_value;  /* the most that lk_plan_size's may be; 0 = no such limit */
    uint64_t budget_bytes;  /* the most that cache_bytes of lk_plan_bytes() of the numbers below
                             * may be; 0 = no such limit */
    uint64_t budget_tokens; /* of each sequence; 8192 */
    uint32_t budget_sequences;   /* 1 */
    uint32_t budget_step_tokens; /* 512 */
} lk_auto;
LK_API lk_status lk_auto_init(lk_auto *options, size_t struct_bytes);

/* Make a plan from statistics and a limit alone. For the keys and the values of each head it
 * weighs the error of attention's output that widths make against their bytes, and takes
 * the widths of the least total error that fit: by channel for keys (8, 4, 3, 2, 1 bits, those
 * first that queries multiply most), by head for values (8, 4, 2, with costs also 1), in groups
 * of 128, 64 or 32 with FP8 or FP16 metadata, 16 bits where there is room, and clips where what
 * they cost is known. docs/CALIBRATION.md says how errors are known; lk_calibrator_set_costs()
 * tells more. Equal statistics and options give equal plans.
 *
 * options  one limit at least
 * out      owned by the caller; NULL on failure
 *
 * Errors: LK_E_ARGUMENT (options), LK_E_STATE (a layer without keys, queries or a probe),
 * LK_E_BUDGET (even the fewest bits do not fit; the sentence has what would do), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_auto(const lk_calibrator *calibrator, const lk_auto *options,
                                    lk_plan **out);

/* Add keys or values of a layer with the gradients of a loss: what each width costs,
 * |gradient x (x - Q_b(x))|_1 (PM-KVQ, equation 4). Q_b is min-max per token over up to
 * 128 channels of a head.
 *
 * is_value         0 keys, 1 values
 * samples          [n_tokens][n_kv_heads][head_dim], as lk_calibrator_add_keys()
 * gradients        of the same shape; not rounded
 *
 * Errors, nothing is changed: as lk_calibrator_add_keys(). */
LK_API lk_status lk_calibrator_add_gradients(lk_calibrator *calibrator, uint32_t layer,
                                             uint32_t is_value, const lk_tensor *samples,
                                             const lk_tensor *gradients, uint32_t n_tokens);

/* The same without gradients: the error that each width of keys, and of values, makes in
 * the output of the layer's attention.
 *
 * queries   [n_tokens][n_query_heads][head_dim] of one causal pass
 * keys      [n_tokens][n_kv_heads][head_dim], and values
 *
 * Time grows with n_tokens^2. Errors, nothing is changed: as lk_calibrator_add_keys(). */
LK_API lk_status lk_calibrator_add_attention(lk_calibrator *calibrator, uint32_t layer,
                                             const lk_tensor *queries, const lk_tensor *keys,
                                             const lk_tensor *values, uint32_t n_tokens);

/* Say what each half of each head costs at 2 bits, as a host has measured it: how far the
 * model's predictions move when that half alone is packed in groups of 128 (keys per
 * channel, values per token) and all else is exact. `lowkey calibrate --costs` does so.
 * lk_calibrator_auto() goes by costs when all layers have them. The last ones count.
 *
 * costs  [n_kv_heads][2], of keys and of values, each from 0 to 1e15; in any unit, the same
 *        one for all layers
 *
 * Errors, nothing is changed: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer), LK_E_DATA (a cost that
 * is out of range or not a number), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_set_costs(lk_calibrator *calibrator, uint32_t layer,
                                         const double *costs);

/* What was said last: [n_kv_heads][2]. Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer),
 * LK_E_STATE (the layer has had none). */
LK_API lk_status lk_calibrator_get_costs(const lk_calibrator *calibrator, uint32_t layer,
                                         double *costs);

#define LK_COST_CLIPS 2 /* 0.85 and 0.7 */

/* The same with clipped ranges (clip of lk_key_rule and lk_value_rule), measured likewise and
 * in the same unit. lk_calibrator_auto() gives each half the clip that costs least when all
 * layers have these and costs, else whole ranges.
 *
 * costs  [n_kv_heads][2][LK_COST_CLIPS], of keys and of values, with a clip of 0.85 and of 0.7
 *
 * Errors: as lk_calibrator_set_costs(). */
LK_API lk_status lk_calibrator_set_clip_costs(lk_calibrator *calibrator, uint32_t layer,
                                              const double *costs);

/* What was said last: [n_kv_heads][2][LK_COST_CLIPS]. Errors: as lk_calibrator_get_costs(). */
LK_API lk_status lk_calibrator_get_clip_costs(const lk_calibrator *calibrator, uint32_t layer,
                                              double *costs);

/* How a sensitivity is known. */
typedef uint32_t lk_sensitivity;
enum {
    LK_SENSITIVITY_GRADIENT = 1, /* sum of |gradient x error|, per token */
    LK_SENSITIVITY_OUTPUT = 2    /* squared error of the output, of its squares */
};

/* What keeping a KV head's keys (is_value 0) or values (1) at `bits` costs.
 *
 * bits         16, 8, 4 or 2; 16 costs 0
 * sensitivity  set to a number of at least 0, made for lk_solve_widths()
 *
 * Errors: LK_E_ARGUMENT (bits), LK_E_NOT_FOUND (layer, head, kind), LK_E_STATE (no such samples).
 */
LK_API lk_status lk_calibrator_get_sensitivity(const lk_calibrator *calibrator, uint32_t layer,
                                               uint32_t kv_head, uint32_t is_value,
                                               lk_sensitivity kind, uint32_t bits,
                                               double *sensitivity);

/* Choose one of several widths for each of many things, within a byte budget, so that the sum of
 * costs is least: exactly (PM-KVQ's integer program, for any sizes). Cost may be a
 * sensitivity of a layer or head, or of its keys and values apart; that is the caller's.
 *
 * n_items, n_choices  at least 1; n_items * n_choices at most 2^24
 * costs               [n_items][n_choices] finite, at least 0
 * bytes               [n_items][n_choices]; the largest of all items add up to at most 2^53
 * choices             [n_items] set to the index of each item's choice
 * total_cost          set to the sum of their costs; may be NULL
 *
 * Among equally good answers the same input always gives the same. Errors: LK_E_ARGUMENT,
 * LK_E_BUDGET (even the smallest choices do not fit; the sentence has what they take),
 * LK_E_NOMEM (many items of unlike sizes may leave more sums to compare than memory holds). */
LK_API lk_status lk_solve_widths(uint32_t n_items, uint32_t n_choices, const double *costs,
                                 const uint64_t *bytes, uint64_t budget_bytes, uint32_t *choices,
                                 double *total_cost);

/* How positions turn keys and queries (RoPE): at position p the pair i of channels is turned
 * by the angle p * frequency i. */
typedef uint32_t lk_rope_pairing;
enum {
    LK_ROPE_HALVES = 1,     /* channels i and i + channels / 2 (Llama and Qwen in transformers) */
    LK_ROPE_INTERLEAVED = 2 /* channels 2 i and 2 i + 1 (GPT-J, Llama as published) */
};

/* RoPE of a model. Start from lk_rope_init(). */
typedef struct lk_rope {
    uint32_t size;             /* sizeof(lk_rope) */
    lk_rope_pairing pairing;   /* LK_ROPE_HALVES */
    uint32_t channels;         /* the first ones of a head that turn, even; 0 = all of them */
    uint32_t reserved;         /* 0 */
    double base;               /* theta: frequency i is base^(-2 i / channels); 10000 */
    const double *frequencies; /* [channels / 2] in place of base, for models that bend them;
                                * NULL. Read during the call. */
} lk_rope;
LK_API lk_status lk_rope_init(lk_rope *rope, size_t struct_bytes);

/* PM-KVQ's positional interpolation: token t of a calibration text is at position
 * t * LK_POSITION_SCALE, so that texts of 2048 tokens meet the angles of 8192. */
#define LK_POSITION_SCALE 4

/* Turn rows to their positions.
 *
 * samples         [n_tokens][n_heads][head_dim] in host memory, any element type; read as is
 * first_position  of token 0, at least 0; token t is at (first_position + t) * position_scale
 * position_scale  finite, more than 0; 1 = the model's own positions
 * values          [n_tokens][n_heads][head_dim] written; may be the memory of F32 samples that
 *                 lie so
 *
 * Any thread. Errors: LK_E_ARGUMENT (rope, shapes, positions beyond 2^53), nothing is written
 * then. */
LK_API lk_status lk_rope_apply(const lk_rope *rope, const lk_tensor *samples, uint32_t n_tokens,
                               uint32_t n_heads, uint32_t head_dim, uint64_t first_position,
                               double position_scale, float *values);

/* Turn them back; arguments and errors as of lk_rope_apply(). This at scale 1, then
 * lk_rope_apply() at LK_POSITION_SCALE, stretches keys that the model turned already. */
LK_API lk_status lk_rope_invert(const lk_rope *rope, const lk_tensor *samples, uint32_t n_tokens,
                                uint32_t n_heads, uint32_t head_dim, uint64_t first_position,
                                double position_scale, float *values);

/* The largest |K| so far of each RoPE pair of a KV head (PM-KVQ's max_keys): both channels of a
 * pair get the larger one of theirs, and a channel that does not turn its own.
 *
 * pairing, channels  as lk_rope
 * maxima             [head_dim]
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND, LK_E_STATE (the layer has had no keys). */
LK_API lk_status lk_calibrator_get_pair_maxima(const lk_calibrator *calibrator, uint32_t layer,
                                               uint32_t kv_head, lk_rope_pairing pairing,
                                               uint32_t channels, float *maxima);

/* Scales of keys, lambda = maxima^exponent from 1e-4 to 1e4, for lk_plan_set_key_scales(); 1
 * where a maximum is 0. Equal maxima of a pair give equal scales, which commute with RoPE, so
 * they may also be folded into the weights of K and Q. Any thread.
 *
 * maxima    [head_dim], finite, at least 0
 * exponent  0 to 1; 0 = no scales
 * scales    [head_dim]; may be maxima
 *
 * Errors: LK_E_ARGUMENT, nothing is written then. */
LK_API lk_status lk_key_scales(const float *maxima, uint32_t head_dim, double exponent,
                               float *scales);

/* How the exponent of a layer's key scales is looked for. */
typedef struct lk_scale_search {
    uint32_t size;           /* sizeof(lk_scale_search) */
    lk_rope_pairing pairing; /* LK_ROPE_HALVES */
    uint32_t channels;       /* that turn, as in lk_rope; 0 */
    uint32_t key_bits;       /* 16, 8, 4 or 2, per token; 4 */
    uint32_t value_bits;     /* likewise; 4 */
    uint32_t query_step;     /* one query in so many is attended, the last one among them; 1 */
} lk_scale_search;
LK_API lk_status lk_scale_search_init(lk_scale_search *search, size_t struct_bytes);

/* Exponents that a search tries: 1.00, 0.95 .. 0.05 and 0. */
#define LK_SCALE_EXPONENTS 21

/* Add a causal pass of a layer to its search: for each exponent the squared error of the
 * attention's output, before the output projection, when K / lambda and V are quantized per
 * token and K is multiplied again.
 *
 * search                 NULL = the defaults; but for query_step as at the layer's first pass
 * queries, keys, values  as lk_calibrator_add_attention()
 *
 * The maxima are those of the keys that were added before the layer's first pass; later keys do
 * not change them. Time grows with 21 n_tokens^2 / query_step. Errors, nothing is changed: as
 * lk_calibrator_add_keys(), LK_E_STATE (no keys yet), LK_E_MISMATCH (another search). */
LK_API lk_status lk_calibrator_add_scale_search(lk_calibrator *calibrator, uint32_t layer,
                                                const lk_scale_search *search,
                                                const lk_tensor *queries, const lk_tensor *keys,
                                                const lk_tensor *values, uint32_t n_tokens);

/* What a layer's search has found so far.
 *
 * index     below LK_SCALE_EXPONENTS
 * exponent  set to that of the index; may be NULL
 * error     set to its sum of squared errors over that of exponent 0; may be NULL
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer, index), LK_E_STATE (no search). */
LK_API lk_status lk_calibrator_get_scale_error(const lk_calibrator *calibrator, uint32_t layer,
                                               uint32_t index, double *exponent, double *error);

/* The scales of a KV head at the exponent of the least error of its layer; of equal ones the
 * lower exponent.
 *
 * scales    [head_dim]; may be NULL
 * exponent  may be NULL
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND, LK_E_STATE (no search). */
LK_API lk_status lk_calibrator_get_key_scales(const lk_calibrator *calibrator, uint32_t layer,
                                              uint32_t kv_head, float *scales, double *exponent);

/* How a PM-KVQ plan is made. Start from lk_pmkvq_init(). */
typedef struct lk_pmkvq {
    uint32_t size;               /* sizeof(lk_pmkvq) */
    uint32_t n_widths;           /* 1 to 4; 2 */
    uint32_t widths[4];          /* that a layer may end at, out of 16, 8, 4, 2, descending; 4, 2 */
    lk_sensitivity sensitivity;  /* 0: by gradients where all layers have had those of K and of
                                  * V, else by outputs */
    lk_scope scope;              /* LK_SCOPE_LAYER: the heads of a layer end at one width;
                                  * LK_SCOPE_HEAD: each at its own */
    uint32_t split;              /* 1: keys and values end at widths of their own; 0 */
    lk_axis key_axis;            /* LK_AXIS_CHANNEL; LK_AXIS_TOKEN is the paper's */
    uint32_t group;              /* of values, and of keys per token: channels that share a range,
                                  * a multiple of 16; 0 = the head. 128 is the paper's */
    uint32_t key_scales;         /* 1: those of the searches, in every layer; 0 */
    uint32_t sink_tokens;        /* at 16 bits; 32 */
    uint32_t recent_tokens;      /* likewise, recent; 128 */
    uint64_t budget_bytes;       /* of the whole cache, not 0 */
    uint64_t budget_tokens;      /* of each sequence, when the budget is full; 32768 */
    uint32_t budget_sequences;   /* 1 */
    uint32_t budget_step_tokens; /* 512 */
} lk_pmkvq;
LK_API lk_status lk_pmkvq_init(lk_pmkvq *options, size_t struct_bytes);

/* Make a PM-KVQ plan: pages begin at 16 bits and go down to 8, 4 and 2 as the budget asks, each
 * layer to a width of its own. The widths are those of the least sum of sensitivities
 * (lk_solve_widths(), PM-KVQ's integer program) whose cache of the numbers above takes at most
 * budget_bytes: lk_plan_bytes() of the plan with every ladder at its last rung, and 256 KiB
 * that a cache keeps for pages which move while they shrink. The program counts slots, on which
 * whole extents come, so it is solved for the largest number of slot bytes whose plan fits. Of the
 * layers at the widest rung the one of the least sensitivity at the narrowest of `widths` shrinks
 * first.
 *
 * A ladder is a layer's. Where heads, or keys and values, end at different widths it ends at
 * the widest of them; narrower ones go from 16 bits to their own width at once. A layer some of
 * which stays at 16 bits has no ladder, and the rest of it is packed at its own width at once.
 *
 * out  owned by the caller; NULL on failure
 *
 * Errors: LK_E_ARGUMENT (options; no widths), LK_E_STATE (a layer without such sensitivities,
 * or without a search for key scales), LK_E_BUDGET (even the narrowest widths do not fit; the
 * sentence has the bytes that would do), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_pmkvq(const lk_calibrator *calibrator, const lk_pmkvq *options,
                                     lk_plan **out);

/* Write the statistics as a safetensors file (docs/CALIBRATION.md).
 *
 * buffer        [capacity_bytes], may be NULL with capacity 0
 * needed_bytes  set to the bytes of the whole file
 *
 * Equal statistics give equal bytes. Errors: LK_E_ARGUMENT (a capacity that is not 0 and
 * too small; needed_bytes is set, nothing is written), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_to_bytes(const lk_calibrator *calibrator, void *buffer,
                                        size_t capacity_bytes, size_t *needed_bytes);

/* Read statistics from untrusted bytes. Memory is bounded by the bytes given.
 *
 * bytes  [n_bytes], need not be aligned
 * out    owned by the caller; NULL on failure. It may be fed further.
 *
 * Errors: LK_E_ARGUMENT, LK_E_CORRUPT (the sentence names the tensor), LK_E_MISMATCH
 * (another version), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_from_bytes(const void *bytes, size_t n_bytes, lk_calibrator **out);

#ifdef __cplusplus
}
#endif
#endif
