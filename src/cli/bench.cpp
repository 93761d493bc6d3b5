// lowkey bench: decode attention over each plan's pages.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>

#include "command.h"
#include "llama/workers.h"
#include "report.h"
#include "synthetic.h"

#if defined(__linux__)
#include <unistd.h>
#endif

namespace cli {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{128} << 20;
constexpr std::uint32_t kFillTokens = 2048;
constexpr std::uint64_t kSeed = 7;

struct BenchOptions {
    DeviceOptions device;
    Shape shape = {32, 8, 128};
    std::vector<std::uint64_t> tokens = {8192};
    std::vector<std::string> plans;
    std::uint32_t n_repeats = 21;
    bool warm = false;
    bool json = false;
};

struct Timing {
    double median_s, low_s, high_s;  // low and high: the quartiles
};

struct Row {
    std::string plan;
    std::uint64_t n_tokens;
    std::uint32_t n_threads;
    Timing time;
    double bits_per_value;
    std::uint64_t cache_bytes;  // codes, ranges, minima and recent tokens
    double copy_bytes_per_s;
    double speedup;  // over fp16 in the same group, 0 when fp16 is not among the plans

    double bytes_per_s() const { return static_cast<double>(cache_bytes) / time.median_s; }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Timing summarise(std::vector<double> samples) {
    std::sort(samples.begin(), samples.end());
    const std::size_t n = samples.size();
    return {samples[n / 2], samples[n / 4], samples[n - 1 - n / 4]};
}

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
            const auto begin = words_.begin() + at(part, sums.size());
            sums[part] = std::accumulate(begin, words_.begin() + at(part + 1, sums.size()),
                                         std::uint64_t{0});
        });
        sink_ = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
    }

  private:
    std::ptrdiff_t at(std::size_t part, std::size_t n_parts) const {
        return static_cast<std::ptrdiff_t>(words_.size() * part / n_parts);
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
        const auto start = std::chrono::steady_clock::now();
        workers.each(n_parts, [&](std::size_t part) {
            const std::size_t begin = kCopyBytes * part / n_parts;
            const std::size_t end = kCopyBytes * (part + 1) / n_parts;
            std::memcpy(to.data() + begin, from.data() + begin, end - begin);
        });
        samples.push_back(seconds_since(start));
    }
    return 2.0 * static_cast<double>(kCopyBytes) / summarise(samples).median_s;
}

void fill(SyntheticCache &cache, const lk_plan *plan, const Shape &shape, std::uint64_t n_tokens) {
    llama::Random random(kSeed);
    StepResult unused;
    const bool must_attend = llama::ranks_by_queries(plan);
    for (std::uint64_t done = 0; done < n_tokens;) {
        const std::uint32_t count =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(kFillTokens, n_tokens - done));
        StepData data(shape, count, random);
        cache.begin(count);
        cache.append(data);
        if (must_attend) {
            cache.attend(data, unused);
        }
        cache.commit();
        done += count;
    }
}

// Times lk_attend of one new token; the step is dropped, so every sample sees the same cache.
Timing time_decode(SyntheticCache &cache, const Shape &shape, const BenchOptions &options,
                   Flusher &flusher) {
    llama::Random random(kSeed + 1);
    StepData data(shape, 1, random);
    StepResult result;
    std::vector<double> samples;
    for (std::uint32_t i = 0; i < options.n_repeats + 2; ++i) {
        cache.begin(1);
        cache.append(data);
        if (!options.warm)
            flusher.flush();
        const auto start = std::chrono::steady_clock::now();
        cache.attend(data, result);
        if (i >= 2)
            samples.push_back(seconds_since(start));  // two warm-up rounds
        cache.discard();
    }
    return summarise(samples);
}

Row bench_plan(const BenchOptions &options, const std::string &name, std::uint64_t n_tokens,
               std::uint32_t n_threads, Flusher &flusher) {
    DeviceOptions device = options.device;
    device.n_threads = n_threads;
    const llama::ContextHandle context = device.open();
    const Shape &shape = options.shape;
    const llama::Geometry geometry(1, shape.n_query_heads, shape.n_kv_heads, shape.head_dim);
    const llama::PlanHandle plan = load_plan(name, geometry);
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(lk_plan_bytes(plan.get(), n_tokens, 1, kFillTokens, &size));
    SyntheticCache cache(context.get(), plan.get(), shape, n_tokens + 1, kFillTokens);
    fill(cache, plan.get(), shape, n_tokens);
    Row row{name, n_tokens, n_threads, {}, size.bits_per_value, 0, 0, 0};
    row.time = time_decode(cache, shape, options, flusher);
    const lk_cache_stats stats = cache.stats();
    row.cache_bytes = stats.payload_bytes + stats.metadata_bytes + stats.recent_bytes;
    return row;
}

std::vector<std::uint32_t> thread_counts(const BenchOptions &options) {
    if (options.device.n_threads != 0)
        return {options.device.n_threads};
    const std::uint32_t all = std::max(1u, std::thread::hardware_concurrency());
    return all == 1 ? std::vector<std::uint32_t>{1} : std::vector<std::uint32_t>{1, all};
}

std::vector<Row> bench_all(const BenchOptions &options) {
    (void)
        options.device.open();  // a device that cannot be opened fails before anything is measured
    const std::vector<std::string> plans = options.plans.empty() ? preset_names() : options.plans;
    const std::vector<std::uint32_t> threads = thread_counts(options);
    llama::Workers workers(0);
    Flusher flusher(workers);
    Progress progress(threads.size() * options.tokens.size() * plans.size());
    std::vector<Row> rows;
    for (const std::uint32_t n_threads : threads) {
        const double copy = copy_bytes_per_s(n_threads, options.n_repeats);
        for (const std::uint64_t n_tokens : options.tokens) {
            double fp16_s = 0;
            for (const std::string &plan : plans) {
                progress.step(plan + ", " + std::to_string(n_threads) + " threads");
                Row row = bench_plan(options, plan, n_tokens, n_threads, flusher);
                if (plan == "fp16")
                    fp16_s = row.time.median_s;
                row.copy_bytes_per_s = copy;
                row.speedup = fp16_s / row.time.median_s;
                rows.push_back(row);
            }
        }
    }
    return rows;
}

Json to_json(const std::vector<Row> &rows, const BenchOptions &options) {
    Json list = Json::array();
    for (const Row &row : rows) {
        list.push_back({{"plan", row.plan},
                        {"threads", row.n_threads},
                        {"tokens", row.n_tokens},
                        {"median_s", row.time.median_s},
                        {"quartile_low_s", row.time.low_s},
                        {"quartile_high_s", row.time.high_s},
                        {"tokens_per_s", 1 / row.time.median_s},
                        {"bits_per_value", row.bits_per_value},
                        {"cache_bytes", row.cache_bytes},
                        {"bytes_per_s", row.bytes_per_s()},
                        {"memcpy_bytes_per_s", row.copy_bytes_per_s},
                        {"share_of_memcpy", row.bytes_per_s() / row.copy_bytes_per_s},
                        {"speed_over_fp16", row.speedup}});
    }
    return {{"device", options.device.device},
            {"build", lk_build_info()},
            {"caches", options.warm ? "warm" : "cold"},
            {"query_heads", options.shape.n_query_heads},
            {"kv_heads", options.shape.n_kv_heads},
            {"head_dim", options.shape.head_dim},
            {"repeats", options.n_repeats},
            {"rows", list}};
}

void print_table(const std::vector<Row> &rows, const BenchOptions &options) {
    std::printf(
        "decode attention of one layer: %u query heads, %u KV heads, head_dim %u, %s caches\n\n",
        options.shape.n_query_heads, options.shape.n_kv_heads, options.shape.head_dim,
        options.warm ? "warm" : "cold");
    Table table({"plan", "threads", "tokens", "ms", "quartiles", "tokens/s", "KV bytes", "GB/s",
                 "of memcpy", "x fp16"});
    for (const Row &row : rows) {
        table.add(
            {row.plan, std::to_string(row.n_threads), std::to_string(row.n_tokens),
             format_fixed(row.time.median_s * 1e3, 3),
             format_fixed(row.time.low_s * 1e3, 3) + ".." + format_fixed(row.time.high_s * 1e3, 3),
             format_fixed(1 / row.time.median_s, 0),
             format_bytes(static_cast<double>(row.cache_bytes)),
             format_fixed(row.bytes_per_s() / 1e9, 2),
             format_fixed(100 * row.bytes_per_s() / row.copy_bytes_per_s, 0) + " %",
             row.speedup == 0 ? "-" : format_fixed(row.speedup, 2)});
    }
    table.print();
    std::printf("\n");
    std::uint32_t seen = 0;
    for (const Row &row : rows) {
        if (row.n_threads == seen)
            continue;
        seen = row.n_threads;
        std::printf("memcpy with %u thread%s: %s GB/s, read and written bytes together\n", seen,
                    seen == 1 ? "" : "s", format_fixed(row.copy_bytes_per_s / 1e9, 1).c_str());
    }
}

int run_bench(const BenchOptions &options) {
    const std::vector<Row> rows = bench_all(options);
    if (options.json) {
        print_json(to_json(rows, options));
    } else {
        print_table(rows, options);
    }
    return 0;
}

}  // namespace

void add_bench(CLI::App &app, int &exit_code) {
    CLI::App *command =
        app.add_subcommand("bench", "time decode attention over the pages of each plan");
    command->footer(
        "Examples:\n"
        "  lowkey bench\n"
        "  lowkey bench --threads 1 --tokens 8192,32768 --plans fp16,kitty-pro --json\n"
        "A sample is one lk_attend of one new token of one layer. Caches are flushed before each\n"
        "by reading a large buffer, unless --warm. Times are medians; GB/s counts the codes,\n"
        "ranges, minima and recent tokens that a pass reads, and is compared with memcpy of the\n"
        "same run (its read and written bytes together). 1 GB = 10^9 bytes.");
    const auto options = std::make_shared<BenchOptions>();
    options->device.add_to(*command);
    command->add_option("--tokens", options->tokens, "tokens in the cache, one or more")
        ->capture_default_str()
        ->delimiter(',')
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 24));
    command->add_option("--plans", options->plans, "presets or plan files; default all presets")
        ->delimiter(',');
    command->add_option("--query-heads", options->shape.n_query_heads, "query heads")
        ->capture_default_str();
    command->add_option("--kv-heads", options->shape.n_kv_heads, "key/value heads")
        ->capture_default_str();
    command->add_option("--head-dim", options->shape.head_dim, "channels of a head")
        ->capture_default_str();
    command->add_option("--repeats", options->n_repeats, "samples per row")
        ->capture_default_str()
        ->check(CLI::Range(3u, 100000u));
    command->add_flag("--warm", options->warm, "do not flush the CPU's caches between samples");
    command->add_flag("--json", options->json, "print JSON");
    command->callback([options, &exit_code] { exit_code = run_bench(*options); });
}

}  // namespace cli
