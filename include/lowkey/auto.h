/* lowkey: automatic plans, which need statistics and a limit of bits or bytes alone.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_AUTO_H
#define LOWKEY_AUTO_H

#include <lowkey/statistics.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options of an automatic plan. Start from lk_auto_init() and set at least one limit. */
typedef struct lk_auto {
    uint32_t size;               /* sizeof(lk_auto) */
    uint32_t centers;            /* 1, from init: keys are stored without their mean, see
                                  * lk_plan_set_key_centers(); 0: as they are */
    uint32_t sink_tokens;        /* first tokens at 16 bits; 32 from init */
    uint32_t recent_tokens;      /* last tokens at 16 bits, at least; 128 from init */
    double bits_per_value;       /* the plan's lk_plan_size.bits_per_value is at most this; up to
                                  * 16; 0, from init: no limit */
    uint64_t budget_bytes;       /* cache_bytes of lk_plan_bytes(), with the three fields below, is
                                  * at most this; 0, from init: no limit */
    uint64_t budget_tokens;      /* tokens of each sequence; 8192 from init */
    uint32_t budget_sequences;   /* 1 from init */
    uint32_t budget_step_tokens; /* 512 from init */
} lk_auto;
/* Set the defaults above. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_auto_init(lk_auto *options, size_t struct_bytes);

/* Make a plan from statistics and a limit. For the keys and the values of each head, the planner
 * lists widths with their bytes and their error of attention's output, and takes the widths of the
 * least total error that fit. Keys have a width for each channel (8, 4, 3, 2 or 1 bits, wider for
 * channels with larger products of query and key range), values one for each head (8, 4 or 2 bits;
 * with costs also 1). A limit below 2-bit codes in groups of 128 also brings 1 bit for values
 * without costs and for strips of 16 key channels, down to 1.125 bits at head_dim 128. Groups have
 * 128, 64 or 32 codes, metadata is FP8 or FP16, pages stay at 16 bits if the limit allows, and
 * ranges are clipped if clip costs are known. The statistics give the error of each width
 * (docs/planners.md); lk_calibrator_set_costs() makes it more precise. Equal statistics and
 * options give equal plans.
 *
 * options  not NULL
 * out      owned by the caller, destroyed by lk_plan_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT (options), LK_E_STATE (a layer without keys, queries or a probe),
 * LK_E_BUDGET (even the fewest bits do not fit; the sentence has the limit that they need),
 * LK_E_NOMEM. */
LK_API lk_status lk_calibrator_auto(const lk_calibrator *calibrator, const lk_auto *options,
                                    lk_plan **out);

#ifdef __cplusplus
}
#endif
#endif
