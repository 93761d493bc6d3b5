// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/chanmix.h"

#include <CLI/CLI.hpp>
#include <map>

namespace cli {
namespace {

constexpr std::uint32_t kSinkTokens = 32;

const std::map<std::string, lk_retrieval> kRetrieval = {
    {"none", LK_RETRIEVAL_NONE}, {"k", LK_RETRIEVAL_KEY}, {"kv", LK_RETRIEVAL_KEY_VALUE}};
const std::map<std::string, lk_scope> kScopes = {{"head", LK_SCOPE_HEAD},
                                                 {"layer", LK_SCOPE_LAYER}};

}  // namespace

void ChanmixOptions::add_to(CLI::App &command) {
    command
        .add_option("--retrieval", retrieval, "what of a retrieval head is 4 bits: kv, k or none")
        ->capture_default_str()
        ->check(CLI::IsMember(kRetrieval));
    command
        .add_option("--share", share,
                    "part of the KV heads that retrieve; default 0.3, or 0.19 without GQA, or what "
                    "--budget holds")
        ->check(CLI::Range(0.0, 1.0));
    command.add_option("--scope", scope, "cluster the channels of a head or of a layer")
        ->capture_default_str()
        ->check(CLI::IsMember(kScopes));
    command.add_flag("--no-outliers", no_outliers,
                     "2 bits for every channel that does not retrieve");
    command.add_flag("--no-centers", no_centers, "keep keys with their mean");
}

lk_chanmix ChanmixOptions::options(const StatisticsOptions &from, std::uint64_t budget_bytes,
                                   std::uint64_t n_tokens, std::uint32_t n_sequences,
                                   std::uint32_t step_tokens) const {
    lk_chanmix out = llama::initialised(lk_chanmix_init);
    out.retrieval = kRetrieval.at(retrieval);
    out.scope = kScopes.at(scope);
    out.retrieval_share = share;
    out.outliers = no_outliers ? 0 : 1;
    out.centers = no_centers || from.paper ? 0 : 1;
    out.one_bit = from.paper ? LK_ONE_BIT_RANGE : LK_ONE_BIT_DEVIATION;
    out.sink_tokens = from.sinks(from.paper ? 0 : kSinkTokens);
    out.budget_bytes = budget_bytes;
    out.budget_tokens = n_tokens;
    out.budget_sequences = n_sequences;
    out.budget_step_tokens = step_tokens;
    return out;
}

llama::PlanHandle make_chanmix(const lk_calibrator *calibrator, const lk_chanmix &options) {
    lk_plan *plan = nullptr;
    llama::check(lk_calibrator_chanmix(calibrator, &options, &plan));
    return llama::PlanHandle(plan);
}

}  // namespace cli
