// Which models and contexts lowkey can run in llama.cpp, and their geometry.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_MODEL_H
#define LOWKEY_MODEL_H

#include <cstdint>
#include <string>
#include <vector>

#include "lowkey-store.h"

struct llama_cparams;
struct llama_memory_params;
struct llama_model;

namespace lowkey {

constexpr uint32_t kNoLayer = UINT32_MAX;

struct Geometry {
    std::vector<Layer> layers;    // of lowkey
    std::vector<uint32_t> index;  // [layers of the model] layer of lowkey, or kNoLayer
};

// Throws std::runtime_error with one sentence if lowkey cannot run the model in such a context.
void check_model(const llama_model &model, const llama_memory_params &params,
                 const llama_cparams &cparams);

Geometry geometry_of(const llama_model &model);

// What keys and values depend on, for snapshots: a load refuses another model's.
std::string fingerprint_of(const llama_model &model, const llama_cparams &cparams);

}  // namespace lowkey

#endif
