// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_mix.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/bench/bench_layers.h"
#include "cli/common/report.h"
#include "cli/plan/cocktail.h"

namespace cli {
namespace {

constexpr char kLow[] = "low";
constexpr std::uint32_t kClassSamples = 3;
constexpr double kTimeOverBytes = 1.15;  // a mix may take so many times what low chunks of its
                                         // bytes would

Subject make_mix(const BenchOptions &options, const llama::Geometry &geometry,
                 const std::string &name, const std::vector<double> &shares, bool reorders) {
    Subject subject{name, llama::make_preset("cocktail", geometry), shares};
    lk_chunk_rule rule = chunk_rule_of(subject.plan.get());
    rule.chunk_tokens = options.chunk_tokens;
    rule.reorder = reorders ? 1 : 0;
    if (!reorders)
        llama::check(lk_plan_set_pages(subject.plan.get(), options.chunk_tokens));
    llama::check(lk_plan_set_chunks(subject.plan.get(), &rule));
    return subject;
}

// A row's times and bytes over those of the low one.
struct MixRow {
    const BenchRow &row;
    const BenchRow &low;

    double bytes() const {
        return static_cast<double>(row.cache_bytes) / static_cast<double>(low.cache_bytes);
    }
    double time() const { return row.time.median_s / low.time.median_s; }
    double bound_s() const { return kTimeOverBytes * bytes() * low.time.median_s; }
    double share_of_bound() const { return row.time.median_s / bound_s(); }
};

// The low row of the same cache; null where the row is not of a mix.
const BenchRow *low_of(const std::vector<BenchRow> &rows, const BenchRow &row) {
    if (row.chunks.n() == 0)
        return nullptr;
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const BenchRow &other) {
        return other.plan == kLow && other.n_tokens == row.n_tokens && other.batch == row.batch &&
               other.n_threads == row.n_threads && other.n_new == row.n_new;
    });
    return found == rows.end() ? nullptr : &*found;
}

std::string format_shares(const Chunks &chunks) {
    const double percent = 100.0 / static_cast<double>(chunks.n());
    std::string text;
    for (const std::uint64_t n : {chunks.n_low, chunks.n_middle, chunks.n_high})
        text += (text.empty() ? "" : " / ") + format_fixed(percent * static_cast<double>(n), 2);
    return text;
}

}  // namespace

std::vector<Subject> subjects_of(const BenchOptions &options, std::uint32_t n_layers) {
    const Shape &shape = options.shape;
    const llama::Geometry geometry = shape.geometry(n_layers);
    const bool has_mix = !options.mix.empty();
    std::vector<std::string> plans = options.plans;
    if (plans.empty())
        plans = has_mix ? std::vector<std::string>{"fp16"} : preset_names();
    std::vector<Subject> subjects;
    for (const std::string &name : plans) {
        llama::PlanHandle plan = load_plan(name, geometry);
        if (plan_shape(plan.get()).n_layers == n_layers) {
            subjects.push_back({name, std::move(plan), {}});
            continue;
        }
        for (LayerKind &kind : layer_kinds(plan.get()))
            subjects.push_back({name + " " + layer_words(kind.layers),
                                std::move(kind.plan),
                                {},
                                name,
                                static_cast<std::uint32_t>(kind.layers.size())});
    }
    if (!has_mix)
        return subjects;
    const std::vector<double> all_low = {100, 0, 0};
    subjects.push_back(make_mix(options, geometry, kLow, all_low, true));
    subjects.push_back(make_mix(options, geometry, "mix", options.mix, true));
    subjects.push_back(make_mix(options, geometry, "low, reorder=off", all_low, false));
    subjects.push_back(make_mix(options, geometry, "mix, reorder=off", options.mix, false));
    return subjects;
}

void hold(const SyntheticCache &cache, std::uint32_t sequence, const Subject &subject) {
    if (!subject.mix.empty())
        llama::check(lk_sequence_defer(cache.get(), cache.id(sequence), LK_DEFER_REFUSE));
}

void classify(const SyntheticCache &cache, std::uint32_t sequence, const Subject &subject,
              std::uint64_t n_tokens) {
    if (subject.mix.empty())
        return;
    std::uint32_t page_tokens = 0, sink_tokens = 0;
    llama::check(lk_plan_get_pages(subject.plan.get(), &page_tokens, &sink_tokens, nullptr));
    const std::uint32_t chunk_tokens = chunk_rule_of(subject.plan.get()).chunk_tokens;
    const auto n_chunks = static_cast<std::uint32_t>(
        n_tokens < sink_tokens ? 0 : (n_tokens - sink_tokens) / chunk_tokens);
    llama::Random random(kBenchSeed + sequence);
    std::vector<float> scores(n_chunks);
    for (float &score : scores)
        score = static_cast<float>(random.next() >> 40);
    lk_chunk_quota quota = llama::initialised(lk_chunk_quota_init);
    quota.block_chunks = page_tokens / chunk_tokens;
    quota.low_share = subject.mix[0] / 100;
    quota.high_share = subject.mix[2] / 100;
    std::vector<lk_chunk_class> classes(n_chunks);
    llama::check(lk_chunks_by_quota(scores.data(), n_chunks, &quota, classes.data(), nullptr));
    llama::check(lk_chunks_assign(cache.get(), cache.id(sequence), n_tokens, n_chunks,
                                  classes.data(), scores.data()));
}

double time_classes(const SyntheticCache &cache, const Subject &subject, std::uint64_t n_tokens,
                    const std::function<void()> &fill, const std::function<void()> &drain) {
    if (subject.mix.empty())
        return 0;
    std::vector<double> samples;
    for (std::uint32_t i = 0; i < kClassSamples + kWarmUps; ++i) {
        hold(cache, 0, subject);
        fill();
        drain();
        const double seconds = time_host([&] {
            classify(cache, 0, subject, n_tokens);
            drain();
        });
        if (i >= kWarmUps)
            samples.push_back(seconds);
        llama::check(lk_sequence_truncate(cache.get(), cache.id(0), 0));
    }
    return summarise(std::move(samples)).median_s;
}

void describe(const SyntheticCache &cache, const Subject &subject, BenchRow &row) {
    row.plan = subject.name;
    row.whole_plan = subject.whole_plan;
    row.n_layers = subject.n_layers;
    row.batch = cache.n_sequences();
    const lk_cache_stats stats = cache.stats();
    row.cache_bytes = stats.payload_bytes + stats.metadata_bytes + stats.recent_bytes;
    if (subject.mix.empty())
        return;
    for (std::uint32_t i = 0; i < cache.n_sequences(); ++i) {
        lk_chunks_info info = llama::initialised(lk_chunks_info_init);
        llama::check(lk_chunks_get(cache.get(), cache.id(i), &info, 0, nullptr, nullptr, nullptr));
        row.chunks.n_low += info.n_low;
        row.chunks.n_middle += info.n_middle;
        row.chunks.n_high += info.n_high;
    }
}

void print_mixes(const std::vector<BenchRow> &rows) {
    std::printf(
        "\nlow / middle / high: percent of the chunks as they are kept. bound: %s x (bytes over\n"
        "those of low) x (time of low)\n\n",
        format_fixed(kTimeOverBytes, 2).c_str());
    Table table({"plan", "batch", "tokens", "low / middle / high", "KV bytes", "x low's bytes",
                 "x low's time", "us", "bound, us", "of bound"});
    for (const BenchRow &row : rows) {
        const BenchRow *const low = low_of(rows, row);
        if (low == nullptr)
            continue;
        const MixRow mix = {row, *low};
        table.add({row.plan, std::to_string(row.batch), std::to_string(row.n_tokens),
                   format_shares(row.chunks), std::to_string(row.cache_bytes),
                   format_fixed(mix.bytes(), 3), format_fixed(mix.time(), 3),
                   format_fixed(row.time.median_s * 1e6, 1), format_fixed(mix.bound_s() * 1e6, 1),
                   format_percent(mix.share_of_bound())});
    }
    table.print();
}

void add_mixes(const std::vector<BenchRow> &rows, Json &json_rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const BenchRow *const low = low_of(rows, rows[i]);
        if (low == nullptr)
            continue;
        const MixRow mix = {rows[i], *low};
        json_rows[i]["chunks"] = {{"low", rows[i].chunks.n_low},
                                  {"middle", rows[i].chunks.n_middle},
                                  {"high", rows[i].chunks.n_high}};
        json_rows[i]["bytes_over_low"] = mix.bytes();
        json_rows[i]["time_over_low"] = mix.time();
        json_rows[i]["bound_s"] = mix.bound_s();
        json_rows[i]["share_of_bound"] = mix.share_of_bound();
    }
}

}  // namespace cli
