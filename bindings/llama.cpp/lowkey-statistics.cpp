// SPDX-License-Identifier: Apache-2.0
#include "lowkey-statistics.h"

#include <algorithm>
#include <stdexcept>

#include "lowkey-options.h"

namespace lowkey {
namespace {

// Attention for sensitivities takes time with the square of its tokens.
constexpr uint32_t kAttentionTokens = 512;

}  // namespace

Statistics::Statistics(const lk_geometry &geometry) {
    check(lk_calibrator_create(&geometry, &calibrator_));
}

Statistics::~Statistics() { lk_calibrator_destroy(&calibrator_); }

void Statistics::expect(uint32_t prefix_tokens, uint32_t period_tokens) {
    check(lk_probe_init(&probe_, sizeof probe_));
    probe_.prefix_tokens = prefix_tokens;
    probe_.period_tokens = period_tokens;
    probe_.local_tokens = std::min(probe_.local_tokens, std::max(period_tokens, 2u) - 1);
}

void Statistics::add_probe(uint32_t layer, const lk_tensor &q, const lk_tensor &k, uint64_t first,
                           uint32_t n_tokens) {
    if (first != 0)
        throw std::runtime_error(
            "a probe was decoded in several micro-batches: its statistics need one");
    check(lk_calibrator_add_probe(calibrator_, layer, &probe_, &q, &k, n_tokens));
}

void Statistics::add(uint32_t layer, const lk_tensor &q, const lk_tensor &k, const lk_tensor &v,
                     uint64_t first, uint32_t n_tokens) {
    if (probe_.period_tokens > 0) {
        add_probe(layer, q, k, first, n_tokens);
        return;
    }
    check(lk_calibrator_add_keys(calibrator_, layer, &k, n_tokens));
    check(lk_calibrator_add_queries(calibrator_, layer, &q, n_tokens));
    if (first == 0)
        check(lk_calibrator_add_attention(calibrator_, layer, &q, &k, &v,
                                          std::min(n_tokens, kAttentionTokens)));
}

std::vector<char> Statistics::bytes() const {
    size_t n_bytes = 0;
    check(lk_calibrator_to_bytes(calibrator_, nullptr, 0, &n_bytes));
    std::vector<char> data(n_bytes);
    check(lk_calibrator_to_bytes(calibrator_, data.data(), data.size(), &n_bytes));
    return data;
}

}  // namespace lowkey
