// How far attention on FP16 tensor cores may be from the reference, derived from a scene's numbers.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_KERNELS_BOUND_H
#define LK_TESTS_KERNELS_BOUND_H

#include "harness.h"

// Arithmetic that the bound allows for:
//
// - A logit is a sum over channels of products q * (minimum + code * step). Three roundings to FP16
//   can come together: of the query with all that is folded into it, of the step, of their
//   product; minima meet one or two of them. Each is to the nearest, relative 2^-11 at most,
//   and absolute 2^-25 of the largest number of the fragment where it becomes subnormal. What is
//   rounded is as large as |q| * reach, with reach = |minimum| + range of the channel, or |k| in
//   a 16-bit plane: the cancellation between a minimum and its codes does not make it smaller.
// - Where keys were divided by scales, q stands for the query times these, which is one rounding
//   to FP32 more: 2^-24 of the product. A rotation of blocks of n channels rounds log2(n) sums, its
//   factor and the product with that: each 2^-24 of the norm of the query, which a logit meets as
//   that norm times the norm of the reach.
// - Roundings of different channels are independent and spread evenly over an interval of at most
//   +-2^-11, which has the variance (2^-11)^2 / 3. So a logit's error has the standard deviation
//       sigma = scale * 2^-11 * sqrt(sum (q * reach)^2)           (three roundings)
//   and, as sums of even spreads have Gaussian tails, exceeds 8 sigma once in 10^13 logits. The
//   worst case, scale * 3 * 2^-11 * sum |q| * reach, is taken where it is less.
// - Tensor cores add in FP32 and cut off: 2^-22 of the largest partial sum for each of the
//   head_dim / 16 steps; FP32 exponents and logarithms add 2^-21 of the logit.
// - q . c of key centers is an FP32 sum of head_dim products: 2^-24 of sum |q * c| for each of
// them.
//   It makes the logit larger, and with it what exponents add.
// - With logits off by at most e the weights are off by a factor of exp(2 e), and an output by
//   expm1(2 e) * A, where A = sum of weight * |value| is computed by the reference on the
//   absolute values.
// - A weight is rounded to FP16 relative to the largest of its block, together with the ranges of
//   the values that are folded into it: 3 * 2^-11 * reach of the values at most, and 2^-25
//   absolute for each token. The sum of the weights may be one of rounded ones, 2^-11.
// - The output is rounded to its type once.
//
// The bound of the whole: the root mean square of all errors is at most that of these deviations,
// each taken for the largest products that a query can meet. That finds what is wrong a little
// everywhere.
class TensorCoreBound {
  public:
    // magnitudes: the reference's outputs for the scene of SceneValues::kMagnitudes.
    TensorCoreBound(const Scene &scene, const Outputs &reference, const Outputs &magnitudes);

    // Empty, or what differs beyond the bound.
    std::string compare(const Outputs &fast) const;
    // Errors as shares of what is allowed: the largest one, and the root mean square.
    struct Closeness {
        double output;
        double lse;
        double spread;
        size_t worst_output;
        size_t worst_lse;
    };
    Closeness measure(const Outputs &fast) const;

    double output_bound(size_t i) const { return outputs_[i].most; }
    double output_deviation(size_t i) const { return outputs_[i].deviation; }
    double lse_bound(size_t i) const { return lses_[i]; }

  private:
    struct Error {
        double most;
        double deviation;
    };
    // The reach of the keys of one KV head of a sequence, token by token, and of its values.
    struct Reach {
        std::vector<std::vector<float>> keys;
        std::vector<float> values;
    };
    static Reach reach_of(const Scene &scene, const SceneSequence &sequence, uint32_t kv_head);
    // changed_q: q as it meets stored keys. centers: of the KV head, or null.
    static Error logit_error(const Scene &scene, const float *q, const float *changed_q,
                             const Reach &reach, const float *centers);
    static Error output_error(const Scene &scene, const Error &logit, double n_keys,
                              double magnitude, double reach);

    Outputs reference_;
    std::vector<Error> outputs_;
    std::vector<double> lses_;
};

#endif
