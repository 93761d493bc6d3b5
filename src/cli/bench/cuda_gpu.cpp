// Measurements on a CUDA device: a sample is the time between two events on the stream.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cli/bench/gpu.h"
#include "cli/common/cuda_space.h"

namespace cli {
namespace {

namespace bench = lk::cuda::bench;

class TimedMemory : public GpuMemory {
  public:
    TimedMemory(bench::Device *device, std::uint64_t bytes) : memory_(device, bytes) {}

    std::uint64_t bytes() const override { return memory_.bytes(); }
    lk_tensor tensor() const override {
        return llama::float_tensor(LK_MEMORY_CUDA, static_cast<float *>(memory_.data()), {});
    }
    void *data() const { return memory_.data(); }

  private:
    CudaMemory memory_;
};

void *data_of(const GpuMemory &memory) { return static_cast<const TimedMemory &>(memory).data(); }

class Graph : public GpuGraph {
  public:
    Graph(bench::Device *device, const Gpu::Work &work) : device_(device) {
        check_cuda(bench::capture_begin(device));
        try {
            work();
        } catch (...) {
            (void)bench::capture_end(device, nullptr);
            throw;
        }
        check_cuda(bench::capture_end(device, &work_));
    }
    ~Graph() override { bench::release_graph(work_); }
    Graph(const Graph &) = delete;
    Graph &operator=(const Graph &) = delete;
    void replay() override { check_cuda(bench::replay(device_, work_)); }

  private:
    bench::Device *device_;
    bench::Graph *work_ = nullptr;
};

class CudaGpu : public Gpu {
  public:
    explicit CudaGpu(const DeviceOptions &options)
        : context_(options.open()), space_(options.index()) {}

    lk_context *context() override { return context_.get(); }
    llama::TensorSpace &space() override { return space_; }

    std::unique_ptr<GpuMemory> allocate(std::uint64_t bytes) override {
        return std::make_unique<TimedMemory>(device(), bytes);
    }
    void fill(GpuMemory &memory, const std::vector<std::uint16_t> &words) override {
        auto *const first = static_cast<std::uint8_t *>(data_of(memory));
        const std::uint64_t part = words.size() * sizeof words[0];
        check_cuda(bench::copy_in(device(), first, words.data(), part));
        for (std::uint64_t at = part; at < memory.bytes(); at += part)
            check_cuda(
                bench::run_copy(device(), first + at, first, std::min(part, memory.bytes() - at)));
    }

    double sample(const Work &before, const Work &work, bool is_warm) override {
        before();
        check_cuda(is_warm ? bench::hold(device()) : bench::flush_l2(device()));
        check_cuda(bench::start(device()));
        work();
        double seconds = 0;
        check_cuda(bench::stop(device(), &seconds));
        return seconds;
    }

    double sample_call(const Work &call, bool is_warm) override {
        return sample([] {}, call, is_warm);
    }

    void run_empty() override { check_cuda(bench::run_empty(device())); }
    void run_load(const GpuMemory &from, std::uint64_t bytes) override {
        check_cuda(bench::run_load(device(), data_of(from), bytes));
    }
    void run_copy(GpuMemory &to, const GpuMemory &from, std::uint64_t bytes) override {
        check_cuda(bench::run_copy(device(), data_of(to), data_of(from), bytes));
    }
    std::unique_ptr<GpuGraph> capture(const Work &work) override {
        return std::make_unique<Graph>(device(), work);
    }

  private:
    bench::Device *device() const { return space_.device(); }

    llama::ContextHandle context_;
    CudaSpace space_;
};

}  // namespace

std::unique_ptr<Gpu> open_cuda(const DeviceOptions &options) {
    return std::make_unique<CudaGpu>(options);
}

}  // namespace cli
