/* lowkey: recurrent state. A hybrid model has layers between its attention layers that keep a state
 * of a fixed size for each sequence: linear attention, convolutions. A cache stores these states as
 * bytes next to the keys and values (lk_cache_desc.state_bytes), and the verbs of a sequence take
 * them along: a commit advances them, a fork shares them, a truncation returns to earlier ones, a
 * snapshot has them, the budget counts them. The library never reads the bytes.
 *
 *   lk_step_begin(cache, queue, n, ids, counts, NULL);
 *   for each recurrent layer r, for each i < n:
 *       lk_step_state(cache, i, r, &state);
 *       read the state before the new tokens at state.data, write the state after them there
 *   append and attend the attention layers
 *   lk_step_commit(cache, NULL);
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_STATE_H
#define LOWKEY_STATE_H

#include <lowkey/step.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A version is all states of a sequence after a number of its tokens. A sequence has the version
 * after its last committed token, and of those after earlier steps the ones that
 * lk_cache_desc.state_interval_tokens and state_versions keep. The version after 0 tokens is zeros
 * and takes no bytes. lk_sequence_truncate() and lk_sequence_fork() need the version after n_tokens
 * and return LK_E_UNSUPPORTED without it; lk_sequence_rollback() and lk_sequence_find_state() find
 * one.
 *
 * On a device the step's queue orders all copies of states, which lk_step_begin() and
 * lk_snapshot_save() make: a copy of the version that the sequence had, for a discard, and a copy
 * to the bytes of lk_step_state() if these do not hold it from the last step. */

/* The bytes of one state in the open step. */
typedef struct lk_state {
    uint32_t size;         /* sizeof(lk_state) */
    lk_memory_kind memory; /* LK_MEMORY_HOST on the CPU, LK_MEMORY_CUDA, LK_MEMORY_VULKAN */
    void *data;            /* first byte, aligned to 64; NULL on Vulkan */
    uint64_t buffer;       /* Vulkan: a VkBuffer with the usages storage buffer, shader device
                            * address, transfer source and transfer destination; else 0 */
    uint64_t offset_bytes; /* Vulkan: of the first byte in the buffer; else 0 */
    uint64_t bytes;        /* of the state, as lk_cache_desc.state_bytes has them */
} lk_state;
/* Fill a state with zeros and its size. Errors: as lk_tensor_init(). */
LK_API lk_status lk_state_init(lk_state *state, size_t struct_bytes);

/* Find the bytes of a state in the open step. From the begin on they hold the state after the
 * sequence's last committed token, and the host writes the state after its new tokens there, with
 * work on the step's queue. At the commit they are the state after the last kept token: a host that
 * keeps a part of the tokens writes the state after that part before it commits. A state that the
 * host does not write stays as it was. The host touches the bytes between begin and commit alone.
 *
 * The place depends on `sequence` and `state` alone and stays the same for the cache's life, so a
 * captured graph may hold it.
 *
 * sequence  index of the sequence in the step, as in ids of lk_step_begin()
 * state     index of the state, as in lk_cache_desc.state_bytes
 * out       starts from its init
 *
 * Errors: LK_E_ARGUMENT (an index; out), LK_E_STATE (no step is open), LK_E_UNSUPPORTED (a Vulkan
 * context with a device of its own, whose buffers the host cannot reach: lk_step_read_state()). */
LK_API lk_status lk_step_state(const lk_cache *cache, uint32_t sequence, uint32_t state,
                               lk_state *out);

/* Copy a state of the open step to host memory. The call waits for the queue's work.
 *
 * sequence  and state: as lk_step_state()
 * to        [bytes]
 * bytes     those of the state
 *
 * Errors: LK_E_ARGUMENT, LK_E_STATE (no step is open; the queue is being captured into a graph),
 * LK_E_UNSUPPORTED (the queue records: LK_QUEUE_VULKAN_RECORD), LK_E_NOMEM, LK_E_DEVICE. */
LK_API lk_status lk_step_read_state(lk_cache *cache, uint32_t sequence, uint32_t state, void *to,
                                    uint64_t bytes);

/* Copy host memory to a state of the open step, after the queue's work; done when it returns.
 *
 * sequence  and state: as lk_step_state()
 * from      [bytes]
 * bytes     those of the state
 *
 * Errors: as lk_step_read_state(). */
LK_API lk_status lk_step_write_state(lk_cache *cache, uint32_t sequence, uint32_t state,
                                     const void *from, uint64_t bytes);

/* Find the newest version at or before a token: the length that lk_sequence_rollback() leaves, and
 * that lk_sequence_fork() can fork at.
 *
 * n_tokens  0 .. the sequence's length, or LK_ALL_TOKENS
 * found     set to the tokens of the version; n_tokens in a cache without states
 *
 * Errors: LK_E_ARGUMENT (n_tokens above the length), LK_E_NOT_FOUND. */
LK_API lk_status lk_sequence_find_state(const lk_cache *cache, lk_sequence id, uint64_t n_tokens,
                                        uint64_t *found);

/* Truncate a sequence to the newest version at or before a token. The host computes the tokens
 * between the two again.
 *
 * n_tokens  as lk_sequence_find_state()
 * kept      set to the sequence's new length, at most n_tokens
 *
 * Errors: as lk_sequence_truncate() to that length. */
LK_API lk_status lk_sequence_rollback(lk_cache *cache, lk_sequence id, uint64_t n_tokens,
                                      uint64_t *kept);

/* Compute the bytes that the states of a cache take in its budget, at most: those of n_sequences
 * sequences with all their versions, and of a step of them. lk_cache_bytes() leaves them out.
 *
 * desc   its state_bytes, n_states, state_versions and state_interval_tokens
 * bytes  set to the bytes; 0 without states
 *
 * Errors: LK_E_ARGUMENT (as lk_cache_create(); n_sequences is not 1 .. 65536), LK_E_NOMEM. */
LK_API lk_status lk_state_bytes(const lk_cache_desc *desc, uint32_t n_sequences, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
