// Measurements on a Vulkan device of the command's own, which lowkey records into: a sample is the
// time between two timestamps of one command buffer.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <string>

#include "cli/bench/gpu.h"
#include "vulkan/host.h"

namespace cli {
namespace {

const std::uint32_t kLoadWords[] = {
#include "load.inc"  // generated
};
constexpr std::uint32_t kLoadThreads = 256;  // of a group in load.comp
constexpr std::uint32_t kLoadGroups = 2048;
// Four times the largest L2; devices do not tell the size of theirs.
constexpr std::uint64_t kFlushBytes = std::uint64_t{256} << 20;
constexpr double kSecondsPerNs = 1e-9;

void check_vulkan(vulkan_failure failure) {
    if (failure != nullptr)
        throw llama::Error(std::string("Vulkan: ") + failure);
}
void check_vulkan(VkResult result) {
    if (result != VK_SUCCESS)
        throw llama::Error("Vulkan: error " + std::to_string(result));
}

// As load.comp has it.
struct LoadRange {
    std::uint64_t range;
    std::uint64_t sink;
    std::uint32_t n_vectors;
};
constexpr std::uint32_t kLoadRangeBytes = 20;  // without what C++ adds for alignment
constexpr std::uint64_t kVectorBytes = 16;

// An open device.
class Host {
  public:
    explicit Host(std::uint32_t device_index) {
        vulkan_host_options options = {};
        options.device_index = device_index;
        const vulkan_failure failure = vulkan_host_open(&options, &host_);
        if (failure != nullptr) {
            vulkan_host_close(&host_);
            check_vulkan(failure);
        }
    }
    ~Host() { vulkan_host_close(&host_); }
    Host(const Host &) = delete;
    Host &operator=(const Host &) = delete;
    vulkan_host *get() { return &host_; }
    const vulkan_host *get() const { return &host_; }

  private:
    vulkan_host host_;
};

class Buffer {
  public:
    Buffer(vulkan_host *host, std::uint64_t bytes, bool is_mapped) : host_(host) {
        check_vulkan(vulkan_buffer_create(host, bytes, VULKAN_BUFFER_USAGE, is_mapped, &buffer_));
    }
    ~Buffer() { vulkan_buffer_destroy(host_, &buffer_); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    const vulkan_buffer &get() const { return buffer_; }

  private:
    vulkan_host *host_;
    vulkan_buffer buffer_;
};

// A buffer that the library knows.
class VulkanMemory : public GpuMemory {
  public:
    VulkanMemory(vulkan_host *host, lk_context *context, std::uint64_t bytes)
        : buffer_(host, bytes, false), context_(context) {
        llama::check(lk_vulkan_buffer_add(context, handle(), bytes, buffer_.get().usage));
    }
    ~VulkanMemory() override { (void)lk_vulkan_buffer_remove(context_, handle()); }

    std::uint64_t bytes() const override { return buffer_.get().bytes; }
    lk_tensor tensor() const override {
        lk_tensor tensor = llama::initialised(lk_tensor_init);
        tensor.memory = LK_MEMORY_VULKAN;
        tensor.buffer = handle();
        return tensor;
    }
    const vulkan_buffer &buffer() const { return buffer_.get(); }

  private:
    std::uint64_t handle() const { return (std::uint64_t)buffer_.get().handle; }

    Buffer buffer_;
    lk_context *context_;
};

const vulkan_buffer &buffer_of(const GpuMemory &memory) {
    return static_cast<const VulkanMemory &>(memory).buffer();
}

// Steps are submitted, or recorded into a command buffer.
class Space : public llama::HostSpace {
  public:
    Space() : queue_(llama::initialised(lk_queue_init)) { submit(); }
    const lk_queue *queue() const override { return &queue_; }
    void submit() {
        queue_.kind = LK_QUEUE_VULKAN_SUBMIT;
        queue_.handle = nullptr;
    }
    void record(VkCommandBuffer commands) {
        queue_.kind = LK_QUEUE_VULKAN_RECORD;
        queue_.handle = commands;
    }

  private:
    lk_queue queue_;
};

llama::ContextHandle open_on(const vulkan_host *host, std::uint32_t mask) {
    lk_vulkan_desc vulkan = llama::initialised(lk_vulkan_desc_init);
    vulkan_host_describe(host, &vulkan);
    vulkan.mask = mask;
    lk_context_desc desc = llama::initialised(lk_context_desc_init);
    desc.backend = LK_BACKEND_VULKAN;
    desc.vulkan = &vulkan;
    lk_context *context = nullptr;
    llama::check(lk_context_open(&desc, LK_ABI_VERSION, &context));
    return llama::ContextHandle(context);
}

class VulkanGpu : public Gpu {
  public:
    VulkanGpu(const DeviceOptions &options, std::uint32_t mask);
    ~VulkanGpu() override;
    VulkanGpu(const VulkanGpu &) = delete;
    VulkanGpu &operator=(const VulkanGpu &) = delete;

    lk_context *context() override { return context_.get(); }
    llama::TensorSpace &space() override { return space_; }
    std::uint64_t copy_bytes() const override;

    std::unique_ptr<GpuMemory> allocate(std::uint64_t bytes) override {
        return std::make_unique<VulkanMemory>(host(), context_.get(), bytes);
    }
    void fill(GpuMemory &memory, const std::vector<std::uint16_t> &words) override;
    double sample(const Work &before, const Work &work, bool is_warm) override;
    double sample_call(const Work &call, bool is_warm) override;

    void run_empty() override { load(sink_.get(), 0); }
    void run_load(const GpuMemory &from, std::uint64_t bytes) override {
        load(buffer_of(from), bytes);
    }
    void run_copy(GpuMemory &to, const GpuMemory &from, std::uint64_t bytes) override;
    std::unique_ptr<GpuGraph> capture(const Work &) override {
        throw llama::Error("Vulkan has no graphs");
    }

  private:
    vulkan_host *host() { return host_.get(); }
    void load(const vulkan_buffer &from, std::uint64_t bytes);
    void write_time(std::uint32_t index);
    double seconds();

    Host host_;
    llama::ContextHandle context_;
    Space space_;
    Buffer flush_, sink_;
    vulkan_program load_ = {};
    VkQueryPool times_ = VK_NULL_HANDLE;
};

VulkanGpu::VulkanGpu(const DeviceOptions &options, std::uint32_t mask)
    : host_(options.index()),
      context_(open_on(host(), mask)),
      flush_(host(), kFlushBytes, false),
      sink_(host(), kVectorBytes, false) {
    if (host()->timestamp_bits == 0)
        throw llama::Error("this Vulkan device has no timestamps");
    check_vulkan(
        vulkan_program_create(host(), kLoadWords, sizeof kLoadWords, kLoadRangeBytes, &load_));
    VkQueryPoolCreateInfo info = {};
    info.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
    info.queryType = VK_QUERY_TYPE_TIMESTAMP;
    info.queryCount = 2;
    check_vulkan(host()->vk.CreateQueryPool(host()->device, &info, nullptr, &times_));
}

VulkanGpu::~VulkanGpu() {
    host()->vk.DestroyQueryPool(host()->device, times_, nullptr);
    vulkan_program_destroy(host(), &load_);
}

// A device that shares the memory of the CPU has less of it, and is slower.
std::uint64_t VulkanGpu::copy_bytes() const {
    return host_.get()->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU
               ? Gpu::copy_bytes()
               : kFlushBytes;
}

void VulkanGpu::fill(GpuMemory &memory, const std::vector<std::uint16_t> &words) {
    const std::uint64_t part = words.size() * sizeof words[0];
    const Buffer staging(host(), part, true);
    std::copy(words.begin(), words.end(), static_cast<std::uint16_t *>(staging.get().mapped));
    std::vector<VkBufferCopy> copies;
    for (std::uint64_t at = 0; at < memory.bytes(); at += part)
        copies.push_back({0, at, std::min(part, memory.bytes() - at)});
    check_vulkan(vulkan_host_record(host()));
    host()->vk.CmdCopyBuffer(host()->commands, staging.get().handle, buffer_of(memory).handle,
                             static_cast<std::uint32_t>(copies.size()), copies.data());
    check_vulkan(vulkan_host_submit(host()));
}

double VulkanGpu::sample(const Work &before, const Work &work, bool is_warm) {
    check_vulkan(vulkan_host_record(host()));
    space_.record(host()->commands);
    before();
    vulkan_host_barrier(host());
    if (!is_warm)
        load(flush_.get(), kFlushBytes);
    vulkan_host_barrier(host());
    host()->vk.CmdResetQueryPool(host()->commands, times_, 0, 2);
    write_time(0);
    work();
    write_time(1);
    space_.submit();
    check_vulkan(vulkan_host_submit(host()));
    return seconds();
}

// Such a call may submit more than once, so the host's clock measures it.
double VulkanGpu::sample_call(const Work &call, bool is_warm) {
    if (!is_warm) {
        check_vulkan(vulkan_host_record(host()));
        load(flush_.get(), kFlushBytes);
        check_vulkan(vulkan_host_submit(host()));
    }
    check_vulkan(host()->vk.QueueWaitIdle(host()->queue));
    const auto start = std::chrono::steady_clock::now();
    call();
    check_vulkan(host()->vk.QueueWaitIdle(host()->queue));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void VulkanGpu::load(const vulkan_buffer &from, std::uint64_t bytes) {
    const auto n_vectors = static_cast<std::uint32_t>(bytes / kVectorBytes);
    const LoadRange range = {from.address, sink_.get().address, n_vectors};
    const std::uint32_t n_groups = (n_vectors + kLoadThreads - 1) / kLoadThreads;
    vulkan_program_run(host(), &load_, &range, std::clamp(n_groups, 1u, kLoadGroups));
}

void VulkanGpu::run_copy(GpuMemory &to, const GpuMemory &from, std::uint64_t bytes) {
    const VkBufferCopy copy = {0, 0, bytes};
    host()->vk.CmdCopyBuffer(host()->commands, buffer_of(from).handle, buffer_of(to).handle, 1,
                             &copy);
}

// When all that was recorded before is done.
void VulkanGpu::write_time(std::uint32_t index) {
    host()->vk.CmdWriteTimestamp(host()->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, times_,
                                 index);
}

double VulkanGpu::seconds() {
    std::uint64_t ticks[2] = {};
    check_vulkan(host()->vk.GetQueryPoolResults(host()->device, times_, 0, 2, sizeof ticks, ticks,
                                                sizeof ticks[0],
                                                VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT));
    const std::uint32_t unused = 64 - host()->timestamp_bits;
    const std::uint64_t taken = (ticks[1] - ticks[0]) << unused >> unused;
    return static_cast<double>(taken) * double{host()->properties.limits.timestampPeriod} *
           kSecondsPerNs;
}

}  // namespace

std::unique_ptr<Gpu> open_vulkan(const DeviceOptions &options, std::uint32_t mask) {
    return std::make_unique<VulkanGpu>(options, mask);
}

}  // namespace cli
