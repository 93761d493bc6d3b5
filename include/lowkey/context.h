/* lowkey: devices, contexts, capabilities, allocator and log callbacks.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_CONTEXT_H
#define LOWKEY_CONTEXT_H

#include <lowkey/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Backends. */
typedef uint32_t lk_backend;
enum { LK_BACKEND_CPU = 1, LK_BACKEND_CUDA = 2, LK_BACKEND_VULKAN = 3 };

/* One device that a context can be opened on. */
typedef struct lk_device_info {
    uint32_t size;         /* sizeof(lk_device_info) */
    lk_backend backend;    /* of the device */
    uint32_t index;        /* among the devices of its backend */
    uint32_t n_threads;    /* CPU: the context's threads (with parallel_for, its tasks), or, before
                            * there is a context, those that lk_context_desc.n_threads = 0 gives it;
                            * else 0 */
    uint64_t memory_bytes; /* total memory */
    uint64_t free_bytes;   /* memory available now: MemAvailable on the CPU and on integrated
                            * devices, which share it */
    char name[128];        /* zero-terminated */
    char features[128];    /* zero-terminated, for example "avx2 fma f16c", "sm_90 132 SMs" or
                            * "Vulkan 1.3 subgroup 32 fp16 timeline" */
} lk_device_info;
LK_API lk_status lk_device_info_init(lk_device_info *info, size_t struct_bytes);

/* Count the devices of this machine for the backends of this build. Any thread.
 *
 * count  set to the number
 *
 * Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_device_count(uint32_t *count);

/* Describe a device. Any thread.
 *
 * ordinal  0 .. count - 1 of lk_device_count()
 * info     starts from lk_device_info_init()
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND (ordinal). */
LK_API lk_status lk_device_get(uint32_t ordinal, lk_device_info *info);

/* Allocates host memory: returns `bytes` bytes aligned to `alignment` (a power of two, at most
 * 4096), or NULL, upon which the call of lowkey returns LK_E_NOMEM. Runs on any thread that uses
 * the context. */
typedef void *(*lk_alloc_fn)(void *user, size_t bytes, size_t alignment);

/* Frees memory of lk_alloc_fn; bytes and alignment are those of the allocation. Runs on any thread
 * that uses the context. */
typedef void (*lk_free_fn)(void *user, void *pointer, size_t bytes, size_t alignment);

/* Levels of log messages. */
typedef uint32_t lk_log_level;
enum { LK_LOG_ERROR = 1, LK_LOG_WARNING = 2, LK_LOG_INFO = 3, LK_LOG_DEBUG = 4 };

/* Receives a log message: one sentence without a newline. Runs on any thread that calls lowkey,
 * never after lk_context_close() has returned. It must not call lowkey. */
typedef void (*lk_log_fn)(void *user, lk_log_level level, const char *message);

/* Bits of cpu_mask. Each disables a fast path or an instruction set beyond the architecture's
 * baseline, so that one machine can test every path. */
enum {
    LK_CPU_REFERENCE_ONLY = 0x1, /* the reference alone computes every answer */
    LK_CPU_NO_AVX2 = 0x2,
    LK_CPU_NO_AVX512 = 0x4,
    LK_CPU_NO_NEON = 0x8
};

/* One task of an lk_parallel_for_fn: does a share of the work of a call of lowkey and returns. It
 * waits for no other task, calls no callback of the host, computes in the floating-point mode of a
 * call and restores that of its thread. It leaves signal masks as they are. */
typedef void (*lk_task_fn)(void *task_data, uint32_t index);

/* Runs tasks on threads of the host: calls task(task_data, i) once for each i in 0 .. n_tasks - 1,
 * and returns when all of these calls have returned.
 *
 * n_tasks    2 .. the context's n_threads
 * task       may run on any threads, the calling one included, in any order, at once or one after
 *            another: the bits of every result are those of a single thread. Tasks take pieces of
 *            the work until there are none, so a task that begins late finds less to do, and
 *            n_tasks may be above the number of threads
 * task_data  valid until the callback returns
 *
 * It runs on the thread that is in a call on the context or its caches, and never twice at once for
 * a context: calls on other caches of the context wait. Work of one piece has no callback, nor has
 * a context with n_threads 1.
 *
 * It must not call lowkey with the context or its caches, nor wait for a thread that is in such a
 * call; so a thread that takes up other work of the host while it waits (as Rayon's and TBB's do)
 * must take none that makes such a call. Do not end a thread that is in a task.
 *
 * lowkey counts the tasks. If one is left out, runs twice, has another index or runs outside of the
 * callback, this call and every later one that reads or writes pages returns LK_E_DEVICE, and the
 * sentence names the task. Outputs of the failed call are undefined. A task that is not the first
 * of its index does nothing, and a callback that returns early makes the call wait for the tasks
 * that have begun. */
typedef void (*lk_parallel_for_fn)(void *user, uint32_t n_tasks, lk_task_fn task, void *task_data);

struct lk_vulkan_desc; /* lowkey/vulkan.h */

/* Options of a context. Start from lk_context_desc_init(). */
typedef struct lk_context_desc {
    uint32_t size;                       /* sizeof(lk_context_desc) */
    lk_backend backend;                  /* LK_BACKEND_CPU from init */
    uint32_t device_index;               /* lk_device_info.index */
    uint32_t n_threads;                  /* CPU: worker threads, the caller's included, at most
                                          * 1024; with parallel_for, tasks of a call. 0 = the CPUs
                                          * that the process may use: those of the opening thread's
                                          * affinity mask, and no more than the whole CPUs that the
                                          * quotas of control groups allow */
    uint32_t cpu_mask;                   /* LK_CPU_* bits; 0 = use all that the machine has */
    lk_log_level log_level;              /* messages up to this level are sent; 0 = none */
    lk_log_fn log;                       /* may be NULL */
    void *log_user;                      /* given to log */
    lk_alloc_fn alloc;                   /* NULL = the C library's. Allocates also the cache's slabs
                                          * on the CPU. Device memory comes from the driver. */
    lk_free_fn free;                     /* set if alloc is set, else NULL */
    void *alloc_user;                    /* given to both */
    const struct lk_vulkan_desc *vulkan; /* Vulkan: NULL = a device of lowkey's own with all its
                                          * features. NULL on other backends */
    lk_parallel_for_fn parallel_for;     /* CPU: runs the work of calls on the host's threads, in at
                                          * most n_threads tasks; lowkey starts no thread. NULL =
                                          * threads of lowkey's own. Not called on a device */
    void *parallel_for_user;             /* given to parallel_for */
} lk_context_desc;
LK_API lk_status lk_context_desc_init(lk_context_desc *desc, size_t struct_bytes);

/* An open device. Several threads may use it at once: the context locks the state that its caches
 * share. It must outlive its caches.
 *
 * Processes: fork() gives the child process a copy of the context and its caches. On the CPU the
 * copies work on: the first call starts lowkey's own threads again, and returns LK_E_NOMEM where
 * one cannot be started; parallel_for is called in the child too, where the host's threads are not:
 * it may run all tasks itself. A cache that another thread of the parent was in a call on at the
 * fork is incomplete in the child: every call on it returns LK_E_DEVICE. Destroy it; its memory
 * stays allocated until the child ends. On CUDA and on Vulkan the device stays with the parent: in
 * the child every call on the context and on its caches returns LK_E_DEVICE. lk_cache_destroy() and
 * lk_context_close() free the child's host memory without the device, or leave it allocated if
 * another thread of the parent was in a call at the fork. A cache that another thread was creating
 * or destroying at the fork may make the child's lk_context_close() return LK_E_BUSY. A child that
 * is made in a callback of lowkey calls exec() or _exit() there.
 *
 * Signals: the threads of lowkey, and those that drivers start when a context is opened or a cache
 * is created, block all signals except those of a thread's own faults (SIGSEGV, SIGBUS, SIGFPE,
 * SIGILL, SIGTRAP, SIGSYS). The host's signals come to the host's threads, in a task too. lowkey
 * installs no handler.
 *
 * Callbacks return to lowkey: a callback must not call longjmp(), end its thread or, except for the
 * callbacks of lowkey/snapshot.h, throw an exception. Do not cancel a thread that is in a call. */
typedef struct lk_context lk_context;

/* Open a context.
 *
 * desc         read during the call; NULL = the CPU with all its threads
 * abi_version  LK_ABI_VERSION of the caller's build
 * out          owned by the caller, closed by lk_context_close(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOMEM, LK_E_NOT_FOUND (device_index), LK_E_MISMATCH (another ABI
 * major, or a newer minor than the library's), LK_E_UNSUPPORTED (this build has no such backend;
 * on a device also: there is no driver or no device, the build has no kernels for the device, or
 * the device has not the features that they need; the sentence states which), LK_E_DEVICE. */
LK_API lk_status lk_context_open(const lk_context_desc *desc, uint32_t abi_version,
                                 lk_context **out);

/* Wait for the work of *context, close it and set it to NULL. *context may be NULL.
 *
 * Errors: LK_E_ARGUMENT (context is NULL), LK_E_BUSY (the context has caches: destroy them first;
 * nothing is changed). */
LK_API lk_status lk_context_close(lk_context **context);

/* Describe a context's device. info starts from lk_device_info_init(). Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_context_device(const lk_context *context, lk_device_info *info);

/* A combination of widths, shapes and tensors, for lk_context_supports(). Start from
 * lk_capability_init(). */
typedef struct lk_capability {
    uint32_t size;         /* sizeof(lk_capability) */
    uint32_t head_dim;     /* channels of a head's keys */
    uint32_t group_size;   /* query heads per KV head */
    uint32_t key_bits;     /* 1, 2, 3, 4, 8 or 16 */
    uint32_t value_bits;   /* 1, 2, 3, 4, 8 or 16; not read with is_latent */
    uint32_t page_tokens;  /* 32, 64 or 128 */
    lk_memory_kind memory; /* of the tensors */
    lk_dtype dtype;        /* of the tensors */
    lk_queue_kind queue;   /* 0 = a NULL queue on the CPU and on Vulkan; on CUDA any queue */
    uint32_t value_dim;    /* channels of a head's values; 0, from init, = head_dim */
    uint32_t is_latent;    /* 1: a latent layer (LK_LAYER_LATENT of lowkey/plan.h); else 0 */
} lk_capability;
LK_API lk_status lk_capability_init(lk_capability *capability, size_t struct_bytes);

/* Check that a context can pack and attend such pages, before anything is allocated. Returns LK_OK,
 * or the error that a cache would return.
 *
 * Errors: LK_E_ARGUMENT (an invalid width, head_dim, value_dim, page_tokens, element type or memory
 * kind),
 * LK_E_UNSUPPORTED (valid, but not on this context; the sentence names the missing feature). */
LK_API lk_status lk_context_supports(const lk_context *context, const lk_capability *capability);

#ifdef __cplusplus
}
#endif
#endif
