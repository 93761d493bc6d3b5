// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cstdio>

#include "backend/cpu/cache_device.h"
#include "backend/cpu/element.h"
#include "backend/cpu/init.h"
#include "backend/cpu/merge.h"
#include "base/cpu_count.h"
#include "base/proc.h"
#include "base/status.h"
#include "chunks/cosine.h"

namespace lk {
namespace cpu {

namespace {

constexpr size_t kSlabAlignment = 4096;

const char *queue_name(lk_queue_kind kind) {
    return kind == LK_QUEUE_CUDA_STREAM     ? "a CUDA stream"
           : kind == LK_QUEUE_VULKAN_SUBMIT ? "a Vulkan queue to submit to"
                                            : "a Vulkan command buffer to record into";
}

lk_tensor host_tensor(const TensorView &view) {
    lk_tensor tensor = {};
    tensor.dtype = view.dtype;
    tensor.memory = LK_MEMORY_HOST;
    tensor.data = view.data;
    tensor.token_stride = view.token_stride;
    tensor.head_stride = view.head_stride;
    return tensor;
}

class CpuBackend final : public Backend {
  public:
    CpuBackend(const Allocator &allocator, uint32_t cpu_mask)
        : cpu_mask_(cpu_mask), engine_(allocator, choose_kernels(cpu_mask)) {}

    lk_status open(const lk_context_desc &desc) {
        const uint32_t n =
            std::min(desc.n_threads == 0 ? usable_cpus() : desc.n_threads, kMaxThreads);
        if (!engine_.pack_scratch.reserve(n * kPackScratch))
            return fail(LK_E_NOMEM, "no memory for the packing scratch of %u threads", n);
        if (!desc.parallel_for)
            return engine_.pool.start(n);
        engine_.pool.start_on(desc.parallel_for, desc.parallel_for_user, n);
        return LK_OK;
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

    const BackendTraits &traits() const override {
        static constexpr BackendTraits kTraits = {"the CPU", LK_MEMORY_HOST, false,         0,
                                                  0,         false,          LK_BACKEND_CPU};
        return kTraits;
    }
    void describe(lk_device_info *info) const override {
        describe_cpu(cpu_mask_, info);
        info->n_threads = engine_.pool.size();
    }

    lk_status slab_create(uint64_t bytes, SlabMemory *out) override {
        void *memory = engine_.allocator.alloc(engine_.allocator.user, bytes, kSlabAlignment);
        if (!memory)
            return fail(LK_E_NOMEM, "no memory for a slab of %llu bytes",
                        static_cast<unsigned long long>(bytes));
        *out = {reinterpret_cast<uint64_t>(memory), bytes, memory};
        return LK_OK;
    }
    void slab_destroy(const SlabMemory &slab) override {
        engine_.allocator.free(engine_.allocator.user, slab.handle, slab.bytes, kSlabAlignment);
    }

    lk_status check_queue(const lk_queue *queue) const override {
        return queue ? fail(LK_E_UNSUPPORTED, "queue is %s and the CPU takes NULL",
                            queue_name(queue->kind))
                     : LK_OK;
    }
    lk_status resolve_tensor(const lk_tensor &tensor, uint64_t, const char *,
                             void **data) const override {
        *data = tensor.data;
        return LK_OK;
    }

    lk_status merge(const MergeView &view) const override {
        cpu::merge(view);
        return LK_OK;
    }

    lk_status cosine(const CosineView &view) const override {
        Array<float> scores(engine_.allocator);
        if (!scores.resize(view.n_chunks))
            return fail(LK_E_NOMEM, "no memory for the scores of %u chunks", view.n_chunks);
        const lk_status status = score_cosine(host_tensor(view.embeddings), host_tensor(view.query),
                                              view.n_chunks, view.n_channels, scores.data());
        for (uint32_t i = 0; !status && i < view.n_chunks; ++i)
            store_element(tensor_row(view.scores, i, 0), LK_F32, 0, scores[i]);
        return status;
    }

    lk_status cache_open(const CacheLayout &layout, CacheDevice **out) override {
        auto *cache = create<CpuCacheDevice>(engine_.allocator, &engine_, layout);
        if (!cache || !cache->reserve()) {
            destroy(engine_.allocator, cache);
            return fail(LK_E_NOMEM, "no memory for the CPU's side of a cache");
        }
        *out = cache;
        return LK_OK;
    }
    void cache_close(CacheDevice *cache) override {
        destroy(engine_.allocator, static_cast<CpuCacheDevice *>(cache));
    }
    lk_status enter_child(bool was_in_use) override { return engine_.enter_child(was_in_use); }

  private:
    const uint32_t cpu_mask_;
    Engine engine_;
};

}  // namespace

void describe_cpu(uint32_t cpu_mask, lk_device_info *info) {
    info->backend = LK_BACKEND_CPU;
    info->index = 0;
    info->n_threads = usable_cpus();
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
    const lk_status status = backend->open(desc);
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
