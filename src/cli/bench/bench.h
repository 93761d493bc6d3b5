// What the measurements of the CPU and of GPUs share.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/common/command.h"
#include "cli/common/synthetic.h"

namespace cli {

constexpr std::uint64_t kSlabBytes = std::uint64_t{64} << 20;  // of a cache that is timed
constexpr std::uint64_t kHalfBytes = 2;                        // of an FP16 number

struct BenchOptions {
    DeviceOptions device;
    Shape shape = {32, 8, 128};
    std::vector<std::uint64_t> tokens = {8192};
    std::vector<std::string> plans;
    std::uint32_t n_repeats = 21;
    bool warm = false;
    bool json = false;
    std::vector<std::string> bindings;  // what calls cost through these, instead
    std::string snapshot;  // saves and loads instead, with a file in this folder; the CPU alone
    std::vector<std::uint32_t> batches = {1};  // sequences
    std::vector<double> mix;          // percent of chunks: low, middle, high; next to plans
    std::uint32_t chunk_tokens = 32;  // with a mix
    bool times_requests = false;      // next to attention, the search and the classes of a request
    std::vector<std::uint32_t> new_tokens = {1};  // of each sequence
    bool prefill = false;                         // 2048 of them
    bool pack = false;
    bool shrink = false;
    std::uint64_t generation = 0;  // with shrink: tokens that are generated under a budget
    bool search = false;
    std::uint32_t n_chunks = 4096;
    std::uint32_t n_channels = 768;  // of an embedding
    bool graph = false;              // CUDA alone
    std::vector<std::string> mask;   // features that are not used; Vulkan alone
};

struct Timing {
    double median_s, low_s, high_s;  // low and high: the quartiles
};
Timing summarise(std::vector<double> samples);

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start);
// Seconds of work on the host.
double time_host(const std::function<void()> &work);

// How many chunks of all sequences are kept as which class.
struct Chunks {
    std::uint64_t n_low = 0, n_middle = 0, n_high = 0;

    std::uint64_t n() const { return n_low + n_middle + n_high; }
};

// One measured pass over a cache.
struct BenchRow {
    std::string plan;
    std::string whole_plan;       // that the layer is of; empty for a plan of one layer
    std::uint32_t n_layers = 1;   // of the whole plan that are as this one
    std::uint64_t n_tokens = 0;   // of each sequence
    std::uint32_t batch = 1;      // sequences
    std::uint32_t n_threads = 0;  // of a CPU
    std::uint32_t n_new = 1;      // tokens of each sequence
    Chunks chunks;
    double search_s = 0;  // a request's chunks are scored; with times_requests
    double assign_s = 0;  // and get classes and pages, in one layer
    Timing time = {};
    double bits_per_value = 0;
    std::uint64_t cache_bytes = 0;  // codes, ranges, minima and recent tokens
    double copy_bytes_per_s = 0;
    double speedup = 0;  // over fp16 in the same group, 0 when fp16 is not among the plans
    double flops = 0;    // of attention

    double bytes_per_s() const { return static_cast<double>(cache_bytes) / time.median_s; }
    double tokens_per_s() const { return static_cast<double>(batch) * n_new / time.median_s; }
    double share_of_copy() const { return bytes_per_s() / copy_bytes_per_s; }
};

// copy_name: what copies at copy_bytes_per_s.
Json to_json(const BenchRow &row, const BenchOptions &options, const std::string &copy_name);
Json to_json(const BenchOptions &options);
// Tokens of the longest step of the run, over all sequences.
std::uint32_t longest_step(const BenchOptions &options);
// What attention of row.n_new tokens of each sequence multiplies and adds.
double attend_flops(const Shape &shape, const BenchRow &row);
// What packing reads: keys and values of row.n_new tokens of each sequence at FP16.
std::uint64_t appended_bytes(const Shape &shape, const BenchRow &row);
double bits_per_value(const lk_plan *plan);
std::string format_percent(double share);
// "32 query heads, 8 KV heads, head_dim 128".
std::string format_shape(const Shape &shape);
std::string format_speedup(double speedup);
// "1.23..1.45" of a time in units of 1 / per_second seconds.
std::string format_quartiles(const Timing &time, double per_second, int digits);

constexpr std::uint32_t kFillTokens = 2048;  // of a step that fills a cache
constexpr std::uint64_t kBenchSeed = 7;
constexpr std::uint32_t kWarmUps = 2;  // samples that are not counted
constexpr std::uint32_t kBindingSteps = 2000;
constexpr std::uint32_t kPrefillRepeats = 3;  // on a CPU, where a sample takes seconds

// Where shrinking is measured. time() gives the seconds of work to its end.
struct ShrinkPlace {
    lk_context *context;
    llama::TensorSpace *space;
    std::function<double(const std::function<void()> &work)> time;
    double copy_bytes_per_s;
};
// A layer that goes down its ladder, and what that costs step by step.
int run_shrink_bench(const BenchOptions &options, const ShrinkPlace &place);

// Where chunks are scored. put() gives a tensor at memory of the device with these words, which
// stays; time() the seconds of work there.
struct SearchPlace {
    lk_context *context;
    const lk_queue *queue;
    std::function<lk_tensor(const std::vector<std::uint16_t> &words)> put;
    std::function<double(const std::function<void()> &work)> time;
    double copy_bytes_per_s;
};
// Cosines of embeddings, and BM25 next to them.
int run_search_bench(const BenchOptions &options, const SearchPlace &place);
// Seconds of the cosines of so many chunks' FP16 embeddings.
double time_search(const BenchOptions &options, const SearchPlace &place, std::uint64_t n_chunks);

class Gpu;

// Rows of attention or of packing, and how they are shown.
struct Measured {
    std::vector<BenchRow> rows;
    std::function<void()> print;
    std::function<Json()> json;
};
Measured measure_cpu(const BenchOptions &options);
Measured measure_gpu(const BenchOptions &options, Gpu &gpu);
// On the device of the options.
void with_measured(const BenchOptions &options, const std::function<void(const Measured &)> &show);

// Shape, lengths, plans and mix.
void add_shape(CLI::App &command, BenchOptions &options);
void check_mix(const BenchOptions &options);

int run_cpu_bench(const BenchOptions &options);
int run_gpu_bench(const BenchOptions &options, Gpu &gpu);
void show_measured(const BenchOptions &options, const Measured &measured);
// A cache is saved and loaded, in memory and in a file.
int run_snapshot_bench(const BenchOptions &options);
int run_bindings_bench(const BenchOptions &options);

}  // namespace cli

#endif
