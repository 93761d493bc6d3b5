// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda_backend.h"

#include <cstdio>

#include "backend/cuda/cuda_cache.h"
#include "base/proc.h"
#include "base/status.h"
#include "cuda/launch.h"

namespace lk {
namespace cuda {

namespace {

using ull = unsigned long long;

constexpr int kOldestMajor = 8;  // compute capability
static_assert(kMergeSplits == lk::kMergeSplits, "kernels take as many splits as the interface");

int attribute(cudaDeviceAttr name, int device) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, name, device) != cudaSuccess)
        (void)cudaGetLastError();
    return value;
}

uint64_t free_bytes(int device) {
    if (attribute(cudaDevAttrIntegrated, device))
        return memory_line("MemAvailable");  // shared with the CPU
    const DeviceScope scope(device);
    size_t free = 0;
    size_t total = 0;
    if (cudaMemGetInfo(&free, &total) == cudaSuccess)
        return free;
    (void)cudaGetLastError();
    return 0;
}

lk_status describe(int device, lk_device_info *info) {
    cudaDeviceProp properties;
    const lk_status status =
        checked(cudaGetDeviceProperties(&properties, device), "describing a device");
    if (status)
        return status;
    info->backend = LK_BACKEND_CUDA;
    info->index = static_cast<uint32_t>(device);
    info->n_threads = 0;
    info->memory_bytes = properties.totalGlobalMem;
    info->free_bytes = free_bytes(device);
    std::snprintf(info->name, sizeof info->name, "%.*s", static_cast<int>(sizeof info->name) - 1,
                  properties.name);
    std::snprintf(info->features, sizeof info->features, "sm_%d%d %d SMs", properties.major,
                  properties.minor, properties.multiProcessorCount);
    return LK_OK;
}

// Can this build run on the device, which is the current one?
lk_status check_architecture(int device) {
    const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
    const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
    if (major < kOldestMajor)
        return fail(LK_E_UNSUPPORTED, "CUDA device %d is sm_%d%d and the kernels need sm_%d0",
                    device, major, minor, kOldestMajor);
    const cudaError_t error = kernels_present();
    if (!error)
        return LK_OK;
    if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction &&
        error != cudaErrorUnsupportedPtxVersion)
        return checked(error, "looking for the kernels");
    (void)cudaGetLastError();
    return fail(LK_E_UNSUPPORTED,
                "this build has no kernels for sm_%d%d of CUDA device %d: its option cuda-archs "
                "names those that it has (%s)",
                major, minor, device, cudaGetErrorString(error));
}

const char *memory_text(cudaMemoryType type) {
    return type == cudaMemoryTypeHost ? "pinned host memory" : "host memory";
}

// Kernels copy whole tiles, also those after the last token, and mask them: memory that was never
// written would be read. The default stream is waited for, since the cache's does not wait for it.
lk_status clear(void *memory, uint64_t bytes) {
    cudaError_t error = cudaMemset(memory, 0, bytes);
    if (!error)
        error = cudaStreamSynchronize(cudaStreamLegacy);
    return checked(error, "clearing a slab");
}

// Has a thread block the shared memory for a layer of these dims?
cudaError_t layer_fits(const lk_capability &capability) {
    LayerArg layer{};
    layer.head_dim = capability.head_dim;
    layer.value_dim = capability.value_dim ? capability.value_dim : capability.head_dim;
    layer.is_latent = capability.is_latent;
    return is_uneven(layer) ? rows_fit(layer) : tile_fits(layer.head_dim);
}

class CudaBackend final : public Backend {
  public:
    CudaBackend(const Allocator &allocator, int device) : allocator_(allocator), device_(device) {}

    lk_status supports(const lk_capability &capability) const override {
        if (capability.memory != LK_MEMORY_CUDA)
            return fail(LK_E_UNSUPPORTED,
                        "a CUDA context takes tensors in CUDA memory, not memory kind %u",
                        capability.memory);
        if (capability.queue && capability.queue != LK_QUEUE_CUDA_STREAM)
            return fail(LK_E_UNSUPPORTED, "a CUDA context takes a CUDA stream, not queue kind %u",
                        capability.queue);
        const DeviceScope scope(device_);
        const cudaError_t error = layer_fits(capability);
        if (error == cudaErrorInvalidConfiguration)
            return fail(LK_E_UNSUPPORTED,
                        "head_dim %u needs more shared memory than the device has",
                        capability.head_dim);
        return checked(error, "measuring the device");
    }

    const BackendTraits &traits() const override {
        static constexpr BackendTraits kTraits = {
            "CUDA", LK_MEMORY_CUDA, false, LK_QUEUE_CUDA_STREAM, 0, true, LK_BACKEND_CUDA};
        return kTraits;
    }
    void describe(lk_device_info *info) const override {
        const lk_status status = cuda::describe(device_, info);
        if (status)
            info->backend = LK_BACKEND_CUDA;
    }

    lk_status slab_create(uint64_t bytes, SlabMemory *out) override {
        const DeviceScope scope(device_);
        // A copy must not go from one slab into the next, so they never touch.
        constexpr uint64_t kGap = 64;
        void *memory = nullptr;
        const cudaError_t error = cudaMalloc(&memory, bytes + kGap);
        if (error == cudaErrorMemoryAllocation) {
            (void)cudaGetLastError();
            return fail(LK_E_NOMEM, "no device memory for a slab of %llu bytes", ull{bytes});
        }
        if (error)
            return checked(error, "allocating a slab");
        const lk_status status = clear(memory, bytes);
        if (status) {
            (void)cudaFree(memory);
            return status;
        }
        *out = {reinterpret_cast<uint64_t>(memory), bytes, memory};
        return LK_OK;
    }
    // cudaFree() waits for what is queued.
    void slab_destroy(const SlabMemory &slab) override {
        if (is_lost_)
            return;
        const DeviceScope scope(device_);
        (void)cudaFree(slab.handle);
    }

    lk_status check_queue(const lk_queue *queue) const override {
        if (!queue)
            return fail(LK_E_ARGUMENT, "queue is NULL and a CUDA context takes a CUDA stream");
        if (queue->kind == LK_QUEUE_CUDA_STREAM)
            return LK_OK;
        return fail(LK_E_UNSUPPORTED,
                    "queue is of kind %u, Vulkan's, and a CUDA context takes a "
                    "CUDA stream",
                    queue->kind);
    }

    // The runtime knows single addresses only, so both ends are checked.
    lk_status resolve_tensor(const lk_tensor &tensor, uint64_t bytes, const char *name,
                             void **data) const override {
        const DeviceScope scope(device_);
        lk_status status = check_address(tensor.data, "", name);
        if (!status && bytes)
            status = check_address(static_cast<const char *>(tensor.data) + bytes - 1,
                                   "the end of ", name);
        if (!status)
            *data = tensor.data;
        return status;
    }

    lk_status merge(const MergeView &view) const override {
        TensorArg parts[kMergeSplits];
        TensorArg lses[kMergeSplits];
        for (uint32_t i = 0; i < view.n_splits; ++i) {
            parts[i] = tensor_arg(view.parts[i]);
            lses[i] = tensor_arg(view.lses[i]);
        }
        const MergeArgs args = {
            parts,        lses,          view.n_splits,        view.n_tokens,
            view.n_heads, view.head_dim, tensor_arg(view.out), tensor_arg(view.lse)};
        const DeviceScope scope(device_);
        return checked(launch_merge(args, static_cast<cudaStream_t>(view.queue->handle)),
                       "merging outputs");
    }

    lk_status cosine(const CosineView &view) const override {
        const CosineArgs args = {tensor_arg(view.embeddings), tensor_arg(view.query),
                                 tensor_arg(view.scores), view.n_chunks, view.n_channels};
        const DeviceScope scope(device_);
        return checked(launch_cosine(args, static_cast<cudaStream_t>(view.queue->handle)),
                       "scoring chunks");
    }

    lk_status cache_open(const CacheLayout &layout, CacheDevice **out) override {
        const DeviceScope scope(device_);
        auto *cache = create<CudaCache>(allocator_, allocator_, device_, layout);
        if (!cache)
            return fail(LK_E_NOMEM, "no memory for a cache's tables of %zu bytes", sizeof *cache);
        const lk_status status = cache->open();
        if (status) {
            destroy(allocator_, cache);
            return status;
        }
        *out = cache;
        return LK_OK;
    }
    void cache_close(CacheDevice *cache) override {
        if (is_lost_)
            return destroy(allocator_, static_cast<CudaCache *>(cache));
        const DeviceScope scope(device_);
        destroy(allocator_, static_cast<CudaCache *>(cache));
    }
    // The runtime works in the process that began it alone.
    lk_status enter_child(bool) override {
        is_lost_ = true;
        return LK_E_DEVICE;
    }

  private:
    lk_status check_address(const void *address, const char *part, const char *name) const {
        cudaPointerAttributes attributes;
        const cudaError_t error = cudaPointerGetAttributes(&attributes, address);
        if (error)
            return checked(error, "looking at a tensor's memory");
        if (attributes.type == cudaMemoryTypeManaged)
            return LK_OK;
        if (attributes.type != cudaMemoryTypeDevice)
            return fail(LK_E_ARGUMENT, "%s%s.data is %s and the tensor says CUDA memory", part,
                        name, memory_text(attributes.type));
        if (attributes.device != device_)
            return fail(LK_E_ARGUMENT, "%s%s.data is of CUDA device %d and the context has %d",
                        part, name, attributes.device, device_);
        return LK_OK;
    }

    const Allocator allocator_;
    const int device_;
    bool is_lost_ = false;  // this process is a child of the one that opened the device
};

}  // namespace

uint32_t device_count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess)
        return static_cast<uint32_t>(count);
    (void)cudaGetLastError();
    return 0;
}

lk_status describe_device(uint32_t index, lk_device_info *info) {
    return describe(static_cast<int>(index), info);
}

lk_status open_cuda(const lk_context_desc &desc, const Allocator &allocator, Backend **out) {
    int count = 0;
    const cudaError_t counted = cudaGetDeviceCount(&count);
    if (counted) {
        (void)cudaGetLastError();
        return fail(LK_E_UNSUPPORTED, "no CUDA device can be used here: %s",
                    cudaGetErrorString(counted));
    }
    if (desc.device_index >= static_cast<uint32_t>(count))
        return fail(LK_E_NOT_FOUND, "there is no CUDA device %u, the machine has %d",
                    desc.device_index, count);
    const auto device = static_cast<int>(desc.device_index);
    const DeviceScope scope(device);
    lk_status status = checked(scope.error(), "opening a device");
    if (!status)
        status = check_architecture(device);
    if (status)
        return status;
    auto *backend = create<CudaBackend>(allocator, allocator, device);
    if (!backend)
        return fail(LK_E_NOMEM, "no memory for the CUDA backend");
    *out = backend;
    return LK_OK;
}

void close_cuda(const Allocator &allocator, Backend *backend) {
    destroy(allocator, static_cast<CudaBackend *>(backend));
}

}  // namespace cuda
}  // namespace lk
