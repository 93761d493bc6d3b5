// The C interface of the planners: defaults, checks of options, null checks.
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "base/float_mode.h"
#include "base/status.h"
#include "format/fp16.h"
#include "plan/check.h"
#include "planner/planner.h"
#include "planner/solve_widths.h"
#include "stats/api.h"
#include "stats/sensitivity.h"

namespace lk {

namespace {

constexpr size_t kOldestChanmix = offsetof(lk_chanmix, one_bit);
constexpr size_t kOldestAuto = sizeof(lk_auto);
constexpr size_t kOldestPmkvq = offsetof(lk_pmkvq, layer_budgets);
constexpr Subject kOptions = {"options.", false, LK_E_ARGUMENT};

// What the options of all planners have.
template <class Options>
Options default_options(uint64_t budget_tokens) {
    Options options = {};
    options.size = sizeof options;
    options.sink_tokens = 32;
    options.recent_tokens = 128;
    options.budget_tokens = budget_tokens;
    options.budget_sequences = 1;
    options.budget_step_tokens = 512;
    return options;
}

lk_chanmix default_chanmix() {
    auto options = default_options<lk_chanmix>(8192);
    options.retrieval = LK_RETRIEVAL_KEY_VALUE;
    options.scope = LK_SCOPE_HEAD;
    options.outliers = 1;
    options.centers = 1;
    options.metadata = LK_METADATA_F8;
    options.group = 32;
    options.retrieval_share = -1;
    options.one_bit = LK_ONE_BIT_DEVIATION;
    return options;
}

lk_auto default_auto() {
    auto options = default_options<lk_auto>(8192);
    options.centers = 1;
    return options;
}

lk_pmkvq default_pmkvq() {
    auto options = default_options<lk_pmkvq>(32768);
    options.n_widths = 2;
    options.widths[0] = 4;
    options.widths[1] = 2;
    options.scope = LK_SCOPE_LAYER;
    options.key_axis = LK_AXIS_CHANNEL;
    return options;
}

template <class Options>
lk_status check_budget(const Options &options) {
    if (!options.budget_bytes ||
        (options.budget_tokens && options.budget_sequences && options.budget_step_tokens))
        return LK_OK;
    return fail(LK_E_ARGUMENT,
                "options.budget_bytes is %llu with 0 tokens, sequences or step "
                "tokens",
                static_cast<unsigned long long>(options.budget_bytes));
}

lk_status check_chanmix(const lk_chanmix &options) {
    if (options.retrieval < LK_RETRIEVAL_NONE || options.retrieval > LK_RETRIEVAL_KEY_VALUE)
        return fail(LK_E_ARGUMENT, "options.retrieval is %u, must be from 1 to 3",
                    options.retrieval);
    LK_TRY(check_scope(options.scope, "options.scope"));
    LK_TRY(check_flag(options.outliers, "outliers"));
    LK_TRY(check_flag(options.centers, "centers"));
    if (options.one_bit < LK_ONE_BIT_DEVIATION || options.one_bit > LK_ONE_BIT_RANGE)
        return fail(LK_E_ARGUMENT, "options.one_bit is %u, must be 1 (deviation) or 2 (range)",
                    options.one_bit);
    if (options.reserved)
        return fail(LK_E_ARGUMENT, "options.reserved is %u, not 0", options.reserved);
    LK_TRY(check_metadata(options.metadata, kOptions));
    LK_TRY(check_recent(options.sink_tokens, options.recent_tokens, kOptions));
    if (options.group < 16 || options.group > 128 || !is_power_of_two(options.group))
        return fail(LK_E_ARGUMENT, "options.group is %u, must be 16, 32, 64 or 128", options.group);
    const double share = options.retrieval_share;
    if (!(share >= 0 && share <= 1) && share != -1)
        return fail(LK_E_ARGUMENT, "options.retrieval_share is %g, must be from 0 to 1, or -1",
                    share);
    return check_budget(options);
}

lk_status check_auto(const lk_auto &options) {
    LK_TRY(check_flag(options.centers, "centers"));
    LK_TRY(check_recent(options.sink_tokens, options.recent_tokens, kOptions));
    const double bits = options.bits_per_value;
    if (!(bits >= 0 && bits <= 16))
        return fail(LK_E_ARGUMENT, "options.bits_per_value is %g, must be from 0 to 16", bits);
    if (bits == 0 && !options.budget_bytes)
        return fail(LK_E_ARGUMENT, "options.bits_per_value and budget_bytes are 0, one must not");
    return check_budget(options);
}

lk_status check_widths(const lk_pmkvq &options) {
    if (!options.n_widths || options.n_widths > kMaxRungs)
        return fail(LK_E_ARGUMENT, "options.n_widths is %u: a ladder ends at one of 1 to 4 widths",
                    options.n_widths);
    for (uint32_t i = 0; i < options.n_widths; ++i)
        if (!is_rung(options.widths[i]) || (i && options.widths[i] >= options.widths[i - 1]))
            return fail(LK_E_ARGUMENT,
                        "options.widths[%u] is %u, widths descend and are out of 16, 8, 4, 2", i,
                        options.widths[i]);
    return LK_OK;
}

lk_status check_pmkvq(const lk_pmkvq &options) {
    LK_TRY(check_widths(options));
    if (options.sensitivity > LK_SENSITIVITY_OUTPUT)
        return fail(LK_E_ARGUMENT,
                    "options.sensitivity is %u, must be 0, 1 (gradient) or 2 (output)",
                    options.sensitivity);
    LK_TRY(check_scope(options.scope, "options.scope"));
    LK_TRY(check_flag(options.separate_values, "separate_values"));
    LK_TRY(check_flag(options.key_scales, "key_scales"));
    LK_TRY(check_flag(options.layer_budgets, "layer_budgets"));
    if (options.reserved)
        return fail(LK_E_ARGUMENT, "options.reserved is %u, not 0", options.reserved);
    if (options.key_axis != LK_AXIS_CHANNEL && options.key_axis != LK_AXIS_TOKEN)
        return fail(LK_E_ARGUMENT, "options.key_axis is %u, must be 1 (channel) or 2 (token)",
                    options.key_axis);
    if (options.group % 16 || options.group > LK_MAX_PLAIN_DIM)
        return fail(LK_E_ARGUMENT, "options.group is %u, must be a multiple of 16 up to %u",
                    options.group, static_cast<uint32_t>(LK_MAX_PLAIN_DIM));
    LK_TRY(check_recent(options.sink_tokens, options.recent_tokens, kOptions));
    if (!options.budget_bytes || !options.budget_tokens || !options.budget_sequences ||
        !options.budget_step_tokens)
        return fail(LK_E_ARGUMENT,
                    "options.budget_bytes is %llu with %llu tokens, %u sequences and %u step "
                    "tokens, none may be 0",
                    static_cast<unsigned long long>(options.budget_bytes),
                    static_cast<unsigned long long>(options.budget_tokens),
                    options.budget_sequences, options.budget_step_tokens);
    return LK_OK;
}

// A plan from the host's options, whose oldest version has `oldest` bytes.
template <class Options, class Check, class Make>
lk_status plan_from(const lk_calibrator *calibrator, const Options *options, size_t oldest,
                    const Options &defaults, const Check &check, const Make &make_plan,
                    lk_plan **out) {
    if (!out)
        return null_argument("out");
    *out = nullptr;
    if (!calibrator)
        return null_argument("calibrator");
    Options own = defaults;
    LK_TRY(import_struct(&own, sizeof own, oldest, options, "options"));
    LK_TRY(check(own));
    return make(out, "a plan", [&](Plan *plan) { return make_plan(calibrator->model, own, plan); });
}

}  // namespace

}  // namespace lk

extern "C" {

lk_status lk_chanmix_init(lk_chanmix *options, size_t struct_bytes) {
    return lk::init_with(options, struct_bytes, lk::kOldestChanmix, lk::default_chanmix(),
                         "options");
}

lk_status lk_calibrator_chanmix(const lk_calibrator *calibrator, const lk_chanmix *options,
                                lk_plan **out) {
    const lk::FloatMode mode;
    const lk_chanmix defaults = lk::default_chanmix();
    return lk::plan_from(calibrator, options ? options : &defaults, lk::kOldestChanmix, defaults,
                         lk::check_chanmix, lk::make_chanmix, out);
}

lk_status lk_auto_init(lk_auto *options, size_t struct_bytes) {
    return lk::init_with(options, struct_bytes, lk::kOldestAuto, lk::default_auto(), "options");
}

lk_status lk_calibrator_auto(const lk_calibrator *calibrator, const lk_auto *options,
                             lk_plan **out) {
    const lk::FloatMode mode;
    return lk::plan_from(calibrator, options, lk::kOldestAuto, lk::default_auto(), lk::check_auto,
                         lk::make_auto, out);
}

lk_status lk_pmkvq_init(lk_pmkvq *options, size_t struct_bytes) {
    return lk::init_with(options, struct_bytes, lk::kOldestPmkvq, lk::default_pmkvq(), "options");
}

lk_status lk_calibrator_pmkvq(const lk_calibrator *calibrator, const lk_pmkvq *options,
                              lk_plan **out) {
    const lk::FloatMode mode;
    return lk::plan_from(
        calibrator, options, lk::kOldestPmkvq, lk::default_pmkvq(), lk::check_pmkvq,
        [](const lk::Calibrator &model, lk_pmkvq own, lk::Plan *plan) {
            if (!own.sensitivity)
                own.sensitivity = lk::known_sensitivity(model);
            return lk::make_pmkvq(model, own, plan);
        },
        out);
}

lk_status lk_solve_widths(uint32_t n_items, uint32_t n_choices, const double *costs,
                          const uint64_t *bytes, uint64_t budget_bytes, uint32_t *choices,
                          double *total_cost) {
    const lk::FloatMode mode;
    if (!costs || !bytes || !choices)
        return lk::fail(LK_E_ARGUMENT, "costs, bytes or choices is NULL");
    constexpr uint64_t most = uint64_t{1} << 24;
    if (!n_items || !n_choices || static_cast<uint64_t>(n_items) * n_choices > most)
        return lk::fail(LK_E_ARGUMENT, "n_items is %u and n_choices %u, must be 1 to 2^24 together",
                        n_items, n_choices);
    const lk_status status =
        lk::solve_widths({n_items, n_choices, costs, bytes, budget_bytes}, choices);
    if (status != LK_OK || !total_cost)
        return status;
    *total_cost = 0;
    for (uint32_t i = 0; i < n_items; ++i)
        *total_cost += costs[static_cast<uint64_t>(i) * n_choices + choices[i]];
    return LK_OK;
}

}  // extern "C"
