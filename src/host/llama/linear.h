// Dense layers in float32: y = x W^T + b, blocked so that the compiler vectorises it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_LINEAR_H
#define LLAMA_LINEAR_H

#include <cstddef>
#include <vector>

#include "safetensors.h"
#include "workers.h"

namespace llama {

class Linear {
  public:
    Linear() = default;
    // weight: F16, BF16 or F32 [n_out][n_in]; bias [n_out] or empty. Unpacked, the layer keeps its
    // weights as floats, for steps of few rows; else the bytes of weight outlive this, and each
    // call of apply() unpacks them anew, a few rows of the weight at a time.
    Linear(const Tensor &weight, std::vector<float> bias, bool unpacked);

    std::size_t n_in() const { return n_in_; }
    std::size_t n_out() const { return n_out_; }

    // x [n_rows][n_in], y [n_rows][n_out]
    void apply(const float *x, std::size_t n_rows, float *y, Workers &workers) const;

  private:
    std::size_t n_panels() const;
    void unpack(std::size_t panel, float *out) const;
    void apply_panel(std::size_t panel, const float *weights, const float *x, std::size_t n_rows,
                     float *y) const;
    void apply_unpacked(const float *x, std::size_t n_rows, float *y, Workers &workers) const;

    Tensor weight_;
    std::size_t n_out_ = 0;
    std::size_t n_in_ = 0;
    std::vector<float> panels_;  // [n_panels][n_in][kPanel], padded with zeros; or empty
    std::vector<float> bias_;
};

}  // namespace llama

#endif
