// SPDX-License-Identifier: Apache-2.0
#include "lab/families.h"

#include <algorithm>
#include <functional>
#include <map>

#include "cli/calibrate/sampling.h"
#include "cli/common/report.h"
#include "cli/plan/chanmix.h"
#include "cli/plan/plan_facts.h"
#include "cli/plan/pmkvq.h"

namespace cli {
namespace {

constexpr std::uint32_t kWindowTokens = 128;
constexpr std::uint32_t kSinkTokens = 32;
constexpr std::uint32_t kGroups[] = {128, 64, 32};
constexpr std::uint32_t kStripChannels = 16;
constexpr std::uint32_t kLayerWidths[] = {8, 4, 2};  // that PM-KVQ chooses from
constexpr std::uint32_t kPublishedGroup = 128;       // of its channels
constexpr std::uint64_t kBudgetStep = 64 << 10;

// What plans are made from.
struct Source {
    const lk_calibrator *statistics;
    std::vector<lk_layer> layers;
    std::uint64_t n_tokens;  // of the sequence whose bytes are counted

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
    Serving serving = {};
};
using Candidates = std::vector<Candidate>;
using Maker = std::function<Candidates(const Source &source, double limit)>;
struct Family {
    std::string name;
    Maker make;
    bool is_asked = false;  // left out of a list of all
};

lk_plan_size sized(const Source &source, const lk_plan *plan, const Serving &serving) {
    return served_size(plan, serving, source.n_tokens);
}

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
        key.boost_ranking = LK_RANKING_KEY;
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

// Of a call that makes the best plan within a limit itself; none where no plan is.
Candidates made_or_none(lk_status status, lk_plan *made) {
    if (status != LK_E_BUDGET)
        llama::check(status);
    Candidates out;
    if (made != nullptr)
        out.push_back({0, llama::PlanHandle(made)});
    return out;
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

Candidates make_defaults(const Source &source, double limit) {
    const lk_geometry geometry = source.geometry();
    lk_plan *made = nullptr;
    const lk_status status = lk_plan_default(&geometry, limit, &made);
    return made_or_none(status, made);
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

// A layer with a window needs tokens in their order, so that a chunk is a page.
void keep_order(lk_plan *plan) {
    lk_chunk_rule rule = chunk_rule_of(plan);
    llama::check(lk_plan_get_pages(plan, &rule.chunk_tokens, nullptr, nullptr));
    rule.reorder = 0;
    llama::check(lk_plan_set_chunks(plan, &rule));
}

// Chunks of 32 tokens at 2, 4 and 16 bits; keys in groups of 32 where their lowest class fits.
Candidates make_cocktails(const Source &source, double limit) {
    const lk_geometry geometry = source.geometry();
    const bool has_window =
        std::any_of(source.layers.begin(), source.layers.end(),
                    [](const lk_layer &layer) { return layer.window_tokens != 0; });
    Candidates out;
    for (std::uint32_t rank = 0; rank < std::size(kGroups); ++rank) {
        lk_plan *made = nullptr;
        llama::check(lk_plan_preset("cocktail", &geometry, &made));
        llama::PlanHandle plan(made);
        lk_key_rule key = llama::initialised(lk_key_rule_init);
        key.bits = 16;
        key.group = kGroups[rank];
        llama::check(lk_plan_set_key(made, LK_ALL, LK_ALL, &key));
        if (has_window)
            keep_order(made);
        if (least_chunk_bits(made, source.n_tokens) <= limit)
            out.push_back({rank, std::move(plan), {limit, false}});
    }
    return out;
}

lk_pmkvq pmkvq_options(lk_sensitivity sensitivity, std::uint32_t layer_budgets = 0) {
    lk_pmkvq options = llama::initialised(lk_pmkvq_init);
    options.n_widths = static_cast<std::uint32_t>(std::size(kLayerWidths));
    std::copy(std::begin(kLayerWidths), std::end(kLayerWidths), options.widths);
    options.sensitivity = sensitivity;
    options.layer_budgets = layer_budgets;
    return options;
}

lk_pmkvq published_pmkvq_options() {
    lk_pmkvq options = pmkvq_options(LK_SENSITIVITY_OUTPUT);
    options.key_axis = LK_AXIS_TOKEN;
    options.group = kPublishedGroup;
    options.key_scales = 1;
    return options;
}

// PM-KVQ's integer program is solved for more and more bytes; the last plan within the limit stays.
Candidates make_pmkvqs(const Source &source, double limit, lk_pmkvq options,
                       const Serving &serving) {
    Candidates out;
    options.budget_tokens = source.n_tokens;
    // False when the plan within the budget has more bits than the limit.
    const auto add_within = [&](std::uint64_t budget_bytes) {
        options.budget_bytes = budget_bytes;
        lk_plan *made = nullptr;
        const lk_status status = lk_calibrator_pmkvq(source.statistics, &options, &made);
        if (status != LK_E_BUDGET)
            llama::check(status);
        llama::PlanHandle plan(made);
        const bool fits = made == nullptr || sized(source, made, serving).bits_per_value <= limit;
        if (fits && made != nullptr)
            out.push_back({0, std::move(plan), serving});
        return fits;
    };
    const std::uint64_t whole =
        sized(source, make_uniform(source, 16, 16, 0, 0).get(), {}).cache_bytes;
    std::uint64_t below = 0, above = whole;
    while (above - below > kBudgetStep) {
        const std::uint64_t budget_bytes = below + (above - below) / 2;
        (add_within(budget_bytes) ? below : above) = budget_bytes;
    }
    // In models with windows a step alone may need a budget that leaves space for wider pages.
    options.n_widths = 1;
    options.widths[0] = kLayerWidths[std::size(kLayerWidths) - 1];
    add_within(whole);
    return out;
}

Candidates make_autos(const Source &source, double limit) {
    lk_auto options = llama::initialised(lk_auto_init);
    options.bits_per_value = limit;
    lk_plan *made = nullptr;
    const lk_status status = lk_calibrator_auto(source.statistics, &options, &made);
    return made_or_none(status, made);
}

// kitty-pro with other numbers of recent tokens, for long answers.
Candidates make_recent(const Source &source, std::uint32_t recent_tokens) {
    const lk_geometry geometry = source.geometry();
    lk_plan *made = nullptr;
    llama::check(lk_plan_preset("kitty-pro", &geometry, &made));
    Candidates out;
    out.push_back({0, llama::PlanHandle(made)});
    llama::check(lk_plan_set_recent(made, kSinkTokens, recent_tokens));
    return out;
}

// Null when none is within the limit.
const Candidate *largest(const Source &source, const Candidates &candidates, double limit) {
    const auto bits_of = [&](const Candidate &one) {
        return sized(source, one.plan.get(), one.serving).bits_per_value;
    };
    const Candidate *best = nullptr;
    for (const Candidate &one : candidates) {
        const double bits = bits_of(one);
        if (bits > limit)
            continue;
        if (best == nullptr || one.rank > best->rank ||
            (one.rank == best->rank && bits > bits_of(*best)))
            best = &one;
    }
    return best;
}

std::string plan_name(const std::string &family, double limit) {
    std::string text = format_fixed(limit, 3);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.')
        text.pop_back();
    return family + "@" + text;
}

// A maker of one list of plans for all limits.
Maker any_limit(Candidates (*make)(const Source &)) {
    return [make](const Source &source, double) { return make(source); };
}

const std::vector<Family> &all_families() {
    static const Serving descending = {0, true, 0};
    static const std::vector<Family> families = {
        {"kivi", any_limit([](const Source &source) { return make_kivi(source, 0); })},
        {"kivi+sink",
         any_limit([](const Source &source) { return make_kivi(source, kSinkTokens); })},
        {"kitty", any_limit(make_kitty)},
        {"chanmix", any_limit([](const Source &source) {
             return make_chanmixes(source, {32, 64, 128});
         })},
        {"chanmix G128",
         any_limit([](const Source &source) { return make_chanmixes(source, {128}); })},
        {"cocktail", make_cocktails},
        {"pm-kvq",
         [](const Source &source, double limit) {
             return make_pmkvqs(source, limit, pmkvq_options(LK_SENSITIVITY_OUTPUT), descending);
         }},
        {"pm-kvq-paper",
         [](const Source &source, double limit) {
             return make_pmkvqs(source, limit, published_pmkvq_options(), descending);
         }},
        {"auto", make_autos},
        {"pm-kvq-progressive",
         [](const Source &source, double limit) {
             return make_pmkvqs(source, limit, pmkvq_options(LK_SENSITIVITY_OUTPUT),
                                {0, true, source.n_tokens});
         },
         true},
        {"pm-kvq-budgets",
         [](const Source &source, double limit) {
             return make_pmkvqs(source, limit, pmkvq_options(LK_SENSITIVITY_OUTPUT, 1), {});
         },
         true},
        {"pm-kvq-gradients",
         [](const Source &source, double limit) {
             return make_pmkvqs(source, limit, pmkvq_options(LK_SENSITIVITY_GRADIENT), descending);
         },
         true},
        {"default", make_defaults, true},
        {"kitty-pro recent 0",
         any_limit([](const Source &source) { return make_recent(source, 0); }), true},
        {"kitty-pro recent 512",
         any_limit([](const Source &source) { return make_recent(source, 512); }), true},
        {"kitty-pro recent 1024",
         any_limit([](const Source &source) { return make_recent(source, 1024); }), true},
    };
    return families;
}

bool is_wanted(const Family &family, const std::vector<std::string> &names) {
    return names.empty() ? !family.is_asked
                         : std::find(names.begin(), names.end(), family.name) != names.end();
}

}  // namespace

std::vector<SuitePlan> family_plans(const lk_calibrator *statistics,
                                    const std::vector<double> &limits,
                                    const std::vector<std::string> &families,
                                    std::uint64_t n_tokens) {
    const Source source = {statistics, geometry_of(statistics), n_tokens};
    std::vector<SuitePlan> plans;
    for (const double limit : limits)
        for (const Family &family : all_families()) {
            if (!is_wanted(family, families))
                continue;
            const Candidates candidates = family.make(source, limit);
            const Candidate *one = largest(source, candidates, limit);
            if (one != nullptr)
                plans.push_back({plan_name(family.name, limit), family.name, limit,
                                 llama::copy_plan(one->plan.get()), one->serving});
        }
    return plans;
}

}  // namespace cli
