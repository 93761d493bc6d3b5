/* lowkey: ChanMix plans, which choose the width of each key channel by its range.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_CHANMIX_H
#define LOWKEY_CHANMIX_H

#include <lowkey/statistics.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Pages of a retrieval head that stay at 4 bits. */
typedef uint32_t lk_retrieval;
enum {
    LK_RETRIEVAL_NONE = 1, /* none: a plan without retrieval heads */
    LK_RETRIEVAL_KEY = 2,
    LK_RETRIEVAL_KEY_VALUE = 3
};

/* Options of a ChanMix plan. Start from lk_chanmix_init(). */
typedef struct lk_chanmix {
    uint32_t size;          /* sizeof(lk_chanmix) */
    lk_retrieval retrieval; /* LK_RETRIEVAL_KEY_VALUE from init */
    lk_scope scope;         /* channels that are clustered together; LK_SCOPE_HEAD from init */
    uint32_t outliers;      /* 1, from init: outliers at 3 bits and as many subnormal channels at
                             * 1 bit; 0: all channels at 2 bits */
    uint32_t centers;       /* 1, from init: keys are stored without their mean, see
                             * lk_plan_set_key_centers(); 0: as they are */
    lk_metadata metadata;   /* LK_METADATA_F8 from init */
    uint32_t group;         /* codes of a group, along the tokens of keys and the channels of
                             * values, where a head's channels are the most: 16, 32, 64 or 128;
                             * 32 from init */
    uint32_t sink_tokens;   /* first tokens at 16 bits; 32 from init */
    uint32_t recent_tokens; /* last tokens at 16 bits, at least; 128 from init */
    /* The share of all KV heads, 0 to 1 and rounded to the nearest head, that become retrieval
     * heads: those of the highest scores; of equal scores the lower layer, then the lower head.
     * -1, from init: 0.3, or 0.19 if every query head has a KV head of its own; with a budget, as
     * many heads as fit. */
    double retrieval_share;
    /* 0, from init: no limit. Else the plan has fewer retrieval heads where cache_bytes of
     * lk_plan_bytes(), with the three fields below, would exceed budget_bytes. */
    uint64_t budget_bytes;
    uint64_t budget_tokens;      /* tokens of each sequence; 8192 from init */
    uint32_t budget_sequences;   /* 1 from init */
    uint32_t budget_step_tokens; /* 512 from init */
    lk_one_bit one_bit;          /* of 1-bit channels: LK_ONE_BIT_DEVIATION from init;
                                  * LK_ONE_BIT_RANGE is the paper's */
    uint32_t reserved;           /* 0 */
} lk_chanmix;
/* Set the defaults above. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_chanmix_init(lk_chanmix *options, size_t struct_bytes);

/* Make a ChanMix plan. Retrieval heads have 4 bits. In the other heads, outlier channels have 3
 * bits and normal channels 2; as many subnormal channels as there are outliers have 1 bit, those
 * of the smallest ranges, and the rest 2. If there are more outliers than subnormal channels, the
 * outliers of the largest ranges have 3 bits and the rest 2. So a head that is no retrieval head
 * takes the bytes of 2 bits for every channel. Values are per token, at 4 bits in retrieval heads
 * with LK_RETRIEVAL_KEY_VALUE, else at 2.
 *
 * options  NULL = the defaults
 * out      owned by the caller, destroyed by lk_plan_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT (options), LK_E_STATE (a layer without keys, or without a probe if the
 * plan has retrieval heads), LK_E_BUDGET (even a plan without retrieval heads does not fit; the
 * sentence has the bytes that it needs), LK_E_NOMEM. */
LK_API lk_status lk_calibrator_chanmix(const lk_calibrator *calibrator, const lk_chanmix *options,
                                       lk_plan **out);

#ifdef __cplusplus
}
#endif
#endif
