/* lowkey: the geometry of a model and the quantization plan of its cache.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A plan says, for every layer and KV head, at how many bits keys and values are
 * kept. Plans need no context and no device. */
#ifndef LOWKEY_PLAN_H
#define LOWKEY_PLAN_H

#include <lowkey/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One attention layer of the model. */
typedef struct lk_layer {
    uint32_t size;               /* sizeof(lk_layer); equal in all elements of an array */
    uint32_t n_query_heads;      /* a multiple of n_kv_heads, 1 to 16 times as many */
    uint32_t n_kv_heads;         /* 1 .. 1024 */
    uint32_t head_dim;           /* a multiple of 16 from 32 to 256 */
    uint32_t window_tokens;      /* a query sees this many last tokens, itself
                                  * included; 0 = all. Packed pages that lie behind the
                                  * window are given back, when the plan's sink_tokens
                                  * are no fewer than window_sink_tokens */
    uint32_t window_sink_tokens; /* the first tokens stay visible behind the
                                  * window; 0 with window_tokens 0 */
    float scale;                 /* of the logits; 0 = 1 / sqrt(head_dim) */
    float soft_cap;              /* logits become soft_cap * tanh(logit / soft_cap); 0 = off */
    const float *sink_logits;    /* [n_query_heads] a learned logit that joins each
                                  * softmax without a value; NULL = none. Read during
                                  * the call that is given the geometry. */
} lk_layer;

/* A model's attention layers. */
typedef struct lk_geometry {
    uint32_t size;          /* sizeof(lk_geometry) */
    uint32_t n_layers;      /* 1 .. 1024 */
    const lk_layer *layers; /* [n_layers], layers[0].size bytes apart */
} lk_geometry;
LK_API lk_status lk_layer_init(lk_layer *layer, size_t struct_bytes);
LK_API lk_status lk_geometry_init(lk_geometry *geometry, size_t struct_bytes);

/* The place of all layers, or of all KV heads of a layer, in the setters. */
#define LK_ALL UINT32_MAX

/* What shares one range and one minimum. */
typedef uint32_t lk_axis;
enum {
    LK_AXIS_CHANNEL = 1, /* consecutive tokens of one channel (KIVI, Kitty keys) */
    LK_AXIS_TOKEN = 2    /* consecutive channels of one token (values; PM-KVQ keys) */
};

/* How a page ranks the key channels that it boosts. Ties go to the lower channel. */
typedef uint32_t lk_ranking;
enum {
    LK_RANKING_KEY = 1,        /* mean |K| over the page (Kitty, section 3.2) */
    LK_RANKING_QUERY_RANGE = 2 /* mean |Q| of all tokens so far x range of K over the
                                * page (MixKVQ, equation 5, at Kitty's bytes) */
};

/* What the two levels of 1-bit codes are made from. */
typedef uint32_t lk_one_bit;
enum {
    LK_ONE_BIT_DEVIATION = 1, /* mean of the group - and + its mean absolute deviation: far
                               * less error, same bytes. Groups with wider codes or a number
                               * of values that is no power of two take their range */
    LK_ONE_BIT_RANGE = 2      /* lowest and highest, as at other widths (ChanMix, literally) */
};

/* Keys of a KV head. Start from lk_key_rule_init(): 16 bits, per channel. */
typedef struct lk_key_rule {
    uint32_t size;               /* sizeof(lk_key_rule) */
    uint32_t bits;               /* 1, 2, 3, 4, 8 or 16: channels without another class */
    lk_axis axis;                /* what shares a range; LK_AXIS_CHANNEL */
    uint32_t group;              /* LK_AXIS_CHANNEL: tokens, a power of two from 16 to the page.
                                  * LK_AXIS_TOKEN: channels, a multiple of 16; the last group may
                                  * be short. 0 = the whole page or head. */
    uint32_t boost_channels;     /* per page, rounded up to a multiple of 16; 0 = none */
    uint32_t boost_bits;         /* their width, above bits; 0 without boost */
    lk_ranking boost_ranking;    /* 0 without boost */
    const uint8_t *channel_bits; /* [head_dim] static classes, each 1, 2, 3, 4, 8 or
                                  * 16, or NULL. As many 1 as 3 share 2-bit slots;
                                  * every other width has a multiple of 16 channels.
                                  * Not together with boost. Copied. */
    lk_one_bit one_bit;          /* LK_ONE_BIT_DEVIATION from init; of 1-bit channels */
    float clip;                  /* the share of its range, about the middle, that a group
                                  * keeps when it is packed at 2 bits, above 0 and at most 1:
                                  * values beyond take the lowest or the highest code. Same
                                  * bytes, and with 0.7 less error for bell-shaped groups
                                  * (docs/results.md). Groups with codes of other widths and
                                  * pages that shrink to 2 bits keep theirs; 1 from init */
} lk_key_rule;

/* Values of a KV head: LK_AXIS_TOKEN. Start from lk_value_rule_init(): 16 bits. */
typedef struct lk_value_rule {
    uint32_t size;      /* sizeof(lk_value_rule) */
    uint32_t bits;      /* 1, 2, 3, 4, 8 or 16 */
    uint32_t group;     /* channels, a multiple of 16, the last may be short; 0 = head */
    lk_one_bit one_bit; /* LK_ONE_BIT_DEVIATION from init; of values at 1 bit */
    float clip;         /* of values packed at 2 bits, as of keys; 1 from init */
} lk_value_rule;
LK_API lk_status lk_key_rule_init(lk_key_rule *rule, size_t struct_bytes);
LK_API lk_status lk_value_rule_init(lk_value_rule *rule, size_t struct_bytes);

/* How ranges and minima are stored. */
typedef uint32_t lk_metadata;
enum {
    LK_METADATA_F16 = 1,
    LK_METADATA_F8 = 2 /* e4m3fnuz: bias 8, no infinity, 0x80 is NaN */
};

/* The class of a chunk, from the narrowest width to the widest (Cocktail; lowkey/chunks.h). */
typedef uint32_t lk_chunk_class;
enum {
    LK_CHUNK_NONE = 0,   /* no class: the layer's rung and the rules alone */
    LK_CHUNK_LOW = 1,    /* far from the query */
    LK_CHUNK_MIDDLE = 2, /* between */
    LK_CHUNK_HIGH = 3    /* close to the query */
};

/* Classes of chunks of a sequence's context. Chunks are consecutive runs of chunk_tokens
 * tokens, the first one behind the sinks; they are scored for each request. Start from
 * lk_chunk_rule_init(): Cocktail's own values.
 *
 * A class caps the widths of its chunks' pages, as a rung does: 2, 4, 8 or 16, each class above
 * the one before; 16 leaves the pages raw. Of scores from s_min to s_max, a chunk with score s is
 * low where s < s_min + (s_max - s_min) alpha, high where s > s_max - (s_max - s_min) beta, and
 * middle else (equations 2 to 4). */
typedef struct lk_chunk_rule {
    uint32_t size;         /* sizeof(lk_chunk_rule) */
    uint32_t chunk_tokens; /* 8 .. 256, a divisor or a multiple of page_tokens (the page itself
                            * without reorder); 32 from init. 0 = the plan has no chunks, and
                            * nothing else is read */
    uint32_t low_bits;     /* cap of LK_CHUNK_LOW; 2 from init */
    uint32_t middle_bits;  /* cap of LK_CHUNK_MIDDLE; 4 from init */
    uint32_t high_bits;    /* cap of LK_CHUNK_HIGH; 16 from init */
    float alpha;           /* of the low threshold, from 0; 0.6 from init */
    float beta;            /* of the high threshold, from 0, alpha + beta below 1; 0.1 from init */
    uint32_t reorder;      /* 1, from init: pages of one class lie together. 0: in the order of
                            * their tokens, as layers with a sliding window need them */
    uint32_t hold;         /* 1, from init: tokens behind the context stay at 16 bits.
                            * 0: their pages are packed as if there were no chunks */
} lk_chunk_rule;
/* A rule as Cocktail is published, its size set. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_chunk_rule_init(lk_chunk_rule *rule, size_t struct_bytes);

/* A quantization plan for one geometry. */
typedef struct lk_plan lk_plan;

/* Names of the presets, in order; NULL past the last. Static text. Any thread. */
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
 *   cocktail   chunks of 32 tokens at 2, 4 or 16 bits by their scores (Cocktail): keys per
 *              channel, groups of 32 tokens; values per token; 32 sinks, and what has no
 *              class, at 16 bits
 *   pm-kvq     16 bits that shrink to 8, 4 and 2 as the budget asks (PM-KVQ): a ladder of
 *              all four in every layer; keys per channel, values per token, 32 sinks and at
 *              least 128 recent tokens at 16 bits
 *   pm-kvq-paper  the same as published: keys per token too, groups of 128 channels, the
 *              first token at 16 bits (rounded up to 16 tokens) and, of the recent ones,
 *              those that do not fill a page yet, up to 128
 *
 * geometry  read during the call; the plan keeps a copy without sink_logits
 * out       owned by the caller, ended with lk_plan_destroy()
 *
 * Errors: LK_E_ARGUMENT (geometry), LK_E_NOT_FOUND (name), LK_E_NOMEM. */
LK_API lk_status lk_plan_preset(const char *name, const lk_geometry *geometry, lk_plan **out);

/* Copy a plan. Errors: LK_E_ARGUMENT, LK_E_NOMEM. */
LK_API lk_status lk_plan_copy(const lk_plan *plan, lk_plan **out);

/* Destroy *plan and set it to NULL. Caches keep their own copy. NULL is fine. */
LK_API void lk_plan_destroy(lk_plan **plan);

/* Setters. layer and kv_head may be LK_ALL. They check their own arguments;
 * lk_plan_validate() checks the whole.
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (no such layer or head), LK_E_NOMEM. */
LK_API lk_status lk_plan_set_name(lk_plan *plan, const char *name); /* 1..63 bytes */
/* The rule of a head's keys; copied. */
LK_API lk_status lk_plan_set_key(lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                 const lk_key_rule *rule);
/* The rule of a head's values; copied. */
LK_API lk_status lk_plan_set_value(lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                   const lk_value_rule *rule);
/* Subtract a constant from each key channel before it is stored, so that minima are
 * small (for FP8 metadata and keys per token): pages of every width hold k - c, and
 * attention adds scale * (q . c) to each logit, before the soft-cap. Logits, learned
 * sinks, LSEs and merges are those of the keys as given.
 *
 * centers  [head_dim], each finite and from -65504 to 65504; copied. Magnitudes below
 *          2^-24, the least of FP16, become 0. NULL = none. With LK_ALL all those
 *          layers have one head_dim.
 *
 * lk_plan_set_key() leaves them. Errors: as above. */
LK_API lk_status lk_plan_set_key_centers(lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                         const float *centers);
/* Divide each key channel by a constant lambda before it is stored, and multiply that
 * channel of the queries by it when attention reads them, so that channels of one token
 * are of one magnitude and share a range well (the representation scales of PM-KVQ,
 * which q and k weights cannot take where the model normalises them): pages of every
 * width hold (k - c) / lambda, c being the center. Logits are those of the keys as
 * given, up to rounding; docs/FORMAT.md says which.
 *
 * scales  [head_dim], each from 1e-4 to 1e4; copied. NULL = none. With LK_ALL all those
 *         layers have one head_dim.
 *
 * lk_plan_set_key() leaves them. Errors: as above. */
LK_API lk_status lk_plan_set_key_scales(lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                        const float *scales);
/* metadata: lk_metadata of the layer's keys and values */
LK_API lk_status lk_plan_set_metadata(lk_plan *plan, uint32_t layer, lk_metadata metadata);
/* page_tokens: 32, 64 or 128, tokens of a page */
LK_API lk_status lk_plan_set_pages(lk_plan *plan, uint32_t page_tokens);
/* Chunks and their classes, copied. lk_plan_validate() refuses reorder with layers that have a
 * sliding window, and chunks beside keys that are ranked by LK_RANKING_QUERY_RANGE. */
LK_API lk_status lk_plan_set_chunks(lk_plan *plan, const lk_chunk_rule *rule);
/* The first sink_tokens (a multiple of 16, at most 1024) and at least the last
 * recent_tokens (at most 65536) tokens of a sequence stay at 16 bits. */
LK_API lk_status lk_plan_set_recent(lk_plan *plan, uint32_t sink_tokens, uint32_t recent_tokens);
/* The widths that a layer may take, descending, out of 16, 8, 4, 2, and the one its
 * next pages are packed at. A rung of 16 leaves pages raw; a lower one caps every
 * class of 4 bits and more. n_rungs 0 removes the ladder. */
LK_API lk_status lk_plan_set_ladder(lk_plan *plan, uint32_t layer, const uint8_t *rungs,
                                    uint32_t n_rungs, uint32_t rung);
/* Where a layer with a ladder stands when bytes are lacking: of the layers at the widest rung,
 * that of the lowest order goes a rung down first; ties go to the lower layer. 0 .. 65535, 0 at
 * first and without a ladder. Sensitivities of a calibration, sorted, make such an order. */
LK_API lk_status lk_plan_set_shrink_order(lk_plan *plan, uint32_t layer, uint32_t order);

/* Read back. rule starts from its init. rule->channel_bits points into the plan
 * until the plan changes. Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND. */
LK_API lk_status lk_plan_get_key(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                 lk_key_rule *rule);
/* The same of a head's values. */
LK_API lk_status lk_plan_get_value(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                   lk_value_rule *rule);
/* centers: set to the plan's [head_dim], valid until the plan changes; NULL = none */
LK_API lk_status lk_plan_get_key_centers(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                         const float **centers);
/* scales: likewise */
LK_API lk_status lk_plan_get_key_scales(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                        const float **scales);
/* rungs [4] gets the layer's ladder, n_rungs its length, 0 without; rung the one that its pages
 * are packed at first, shrink_order as set. Any of the four may be NULL. */
LK_API lk_status lk_plan_get_ladder(const lk_plan *plan, uint32_t layer, uint8_t *rungs,
                                    uint32_t *n_rungs, uint32_t *rung, uint32_t *shrink_order);
/* The plan's name, valid until the plan changes; NULL for NULL. */
LK_API const char *lk_plan_name(const lk_plan *plan);
/* What lk_plan_set_pages() and lk_plan_set_recent() set; any of the three may be NULL. */
LK_API lk_status lk_plan_get_pages(const lk_plan *plan, uint32_t *page_tokens,
                                   uint32_t *sink_tokens, uint32_t *recent_tokens);
/* The plan's chunks. rule starts from its init; all its members are 0 but size in a plan without
 * chunks */
LK_API lk_status lk_plan_get_chunks(const lk_plan *plan, lk_chunk_rule *rule);

/* Width of one channel of keys (is_value 0) or values (1) in a packed page: the one
 * function of the head's rule, the channel's class, the layer's rung and the chunk's class.
 * The lower one of rung and chunk's class caps the width that the rule gives.
 *
 * rung         one of the layer's ladder; 0 = where its pages begin, or none without a ladder
 * chunk_class  LK_CHUNK_NONE = a page outside the context that has classes
 * bits         set to the width of a channel that no page boosts
 * boost_bits   set to the width that a page may raise it to (= bits without boost)
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (no such layer, head, channel or rung, or a chunk_class
 * in a plan without chunks). */
LK_API lk_status lk_plan_width(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                               uint32_t is_value, uint32_t channel, uint32_t rung,
                               lk_chunk_class chunk_class, uint32_t *bits, uint32_t *boost_bits);

/* ChanMix's own byte order (ICLR 2026, its kernels), to exchange codes of keys with
 * them: channels in another order, all codes of a token together, and the first channel
 * of a byte in its highest bits. With the running sum of widths, a code lies in byte
 * (sum - 1) / 8 of the token, shifted left by (8 - sum % 8) % 8. */
typedef struct lk_chanmix_layout {
    uint32_t size;        /* sizeof(lk_chanmix_layout) */
    uint32_t head_dim;    /* entries of each array */
    uint32_t token_bytes; /* of one token: the sum of the widths / 8 */
    uint32_t reserved;    /* 0 */
    uint8_t channel[256]; /* the head's channel at each place of ChanMix's order */
    uint8_t bits[256];    /* of that channel's code */
    uint8_t byte[256];    /* of the token's bytes */
    uint8_t shift[256];   /* of the code's lowest bit in the byte */
} lk_chanmix_layout;
LK_API lk_status lk_chanmix_layout_init(lk_chanmix_layout *layout, size_t struct_bytes);

/* The order for the keys of a KV head, at the layer's rung: 8 and 4 bits, outliers (3
 * bits) each before its partner (1 bit), 2 bits; ascending in each class.
 *
 * out  starts from its init; set on success
 *
 * Errors: LK_E_ARGUMENT (channels at 16 bits or boosted, or widths that leave a byte
 * open), LK_E_NOT_FOUND. */
LK_API lk_status lk_plan_chanmix_layout(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                        lk_chanmix_layout *out);

/* Codes to ChanMix's bytes. Any thread.
 *
 * layout  of lk_plan_chanmix_layout(), or made by the caller for any channels
 * codes   [n_tokens][head_dim] by channel, one code to a byte
 * bytes   [n_tokens][token_bytes]
 *
 * Errors: LK_E_ARGUMENT (places outside the token's bytes or on each other, channels
 * that are no permutation, a code beyond its width); nothing is written then. */
LK_API lk_status lk_chanmix_pack(const lk_chanmix_layout *layout, const uint8_t *codes,
                                 uint32_t n_tokens, uint8_t *bytes);
/* The way back, with the same arguments and errors. */
LK_API lk_status lk_chanmix_unpack(const lk_chanmix_layout *layout, const uint8_t *bytes,
                                   uint32_t n_tokens, uint8_t *codes);

/* Is the plan whole, and made for this geometry?
 * geometry  NULL = check the plan alone
 * Errors: LK_E_ARGUMENT (a rule has no meaning; the sentence names its JSON path),
 * LK_E_MISMATCH (another geometry; the sentence names the first difference). */
LK_API lk_status lk_plan_validate(const lk_plan *plan, const lk_geometry *geometry);

/* What a plan costs. Every number is exact. */
typedef struct lk_plan_size {
    uint32_t size;           /* sizeof(lk_plan_size) */
    uint32_t n_pages;        /* packed pages of one sequence of n_tokens */
    double bits_per_value;   /* of packed pages, metadata included, over all layers */
    double bytes_per_token;  /* of packed pages, over all layers, K and V */
    uint64_t fp16_bytes;     /* n_sequences x n_tokens at 16 bits, without anything else */
    uint64_t payload_bytes;  /* codes of the packed pages */
    uint64_t metadata_bytes; /* ranges, minima, permutations */
    uint64_t recent_bytes;   /* sinks and tail at 16 bits */
    uint64_t table_bytes;    /* page tables and step workspace */
    uint64_t cache_bytes;    /* the budget that holds it: tables and whole extents */
} lk_plan_size;
LK_API lk_status lk_plan_size_init(lk_plan_size *size, size_t struct_bytes);

/* Bytes for n_sequences sequences that are filled side by side to n_tokens tokens
 * each, in steps of step_tokens (the last one shorter). cache_bytes is the least
 * budget with which lk_cache_create() with max_step_tokens = n_sequences x step_tokens
 * and max_sequences = n_sequences gets there.
 * The plan is validated. Errors: as lk_plan_validate(), LK_E_ARGUMENT (a zero, or
 * a product beyond 64 bits). */
LK_API lk_status lk_plan_bytes(const lk_plan *plan, uint64_t n_tokens, uint32_t n_sequences,
                               uint32_t step_tokens, lk_plan_size *out);

/* How many chunks of a context have which class, as lk_chunks_assign() is told. */
typedef struct lk_chunk_mix {
    uint32_t size;     /* sizeof(lk_chunk_mix) */
    uint32_t n_low;    /* chunks of LK_CHUNK_LOW */
    uint32_t n_middle; /* chunks of LK_CHUNK_MIDDLE */
    uint32_t n_high;   /* chunks of LK_CHUNK_HIGH */
} lk_chunk_mix;
/* A mix of no chunks, its size set. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_chunk_mix_init(lk_chunk_mix *mix, size_t struct_bytes);

/* Bytes for n_sequences sequences of n_tokens tokens each as they are when chunks of all have got
 * their first classes: low, middle and high pages by the mix, all else at 16 bits. With
 * lk_chunk_rule.reorder, chunks that do not fill pages of their class count one class wider, as
 * they are kept.
 *
 * step_tokens  as of lk_plan_bytes(): of the cache's workspace
 * mix          its chunks and the sinks are at most n_tokens tokens
 * out          n_pages counts pages below 16 bits; bits_per_value and bytes_per_token are of pages
 *              that have a class, raw ones included, and 0 without any; cache_bytes is the least
 *              budget that holds this state. To get there a cache holds more for a while: the
 *              context at 16 bits
 *
 * The plan is validated. Errors: as lk_plan_bytes(), LK_E_ARGUMENT (a plan without chunks, a mix
 * that n_tokens do not hold). */
LK_API lk_status lk_plan_chunk_bytes(const lk_plan *plan, uint64_t n_tokens, uint32_t n_sequences,
                                     uint32_t step_tokens, const lk_chunk_mix *mix,
                                     lk_plan_size *out);

/* Write the plan as JSON (docs/PLAN.md).
 *
 * buffer        [capacity_bytes], may be NULL with capacity 0
 * needed_bytes  set to the bytes of the whole text with its zero
 *
 * Errors: LK_E_ARGUMENT (a capacity that is not 0 and too small; needed_bytes is
 * set, nothing is written), LK_E_NOMEM. */
LK_API lk_status lk_plan_to_json(const lk_plan *plan, char *buffer, size_t capacity_bytes,
                                 size_t *needed_bytes);

/* Read a plan from untrusted text.
 *
 * text      [text_bytes], need not end in a zero; at most 64 MiB
 * out       owned by the caller; NULL on failure
 *
 * Errors: LK_E_ARGUMENT, LK_E_CORRUPT (not JSON, wrong type, unknown key, value out
 * of range; the sentence names the JSON path), LK_E_MISMATCH (another format
 * version, or a geometry hash that does not fit its geometry), LK_E_NOMEM. */
LK_API lk_status lk_plan_from_json(const char *text, size_t text_bytes, lk_plan **out);

#ifdef __cplusplus
}
#endif
#endif
