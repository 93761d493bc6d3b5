/* lowkey: devices, contexts, capabilities, allocator and log callbacks.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_CONTEXT_H
#define LOWKEY_CONTEXT_H

#include <lowkey/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a context computes on. */
typedef uint32_t lk_backend;
enum { LK_BACKEND_CPU = 1, LK_BACKEND_CUDA = 2, LK_BACKEND_VULKAN = 3 };

/* One device that a context can be opened on. */
typedef struct lk_device_info {
    uint32_t size;         /* sizeof(lk_device_info) */
    lk_backend backend;    /* that it is a device of */
    uint32_t index;        /* among the devices of its backend */
    uint32_t n_threads;    /* CPU: hardware threads; else 0 */
    uint64_t memory_bytes; /* total memory */
    uint64_t free_bytes;   /* what can be had now: MemAvailable on the CPU and on
                            * integrated devices, which share it */
    char name[128];        /* zero-terminated */
    char features[128];    /* what it runs, for example "avx2 fma f16c", "sm_90 132 SMs" or
                            * "Vulkan 1.3 subgroup 32 fp16 timeline" */
} lk_device_info;
LK_API lk_status lk_device_info_init(lk_device_info *info, size_t struct_bytes);

/* How many devices this machine has for the backends of this build.
 * count  set to the number. Any thread. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_device_count(uint32_t *count);

/* Describe device `ordinal` of 0 .. count-1; info starts from
 * lk_device_info_init(). Any thread. Errors: LK_E_ARGUMENT, LK_E_NOT_FOUND. */
LK_API lk_status lk_device_get(uint32_t ordinal, lk_device_info *info);

/* The host's memory: `bytes` bytes aligned to `alignment` (a power of two, at most 4096), or
 * NULL, which comes back as LK_E_NOMEM. May be called from any thread that uses the context. */
typedef void *(*lk_alloc_fn)(void *user, size_t bytes, size_t alignment);

/* Takes back what lk_alloc_fn returned, with the same sizes. From any such thread. */
typedef void (*lk_free_fn)(void *user, void *pointer, size_t bytes, size_t alignment);

/* How much a log message matters. */
typedef uint32_t lk_log_level;
enum { LK_LOG_ERROR = 1, LK_LOG_WARNING = 2, LK_LOG_INFO = 3, LK_LOG_DEBUG = 4 };

/* Log messages, one sentence each without a newline. May be called from any
 * thread that calls lowkey, never after lk_context_close() returned. It must not
 * call lowkey. */
typedef void (*lk_log_fn)(void *user, lk_log_level level, const char *message);

/* CPU instruction sets that the fast path may use, beyond the architecture's
 * baseline. A mask can take them away, to test every path on one machine. */
enum {
    LK_CPU_REFERENCE_ONLY = 0x1, /* answer every call with the reference */
    LK_CPU_NO_AVX2 = 0x2,
    LK_CPU_NO_AVX512 = 0x4,
    LK_CPU_NO_NEON = 0x8
};

struct lk_vulkan_desc; /* lowkey/vulkan.h */

/* How to open a context. */
typedef struct lk_context_desc {
    uint32_t size;                       /* sizeof(lk_context_desc) */
    lk_backend backend;                  /* default LK_BACKEND_CPU */
    uint32_t device_index;               /* lk_device_info.index */
    uint32_t n_threads;                  /* CPU: worker threads, the caller's one included;
                                          * 0 = as many as the machine has, at most 1024 */
    uint32_t cpu_mask;                   /* LK_CPU_* bits, 0 = use what the machine has */
    lk_log_level log_level;              /* messages up to this level are sent; 0 = none */
    lk_log_fn log;                       /* may be NULL */
    void *log_user;                      /* given to log */
    lk_alloc_fn alloc;                   /* NULL = the C library's; also serves the cache's slabs
                                          * on the CPU. Device memory comes from the driver. */
    lk_free_fn free;                     /* set when alloc is, and NULL when it is */
    void *alloc_user;                    /* given to both */
    const struct lk_vulkan_desc *vulkan; /* Vulkan: NULL = a device of lowkey's own, with all
                                          * that it offers; else NULL */
} lk_context_desc;
LK_API lk_status lk_context_desc_init(lk_context_desc *desc, size_t struct_bytes);

/* An open device. Calls may come from any threads at once: it is locked inside
 * for what its caches share. It must outlive its caches. */
typedef struct lk_context lk_context;

/* Open a context.
 *
 * desc         NULL = the CPU with all its threads
 * abi_version  LK_ABI_VERSION as the caller was compiled
 * out          set to the context, owned by the caller, ended with
 *              lk_context_close(); NULL on failure
 *
 * Errors: LK_E_ARGUMENT, LK_E_NOMEM, LK_E_NOT_FOUND (device_index),
 * LK_E_MISMATCH (another ABI major, or a newer minor than the library's),
 * LK_E_UNSUPPORTED (a backend that this build lacks; on a device also no driver, no device,
 * one that the build has no kernels for or that lacks what they need; the sentence says
 * which), LK_E_DEVICE. */
LK_API lk_status lk_context_open(const lk_context_desc *desc, uint32_t abi_version,
                                 lk_context **out);

/* Close *context, wait for its work and set it to NULL. *context may be NULL.
 * Errors: LK_E_ARGUMENT (NULL context), LK_E_BUSY (a cache is alive; nothing
 * changed). */
LK_API lk_status lk_context_close(lk_context **context);

/* The device that a context was opened on. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_context_device(const lk_context *context, lk_device_info *info);

/* A question whose answer is known before anything is allocated. */
typedef struct lk_capability {
    uint32_t size;         /* sizeof(lk_capability) */
    uint32_t head_dim;     /* channels of a head */
    uint32_t group_size;   /* query heads per KV head */
    uint32_t key_bits;     /* 1, 2, 3, 4, 8 or 16 */
    uint32_t value_bits;   /* likewise */
    uint32_t page_tokens;  /* 32, 64 or 128 */
    lk_memory_kind memory; /* of the tensors */
    lk_dtype dtype;        /* of the tensors */
    lk_queue_kind queue;   /* 0 = NULL on the CPU and on Vulkan, not asked on CUDA */
} lk_capability;
LK_API lk_status lk_capability_init(lk_capability *capability, size_t struct_bytes);

/* Can this context pack and attend such pages? LK_OK, or the refusal that the
 * cache would give.
 * Errors: LK_E_ARGUMENT (no such width, head_dim, page), LK_E_UNSUPPORTED (valid
 * but not here; the sentence names what is missing). */
LK_API lk_status lk_context_supports(const lk_context *context, const lk_capability *capability);

#ifdef __cplusplus
}
#endif
#endif
