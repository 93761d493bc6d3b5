// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/vulkan_backend.h"

#include "backend/vulkan/buffers.h"
#include "backend/vulkan/cosine.h"
#include "backend/vulkan/matrix_probe.h"
#include "backend/vulkan/merge.h"
#include "backend/vulkan/slabs.h"
#include "backend/vulkan/vulkan_cache.h"
#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

class VulkanBackend final : public Backend, public HostBuffers, public PipelineStore {
  public:
    explicit VulkanBackend(const Allocator &allocator)
        : allocator_(allocator),
          device_(allocator),
          pipelines_(allocator, device_),
          slabs_(allocator, device_),
          buffers_(allocator, device_),
          merger_(device_, &pipelines_),
          cosines_(device_, &pipelines_) {}

    lk_status open(const lk_context_desc &desc) {
        const lk_vulkan_desc &vulkan = *desc.vulkan;
        lk_status status = device_.open(desc, vulkan);
        if (!status)
            status = pipelines_.open(vulkan.pipeline_cache, vulkan.pipeline_cache_bytes);
        if (!status)
            status = probe_matrices(&device_, &pipelines_);
        if (!status)
            status = slabs_.open(pipelines_.layout());
        if (!status)
            status = merger_.open();
        return status ? status : cosines_.open();
    }

    lk_status supports(const lk_capability &capability) const override {
        if (capability.memory != LK_MEMORY_VULKAN && capability.memory != LK_MEMORY_HOST)
            return fail(LK_E_UNSUPPORTED,
                        "a Vulkan context takes tensors in Vulkan buffers and in host memory, not "
                        "memory kind %u",
                        capability.memory);
        if (capability.queue == LK_QUEUE_CUDA_STREAM)
            return fail(LK_E_UNSUPPORTED,
                        "a Vulkan context takes a Vulkan queue, not a CUDA stream");
        if (capability.queue == LK_QUEUE_VULKAN_RECORD && capability.memory == LK_MEMORY_HOST)
            return fail(LK_E_UNSUPPORTED,
                        "recorded work takes tensors in Vulkan buffers, not in host memory");
        return LK_OK;
    }

    const BackendTraits &traits() const override {
        static constexpr BackendTraits kTraits = {
            "Vulkan", LK_MEMORY_VULKAN,  true, LK_QUEUE_VULKAN_SUBMIT, LK_QUEUE_VULKAN_RECORD,
            false,    LK_BACKEND_VULKAN, true};
        return kTraits;
    }
    void describe(lk_device_info *info) const override { device_.describe(info); }

    lk_status slab_create(uint64_t bytes, SlabMemory *out) override {
        return slabs_.take(bytes, out);
    }
    void slab_destroy(const SlabMemory &slab) override { slabs_.give(slab); }
    lk_status view_memory(uint64_t address, MemoryView *out) const override {
        if (device_.is_own())
            return fail(LK_E_UNSUPPORTED,
                        "the context has a device of its own, whose buffers the host cannot reach");
        *out = {};
        const Buffer &buffer = slabs_.find(address, &out->offset_bytes);
        out->buffer = reinterpret_cast<uint64_t>(buffer.handle());
        return LK_OK;
    }

    lk_status check_queue(const lk_queue *queue) const override {
        if (!queue)
            return LK_OK;
        if (queue->kind == LK_QUEUE_CUDA_STREAM)
            return fail(LK_E_UNSUPPORTED,
                        "queue is a CUDA stream and a Vulkan context takes a Vulkan queue");
        if (queue->kind == LK_QUEUE_VULKAN_SUBMIT)
            return check_submission(*queue);
        const lk_status status = check_recording(*queue);
        if (!status)
            slabs_.keep_given();
        return status;
    }

    lk_status resolve_tensor(const lk_tensor &tensor, uint64_t bytes, const char *name,
                             void **data) const override {
        if (tensor.memory == LK_MEMORY_HOST) {
            *data = tensor.data;
            return LK_OK;
        }
        uint64_t address = 0;
        const lk_status status = buffers_.resolve(tensor, bytes, name, &address);
        if (!status)
            *data = reinterpret_cast<void *>(address);
        return status;
    }

    lk_status merge(const MergeView &view) const override { return merger_.merge(view); }
    lk_status cosine(const CosineView &view) const override { return cosines_.score(view); }

    lk_status cache_open(const CacheLayout &layout, CacheDevice **out) override {
        auto *cache = create<VulkanCache>(allocator_, allocator_, device_, layout);
        if (!cache)
            return fail(LK_E_NOMEM, "no memory for a cache's tables of %zu bytes", sizeof *cache);
        const lk_status status = cache->open(&pipelines_, &slabs_);
        if (status) {
            destroy(allocator_, cache);
            return status;
        }
        slabs_.cache_opened();
        *out = cache;
        return LK_OK;
    }
    void cache_close(CacheDevice *cache) override {
        destroy(allocator_, static_cast<VulkanCache *>(cache));
        slabs_.cache_closed();
    }
    lk_status enter_child(bool) override {
        device_.abandon();
        return LK_E_DEVICE;
    }

    HostBuffers *host_buffers() override { return this; }
    const PipelineStore *pipeline_store() const override { return this; }

    lk_status add(uint64_t buffer, uint64_t bytes, uint32_t usage) override {
        return buffers_.add(buffer, bytes, usage);
    }
    lk_status remove(uint64_t buffer) override { return buffers_.remove(buffer); }
    lk_status save(void *buffer, uint64_t capacity_bytes, uint64_t *needed_bytes) const override {
        return pipelines_.save(buffer, capacity_bytes, needed_bytes);
    }

  private:
    lk_status check_submission(const lk_queue &queue) const {
        if (queue.handle && queue.handle != device_.queue())
            return fail(LK_E_ARGUMENT,
                        "queue.handle is not the queue that the context was opened with");
        if ((queue.wait_semaphore || queue.signal_semaphore) && !device_.traits().timeline)
            return fail(LK_E_UNSUPPORTED, "queue.%s is set and the device has no timelineSemaphore",
                        queue.wait_semaphore ? "wait_semaphore" : "signal_semaphore");
        return LK_OK;
    }
    lk_status check_recording(const lk_queue &queue) const {
        if (!queue.handle)
            return fail(LK_E_ARGUMENT, "queue.handle is NULL, not a command buffer");
        if (queue.wait_semaphore || queue.signal_semaphore)
            return fail(LK_E_ARGUMENT,
                        "queue.%s is set: recorded work has the semaphores of its submission",
                        queue.wait_semaphore ? "wait_semaphore" : "signal_semaphore");
        if (device_.is_own())
            return fail(LK_E_UNSUPPORTED,
                        "the context has a device of its own, which has no command buffers of the "
                        "host");
        return LK_OK;
    }

    const Allocator allocator_;
    Device device_;
    Pipelines pipelines_;
    mutable SlabPool slabs_;
    Buffers buffers_;
    mutable Merger merger_;
    mutable CosineScorer cosines_;
};

}  // namespace

uint32_t device_count() {
    Instance instance(default_allocator());
    const lk_status status = instance.open(false, {});
    return status ? 0 : static_cast<uint32_t>(instance.physical_devices().size());
}

lk_status describe_device(uint32_t index, lk_device_info *info) {
    Instance instance(default_allocator());
    const lk_status status = instance.open(false, {});
    if (status || index >= instance.physical_devices().size())
        return fail(LK_E_NOT_FOUND, "there is no Vulkan device %u", index);
    describe_physical_device(instance.functions(), instance.physical_devices()[index],
                             instance.api_version(), info);
    info->backend = LK_BACKEND_VULKAN;
    info->index = index;
    return LK_OK;
}

lk_status open_vulkan(const lk_context_desc &desc, const Allocator &allocator, Backend **out) {
    auto *backend = create<VulkanBackend>(allocator, allocator);
    if (!backend)
        return fail(LK_E_NOMEM, "no memory for the Vulkan backend");
    const lk_status status = backend->open(desc);
    if (status) {
        destroy(allocator, backend);
        return status;
    }
    *out = backend;
    return LK_OK;
}

void close_vulkan(const Allocator &allocator, Backend *backend) {
    destroy(allocator, static_cast<VulkanBackend *>(backend));
}

}  // namespace vulkan
}  // namespace lk
