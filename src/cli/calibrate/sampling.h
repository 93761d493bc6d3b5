// Statistics of a model: from dumps of its keys and queries, or from running it here.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_SAMPLING_H
#define CLI_SAMPLING_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/calibrate/token_texts.h"
#include "llama/session.h"

namespace cli {

// What is taken from queries, keys and values of a pass in addition to ranges.
struct PassRequest {
    // Its first tokens are attended, for sensitivities by outputs; 0 = none.
    std::uint32_t attention_tokens = 0;
    bool search_scales = false;
    std::uint32_t scale_bits = 4;  // of keys and values in the search
    std::uint32_t query_step = 8;  // of the search
};

struct SamplingRequest {
    PassRequest pass;
    double position_scale = 1;  // of the text; the probe keeps the model's positions
    TokenTexts texts;
    std::size_t n_tokens = 16384;  // of the documents, cut to document_tokens
    std::size_t document_tokens = 2048;
    std::uint32_t n_repeats = kProbeRepeats;
};

// How a dump is read.
struct DumpRequest {
    PassRequest pass;
    std::uint32_t n_query_heads = 0;  // for dumps without queries, 0 = as many as KV heads
    double position_scale = 0;        // keys and queries are turned to it; 0 = as they are
};

// Runs documents and one probe, with FP16 caches on the CPU.
llama::CalibratorHandle sample_model(llama::Model &model, const SamplingRequest &request);

// Adds dumps (docs/CALIBRATION.md), one file after another, to a calibrator that is made from the
// first one when it is null. Throws llama::Error naming the tensor at fault.
void sample_dumps(const std::vector<std::string> &paths, const DumpRequest &request,
                  llama::CalibratorHandle &calibrator);

llama::CalibratorHandle load_statistics(const std::string &path);
void save_statistics(const lk_calibrator *calibrator, const std::string &path);
std::vector<lk_layer> geometry_of(const lk_calibrator *calibrator);

}  // namespace cli

#endif
