/* lowkey: PM-KVQ. Plans of ladders within a byte budget, key scales, and the solver of widths.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_PMKVQ_H
#define LOWKEY_PMKVQ_H

#include <lowkey/rope.h>
#include <lowkey/statistics.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Choose one of several widths for each item, within a byte budget, so that the sum of costs is
 * least. The answer is exact (PM-KVQ's integer program, for any sizes). The caller decides what an
 * item is (a layer, a head, its keys or its values) and what a cost is (a sensitivity, for
 * example). Equal inputs give equal answers. Any thread.
 *
 * n_items     at least 1
 * n_choices   of each item, at least 1; n_items * n_choices is at most 2^24
 * costs       [n_items][n_choices] finite, at least 0
 * bytes       [n_items][n_choices]; the largest of all items add up to at most 2^53
 * choices     [n_items] set to the index of each item's choice
 * total_cost  set to the sum of their costs; may be NULL
 *
 * Errors: LK_E_ARGUMENT, LK_E_BUDGET (even the smallest choices do not fit; the sentence has their
 * bytes), LK_E_NOMEM (many items of different sizes can leave more sums to compare than memory
 * holds). */
LK_API lk_status lk_solve_widths(uint32_t n_items, uint32_t n_choices, const double *costs,
                                 const uint64_t *bytes, uint64_t budget_bytes, uint32_t *choices,
                                 double *total_cost);

/* Read the largest |K| so far of each RoPE pair of a KV head (PM-KVQ's max_keys). Both channels of
 * a pair get the larger of their maxima; a channel that RoPE does not rotate gets its own.
 *
 * pairing   as in lk_rope
 * channels  as in lk_rope
 * maxima    [head_dim]
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer, head), LK_E_STATE (the layer has no keys yet). */
LK_API lk_status lk_calibrator_get_pair_maxima(const lk_calibrator *calibrator, uint32_t layer,
                                               uint32_t kv_head, lk_rope_pairing pairing,
                                               uint32_t channels, float *maxima);

/* Compute key scales for lk_plan_set_key_scales(): maxima^exponent, clamped to 1e-4 .. 1e4; 1 if a
 * maximum is 0. Equal maxima of a pair give equal scales, which commute with RoPE, so they may also
 * be folded into the weights of K and Q. Any thread.
 *
 * maxima    [head_dim], finite, at least 0
 * exponent  0 to 1; 0 = no scales
 * scales    [head_dim]; may be maxima
 *
 * Errors, nothing is written: LK_E_ARGUMENT. */
LK_API lk_status lk_key_scales(const float *maxima, uint32_t head_dim, double exponent,
                               float *scales);

/* Options of the search for the exponent of a layer's key scales. Start from
 * lk_scale_search_init(). */
typedef struct lk_scale_search {
    uint32_t size;           /* sizeof(lk_scale_search) */
    lk_rope_pairing pairing; /* LK_ROPE_HALVES from init */
    uint32_t channels;       /* first channels that RoPE rotates; 0, from init: all */
    uint32_t key_bits;       /* 16, 8, 4 or 2, per token; 4 from init */
    uint32_t value_bits;     /* 16, 8, 4 or 2, per token; 4 from init */
    uint32_t query_step;     /* every query_step-th query is used, counted from the last one; 1
                              * from init */
} lk_scale_search;
/* Set the defaults above. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_scale_search_init(lk_scale_search *search, size_t struct_bytes);

/* Exponents that a search tries: 1.00, 0.95 .. 0.05 and 0. */
#define LK_SCALE_EXPONENTS 21

/* Add a causal pass of a layer to its search. For each exponent, K / scale and V are quantized per
 * token and K is multiplied by the scale again; the search adds up the squared errors of the
 * attention's output, before the output projection.
 *
 * search    NULL = the defaults; all fields but query_step equal those of the layer's first pass
 * queries   [n_tokens][n_query_heads][head_dim]
 * keys      [n_tokens][n_kv_heads][head_dim]
 * values    [n_tokens][n_kv_heads][head_dim]
 * n_tokens  of the whole pass, at least 1
 *
 * The maxima are those of the keys that were added before the layer's first pass; later keys do not
 * change them. Time grows with 21 n_tokens^2 / query_step.
 *
 * Errors, nothing is changed: as lk_calibrator_add_keys(); LK_E_DATA also if the attention is not
 * finite, LK_E_STATE (the layer has no keys yet), LK_E_MISMATCH (another search than the first
 * pass's). */
LK_API lk_status lk_calibrator_add_scale_search(lk_calibrator *calibrator, uint32_t layer,
                                                const lk_scale_search *search,
                                                const lk_tensor *queries, const lk_tensor *keys,
                                                const lk_tensor *values, uint32_t n_tokens);

/* Read the error of one exponent of a layer's search.
 *
 * index     below LK_SCALE_EXPONENTS
 * exponent  set to the exponent of the index; may be NULL
 * error     set to the exponent's sum of squared errors / that of exponent 0; may be NULL
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer, index), LK_E_STATE (the layer has no search). */
LK_API lk_status lk_calibrator_get_scale_error(const lk_calibrator *calibrator, uint32_t layer,
                                               uint32_t index, double *exponent, double *error);

/* Read the key scales of a KV head at the exponent of its layer's least error; of equal errors the
 * lower exponent.
 *
 * scales    [head_dim]; may be NULL
 * exponent  set to the exponent; may be NULL
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (layer, head), LK_E_STATE (the layer has no search). */
LK_API lk_status lk_calibrator_get_key_scales(const lk_calibrator *calibrator, uint32_t layer,
                                              uint32_t kv_head, float *scales, double *exponent);

/* Options of a PM-KVQ plan. Start from lk_pmkvq_init() and set budget_bytes. */
typedef struct lk_pmkvq {
    uint32_t size;              /* sizeof(lk_pmkvq) */
    uint32_t n_widths;          /* 1 to 4; 2 from init */
    uint32_t widths[4];         /* [n_widths] final widths of layers, out of 16, 8, 4, 2,
                                 * descending; 4, 2 from init */
    lk_sensitivity sensitivity; /* 0, from init: gradients if all layers have those of K and of V,
                                 * else outputs */
    lk_scope scope;             /* LK_SCOPE_LAYER, from init: the heads of a layer end at one
                                 * width; LK_SCOPE_HEAD: each at its own */
    uint32_t separate_values;   /* 1: keys and values end at separate widths; 0 from init */
    lk_axis key_axis;           /* LK_AXIS_CHANNEL from init; LK_AXIS_TOKEN is the paper's */
    uint32_t group;             /* channels per group of values, and of keys per token: a multiple
                                 * of 16; 0, from init: the whole head. 128 is the paper's */
    uint32_t key_scales;        /* 1: the key scales of the searches, in every layer; 0 from init */
    uint32_t sink_tokens;       /* first tokens at 16 bits; 32 from init */
    uint32_t recent_tokens;     /* last tokens at 16 bits, at least; 128 from init */
    uint64_t budget_bytes;      /* of the whole cache, not 0 */
    uint64_t budget_tokens;     /* of each sequence at a full budget; 32768 from init */
    uint32_t budget_sequences;  /* 1 from init */
    uint32_t budget_step_tokens; /* 512 from init */
    uint32_t layer_budgets;      /* 1: each layer has its own share of the budget and shrinks when
                                  * that is full, as the authors run it; 0 from init */
    uint32_t reserved;           /* 0 */
} lk_pmkvq;
/* Set the defaults above. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_pmkvq_init(lk_pmkvq *options, size_t struct_bytes);

/* Make a PM-KVQ plan. Pages start at 16 bits and shrink to 8, 4 and 2 when the budget requires it.
 * PM-KVQ chooses each layer's final width: the widths of the least sum of sensitivities
 * (lk_solve_widths()) whose cache takes at most budget_bytes. The cache takes two amounts:
 * cache_bytes of lk_plan_bytes(), with the budget fields above and every ladder at its last rung,
 * and 256 KiB for pages that move while they shrink. The solver ignores the rounding to whole
 * extents, so this call searches for the largest limit of slot bytes whose plan fits. Among the
 * layers at the widest rung, the layer of least sensitivity at the narrowest of `widths` shrinks
 * first.
 *
 * With layer_budgets a layer's budget (lk_plan_set_layer_budget()) is the most bytes that the layer
 * takes at its final width while budget_sequences sequences grow to budget_tokens tokens, sinks and
 * recent tokens at 16 bits included. So a sensitive layer is wider than the others at any length,
 * not at the end alone, and the budgets last for budget_tokens tokens. Budgets of layers count no
 * rounding to whole extents, so the budget of the cache may take a layer down some blocks before
 * its own.
 *
 * A ladder belongs to a layer. If the heads of a layer, or its keys and values, end at different
 * widths, the ladder ends at the widest of them; pages of narrower ones go from 16 bits to their
 * own width at once. A layer with pages that stay at 16 bits has no ladder; its other pages are
 * packed at their final width at once.
 *
 * options  not NULL
 * out      owned by the caller, destroyed by lk_plan_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT (options; no widths), LK_E_STATE (a layer without such sensitivities, or
 * without a search for key scales), LK_E_BUDGET (even the narrowest widths do not fit; the sentence
 * has the bytes that they need), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_pmkvq(const lk_calibrator *calibrator, const lk_pmkvq *options,
                                     lk_plan **out);

#ifdef __cplusplus
}
#endif
#endif
