/* lowkey: snapshots. A snapshot is sequences of a cache as bytes, which a cache of the same plan
 * can load on any backend: packed pages as they are, 16-bit pages, positions, query statistics,
 * versions of recurrent states (lowkey/state.h), and the deferral, classes and order of chunks
 * (lowkey/chunks.h). A loaded sequence supports every
 * operation that the saved one did. A snapshot leaves out three things: the originals of chunks
 * with their budget, so packed chunks cannot become wider after a load, requested attention scores,
 * and the classes of chunks that are still to come, whose sequence is deferred instead.
 * docs/FORMAT.md, section 16, defines every byte. Snapshots of older versions can be loaded.
 *
 *   lk_snapshot_save_file(cache, 0, NULL, NULL, "chat.lksnap");
 *   ...
 *   lk_snapshot_load_file(cache, NULL, "chat.lksnap", 1, &id, NULL);
 *
 * A load trusts no byte: it checks lengths, hashes, permutations, classes, ranges and positions on
 * the host before they reach a device, and a load that fails leaves the cache unchanged. A snapshot
 * of another geometry is refused by its hash, before its plan is parsed. Hashes
 * detect accidental damage; the other checks protect against intended damage.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_SNAPSHOT_H
#define LOWKEY_SNAPSHOT_H

#include <lowkey/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the next bytes of a snapshot. Returns 0 to continue; any other number ends the save with
 * LK_E_IO. It must not call lowkey with the cache. */
typedef int32_t (*lk_write_fn)(void *user, const void *data, size_t n_bytes);

/* Reads the next bytes of a snapshot, at most n_bytes. Returns the number of bytes read; 0 = end of
 * the snapshot; negative = an error, which ends the load with LK_E_IO. After fewer than n_bytes,
 * lowkey calls it again for the rest. It must not call lowkey with the cache. */
typedef int64_t (*lk_read_fn)(void *user, void *data, size_t n_bytes);

/* Reports the progress of a save, a load or lk_snapshot_open(). Returns 0 to continue; any other
 * number ends the call with LK_E_IO. It must not call lowkey with the cache.
 *
 * An exception that leaves one of these three callbacks ends there, and the call returns LK_E_IO.
 */
typedef int32_t (*lk_progress_fn)(void *user, uint64_t done_bytes, uint64_t total_bytes);

/* Most bytes of a fingerprint. */
#define LK_FINGERPRINT_BYTES 256

/* Options of a save or a load. Start from lk_snapshot_desc_init(). */
typedef struct lk_snapshot_desc {
    uint32_t size;              /* sizeof(lk_snapshot_desc) */
    uint32_t fingerprint_bytes; /* at most LK_FINGERPRINT_BYTES; 0 = none */
    const void *fingerprint;    /* the host's identity of the model: a hash of its weights, its
                                 * RoPE and all else that K and V depend on. A load refuses a
                                 * snapshot with another fingerprint, or with none. */
    lk_progress_fn progress;    /* called after each chunk of at most 1 MiB; may be NULL */
    void *progress_user;        /* given to progress */
} lk_snapshot_desc;
LK_API lk_status lk_snapshot_desc_init(lk_snapshot_desc *desc, size_t struct_bytes);

/* Save sequences, through a callback, to memory or to a file. The call waits for the cache's queue;
 * the host has submitted the commands of a recorded step (LK_QUEUE_VULKAN_RECORD) before. The cache
 * stays unchanged. Equal sequences give equal bytes.
 *
 * n_sequences  0 = all sequences of the cache, in the order of their ids; ids is NULL then
 * ids          [n_sequences], each once
 * desc         NULL = no fingerprint, no progress
 *
 * Bytes are written in order, at most 1 MiB at a time except for the plan and the block tables; the
 * library buffers no more than that. Shared blocks are written once, except the block in which a
 * sequence ends.
 *
 * Errors of all: LK_E_ARGUMENT, LK_E_NOT_FOUND (an id), LK_E_BUSY (a step is open), LK_E_STATE
 * (the cache's queue is being captured into a graph), LK_E_NOMEM, LK_E_DEVICE, LK_E_IO (a callback
 * has ended the save, or the file cannot be written). */

/* Save to a callback. */
LK_API lk_status lk_snapshot_save(lk_cache *cache, uint32_t n_sequences, const lk_sequence *ids,
                                  const lk_snapshot_desc *desc, lk_write_fn write, void *user);

/* Save to memory.
 *
 * buffer        [capacity_bytes]; may be NULL with capacity 0
 * needed_bytes  set to the bytes of the snapshot, also if the buffer is too small; may be NULL
 *
 * Errors: as above; LK_E_ARGUMENT also for a capacity that is not 0 and too small: nothing is
 * written. */
LK_API lk_status lk_snapshot_save_memory(lk_cache *cache, uint32_t n_sequences,
                                         const lk_sequence *ids, const lk_snapshot_desc *desc,
                                         void *buffer, uint64_t capacity_bytes,
                                         uint64_t *needed_bytes);

/* Save to a file, which replaces an older file of that name. The save writes PATH.partial, flushes
 * it to the disk, renames it and flushes the folder. After a crash at any time, PATH is the old
 * file or the new one, complete; the next save removes a PATH.partial that was left. Of two
 * simultaneous saves to one path, one returns LK_E_IO.
 *
 * path  a free name or the name of a file, in a folder that the process may write to; relative to
 *       the current folder when the call begins. A link is not followed: pass the path that
 *       realpath() gives. A link, a folder, a device, a pipe or a socket at PATH or at PATH.partial
 *       stays as it is, and the save returns LK_E_IO
 *
 * The new file has the mode, the access list, the owner and the group of the old file. An owner or
 * a group that the process may not set is the process's own; if it is the group, the group has no
 * access and others have at most what the old group had. Without an old file, the mode is 0666 less
 * the process's umask. Other hard links to the old file keep its bytes.
 *
 * LK_E_IO leaves PATH as it was, except when only the flush of the folder failed: PATH is then the
 * new file, and the sentence says so. */
LK_API lk_status lk_snapshot_save_file(lk_cache *cache, uint32_t n_sequences,
                                       const lk_sequence *ids, const lk_snapshot_desc *desc,
                                       const char *path);

/* Load all sequences of a snapshot into a cache, in addition to the cache's own sequences.
 *
 * desc         its fingerprint must equal the snapshot's; NULL = no fingerprint, no progress
 * read         reads the snapshot from its first byte
 * user         given to read
 * ids          [capacity], set to the ids of the new sequences in the snapshot's order
 * n_sequences  set to their number, also if the capacity is too small; may be NULL
 *
 * Errors, the cache is unchanged: LK_E_ARGUMENT (also a capacity below the snapshot's number of
 * sequences), LK_E_BUSY (a step is open), LK_E_STATE (the cache's queue is being captured into a
 * graph), LK_E_CORRUPT (the sentence names the check that failed), LK_E_MISMATCH (another format
 * version, geometry, plan, size of recurrent states or fingerprint: the sentence names both),
 * LK_E_BUDGET (max_sequences or the budget does not hold the sequences), LK_E_NOMEM, LK_E_DEVICE,
 * LK_E_IO (a callback has ended the load, or the file cannot be read). */
LK_API lk_status lk_snapshot_load(lk_cache *cache, const lk_snapshot_desc *desc, lk_read_fn read,
                                  void *user, uint32_t capacity, lk_sequence *ids,
                                  uint32_t *n_sequences);

/* Load from memory; errors as lk_snapshot_load().
 *
 * data  [n_bytes], the snapshot and no byte after it; unchanged during the call */
LK_API lk_status lk_snapshot_load_memory(lk_cache *cache, const lk_snapshot_desc *desc,
                                         const void *data, uint64_t n_bytes, uint32_t capacity,
                                         lk_sequence *ids, uint32_t *n_sequences);

/* Load from the file at path, or from the file that a link at path leads to; errors as
 * lk_snapshot_load(). A folder, a device, a pipe or a socket is LK_E_IO at once. */
LK_API lk_status lk_snapshot_load_file(lk_cache *cache, const lk_snapshot_desc *desc,
                                       const char *path, uint32_t capacity, lk_sequence *ids,
                                       uint32_t *n_sequences);

/* The contents of a snapshot, to be read without a cache. Any threads may read a handle at once. */
typedef struct lk_snapshot lk_snapshot;

/* Read a whole snapshot and check it as a load does, except against the plan of a cache. The
 * call takes at most 64 bytes of memory and 1 us for each byte of the snapshot, and 1 MiB.
 *
 * data  [n_bytes], the snapshot and no byte after it; read during the call
 * out   owned by the caller, closed by lk_snapshot_close(); it keeps counts, not pages; NULL on
 *       failure
 *
 * Errors: LK_E_ARGUMENT, LK_E_CORRUPT (the sentence names the check that failed), LK_E_MISMATCH
 * (another format version), LK_E_NOMEM. */
LK_API lk_status lk_snapshot_open_memory(const void *data, uint64_t n_bytes, lk_snapshot **out);
/* Read the snapshot in the file at path, as lk_snapshot_load_file() finds it; out and errors as
 * lk_snapshot_open_memory(), LK_E_IO (the file cannot be read). */
LK_API lk_status lk_snapshot_open_file(const char *path, lk_snapshot **out);

/* Read a snapshot through a callback, with progress.
 *
 * desc  its progress is called after each chunk and can end the call; its fingerprint is not
 *       compared; NULL = no progress
 * read  reads the snapshot from its first byte
 * user  given to read
 * out   and errors as lk_snapshot_open_memory(); LK_E_IO if a callback has ended the call */
LK_API lk_status lk_snapshot_open(const lk_snapshot_desc *desc, lk_read_fn read, void *user,
                                  lk_snapshot **out);

/* Free *snapshot and set it to NULL. snapshot and *snapshot may be NULL. */
LK_API void lk_snapshot_close(lk_snapshot **snapshot);

/* A snapshot as a whole. */
typedef struct lk_snapshot_info {
    uint32_t size;                             /* sizeof(lk_snapshot_info) */
    uint32_t version;                          /* of the format */
    uint32_t n_sequences;                      /* sequences of the snapshot */
    uint32_t n_formats;                        /* page formats of the snapshot */
    uint64_t total_bytes;                      /* of the snapshot */
    uint64_t n_tokens;                         /* over all sequences */
    uint64_t n_blocks;                         /* shared blocks count once */
    uint64_t geometry_hash;                    /* of the saved cache's model */
    uint64_t plan_hash;                        /* of lk_snapshot_plan() */
    uint32_t fingerprint_bytes;                /* 0 = none */
    uint8_t fingerprint[LK_FINGERPRINT_BYTES]; /* as in lk_snapshot_desc, then zeros */
    uint32_t reserved;                         /* 0 */
    uint64_t n_state_versions;                 /* versions of recurrent states; shared ones count
                                                * once */
    uint64_t version_bytes;                    /* of the states of a version */
    uint32_t n_states;                         /* recurrent states of a sequence */
    uint32_t reserved2;                        /* 0 */
} lk_snapshot_info;
LK_API lk_status lk_snapshot_info_init(lk_snapshot_info *info, size_t struct_bytes);
/* Describe the snapshot. info starts from its init. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_snapshot_get_info(const lk_snapshot *snapshot, lk_snapshot_info *info);

/* The plan of the saved cache, valid as long as the handle. NULL if snapshot is NULL. */
LK_API const lk_plan *lk_snapshot_plan(const lk_snapshot *snapshot);

/* A sequence of a snapshot. */
typedef struct lk_snapshot_sequence {
    uint32_t size;            /* sizeof(lk_snapshot_sequence) */
    uint32_t flags;           /* 0 */
    lk_sequence id;           /* in the saved cache */
    uint64_t n_tokens;        /* committed tokens */
    uint64_t n_blocks;        /* blocks of the sequence */
    uint64_t n_shared_blocks; /* blocks that it shares with an earlier sequence */
} lk_snapshot_sequence;
LK_API lk_status lk_snapshot_sequence_init(lk_snapshot_sequence *sequence, size_t struct_bytes);

/* Describe sequence `index` of the snapshot, from 0. sequence starts from its init.
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (index). */
LK_API lk_status lk_snapshot_get_sequence(const lk_snapshot *snapshot, uint32_t index,
                                          lk_snapshot_sequence *sequence);

/* A page format, and the pages of a snapshot that have it. */
typedef struct lk_snapshot_format {
    uint32_t size;           /* sizeof(lk_snapshot_format) */
    uint32_t is_value;       /* 0 keys, 1 values */
    uint32_t head_dim;       /* channels of a head */
    uint32_t page_tokens;    /* tokens of a page */
    uint32_t channels[6];    /* channels at 16, 8, 4, 3, 2 and 1 bits */
    uint64_t n_pages;        /* pages of this format */
    uint64_t payload_bytes;  /* of all these pages */
    uint64_t metadata_bytes; /* of all these pages */
} lk_snapshot_format;
LK_API lk_status lk_snapshot_format_init(lk_snapshot_format *format, size_t struct_bytes);

/* Describe page format `index` of the snapshot, from 0. format starts from its init.
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (index). */
LK_API lk_status lk_snapshot_get_format(const lk_snapshot *snapshot, uint32_t index,
                                        lk_snapshot_format *format);

#ifdef __cplusplus
}
#endif
#endif
