// Decode attention on the CPU.
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

// Times lk_attend of one new token of each sequence; the step is dropped, so every sample has the
// same cache.
Timing time_decode(SyntheticCache &cache, const Shape &shape, const BenchOptions &options,
                   Flusher &flusher) {
    llama::Random random(kBenchSeed + 1);
    StepData data(shape, cache.n_sequences(), random);
    StepResult result;
    std::vector<double> samples;
    for (std::uint32_t i = 0; i < options.n_repeats + kWarmUps; ++i) {
        cache.begin(1);
        cache.append(data);
        if (!options.warm)
            flusher.flush();
        const auto start = Clock::now();
        cache.attend(data, result);
        if (i >= kWarmUps)
            samples.push_back(seconds_since(start));
        cache.discard();
    }
    return summarise(samples);
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

BenchRow bench_subject(const BenchOptions &options, const Subject &subject, std::uint32_t batch,
                       std::uint64_t n_tokens, std::uint32_t n_threads, Flusher &flusher) {
    DeviceOptions device = options.device;
    device.n_threads = n_threads;
    const llama::ContextHandle context = device.open();
    const Shape &shape = options.shape;
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(lk_plan_bytes(subject.plan.get(), n_tokens, 1, kFillTokens, &size));
    llama::HostSpace space;
    SyntheticCache cache(context.get(), space, subject.plan.get(), shape,
                         {n_tokens + 1, kFillTokens, batch});
    BenchRow row;
    if (options.times_requests)
        row.assign_s = time_classes(
            cache, subject, n_tokens, [&] { fill_one(cache, 0, subject, shape, n_tokens); }, [] {});
    fill(cache, subject, shape, n_tokens);
    row.n_tokens = n_tokens;
    row.n_threads = n_threads;
    row.bits_per_value = size.bits_per_value;
    row.time = time_decode(cache, shape, options, flusher);
    describe(cache, subject, row);
    if (options.times_requests && row.chunks.n() != 0) {
        std::vector<std::vector<std::uint16_t>> memory;
        row.search_s = time_search(options, search_place(context.get(), options, flusher, memory),
                                   row.chunks.n() / batch);
    }
    return row;
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
        double fp16_s = 0;
        for (const Subject &subject : subjects) {
            progress.step(subject.name + ", " + std::to_string(n_threads) + " threads");
            BenchRow row = bench_subject(options, subject, batch, n_tokens, n_threads, flusher);
            if (row.plan == "fp16")
                fp16_s = row.time.median_s;
            row.copy_bytes_per_s = copy;
            row.speedup = fp16_s / row.time.median_s;
            rows.push_back(row);
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
        Json one = to_json(row, "memcpy");
        one["threads"] = row.n_threads;
        one["tokens_per_s"] = row.tokens_per_s();
        json["rows"].push_back(std::move(one));
    }
    add_mixes(rows, json["rows"]);
    add_stats(rows, json);
    return json;
}

void print_table(const std::vector<BenchRow> &rows, const BenchOptions &options) {
    std::printf("decode attention of one layer: %s, %s caches\n\n",
                format_shape(options.shape).c_str(), options.warm ? "warm" : "cold");
    Table table({"plan", "threads", "batch", "tokens", "ms", "quartiles", "tokens/s", "KV bytes",
                 "GB/s", "of memcpy", "x fp16"});
    for (const BenchRow &row : rows) {
        table.add({row.plan, std::to_string(row.n_threads), std::to_string(row.batch),
                   std::to_string(row.n_tokens), format_fixed(row.time.median_s * 1e3, 3),
                   format_quartiles(row.time, 1e3, 3), format_fixed(row.tokens_per_s(), 0),
                   format_bytes(static_cast<double>(row.cache_bytes)),
                   format_fixed(row.bytes_per_s() / 1e9, 2), format_percent(row.share_of_copy()),
                   format_speedup(row.speedup)});
    }
    table.print();
    if (!options.mix.empty())
        print_mixes(rows);
    print_sums(rows);
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
