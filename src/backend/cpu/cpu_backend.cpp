// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/cpu_backend.h"

#include <unistd.h>

#include <cstdio>

#include "backend/cpu/attend.h"
#include "backend/cpu/init.h"
#include "backend/cpu/pack.h"
#include "backend/cpu/reference.h"
#include "base/status.h"

namespace lk {
namespace cpu {

namespace {

constexpr size_t kSlabAlignment = 4096;
constexpr uint32_t kMaxThreads = 1024;

uint32_t hardware_threads() {
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > kMaxThreads ? kMaxThreads : static_cast<uint32_t>(n);
}

// The value of "key   : value" in a file of such lines; false when it is not there.
bool find_line(const char *path, const char *key, char *value, size_t value_bytes) {
    std::FILE *file = std::fopen(path, "r");
    if (!file)
        return false;
    char line[512];
    bool found = false;
    while (!found && std::fgets(line, sizeof line, file)) {
        if (std::strncmp(line, key, std::strlen(key)) != 0)
            continue;
        const char *text = std::strchr(line, ':');
        if (!text)
            continue;
        ++text;
        while (*text == ' ' || *text == '\t')
            ++text;
        const size_t length = std::strcspn(text, "\n");
        std::snprintf(value, value_bytes, "%.*s", static_cast<int>(length), text);
        found = true;
    }
    std::fclose(file);
    return found;
}

uint64_t memory_line(const char *key) {
    char text[64];
    unsigned long long kilobytes = 0;
    if (!find_line("/proc/meminfo", key, text, sizeof text) ||
        std::sscanf(text, "%llu", &kilobytes) != 1)
        return 0;
    return kilobytes * 1024;
}

class CpuBackend final : public Backend {
  public:
    CpuBackend(const Allocator &allocator, uint32_t cpu_mask)
        : allocator_(allocator),
          cpu_mask_(cpu_mask),
          kernels_(choose_kernels(cpu_mask)),
          pool_(allocator_),
          page_values_(allocator_),
          attend_scratch_(allocator_) {}
    ~CpuBackend() override { pthread_mutex_destroy(&mutex_); }

    lk_status open(uint32_t n_threads) {
        const uint32_t n = n_threads == 0            ? hardware_threads()
                           : n_threads > kMaxThreads ? kMaxThreads
                                                     : n_threads;
        if (!page_values_.reserve(n * kPageValues))
            return fail(LK_E_NOMEM, "no memory for the packing scratch of %u threads", n);
        return pool_.start(n);
    }

    lk_status supports(const lk_capability &capability) const override {
        if (capability.memory != LK_MEMORY_HOST)
            return fail(LK_E_UNSUPPORTED,
                        "the CPU takes tensors in host memory, not memory kind %u",
                        capability.memory);
        if (capability.queue)
            return fail(LK_E_UNSUPPORTED, "the CPU takes no queue, not queue kind %u",
                        capability.queue);
        return LK_OK;
    }

    void describe(lk_device_info *info) const override {
        describe_cpu(cpu_mask_, info);
        info->n_threads = pool_.size();
    }

    lk_status slab_create(uint64_t bytes, SlabMemory *out) override {
        void *memory = allocator_.alloc(allocator_.user, bytes, kSlabAlignment);
        if (!memory)
            return fail(LK_E_NOMEM, "no memory for a slab of %llu bytes",
                        static_cast<unsigned long long>(bytes));
        *out = {reinterpret_cast<uint64_t>(memory), bytes, memory};
        return LK_OK;
    }
    void slab_destroy(const SlabMemory &slab) override {
        allocator_.free(allocator_.user, slab.handle, slab.bytes, kSlabAlignment);
    }

    lk_status convert(const ConvertArgs &args, ConvertResult *result) override {
        const Lock lock(&mutex_);
        std::atomic<uint64_t> n_saturated{0};
        std::atomic<uint64_t> first_bad{kNothingBad};
        pool_.parallel_for(blocks(args.staging.n_tokens), [&](uint32_t unit, uint32_t) {
            uint64_t saturated = 0;
            uint64_t bad = kNothingBad;
            for (uint32_t i = 0;
                 i < kTokensPerUnit && unit * kTokensPerUnit + i < args.staging.n_tokens; ++i)
                convert_token(args, unit * kTokensPerUnit + i, &saturated, &bad);
            n_saturated.fetch_add(saturated);
            uint64_t seen = first_bad.load();
            while (bad < seen && !first_bad.compare_exchange_weak(seen, bad)) {}
        });
        const uint64_t bad = first_bad.load();
        const bool is_finite = bad == kNothingBad;
        result->n_saturated = n_saturated.load();
        result->is_finite = is_finite;
        result->bad_token = is_finite ? 0 : static_cast<uint32_t>(bad / 2 / args.n_kv_heads);
        result->bad_head = is_finite ? 0 : static_cast<uint32_t>(bad / 2 % args.n_kv_heads);
        result->bad_is_value = is_finite ? 0 : static_cast<int32_t>(bad % 2);
        return LK_OK;
    }

    lk_status store(const StoreArgs *items, uint32_t n_items) override {
        const Lock lock(&mutex_);
        pool_.parallel_for(n_items, [&](uint32_t unit, uint32_t) { store_tokens(items[unit]); });
        return LK_OK;
    }
    lk_status pack(const PackItem *items, uint32_t n_items) override {
        const Lock lock(&mutex_);
        pool_.parallel_for(n_items, [&](uint32_t unit, uint32_t thread) {
            pack_item(items[unit], page_values_.data() + thread * kPageValues);
        });
        return LK_OK;
    }
    lk_status reopen(const ReopenItem *items, uint32_t n_items) override {
        const Lock lock(&mutex_);
        pool_.parallel_for(n_items, [&](uint32_t unit, uint32_t thread) {
            reopen_item(items[unit], page_values_.data() + thread * kPageValues);
        });
        return LK_OK;
    }
    // In order: several items may add to the same sums.
    lk_status sum_queries(const QuerySumArgs *items, uint32_t n_items) override {
        for (uint32_t i = 0; i < n_items; ++i)
            sum_queries_item(items[i]);
        return LK_OK;
    }
    lk_status attend(const AttendArgs &args) override {
        const Lock lock(&mutex_);
        return kernels_ ? fast_attend(*kernels_, args, &pool_, &attend_scratch_)
                        : reference_attend(args, &pool_, allocator_);
    }

  private:
    static constexpr uint32_t kTokensPerUnit = 16;
    static uint32_t blocks(uint32_t n_tokens) {
        return (n_tokens + kTokensPerUnit - 1) / kTokensPerUnit;
    }

    class Lock {
      public:
        explicit Lock(pthread_mutex_t *mutex) : mutex_(mutex) { pthread_mutex_lock(mutex_); }
        ~Lock() { pthread_mutex_unlock(mutex_); }
        Lock(const Lock &) = delete;
        Lock &operator=(const Lock &) = delete;

      private:
        pthread_mutex_t *mutex_;
    };

    const Allocator allocator_;
    const uint32_t cpu_mask_;
    const Kernels *kernels_;                             // null: the reference
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // the pool and the scratch serve one call
    ThreadPool pool_;
    Array<uint16_t> page_values_;  // [threads][kPageValues]
    AttendScratch attend_scratch_;
};

}  // namespace

void describe_cpu(uint32_t cpu_mask, lk_device_info *info) {
    info->backend = LK_BACKEND_CPU;
    info->index = 0;
    info->n_threads = hardware_threads();
    info->memory_bytes = memory_line("MemTotal");
    info->free_bytes = memory_line("MemAvailable");
    if (!find_line("/proc/cpuinfo", "model name", info->name, sizeof info->name))
        std::snprintf(info->name, sizeof info->name, "CPU");
    std::snprintf(info->features, sizeof info->features, "%s", describe_kernels(cpu_mask));
}

lk_status open_cpu(const lk_context_desc &desc, const Allocator &allocator, Backend **out) {
    if (desc.device_index)
        return fail(LK_E_NOT_FOUND, "there is one CPU, with device_index 0, not %u",
                    desc.device_index);
    auto *backend = create<CpuBackend>(allocator, allocator, desc.cpu_mask);
    if (!backend)
        return fail(LK_E_NOMEM, "no memory for the CPU backend");
    const lk_status status = backend->open(desc.n_threads);
    if (status != LK_OK) {
        destroy(allocator, backend);
        return status;
    }
    *out = backend;
    return LK_OK;
}

void close_cpu(const Allocator &allocator, Backend *backend) {
    destroy(allocator, static_cast<CpuBackend *>(backend));
}

}  // namespace cpu
}  // namespace lk
