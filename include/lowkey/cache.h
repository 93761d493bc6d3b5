/* lowkey: caches and their sequences.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_CACHE_H
#define LOWKEY_CACHE_H

#include <lowkey/context.h>
#include <lowkey/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The key/value cache of one model: many sequences, one plan, one byte budget. */
typedef struct lk_cache lk_cache;

/* The id of a sequence. It is never 0; a cache uses no id twice. */
typedef uint64_t lk_sequence;

/* Answers of a pressure callback. */
typedef uint32_t lk_pressure_action;
enum {
    LK_PRESSURE_REFUSE = 0, /* give up nothing: the call returns LK_E_BUDGET */
    LK_PRESSURE_BUDGET = 1, /* raise the budget to budget_bytes */
    LK_PRESSURE_REMOVE = 2  /* remove the n_ids sequences at ids */
};

/* The shortfall that a pressure callback gets, with the fields of its answer. */
typedef struct lk_pressure {
    uint32_t size;            /* sizeof(lk_pressure) */
    uint32_t capacity;        /* of ids */
    uint64_t shortfall_bytes; /* bytes that the call needs beyond the budget */
    uint64_t reserved_bytes;  /* as in lk_cache_stats */
    uint64_t budget_bytes;    /* the budget. For LK_PRESSURE_BUDGET, set it to the new one: above
                               * the old one, at most lk_cache_desc.max_budget_bytes */
    lk_sequence *ids;         /* [capacity] for LK_PRESSURE_REMOVE, write the sequences here; none
                               * may belong to the step */
    uint32_t n_ids;           /* for LK_PRESSURE_REMOVE, set it to their number; 0 on entry */
    uint32_t reserved;        /* 0 */
} lk_pressure;

/* The pressure callback: the host's choice of what to give up when the ladders have ended. It runs
 * on the thread that is in lk_step_begin(), again and again while there is a shortfall. It must not
 * call lowkey with the cache. An invalid answer makes lk_step_begin() return LK_E_ARGUMENT. */
typedef lk_pressure_action (*lk_pressure_fn)(void *user, lk_pressure *pressure);

/* lk_cache_desc.flags: on a shortfall without a pressure callback, the cache removes the sequence
 * that a step named least recently, never a sequence of the open step. Calls with its id then
 * return LK_E_NOT_FOUND. */
#define LK_CACHE_EVICT 1u

/* lk_cache_desc.flags: layers with a sliding window keep the pages that their window has left, so
 * that lk_sequence_truncate() and lk_sequence_fork() can go back to any token. Without it such
 * pages are freed once they are packed, and a cut that would need them is refused. Answers are the
 * same bits; lk_cache_bytes() counts the bytes. A snapshot has the pages that its cache had: one
 * that was saved without the flag has none of the freed ones, and a cache without the flag frees
 * the kept ones in the next step of their sequence. */
#define LK_CACHE_KEEP_WINDOWED 2u

/* Options of a cache. Start from lk_cache_desc_init() and set budget_bytes. */
typedef struct lk_cache_desc {
    uint32_t size;                 /* sizeof(lk_cache_desc) */
    uint32_t max_sequences;        /* at once: 1 .. 65536; 1 from init */
    uint32_t max_step_tokens;      /* tokens of one step over all its sequences, which size the
                                    * workspace: 1 .. 1048576; 512 from init */
    uint32_t flags;                /* LK_CACHE_EVICT and LK_CACHE_KEEP_WINDOWED, or 0 */
    uint64_t budget_bytes;         /* the budget: the hard limit of all that the cache holds, slabs,
                                    * tables, workspace and states; see lk_plan_bytes(),
                                    * lk_cache_bytes(), lk_state_bytes() and below */
    uint64_t slab_bytes;           /* size of a slab, a multiple of 256 KiB; 0 = 64 MiB */
    uint64_t max_budget_bytes;     /* largest budget that lk_cache_set_budget() may set; 0 =
                                    * budget_bytes. It sizes the tables of a device */
    uint64_t sequence_limit_bytes; /* limit of the pages, tables and states that one sequence alone
                                    * holds; a step beyond it returns LK_E_BUDGET; 0 = none */
    lk_pressure_fn pressure;       /* called when the ladders have ended; may be NULL */
    void *pressure_user;           /* given to pressure */
    const uint64_t *state_bytes;   /* [n_states] bytes of each recurrent state that a sequence has
                                    * (lowkey/state.h): a multiple of 16, at least 16, 2^40 in sum;
                                    * read during the call */
    uint32_t n_states;             /* recurrent states of a sequence: at most 4096; 0 = none */
    uint32_t state_versions;       /* versions of earlier steps that a sequence keeps, the oldest go
                                    * first: at most 4096; 0, from init: the newest version alone */
    uint32_t state_interval_tokens; /* a step keeps the version before it if so many tokens lie
                                     * between that one and the version kept before: at least 1;
                                     * 64 from init */
    uint32_t reserved;              /* 0 */
} lk_cache_desc;

/* What the hooks of the context, or a device, give for a cache is never above its budget, also
 * while a call runs. A table that grows counts with all that it has space for, next to the one that
 * it replaces. Slabs count in whole: where those that are in use in part leave no space for a
 * table, the cache moves pages together and gives slabs back, or refuses with LK_E_BUDGET.
 *
 * Outside of the budget are
 *   what lk_context_open() and lk_cache_create() take, the workspace and the sequences aside: the
 *     copy of the plan, page formats, lists of the largest step
 *   up to 1280 bytes for each 256 KiB of slabs, for their own tables
 *   originals, which have a budget of their own: lk_chunks_retain()
 *   8 bytes for each new token of a step and key channel whose pages query statistics rank
 *   scratch of the context for lk_append(), lk_attend() and lk_merge(), for the largest step of its
 *     caches; and memory that a call gives back before it returns
 *   lk_cache_stats.device_bytes */
LK_API lk_status lk_cache_desc_init(lk_cache_desc *desc, size_t struct_bytes);

/* Compute the bytes of a cache before it is created: as lk_plan_bytes(), for a cache with flags.
 *
 * flags  of lk_cache_desc. LK_CACHE_KEEP_WINDOWED counts the pages that windows have left;
 *        LK_CACHE_EVICT changes nothing
 * out    starts from its init
 *
 * Errors: as lk_plan_bytes(), LK_E_ARGUMENT (an unknown flag). */
LK_API lk_status lk_cache_bytes(const lk_plan *plan, uint32_t flags, uint64_t n_tokens,
                                uint32_t n_sequences, uint32_t step_tokens, lk_plan_size *out);

/* Create an empty cache.
 *
 * context   must outlive the cache
 * geometry  the model; read during the call
 * plan      copied
 * desc      read during the call
 * out       owned by the caller, destroyed by lk_cache_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT (also a learned sink that is not finite), LK_E_MISMATCH (the plan is for
 * another geometry), LK_E_UNSUPPORTED (as lk_context_supports(); a layer's scale, soft-cap or sink
 * beyond the bounds of lk_layer), LK_E_BUDGET (less than the fixed tables and
 * workspace; the sentence names the bytes needed), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_cache_create(lk_context *context, const lk_geometry *geometry,
                                 const lk_plan *plan, const lk_cache_desc *desc, lk_cache **out);

/* Destroy *cache with its sequences, an open step included, and set it to NULL. The call waits for
 * queued work; on CUDA for all work of the device. cache and *cache may be NULL. */
LK_API void lk_cache_destroy(lk_cache **cache);

/* Counts of a cache. */
typedef struct lk_cache_stats {
    uint32_t size;              /* sizeof(lk_cache_stats) */
    uint32_t n_sequences;       /* sequences of the cache */
    uint64_t n_tokens;          /* committed tokens, over all sequences */
    uint64_t budget_bytes;      /* the budget */
    uint64_t reserved_bytes;    /* bytes in use of the budget: extents of slabs, tables, workspace,
                                 * states; never above budget_bytes */
    uint64_t payload_bytes;     /* codes of packed pages */
    uint64_t metadata_bytes;    /* ranges, minima, permutations of packed pages */
    uint64_t recent_bytes;      /* 16-bit pages: sinks, recent tokens, raw layers */
    uint64_t table_bytes;       /* block tables */
    uint64_t workspace_bytes;   /* workspace of a step of max_step_tokens */
    uint64_t free_bytes;        /* bytes of slabs that nothing uses */
    uint64_t pages_packed;      /* since the cache was created: K pages and V pages packed */
    uint64_t pages_dequantized; /* since then: packed pages cut by a truncation or a fork */
    uint64_t values_saturated;  /* since then: finite inputs beyond FP16's range, clamped to
                                 * +-65504; a device reports them when the work has run */
    uint64_t device_bytes;      /* device memory that the budget does not count and that does not
                                 * grow with tokens: step tables, work items, results of splits,
                                 * query statistics and rotated queries of a step's tokens; 0 on the
                                 * CPU */
    uint64_t shared_bytes;      /* share of payload_bytes, metadata_bytes and recent_bytes in pages
                                 * of several sequences, each counted once */
    uint64_t pages_copied;      /* since the cache was created: pages copied for a sequence that
                                 * appended to a block which it shared */
    uint64_t pages_shrunk;      /* since then: rungs that pages have gone down, over all pages */
    uint64_t sequences_evicted; /* since then: sequences removed by LK_CACHE_EVICT or by the
                                 * pressure callback */
    uint64_t fragmented_bytes;  /* share of reserved_bytes in extents that no page uses */
    uint64_t plane_bytes[6];    /* codes of all pages, by width: 16, 8, 4, 3, 2 and 1 bits */
    uint64_t state_bytes;       /* recurrent states: all versions, shared ones counted once, and
                                 * those of steps (lowkey/state.h) */
} lk_cache_stats;
LK_API lk_status lk_cache_stats_init(lk_cache_stats *stats, size_t struct_bytes);

/* Read the counts. stats starts from its init. Any thread, also during another call on the cache.
 * Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_cache_get_stats(const lk_cache *cache, lk_cache_stats *stats);

/* Read the budget. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_cache_get_budget(const lk_cache *cache, uint64_t *budget_bytes);

/* Change the budget. For a lower budget the cache compacts extents and shrinks pages down the
 * ladders of their layers, in the order of lk_step_begin(), as far as necessary. Empty slabs go
 * back to the context's hooks or to the device's driver.
 *
 * budget_bytes  at most lk_cache_desc.max_budget_bytes
 *
 * Errors: LK_E_ARGUMENT, LK_E_BUDGET (less than the cache holds with every page at its layer's last
 * rung; the sentence names the bytes needed; nothing is changed), LK_E_BUSY (a step is open),
 * LK_E_STATE (the cache's queue is being captured into a graph), LK_E_NOMEM and LK_E_DEVICE (the
 * budget is unchanged, but pages may have shrunk; so it is with LK_E_BUDGET where pages at their
 * last rungs lie in slabs that are in use in part). */
LK_API lk_status lk_cache_set_budget(lk_cache *cache, uint64_t budget_bytes);

/* Shrink a layer's packed pages to a rung of its ladder, and pack its later pages at that rung.
 * Codes become narrower by PM-KVQ's equivalent right shift, which rounds the value of a code to the
 * nearest value at half the width; ranges and minima stay. Raw pages of the layer's ladder are
 * packed; sinks and recent tokens stay at 16 bits. Shared pages shrink for all their sequences. On
 * a shortfall the cache does the same by itself.
 *
 * layer  or LK_ALL: every layer whose ladder has the rung below its present one
 * bits   8, 4 or 2: a rung of the layer's ladder, at most its present one
 *
 * Errors: LK_E_ARGUMENT (also a reading layer, which has no pages), LK_E_NOT_FOUND (no such layer),
 * LK_E_BUSY (a step is open), LK_E_STATE (the cache's queue is being captured into a graph),
 * LK_E_BUDGET (a shortfall for pages that move; some pages may have shrunk), LK_E_NOMEM,
 * LK_E_DEVICE. */
LK_API lk_status lk_cache_shrink(lk_cache *cache, uint32_t layer, uint32_t bits);

/* The cache's plan, valid as long as the cache. NULL if cache is NULL. */
LK_API const lk_plan *lk_cache_plan(const lk_cache *cache);

/* Check for a fault of the open step or of a committed one. On the CPU, the call that finds a fault
 * returns it and this call repeats it. On a device, this call reads the faults that are known
 * without waiting. Any thread, also during another call on the cache.
 *
 * Errors: LK_E_ARGUMENT, LK_E_DATA (an infinity or a NaN. In the open step: discard it. In a
 * committed step: the next lk_step_begin() returns it too), LK_E_DEVICE. */
LK_API lk_status lk_cache_poll(const lk_cache *cache);

/* Add an empty sequence.
 *
 * id  set to the new sequence; 0 on failure
 *
 * Errors: LK_E_ARGUMENT, LK_E_BUDGET (the cache has max_sequences already, or a shortfall),
 * LK_E_NOMEM, LK_E_BUSY (a step is open). */
LK_API lk_status lk_sequence_add(lk_cache *cache, lk_sequence *id);

/* As n_tokens of lk_sequence_fork(): all tokens of the parent. */
#define LK_ALL_TOKENS UINT64_MAX

/* Add a fork: a sequence that begins with the first n_tokens tokens of another.
 *
 * The two sequences share the blocks of these tokens. Sharing never changes results: steps,
 * truncation and removal of one sequence leave the tokens of the other as they are, and free only
 * blocks that no other sequence needs. Nothing is copied, except a partly packed page, which the
 * fork gets at 16 bits. A partly packed page is one whose packing the end of the budget has
 * interrupted. If the fork point lies inside reordered chunks (lk_chunks_assign()), the fork's are
 * laid out again now.
 *
 * A fork costs a pointer for every page_tokens tokens, and up to a quarter more, until its first
 * step. If its last block is
 * not full and another sequence of the block is longer, that step copies the fork's tokens of the
 * block, dequantized if they are packed (see lk_sequence_truncate()). A shared block that leaves
 * the recent tokens is packed once: the cache keeps the 16-bit block and its packed copy until the
 * block has left the recent tokens of all its sequences. Query statistics (LK_RANKING_QUERY_RANGE)
 * are copied to the fork.
 *
 * parent    a sequence of the cache, which may be a fork itself
 * n_tokens  0 .. its length, or LK_ALL_TOKENS
 * child     set to the new sequence; 0 on failure
 *
 * Errors: LK_E_ARGUMENT (n_tokens above the length), LK_E_NOT_FOUND, LK_E_BUDGET (the cache has
 * max_sequences already, or a shortfall), LK_E_NOMEM, LK_E_BUSY (a step is open), LK_E_UNSUPPORTED
 * (a layer's window has freed pages that n_tokens tokens would attend to: see
 * LK_CACHE_KEEP_WINDOWED; there is no version of the recurrent states after n_tokens tokens:
 * lk_sequence_find_state()). If the call copies a page or lays out chunks, also LK_E_STATE (the
 * cache's queue is being captured into a graph) and LK_E_DEVICE. */
LK_API lk_status lk_sequence_fork(lk_cache *cache, lk_sequence parent, uint64_t n_tokens,
                                  lk_sequence *child);

/* Remove a sequence and free the blocks that no other sequence shares.
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND, LK_E_BUSY (a step is open). */
LK_API lk_status lk_sequence_remove(lk_cache *cache, lk_sequence id);

/* Count the committed tokens of a sequence. Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND. */
LK_API lk_status lk_sequence_length(const lk_cache *cache, lk_sequence id, uint64_t *n_tokens);

/* Keep the first n_tokens tokens of a sequence.
 *
 * The cut is exact in sinks, recent tokens and 16-bit layers. A packed page that is cut is
 * dequantized: its kept tokens become a 16-bit page with the values of its codes (rounded to FP16),
 * which is packed again once it is full. If other sequences share the block, the next step copies
 * or dequantizes the kept tokens; the others keep theirs. The query statistics of
 * LK_RANKING_QUERY_RANGE keep the sums of removed tokens whose pages were packed.
 *
 * No call removes tokens from the middle of a sequence: a packed key is rotated by its position,
 * and another rotation needs the exact values that packing has rounded. A sliding window
 * (lk_layer.window_tokens) bounds the pages of a sequence.
 *
 * Errors, nothing is changed: LK_E_ARGUMENT (n_tokens above the length), LK_E_NOT_FOUND, LK_E_BUSY
 * (a step is open), LK_E_STATE (the cache's queue is being captured into a graph), LK_E_BUDGET (a
 * shortfall for a page to dequantize), LK_E_UNSUPPORTED (a layer's window has freed pages that
 * n_tokens tokens would attend to; the sentence names the layer and the tokens;
 * LK_CACHE_KEEP_WINDOWED keeps them; or there is no version of the recurrent states after n_tokens
 * tokens; the sentence names the newest one before: lk_sequence_rollback()), LK_E_NOMEM,
 * LK_E_DEVICE. */
LK_API lk_status lk_sequence_truncate(lk_cache *cache, lk_sequence id, uint64_t n_tokens);

#ifdef __cplusplus
}
#endif
#endif
