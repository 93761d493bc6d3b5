/* lowkey: snapshots. Sequences of a cache as bytes that any backend's cache of the same plan
 * takes back: packed pages as they are, 16-bit pages, positions, the sums that rank channels, and
 * of chunks (lowkey/chunks.h) their deferral, classes and order. What is loaded bears every verb
 * that what was saved bears, but for two things that stay behind: originals that a sequence
 * retains, with their budget, so a chunk that was packed gets no wider afterwards; and a watch on
 * attention with its scores. docs/FORMAT.md, section 16, has every byte; snapshots of older
 * versions are loaded as well.
 *
 *   lk_snapshot_save_file(cache, 0, NULL, NULL, "chat.lksnap");
 *   ...
 *   lk_snapshot_load_file(cache, NULL, "chat.lksnap", 1, &id, NULL);
 *
 * Bytes are read as untrusted: lengths, hashes, permutations, classes, ranges, positions are
 * checked on the host before they reach a device, and a load that fails leaves the cache as it
 * was. Hashes find accidents; they are no protection against intent, for which the checks are.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_SNAPSHOT_H
#define LOWKEY_SNAPSHOT_H

#include <lowkey/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Take the next bytes of a snapshot. 0 = go on; anything else ends the save with LK_E_IO. It
 * must not call lowkey with the cache. */
typedef int32_t (*lk_write_fn)(void *user, const void *data, size_t n_bytes);

/* Give the next bytes, at most n_bytes of them. The number given; 0 = there are no more;
 * negative = an error. Fewer than asked are asked for again. It must not call lowkey with the
 * cache. */
typedef int64_t (*lk_read_fn)(void *user, void *data, size_t n_bytes);

/* How far a save or a load is. 0 = go on; anything else ends it with LK_E_IO. It must not call
 * lowkey with the cache. */
typedef int32_t (*lk_progress_fn)(void *user, uint64_t done_bytes, uint64_t total_bytes);

/* Bytes of a fingerprint, at most. */
#define LK_FINGERPRINT_BYTES 256

/* What a save and a load have beside the sequences. Start from lk_snapshot_desc_init(). */
typedef struct lk_snapshot_desc {
    uint32_t size;              /* sizeof(lk_snapshot_desc) */
    uint32_t fingerprint_bytes; /* at most LK_FINGERPRINT_BYTES; 0 = none */
    const void *fingerprint;    /* the host's name of the model: its weights' hash, its RoPE and
                                 * whatever else K and V depend on. Saved as it is; a load
                                 * refuses a snapshot of any other, none included. */
    lk_progress_fn progress;    /* after each piece of at most 1 MiB; may be NULL */
    void *progress_user;        /* given to progress */
} lk_snapshot_desc;
LK_API lk_status lk_snapshot_desc_init(lk_snapshot_desc *desc, size_t struct_bytes);

/* Save sequences. What is queued on the cache's queue is waited for; of a step that was
 * recorded (LK_QUEUE_VULKAN_RECORD) the host submitted the commands before. The cache stays
 * as it is, and so does what is saved of it: the same sequences give the same bytes.
 *
 * n_sequences  0 = all of the cache, in the order of their ids; ids is NULL then
 * ids          [n_sequences], each once
 * desc         NULL = no fingerprint, no progress
 *
 * Bytes go out in order, in pieces of at most 1 MiB but for the plan and the lists of rows; the
 * library keeps one such piece, not the whole. Rows of tokens that sequences share are written
 * once, but for the row in which a sequence ends.
 *
 * Errors of all: LK_E_ARGUMENT, LK_E_NOT_FOUND (an id), LK_E_BUSY (a step is open),
 * LK_E_STATE (the cache's queue is being captured into a graph), LK_E_NOMEM, LK_E_DEVICE, LK_E_IO
 * (the callback's, the file's). */

/* To a callback. */
LK_API lk_status lk_snapshot_save(lk_cache *cache, uint32_t n_sequences, const lk_sequence *ids,
                                  const lk_snapshot_desc *desc, lk_write_fn write, void *user);

/* To memory.
 *
 * buffer        [capacity_bytes], may be NULL with capacity 0
 * needed_bytes  set to the whole's size, also when the buffer is too small; may be NULL
 *
 * Also LK_E_ARGUMENT for a capacity that is neither 0 nor enough; nothing is written. */
LK_API lk_status lk_snapshot_save_memory(lk_cache *cache, uint32_t n_sequences,
                                         const lk_sequence *ids, const lk_snapshot_desc *desc,
                                         void *buffer, uint64_t capacity_bytes,
                                         uint64_t *needed_bytes);

/* To a file, in place of what has its name: written to PATH.partial, which is flushed to the
 * disk and renamed, and so is the folder. After a crash at any time PATH is the old file or the
 * new one, whole; a PATH.partial that stays is taken over by the next save. Two saves to one path
 * at once: one of them fails with LK_E_IO. */
LK_API lk_status lk_snapshot_save_file(lk_cache *cache, uint32_t n_sequences,
                                       const lk_sequence *ids, const lk_snapshot_desc *desc,
                                       const char *path);

/* Load all sequences of a snapshot into a cache, beside those that it has.
 *
 * desc         the fingerprint must equal the snapshot's; NULL = none
 * ids          [capacity], set to the new sequences' ids in the snapshot's order
 * n_sequences  set to their number, also when capacity is too small; may be NULL
 *
 * Errors: LK_E_ARGUMENT (capacity is less than the snapshot's sequences), LK_E_BUSY (a step is
 * open), LK_E_STATE (the cache's queue is being captured), LK_E_CORRUPT (the sentence says
 * what does not fit), LK_E_MISMATCH (another format version, geometry, plan or fingerprint: the
 * sentence names both), LK_E_BUDGET (no room for the sequences or their bytes), LK_E_NOMEM,
 * LK_E_DEVICE, LK_E_IO. The cache is unchanged by any of them. */
LK_API lk_status lk_snapshot_load(lk_cache *cache, const lk_snapshot_desc *desc, lk_read_fn read,
                                  void *user, uint32_t capacity, lk_sequence *ids,
                                  uint32_t *n_sequences);

/* From memory.
 *
 * data  [n_bytes], the whole snapshot and nothing behind it; it may not change during the call */
LK_API lk_status lk_snapshot_load_memory(lk_cache *cache, const lk_snapshot_desc *desc,
                                         const void *data, uint64_t n_bytes, uint32_t capacity,
                                         lk_sequence *ids, uint32_t *n_sequences);

/* From the file at path. */
LK_API lk_status lk_snapshot_load_file(lk_cache *cache, const lk_snapshot_desc *desc,
                                       const char *path, uint32_t capacity, lk_sequence *ids,
                                       uint32_t *n_sequences);

/* What a snapshot holds, without a cache. Any thread; a handle as a const one. */
typedef struct lk_snapshot lk_snapshot;

/* Read a snapshot whole and check it as a load would, but for the plan of a cache.
 *
 * out  owned by the caller, ended with lk_snapshot_close(); it keeps counts, not pages
 *
 * Errors: LK_E_ARGUMENT, LK_E_CORRUPT, LK_E_MISMATCH (format version), LK_E_NOMEM, LK_E_IO. */
LK_API lk_status lk_snapshot_open_memory(const void *data, uint64_t n_bytes, lk_snapshot **out);
/* The same of the file at path. */
LK_API lk_status lk_snapshot_open_file(const char *path, lk_snapshot **out);

/* End *snapshot and set it to NULL. NULL is fine. */
LK_API void lk_snapshot_close(lk_snapshot **snapshot);

/* A snapshot as a whole. */
typedef struct lk_snapshot_info {
    uint32_t size;                             /* sizeof(lk_snapshot_info) */
    uint32_t version;                          /* of the format */
    uint32_t n_sequences;                      /* that it holds */
    uint32_t n_formats;                        /* kinds of half pages */
    uint64_t total_bytes;                      /* of the snapshot */
    uint64_t n_tokens;                         /* over all sequences */
    uint64_t n_blocks;                         /* of pages; shared ones count once */
    uint64_t geometry_hash;                    /* of the model that it was saved for */
    uint64_t plan_hash;                        /* of lk_snapshot_plan() */
    uint32_t fingerprint_bytes;                /* 0 = none */
    uint8_t fingerprint[LK_FINGERPRINT_BYTES]; /* as in lk_snapshot_desc, then zeros */
    uint32_t reserved;                         /* 0 */
} lk_snapshot_info;
LK_API lk_status lk_snapshot_info_init(lk_snapshot_info *info, size_t struct_bytes);
/* What the snapshot says of itself; info starts from its init. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_snapshot_get_info(const lk_snapshot *snapshot, lk_snapshot_info *info);

/* The plan that was saved with it; lives as long as the handle. NULL for NULL. */
LK_API const lk_plan *lk_snapshot_plan(const lk_snapshot *snapshot);

/* A sequence of a snapshot. */
typedef struct lk_snapshot_sequence {
    uint32_t size;            /* sizeof(lk_snapshot_sequence) */
    uint32_t flags;           /* 0 */
    lk_sequence id;           /* in the cache that saved it */
    uint64_t n_tokens;        /* committed */
    uint64_t n_blocks;        /* of pages that it has */
    uint64_t n_shared_blocks; /* those of them that a sequence before it has too */
} lk_snapshot_sequence;
LK_API lk_status lk_snapshot_sequence_init(lk_snapshot_sequence *sequence, size_t struct_bytes);

/* Sequence `index` of the snapshot, from 0; sequence starts from its init.
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND. */
LK_API lk_status lk_snapshot_get_sequence(const lk_snapshot *snapshot, uint32_t index,
                                          lk_snapshot_sequence *sequence);

/* A kind of half page and what the snapshot has of it. */
typedef struct lk_snapshot_format {
    uint32_t size;           /* sizeof(lk_snapshot_format) */
    uint32_t is_value;       /* 0 keys, 1 values */
    uint32_t head_dim;       /* channels of a head */
    uint32_t page_tokens;    /* tokens of a page */
    uint32_t channels[6];    /* at 16, 8, 4, 3, 2 and 1 bits */
    uint64_t n_pages;        /* of this kind */
    uint64_t payload_bytes;  /* of all of them */
    uint64_t metadata_bytes; /* likewise */
} lk_snapshot_format;
LK_API lk_status lk_snapshot_format_init(lk_snapshot_format *kind, size_t struct_bytes);

/* Kind `index` of the snapshot, from 0; kind starts from its init.
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND. */
LK_API lk_status lk_snapshot_get_format(const lk_snapshot *snapshot, uint32_t index,
                                        lk_snapshot_format *kind);

#ifdef __cplusplus
}
#endif
#endif
