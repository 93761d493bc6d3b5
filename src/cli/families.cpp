// SPDX-License-Identifier: Apache-2.0
#include "families.h"

#include <algorithm>
#include <functional>
#include <map>

#include "auto_plan.h"
#include "chanmix.h"
#include "report.h"
#include "sampling.h"

namespace cli {
namespace {

constexpr std::uint32_t kWindowTokens = 128;
constexpr std::uint32_t kSinkTokens = 32;
constexpr std::uint32_t kGroups[] = {128, 64, 32};
constexpr std::uint32_t kStripChannels = 16;

// What plans are made from.
struct Source {
    const lk_calibrator *statistics;
    std::vector<lk_layer> layers;

    lk_geometry geometry() const {
        lk_geometry out = llama::initialised(lk_geometry_init);
        out.n_layers = static_cast<std::uint32_t>(layers.size());
        out.layers = layers.data();
        return out;
    }
};
// Plans of a family. Those of the highest rank that fit come first, of them the largest, of equal
// ones the earliest.
struct Candidate {
    std::uint32_t rank;
    llama::PlanHandle plan;
};
using Candidates = std::vector<Candidate>;

// Keys per channel and values per token with one width each and ranges of `group`, in FP16.
llama::PlanHandle make_uniform(const Source &source, std::uint32_t key_bits,
                               std::uint32_t value_bits, std::uint32_t group,
                               std::uint32_t sink_tokens, std::uint32_t boost_channels = 0) {
    const lk_geometry geometry = source.geometry();
    lk_plan *made = nullptr;
    llama::check(lk_plan_preset("kivi2", &geometry, &made));
    llama::PlanHandle plan(made);
    lk_key_rule key = llama::initialised(lk_key_rule_init);
    key.bits = key_bits;
    key.group = group;
    if (boost_channels != 0) {
        key.boost_channels = boost_channels;
        key.boost_bits = 4;
        key.boost_score = LK_SCORE_KEY;
    }
    llama::check(lk_plan_set_key(made, LK_ALL, LK_ALL, &key));
    for (std::uint32_t l = 0; l < source.layers.size(); ++l) {
        lk_value_rule value = llama::initialised(lk_value_rule_init);
        value.bits = value_bits;
        value.group = std::min(group, source.layers[l].head_dim);
        llama::check(lk_plan_set_value(made, l, LK_ALL, &value));
    }
    llama::check(lk_plan_set_recent(made, sink_tokens, kWindowTokens));
    return plan;
}

Candidates make_kivi(const Source &source, std::uint32_t sink_tokens) {
    Candidates out;
    for (const std::uint32_t key_bits : {2u, 4u})
        for (std::uint32_t value_bits = 2; value_bits <= key_bits; value_bits *= 2)
            for (const std::uint32_t group : kGroups)
                out.push_back({0, make_uniform(source, key_bits, value_bits, group, sink_tokens)});
    return out;
}

// Boosted channels come before smaller groups, which Kitty does not have.
Candidates make_kitty(const Source &source) {
    std::uint32_t least_dim = source.layers.front().head_dim;
    for (const lk_layer &layer : source.layers)
        least_dim = std::min(least_dim, layer.head_dim);
    Candidates out;
    for (const std::uint32_t group : kGroups)
        for (std::uint32_t n = 0; n < least_dim; n += kStripChannels)
            out.push_back({n, make_uniform(source, 2, 2, group, kSinkTokens, n)});
    return out;
}

// Groups that come first in `groups` win where others give as many bits.
Candidates make_chanmixes(const Source &source, const std::vector<std::uint32_t> &groups) {
    std::uint32_t n_heads = 0;
    for (const lk_layer &layer : source.layers)
        n_heads += layer.n_kv_heads;
    Candidates out;
    for (const std::uint32_t group : groups)
        for (std::uint32_t n = n_heads + 1; n-- > 0;) {
            lk_chanmix options = llama::initialised(lk_chanmix_init);
            options.group = group;
            options.retrieval_share = static_cast<double>(n) / n_heads;
            out.push_back({0, make_chanmix(source.statistics, options)});
        }
    return out;
}

double bits_of(const lk_plan *plan) {
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(lk_plan_bytes(plan, 8192, 1, 512, &size));
    return size.bits_per_value;
}

// Null when none is within the limit.
const lk_plan *largest(const Candidates &candidates, double limit) {
    const Candidate *best = nullptr;
    for (const Candidate &one : candidates) {
        const double bits = bits_of(one.plan.get());
        if (bits > limit)
            continue;
        if (best == nullptr || one.rank > best->rank ||
            (one.rank == best->rank && bits > bits_of(best->plan.get())))
            best = &one;
    }
    return best == nullptr ? nullptr : best->plan.get();
}

std::string plan_name(const std::string &family, double limit) {
    std::string text = format_fixed(limit, 3);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.')
        text.pop_back();
    return family + "@" + text;
}

}  // namespace

std::vector<SuitePlan> family_plans(const lk_calibrator *statistics,
                                    const std::vector<double> &limits) {
    const Source source = {statistics, geometry_of(statistics)};
    std::vector<std::pair<std::string, Candidates>> families;
    families.emplace_back("kivi", make_kivi(source, 0));
    families.emplace_back("kivi+sink", make_kivi(source, kSinkTokens));
    families.emplace_back("kitty", make_kitty(source));
    families.emplace_back("chanmix", make_chanmixes(source, {32, 64, 128}));
    families.emplace_back("chanmix G128", make_chanmixes(source, {128}));
    std::vector<SuitePlan> plans;
    for (const double limit : limits) {
        for (const auto &[family, candidates] : families) {
            const lk_plan *plan = largest(candidates, limit);
            if (plan != nullptr)
                plans.push_back({plan_name(family, limit), family, limit, llama::copy_plan(plan)});
        }
        PlanLimit own;
        own.bits_per_value = limit;
        plans.push_back({plan_name("auto", limit), "auto", limit, make_auto(statistics, own)});
    }
    return plans;
}

}  // namespace cli
