// lowkey verify: every fast path of a device against the reference.
//
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/common/command.h"
#include "cli/common/report.h"
#include "cli/common/synthetic.h"

namespace cli {
namespace {

// Outputs may differ by this share of the largest |V|, logarithms of sums by this share of
// max(1, |lse|). On the CPU sums in float32 stay near 1e-6; a path may also round queries to 16
// bits. GPUs take queries and probabilities as FP16, of 11 bits.
constexpr double kCpuBound = 2e-4;
constexpr double kGpuBound = 2e-3;
constexpr std::uint64_t kSeed = 20240607;

const Shape kShapes[] = {{8, 2, 128}, {4, 4, 64}, {6, 2, 80}, {16, 1, 96}, {3, 3, 32}, {4, 2, 256}};
// A prompt, a chunk longer than a draft, a draft, then single tokens.
const std::uint32_t kSteps[] = {700, 100, 7, 1, 1, 1};

struct VerifyOptions {
    DeviceOptions device;
    bool json = false;
};

struct Path {
    std::string name;
    llama::ContextHandle context;
    std::unique_ptr<llama::TensorSpace> space;
};

struct Outcome {
    std::string path, plan;
    Shape shape;
    double out_error;  // share of the largest |V|
    double lse_error;
    bool ok;
};

double bound_of(const DeviceOptions &device) {
    return device.backend() == LK_BACKEND_CPU ? kCpuBound : kGpuBound;
}

std::string features_of(const lk_context *context) {
    lk_device_info info = llama::initialised(lk_device_info_init);
    llama::check(lk_context_device(context, &info));
    return info.features;
}

// The distinct fast paths: the device's best, then with instruction sets of the CPU taken away.
std::vector<Path> fast_paths(const DeviceOptions &device) {
    const std::uint32_t masks[] = {0, LK_CPU_NO_AVX512, LK_CPU_NO_AVX512 | LK_CPU_NO_AVX2,
                                   LK_CPU_NO_NEON};
    std::vector<Path> paths;
    std::vector<std::string> seen;
    for (const std::uint32_t mask : masks) {
        if (mask != 0 && device.backend() != LK_BACKEND_CPU)
            break;
        llama::ContextHandle context = device.open(mask);
        const std::string features = features_of(context.get());
        if (std::find(seen.begin(), seen.end(), features) != seen.end())
            continue;
        seen.push_back(features);
        paths.push_back(
            {features.empty() ? "portable" : features, std::move(context), device.space()});
    }
    return paths;
}

std::vector<StepResult> run_steps(lk_context *context, llama::TensorSpace &space,
                                  const lk_plan *plan, const Shape &shape) {
    std::uint32_t n_tokens = 0;
    for (const std::uint32_t count : kSteps)
        n_tokens += count;
    SyntheticCache cache(context, space, plan, shape, {n_tokens, kSteps[0]});
    llama::Random random(kSeed + shape.head_dim);
    std::vector<StepResult> results;
    for (const std::uint32_t count : kSteps) {
        StepData data(shape, count, random);
        results.emplace_back();
        cache.begin(count);
        cache.append(data);
        cache.attend(data, results.back());
        cache.commit();
    }
    return results;
}

double largest_value(const Shape &shape) {
    llama::Random random(kSeed + shape.head_dim);
    double largest = 0;
    for (const std::uint32_t count : kSteps) {
        const StepData data(shape, count, random);
        for (const float v : data.v)
            largest = std::max(largest, std::fabs(double{v}));
    }
    return largest;
}

// A NaN compares as an infinite error.
double worse(double worst, double error) {
    return std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
}

Outcome compare(const std::vector<StepResult> &fast, const std::vector<StepResult> &reference,
                double value_scale, double bound) {
    Outcome outcome{"", "", {}, 0, 0, false};
    for (std::size_t s = 0; s < reference.size(); ++s) {
        for (std::size_t i = 0; i < reference[s].out.size(); ++i) {
            const double difference = std::fabs(double{fast[s].out[i]} - reference[s].out[i]);
            outcome.out_error = worse(outcome.out_error, difference / value_scale);
        }
        for (std::size_t i = 0; i < reference[s].lse.size(); ++i) {
            const double want = reference[s].lse[i];
            const double difference = std::fabs(double{fast[s].lse[i]} - want);
            outcome.lse_error =
                worse(outcome.lse_error, difference / std::max(1.0, std::fabs(want)));
        }
    }
    outcome.ok = outcome.out_error <= bound && outcome.lse_error <= bound;
    return outcome;
}

std::vector<Outcome> verify_all(const VerifyOptions &options) {
    const std::vector<Path> paths = fast_paths(options.device);
    const llama::ContextHandle reference =
        llama::open_context(LK_BACKEND_CPU, 0, options.device.n_threads, LK_CPU_REFERENCE_ONLY);
    llama::HostSpace host;
    const std::vector<std::string> plans = preset_names();
    Progress progress(plans.size() * (sizeof kShapes / sizeof kShapes[0]));
    std::vector<Outcome> outcomes;
    for (const Shape &shape : kShapes) {
        const double value_scale = largest_value(shape);
        const llama::Geometry geometry = shape.geometry();
        for (const std::string &name : plans) {
            progress.step(name + ", head_dim " + std::to_string(shape.head_dim));
            const llama::PlanHandle plan = llama::make_preset(name, geometry);
            const auto expected = run_steps(reference.get(), host, plan.get(), shape);
            for (const Path &path : paths) {
                Outcome outcome =
                    compare(run_steps(path.context.get(), *path.space, plan.get(), shape), expected,
                            value_scale, bound_of(options.device));
                outcome.path = path.name;
                outcome.plan = name;
                outcome.shape = shape;
                outcomes.push_back(std::move(outcome));
            }
        }
    }
    return outcomes;
}

Json to_json(const std::vector<Outcome> &outcomes, const DeviceOptions &device, bool ok) {
    Json cases = Json::array();
    for (const Outcome &o : outcomes) {
        cases.push_back({{"path", o.path},
                         {"plan", o.plan},
                         {"query_heads", o.shape.n_query_heads},
                         {"kv_heads", o.shape.n_kv_heads},
                         {"head_dim", o.shape.head_dim},
                         {"out_error", o.out_error},
                         {"lse_error", o.lse_error},
                         {"ok", o.ok}});
    }
    return {{"device", device.device},
            {"out_bound", bound_of(device)},
            {"lse_bound", bound_of(device)},
            {"ok", ok},
            {"cases", cases}};
}

std::string format_error(double error) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1e", error);
    return text;
}

void print_table(const std::vector<Outcome> &outcomes, double bound) {
    Table table({"path", "plan", "query heads", "KV heads", "head_dim", "out", "lse", ""});
    std::size_t n_wrong = 0;
    for (const Outcome &o : outcomes) {
        table.add({o.path, o.plan, std::to_string(o.shape.n_query_heads),
                   std::to_string(o.shape.n_kv_heads), std::to_string(o.shape.head_dim),
                   format_error(o.out_error), format_error(o.lse_error), o.ok ? "ok" : "WRONG"});
        n_wrong += !o.ok;
    }
    table.print();
    std::printf(
        "%zu of %zu cases agree with the reference within %.0e of the largest |V| (out) and "
        "%.0e (lse).\n",
        outcomes.size() - n_wrong, outcomes.size(), bound, bound);
}

int run_verify(const VerifyOptions &options) {
    const std::vector<Outcome> outcomes = verify_all(options);
    const bool ok = std::all_of(outcomes.begin(), outcomes.end(),
                                [](const Outcome &outcome) { return outcome.ok; });
    if (options.json) {
        print_json(to_json(outcomes, options.device, ok));
    } else {
        print_table(outcomes, bound_of(options.device));
    }
    return ok ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand(
        "verify", "compare every fast path of a device with the double-precision reference");
    command->footer(
        "Examples:\n  lowkey verify\n  lowkey verify --device cuda\n  lowkey verify --device "
        "vulkan\n"
        "Every preset runs on seeded data through a prompt, a chunk, a draft and single tokens,\n"
        "once with the reference and once per fast path. out is the largest difference as a share\n"
        "of the largest |V|; lse that of the logarithm of the sum. Exit code 1 when one is beyond\n"
        "its bound.");
    const auto options = std::make_shared<VerifyOptions>();
    options->device.add_to(*command);
    command->add_flag("--json", options->json, "print JSON");
    command->callback([options, &exit_code] { exit_code = run_verify(*options); });
}

}  // namespace cli
