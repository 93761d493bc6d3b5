// Statistics of the keys, queries and values that a context computes. It knows no llama.cpp. A call
// that fails throws std::runtime_error with one sentence.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_STATISTICS_OF_CONTEXT_H
#define LOWKEY_STATISTICS_OF_CONTEXT_H

#include <lowkey/calibrate.h>

#include <cstdint>
#include <vector>

namespace lowkey {

class Statistics {
  public:
    explicit Statistics(const lk_geometry &geometry);
    ~Statistics();
    Statistics(const Statistics &) = delete;
    Statistics &operator=(const Statistics &) = delete;

    // The tokens that follow are of a probe after a prefix; with a period of 0 tokens, of a text.
    void expect(uint32_t prefix_tokens, uint32_t period_tokens);
    // A layer's tensors of n_tokens tokens of one sequence from position `first` on. A probe comes
    // as a whole.
    void add(uint32_t layer, const lk_tensor &q, const lk_tensor &k, const lk_tensor &v,
             uint64_t first, uint32_t n_tokens);
    std::vector<char> bytes() const;  // of a file as docs/CALIBRATION.md has it

  private:
    void add_probe(uint32_t layer, const lk_tensor &q, const lk_tensor &k, uint64_t first,
                   uint32_t n_tokens);

    lk_calibrator *calibrator_ = nullptr;
    lk_probe probe_{};
};

}  // namespace lowkey

#endif
