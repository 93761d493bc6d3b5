// How fast pages become narrower, and what that costs a generation step by step.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/bench/bench.h"
#include "cli/common/report.h"
#include "cli/common/widths.h"

namespace cli {
namespace {

constexpr std::uint32_t kPageTokens = 128;        // of the preset
constexpr std::uint64_t kProgressTokens = 32768;  // or as many as a ladder was timed with
constexpr std::uint32_t kProgressSteps = 512;

struct ShrinkRow {
    std::uint64_t n_tokens;
    std::uint32_t bits;  // after it; before it twice as many
    std::uint64_t n_bytes;
    Timing time;
};

struct Progressive {
    std::uint64_t n_tokens = 0;
    double shrinking_s = 0;  // of a step's begin, mean
    double resting_s = 0;
    double worst_s = 0;  // of those that shrink
    double attend_s = 0;
    std::uint64_t n_pages = 0;
};

// A generation token by token whose pages shrink, and what its steps' begins take where they do
// not.
struct Generation {
    double begins_s = 0;
    double others_s = 0;  // append, attend and commit
    double worst_begin_s = 0;
    double resting_begins_s = 0;
    std::uint64_t budget_bytes = 0;
    std::uint64_t n_pages = 0;

    double overhead() const { return (begins_s - resting_begins_s) / (begins_s + others_s); }
};

llama::PlanHandle make_plan(const Shape &shape, std::uint32_t rung) {
    const llama::Geometry geometry = shape.geometry();
    llama::PlanHandle plan = llama::make_preset("pm-kvq", geometry);
    llama::check(
        lk_plan_set_ladder(plan.get(), LK_ALL, kRungWidths.data(), kRungWidths.size(), rung));
    return plan;
}

void fill(SyntheticCache &cache, const Shape &shape, std::uint64_t n_tokens) {
    llama::Random random(kBenchSeed);
    StepData data(shape, kFillTokens, random);
    for (std::uint64_t done = 0; done < n_tokens; done += kFillTokens) {
        cache.begin(kFillTokens);
        cache.append(data);
        cache.commit();
    }
}

// A cache at 16 bits goes down rung by rung; another one for every sample.
std::vector<ShrinkRow> time_ladder(const ShrinkPlace &place, const BenchOptions &options,
                                   std::uint64_t n_tokens) {
    const Shape &shape = options.shape;
    const llama::PlanHandle plan = make_plan(shape, 16);
    std::vector<ShrinkRow> rows;
    std::vector<std::vector<double>> samples(3);
    for (std::uint32_t i = 0; i < options.n_repeats; ++i) {
        SyntheticCache cache(place.context, *place.space, plan.get(), shape,
                             {n_tokens, kFillTokens, 1, kSlabBytes});
        fill(cache, shape, n_tokens);
        for (std::uint32_t step = 0; step < 3; ++step) {
            const std::uint32_t bits = kRungWidths[step + 1];
            const std::uint64_t before = cache.stats().pages_shrunk;
            samples[step].push_back(place.time([&] { cache.shrink(bits); }));
            const std::uint64_t n_pages = cache.stats().pages_shrunk - before;
            if (i == 0)  // read at twice the bits and written
                rows.push_back(
                    {n_tokens, bits, n_pages * kPageTokens * shape.head_dim * 3 * bits / 8, {}});
        }
    }
    for (std::uint32_t step = 0; step < 3; ++step)
        rows[step].time = summarise(samples[step]);
    return rows;
}

// What a cache needs that holds no more than this: the next block needs bytes of older pages.
std::uint64_t held_bytes(const lk_plan *plan, std::uint64_t n_tokens) {
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(lk_plan_bytes(plan, n_tokens, 1, kFillTokens, &size));
    return size.cache_bytes;
}

// Single tokens after a full cache; those of one that is at its budget shrink pages as they go.
Progressive time_progress(const ShrinkPlace &place, const Shape &shape, std::uint64_t n_tokens) {
    const llama::PlanHandle plan = make_plan(shape, 8);
    llama::Random random(kBenchSeed + 1);
    StepData token(shape, 1, random);
    StepResult result;
    Progressive found;
    found.n_tokens = n_tokens;
    std::vector<double> attends;
    for (const bool shrinks : {false, true}) {
        SyntheticCache cache(place.context, *place.space, plan.get(), shape,
                             {n_tokens + kProgressSteps, kFillTokens, 1, kSlabBytes});
        fill(cache, shape, n_tokens);
        if (shrinks)
            cache.set_budget(held_bytes(plan.get(), n_tokens));
        const std::uint64_t before = cache.stats().pages_shrunk;
        double sum = 0;
        for (std::uint32_t i = 0; i < kProgressSteps; ++i) {
            const double begin_s = place.time([&] { cache.begin(1); });
            cache.append(token);
            const double attend_s = place.time([&] { cache.attend(token, result); });
            cache.commit();
            sum += begin_s;
            if (shrinks)
                found.worst_s = std::max(found.worst_s, begin_s);
            else
                attends.push_back(attend_s);
        }
        (shrinks ? found.shrinking_s : found.resting_s) = sum / kProgressSteps;
        found.n_pages = cache.stats().pages_shrunk - before;
    }
    found.attend_s = summarise(std::move(attends)).median_s;
    return found;
}

// Under a budget for 4 bits all tokens begin at 16; the others have bytes for all of them.
Generation time_generation(const ShrinkPlace &place, const Shape &shape, std::uint64_t n_tokens) {
    const llama::PlanHandle plan = make_plan(shape, 16);
    llama::Random random(kBenchSeed + 2);
    StepData token(shape, 1, random);
    StepResult result;
    Generation found;
    found.budget_bytes = held_bytes(make_plan(shape, 4).get(), n_tokens);
    for (const bool shrinks : {true, false}) {
        SyntheticCache cache(place.context, *place.space, plan.get(), shape,
                             {n_tokens, kFillTokens, 1, kSlabBytes});
        if (shrinks)
            cache.set_budget(found.budget_bytes);
        for (std::uint64_t i = 0; i < n_tokens; ++i) {
            const double begin_s = place.time([&] { cache.begin(1); });
            (shrinks ? found.begins_s : found.resting_begins_s) += begin_s;
            const double others_s = place.time([&] {
                cache.append(token);
                if (shrinks)
                    cache.attend(token, result);
                cache.commit();
            });
            if (!shrinks)
                continue;
            found.worst_begin_s = std::max(found.worst_begin_s, begin_s);
            found.others_s += others_s;
        }
        if (shrinks)
            found.n_pages = cache.stats().pages_shrunk;
    }
    return found;
}

Json to_json(const ShrinkRow &row, const ShrinkPlace &place) {
    const double bytes_per_s = static_cast<double>(row.n_bytes) / row.time.median_s;
    return {{"tokens", row.n_tokens},
            {"bits", row.bits},
            {"median_s", row.time.median_s},
            {"quartile_low_s", row.time.low_s},
            {"quartile_high_s", row.time.high_s},
            {"bytes_read_and_written", row.n_bytes},
            {"bytes_per_s", bytes_per_s},
            {"copy_bytes_per_s", place.copy_bytes_per_s},
            {"share_of_copy", bytes_per_s / place.copy_bytes_per_s}};
}

double extra_share(const Progressive &progress) {
    return (progress.shrinking_s - progress.resting_s) / progress.attend_s;
}

void print(const std::vector<ShrinkRow> &rows, const Progressive &progress,
           const ShrinkPlace &place, const Shape &shape) {
    std::printf("pages of one layer become narrower: %u KV heads, head_dim %u\n\n",
                shape.n_kv_heads, shape.head_dim);
    Table table({"tokens", "bits", "ms", "quartiles", "read + written", "GB/s", "of copy"});
    for (const ShrinkRow &row : rows) {
        const double bytes_per_s = static_cast<double>(row.n_bytes) / row.time.median_s;
        table.add({std::to_string(row.n_tokens),
                   std::to_string(2 * row.bits) + " to " + std::to_string(row.bits),
                   format_fixed(row.time.median_s * 1e3, 3), format_quartiles(row.time, 1e3, 3),
                   format_bytes(static_cast<double>(row.n_bytes)),
                   format_fixed(bytes_per_s / 1e9, 1),
                   format_percent(bytes_per_s / place.copy_bytes_per_s)});
    }
    table.print();
    std::printf(
        "\ncopy: %.1f GB/s, read and written bytes together\n"
        "%u steps of one token after %llu, %llu pages shrunk: begin %.1f us, %.1f us without "
        "shrinking,\n%.1f us at most; attention of the layer %.1f us; shrinking adds %.1f %% of "
        "that\n",
        place.copy_bytes_per_s / 1e9, kProgressSteps,
        static_cast<unsigned long long>(progress.n_tokens),
        static_cast<unsigned long long>(progress.n_pages), progress.shrinking_s * 1e6,
        progress.resting_s * 1e6, progress.worst_s * 1e6, progress.attend_s * 1e6,
        100 * extra_share(progress));
}

Json to_json(const Generation &generation, std::uint64_t n_tokens) {
    return {{"tokens", n_tokens},
            {"budget_bytes", generation.budget_bytes},
            {"pages_shrunk", generation.n_pages},
            {"begins_s", generation.begins_s},
            {"resting_begins_s", generation.resting_begins_s},
            {"begin_worst_s", generation.worst_begin_s},
            {"others_s", generation.others_s},
            {"overhead", generation.overhead()}};
}

void print(const Generation &generation, std::uint64_t n_tokens) {
    std::printf(
        "\na generation of %llu tokens from FP16 pages on, in %s, %llu pages shrunk: %.2f s in\n"
        "all; begins %.3f s, %.3f s without shrinking, %.1f us at most; shrinking takes %.2f %%\n",
        static_cast<unsigned long long>(n_tokens),
        format_bytes(static_cast<double>(generation.budget_bytes)).c_str(),
        static_cast<unsigned long long>(generation.n_pages),
        generation.begins_s + generation.others_s, generation.begins_s, generation.resting_begins_s,
        generation.worst_begin_s * 1e6, 100 * generation.overhead());
}

}  // namespace

int run_shrink_bench(const BenchOptions &options, const ShrinkPlace &place) {
    std::vector<ShrinkRow> rows;
    for (const std::uint64_t n_tokens : options.tokens)
        for (const ShrinkRow &row : time_ladder(place, options, n_tokens))
            rows.push_back(row);
    const std::uint64_t longest = *std::max_element(options.tokens.begin(), options.tokens.end());
    const Progressive progress =
        time_progress(place, options.shape, std::min(longest, kProgressTokens));
    const std::uint64_t n_generated = options.generation;
    Generation generation;
    if (n_generated)
        generation = time_generation(place, options.shape, n_generated);
    if (!options.json) {
        print(rows, progress, place, options.shape);
        if (n_generated)
            print(generation, n_generated);
        return 0;
    }
    Json json = to_json(options);
    json["measured"] = "shrink";
    for (const ShrinkRow &row : rows)
        json["rows"].push_back(to_json(row, place));
    json["progressive"] = {{"tokens", progress.n_tokens},
                           {"steps", kProgressSteps},
                           {"pages_shrunk", progress.n_pages},
                           {"begin_mean_s", progress.shrinking_s},
                           {"begin_resting_mean_s", progress.resting_s},
                           {"begin_worst_s", progress.worst_s},
                           {"attend_median_s", progress.attend_s},
                           {"share_of_attend", extra_share(progress)}};
    if (n_generated)
        json["generation"] = to_json(generation, n_generated);
    print_json(json);
    return 0;
}

}  // namespace cli
