/* lowkey: statistics of a model's keys, queries and values.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A calibrator takes samples of Q, K and V from forward passes of the host, in any number of
 * calls, and keeps sums for each channel and head. A planner makes a plan from them:
 * lk_calibrator_auto(), lk_calibrator_chanmix() or lk_calibrator_pmkvq(). A calibrator needs no
 * context and no device. docs/CALIBRATION.md describes each step and the files.
 *
 * Samples are host tensors (LK_MEMORY_HOST) in the layout of lk_tensor; Q and K are those after
 * RoPE. A sample is rounded to FP16 as lk_append() does: nearest even; finite values beyond 65504
 * saturate. A pass is one forward pass of a text; token t of its samples is the text's token t.
 *
 * A reading layer (lk_layer.kv_layer) has no statistics: every call that names one returns
 * LK_E_ARGUMENT, and its queries are left out of those of its KV layer. Its part of the predictions
 * counts in costs, which are measured on the whole model. */
#ifndef LOWKEY_STATISTICS_H
#define LOWKEY_STATISTICS_H

#include <lowkey/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Statistics of a model. A call with a non-const calibrator needs it alone; const calls may run
 * at the same time. */
typedef struct lk_calibrator lk_calibrator;

/* Create an empty calibrator. The first samples of a layer allocate the layer's memory.
 *
 * geometry  read during the call, learned sink logits included
 * out       owned by the caller, destroyed by lk_calibrator_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT (geometry, a sink logit that is not finite), LK_E_UNSUPPORTED (a latent
 * layer, or one whose value_dim is not its head_dim), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_create(const lk_geometry *geometry, lk_calibrator **out);

/* Destroy *calibrator and set it to NULL. calibrator and *calibrator may be NULL. */
LK_API void lk_calibrator_destroy(lk_calibrator **calibrator);

/* Add keys of a layer to the statistics of its channels.
 *
 * keys      [n_tokens][n_kv_heads][head_dim], F16, BF16 or F32; read during the call
 * n_tokens  at least 1
 *
 * Minima and maxima depend neither on the order of the samples nor on the calls that bring them.
 * The same holds for means while a channel's sum of |K| is below 2^29.
 *
 * Errors, nothing is changed: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer), LK_E_NOMEM,
 * LK_E_DATA (an infinity or a NaN; the sentence names layer, head, channel and token). */
LK_API lk_status lk_calibrator_add_keys(lk_calibrator *calibrator, uint32_t layer,
                                        const lk_tensor *keys, uint32_t n_tokens);

/* Add queries of a layer to the mean |Q| of each channel, over the query heads of a KV head.
 * lk_calibrator_auto() needs them; other planners do not.
 *
 * queries  [n_tokens][n_query_heads][head_dim], otherwise as lk_calibrator_add_keys()
 *
 * Errors: as lk_calibrator_add_keys(). */
LK_API lk_status lk_calibrator_add_queries(lk_calibrator *calibrator, uint32_t layer,
                                           const lk_tensor *queries, uint32_t n_tokens);

/* The layout of a probe: a text of prefix_tokens tokens (a BOS, for example), followed by
 * repetitions of one sentence of period_tokens tokens. The host runs it through the model as one
 * text. Start from lk_probe_init(). */
typedef struct lk_probe {
    uint32_t size;          /* sizeof(lk_probe) */
    uint32_t prefix_tokens; /* before the first sentence; 0 from init */
    uint32_t period_tokens; /* n, of one sentence, at least 2; about 100; 0 from init */
    uint32_t sink_tokens;   /* keys at the beginning, prefix included, whose columns of the mask
                             * are zero; 16 from init */
    uint32_t local_tokens;  /* a query's last keys, its own included, where the mask is zero: 1 to
                             * period_tokens - 1, the distance of the nearest copy; 64 */
} lk_probe;

/* Set the defaults: sink_tokens 16, local_tokens 64, zeros. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_probe_init(lk_probe *probe, size_t struct_bytes);

/* Write a probe's tokens: the prefix, then the sentence n_repeats times. Any thread.
 *
 * prefix     [probe->prefix_tokens]; NULL if prefix_tokens is 0
 * sentence   [probe->period_tokens] token ids of any text; ChanMix uses about 100
 * n_repeats  at least 2; ChanMix uses about 30
 * tokens     [capacity]; may be NULL with capacity 0
 * n_tokens   set to prefix_tokens + n_repeats * period_tokens
 *
 * Errors: LK_E_ARGUMENT (also a capacity that is not 0 and too small: n_tokens is set, no token
 * is written). */
LK_API lk_status lk_probe_tokens(const lk_probe *probe, const uint32_t *prefix,
                                 const uint32_t *sentence, uint32_t n_repeats, uint32_t *tokens,
                                 uint64_t capacity, uint64_t *n_tokens);

/* Add a layer's attention in a pass of a probe to the retrieval scores of its heads.
 *
 * probe     as the text was made
 * queries   [n_tokens][n_query_heads][head_dim]
 * keys      [n_tokens][n_kv_heads][head_dim]
 * n_tokens  of the whole pass, at least prefix_tokens + 2 * period_tokens
 *
 * The score of a query head is the sum of A_ij M_ij over all queries i from the second sentence
 * on, divided by the number of these queries (ChanMix: S = sum_ij A_ij M_ij). The A-shape mask M
 * is 0 on the sink columns and on the last local_tokens keys, else 1. A is the layer's attention
 * with its scale, soft-cap, window and learned sinks. Several probes add up. Time grows with
 * n_tokens^2, memory with n_tokens.
 *
 * Errors, nothing is changed: as lk_calibrator_add_keys(); LK_E_DATA also if the attention is not
 * finite. */
LK_API lk_status lk_calibrator_add_probe(lk_calibrator *calibrator, uint32_t layer,
                                         const lk_probe *probe, const lk_tensor *queries,
                                         const lk_tensor *keys, uint32_t n_tokens);

/* Statistics of each channel of a layer and KV head. */
typedef uint32_t lk_statistic;
enum {
    LK_STATISTIC_KEY_MIN = 1,
    LK_STATISTIC_KEY_MAX = 2,
    LK_STATISTIC_KEY_RANGE = 3,      /* R_c = max K - min K */
    LK_STATISTIC_KEY_MEAN = 4,       /* the center that a planner subtracts */
    LK_STATISTIC_KEY_MAGNITUDE = 5,  /* mean |K| */
    LK_STATISTIC_QUERY_MAGNITUDE = 6 /* mean |Q| */
};

/* Read a statistic of every channel.
 *
 * values  [head_dim]
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer, head or statistic), LK_E_STATE (the layer has no
 * samples of this kind yet: add some). */
LK_API lk_status lk_calibrator_get_channels(const lk_calibrator *calibrator, uint32_t layer,
                                            uint32_t kv_head, lk_statistic statistic,
                                            float *values);

/* Count a layer's samples. Each of the three pointers may be NULL.
 *
 * n_keys           set to the tokens of all lk_calibrator_add_keys()
 * n_queries        set to the tokens of all lk_calibrator_add_queries()
 * n_probe_queries  set to the queries that count in the retrieval scores
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer). */
LK_API lk_status lk_calibrator_get_counts(const lk_calibrator *calibrator, uint32_t layer,
                                          uint64_t *n_keys, uint64_t *n_queries,
                                          uint64_t *n_probe_queries);

/* Copy the geometry.
 *
 * layers    [capacity], elements layers[0].size bytes apart as in lk_geometry; may be NULL with
 *           capacity 0. sink_logits are set to NULL
 * n_layers  set to the number of layers
 *
 * Errors: LK_E_ARGUMENT (also a capacity that is not 0 and too small: n_layers is set). */
LK_API lk_status lk_calibrator_get_geometry(const lk_calibrator *calibrator, lk_layer *layers,
                                            uint32_t capacity, uint32_t *n_layers);

/* Channel classes by range. ChanMix stores subnormal channels at 1 or 2 bits, normal ones at 2
 * and outliers at 3. */
enum { LK_CHANNEL_SUBNORMAL = 1, LK_CHANNEL_NORMAL = 2, LK_CHANNEL_OUTLIER = 3 };

/* Heads that a planner treats together: their channels are clustered, or their widths chosen, as
 * one. */
typedef uint32_t lk_scope;
enum {
    LK_SCOPE_HEAD = 1, /* one KV head of a layer */
    LK_SCOPE_LAYER = 2 /* all KV heads of a layer */
};

/* Cluster channel ranges into subnormal, normal and outlier: 1-D K-means with k = 3, initial
 * centroids (R_min, R_median, R_max), Lloyd's iterations until no channel moves. A range that is
 * equally far from two centroids joins the lower one. An empty cluster keeps its centroid. If all
 * ranges are equal, all channels are normal.
 *
 * classes    [head_dim] of LK_CHANNEL_*; may be NULL
 * centroids  [3] subnormal, normal, outlier; may be NULL
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer, head), LK_E_STATE (the layer has no keys yet),
 * LK_E_NOMEM. */
LK_API lk_status lk_calibrator_get_classes(const lk_calibrator *calibrator, uint32_t layer,
                                           uint32_t kv_head, lk_scope scope, uint8_t *classes,
                                           float *centroids);

/* Read the retrieval score of a KV head: the largest score of its query heads, from 0 to 1.
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer, head), LK_E_STATE (the layer has no probe yet). */
LK_API lk_status lk_calibrator_get_retrieval(const lk_calibrator *calibrator, uint32_t layer,
                                             uint32_t kv_head, float *score);

/* Add keys or values of a layer with the gradients of a loss. The sensitivity to a width of b bits
 * is |gradient x (x - Q_b(x))|_1 (PM-KVQ, equation 4). Q_b is min-max quantization per token, over
 * groups of up to 128 channels of a head.
 *
 * is_value   0 keys, 1 values
 * samples    [n_tokens][n_kv_heads][head_dim], as lk_calibrator_add_keys()
 * gradients  of the same shape; not rounded
 *
 * Errors, nothing is changed: as lk_calibrator_add_keys(). */
LK_API lk_status lk_calibrator_add_gradients(lk_calibrator *calibrator, uint32_t layer,
                                             uint32_t is_value, const lk_tensor *samples,
                                             const lk_tensor *gradients, uint32_t n_tokens);

/* Add sensitivities without gradients: the error of the output of a layer's attention, for each
 * width of the keys and of the values.
 *
 * queries   [n_tokens][n_query_heads][head_dim] of one causal pass
 * keys      [n_tokens][n_kv_heads][head_dim]
 * values    [n_tokens][n_kv_heads][head_dim]
 * n_tokens  of the whole pass, at least 1
 *
 * Time grows with n_tokens^2. Errors, nothing is changed: as lk_calibrator_add_keys(); LK_E_DATA
 * also if the attention is not finite. */
LK_API lk_status lk_calibrator_add_attention(lk_calibrator *calibrator, uint32_t layer,
                                             const lk_tensor *queries, const lk_tensor *keys,
                                             const lk_tensor *values, uint32_t n_tokens);

/* Set the costs of a layer: how far the model's predictions move when the keys, or the values, of
 * one KV head are packed at 2 bits in groups of 128 (keys per channel, values per token) and all
 * else is exact. The host measures them; `lowkey calibrate --costs` does so. lk_calibrator_auto()
 * weighs errors by costs when all layers have costs. A later call replaces the costs.
 *
 * costs  [n_kv_heads][2], of keys and of values, each from 0 to 1e15, in any unit that is the same
 *        for all layers
 *
 * Errors, nothing is changed: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer), LK_E_DATA (a cost is out of
 * range or a NaN), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_set_costs(lk_calibrator *calibrator, uint32_t layer,
                                         const double *costs);

/* Read the costs of a layer into costs [n_kv_heads][2].
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer), LK_E_STATE (the layer has no costs yet). */
LK_API lk_status lk_calibrator_get_costs(const lk_calibrator *calibrator, uint32_t layer,
                                         double *costs);

#define LK_COST_CLIPS 2 /* clips with a cost: 0.85 and 0.7 */

/* Set the costs of clipped ranges (clip of lk_key_rule and lk_value_rule), measured like
 * lk_calibrator_set_costs() and in the same unit. When all layers have both, lk_calibrator_auto()
 * gives the keys and the values of each head the clip of least cost; otherwise it keeps whole
 * ranges. A later call replaces these costs.
 *
 * costs  [n_kv_heads][2][LK_COST_CLIPS], of keys and of values, at a clip of 0.85 and of 0.7
 *
 * Errors: as lk_calibrator_set_costs(). */
LK_API lk_status lk_calibrator_set_clip_costs(lk_calibrator *calibrator, uint32_t layer,
                                              const double *costs);

/* Read the costs of clipped ranges into costs [n_kv_heads][2][LK_COST_CLIPS].
 * Errors: as lk_calibrator_get_costs(). */
LK_API lk_status lk_calibrator_get_clip_costs(const lk_calibrator *calibrator, uint32_t layer,
                                              double *costs);

/* Kinds of sensitivity. */
typedef uint32_t lk_sensitivity;
enum {
    LK_SENSITIVITY_GRADIENT = 1, /* sum of |gradient x error|, per token */
    LK_SENSITIVITY_OUTPUT = 2    /* squared error of attention's output / squared output */
};

/* Read the sensitivity of a KV head's keys (is_value 0) or values (1) to a width.
 *
 * bits         16, 8, 4 or 2; the sensitivity to 16 bits is 0
 * sensitivity  set to a number of at least 0, which may serve as a cost for lk_solve_widths()
 *
 * Errors: LK_E_ARGUMENT (also bits), LK_E_NOT_FOUND (layer, head, kind), LK_E_STATE (the layer
 * has no samples of this kind yet). */
LK_API lk_status lk_calibrator_get_sensitivity(const lk_calibrator *calibrator, uint32_t layer,
                                               uint32_t kv_head, uint32_t is_value,
                                               lk_sensitivity kind, uint32_t bits,
                                               double *sensitivity);

/* Write the statistics as a safetensors file (docs/CALIBRATION.md). Equal statistics give equal
 * bytes.
 *
 * buffer        [capacity_bytes]; may be NULL with capacity 0
 * needed_bytes  set to the bytes of the whole file
 *
 * Errors: LK_E_ARGUMENT (also a capacity that is not 0 and too small: needed_bytes is set, nothing
 * is written), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_to_bytes(const lk_calibrator *calibrator, void *buffer,
                                        size_t capacity_bytes, size_t *needed_bytes);

/* Create a calibrator from untrusted bytes. The calibrator accepts further samples. The call takes
 * at most 64 bytes of memory and 1 us for each of n_bytes, and 1 MiB, whatever sizes the bytes
 * state.
 *
 * bytes  [n_bytes], of any alignment; read during the call
 * out    owned by the caller, destroyed by lk_calibrator_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT, LK_E_CORRUPT (the sentence names the tensor), LK_E_MISMATCH
 * (another version of the file), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_from_bytes(const void *bytes, size_t n_bytes, lk_calibrator **out);

#ifdef __cplusplus
}
#endif
#endif
