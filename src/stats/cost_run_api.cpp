// The C interface of cost runs: defaults, checks of options and indices.
//
// SPDX-License-Identifier: Apache-2.0
#include <lowkey/costs.h>

#include "base/float_mode.h"
#include "base/status.h"
#include "plan/check.h"
#include "stats/api.h"
#include "stats/cost_run.h"
#include "stats/divergence.h"

namespace lk {

namespace {

// The first layouts that programs may have been compiled against.
constexpr size_t kOldestOptions = sizeof(lk_cost_options);
constexpr size_t kOldestTrial = sizeof(lk_cost_trial);

lk_cost_options default_cost_options() {
    lk_cost_options options = {};
    options.size = sizeof options;
    options.n_kinds = LK_COST_TEXTS;
    options.n_documents = 2;
    options.clips = 1;
    options.sink_tokens = 32;
    options.recent_tokens = 128;
    return options;
}

lk_status check_count(uint32_t n, const char *name, uint32_t most) {
    return n && n <= most ? LK_OK
                          : fail(LK_E_ARGUMENT, "options.%s is %u, must be 1 to %u", name, n, most);
}

lk_status import_options(const lk_cost_options *from, lk_cost_options *options) {
    *options = default_cost_options();
    if (from)
        LK_TRY(import_struct(options, sizeof *options, kOldestOptions, from, "options"));
    LK_TRY(check_count(options->n_kinds, "n_kinds", kMaxKinds));
    LK_TRY(check_count(options->n_documents, "n_documents", kMaxDocuments));
    LK_TRY(check_flag(options->clips, "clips"));
    return check_recent(options->sink_tokens, options->recent_tokens,
                        {"options.", false, LK_E_ARGUMENT});
}

lk_status check_trial(const lk_cost_run *run, uint32_t trial) {
    if (!run)
        return null_argument("run");
    const uint32_t n = run->model.n_trials();
    return trial < n ? LK_OK : fail(LK_E_NOT_FOUND, "trial is %u, the run has %u trials", trial, n);
}

}  // namespace

}  // namespace lk

extern "C" {

lk_status lk_cost_options_init(lk_cost_options *options, size_t struct_bytes) {
    return lk::init_with(options, struct_bytes, lk::kOldestOptions, lk::default_cost_options(),
                         "options");
}

lk_status lk_cost_trial_init(lk_cost_trial *trial, size_t struct_bytes) {
    return lk::init_struct(trial, struct_bytes, lk::kOldestTrial, "trial");
}

lk_status lk_cost_run_create(const lk_geometry *geometry, const lk_cost_options *options,
                             lk_cost_run **out) {
    if (!out)
        return lk::null_argument("out");
    *out = nullptr;
    lk_cost_options own;
    LK_TRY(lk::import_options(options, &own));
    lk::Array<lk_layer> layers;
    LK_TRY(lk::import_geometry(geometry, &layers));
    for (uint32_t l = 0; l < layers.size(); ++l)
        if (lk::is_latent(layers[l]))
            return lk::fail(LK_E_UNSUPPORTED,
                            "geometry.layers[%u] is latent: its values have no widths whose costs "
                            "could be measured",
                            l);
    return lk::make(out, "a cost run",
                    [&](lk::CostRun *model) { return lk::begin_cost_run(model, layers, own); });
}

void lk_cost_run_destroy(lk_cost_run **run) {
    if (!run)
        return;
    lk::destroy(lk::default_allocator(), *run);
    *run = nullptr;
}

lk_status lk_cost_run_next(lk_cost_run *run, uint32_t capacity, uint32_t *trials,
                           uint32_t *n_trials) {
    if (!run || !trials || !n_trials)
        return lk::null_argument(!run ? "run" : !trials ? "trials" : "n_trials");
    if (!capacity)
        return lk::fail(LK_E_ARGUMENT, "capacity is 0, must be at least 1");
    *n_trials = lk::hand_out(&run->model, capacity, trials);
    return LK_OK;
}

lk_status lk_cost_run_get_trial(const lk_cost_run *run, uint32_t trial, lk_cost_trial *out) {
    LK_TRY(lk::check_trial(run, trial));
    const lk_cost_trial own = lk::describe_trial(run->model, trial);
    return lk::export_struct(out, &own, sizeof own, lk::kOldestTrial, "out");
}

lk_status lk_cost_run_plan(const lk_cost_run *run, uint32_t trial, lk_plan **out) {
    if (!out)
        return lk::null_argument("out");
    *out = nullptr;
    if (!run || trial != LK_COST_REFERENCE)
        LK_TRY(lk::check_trial(run, trial));
    return lk::make(out, "a plan",
                    [&](lk::Plan *plan) { return lk::make_trial_plan(run->model, trial, plan); });
}

lk_status lk_divergence(const lk_tensor *exact, const lk_tensor *other, uint32_t n_rows,
                        uint32_t n_vocabulary, double *bits) {
    const lk::FloatMode mode;
    if (!bits)
        return lk::null_argument("bits");
    if (!n_rows || !n_vocabulary)
        return lk::fail(LK_E_ARGUMENT, "n_rows is %u and n_vocabulary %u, both must be at least 1",
                        n_rows, n_vocabulary);
    lk::Logits logits = {};
    logits.n_rows = n_rows;
    logits.n_vocabulary = n_vocabulary;
    LK_TRY(lk::import_host_tensor(exact, "exact", n_rows, 1, n_vocabulary, &logits.exact));
    LK_TRY(lk::import_host_tensor(other, "other", n_rows, 1, n_vocabulary, &logits.other));
    return lk::divergence(logits, bits);
}

lk_status lk_cost_run_add(lk_cost_run *run, uint32_t trial, double bits) {
    const lk::FloatMode mode;
    LK_TRY(lk::check_trial(run, trial));
    lk::CostRun *model = &run->model;
    if (model->is_measured(trial))
        return lk::fail(LK_E_STATE, "trial %u has a divergence already", trial);
    if (!model->is_out[trial])
        return lk::fail(LK_E_STATE, "trial %u was not handed out by lk_cost_run_next()", trial);
    if (!lk::is_divergence(bits))
        return lk::fail(LK_E_DATA, "the divergence of trial %u is %g, must be %g to %g", trial,
                        bits, lk::kLeastDivergence, lk::kMostDivergence);
    lk::set_divergence(model, trial, bits);
    return LK_OK;
}

lk_status lk_cost_run_get_counts(const lk_cost_run *run, uint32_t *n_measured, uint32_t *n_trials) {
    if (!run)
        return lk::null_argument("run");
    if (n_measured)
        *n_measured = run->model.n_measured;
    if (n_trials)
        *n_trials = run->model.n_trials();
    return LK_OK;
}

lk_status lk_cost_run_finish(const lk_cost_run *run, lk_calibrator *calibrator) {
    const lk::FloatMode mode;
    if (!run || !calibrator)
        return lk::null_argument(run ? "calibrator" : "run");
    const uint32_t n = run->model.n_trials();
    if (run->model.n_measured < n)
        return lk::fail(LK_E_STATE, "%u of %u trials have no divergence yet",
                        n - run->model.n_measured, n);
    return lk::finish_costs(run->model, &calibrator->model);
}

lk_status lk_cost_run_to_bytes(const lk_cost_run *run, void *buffer, size_t capacity_bytes,
                               size_t *needed_bytes) {
    if (!run || !needed_bytes || (capacity_bytes && !buffer))
        return lk::null_argument(!run ? "run" : !needed_bytes ? "needed_bytes" : "buffer");
    *needed_bytes = lk::cost_run_bytes(run->model);
    if (capacity_bytes && capacity_bytes < *needed_bytes)
        return lk::fail(LK_E_ARGUMENT, "capacity_bytes is %zu, the divergences take %zu",
                        capacity_bytes, *needed_bytes);
    if (capacity_bytes)
        lk::write_cost_run(run->model, static_cast<uint8_t *>(buffer));
    return LK_OK;
}

lk_status lk_cost_run_resume(lk_cost_run *run, const void *bytes, size_t n_bytes) {
    const lk::FloatMode mode;
    if (!run || !bytes)
        return lk::null_argument(run ? "bytes" : "run");
    return lk::read_cost_run(&run->model, static_cast<const uint8_t *>(bytes), n_bytes);
}

}  // extern "C"
