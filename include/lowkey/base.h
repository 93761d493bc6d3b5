/* lowkey: status codes, versions, error sentences, tensors and queues.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Rules that hold for every header of lowkey
 *
 * - A call that can fail returns lk_status. Outputs are written on success only;
 *   an output handle is set to NULL on failure. On failure the object is as it
 *   was before the call, unless the call's comment says otherwise.
 * - After a failure lk_last_error() holds one sentence that names the value at
 *   fault, on the thread that made the call.
 * - A struct that the caller fills starts with `size`. Fill it with its
 *   lk_*_init(&s, sizeof s), then set what differs. Fields are only ever
 *   appended. A struct longer than the library knows is accepted when the bytes
 *   it does not know are zero, and refused with LK_E_UNSUPPORTED otherwise.
 * - Threads: calls that take a const handle may run beside other const calls on
 *   that handle; a call that takes a non-const handle needs it alone. Exceptions
 *   are said at the call. Handles may move between threads.
 * - Nothing is printed, no environment variable is read, nothing aborts. */
#ifndef LOWKEY_BASE_H
#define LOWKEY_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a symbol of the library is imported. LK_STATIC: link the static one on Windows. */
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

/* The release, and the version of this interface. The interface's major number
 * changes when a program compiled against older headers would break; its minor
 * number counts additions. The shared library's soname is the major number. */
#define LK_VERSION_MAJOR 0 /* of the release */
#define LK_VERSION_MINOR 1 /* of the release */
#define LK_VERSION_PATCH 0 /* of the release */
#define LK_ABI_MAJOR 0     /* of the interface */
#define LK_ABI_MINOR 1     /* of the interface */
/* The interface in one number: what lk_context_open() is told and lk_abi_version() gives. */
#define LK_ABI_VERSION ((LK_ABI_MAJOR << 16) | LK_ABI_MINOR)

/* What a call came to. A published number keeps its meaning for good. */
typedef int32_t lk_status;
enum {
    LK_OK = 0,
    /* A stated precondition does not hold: a null pointer, a size, a value out of
     * range, a tensor of the wrong shape. Correct the call. */
    LK_E_ARGUMENT = -1,
    /* The call came in the wrong order: an append without a step, a second
     * commit. Correct the order; the sentence says what is open. */
    LK_E_STATE = -2,
    /* No such id, preset or field. */
    LK_E_NOT_FOUND = -3,
    /* A valid request that this build or device cannot run. Nothing falls back:
     * choose another plan, backend or build option. */
    LK_E_UNSUPPORTED = -4,
    /* Host or device memory is exhausted. Free some and call again. */
    LK_E_NOMEM = -5,
    /* The cache's byte budget does not hold what was asked. Remove or truncate
     * sequences, raise the budget or take a smaller plan, then call again. */
    LK_E_BUDGET = -6,
    /* Untrusted bytes (a plan, a snapshot, a dump) fail validation. */
    LK_E_CORRUPT = -7,
    /* Valid bytes or a valid plan, but made for another geometry or version. */
    LK_E_MISMATCH = -8,
    /* K or V (or a sample, an embedding, a score) holds an infinity or a NaN, or a graph ran in
     * a step that it was not captured for. The open step is poisoned: discard it. On a device it
     * may be a step that was committed: see lk_step_begin(). */
    LK_E_DATA = -9,
    /* The object is in use: it has live children, or a step is open. */
    LK_E_BUSY = -10,
    /* A file or callback could not be read or written. */
    LK_E_IO = -11,
    /* The device is lost. Destroy what hangs on the context, then the context. */
    LK_E_DEVICE = -12,
    /* A defect of lowkey itself. Report it with the sentence. */
    LK_E_INTERNAL = -13
};

/* The code's name, for example "LK_E_BUDGET"; "LK_E_?" for an unknown number.
 * Static text. Any thread. */
LK_API const char *lk_status_name(lk_status status);

/* What the code means and what would do, in one sentence. Static text. Any
 * thread. */
LK_API const char *lk_status_text(lk_status status);

/* Copy this thread's last error sentence, with its terminating zero.
 *
 * buffer        [capacity_bytes], may be NULL when capacity_bytes is 0
 * needed_bytes  set to the sentence's length with its zero; may be NULL
 *
 * The sentence is cut to fit. Empty when no call has failed on this thread.
 * Errors: LK_E_ARGUMENT (NULL buffer with a capacity). */
LK_API lk_status lk_last_error(char *buffer, size_t capacity_bytes, size_t *needed_bytes);

/* The release of the library that is loaded, as "major.minor.patch". Static text. Any thread. */
LK_API const char *lk_version(void);

/* The interface of the library that is loaded: compare with LK_ABI_VERSION. Any thread. */
LK_API uint32_t lk_abi_version(void);

/* One line: version, compiler, backends, CPU paths and options of this build.
 * Static text. Any thread. */
LK_API const char *lk_build_info(void);

/* Element types of a tensor. */
typedef uint32_t lk_dtype;
enum {
    LK_F16 = 1,  /* IEEE binary16 */
    LK_BF16 = 2, /* upper half of binary32 */
    LK_F32 = 3   /* IEEE binary32 */
};

/* Where a tensor's bytes are. */
typedef uint32_t lk_memory_kind;
enum {
    LK_MEMORY_HOST = 1,  /* on the CPU; Vulkan takes it too, unless work is recorded, and copies
                          * it: inputs are free again when a call returns, and a call with
                          * outputs waits for them */
    LK_MEMORY_CUDA = 2,  /* data is memory of the context's device, or managed; host memory is
                          * refused, pinned too */
    LK_MEMORY_VULKAN = 3 /* buffer is a VkBuffer that lk_vulkan_buffer_add() made known to the
                          * context; data is NULL; strides are less than 2^32 */
};

/* A query, key, value or output tensor, [sum of n_tokens][n_heads][head_dim].
 * Token-major; the sequences of a batch lie one after the other in the order
 * given to lk_step_begin(). The channel stride is 1. The caller owns the bytes
 * and keeps them alive until the work that uses them is done. */
typedef struct lk_tensor {
    uint32_t size;         /* sizeof(lk_tensor) */
    lk_dtype dtype;        /* of the elements */
    lk_memory_kind memory; /* that they lie in */
    uint32_t flags;        /* 0 */
    void *data;            /* first element; aligned to the element */
    uint64_t buffer;       /* VkBuffer handle, else 0 */
    uint64_t offset_bytes; /* into buffer, else 0 */
    int64_t token_stride;  /* elements between tokens; at least 0 */
    int64_t head_stride;   /* elements between heads; at least 0 */
} lk_tensor;

/* Fill a tensor with zeros and its size. struct_bytes is sizeof(lk_tensor) as
 * the caller was compiled. Errors: LK_E_ARGUMENT (NULL, or a size below the
 * first published one). */
LK_API lk_status lk_tensor_init(lk_tensor *tensor, size_t struct_bytes);

/* What orders the work on a device: needed on CUDA, NULL on the CPU, NULL or not on Vulkan.
 * lowkey keeps the handle, not the struct.
 *
 * LK_QUEUE_VULKAN_SUBMIT  lowkey submits once in each call that has work, between barriers
 *   against all that the queue has before and behind it. handle is the queue that the context
 *   was opened with, or NULL, which means the same and is all that a device of lowkey's own
 *   takes; a NULL lk_queue is this without semaphores. Of a step the n-th lk_append() (n
 *   from 0) waits until wait_semaphore has reached wait_value + n, and the n-th lk_attend()
 *   signals signal_value + n; lk_merge() takes the values as they are. Semaphores need
 *   timelineSemaphore.
 * LK_QUEUE_VULKAN_RECORD  handle is a VkCommandBuffer in the recording state, outside of a
 *   render pass, of the queue's family. All work of the step, its tables and the packing of
 *   pages included, is recorded there between barriers ALL_COMMANDS, memory reads and writes;
 *   the pipeline, layout and push constants that the host had bound are lost. The host submits
 *   what was recorded once, in the order of the steps, on the context's queue, before lowkey
 *   submits or records for the cache elsewhere: before a truncation, the next step on another
 *   queue, the end of the cache. Steps of other caches of the context and lk_merge() are in
 *   that order too. Tensors are buffers; no semaphores: they belong to the host's submission. */
typedef uint32_t lk_queue_kind;
enum {
    LK_QUEUE_CUDA_STREAM = 1,   /* handle is a cudaStream_t; NULL = the legacy default stream,
                                 * which cannot be captured */
    LK_QUEUE_VULKAN_SUBMIT = 2, /* handle is a VkQueue or NULL; lowkey submits */
    LK_QUEUE_VULKAN_RECORD = 3  /* handle is a VkCommandBuffer; lowkey records */
};

/* A queue of the host: lk_queue_kind says what its members mean. */
typedef struct lk_queue {
    uint32_t size;             /* sizeof(lk_queue) */
    lk_queue_kind kind;        /* what handle is */
    void *handle;              /* a stream, a queue or a command buffer */
    uint64_t wait_semaphore;   /* VkSemaphore (timeline) to wait for, 0 for none */
    uint64_t wait_value;       /* what it waits for; 0 without a semaphore */
    uint64_t signal_semaphore; /* VkSemaphore (timeline) to signal, 0 for none */
    uint64_t signal_value;     /* what it signals; 0 without a semaphore */
} lk_queue;

/* As lk_tensor_init(). */
LK_API lk_status lk_queue_init(lk_queue *queue, size_t struct_bytes);

#ifdef __cplusplus
}
#endif
#endif
