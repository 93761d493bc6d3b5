/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cost.h"

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Atomic int64_t held, most;
static struct timespec begin;

static void add(int64_t bytes) {
    const int64_t now = atomic_fetch_add_explicit(&held, bytes, memory_order_relaxed) + bytes;
    int64_t before = atomic_load_explicit(&most, memory_order_relaxed);
    while (now > before && !atomic_compare_exchange_weak(&most, &before, now))
        ;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef SANITIZED

/* As <sanitizer/allocator_interface.h> has them. */
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
size_t __sanitizer_get_allocated_size(const volatile void *p);

static void on_malloc(const volatile void *p, size_t bytes) {
    (void)p;
    add((int64_t)bytes);
}
static void on_free(const volatile void *p) {
    if (p)
        add(-(int64_t)__sanitizer_get_allocated_size(p));
}

static void install(void) {
    static int is_installed;
    if (!is_installed)
        is_installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
}

uint64_t cost_slowness(void) { return 30; }

#else

/* glibc's own names of what is counted here in its place. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *p);

static void *counted(void *p) {
    if (p)
        add((int64_t)malloc_usable_size(p));
    return p;
}

void *malloc(size_t bytes) { return counted(__libc_malloc(bytes)); }
void *calloc(size_t n, size_t bytes) { return counted(__libc_calloc(n, bytes)); }
void *memalign(size_t alignment, size_t bytes) {
    return counted(__libc_memalign(alignment, bytes));
}
void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void **out, size_t alignment, size_t bytes) {
    void *p = memalign(alignment, bytes);
    if (p)
        *out = p;
    return p ? 0 : ENOMEM;
}
void *realloc(void *p, size_t bytes) {
    const int64_t before = p ? (int64_t)malloc_usable_size(p) : 0;
    void *moved = __libc_realloc(p, bytes);
    if (moved || !bytes)
        add(-before);
    return counted(moved);
}
void free(void *p) {
    if (p)
        add(-(int64_t)malloc_usable_size(p));
    __libc_free(p);
}

static void install(void) {}

uint64_t cost_slowness(void) {
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded && strstr(preloaded, "vgpreload") ? 100 : 1; /* valgrind */
}

#endif

void cost_begin(void) {
    install();
    atomic_store(&held, 0);
    atomic_store(&most, 0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
}

struct cost cost_end(void) {
    struct timespec end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    const int64_t ns = (end.tv_sec - begin.tv_sec) * 1000000000ll + (end.tv_nsec - begin.tv_nsec);
    const struct cost cost = {(uint64_t)atomic_load(&most), (uint64_t)ns};
    return cost;
}

void cost_expect(const char *what, uint64_t n_bytes, uint64_t free_bytes, uint64_t free_ns) {
    const struct cost cost = cost_end();
    const uint64_t bytes = 64 * n_bytes + (1u << 20) + free_bytes;
    const uint64_t ns = (1000 * n_bytes + 10000000 + free_ns) * cost_slowness();
    if (cost.bytes <= bytes && cost.ns <= ns)
        return;
    fprintf(stderr, "%s of %llu bytes takes %llu bytes and %llu ns, at most %llu and %llu\n", what,
            (unsigned long long)n_bytes, (unsigned long long)cost.bytes,
            (unsigned long long)cost.ns, (unsigned long long)bytes, (unsigned long long)ns);
    abort();
}
