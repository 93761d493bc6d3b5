// SPDX-License-Identifier: Apache-2.0
#include "lab/stress.h"

#include <lowkey/calibrate.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/common/report.h"
#include "cli/common/synthetic.h"
#include "cli/plan/auto_plan.h"
#include "cli/plan/chanmix.h"

namespace cli {
namespace {

constexpr std::uint32_t kContextTokens = 1024;
constexpr std::uint32_t kQueries = 16;  // after the context
constexpr std::uint32_t kCalibrationTokens = 512;
constexpr std::uint32_t kProbePeriod = 100;
constexpr double kFailFactor = 2;
constexpr double kLogitDeviation = 2.0;  // of a query with a key that it does not look for
constexpr double kFoundLogit = 9.0;      // with the one that it does
const char *const kPlain = "plain";

struct Model {
    const char *name;
    Shape shape;
    double rope_theta;
};
const Model kModels[] = {{"Qwen2.5-7B", {28, 4, 128}, 1e6},
                         {"Llama-3.1-8B", {32, 8, 128}, 5e5},
                         {"gpt-oss-20B", {64, 8, 64, std::vector<float>(64, 1.5f)}, 1.5e5}};

// What is put on normal keys. Channels are those before RoPE; pairs are (i, i + head_dim / 2).
struct Scenario {
    const char *name;
    bool has_outliers;   // one pair in sixteen is 12 times as large, its queries as much smaller
    double bias;         // of the pairs that RoPE turns least, in deviations
    bool has_constants;  // half of the channels hardly move about their constant
    bool has_sink;       // token 0 has a key that all queries like, ten times as long, and no value
};
const Scenario kScenarios[] = {
    {kPlain, false, 0, false, false},  {"outliers", true, 0, false, false},
    {"bias", false, 40, false, false}, {"constant", false, 0, true, false},
    {"sink", false, 0, false, true},   {"all", true, 40, true, true}};
constexpr double kOutlier = 12;
constexpr std::uint32_t kOutlierEvery = 16;
constexpr double kConstant = 6, kConstantDeviation = 0.02;
constexpr double kSinkLength = 10;

// Close to a normal number, and the same everywhere.
double draw(llama::Random &random) {
    double sum = 0;
    for (int i = 0; i < 6; ++i)
        sum += static_cast<double>(random.next() >> 11) * 0x1p-53;
    return (sum - 3) * std::sqrt(2.0);
}

// The constants of one KV head in a scenario: means and deviations of its channels before RoPE, and
// what queries are multiplied by where keys are scaled.
struct HeadKind {
    std::vector<double> mean, deviation, query_scale, sink;
};

HeadKind make_kind(const Scenario &scenario, std::uint32_t head_dim, llama::Random &random) {
    HeadKind kind;
    const std::uint32_t n_pairs = head_dim / 2;
    kind.mean.assign(head_dim, 0);
    kind.deviation.assign(head_dim, 1);
    kind.query_scale.assign(head_dim, 1);
    kind.sink.assign(head_dim, 0);
    for (std::uint32_t c = 0; c < head_dim; ++c) {
        const std::uint32_t pair = c % n_pairs;
        if (scenario.has_constants && pair % 2 == 1 && pair >= n_pairs / 2) {
            kind.mean[c] = draw(random) * kConstant;
            kind.deviation[c] = kConstantDeviation;
        }
        if (scenario.bias != 0 && pair + n_pairs / 8 >= n_pairs)
            kind.mean[c] += (draw(random) > 0 ? 1 : -1) * scenario.bias;
        if (scenario.has_outliers && pair % kOutlierEvery == 3) {
            kind.mean[c] *= kOutlier;
            kind.deviation[c] *= kOutlier;
            kind.query_scale[c] /= kOutlier;
        }
        if (scenario.has_sink)
            kind.sink[c] = draw(random);
    }
    return kind;
}

void rotate(double *x, std::uint32_t head_dim, double theta, std::uint32_t position) {
    const std::uint32_t n_pairs = head_dim / 2;
    for (std::uint32_t i = 0; i < n_pairs; ++i) {
        const double angle = position * std::pow(theta, -2.0 * i / head_dim);
        const double a = x[i], b = x[i + n_pairs];
        x[i] = a * std::cos(angle) - b * std::sin(angle);
        x[i + n_pairs] = a * std::sin(angle) + b * std::cos(angle);
    }
}

// A layer of a model in a scenario: its heads are fixed by the seed, tokens come from `random`.
class Layer {
  public:
    Layer(const Model &model, const Scenario &scenario, std::uint64_t seed)
        : model_(model), scenario_(scenario) {
        llama::Random random(seed);
        for (std::uint32_t h = 0; h < model.shape.n_kv_heads; ++h)
            kinds_.push_back(make_kind(scenario, model.shape.head_dim, random));
    }

    // Tokens from position 0 on; each query looks for a token before it.
    StepData make(std::uint32_t n_tokens, llama::Random &random) const {
        StepData data(model_.shape, n_tokens);
        const std::uint32_t group = model_.shape.n_query_heads / model_.shape.n_kv_heads;
        for (std::uint32_t t = 0; t < n_tokens; ++t) {
            for (std::uint32_t h = 0; h < model_.shape.n_kv_heads; ++h)
                fill_key(data, t, h, random);
            for (std::uint32_t h = 0; h < model_.shape.n_query_heads; ++h)
                fill_query(data, t, h, h / group, random);
        }
        return data;
    }

  private:
    void fill_key(StepData &data, std::uint32_t token, std::uint32_t head,
                  llama::Random &random) const {
        const std::uint32_t d = model_.shape.head_dim;
        const HeadKind &kind = kinds_[head];
        const bool is_sink = scenario_.has_sink && token == 0;
        std::vector<double> key(d);
        const std::size_t at = (std::size_t{token} * model_.shape.n_kv_heads + head) * d;
        for (std::uint32_t c = 0; c < d; ++c) {
            key[c] = kind.mean[c] +
                     kind.deviation[c] * (is_sink ? kSinkLength * kind.sink[c] : draw(random));
            data.v[at + c] = static_cast<float>(draw(random) * (is_sink ? 0.01 : 1));
        }
        rotate(key.data(), d, model_.rope_theta, token);
        std::copy(key.begin(), key.end(), data.k.begin() + static_cast<std::ptrdiff_t>(at));
    }

    // Noise, and of one earlier key what differs from the head's mean there.
    void fill_query(StepData &data, std::uint32_t token, std::uint32_t head, std::uint32_t kv_head,
                    llama::Random &random) const {
        const std::uint32_t d = model_.shape.head_dim;
        const HeadKind &kind = kinds_[kv_head];
        const std::uint32_t target = static_cast<std::uint32_t>(random.below(token + 1));
        std::vector<double> mean = kind.mean, sink(d);
        rotate(mean.data(), d, model_.rope_theta, target);
        for (std::uint32_t c = 0; c < d; ++c)
            sink[c] = kind.sink[c];
        const float *key =
            data.k.data() + (std::size_t{target} * model_.shape.n_kv_heads + kv_head) * d;
        float *query = data.q.data() + (std::size_t{token} * model_.shape.n_query_heads + head) * d;
        for (std::uint32_t c = 0; c < d; ++c) {
            const double wanted = (double{key[c]} - mean[c]) * kind.query_scale[c];
            const double found = scenario_.has_sink && target == 0 ? 0 : kFoundLogit / std::sqrt(d);
            query[c] = static_cast<float>(
                (kLogitDeviation * draw(random) + found * wanted +
                 (scenario_.has_sink ? kFoundLogit / std::sqrt(d) / kSinkLength * sink[c] : 0)) *
                kind.query_scale[c]);
        }
    }

    const Model &model_;
    const Scenario &scenario_;
    std::vector<HeadKind> kinds_;
};

struct StressPlan {
    std::string name;
    bool is_default;
    llama::PlanHandle plan;
};

// 4 bits with one range for all channels of a token and nothing at 16 bits.
llama::PlanHandle make_naive(const llama::Geometry &geometry) {
    llama::PlanHandle plan = llama::make_preset("kivi4", geometry);
    lk_key_rule key = llama::initialised(lk_key_rule_init);
    key.bits = 4;
    key.axis = LK_AXIS_TOKEN;
    llama::check(lk_plan_set_key(plan.get(), LK_ALL, LK_ALL, &key));
    llama::check(lk_plan_set_recent(plan.get(), 0, 0));
    return plan;
}

llama::CalibratorHandle calibrate(const Model &model, const llama::Geometry &geometry,
                                  StepData data) {
    lk_layer layer = geometry.layer();
    layer.sink_logits = model.shape.sink_logits.empty() ? nullptr : model.shape.sink_logits.data();
    lk_geometry view = geometry.view();
    view.layers = &layer;
    lk_calibrator *made = nullptr;
    llama::check(lk_calibrator_create(&view, &made));
    llama::CalibratorHandle calibrator(made);
    const Shape &shape = model.shape;
    const lk_tensor keys = llama::float_tensor(LK_MEMORY_HOST, data.k.data(),
                                               {data.n_tokens, shape.n_kv_heads, shape.head_dim});
    const lk_tensor queries = llama::float_tensor(
        LK_MEMORY_HOST, data.q.data(), {data.n_tokens, shape.n_query_heads, shape.head_dim});
    lk_probe probe = llama::initialised(lk_probe_init);
    probe.period_tokens = kProbePeriod;
    llama::check(lk_calibrator_add_keys(made, 0, &keys, data.n_tokens));
    llama::check(lk_calibrator_add_queries(made, 0, &queries, data.n_tokens));
    llama::check(lk_calibrator_add_probe(made, 0, &probe, &queries, &keys, data.n_tokens));
    return calibrator;
}

std::vector<StressPlan> make_plans(const Model &model, StepData samples) {
    const Shape &shape = model.shape;
    const llama::Geometry geometry(1, shape.n_query_heads, shape.n_kv_heads, shape.head_dim);
    const llama::CalibratorHandle statistics = calibrate(model, geometry, std::move(samples));
    std::vector<StressPlan> plans;
    plans.push_back({"fp16", false, llama::make_preset("fp16", geometry)});
    plans.push_back({"4 bits a token", false, make_naive(geometry)});
    for (const char *name : {"kivi4", "kivi2"})
        plans.push_back({name, false, llama::make_preset(name, geometry)});
    for (const char *name : {"kitty-pro", "wide-keys", "wide-keys-pro"})
        plans.push_back({name, true, llama::make_preset(name, geometry)});
    plans.push_back(
        {"chanmix", true, make_chanmix(statistics.get(), llama::initialised(lk_chanmix_init))});
    for (const double bits : {2.5, 4.0}) {
        PlanLimit limit;
        limit.bits_per_value = bits;
        plans.push_back(
            {"auto@" + format_fixed(bits, 1), true, make_auto(statistics.get(), limit)});
    }
    return plans;
}

// What the queries after the context get from a cache.
std::vector<float> attend(lk_context *context, llama::TensorSpace &space, const lk_plan *plan,
                          const Shape &shape, StepData &first, StepData &last) {
    SyntheticCache cache(context, space, plan, shape,
                         {first.n_tokens + last.n_tokens, first.n_tokens});
    cache.begin(first.n_tokens);
    cache.append(first);
    cache.commit();
    cache.begin(last.n_tokens);
    StepResult result;
    cache.append(last);
    cache.attend(last, result);
    cache.commit();
    return result.out;
}

double relative_error(const std::vector<float> &got, const std::vector<float> &want) {
    double error = 0, square = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double d = double{got[i]} - double{want[i]};
        error += d * d;
        square += double{want[i]} * double{want[i]};
    }
    return std::sqrt(error / square);
}

// Tokens [begin, end) of a run.
StepData part_of(const StepData &all, const Shape &shape, std::uint32_t begin, std::uint32_t end) {
    StepData part(shape, end - begin);
    const auto copy = [&](const std::vector<float> &from, std::vector<float> &to) {
        const auto width = static_cast<std::ptrdiff_t>(from.size() / all.n_tokens);
        std::copy(from.begin() + width * begin, from.begin() + width * end, to.begin());
    };
    copy(all.q, part.q);
    copy(all.k, part.k);
    copy(all.v, part.v);
    return part;
}

double bits_of(const lk_plan *plan) {
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(lk_plan_bytes(plan, kContextTokens, 1, kContextTokens, &size));
    return size.bits_per_value;
}

void run_scenario(lk_context *context, llama::TensorSpace &space, const Model &model,
                  const Scenario &scenario, std::uint64_t seed,
                  std::vector<StressResult> &results) {
    const Layer layer(model, scenario, seed);
    llama::Random samples(seed + 1), tokens(seed + 2);
    const std::vector<StressPlan> plans =
        make_plans(model, layer.make(kCalibrationTokens, samples));
    const StepData all = layer.make(kContextTokens + kQueries, tokens);
    StepData first = part_of(all, model.shape, 0, kContextTokens);
    StepData last = part_of(all, model.shape, kContextTokens, kContextTokens + kQueries);
    std::vector<float> exact;
    for (const StressPlan &plan : plans) {
        const std::vector<float> out =
            attend(context, space, plan.plan.get(), model.shape, first, last);
        if (exact.empty()) {
            exact = out;  // the FP16 cache comes first
            continue;
        }
        StressResult result = {model.name,
                               scenario.name,
                               plan.name,
                               plan.is_default,
                               bits_of(plan.plan.get()),
                               relative_error(out, exact),
                               false};
        for (const StressResult &plain : results) {
            if (plain.shape == result.shape && plain.plan == result.plan &&
                plain.scenario == kPlain)
                result.fails = result.output_error > kFailFactor * plain.output_error;
        }
        results.push_back(result);
    }
}

}  // namespace

std::vector<StressResult> run_stress(const DeviceOptions &device, std::uint64_t seed) {
    const llama::ContextHandle context = device.open();
    const std::unique_ptr<llama::TensorSpace> space = device.space();
    std::vector<StressResult> results;
    Progress progress(std::size(kModels) * std::size(kScenarios));
    for (const Model &model : kModels) {
        for (const Scenario &scenario : kScenarios) {
            progress.step(std::string(model.name) + ", " + scenario.name);
            run_scenario(context.get(), *space, model, scenario, seed, results);
        }
    }
    return results;
}

void print_stress(const std::vector<StressResult> &results) {
    for (const Model &model : kModels) {
        std::vector<std::string> header = {model.name, "bits/value"};
        for (const Scenario &scenario : kScenarios)
            header.emplace_back(scenario.name);
        Table table(header);
        for (const StressResult &row : results) {
            if (row.shape != model.name || row.scenario != kPlain)
                continue;
            std::vector<std::string> cells = {row.plan, format_fixed(row.bits_per_value, 3)};
            for (const StressResult &cell : results) {
                if (cell.shape == row.shape && cell.plan == row.plan)
                    cells.push_back(format_fixed(100 * cell.output_error, 1) +
                                    (cell.fails ? " fails" : ""));
            }
            table.add(cells);
        }
        table.print();
        std::printf("\n");
    }
    std::printf(
        "error of attention's output in percent of the FP16 cache's output, %u tokens of context;\n"
        "fails: more than %.0f times the error of the plain keys\n",
        kContextTokens, kFailFactor);
}

Json stress_json(const std::vector<StressResult> &results) {
    Json list = Json::array();
    for (const StressResult &result : results)
        list.push_back({{"shape", result.shape},
                        {"scenario", result.scenario},
                        {"plan", result.plan},
                        {"is_default", result.is_default},
                        {"bits_per_value", result.bits_per_value},
                        {"output_error", result.output_error},
                        {"fails", result.fails}});
    return {{"build", lk_build_info()}, {"results", list}};
}

}  // namespace cli
