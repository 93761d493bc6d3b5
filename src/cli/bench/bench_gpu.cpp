// Attention and packing on a GPU.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench/bench_layers.h"
#include "cli/bench/bench_mix.h"
#include "cli/bench/gpu.h"
#include "cli/common/report.h"

namespace cli {
namespace {

// A GPU that waited while the host made a cache has a third of its clock at first.
constexpr std::chrono::seconds kClockRise{1};

struct Row : BenchRow {
    double load_s = 0;       // of the kernel that only loads as many bytes
    double open_s = 0;       // of opening the cache and beginning a step, which make kernels
    Timing graph = {};       // the same inside a captured graph
    Timing graph_step = {};  // append and attend inside a captured graph

    double share_of_load() const { return load_s / time.median_s; }
};

// Times work on the device.
class Meter {
  public:
    Meter(Gpu &gpu, const BenchOptions &options) : gpu_(gpu), options_(options) {}

    // before and after are outside of what is timed.
    Timing time(const Gpu::Work &before, const Gpu::Work &work, const Gpu::Work &after) {
        const auto sample = [&] {
            const double seconds = gpu_.sample(before, work, options_.warm);
            after();
            return seconds;
        };
        const auto start = std::chrono::steady_clock::now();
        for (std::uint32_t i = 0;
             i < kWarmUps || std::chrono::steady_clock::now() - start < kClockRise; ++i)
            sample();
        std::vector<double> samples(options_.n_repeats);
        for (double &seconds : samples)
            seconds = sample();
        return summarise(std::move(samples));
    }
    Timing time(const Gpu::Work &work) {
        return time([] {}, work, [] {});
    }

    // The same work, recorded once and replayed.
    Timing time_graph(const Gpu::Work &work) {
        const std::unique_ptr<GpuGraph> graph = gpu_.capture(work);
        return time([&] { graph->replay(); });
    }

    double load_s(std::uint64_t bytes) {
        if (!range_ || range_->bytes() < bytes) {
            range_.reset();
            range_ = gpu_.allocate(bytes);
        }
        return time([&] { gpu_.run_load(*range_, bytes); }).median_s;
    }

    // Bytes read plus bytes written per second.
    double copy_bytes_per_s() {
        const std::uint64_t bytes = gpu_.copy_bytes();
        const std::unique_ptr<GpuMemory> from = gpu_.allocate(bytes);
        const std::unique_ptr<GpuMemory> to = gpu_.allocate(bytes);
        const Timing copy = time([&] { gpu_.run_copy(*to, *from, bytes); });
        return 2.0 * static_cast<double>(bytes) / copy.median_s;
    }

  private:
    Gpu &gpu_;
    const BenchOptions &options_;
    std::unique_ptr<GpuMemory> range_;
};

// FP16 numbers [n_tokens][n_heads][head_dim] in device memory, random and repeating.
class HalfTensor {
  public:
    HalfTensor(Gpu &gpu, std::uint64_t n_tokens, std::uint32_t n_heads, std::uint32_t head_dim,
               bool has_large_channels, llama::Random &random)
        : memory_(gpu.allocate(n_tokens * n_heads * head_dim * kHalfBytes)),
          tensor_(memory_->tensor()) {
        const std::uint64_t n_drawn = std::min<std::uint64_t>(n_tokens, kFillTokens);
        gpu.fill(*memory_,
                 random_halves(n_drawn * n_heads * head_dim, head_dim, has_large_channels, random));
        tensor_.dtype = LK_F16;
        tensor_.token_stride = std::int64_t{n_heads} * head_dim;
        tensor_.head_stride = head_dim;
    }
    const lk_tensor &view() const { return tensor_; }

  private:
    std::unique_ptr<GpuMemory> memory_;
    lk_tensor tensor_;
};

// Tensors that every step takes its first tokens of.
struct StepTensors {
    StepTensors(Gpu &gpu, const Shape &shape, std::uint64_t n_tokens,
                llama::Random random = llama::Random(kBenchSeed))
        : q(gpu, n_tokens, shape.n_query_heads, shape.head_dim, false, random),
          k(gpu, n_tokens, shape.n_kv_heads, shape.head_dim, true, random),
          v(gpu, n_tokens, shape.n_kv_heads, shape.output_dim(), false, random),
          out(gpu, n_tokens, shape.n_query_heads, shape.output_dim(), false, random) {}
    HalfTensor q, k, v, out;
};

// memory holds what is put.
SearchPlace search_place(Gpu &gpu, const BenchOptions &options,
                         std::vector<std::unique_ptr<GpuMemory>> &memory) {
    const auto put = [&](const std::vector<std::uint16_t> &words) {
        memory.push_back(gpu.allocate(words.size() * sizeof words[0]));
        gpu.fill(*memory.back(), words);
        return memory.back()->tensor();
    };
    const auto time = [&](const std::function<void()> &work) {
        return gpu.sample([] {}, work, options.warm);
    };
    return {gpu.context(), gpu.space().queue(), put, time, 0};
}

class GpuBench {
  public:
    GpuBench(const BenchOptions &options, Gpu &gpu)
        : options_(options),
          gpu_(gpu),
          meter_(gpu, options),
          tensors_(gpu, options.shape, longest_step(options)),
          subjects_(subjects_of(options)) {}

    void run();
    std::vector<BenchRow> rows() const { return {rows_.begin(), rows_.end()}; }
    void print() const;
    Json json() const;

  private:
    std::unique_ptr<SyntheticCache> make_cache(const Subject &subject, std::uint32_t batch,
                                               std::uint64_t n_tokens);
    void fill_one(SyntheticCache &cache, std::uint32_t sequence, const Subject &subject,
                  std::uint64_t n_tokens);
    void fill(SyntheticCache &cache, const Subject &subject, std::uint64_t n_tokens);
    double time_classes(SyntheticCache &cache, const Subject &subject, std::uint64_t n_tokens);
    void bench_group(std::uint32_t batch, std::uint64_t n_tokens, Progress &progress);
    std::vector<Row> bench_attend(const Subject &subject, std::uint32_t batch,
                                  std::uint64_t n_tokens);
    Row time_attend(SyntheticCache &cache, std::uint32_t n_new);
    void time_graphs(SyntheticCache &cache, Row &row);
    std::vector<Row> bench_pack(const Subject &subject, std::uint32_t batch,
                                std::uint64_t n_tokens);
    void print_attend() const;
    void print_open() const;
    void print_pack() const;

    BenchOptions options_;
    Gpu &gpu_;
    Meter meter_;
    StepTensors tensors_;
    std::vector<Subject> subjects_;
    Timing empty_ = {};
    double copy_bytes_per_s_ = 0;
    std::vector<Row> rows_;
};

std::unique_ptr<SyntheticCache> GpuBench::make_cache(const Subject &subject, std::uint32_t batch,
                                                     std::uint64_t n_tokens) {
    const CacheLimits limits = {n_tokens, longest_step(options_), batch, kSlabBytes};
    return std::make_unique<SyntheticCache>(gpu_.context(), gpu_.space(), subject.plan.get(),
                                            options_.shape, limits);
}

void GpuBench::fill_one(SyntheticCache &cache, std::uint32_t sequence, const Subject &subject,
                        std::uint64_t n_tokens) {
    const bool must_attend = llama::ranks_by_queries(subject.plan.get());
    for (std::uint64_t done = 0; done < n_tokens; done += kFillTokens) {
        cache.begin_one(sequence, static_cast<std::uint32_t>(
                                      std::min<std::uint64_t>(kFillTokens, n_tokens - done)));
        cache.append(tensors_.k.view(), tensors_.v.view());
        if (must_attend)
            cache.attend(tensors_.q.view(), tensors_.out.view());
        cache.commit();
    }
}

void GpuBench::fill(SyntheticCache &cache, const Subject &subject, std::uint64_t n_tokens) {
    for (std::uint32_t sequence = 0; sequence < cache.n_sequences(); ++sequence) {
        hold(cache, sequence, subject);
        fill_one(cache, sequence, subject, n_tokens);
        classify(cache, sequence, subject, n_tokens);
    }
}

double GpuBench::time_classes(SyntheticCache &cache, const Subject &subject,
                              std::uint64_t n_tokens) {
    return cli::time_classes(
        cache, subject, n_tokens, [&] { fill_one(cache, 0, subject, n_tokens); },
        [&] { (void)gpu_.sample([] {}, [&] { gpu_.run_empty(); }, true); });
}

// Steps are dropped, so every sample has the same cache.
Row GpuBench::time_attend(SyntheticCache &cache, std::uint32_t n_new) {
    Row row;
    row.n_new = n_new;
    row.time = meter_.time(
        [&] {
            cache.begin(n_new);
            cache.append(tensors_.k.view(), tensors_.v.view());
        },
        [&] { cache.attend(tensors_.q.view(), tensors_.out.view()); }, [&] { cache.discard(); });
    if (options_.graph && n_new <= LK_DRAFT_TOKENS)
        time_graphs(cache, row);
    return row;
}

// A replay repeats the step that is open: its kernels find what they found the time before.
void GpuBench::time_graphs(SyntheticCache &cache, Row &row) {
    const auto append = [&] { cache.append(tensors_.k.view(), tensors_.v.view()); };
    const auto attend = [&] { cache.attend(tensors_.q.view(), tensors_.out.view()); };
    cache.begin(row.n_new);
    append();
    row.graph = meter_.time_graph(attend);
    cache.discard();
    cache.begin(row.n_new);
    row.graph_step = meter_.time_graph([&] {
        append();
        attend();
    });
    cache.discard();
}

std::vector<Row> GpuBench::bench_attend(const Subject &subject, std::uint32_t batch,
                                        std::uint64_t n_tokens) {
    const auto start = Clock::now();
    const std::unique_ptr<SyntheticCache> cache = make_cache(subject, batch, n_tokens);
    double open_s = seconds_since(start);
    const double assign_s = options_.times_requests ? time_classes(*cache, subject, n_tokens) : 0;
    fill(*cache, subject, n_tokens);
    const auto filled = Clock::now();
    cache->begin(options_.new_tokens[0]);
    open_s += seconds_since(filled);
    cache->discard();
    std::vector<Row> rows;
    for (const std::uint32_t n_new : options_.new_tokens) {
        rows.push_back(time_attend(*cache, n_new));
        describe(*cache, subject, rows.back());
        rows.back().n_tokens = n_tokens;
        rows.back().bits_per_value = bits_per_value(subject.plan.get());
        rows.back().flops = attend_flops(options_.shape, rows.back());
        rows.back().load_s = meter_.load_s(rows.back().cache_bytes);
        rows.back().assign_s = assign_s;
        rows.back().open_s = open_s;
    }
    if (options_.times_requests && rows[0].chunks.n() != 0) {
        std::vector<std::unique_ptr<GpuMemory>> memory;
        rows[0].search_s =
            time_search(options_, search_place(gpu_, options_, memory), rows[0].chunks.n() / batch);
    }
    return rows;
}

// A prompt that is packed while it is appended.
std::vector<Row> GpuBench::bench_pack(const Subject &subject, std::uint32_t batch,
                                      std::uint64_t n_tokens) {
    const std::unique_ptr<SyntheticCache> cache = make_cache(subject, batch, 1);
    Row row;
    row.n_new = static_cast<std::uint32_t>(n_tokens);
    row.time = meter_.time([&] { cache->begin(row.n_new); },
                           [&] { cache->append(tensors_.k.view(), tensors_.v.view()); },
                           [&] { cache->discard(); });
    describe(*cache, subject, row);
    row.n_tokens = n_tokens;
    row.cache_bytes = appended_bytes(options_.shape, row);
    row.bits_per_value = bits_per_value(subject.plan.get());
    row.load_s = meter_.load_s(row.cache_bytes);
    return {row};
}

void GpuBench::run() {
    empty_ = meter_.time([&] { gpu_.run_empty(); });
    copy_bytes_per_s_ = meter_.copy_bytes_per_s();
    Progress progress(options_.tokens.size() * options_.batches.size() * subjects_.size());
    for (const std::uint64_t n_tokens : options_.tokens)
        for (const std::uint32_t batch : options_.batches)
            bench_group(batch, n_tokens, progress);
}

void GpuBench::bench_group(std::uint32_t batch, std::uint64_t n_tokens, Progress &progress) {
    std::vector<Row> fp16;
    for (const Subject &subject : subjects_) {
        progress.step(subject.name + ", " + std::to_string(n_tokens) + " tokens");
        std::vector<Row> rows = options_.pack ? bench_pack(subject, batch, n_tokens)
                                              : bench_attend(subject, batch, n_tokens);
        if (subject.name == "fp16")
            fp16 = rows;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            rows[i].copy_bytes_per_s = copy_bytes_per_s_;
            rows[i].speedup = fp16.empty() ? 0 : fp16[i].time.median_s / rows[i].time.median_s;
            rows_.push_back(rows[i]);
        }
    }
}

Json GpuBench::json() const {
    Json json = to_json(options_);
    json["empty_kernel_s"] = empty_.median_s;
    for (const Row &row : rows_) {
        Json one = to_json(row, options_, "copy");
        one["load_only_s"] = row.load_s;
        one["share_of_load_only"] = row.share_of_load();
        if (!options_.pack)
            one["cache_open_s"] = row.open_s;
        if (row.graph.median_s != 0) {
            one["graph_median_s"] = row.graph.median_s;
            one["graph_append_attend_median_s"] = row.graph_step.median_s;
        }
        json["rows"].push_back(std::move(one));
    }
    add_mixes(rows(), json["rows"]);
    add_stats(rows(), json);
    return json;
}

std::string format_us(const Timing &time) {
    return time.median_s == 0 ? "-" : format_fixed(time.median_s * 1e6, 1);
}

void GpuBench::print_attend() const {
    std::printf("attention of one layer: %s, %s L2\n\n", format_shape(options_.shape).c_str(),
                options_.warm ? "warm" : "cold");
    std::vector<std::string> header = {"plan",    "batch",     "tokens",   "new",
                                       "us",      "quartiles", "KV bytes", "GB/s",
                                       "of load", "of copy",   "x fp16"};
    if (options_.graph)
        header.insert(header.end(), {"graph us", "with append"});
    if (options_.prefill)
        header.emplace_back("TFLOP/s");
    Table table(header);
    for (const Row &row : rows_) {
        std::vector<std::string> cells = {row.plan,
                                          std::to_string(row.batch),
                                          std::to_string(row.n_tokens),
                                          std::to_string(row.n_new),
                                          format_us(row.time),
                                          format_quartiles(row.time, 1e6, 1),
                                          format_bytes(static_cast<double>(row.cache_bytes)),
                                          format_fixed(row.bytes_per_s() / 1e9, 0),
                                          format_percent(row.share_of_load()),
                                          format_percent(row.share_of_copy()),
                                          format_speedup(row.speedup)};
        if (options_.graph)
            cells.insert(cells.end(), {format_us(row.graph), format_us(row.graph_step)});
        if (options_.prefill)
            cells.push_back(format_fixed(row.flops / row.time.median_s * 1e-12, 1));
        table.add(cells);
    }
    table.print();
    if (!options_.mix.empty())
        print_mixes({rows_.begin(), rows_.end()});
    print_sums(rows());
}

// A cache makes its kernels when it is opened and when a step is the first to run them; later ones
// of a process find them.
void GpuBench::print_open() const {
    const auto slowest = std::max_element(
        rows_.begin(), rows_.end(), [](const Row &a, const Row &b) { return a.open_s < b.open_s; });
    if (slowest != rows_.end())
        std::printf("\nslowest cache to open and to begin a step: %s ms (%s)\n",
                    format_fixed(slowest->open_s * 1e3, 1).c_str(), slowest->plan.c_str());
}

void GpuBench::print_pack() const {
    std::printf("append and pack one layer of a prompt: %u KV heads, head_dim %u\n\n",
                options_.shape.n_kv_heads, options_.shape.head_dim);
    Table table(
        {"plan", "batch", "tokens", "us", "quartiles", "FP16 bytes", "GB/s", "of load", "of copy"});
    for (const Row &row : rows_) {
        table.add({row.plan, std::to_string(row.batch), std::to_string(row.n_tokens),
                   format_us(row.time), format_quartiles(row.time, 1e6, 1),
                   format_bytes(static_cast<double>(row.cache_bytes)),
                   format_fixed(row.bytes_per_s() / 1e9, 0), format_percent(row.share_of_load()),
                   format_percent(row.share_of_copy())});
    }
    table.print();
}

void GpuBench::print() const {
    if (options_.pack) {
        print_pack();
    } else {
        print_attend();
        print_open();
    }
    std::printf("\nempty kernel: %s us\ncopy: %s GB/s, read and written bytes together\n",
                format_us(empty_).c_str(), format_fixed(copy_bytes_per_s_ / 1e9, 1).c_str());
}

int search(const BenchOptions &options, Gpu &gpu) {
    std::vector<std::unique_ptr<GpuMemory>> memory;
    SearchPlace place = search_place(gpu, options, memory);
    place.copy_bytes_per_s = Meter(gpu, options).copy_bytes_per_s();
    return run_search_bench(options, place);
}

}  // namespace

Measured measure_gpu(const BenchOptions &options, Gpu &gpu) {
    const auto bench = std::make_shared<GpuBench>(options, gpu);
    bench->run();
    return {bench->rows(), [bench] { bench->print(); }, [bench] { return bench->json(); }};
}

int run_gpu_bench(const BenchOptions &options, Gpu &gpu) {
    if (options.search)
        return search(options, gpu);
    if (options.shrink) {
        const auto time = [&](const std::function<void()> &work) {
            return gpu.sample_call(work, options.warm);
        };
        return run_shrink_bench(
            options, {gpu.context(), &gpu.space(), time, Meter(gpu, options).copy_bytes_per_s()});
    }
    show_measured(options, measure_gpu(options, gpu));
    return 0;
}

}  // namespace cli
