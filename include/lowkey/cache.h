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

/* A sequence of a cache. Never 0, never used twice in one cache. */
typedef uint64_t lk_sequence;

/* What a host lets go of when a cache has no bytes left and its ladders have ended. */
typedef uint32_t lk_pressure_action;
enum {
    LK_PRESSURE_REFUSE = 0, /* nothing: the call returns LK_E_BUDGET */
    LK_PRESSURE_BUDGET = 1, /* the budget becomes budget_bytes */
    LK_PRESSURE_REMOVE = 2  /* the n_ids sequences at ids are removed */
};

/* What lk_pressure_fn is told, and answers in. */
typedef struct lk_pressure {
    uint32_t size;            /* sizeof(lk_pressure) */
    uint32_t capacity;        /* of ids */
    uint64_t shortfall_bytes; /* to what the call needs */
    uint64_t reserved_bytes;  /* as in lk_cache_stats */
    uint64_t budget_bytes;    /* the budget; LK_PRESSURE_BUDGET: set it to the new one, which is
                               * above it and at most lk_cache_desc.max_budget_bytes */
    lk_sequence *ids;         /* [capacity] LK_PRESSURE_REMOVE: write the sequences here; none of
                               * the step's */
    uint32_t n_ids;           /* LK_PRESSURE_REMOVE: how many; 0 on entry */
    uint32_t reserved;        /* 0 */
} lk_pressure;

/* Called by the thread that is in lk_step_begin(), as often as bytes are lacking after what
 * it let go of; it calls nothing of the cache itself, and answers by its action. An action
 * without meaning makes the call fail with LK_E_ARGUMENT. */
typedef lk_pressure_action (*lk_pressure_fn)(void *user, lk_pressure *pressure);

/* lk_cache_desc.flags: without a pressure callback, the sequence that a step named least
 * recently is removed when bytes are lacking, never one of the step's; its id is then
 * LK_E_NOT_FOUND. */
#define LK_CACHE_EVICT 1u

/* What a cache may take. Start from lk_cache_desc_init(). */
typedef struct lk_cache_desc {
    uint32_t size;                 /* sizeof(lk_cache_desc) */
    uint32_t max_sequences;        /* at once; 1 .. 65536; default 1 */
    uint32_t max_step_tokens;      /* tokens of one step over all its sequences; sizes the
                                    * workspace; 1 .. 1048576; default 512 */
    uint32_t flags;                /* 0 or LK_CACHE_EVICT */
    uint64_t budget_bytes;         /* hard limit of all that the cache holds: slabs, tables,
                                    * workspace; see lk_plan_bytes() */
    uint64_t slab_bytes;           /* memory is taken in blocks of this size, a multiple of
                                    * 256 KiB; 0 = 64 MiB */
    uint64_t max_budget_bytes;     /* that the budget may be raised to; 0 = budget_bytes. Tables of
                                    * a device are made for it */
    uint64_t sequence_limit_bytes; /* of pages and tables that one sequence alone has; a step
                                    * that would pass it returns LK_E_BUDGET; 0 = none */
    lk_pressure_fn pressure;       /* asked when the ladders have ended; may be NULL */
    void *pressure_user;           /* given to pressure */
} lk_cache_desc;
LK_API lk_status lk_cache_desc_init(lk_cache_desc *desc, size_t struct_bytes);

/* Create an empty cache.
 *
 * context   must outlive the cache
 * geometry  the model; read during the call
 * plan      copied
 * desc      read during the call
 * out       owned by the caller, ended with lk_cache_destroy(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT, LK_E_MISMATCH (the plan is for another geometry),
 * LK_E_UNSUPPORTED (as lk_context_supports()), LK_E_BUDGET (less than the fixed tables and
 * workspace; the sentence names the bytes needed), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_cache_create(lk_context *context, const lk_geometry *geometry,
                                 const lk_plan *plan, const lk_cache_desc *desc, lk_cache **out);

/* Destroy *cache with its sequences, an open step included, and set it to NULL. Waits
 * for queued work, on CUDA for all of the device. *cache may be NULL. */
LK_API void lk_cache_destroy(lk_cache **cache);

/* What a cache holds now. */
typedef struct lk_cache_stats {
    uint32_t size;              /* sizeof(lk_cache_stats) */
    uint32_t n_sequences;       /* that it has */
    uint64_t n_tokens;          /* committed, over all sequences */
    uint64_t budget_bytes;      /* the budget: lk_cache_set_budget() */
    uint64_t reserved_bytes;    /* counted against the budget now: slabs, tables,
                                 * workspace; never above budget_bytes */
    uint64_t payload_bytes;     /* codes of packed pages */
    uint64_t metadata_bytes;    /* ranges, minima, permutations of packed pages */
    uint64_t recent_bytes;      /* 16-bit pages: sinks, tail, raw layers */
    uint64_t table_bytes;       /* page tables */
    uint64_t workspace_bytes;   /* of the step, for max_step_tokens */
    uint64_t free_bytes;        /* in slabs and held by nothing */
    uint64_t pages_packed;      /* since the cache was created: half pages of K and of V */
    uint64_t pages_dequantized; /* likewise: packed pages that a truncation or a fork cut */
    uint64_t values_saturated;  /* finite inputs beyond FP16's range, clamped to +-65504;
                                 * on a device those that it has met by now */
    uint64_t device_bytes;      /* device memory that the budget does not count, which does not
                                 * grow with tokens: step tables, work lists, partial results,
                                 * sums of |Q| of a step's tokens; 0 on the CPU */
    uint64_t shared_bytes;      /* of payload_bytes, metadata_bytes and recent_bytes: in pages
                                 * that several sequences have, counted once */
    uint64_t pages_copied;      /* since the cache was created: half pages that were copied
                                 * because a sequence had to write to what others have */
    uint64_t pages_shrunk;      /* since the cache was created: steps that half pages went down
                                 * their layers' ladders */
    uint64_t sequences_evicted; /* removed for room, by LK_CACHE_EVICT or the pressure callback */
    uint64_t fragmented_bytes;  /* of reserved_bytes: in extents and held by no page */
    uint64_t plane_bytes[6];    /* codes of all pages by width: 16, 8, 4, 3, 2 and 1 bits */
} lk_cache_stats;
LK_API lk_status lk_cache_stats_init(lk_cache_stats *stats, size_t struct_bytes);

/* Read the statistics. Safe beside any other call on the cache. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_cache_get_stats(const lk_cache *cache, lk_cache_stats *stats);

/* The byte budget. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_cache_get_budget(const lk_cache *cache, uint64_t *budget_bytes);

/* Change the byte budget. A lower one is reached by moving pages together and by shrinking
 * them down the ladders of their layers, in the order of lk_step_begin(), as far as need be;
 * memory goes back to the context's hooks as whole blocks of slab_bytes become empty.
 *
 * budget_bytes  at most max_budget_bytes of the desc
 *
 * Errors: LK_E_ARGUMENT, LK_E_BUDGET (less than the cache holds with every page at its
 * layer's last rung; the sentence names the bytes needed; nothing changed), LK_E_BUSY (a
 * step is open), LK_E_STATE (the cache's queue is being captured into a graph), LK_E_NOMEM,
 * LK_E_DEVICE (pages may have been shrunk, the budget is as before). */
LK_API lk_status lk_cache_set_budget(lk_cache *cache, uint64_t budget_bytes);

/* Bring a layer's packed pages, and all that it packs from now on, down to a rung of its
 * ladder: codes become narrower by PM-KVQ's equivalent right shift, which rounds the value
 * of a code to the nearest one of half the width; ranges and minima stay. Pages at 16 bits
 * are packed; sinks and the recent window stay. What sequences share is shrunk for all of
 * them. A cache does the same by itself when bytes are lacking.
 *
 * layer  or LK_ALL: every layer that has the rung below its own
 * bits   8, 4 or 2: a rung of the layer's ladder, at most its present one
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (no such layer), LK_E_BUSY (a step is open),
 * LK_E_STATE (the cache's queue is being captured into a graph), LK_E_BUDGET (no bytes to
 * move pages; some may have been shrunk), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_cache_shrink(lk_cache *cache, uint32_t layer, uint32_t bits);

/* The plan that the cache runs; lives as long as the cache. NULL for NULL. */
LK_API const lk_plan *lk_cache_plan(const lk_cache *cache);

/* Has the open step, or one that was committed, met a fault? On the CPU faults are
 * returned by the call that meets them and this repeats the answer; on a device it looks
 * without waiting. Safe beside any other call.
 *
 * Errors: LK_E_ARGUMENT, LK_E_DATA (an infinity or a NaN: discard the open step; the next
 * lk_step_begin() returns that of a committed one), LK_E_DEVICE. */
LK_API lk_status lk_cache_poll(const lk_cache *cache);

/* Add an empty sequence. id set to it; 0 on failure.
 * Errors: LK_E_ARGUMENT, LK_E_BUDGET (max_sequences are there, or no bytes),
 * LK_E_NOMEM, LK_E_BUSY (a step is open). */
LK_API lk_status lk_sequence_add(lk_cache *cache, lk_sequence *id);

/* In lk_sequence_fork(): all tokens of the parent. */
#define LK_ALL_TOKENS UINT64_MAX

/* Add a sequence that begins with the first n_tokens tokens of another, of its pages.
 *
 * The two share those pages, and each is as if it had them alone: later steps, truncation
 * and removal of one never change what the other attends to, and give back what no other
 * needs. Nothing is copied now, save a page in the middle of whose packing the bytes of the
 * budget ended: the fork has it at 16 bits. A fork costs a pointer for every page_tokens
 * tokens until it takes part in a step; that step copies the kept tokens of a last page that
 * is not full (reopened, where it is packed: see lk_sequence_truncate()), unless the others
 * of the page end where this one does or before. Pages that leave the recent window are
 * packed once for all that have them; until the last of those has come as far, the 16-bit
 * page stays beside the packed one. Sums of |Q| (LK_RANKING_QUERY_RANGE) go with the fork.
 *
 * parent    a sequence of the cache, which may be a fork itself
 * n_tokens  0 .. its length, or LK_ALL_TOKENS
 * child     set to the new sequence; 0 on failure
 *
 * Errors: LK_E_ARGUMENT (n_tokens above the length), LK_E_NOT_FOUND, LK_E_BUDGET
 * (max_sequences are there, or no bytes), LK_E_NOMEM, LK_E_BUSY (a step is open),
 * LK_E_UNSUPPORTED (fewer tokens would see pages that a layer's window has left: see
 * lk_sequence_truncate()). Where a page is copied, or within chunks that lk_chunks_assign()
 * reordered, what is left of which is laid out now: LK_E_STATE (the cache's queue is being
 * captured) and LK_E_DEVICE too. */
LK_API lk_status lk_sequence_fork(lk_cache *cache, lk_sequence parent, uint64_t n_tokens,
                                  lk_sequence *child);

/* Remove a sequence and free the pages that no other has.
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND, LK_E_BUSY (a step is open). */
LK_API lk_status lk_sequence_remove(lk_cache *cache, lk_sequence id);

/* Committed tokens of a sequence. Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND. */
LK_API lk_status lk_sequence_length(const lk_cache *cache, lk_sequence id, uint64_t *n_tokens);

/* Keep the first n_tokens tokens of a sequence.
 *
 * In sinks, tail and 16-bit layers this is exact. A packed page that is cut is
 * reopened: its kept tokens become a 16-bit page with the values that its codes stand
 * for (rounded to FP16) and are packed again once it fills. Of a page that other sequences
 * have, the next step reopens or copies the kept tokens; theirs stay. The sums of |Q| that
 * rank channels (LK_RANKING_QUERY_RANGE) keep what the removed tokens of cut and packed
 * pages added.
 *
 * Errors: LK_E_ARGUMENT (n_tokens above the length), LK_E_NOT_FOUND, LK_E_BUSY (a step
 * is open), LK_E_STATE (the cache's queue is being captured into a graph), LK_E_BUDGET (no
 * bytes to reopen a page; nothing changed), LK_E_UNSUPPORTED (layers with a sliding window
 * have given back pages that n_tokens tokens would see again; the sentence names the layer
 * and the tokens; nothing changed), LK_E_NOMEM, LK_E_DEVICE.
 *
 * There is no call that removes tokens from the middle and moves the others up: a packed
 * key has the rotation of its position, and turning it would need the values that packing
 * has rounded away. A window (lk_layer.window_tokens) bounds what a sequence holds. */
LK_API lk_status lk_sequence_truncate(lk_cache *cache, lk_sequence id, uint64_t n_tokens);

#ifdef __cplusplus
}
#endif
#endif
