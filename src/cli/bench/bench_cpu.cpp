// Attention and packing on the CPU.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/bench/bench_layers.h"
#include "cli/bench/bench_mix.h"
#include "cli/common/report.h"
#include "llama/workers.h"

#if defined(__linux__)
#include <unistd.h>
#endif

namespace cli {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{128} << 20;

std::size_t last_level_cache_bytes() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
    const long size = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (size > 0)
        return static_cast<std::size_t>(size);
#endif
    return std::size_t{32} << 20;
}

// Evicts by reading: a written buffer would leave dirty lines whose write-back the next reader
// pays for.
class Flusher {
  public:
    explicit Flusher(llama::Workers &workers)
        : workers_(workers),
          words_(std::clamp(2 * last_level_cache_bytes(), std::size_t{64} << 20,
                            std::size_t{512} << 20) /
                     sizeof(std::uint64_t),
                 1) {}

    void flush() {
        std::vector<std::uint64_t> sums(workers_.n_threads());
        workers_.each(sums.size(), [&](std::size_t part) {
            const std::uint64_t *const end = words_.data() + at(part + 1, sums.size());
            std::uint64_t sum = 0;
            for (const std::uint64_t *word = words_.data() + at(part, sums.size()); word < end;
                 word += kLineWords)
                sum += *word;
            sums[part] = sum;
        });
        sink_ = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
    }

  private:
    static constexpr std::size_t kLineWords = 8;  // a line is read whole

    std::size_t at(std::size_t part, std::size_t n_parts) const {
        return words_.size() / kLineWords * part / n_parts * kLineWords;
    }

    llama::Workers &workers_;
    std::vector<std::uint64_t> words_;
    volatile std::uint64_t sink_ = 0;
};

// Bytes read plus bytes written per second by memcpy.
double copy_bytes_per_s(std::uint32_t n_threads, std::uint32_t n_repeats) {
    llama::Workers workers(n_threads);
    const std::size_t n_parts = workers.n_threads();
    std::vector<std::uint8_t> from(kCopyBytes, 1), to(kCopyBytes, 2);
    std::vector<double> samples;
    for (std::uint32_t i = 0; i < n_repeats; ++i) {
        const auto start = Clock::now();
        workers.each(n_parts, [&](std::size_t part) {
            const std::size_t begin = kCopyBytes * part / n_parts;
            const std::size_t end = kCopyBytes * (part + 1) / n_parts;
            std::memcpy(to.data() + begin, from.data() + begin, end - begin);
        });
        samples.push_back(seconds_since(start));
    }
    return 2.0 * static_cast<double>(kCopyBytes) / summarise(samples).median_s;
}

void fill_one(SyntheticCache &cache, std::uint32_t sequence, const Subject &subject,
              const Shape &shape, std::uint64_t n_tokens) {
    llama::Random random(kBenchSeed + sequence);
    StepResult unused;
    const bool must_attend = llama::ranks_by_queries(subject.plan.get());
    for (std::uint64_t done = 0; done < n_tokens; done += kFillTokens) {
        const auto count =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(kFillTokens, n_tokens - done));
        StepData data(shape, count, random);
        cache.begin_one(sequence, count);
        cache.append(data);
        if (must_attend)
            cache.attend(data, unused);
        cache.commit();
    }
}

void fill(SyntheticCache &cache, const Subject &subject, const Shape &shape,
          std::uint64_t n_tokens) {
    for (std::uint32_t sequence = 0; sequence < cache.n_sequences(); ++sequence) {
        hold(cache, sequence, subject);
        fill_one(cache, sequence, subject, shape, n_tokens);
        classify(cache, sequence, subject, n_tokens);
    }
}

// Times `work` in a step, after `before`; the step is dropped, so every sample has the same cache.
Timing time_step(SyntheticCache &cache, std::uint32_t n_new, const BenchOptions &options,
                 Flusher &flusher, const std::function<void()> &before,
                 const std::function<void()> &work) {
    std::vector<double> samples;
    for (std::uint32_t i = 0; i < options.n_repeats + kWarmUps; ++i) {
        cache.begin(n_new);
        before();
        if (!options.warm)
            flusher.flush();
        const double seconds = time_host(work);
        if (i >= kWarmUps)
            samples.push_back(seconds);
        cache.discard();
    }
    return summarise(samples);
}

// lk_attend of n_new tokens of each sequence.
Timing time_attend(SyntheticCache &cache, std::uint32_t n_new, const BenchOptions &options,
                   Flusher &flusher) {
    llama::Random random(kBenchSeed + 1);
    StepData data(options.shape, cache.n_sequences() * n_new, random);
    StepResult result;
    return time_step(
        cache, n_new, options, flusher, [&] { cache.append(data); },
        [&] { cache.attend(data, result); });
}

// FP16 numbers [n_tokens][n_heads][head_dim], random and repeating.
class HostHalves {
  public:
    HostHalves(std::uint64_t n_tokens, std::uint32_t n_heads, std::uint32_t head_dim,
               bool has_large_channels, llama::Random &random)
        : words_(random_halves(kFillTokens * std::size_t{n_heads} * head_dim, head_dim,
                               has_large_channels, random)),
          tensor_(llama::initialised(lk_tensor_init)) {
        const std::size_t n_drawn = words_.size();
        words_.resize(n_tokens * n_heads * head_dim);
        for (std::size_t i = n_drawn; i < words_.size(); i += n_drawn)
            std::copy_n(words_.begin(), std::min(n_drawn, words_.size() - i), words_.begin() + i);
        tensor_.memory = LK_MEMORY_HOST;
        tensor_.data = words_.data();
        tensor_.dtype = LK_F16;
        tensor_.token_stride = std::int64_t{n_heads} * head_dim;
        tensor_.head_stride = head_dim;
    }
    const lk_tensor &view() const { return tensor_; }

  private:
    std::vector<std::uint16_t> words_;
    lk_tensor tensor_;
};

// lk_append of a prompt of each sequence.
Timing time_append(SyntheticCache &cache, std::uint32_t n_new, const BenchOptions &options,
                   Flusher &flusher) {
    const Shape &shape = options.shape;
    const std::uint64_t n_tokens = std::uint64_t{cache.n_sequences()} * n_new;
    llama::Random random(kBenchSeed);
    const HostHalves k(n_tokens, shape.n_kv_heads, shape.head_dim, true, random);
    const HostHalves v(n_tokens, shape.n_kv_heads, shape.output_dim(), false, random);
    return time_step(
        cache, n_new, options, flusher, [] {}, [&] { cache.append(k.view(), v.view()); });
}

// memory holds what is put.
SearchPlace search_place(lk_context *context, const BenchOptions &options, Flusher &flusher,
                         std::vector<std::vector<std::uint16_t>> &memory) {
    const auto put = [&memory](const std::vector<std::uint16_t> &words) {
        memory.push_back(words);
        lk_tensor tensor = llama::initialised(lk_tensor_init);
        tensor.memory = LK_MEMORY_HOST;
        tensor.data = memory.back().data();
        return tensor;
    };
    const auto time = [&options, &flusher](const std::function<void()> &work) {
        if (!options.warm)
            flusher.flush();
        return time_host(work);
    };
    return {context, nullptr, put, time, 0};
}

// A cache of one layer, on so many threads.
struct CpuCache {
    CpuCache(const BenchOptions &options, const Subject &subject, std::uint32_t batch,
             std::uint64_t n_tokens, std::uint32_t n_threads)
        : context(with_threads(options.device, n_threads).open()),
          cache(context.get(), space, subject.plan.get(), options.shape,
                {n_tokens, longest_step(options), batch}) {}

    static DeviceOptions with_threads(DeviceOptions device, std::uint32_t n_threads) {
        device.n_threads = n_threads;
        return device;
    }

    llama::ContextHandle context;
    llama::HostSpace space;
    SyntheticCache cache;
};

std::vector<BenchRow> bench_attend(const BenchOptions &options, const Subject &subject,
                                   std::uint32_t batch, std::uint64_t n_tokens,
                                   std::uint32_t n_threads, Flusher &flusher) {
    CpuCache own(options, subject, batch, n_tokens, n_threads);
    SyntheticCache &cache = own.cache;
    const Shape &shape = options.shape;
    double assign_s = 0;
    if (options.times_requests)
        assign_s = time_classes(
            cache, subject, n_tokens, [&] { fill_one(cache, 0, subject, shape, n_tokens); }, [] {});
    fill(cache, subject, shape, n_tokens);
    std::vector<BenchRow> rows;
    for (const std::uint32_t n_new : options.new_tokens) {
        BenchRow row;
        row.n_tokens = n_tokens;
        row.n_new = n_new;
        row.assign_s = assign_s;
        row.time = time_attend(cache, n_new, options, flusher);
        describe(cache, subject, row);
        row.flops = attend_flops(shape, row);
        rows.push_back(row);
    }
    if (options.times_requests && rows[0].chunks.n() != 0) {
        std::vector<std::vector<std::uint16_t>> memory;
        rows[0].search_s =
            time_search(options, search_place(own.context.get(), options, flusher, memory),
                        rows[0].chunks.n() / batch);
    }
    return rows;
}

// A prompt that is packed while it is appended.
std::vector<BenchRow> bench_pack(const BenchOptions &options, const Subject &subject,
                                 std::uint32_t batch, std::uint64_t n_tokens,
                                 std::uint32_t n_threads, Flusher &flusher) {
    CpuCache own(options, subject, batch, 1, n_threads);
    BenchRow row;
    row.n_tokens = n_tokens;
    row.n_new = static_cast<std::uint32_t>(n_tokens);
    row.time = time_append(own.cache, row.n_new, options, flusher);
    describe(own.cache, subject, row);
    row.cache_bytes = appended_bytes(options.shape, row);
    return {row};
}

std::vector<std::uint32_t> thread_counts(const BenchOptions &options) {
    if (options.device.n_threads != 0)
        return {options.device.n_threads};
    const std::uint32_t all = llama::usable_cpus();
    return all == 1 || options.times_requests ? std::vector<std::uint32_t>{all}
                                              : std::vector<std::uint32_t>{1, all};
}

std::vector<BenchRow> bench_all(const BenchOptions &options) {
    const std::vector<Subject> subjects = subjects_of(options);
    const std::vector<std::uint32_t> threads = thread_counts(options);
    llama::Workers workers(0);
    Flusher flusher(workers);
    Progress progress(threads.size() * options.tokens.size() * options.batches.size() *
                      subjects.size());
    std::vector<BenchRow> rows;
    const auto bench_group = [&](std::uint32_t n_threads, std::uint64_t n_tokens,
                                 std::uint32_t batch, double copy) {
        std::vector<BenchRow> fp16;
        for (const Subject &subject : subjects) {
            progress.step(subject.name + ", " + std::to_string(n_threads) + " threads");
            const auto bench = options.pack ? bench_pack : bench_attend;
            std::vector<BenchRow> own =
                bench(options, subject, batch, n_tokens, n_threads, flusher);
            if (subject.name == "fp16")
                fp16 = own;
            for (std::size_t i = 0; i < own.size(); ++i) {
                own[i].n_threads = n_threads;
                own[i].bits_per_value = bits_per_value(subject.plan.get());
                own[i].copy_bytes_per_s = copy;
                own[i].speedup = fp16.empty() ? 0 : fp16[i].time.median_s / own[i].time.median_s;
                rows.push_back(own[i]);
            }
        }
    };
    for (const std::uint32_t n_threads : threads) {
        const double copy = copy_bytes_per_s(n_threads, options.n_repeats);
        for (const std::uint64_t n_tokens : options.tokens)
            for (const std::uint32_t batch : options.batches)
                bench_group(n_threads, n_tokens, batch, copy);
    }
    return rows;
}

Json to_json(const std::vector<BenchRow> &rows, const BenchOptions &options) {
    Json json = to_json(options);
    for (const BenchRow &row : rows) {
        Json one = to_json(row, options, "memcpy");
        one["threads"] = row.n_threads;
        one["tokens_per_s"] = row.tokens_per_s();
        json["rows"].push_back(std::move(one));
    }
    add_mixes(rows, json["rows"]);
    add_stats(rows, json);
    return json;
}

void print_attend(const std::vector<BenchRow> &rows, const BenchOptions &options) {
    std::printf("attention of one layer: %s, %s caches\n\n", format_shape(options.shape).c_str(),
                options.warm ? "warm" : "cold");
    std::vector<std::string> header = {"plan",     "threads", "batch",     "tokens",
                                       "new",      "ms",      "quartiles", "tokens/s",
                                       "KV bytes", "GB/s",    "of memcpy", "x fp16"};
    if (options.prefill)
        header.emplace_back("GFLOP/s");
    Table table(header);
    for (const BenchRow &row : rows) {
        std::vector<std::string> cells = {row.plan,
                                          std::to_string(row.n_threads),
                                          std::to_string(row.batch),
                                          std::to_string(row.n_tokens),
                                          std::to_string(row.n_new),
                                          format_fixed(row.time.median_s * 1e3, 3),
                                          format_quartiles(row.time, 1e3, 3),
                                          format_fixed(row.tokens_per_s(), 0),
                                          format_bytes(static_cast<double>(row.cache_bytes)),
                                          format_fixed(row.bytes_per_s() / 1e9, 2),
                                          format_percent(row.share_of_copy()),
                                          format_speedup(row.speedup)};
        if (options.prefill)
            cells.push_back(format_fixed(row.flops / row.time.median_s * 1e-9, 1));
        table.add(cells);
    }
    table.print();
    if (!options.mix.empty())
        print_mixes(rows);
    print_sums(rows);
}

void print_pack(const std::vector<BenchRow> &rows, const BenchOptions &options) {
    std::printf("append and pack one layer of a prompt: %u KV heads, head_dim %u, %s caches\n\n",
                options.shape.n_kv_heads, options.shape.head_dim, options.warm ? "warm" : "cold");
    Table table({"plan", "threads", "batch", "tokens", "ms", "quartiles", "tokens/s", "FP16 bytes",
                 "GB/s", "of memcpy", "x fp16"});
    for (const BenchRow &row : rows)
        table.add({row.plan, std::to_string(row.n_threads), std::to_string(row.batch),
                   std::to_string(row.n_tokens), format_fixed(row.time.median_s * 1e3, 3),
                   format_quartiles(row.time, 1e3, 3), format_fixed(row.tokens_per_s(), 0),
                   format_bytes(static_cast<double>(row.cache_bytes)),
                   format_fixed(row.bytes_per_s() / 1e9, 2), format_percent(row.share_of_copy()),
                   format_speedup(row.speedup)});
    table.print();
}

void print_table(const std::vector<BenchRow> &rows, const BenchOptions &options) {
    if (options.pack)
        print_pack(rows, options);
    else
        print_attend(rows, options);
    std::printf("\n");
    std::uint32_t seen = 0;
    for (const BenchRow &row : rows) {
        if (row.n_threads == seen)
            continue;
        seen = row.n_threads;
        std::printf("memcpy with %u thread%s: %s GB/s, read and written bytes together\n", seen,
                    seen == 1 ? "" : "s", format_fixed(row.copy_bytes_per_s / 1e9, 1).c_str());
    }
}

int search(const BenchOptions &options) {
    const llama::ContextHandle context = options.device.open();
    llama::Workers workers(0);
    Flusher flusher(workers);
    std::vector<std::vector<std::uint16_t>> memory;
    SearchPlace place = search_place(context.get(), options, flusher, memory);
    place.copy_bytes_per_s = copy_bytes_per_s(1, options.n_repeats);
    return run_search_bench(options, place);
}

}  // namespace

Measured measure_cpu(const BenchOptions &options) {
    const std::vector<BenchRow> rows = bench_all(options);
    return {rows, [rows, options] { print_table(rows, options); },
            [rows, options] { return to_json(rows, options); }};
}

int run_cpu_bench(const BenchOptions &options) {
    if (options.search)
        return search(options);
    if (options.shrink) {
        const llama::ContextHandle context = options.device.open();
        llama::HostSpace space;
        return run_shrink_bench(options,
                                {context.get(), &space, time_host,
                                 copy_bytes_per_s(options.device.n_threads, options.n_repeats)});
    }
    show_measured(options, measure_cpu(options));
    return 0;
}

}  // namespace cli
