/* lowkey: the geometry of a model and the quantization plan of its cache.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A plan states the widths of keys and values for every layer and KV head. A plan needs no
 * context and no device. */
#ifndef LOWKEY_PLAN_H
#define LOWKEY_PLAN_H

#include <lowkey/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* lk_layer.kv_layer: the layer has keys and values of its own. */
#define LK_OWN_KV UINT32_MAX

/* lk_layer.flags: the layer is latent. It keeps keys alone: the values are the first value_dim
 * channels of the keys, as in multi-head latent attention (MLA; DeepSeek-V2 and V3: keys of 512 +
 * 64 channels, values of 512, one KV head). V pages, and so their bytes, widths and rules, are not
 * there; keys have no centers, no scales and no rotation. */
#define LK_LAYER_LATENT 1u

/* One attention layer of the model. */
typedef struct lk_layer {
    uint32_t size;               /* sizeof(lk_layer); equal in all elements of an array */
    uint32_t n_query_heads;      /* a multiple of n_kv_heads, up to 1024 times as many */
    uint32_t n_kv_heads;         /* 1 .. 1024 */
    uint32_t head_dim;           /* channels of queries and keys: a multiple of 16 from 32 to 512,
                                  * to 576 in a latent layer */
    uint32_t window_tokens;      /* sliding window: a query attends to this many last tokens, its
                                  * own included; 0 = all. Packed pages before the window are
                                  * freed if the plan's sink_tokens are at least
                                  * window_sink_tokens */
    uint32_t window_sink_tokens; /* first tokens that every query attends to as well; 0 if
                                  * window_tokens is 0 */
    float scale;                 /* factor of the logits; 0 = 1 / sqrt(head_dim). A cache takes
                                  * at most 2^60 */
    float soft_cap;              /* logits become soft_cap * tanh(logit / soft_cap); 0 = off. A
                                  * cache takes 2^-60 to 2^60 */
    const float *sink_logits;    /* [n_query_heads] learned sinks: a logit that joins the softmax
                                  * without a value; NULL = none. Finite, and at most 2^60 in a
                                  * cache. Read during the call that takes the geometry. */
    uint32_t kv_layer;           /* the KV layer: the layer whose keys and values this layer's
                                  * queries attend to. LK_OWN_KV, from init, or the layer's own
                                  * number: its own. Else an earlier layer that has its own and
                                  * equal n_kv_heads, head_dim, window_tokens, window_sink_tokens,
                                  * value_dim and flags; the other fields may differ. Such a reading
                                  * layer has no lk_append() and no bytes, its plan is the KV
                                  * layer's, and its lk_attend() comes after the KV layer's
                                  * lk_append() (Gemma 3n's num_kv_shared_layers) */
    uint32_t reserved;           /* not read */
    uint32_t value_dim;          /* channels of values and outputs: a multiple of 16 from 32 to 512;
                                  * 0, from init, = head_dim. At most head_dim in a latent layer.
                                  * lk_plan_get_layer() has 0 where both are equal */
    uint32_t flags;              /* LK_LAYER_LATENT or 0 */
} lk_layer;

/* A model's attention layers. */
typedef struct lk_geometry {
    uint32_t size;          /* sizeof(lk_geometry) */
    uint32_t n_layers;      /* 1 .. 1024 */
    const lk_layer *layers; /* [n_layers], layers[0].size bytes apart */
} lk_geometry;
/* Set kv_layer to LK_OWN_KV and all else to 0. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_layer_init(lk_layer *layer, size_t struct_bytes);
LK_API lk_status lk_geometry_init(lk_geometry *geometry, size_t struct_bytes);

/* As layer: all layers. As kv_head: all KV heads of the layer. */
#define LK_ALL UINT32_MAX

/* The direction of a group, whose codes share one range and one minimum. */
typedef uint32_t lk_axis;
enum {
    LK_AXIS_CHANNEL = 1, /* consecutive tokens of one channel (KIVI, Kitty keys) */
    LK_AXIS_TOKEN = 2    /* consecutive channels of one token (values; PM-KVQ keys) */
};

/* How a page ranks the key channels that it boosts. Ties go to the lower channel. */
typedef uint32_t lk_ranking;
enum {
    LK_RANKING_KEY = 1,        /* mean |K| over the page (Kitty, section 3.2) */
    LK_RANKING_QUERY_RANGE = 2 /* mean |Q| of the layer itself, without those of its reading
                                * layers, over all tokens so far x range of K over the page
                                * (MixKVQ, equation 5, at Kitty's bytes) */
};

/* The two values that 1-bit codes of a group stand for. */
typedef uint32_t lk_one_bit;
enum {
    LK_ONE_BIT_DEVIATION = 1, /* the group's mean - and + its mean absolute deviation: far less
                               * error in the same bytes. A group that has wider codes too, or
                               * whose number of values is no power of two, uses
                               * LK_ONE_BIT_RANGE */
    LK_ONE_BIT_RANGE = 2      /* the lowest and the highest value, as at other widths (ChanMix) */
};

/* How the keys of a KV head are packed. Start from lk_key_rule_init(): 16 bits, per channel. */
typedef struct lk_key_rule {
    uint32_t size;               /* sizeof(lk_key_rule) */
    uint32_t bits;               /* 1, 2, 3, 4, 8 or 16: width of channels without a class */
    lk_axis axis;                /* direction of a group; LK_AXIS_CHANNEL from init */
    uint32_t group;              /* LK_AXIS_CHANNEL: tokens, a power of two from 16 to
                                  * page_tokens. LK_AXIS_TOKEN: channels, a multiple of 16; the
                                  * last group may be shorter. 0 = the whole page or head. */
    uint32_t boost_channels;     /* boosted channels of each page, rounded up to a multiple of
                                  * 16; 0 = none */
    uint32_t boost_bits;         /* their width, above bits; 0 without boost */
    lk_ranking boost_ranking;    /* how a page chooses them; 0 without boost */
    const uint8_t *channel_bits; /* [head_dim] channel classes: a width of 1, 2, 3, 4, 8 or 16
                                  * for each channel; NULL = none. As many channels of 1 bit as
                                  * of 3 bits form pairs, which share 2-bit stored channels;
                                  * every other width has a multiple of 16 channels. NULL with
                                  * boost. Copied. */
    lk_one_bit one_bit;          /* of 1-bit channels; LK_ONE_BIT_DEVIATION from init */
    float clip;                  /* share of its range, about the midpoint, that a group packed
                                  * at 2 bits keeps, above 0 and at most 1; values outside take
                                  * the lowest or the highest code. The bytes stay the same; 0.7
                                  * has less error for bell-shaped groups (docs/lab/results.md).
                                  * Groups with codes of other widths, and pages that shrink to
                                  * 2 bits, keep whole ranges; 1 from init */
} lk_key_rule;

/* How the values of a KV head are packed, per token. Start from lk_value_rule_init(): 16 bits. */
typedef struct lk_value_rule {
    uint32_t size;      /* sizeof(lk_value_rule) */
    uint32_t bits;      /* 1, 2, 3, 4, 8 or 16 */
    uint32_t group;     /* channels, a multiple of 16; the last group may be shorter; 0 = the
                         * head's value_dim channels */
    lk_one_bit one_bit; /* of values at 1 bit; LK_ONE_BIT_DEVIATION from init */
    float clip;         /* as lk_key_rule.clip; 1 from init */
} lk_value_rule;
LK_API lk_status lk_key_rule_init(lk_key_rule *rule, size_t struct_bytes);
LK_API lk_status lk_value_rule_init(lk_value_rule *rule, size_t struct_bytes);

/* How ranges and minima are stored. */
typedef uint32_t lk_metadata;
enum {
    LK_METADATA_F16 = 1,
    LK_METADATA_F8 = 2 /* e4m3fnuz: bias 8, no infinity, 0x80 is NaN */
};

/* A rotation of a layer's keys before they are packed, and of the queries that meet them. */
typedef uint32_t lk_rotation;
enum {
    LK_ROTATION_NONE = 0,
    LK_ROTATION_HADAMARD = 1 /* blocks of n channels times Hadamard's matrix / sqrt(n), n being the
                              * largest power of two that divides head_dim */
};

/* Chunk classes, from the narrowest width to the widest (Cocktail; lowkey/chunks.h). */
typedef uint32_t lk_chunk_class;
enum {
    LK_CHUNK_NONE = 0,   /* no class: rules and rung alone give the width */
    LK_CHUNK_LOW = 1,    /* least relevant to the query */
    LK_CHUNK_MIDDLE = 2, /* between the two others */
    LK_CHUNK_HIGH = 3    /* most relevant to the query */
};

/* Chunks of a sequence's context and the widths of their classes. Chunks are consecutive runs of
 * chunk_tokens tokens; the first one follows the sinks. The host scores them for each request
 * (lowkey/chunks.h). Start from lk_chunk_rule_init(): Cocktail's published values.
 *
 * A class caps the widths of its chunks' pages, as a rung does, at 2, 4, 8 or 16 bits; each class
 * has a higher cap than the class before; 16 leaves the pages raw. With scores from s_min to s_max,
 * a chunk of score s is low if s < s_min + (s_max - s_min) alpha, high if
 * s > s_max - (s_max - s_min) beta, else middle (equations 2 to 4 of Cocktail). */
typedef struct lk_chunk_rule {
    uint32_t size;         /* sizeof(lk_chunk_rule) */
    uint32_t chunk_tokens; /* 8 .. 256, a divisor or a multiple of page_tokens; without reorder
                            * page_tokens itself; 32 from init. 0 = the plan has no chunks, and
                            * no other field is read */
    uint32_t low_bits;     /* cap of LK_CHUNK_LOW; 2 from init */
    uint32_t middle_bits;  /* cap of LK_CHUNK_MIDDLE; 4 from init */
    uint32_t high_bits;    /* cap of LK_CHUNK_HIGH; 16 from init */
    float alpha;           /* of the low threshold, from 0; 0.6 from init */
    float beta;            /* of the high threshold, from 0, alpha + beta below 1; 0.1 from init */
    uint32_t reorder;      /* 1, from init: blocks of one class are neighbours. 0: blocks stay in
                            * the order of their tokens, which a sliding window requires */
    uint32_t hold;         /* 1, from init: tokens after the context stay at 16 bits.
                            * 0: their pages are packed as if the plan had no chunks */
} lk_chunk_rule;
/* Set Cocktail's published values. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_chunk_rule_init(lk_chunk_rule *rule, size_t struct_bytes);

/* A quantization plan for one geometry. */
typedef struct lk_plan lk_plan;

/* Name of preset `index`, from 0; NULL after the last one. Static text. Any thread. */
LK_API const char *lk_plan_preset_name(uint32_t index);

/* Make a preset plan.
 *
 *   fp16       every page stays at 16 bits
 *   int8       keys 8 bits per channel, values 8 bits per token
 *   kivi4      keys 4 bits per channel, groups of a page (128 tokens); values 4 bits
 *              per token, groups of head_dim; 128 recent tokens at 16 bits
 *   kivi2      the same at 2 bits
 *   kitty      kivi2 with 32 sink tokens at 16 bits and 1/8 of the key channels of
 *              each page, ranked by mean |K|, at 4 bits
 *   kitty-pro  the same with 1/4 of the channels
 *   wide-keys  kitty with 3/8 of the channels, values of 1 bit, and ranges and minima as FP8
 *   wide-keys-pro  the same with values of 2 bits
 *   cocktail   chunks of 32 tokens at 2, 4 or 16 bits by their scores (Cocktail): keys per
 *              channel, groups of 32 tokens; values per token; 32 sinks, and tokens without a
 *              class, at 16 bits
 *   pm-kvq     16 bits that shrink to 8, 4 and 2 when the budget requires it (PM-KVQ): a
 *              ladder of all four in every layer; keys per channel, values per token, 32 sinks
 *              and at least 128 recent tokens at 16 bits
 *   pm-kvq-paper  the same as published: keys per token too, groups of 128 channels; at 16 bits
 *              the first token (rounded up to 16 tokens) and the last tokens that do not fill a
 *              page yet, up to 128
 *   default    lk_plan_default() without a limit; lk_plan_preset_name() does not list it
 *
 * geometry  read during the call; the plan keeps a copy without sink_logits
 * out       owned by the caller, destroyed by lk_plan_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT (geometry), LK_E_NOT_FOUND (name), LK_E_NOMEM. */
LK_API lk_status lk_plan_preset(const char *name, const lk_geometry *geometry, lk_plan **out);

/* Make the plan that, without statistics, answers best within a limit of bits; its name is
 * "default". Of the plans below, whose order is that of their answers on four proving models
 * (docs/choosing-a-plan.md), the one with the most bits within the limit is made. A model's own
 * statistics allow fewer bits: lk_calibrator_auto(). A later version may choose otherwise.
 *
 *   fp16, int8, kivi4  as presets
 *   4 and 2 bits       keys at 4 bits, values at 2, 32 sinks
 *   wide-keys-pro      with 14/16, 12/16 and 10/16 of the channels at 4 bits
 *   fewer bits         wide-keys-pro in the middle layers, wide-keys in the outer ones, each with
 *                      fewer channels at 4 bits and fewer middle layers as the limit falls; last
 *                      keys at 2 bits and values at 1
 * Groups at 2 bits of the last two keep 0.7 of a value's range, and 0.9 of a key's where at least
 * 4/16 of the channels are at 4 bits. From 2.2 to 2.4 bits on, by the geometry, the core has keys
 * at 4 bits with 2/16 of the channels at 8, and values at 2: of the 3/16 of the layers in the
 * middle those without a window. For the bits, layers count equally, also those with a window.
 *
 * geometry        read during the call; the plan keeps a copy without sink_logits
 * bits_per_value  the plan's lk_plan_size.bits_per_value is at most this; up to 16. 0 = no limit:
 *                 the narrowest plan whose answers are those of FP16 on all proving models, int8.
 *                 lk_plan_preset("default") makes it too.
 * out             owned by the caller, destroyed by lk_plan_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT, LK_E_BUDGET (even the fewest bits are more; the sentence has them),
 * LK_E_NOMEM. */
LK_API lk_status lk_plan_default(const lk_geometry *geometry, double bits_per_value, lk_plan **out);

/* Copy a plan.
 *
 * out  owned by the caller, destroyed by lk_plan_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOMEM. */
LK_API lk_status lk_plan_copy(const lk_plan *plan, lk_plan **out);

/* Destroy *plan and set it to NULL. Caches keep their own copy. plan and *plan may be NULL. */
LK_API void lk_plan_destroy(lk_plan **plan);

/* Setters. layer and kv_head may be LK_ALL. A setter checks its own arguments; lk_plan_validate()
 * checks the whole plan. The plan is unchanged on failure. A reading layer (lk_layer.kv_layer) has
 * the rules of its KV layer: a change of that layer changes both, and getters return them. A latent
 * layer has no rule for values: LK_ALL leaves it out, by its number it is refused.
 *
 * Errors of all setters: LK_E_ARGUMENT (also a reading layer by its number); those with a layer
 * also LK_E_NOT_FOUND (no such layer or head) and LK_E_NOMEM. */

/* Set the plan's name: 1 to 63 bytes before the zero; copied. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_plan_set_name(lk_plan *plan, const char *name);
/* Set the rule of a head's keys; copied. */
LK_API lk_status lk_plan_set_key(lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                 const lk_key_rule *rule);
/* Set the rule of a head's values; copied. */
LK_API lk_status lk_plan_set_value(lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                   const lk_value_rule *rule);
/* Set the centers of a head's keys: a constant c for each channel, which is subtracted before a key
 * is stored. Minima become small, which suits FP8 metadata and keys per token. Pages of every width
 * hold k - c, and attention adds scale * (q . c) to each logit before the soft-cap. So logits,
 * learned sinks, LSEs and merges are those of the original keys. lk_plan_set_key() keeps centers.
 *
 * centers  [head_dim], each finite and from -65504 to 65504; copied. Magnitudes below 2^-24, the
 *          least of FP16, become 0. NULL = none. With LK_ALL all these layers have one head_dim.
 *
 * Errors: as all setters, LK_E_ARGUMENT (centers for a latent layer, whose values would lose
 * them). */
LK_API lk_status lk_plan_set_key_centers(lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                         const float *centers);
/* Set the key scales of a head: a constant for each channel. A key is divided by it before it is
 * stored, a query is multiplied by it before attention. The channels of a token then have similar
 * magnitudes and share a range well. These are PM-KVQ's representation scales, for models whose
 * weights of Q and K cannot hold them because Q and K are normalized. Pages of every width hold
 * (k - center) / scale. Logits are those of the original keys up to the rounding that
 * docs/FORMAT.md states. lk_plan_set_key() keeps key scales.
 *
 * scales  [head_dim], each from 1e-4 to 1e4; copied. NULL = none. With LK_ALL all these layers have
 *         one head_dim.
 *
 * Errors: as all setters, LK_E_ARGUMENT (scales for a latent layer, whose values would be
 * divided by them). */
LK_API lk_status lk_plan_set_key_scales(lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                        const float *scales);
/* Set how ranges and minima of the layer's keys and values are stored. */
LK_API lk_status lk_plan_set_metadata(lk_plan *plan, uint32_t layer, lk_metadata metadata);
/* Set the rotation of a layer's keys: one for all its KV heads. A rotation spreads the channels
 * that are larger than others over all channels of their block, as QuaRot, SpinQuant (R3) and OScaR
 * do. Keys of one width gain from it, also per token, while a boost loses the channels that it
 * looks for (docs/choosing-a-plan.md). Pages of every width hold rotated keys: classes of channels,
 * boosts and ranges are of these. Centers are subtracted and scales divide before. Attention
 * rotates the queries. The matrix is orthogonal, so logits are those of the keys as given up to
 * rounding, also where keys stay at 16 bits. Bytes stay the same. A snapshot loads only into a
 * cache that rotates the same layers.
 *
 * rotation  LK_ROTATION_NONE, as in every new plan, or LK_ROTATION_HADAMARD
 *
 * Errors: as all setters, LK_E_ARGUMENT (no such rotation; a rotation for a latent layer, whose
 * values are channels of its keys and would turn with them). */
LK_API lk_status lk_plan_set_key_rotation(lk_plan *plan, uint32_t layer, lk_rotation rotation);
/* Set the tokens of a page: 32, 64 or 128. */
LK_API lk_status lk_plan_set_pages(lk_plan *plan, uint32_t page_tokens);
/* Set the chunks and the widths of their classes; copied. lk_plan_validate() refuses reorder if a
 * layer has a sliding window, and chunks if a rule ranks by LK_RANKING_QUERY_RANGE. */
LK_API lk_status lk_plan_set_chunks(lk_plan *plan, const lk_chunk_rule *rule);
/* Set the sinks and the recent tokens, which stay at 16 bits.
 *
 * sink_tokens    first tokens of a sequence: a multiple of 16, at most 1024
 * recent_tokens  last tokens of a sequence, at least so many: at most 65536 */
LK_API lk_status lk_plan_set_recent(lk_plan *plan, uint32_t sink_tokens, uint32_t recent_tokens);
/* Set the ladder of a layer. A rung of 16 leaves pages raw; a lower rung caps every channel width
 * of 4 bits and more.
 *
 * rungs    [n_rungs] widths out of 16, 8, 4, 2, descending
 * n_rungs  0 removes the ladder
 * rung     one of rungs: the width at which pages are packed first */
LK_API lk_status lk_plan_set_ladder(lk_plan *plan, uint32_t layer, const uint8_t *rungs,
                                    uint32_t n_rungs, uint32_t rung);
/* Set when a layer with a ladder shrinks: among the layers at the widest rung, the layer of the
 * lowest order goes down a rung first; of equal orders the lower layer. An order is 0 .. 65535; it
 * is 0 at first and without a ladder. Ranks of a calibration's sensitivities make such an order. */
LK_API lk_status lk_plan_set_shrink_order(lk_plan *plan, uint32_t layer, uint32_t order);
/* Set the budget of a layer with a ladder: the bytes of slots, payload and metadata, that its pages
 * may take in the whole cache, as PM-KVQ's authors give each layer a budget. When a step begins,
 * the layer goes to the widest rung, its present one or a lower one, at which its bytes with the
 * step's new blocks are within the budget, or to the last rung where no rung is. The bytes at a
 * rung are a sum over the distinct blocks of the cache, each counted once however many sequences
 * have it: pages of sinks and pages that are not packed yet count at 16 bits, packed pages at the
 * rung, also those that a snapshot has at a lower one. New pages are packed at the rung from then
 * on; the others shrink a few in each step, the oldest first: in a step at most the layer's pages
 * of 4 blocks, and of 2 blocks for each block that the step adds. A layer never goes up, and
 * lk_cache_desc.budget_bytes stays the hard limit of the cache.
 *
 * budget_bytes  at most 2^53; 0 removes the budget. With LK_ALL every layer with a ladder gets it
 *
 * Errors: as all setters, LK_E_ARGUMENT also if the layer has no ladder. lk_plan_validate()
 * refuses a budget in a plan with chunks. */
LK_API lk_status lk_plan_set_layer_budget(lk_plan *plan, uint32_t layer, uint64_t budget_bytes);

/* Read the rule of a head's keys. rule starts from its init; rule->channel_bits points into the
 * plan until the plan changes.
 *
 * Errors of all getters: LK_E_ARGUMENT, LK_E_NOT_FOUND (no such layer or head; LK_ALL is none). */
LK_API lk_status lk_plan_get_key(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                 lk_key_rule *rule);
/* Read the rule of a head's values. rule starts from its init. LK_E_NOT_FOUND for a latent layer,
 * whose values have no rule. */
LK_API lk_status lk_plan_get_value(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                   lk_value_rule *rule);
/* Read a head's centers: set to [head_dim] of the plan, valid until the plan changes; NULL = none.
 */
LK_API lk_status lk_plan_get_key_centers(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                         const float **centers);
/* Read a head's key scales: set to [head_dim] of the plan, valid until the plan changes; NULL =
 * none. */
LK_API lk_status lk_plan_get_key_scales(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                        const float **scales);
/* Read a layer's rotation. */
LK_API lk_status lk_plan_get_key_rotation(const lk_plan *plan, uint32_t layer,
                                          lk_rotation *rotation);
/* Read a layer of the geometry that the plan is made for. out starts from lk_layer_init(); its
 * sink_logits become NULL, its kv_layer LK_OWN_KV or an earlier layer. */
LK_API lk_status lk_plan_get_layer(const lk_plan *plan, uint32_t layer, lk_layer *out);
/* Read a layer's ladder. Each of the four pointers may be NULL.
 *
 * rungs         [4], set to the ladder
 * n_rungs       set to its length; 0 = no ladder
 * rung          set to the width at which pages are packed first
 * shrink_order  as lk_plan_set_shrink_order() has set it */
LK_API lk_status lk_plan_get_ladder(const lk_plan *plan, uint32_t layer, uint8_t *rungs,
                                    uint32_t *n_rungs, uint32_t *rung, uint32_t *shrink_order);
/* Read a layer's budget: set to its bytes; 0 = none. */
LK_API lk_status lk_plan_get_layer_budget(const lk_plan *plan, uint32_t layer,
                                          uint64_t *budget_bytes);
/* The plan's name, valid until the plan changes. NULL if plan is NULL. */
LK_API const char *lk_plan_name(const lk_plan *plan);
/* Read page_tokens, sink_tokens and recent_tokens. Each of the three pointers may be NULL. */
LK_API lk_status lk_plan_get_pages(const lk_plan *plan, uint32_t *page_tokens,
                                   uint32_t *sink_tokens, uint32_t *recent_tokens);
/* Read the plan's chunks. rule starts from its init. In a plan without chunks all fields but size
 * become 0. */
LK_API lk_status lk_plan_get_chunks(const lk_plan *plan, lk_chunk_rule *rule);

/* Width of one channel of keys (is_value 0) or values (1) in a packed page. It follows from the
 * head's rule, the channel's class, the layer's rung and the chunk's class: the lower of rung and
 * chunk class caps the width of the rule. The values of a latent layer have the widths of the
 * channels of its keys that they are.
 *
 * rung         one of the layer's ladder; 0 = the rung of the plan, or none without a ladder
 * chunk_class  LK_CHUNK_NONE = a page that belongs to no chunk with a class
 * bits         set to the width of the channel without boost
 * boost_bits   set to its width in a page that boosts it; equals bits if the rule has no boost
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (no such layer, head, channel or rung, or a chunk_class
 * in a plan without chunks). */
LK_API lk_status lk_plan_width(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                               uint32_t is_value, uint32_t channel, uint32_t rung,
                               lk_chunk_class chunk_class, uint32_t *bits, uint32_t *boost_bits);

/* The byte order of ChanMix's own kernels (ICLR 2026), to exchange codes of keys with them.
 * Its channels have another order, the codes of a token lie together, and the first channel of a
 * byte has the highest bits. Where `sum` is the sum of the widths up to a channel, its own
 * included, the code lies in byte (sum - 1) / 8 of the token, shifted left by
 * (8 - sum % 8) % 8. */
typedef struct lk_chanmix_layout {
    uint32_t size;        /* sizeof(lk_chanmix_layout) */
    uint32_t head_dim;    /* entries of each array */
    uint32_t token_bytes; /* of one token: the sum of the widths / 8 */
    uint32_t reserved;    /* 0 */
    uint8_t channel[256]; /* the head's channel at each position of ChanMix's order */
    uint8_t bits[256];    /* width of that channel's code */
    uint8_t byte[256];    /* index of its byte within the token */
    uint8_t shift[256];   /* of the code's lowest bit in the byte */
} lk_chanmix_layout;
LK_API lk_status lk_chanmix_layout_init(lk_chanmix_layout *layout, size_t struct_bytes);

/* ChanMix's order for the keys of a KV head, at the layer's rung: channels of 8 bits, of 4 bits,
 * outliers (3 bits) each before its partner (1 bit), channels of 2 bits; ascending in each class.
 *
 * out  starts from its init; set on success
 *
 * Errors: LK_E_ARGUMENT (channels at 16 bits or boosted, or widths that do not fill whole bytes),
 * LK_E_NOT_FOUND (layer, head). */
LK_API lk_status lk_plan_chanmix_layout(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                        lk_chanmix_layout *out);

/* Convert codes to ChanMix's bytes. Any thread.
 *
 * layout  of lk_plan_chanmix_layout(), or made by the caller for any channels
 * codes   [n_tokens][head_dim] by channel, one code per byte
 * bytes   [n_tokens][token_bytes]
 *
 * Errors, nothing is written: LK_E_ARGUMENT (codes that overlap or lie outside the token's bytes,
 * channels that are no permutation, a code beyond its width). */
LK_API lk_status lk_chanmix_pack(const lk_chanmix_layout *layout, const uint8_t *codes,
                                 uint32_t n_tokens, uint8_t *bytes);
/* Convert ChanMix's bytes to codes; arguments and errors as lk_chanmix_pack(). */
LK_API lk_status lk_chanmix_unpack(const lk_chanmix_layout *layout, const uint8_t *bytes,
                                   uint32_t n_tokens, uint8_t *codes);

/* Check that the plan is valid as a whole, and made for a geometry.
 *
 * geometry  NULL = check the plan alone
 *
 * Errors: LK_E_ARGUMENT (an invalid rule or geometry; the sentence names the JSON path),
 * LK_E_MISMATCH (the plan is for another geometry; the sentence names the first difference),
 * LK_E_NOMEM. */
LK_API lk_status lk_plan_validate(const lk_plan *plan, const lk_geometry *geometry);

/* Bytes that sequences under a plan take. Every number is exact; cache_bytes counts a block table
 * that grows together with the one that it replaces for the whole step. */
typedef struct lk_plan_size {
    uint32_t size;           /* sizeof(lk_plan_size) */
    uint32_t n_blocks;       /* packed blocks of one sequence of n_tokens */
    double bits_per_value;   /* of packed pages, metadata included, over all layers */
    double bytes_per_token;  /* of packed pages, over all layers, K and V */
    uint64_t fp16_bytes;     /* n_sequences x n_tokens at 16 bits, without tables and workspace */
    uint64_t payload_bytes;  /* codes of the packed pages */
    uint64_t metadata_bytes; /* ranges, minima, permutations of the packed pages */
    uint64_t recent_bytes;   /* sinks and recent tokens, at 16 bits */
    uint64_t table_bytes;    /* block tables and the workspace of a step */
    uint64_t cache_bytes;    /* the least budget: tables and whole extents */
} lk_plan_size;
LK_API lk_status lk_plan_size_init(lk_plan_size *size, size_t struct_bytes);

/* Bytes of n_sequences sequences of n_tokens tokens each. All sequences grow at the same time, in
 * steps of step_tokens tokens for each sequence; the last step may be shorter. cache_bytes is the
 * least budget of a cache without flags that reaches this state, with max_sequences = n_sequences
 * and max_step_tokens = n_sequences x step_tokens; lk_cache_bytes() takes flags. Pages are at the
 * rung of their layer in the plan, or below it as far as budgets of layers take them by then: the
 * state counts the rungs after the last step, and the budget also covers the wider ones before.
 *
 * out  starts from its init
 *
 * Errors: as lk_plan_validate(), LK_E_ARGUMENT (a zero, or a product beyond 64 bits). */
LK_API lk_status lk_plan_bytes(const lk_plan *plan, uint64_t n_tokens, uint32_t n_sequences,
                               uint32_t step_tokens, lk_plan_size *out);

/* Compute the rung at which budgets of layers leave a layer with n_sequences sequences of n_tokens
 * tokens each, which grow as in lk_plan_bytes().
 *
 * rung  set to the width of the rung; the plan's own rung without a budget
 *
 * Errors: as lk_plan_bytes(), LK_E_ARGUMENT (the layer has no ladder), LK_E_NOT_FOUND (layer). */
LK_API lk_status lk_plan_rung(const lk_plan *plan, uint32_t layer, uint64_t n_tokens,
                              uint32_t n_sequences, uint32_t step_tokens, uint32_t *rung);

/* Numbers of chunks of a context by the class that lk_chunks_assign() gives them. */
typedef struct lk_chunk_mix {
    uint32_t size;     /* sizeof(lk_chunk_mix) */
    uint32_t n_low;    /* chunks of LK_CHUNK_LOW */
    uint32_t n_middle; /* chunks of LK_CHUNK_MIDDLE */
    uint32_t n_high;   /* chunks of LK_CHUNK_HIGH */
} lk_chunk_mix;
/* Set all numbers to 0. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_chunk_mix_init(lk_chunk_mix *mix, size_t struct_bytes);

/* Bytes of n_sequences sequences of n_tokens tokens each after the first lk_chunks_assign() of
 * each: low, middle and high chunks by the mix, all other tokens at 16 bits. With
 * lk_chunk_rule.reorder, chunks that do not fill blocks of their class are kept, and counted, one
 * class wider.
 *
 * step_tokens  as in lk_plan_bytes(); it decides the workspace
 * mix          its chunks and the sinks are at most n_tokens tokens
 * out          starts from its init. n_blocks counts blocks below 16 bits; bits_per_value and
 *              bytes_per_token count blocks of all classes, raw ones included, and are 0 without
 *              any; cache_bytes is the least budget that holds this state. Before an assignment
 *              that follows the prefill, the cache holds more: the context at 16 bits
 *
 * Errors: as lk_plan_bytes(), LK_E_ARGUMENT (a plan without chunks, a mix of more than n_tokens
 * tokens). */
LK_API lk_status lk_plan_chunk_bytes(const lk_plan *plan, uint64_t n_tokens, uint32_t n_sequences,
                                     uint32_t step_tokens, const lk_chunk_mix *mix,
                                     lk_plan_size *out);

/* A budget with which the state of lk_plan_chunk_bytes() is reached if lk_chunks_assign() comes
 * before the prefill. The bytes suffice for every order of the classes in the context: they hold
 * the final state, the new tokens of a step at 16 bits in all layers, and for each sequence the
 * recent tokens and fewer than 5 blocks that wait at 16 bits, or than one chunk that is longer than
 * a page; docs/PLAN.md has the formula. All sequences grow at the same time, in steps of
 * step_tokens tokens for each sequence, up to n_tokens tokens in a cache with max_sequences =
 * n_sequences and max_step_tokens = n_sequences x step_tokens, without flags.
 *
 * step_tokens   of each sequence; the context's tokens divided by the model's layers make the
 *               tokens of a step as large as one layer of the context
 * mix           as in lk_plan_chunk_bytes()
 * budget_bytes  set to the budget
 *
 * Errors: as lk_plan_chunk_bytes(). */
LK_API lk_status lk_plan_chunk_prefill_bytes(const lk_plan *plan, uint64_t n_tokens,
                                             uint32_t n_sequences, uint32_t step_tokens,
                                             const lk_chunk_mix *mix, uint64_t *budget_bytes);

/* Write the plan as JSON (docs/PLAN.md).
 *
 * buffer        [capacity_bytes]; may be NULL with capacity 0
 * needed_bytes  set to the bytes of the whole text with its terminating zero
 *
 * Errors: LK_E_ARGUMENT (also a capacity that is not 0 and too small: needed_bytes is set, nothing
 * is written), LK_E_NOMEM. */
LK_API lk_status lk_plan_to_json(const lk_plan *plan, char *buffer, size_t capacity_bytes,
                                 size_t *needed_bytes);

/* Read a plan from untrusted text. The call takes at most 64 bytes of memory and 1 us for each byte
 * of text, and 1 MiB, whatever counts the text states: equal layers and heads are kept once.
 *
 * text      [text_bytes], at most 64 MiB; needs no terminating zero; read during the call
 * out       owned by the caller, destroyed by lk_plan_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT, LK_E_CORRUPT (not JSON, a wrong type, an unknown key, a value out of
 * range; the sentence names the JSON path), LK_E_MISMATCH (another format version, or a geometry
 * hash that differs from its geometry's), LK_E_NOMEM. */
LK_API lk_status lk_plan_from_json(const char *text, size_t text_bytes, lk_plan **out);

#ifdef __cplusplus
}
#endif
#endif
