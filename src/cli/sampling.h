// Statistics of a model: from dumps of its keys and queries, or from running it here.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_SAMPLING_H
#define CLI_SAMPLING_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llama/session.h"

namespace cli {

// A neutral sentence of about a hundred tokens of the shipped model, and how often it comes.
extern const char *const kProbeSentence;
constexpr std::uint32_t kProbeRepeats = 30;

struct SamplingRequest {
    std::string text;
    std::size_t n_tokens = 16384;  // of the text, in documents of their own
    std::size_t document_tokens = 2048;
    std::string sentence = kProbeSentence;
    std::uint32_t n_repeats = kProbeRepeats;
};

// Runs documents of the text and one probe, with FP16 caches on the CPU.
llama::CalibratorHandle sample_model(lk_context *context, llama::Model &model,
                                     const SamplingRequest &request);

// Adds dumps (docs/CALIBRATION.md), one file after another, to a calibrator that is made from the
// first one when it is null. n_query_heads is for dumps without queries, 0 = as many as KV heads.
// Throws llama::Error naming the tensor at fault.
void sample_dumps(const std::vector<std::string> &paths, std::uint32_t n_query_heads,
                  llama::CalibratorHandle &calibrator);

llama::CalibratorHandle load_statistics(const std::string &path);
void save_statistics(const lk_calibrator *calibrator, const std::string &path);
std::vector<lk_layer> geometry_of(const lk_calibrator *calibrator);

}  // namespace cli

#endif
