/* lowkey: status codes, versions, error sentences, tensors and queues.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Rules that hold for every header of lowkey
 *
 * - A call that can fail returns lk_status. Outputs are written on success only; an output handle
 *   is set to NULL on failure. After a failure the object is as it was before the call, unless the
 *   call's comment states otherwise.
 * - After a failure, lk_last_error() on the same thread gives one sentence that names the value at
 *   fault.
 * - A call's comment lists every status that it can return, but for LK_E_INTERNAL, which any call
 *   can return, LK_E_UNSUPPORTED for the bytes of a longer struct (next rule), and LK_E_DEVICE and
 *   LK_E_NOMEM of calls on a context or a cache in a process that fork() made (lk_context).
 * - A struct that the caller fills starts with `size`. Initialize it with its
 *   lk_*_init(&s, sizeof s), then set the fields that differ; an init returns LK_E_ARGUMENT for
 *   NULL and for a size below the first published one. Later versions append fields and change
 *   none. A call accepts a struct that is longer than the library knows if the unknown bytes are
 *   zero, and returns LK_E_UNSUPPORTED otherwise. A size above LK_MAX_STRUCT_BYTES is
 *   LK_E_ARGUMENT: such a struct was not initialized, and nothing after it is read.
 * - Threads: calls that take a const handle may run at the same time as other const calls on that
 *   handle; a call that takes a non-const handle needs it alone. A call's comment states
 *   exceptions. Handles may move between threads.
 * - Floating-point mode: a call computes to the nearest, with subnormal numbers and without traps,
 *   whatever the thread's mode is, and restores that mode before it returns. Callbacks run in the
 *   mode of the call.
 * - Numbers in texts and sentences are those of the C locale, whatever locale the host has set.
 * - The library prints nothing, reads no environment variable and never aborts the process. */
#ifndef LOWKEY_BASE_H
#define LOWKEY_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a program imports the library's symbols. Define LK_STATIC to link the static library on
 * Windows. */
#if defined(_WIN32) && !defined(LK_STATIC)
#ifdef LK_BUILD
#define LK_API __declspec(dllexport)
#else
#define LK_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define LK_API __attribute__((visibility("default")))
#else
#define LK_API
#endif

/* The release, and the version of the interface. The interface's major number changes when a
 * program that was compiled with older headers would break; its minor number counts additions. The
 * shared library's soname is the interface's major number. */
#define LK_VERSION_MAJOR 0 /* of the release */
#define LK_VERSION_MINOR 2 /* of the release */
#define LK_VERSION_PATCH 0 /* of the release */
#define LK_ABI_MAJOR 0     /* of the interface */
#define LK_ABI_MINOR 2     /* of the interface */
/* The interface's version in one number, for lk_context_open() and lk_abi_version(). */
#define LK_ABI_VERSION ((LK_ABI_MAJOR << 16) | LK_ABI_MINOR)

/* Most bytes of a struct that the caller fills. */
#define LK_MAX_STRUCT_BYTES 4096

/* Results of calls. A published number keeps its meaning. */
typedef int32_t lk_status;
enum {
    LK_OK = 0,
    /* A stated precondition does not hold: a null pointer, a size, a value out of range, a tensor
     * of the wrong shape. Correct the call. */
    LK_E_ARGUMENT = -1,
    /* The call came in the wrong order: an append without a step, a second commit. Correct the
     * order; the sentence names the step or the samples that are missing or open. */
    LK_E_STATE = -2,
    /* No such id, preset or field. */
    LK_E_NOT_FOUND = -3,
    /* The request is valid, but this build or device cannot run it. The library never falls back to
     * a slower path on its own: choose another plan, backend or build option. */
    LK_E_UNSUPPORTED = -4,
    /* Host or device memory is exhausted. Free memory and call again. */
    LK_E_NOMEM = -5,
    /* The byte budget does not hold what the call needs. Remove or truncate sequences, raise the
     * budget or choose a smaller plan, then call again. */
    LK_E_BUDGET = -6,
    /* Untrusted bytes (a plan, a snapshot, a dump) fail validation. */
    LK_E_CORRUPT = -7,
    /* Valid bytes or a valid plan, but made for another geometry or version. */
    LK_E_MISMATCH = -8,
    /* K or V (or a sample, an embedding, a score) has an infinity or a NaN, or a graph ran in a
     * step that it was not captured for. The open step is poisoned: discard it. A device may report
     * this after the step's commit: see lk_step_begin(). */
    LK_E_DATA = -9,
    /* The object is in use: it has live children, or a step is open. */
    LK_E_BUSY = -10,
    /* A file could not be read or written, or a callback failed. */
    LK_E_IO = -11,
    /* The device is lost, the host's threads failed it (lk_parallel_for_fn), or this process was
     * made by fork() and the object stayed with its parent (lk_context). Destroy the context's
     * caches, then close the context. */
    LK_E_DEVICE = -12,
    /* A defect of lowkey itself. Report it with the sentence. */
    LK_E_INTERNAL = -13
};

/* The name of a status, for example "LK_E_BUDGET"; "LK_E_?" for an unknown number. Static text. Any
 * thread. */
LK_API const char *lk_status_name(lk_status status);

/* The meaning of a status and the caller's remedy, in one sentence. Static text. Any thread. */
LK_API const char *lk_status_text(lk_status status);

/* Copy this thread's last error sentence with its terminating zero. A sentence that is too long is
 * cut. It is empty if no call has failed on this thread.
 *
 * buffer        [capacity_bytes]; may be NULL with capacity 0
 * needed_bytes  set to the sentence's length with its zero; may be NULL
 *
 * Errors: LK_E_ARGUMENT (a NULL buffer with a capacity). */
LK_API lk_status lk_last_error(char *buffer, size_t capacity_bytes, size_t *needed_bytes);

/* The release of the loaded library, as "major.minor.patch". Static text. Any thread. */
LK_API const char *lk_version(void);

/* The interface version of the loaded library, to compare with LK_ABI_VERSION. Any thread. */
LK_API uint32_t lk_abi_version(void);

/* Version, compiler, backends, CPU paths and options of this build, in one line. Static text. Any
 * thread. */
LK_API const char *lk_build_info(void);

/* Element types of a tensor. */
typedef uint32_t lk_dtype;
enum {
    LK_F16 = 1,  /* IEEE binary16 */
    LK_BF16 = 2, /* upper half of binary32 */
    LK_F32 = 3   /* IEEE binary32 */
};

/* The memory that holds a tensor. */
typedef uint32_t lk_memory_kind;
enum {
    LK_MEMORY_HOST = 1,  /* host memory, for the CPU. Vulkan accepts it too, unless the queue
                          * records: it copies inputs before the call returns, and a call with
                          * outputs waits for them */
    LK_MEMORY_CUDA = 2,  /* memory of the context's device, or managed memory; host memory,
                          * pinned or not, is refused */
    LK_MEMORY_VULKAN = 3 /* buffer is a VkBuffer that lk_vulkan_buffer_add() has registered with
                          * the context; data is NULL; strides are less than 2^32 */
};

/* A query, key, value or output tensor, [sum of n_tokens][n_heads][head_dim]. The sequences of a
 * step follow one another in the order of lk_step_begin(). The channel stride is 1. The caller owns
 * the bytes and keeps them valid until the work that uses them has run. */
typedef struct lk_tensor {
    uint32_t size;         /* sizeof(lk_tensor) */
    lk_dtype dtype;        /* of the elements */
    lk_memory_kind memory; /* that holds them */
    uint32_t flags;        /* 0 */
    void *data;            /* first element; aligned to the element */
    uint64_t buffer;       /* VkBuffer handle, else 0 */
    uint64_t offset_bytes; /* into buffer, else 0 */
    int64_t token_stride;  /* elements between tokens; at least 0 */
    int64_t head_stride;   /* elements between heads; at least 0 */
} lk_tensor;

/* Fill a tensor with zeros and its size. struct_bytes is sizeof(lk_tensor) in the caller's build.
 * Errors: LK_E_ARGUMENT (NULL, or a size below the first published one). */
LK_API lk_status lk_tensor_init(lk_tensor *tensor, size_t struct_bytes);

/* The queue of a device that orders lowkey's work: required on CUDA, NULL on the CPU, optional on
 * Vulkan. lowkey keeps the handle, not the struct.
 *
 * LK_QUEUE_VULKAN_SUBMIT  lowkey submits once in each call that has work, between barriers
 *   against all earlier and later work of the queue. handle is the queue of the context, or NULL,
 *   which means that queue; on a device of lowkey's own it is NULL. A NULL lk_queue is this kind
 *   without semaphores. The n-th lk_append() of a step (n from 0) waits until wait_semaphore has
 *   reached wait_value + n, and the n-th lk_attend() signals signal_value + n; lk_merge() uses
 *   wait_value and signal_value as they are. Semaphores need timelineSemaphore.
 * LK_QUEUE_VULKAN_RECORD  handle is a VkCommandBuffer of the queue's family, in the recording
 *   state and outside of a render pass. lowkey records all work of the step there, its tables and
 *   the packing of pages included, between barriers ALL_COMMANDS, memory reads and writes. The
 *   pipeline, layout and push constants that the host had bound are lost. The host submits the
 *   commands once, in the order of the steps, on the context's queue, before lowkey submits or
 *   records work for the cache elsewhere: before a truncation, the next step on another queue, the
 *   end of the cache. One step may have several command buffers: lk_step_set_queue(). Steps of
 * other caches of the context and lk_merge() belong to that order too. Tensors are buffers. There
 * are no semaphores: the host's submission has its own. */
typedef uint32_t lk_queue_kind;
enum {
    LK_QUEUE_CUDA_STREAM = 1,   /* handle is a cudaStream_t; NULL = the legacy default stream, which
                                 * no graph can capture */
    LK_QUEUE_VULKAN_SUBMIT = 2, /* handle is a VkQueue or NULL; lowkey submits */
    LK_QUEUE_VULKAN_RECORD = 3  /* handle is a VkCommandBuffer; lowkey records */
};

/* A queue of the host; lk_queue_kind describes each kind. Start from lk_queue_init(). */
typedef struct lk_queue {
    uint32_t size;             /* sizeof(lk_queue) */
    lk_queue_kind kind;        /* of the handle */
    void *handle;              /* a stream, a queue or a command buffer */
    uint64_t wait_semaphore;   /* VkSemaphore (timeline) to wait for, 0 for none */
    uint64_t wait_value;       /* value to wait for; 0 without a semaphore */
    uint64_t signal_semaphore; /* VkSemaphore (timeline) to signal, 0 for none */
    uint64_t signal_value;     /* value to signal; 0 without a semaphore */
} lk_queue;

/* Fill a queue with zeros and its size. Errors: as lk_tensor_init(). */
LK_API lk_status lk_queue_init(lk_queue *queue, size_t struct_bytes);

#ifdef __cplusplus
}
#endif
#endif
