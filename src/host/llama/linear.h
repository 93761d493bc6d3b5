// Dense layers in float32: y = x W^T + b, blocked so that the compiler vectorises it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_LINEAR_H
#define LLAMA_LINEAR_H

#include <cstddef>
#include <vector>

#include "workers.h"

namespace llama {

class Linear {
  public:
    Linear() = default;
    // weight [n_out][n_in]; bias [n_out] or empty
    Linear(std::size_t n_out, std::size_t n_in, const std::vector<float> &weight,
           std::vector<float> bias);

    std::size_t n_in() const { return n_in_; }
    std::size_t n_out() const { return n_out_; }

    // x [n_rows][n_in], y [n_rows][n_out]
    void apply(const float *x, std::size_t n_rows, float *y, Workers &workers) const;

  private:
    void apply_rows(const float *x, std::size_t n_rows, float *y, std::size_t first_panel,
                    std::size_t last_panel) const;

    std::size_t n_out_ = 0;
    std::size_t n_in_ = 0;
    std::vector<float> panels_;  // [n_panels][n_in][kPanel], padded with zeros
    std::vector<float> bias_;
};

}  // namespace llama

#endif
