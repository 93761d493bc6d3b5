// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_layers.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/common/report.h"
#include "cli/plan/plan_facts.h"

namespace cli {
namespace {

constexpr char kFp16[] = "fp16";

// An entry of a run-length list for every layer.
std::vector<Json> every_layer(const Json &runs) {
    std::vector<Json> out;
    for (Json run : runs) {
        const auto count = run.value("count", 1u);
        run["count"] = 1;
        out.insert(out.end(), count, run);
    }
    return out;
}

// What of a layer decides its time: which channels are of a class does not, nor do numbers that are
// subtracted or multiplied.
std::string kind_of(Json geometry, Json layer) {
    layer.erase("shrink_order");
    layer.erase("budget_bytes");
    for (Json &head : layer["heads"])
        for (const char *side : {"key", "value"}) {
            if (!head.contains(side))
                continue;  // values of a latent layer
            Json &rule = head[side];
            if (rule.contains("classes"))
                std::sort(rule["classes"].begin(), rule["classes"].end());
            for (const char *numbers : {"centers", "scales", "clip"})
                if (rule.contains(numbers))
                    rule[numbers] = true;
        }
    return geometry.dump() + layer.dump();
}

// The geometry of a model of this layer alone, as the library writes it.
Json geometry_of_layer(const Json &layer) {
    lk_layer own = llama::initialised(lk_layer_init);
    own.n_query_heads = layer["query_heads"];
    own.n_kv_heads = layer["kv_heads"];
    own.head_dim = layer["head_dim"];
    own.value_dim = layer.value("value_dim", 0u);
    own.flags = layer.value("latent", false) ? LK_LAYER_LATENT : 0;
    own.window_tokens = layer.value("window", 0u);
    own.window_sink_tokens = layer.value("window_sinks", 0u);
    own.scale = layer.value("scale", 0.0f);
    own.soft_cap = layer.value("soft_cap", 0.0f);
    lk_geometry geometry = llama::initialised(lk_geometry_init);
    geometry.n_layers = 1;
    geometry.layers = &own;
    lk_plan *plan = nullptr;
    llama::check(lk_plan_preset(kFp16, &geometry, &plan));
    return Json::parse(plan_json(llama::PlanHandle(plan).get()))["geometry"];
}

llama::PlanHandle plan_of_layer(Json whole, const Json &geometry, Json layer) {
    layer.erase("shrink_order");
    layer.erase("budget_bytes");
    whole["geometry"] = geometry_of_layer(geometry);
    whole["layers"] = Json::array({layer});
    const std::string text = whole.dump();
    lk_plan *plan = nullptr;
    llama::check(lk_plan_from_json(text.data(), text.size(), &plan));
    return llama::PlanHandle(plan);
}

bool equal_shapes(const Shape &a, const Shape &b) {
    return a.n_query_heads == b.n_query_heads && a.n_kv_heads == b.n_kv_heads &&
           a.head_dim == b.head_dim && a.output_dim() == b.output_dim() &&
           a.is_latent == b.is_latent;
}

// All layers of one plan in one setting.
struct Sum {
    const BenchRow *first = nullptr;
    std::uint32_t n_layers = 0, n_kinds = 0;
    double seconds = 0, fp16_s = 0;

    double speedup() const { return fp16_s / seconds; }
};

bool same_setting(const BenchRow &a, const BenchRow &b) {
    return a.n_tokens == b.n_tokens && a.batch == b.batch && a.n_threads == b.n_threads &&
           a.n_new == b.n_new;
}

std::vector<Sum> sums_of(const std::vector<BenchRow> &rows) {
    std::vector<Sum> sums;
    for (const BenchRow &row : rows) {
        if (row.whole_plan.empty())
            continue;
        auto sum = std::find_if(sums.begin(), sums.end(), [&](const Sum &one) {
            return one.first->whole_plan == row.whole_plan && same_setting(*one.first, row);
        });
        if (sum == sums.end())
            sum = sums.insert(sums.end(), Sum{&row});
        const auto fp16 = std::find_if(rows.begin(), rows.end(), [&](const BenchRow &other) {
            return other.plan == kFp16 && same_setting(other, row);
        });
        sum->n_layers += row.n_layers;
        ++sum->n_kinds;
        sum->seconds += row.n_layers * row.time.median_s;
        sum->fp16_s += row.n_layers * fp16->time.median_s;
    }
    return sums;
}

}  // namespace

std::vector<LayerKind> layer_kinds(const lk_plan *plan) {
    const Json whole = Json::parse(plan_json(plan));
    const std::vector<Json> geometry = every_layer(whole["geometry"]["layers"]);
    const std::vector<Json> layers = every_layer(whole["layers"]);
    std::map<std::string, std::size_t> known;
    std::vector<LayerKind> kinds;
    for (std::uint32_t l = 0; l < layers.size(); ++l) {
        const auto [found, is_new] = known.emplace(kind_of(geometry[l], layers[l]), kinds.size());
        if (is_new)
            kinds.push_back({plan_of_layer(whole, geometry[l], layers[l]), {}});
        kinds[found->second].layers.push_back(l);
    }
    return kinds;
}

std::string layer_words(const std::vector<std::uint32_t> &layers) {
    std::string words;
    for (std::size_t i = 0; i < layers.size();) {
        std::size_t last = i;
        while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1)
            ++last;
        words += (words.empty() ? "" : ", ") + std::to_string(layers[i]);
        if (last != i)
            words += ".." + std::to_string(layers[last]);
        i = last + 1;
    }
    return words;
}

void take_shape(BenchOptions &options) {
    const Shape &given = options.shape;
    const llama::Geometry one = given.geometry();
    bool has_many = false;
    for (const std::string &name : options.plans) {
        const llama::PlanHandle plan = load_plan(name, one);
        if (plan_shape(plan.get()).n_layers < 2)
            continue;
        const std::vector<Json> layers =
            every_layer(Json::parse(plan_json(plan.get()))["geometry"]["layers"]);
        const auto shape_of = [](const Json &layer) {
            Shape shape = {layer["query_heads"], layer["kv_heads"], layer["head_dim"]};
            shape.value_dim = layer.value("value_dim", 0u);
            shape.is_latent = layer.value("latent", false);
            return shape;
        };
        const Shape own = shape_of(layers.front());
        for (const Json &layer : layers)
            if (!equal_shapes(shape_of(layer), has_many ? options.shape : own))
                throw UsageError(name +
                                 " has layers of several shapes, or of another than the "
                                 "plan before it; time them apart");
        options.shape = own;
        has_many = true;
    }
    if (has_many &&
        std::find(options.plans.begin(), options.plans.end(), kFp16) == options.plans.end())
        options.plans.insert(options.plans.begin(), kFp16);
}

void print_sums(const std::vector<BenchRow> &rows) {
    const std::vector<Sum> sums = sums_of(rows);
    if (sums.empty())
        return;
    std::printf("\nall layers of a plan, for one step of each sequence\n\n");
    Table table({"plan", "layers", "distinct", "batch", "tokens", "us", "fp16, us", "x fp16"});
    for (const Sum &sum : sums)
        table.add({sum.first->whole_plan, std::to_string(sum.n_layers), std::to_string(sum.n_kinds),
                   std::to_string(sum.first->batch), std::to_string(sum.first->n_tokens),
                   format_fixed(sum.seconds * 1e6, 1), format_fixed(sum.fp16_s * 1e6, 1),
                   format_speedup(sum.speedup())});
    table.print();
}

void add_stats(const std::vector<BenchRow> &rows, Json &json) {
    for (const Sum &sum : sums_of(rows))
        json["sums"].push_back({{"plan", sum.first->whole_plan},
                                {"layers", sum.n_layers},
                                {"distinct_layers", sum.n_kinds},
                                {"tokens", sum.first->n_tokens},
                                {"batch", sum.first->batch},
                                {"new_tokens", sum.first->n_new},
                                {"threads", sum.first->n_threads},
                                {"sum_s", sum.seconds},
                                {"fp16_sum_s", sum.fp16_s},
                                {"speed_over_fp16", sum.speedup()}});
}

}  // namespace cli
