// SPDX-License-Identifier: Apache-2.0
#include "lab/shift_ablation.h"

#include <lowkey/calibrate.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "cli/common/report.h"
#include "lab/shift_modes.h"

namespace cli {
namespace {

// What the paper keeps as it is: the first token, and what does not fill a flush of its window.
constexpr std::uint32_t kShiftSinkTokens = 1;
constexpr std::uint32_t kFlushTokens = 128;
constexpr std::uint64_t kNumberBytes = 4;  // of a group: a step and a zero of 16 bits

constexpr std::size_t kWidths = 3;
constexpr std::uint32_t kChoices[kWidths] = {8, 4, 2};

enum class Widths {
    kEqual,        // `bits` in every layer
    kAlternating,  // 4 and 2, layer by layer: as many bytes as 3 everywhere
    kChosen,       // by sensitivity, in the bytes of `bits` everywhere
};

// AIME24 pass@1 of DeepSeek-R1-Distill-LLaMA-8B: the paper's ablation of shifts, at 4 bits, in
// brackets its main table, which block-wise widths are in, and in square ones its ablation of
// positions, on AIME24-I.
struct Row {
    const char *name;
    ShiftMode mode;
    std::uint32_t bits;
    Widths widths;
    const char *published;
    double position_scale = 1;  // of the text that chosen widths come from
};
constexpr Row kRows[] = {
    {"direct, 4", ShiftMode::kDirect, 4, Widths::kEqual, "12.08"},
    {"modified, 4", ShiftMode::kModified, 4, Widths::kEqual, "28.75"},
    {"equivalent, 4", ShiftMode::kEquivalent, 4, Widths::kEqual, "38.33 (43.33)"},
    {"block-wise, 4", ShiftMode::kEquivalent, 4, Widths::kChosen, "(47.71 at 4 and 8)"},
    {"alternating, 3", ShiftMode::kEquivalent, 3, Widths::kAlternating, "-"},
    {"block-wise, 3", ShiftMode::kEquivalent, 3, Widths::kChosen, "[46.67]"},
    {"block-wise, 3, positions x 4", ShiftMode::kEquivalent, 3, Widths::kChosen, "[48.33]", 4},
    {"block-wise, 3, positions x 16", ShiftMode::kEquivalent, 3, Widths::kChosen, "[46.67]", 16},
    {"direct, 2", ShiftMode::kDirect, 2, Widths::kEqual, "-"},
    {"modified, 2", ShiftMode::kModified, 2, Widths::kEqual, "-"},
    {"equivalent, 2", ShiftMode::kEquivalent, 2, Widths::kEqual, "-"},
};
constexpr const char *kPublishedFp16 = "44.17";

std::uint64_t token_bytes(const llama::Config &c, std::uint32_t bits) {
    return 2ull * c.n_kv_heads * (c.head_dim * bits / 8 + kNumberBytes);
}

double bits_per_value(const llama::Config &c, const std::vector<std::uint32_t> &widths) {
    double bytes = 0;
    for (const std::uint32_t bits : widths)
        bytes += static_cast<double>(token_bytes(c, bits));
    const double n_values = 2.0 * c.n_kv_heads * c.head_dim * static_cast<double>(widths.size());
    return 8 * bytes / n_values;
}

lk_tensor step_tensor(float *data, std::uint32_t n_heads, std::uint32_t head_dim) {
    lk_tensor tensor = llama::initialised(lk_tensor_init);
    tensor.data = data;
    tensor.dtype = LK_F32;
    tensor.memory = LK_MEMORY_HOST;
    tensor.head_stride = head_dim;
    tensor.token_stride = std::int64_t{n_heads} * head_dim;
    return tensor;
}

// What each width costs each layer, by the error of its attention's output on one document.
std::vector<double> layer_costs(llama::Model &model, const llama::Tokens &tokens,
                                double position_scale) {
    const llama::Config &c = model.config();
    const llama::Geometry shape = model.geometry();
    const lk_geometry geometry = shape.view();
    lk_calibrator *made = nullptr;
    llama::check(lk_calibrator_create(&geometry, &made));
    const llama::CalibratorHandle calibrator(made);
    const llama::PlanHandle plan = llama::make_preset("fp16", shape);
    const llama::ContextHandle context =
        llama::open_context(LK_BACKEND_CPU, 0, model.n_threads(), 0);
    llama::HostSpace space;
    llama::Session session(context.get(), space, model, plan.get(), tokens.size(),
                           static_cast<std::uint32_t>(tokens.size()));
    session.observe([&](std::uint32_t layer, std::uint32_t n_tokens, float *q, float *k, float *v) {
        const lk_tensor queries = step_tensor(q, c.n_query_heads, c.head_dim);
        const lk_tensor keys = step_tensor(k, c.n_kv_heads, c.head_dim);
        const lk_tensor values = step_tensor(v, c.n_kv_heads, c.head_dim);
        llama::check(lk_calibrator_add_attention(made, layer, &queries, &keys, &values, n_tokens));
    });
    model.stretch_positions(position_scale);
    (void)session.feed(tokens);
    model.stretch_positions(1);
    std::vector<double> costs;
    for (std::uint32_t layer = 0; layer < c.n_layers; ++layer)
        for (const std::uint32_t bits : kChoices) {
            double sum = 0;
            for (std::uint32_t head = 0; head < 2 * c.n_kv_heads; ++head) {
                double one = 0;
                llama::check(lk_calibrator_get_sensitivity(made, layer, head / 2, head % 2,
                                                           LK_SENSITIVITY_OUTPUT, bits, &one));
                sum += one;
            }
            costs.push_back(sum);
        }
    return costs;
}

// One width for each layer, in the bytes of `bits` in all of them.
std::vector<std::uint32_t> choose_widths(const llama::Config &c, const std::vector<double> &costs,
                                         std::uint32_t bits) {
    std::vector<std::uint64_t> bytes;
    for (std::uint32_t layer = 0; layer < c.n_layers; ++layer)
        for (const std::uint32_t width : kChoices)
            bytes.push_back(token_bytes(c, width));
    std::vector<std::uint32_t> chosen(c.n_layers);
    llama::check(lk_solve_widths(c.n_layers, kWidths, costs.data(), bytes.data(),
                                 c.n_layers * token_bytes(c, bits), chosen.data(), nullptr));
    for (std::uint32_t &width : chosen)
        width = kChoices[width];
    return chosen;
}

std::vector<std::uint32_t> row_widths(const llama::Config &c, const std::vector<double> &costs,
                                      const Row &row) {
    if (row.widths == Widths::kChosen)
        return choose_widths(c, costs, row.bits);
    std::vector<std::uint32_t> widths(c.n_layers, row.bits);
    for (std::uint32_t layer = 0; row.widths == Widths::kAlternating && layer < c.n_layers; ++layer)
        widths[layer] = layer % 2 == 0 ? 4 : 2;
    return widths;
}

// Tokens that went from the window to the main cache go down to the layer's width.
llama::PromptChange make_change(const llama::Config &c, std::vector<std::uint32_t> widths,
                                ShiftMode mode) {
    return [c, widths = std::move(widths), mode](std::uint32_t layer, std::uint32_t n_tokens,
                                                 float *k, float *v) {
        const std::uint32_t n_flushed = (n_tokens - kShiftSinkTokens) / kFlushTokens * kFlushTokens;
        const std::size_t first = std::size_t{kShiftSinkTokens} * c.n_kv_heads;
        const std::size_t n_groups = std::size_t{n_flushed} * c.n_kv_heads;
        for (float *values : {k, v})
            for (std::size_t g = first; g < first + n_groups; ++g)
                shift_group(values + g * c.head_dim, c.head_dim, widths[layer], mode);
    };
}

std::string format_widths(const std::vector<std::uint32_t> &widths) {
    std::string text;
    for (const std::uint32_t width : widths)
        text += (text.empty() ? "" : " ") + std::to_string(width);
    return text;
}

std::string task_cell(const TaskResult &task) {
    const Interval interval = wilson_interval(task.n_right, task.n_questions);
    return format_fixed(task.exact_match(), 1) + " (" + format_fixed(interval.low, 0) + ".." +
           format_fixed(interval.high, 0) + ")";
}

}  // namespace

void set_shift_ablation(llama::Model &model, const AblationSource &source,
                        EvaluationRequest &request) {
    const llama::Config &c = model.config();
    const llama::Geometry geometry = model.geometry();
    llama::Tokens tokens = llama::as_tokens(source.text);
    tokens.resize(std::min<std::size_t>(tokens.size(), source.n_tokens));
    std::map<double, std::vector<double>> costs;
    for (const Row &row : kRows)
        if (costs.count(row.position_scale) == 0)
            costs[row.position_scale] = layer_costs(model, tokens, row.position_scale);
    request.plans.clear();
    request.plans.push_back(llama::make_preset("fp16", geometry));
    request.simulations.assign(1, {});
    for (const Row &row : kRows) {
        const std::vector<std::uint32_t> widths = row_widths(c, costs[row.position_scale], row);
        note(std::string(row.name) + ": layers at " + format_widths(widths) + " bits");
        request.plans.push_back(llama::make_preset("fp16", geometry));
        llama::check(lk_plan_set_name(request.plans.back().get(), row.name));
        request.simulations.push_back(
            {make_change(c, widths, row.mode), bits_per_value(c, widths)});
    }
}

std::string published_shift(const std::string &plan) {
    const auto *known = std::find_if(std::begin(kRows), std::end(kRows),
                                     [&](const Row &one) { return plan == one.name; });
    return known != std::end(kRows) ? known->published : kPublishedFp16;
}

void print_shift_ablation(const std::vector<PlanResult> &results) {
    std::vector<std::string> header = {"shift, bits", "tokens", "bits/value"};
    for (const TaskResult &task : results.front().tasks) {
        header.push_back(std::string(task.task->name) + ", %");
        header.emplace_back("-log2 p");
    }
    header.emplace_back("paper");
    Table table(header);
    for (const PlanResult &result : results) {
        std::vector<std::string> row = {result.plan, std::to_string(result.context_tokens),
                                        format_fixed(result.bits_per_value, 2)};
        for (const TaskResult &task : result.tasks) {
            row.push_back(task_cell(task));
            row.push_back(format_fixed(task.bits_per_byte(), 4) + " +-" +
                          format_fixed(task.bits_error(), 4));
        }
        row.push_back(published_shift(result.plan));
        table.add(row);
    }
    table.print();
    std::printf(
        "\ntokens of the context but the first one and up to 128 recent ones: integer codes of 16\n"
        "bits for each token and head, shifted down to 4 or 2; -log2 p: mean of an answer byte, "
        "with\n"
        "its 95 %% interval over questions; paper: AIME24 of R1-Distill-LLaMA-8B at 4 bits\n");
}

}  // namespace cli
