// The config.json of a model from untrusted bytes: no crash and no cost beyond the bound; what is
// accepted has the sizes that a model is made of.
//
// SPDX-License-Identifier: Apache-2.0
#include "llama/config.h"

#include <cmath>
#include <cstdlib>
#include <string>

#include "cost/cost.h"

namespace {

void require(bool condition) {
    if (!condition)
        std::abort();
}

// A geometry has a window for each layer, RoPE a frequency for each pair of channels.
constexpr uint64_t kFreeBytes = 8u << 20;

void check(const llama::Config &config) {
    require(config.n_layers > 0 && config.windows.size() == config.n_layers);
    require(config.n_kv_heads > 0 && config.n_query_heads % config.n_kv_heads == 0);
    require(!config.rotations.empty() && config.rotations.size() <= 2);
    require(config.n_vocabulary > 0 && config.width > 0 && config.hidden > 0);
    for (const llama::Rotation &rotation : config.rotations) {
        require(config.head_dim > 0 && rotation.frequencies.size() == config.head_dim / 2);
        for (const double frequency : rotation.frequencies)
            require(std::isfinite(frequency));
        require(std::isfinite(rotation.amplitude));
    }
    for (const double number : {config.attention_scale, config.soft_cap, config.final_soft_cap,
                                config.embedding_scale, config.activation_limit})
        require(std::isfinite(number) && number >= 0);
    for (const llama::Token token : config.prefix)
        require(token < config.n_vocabulary);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const std::string bytes(reinterpret_cast<const char *>(data), size);
    cost_begin();
    try {
        const llama::Config config = llama::read_config(bytes, "config.json");
        cost_expect("a config", size, kFreeBytes, 0);
        check(config);
    } catch (const llama::Error &) {
        cost_expect("a refused config", size, 0, 0);
    }
    return 0;
}
