// Tasks x contexts x seeds x plans, kept in a record that a later run goes on with.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_SUITE_H
#define CLI_SUITE_H

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/common/command.h"
#include "cli/demo/evaluation.h"

namespace cli {

// A plan of the suite. Plans of one family are a line in the picture.
struct SuitePlan {
    std::string name;  // of its own within the suite
    std::string family;
    double limit_bits = 0;  // the row of the table that it is in, bits per value; 0 = none
    llama::PlanHandle plan;
    Serving serving;
};

struct SuiteRequest {
    std::vector<const llama::Task *> tasks;
    std::vector<std::uint64_t> contexts;
    std::vector<std::uint64_t> seeds;
    std::vector<SuitePlan> plans;
    std::size_t n_questions = 24;  // of each task, context and seed
    std::size_t questions_per_document = 12;
    llama::Material material;
    Json origin;         // what must be equal for an earlier record to be gone on with
    std::string record;  // file; written after each cell
};

// What one plan answered in one cell, so many questions of a task at a context length and seed.
struct SuiteCell {
    std::string task;
    std::uint64_t context_tokens = 0;
    std::uint64_t seed = 0;
    std::uint64_t n_questions = 0;
    std::string plan;
    std::vector<DocumentResult> documents;
};

struct SuitePlanInfo {
    std::string name, family, digest;
    double limit_bits = 0;
    double bits_per_value = 0;
    std::uint64_t n_tokens = 0;  // of the sizes below: the longest context with its long answer
    std::uint64_t kv_bytes = 0;  // codes, ranges, minima and recent tokens
    std::uint64_t fp16_bytes = 0;
};

struct SuiteRecord {
    Json origin;
    std::string build, device;
    std::vector<SuitePlanInfo> plans;
    std::vector<SuiteCell> cells;
};

// Runs the cells that are missing in request.record. Throws llama::Error when the record is of
// another origin. The results are those of request.plans alone, in its order.
SuiteRecord run_suite(lk_context *context, llama::TensorSpace &space, llama::Model &model,
                      const SuiteRequest &request, const std::string &device);

SuiteRecord read_record(const std::string &path);
// The record of one or more runs that ran side by side: same origin, same plans, other cells.
// Throws llama::Error where they differ.
SuiteRecord read_records(const std::vector<std::string> &paths);

// FNV-1a of 64 bits, 16 hexadecimal digits.
std::string digest(const std::string &bytes);

}  // namespace cli

#endif
