// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/pmkvq.h"

#include <lowkey/calibrate.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/calibrate/sampling.h"
#include "cli/common/output_file.h"
#include "cli/common/report.h"
#include "cli/common/widths.h"
#include "cli/plan/plan_view.h"

namespace cli {
namespace {

// Of the published code: one sink, rounded up to a tile, and what does not fill a page yet.
constexpr std::uint32_t kPaperSinks = 16;
constexpr std::uint32_t kPaperGroup = 128;
// While pages move down, docs/PLAN.md.
constexpr std::uint64_t kMovingBytes = 256 << 10;

const std::map<std::string, lk_sensitivity> kSensitivities = {{"gradient", LK_SENSITIVITY_GRADIENT},
                                                              {"output", LK_SENSITIVITY_OUTPUT}};
const std::map<std::string, lk_axis> kAxes = {{"channel", LK_AXIS_CHANNEL},
                                              {"token", LK_AXIS_TOKEN}};

std::uint64_t bytes_at(const lk_plan *plan, std::uint64_t n_tokens,
                       const PmkvqOptions::Budget &budget) {
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(lk_plan_bytes(plan, n_tokens, budget.n_sequences, budget.step_tokens, &size));
    return size.cache_bytes + kMovingBytes;
}

// The next layer to go down: of the widest rung, the first in order. False when there is none.
bool next_layer(const lk_plan *plan, std::uint32_t n_layers, std::uint32_t &layer) {
    Ladder best;
    bool found = false;
    for (std::uint32_t l = 0; l < n_layers; ++l) {
        const Ladder own = ladder_of(plan, l);
        if (own.n_rungs == 0 || own.rung == own.rungs[own.n_rungs - 1])
            continue;
        if (!found || own.rung > best.rung || (own.rung == best.rung && own.order < best.order)) {
            best = own;
            layer = l;
            found = true;
        }
    }
    return found;
}

bool has_layer_budgets(const lk_plan *plan) {
    for (std::uint32_t l = 0; l < plan_shape(plan).n_layers; ++l) {
        std::uint64_t bytes = 0;
        llama::check(lk_plan_get_layer_budget(plan, l, &bytes));
        if (bytes != 0)
            return true;
    }
    return false;
}

// The first length, above `fits`, at which a layer's budget leaves it below a rung; `none` without.
std::uint64_t first_below(const lk_plan *plan, std::uint32_t layer, std::uint32_t rung,
                          const PmkvqOptions::Budget &budget, std::uint64_t fits,
                          std::uint64_t none) {
    std::uint64_t below = none;
    while (fits + 1 < below) {
        const std::uint64_t middle = fits + (below - fits) / 2;
        std::uint32_t now = 0;
        llama::check(
            lk_plan_rung(plan, layer, middle, budget.n_sequences, budget.step_tokens, &now));
        (now < rung ? below : fits) = middle;
    }
    return below;
}

std::vector<Descent> budgeted_descents(const lk_plan *plan, const PmkvqOptions::Budget &budget) {
    std::vector<Descent> out;
    for (std::uint32_t l = 0; l < plan_shape(plan).n_layers; ++l) {
        const Ladder own = ladder_of(plan, l);
        std::uint64_t fits = 0;
        for (std::uint32_t r = 0; r + 1 < own.n_rungs; ++r) {
            if (own.rungs[r] > own.rung)
                continue;
            const std::uint64_t below =
                first_below(plan, l, own.rungs[r], budget, fits, budget.n_tokens + 1);
            if (below > budget.n_tokens)
                break;
            out.push_back({below, l, own.rungs[r + 1]});
            fits = below - 1;
        }
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Descent &a, const Descent &b) { return a.n_tokens < b.n_tokens; });
    return out;
}

void write_scales(const lk_calibrator *calibrator, const std::string &path) {
    Json header = {{"__metadata__", {{"format", "lowkey-key-scales"}}}};
    std::string data;
    const std::vector<lk_layer> layers = geometry_of(calibrator);
    for (std::uint32_t l = 0; l < layers.size(); ++l) {
        const std::size_t begin = data.size();
        std::vector<float> scales(layers[l].head_dim);
        for (std::uint32_t h = 0; h < layers[l].n_kv_heads; ++h) {
            llama::check(lk_calibrator_get_key_scales(calibrator, l, h, scales.data(), nullptr));
            data.append(reinterpret_cast<const char *>(scales.data()),
                        scales.size() * sizeof scales[0]);
        }
        header["layer." + std::to_string(l) + ".key_scales"] = {
            {"dtype", "F32"},
            {"shape", {layers[l].n_kv_heads, layers[l].head_dim}},
            {"data_offsets", {begin, data.size()}}};
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = text.size();
    std::string file(sizeof length, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    write_file(path, file + text + data);
}

std::string width_words(const lk_plan *end, const PlanShape &shape, std::uint32_t layer,
                        bool is_value) {
    std::vector<std::uint32_t> widths;
    for (std::uint32_t h = 0; h < shape.n_kv_heads[layer]; ++h) {
        std::uint32_t bits = 0, boosted = 0;
        llama::check(
            lk_plan_width(end, layer, h, is_value ? 1 : 0, 0, 0, LK_CHUNK_NONE, &bits, &boosted));
        widths.push_back(bits);
    }
    if (std::all_of(widths.begin(), widths.end(),
                    [&](std::uint32_t bits) { return bits == widths[0]; }))
        return std::to_string(widths[0]);
    std::string words;
    for (const std::uint32_t bits : widths)
        words += (words.empty() ? "" : " ") + std::to_string(bits);
    return words;
}

// Sums over the heads of a layer, at the narrowest width; 0 where it is not known.
double layer_cost(const lk_calibrator *calibrator, std::uint32_t layer, std::uint32_t n_heads,
                  const lk_pmkvq &options, std::uint32_t bits) {
    double sum = 0;
    for (std::uint32_t h = 0; h < n_heads; ++h)
        for (std::uint32_t is_value = 0; is_value < 2; ++is_value) {
            double cost = 0;
            llama::check(lk_calibrator_get_sensitivity(calibrator, layer, h, is_value,
                                                       options.sensitivity, bits, &cost));
            sum += cost;
        }
    return sum;
}

// Options as the library understands a sensitivity of 0.
lk_sensitivity known_sensitivity(const lk_calibrator *calibrator) {
    const std::vector<lk_layer> layers = geometry_of(calibrator);
    for (std::uint32_t l = 0; l < layers.size(); ++l)
        for (std::uint32_t is_value = 0; is_value < 2; ++is_value) {
            double cost = 0;
            if (lk_calibrator_get_sensitivity(calibrator, l, 0, is_value, LK_SENSITIVITY_GRADIENT,
                                              2, &cost) != LK_OK)
                return LK_SENSITIVITY_OUTPUT;
        }
    return LK_SENSITIVITY_GRADIENT;
}

}  // namespace

std::vector<CLI::Option *> PmkvqOptions::add_to(CLI::App &command) {
    return {
        command
            .add_option("--widths", widths, "that a layer may end at, out of 16, 8, 4 and 2: 4,2")
            ->delimiter(',')
            ->check(
                CLI::IsMember(std::vector<std::uint32_t>(kRungWidths.begin(), kRungWidths.end()))),
        command
            .add_option("--sensitivity", sensitivity,
                        "gradient or output; default gradient where the statistics have it")
            ->check(CLI::IsMember(kSensitivities)),
        command.add_flag("--by-head", by_head, "each KV head ends at a width of its own"),
        command.add_flag("--split", split, "keys and values end at widths of their own"),
        command.add_option("--axis", axis, "of keys: channel (default) or token, as published")
            ->check(CLI::IsMember(kAxes)),
        command.add_flag("--scales", key_scales,
                         "divide keys by the scales that lowkey calibrate --scales found"),
        command.add_flag("--layer-budgets", layer_budgets,
                         "each layer has its own share of the budget and shrinks when that is "
                         "full, as published"),
        command.add_option("--fold", fold,
                           "write these scales to this file, to be folded into the model's "
                           "weights, instead of into the plan")};
}

lk_pmkvq PmkvqOptions::options(const StatisticsOptions &from, const Budget &budget) const {
    lk_pmkvq out = llama::initialised(lk_pmkvq_init);
    if (budget.bytes == 0)
        throw UsageError("pm-kvq with --stats needs --budget BYTES");
    if (widths.empty() || widths.size() > std::size(out.widths))
        throw UsageError("--widths takes one to four widths");
    std::vector<std::uint32_t> descending = widths;
    std::sort(descending.rbegin(), descending.rend());
    out.n_widths = static_cast<std::uint32_t>(descending.size());
    std::copy(descending.begin(), descending.end(), out.widths);
    out.sensitivity = sensitivity.empty() ? 0 : kSensitivities.at(sensitivity);
    out.scope = by_head ? LK_SCOPE_HEAD : LK_SCOPE_LAYER;
    out.separate_values = split ? 1 : 0;
    out.key_axis = kAxes.at(!axis.empty() ? axis : from.paper ? "token" : "channel");
    out.group = from.paper ? kPaperGroup : 0;
    out.key_scales = key_scales && fold.empty() ? 1 : 0;
    out.layer_budgets = layer_budgets || from.paper ? 1 : 0;
    out.sink_tokens = from.sinks(from.paper ? kPaperSinks : out.sink_tokens);
    out.recent_tokens = from.paper ? 0 : out.recent_tokens;
    out.budget_bytes = budget.bytes;
    out.budget_tokens = budget.n_tokens;
    out.budget_sequences = budget.n_sequences;
    out.budget_step_tokens = budget.step_tokens;
    return out;
}

llama::PlanHandle make_pmkvq(const lk_calibrator *calibrator, const PmkvqOptions &options,
                             const StatisticsOptions &from, const PmkvqOptions::Budget &budget) {
    const lk_pmkvq own = options.options(from, budget);
    lk_plan *plan = nullptr;
    llama::check(lk_calibrator_pmkvq(calibrator, &own, &plan));
    llama::PlanHandle handle(plan);
    if (!options.fold.empty())
        write_scales(calibrator, options.fold);
    return handle;
}

std::vector<Descent> descents(const lk_plan *plan, const PmkvqOptions::Budget &budget) {
    if (has_layer_budgets(plan))
        return budgeted_descents(plan, budget);
    std::vector<Descent> out;
    const llama::PlanHandle now = llama::copy_plan(plan);
    const std::uint32_t n_layers = plan_shape(plan).n_layers;
    std::uint64_t fits = 1;
    for (std::uint32_t layer = 0; next_layer(now.get(), n_layers, layer);) {
        std::uint64_t exceeds = budget.n_tokens + 1;
        while (fits + 1 < exceeds) {
            const std::uint64_t middle = fits + (exceeds - fits) / 2;
            (bytes_at(now.get(), middle, budget) <= budget.bytes ? fits : exceeds) = middle;
        }
        if (exceeds > budget.n_tokens)
            break;
        const Ladder own = ladder_of(now.get(), layer);
        std::uint32_t below = 0;
        while (own.rungs[below] >= own.rung)
            ++below;
        llama::check(
            lk_plan_set_ladder(now.get(), layer, own.rungs, own.n_rungs, own.rungs[below]));
        out.push_back({exceeds, layer, own.rungs[below]});
    }
    return out;
}

void print_pmkvq(const lk_plan *plan, const lk_calibrator *calibrator, const lk_pmkvq &options,
                 const PmkvqOptions::Budget &budget) {
    lk_pmkvq known = options;
    if (known.sensitivity == 0)
        known.sensitivity = known_sensitivity(calibrator);
    const PlanShape shape = plan_shape(plan);
    const llama::PlanHandle end = at_last_rungs(plan);
    const std::vector<Descent> steps = descents(plan, budget);
    const std::uint32_t narrowest = known.widths[known.n_widths - 1];
    Table table({"layer", "order", "sensitivity at " + std::to_string(narrowest), "keys", "values",
                 "goes down at tokens"});
    for (std::uint32_t l = 0; l < shape.n_layers; ++l) {
        std::string times;
        for (const Descent &step : steps)
            if (step.layer == l)
                times += (times.empty() ? "" : ", ") + std::to_string(step.rung) + ": " +
                         format_count(step.n_tokens);
        char cost[32];
        std::snprintf(cost, sizeof cost, "%.4g",
                      layer_cost(calibrator, l, shape.n_kv_heads[l], known, narrowest));
        table.add({std::to_string(l), std::to_string(ladder_of(plan, l).order), cost,
                   width_words(end.get(), shape, l, false), width_words(end.get(), shape, l, true),
                   times});
    }
    std::printf("\nbits that each layer ends at, by sensitivities of %s\n",
                known.sensitivity == LK_SENSITIVITY_GRADIENT ? "gradients" : "outputs");
    table.print();
}

Json pmkvq_json(const lk_plan *plan, const PmkvqOptions::Budget &budget) {
    Json steps = Json::array();
    for (const Descent &step : descents(plan, budget))
        steps.push_back({{"tokens", step.n_tokens}, {"layer", step.layer}, {"rung", step.rung}});
    const llama::PlanHandle end = at_last_rungs(plan);
    return {{"bytes_when_full", bytes_at(end.get(), budget.n_tokens, budget)}, {"descents", steps}};
}

}  // namespace cli
