// SPDX-License-Identifier: Apache-2.0
#include "stats/divergence.h"

#include <cmath>
#include <limits>

#include "base/status.h"
#include "format/fp16.h"

namespace lk {

namespace {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

// A row of logits and the sum of its softmax.
class Row {
  public:
    Row(const lk_tensor &tensor, uint32_t row, uint32_t n)
        : data_(host_row(tensor, row, 0)), dtype_(tensor.dtype), n_(n) {}

    // False where the row has no softmax.
    bool normalise() {
        top_ = kImpossible;
        for (uint32_t i = 0; i < n_; ++i) {
            const double x = at(i);
            if (!(x < std::numeric_limits<double>::infinity()))
                return false;
            top_ = x > top_ ? x : top_;
        }
        if (top_ == kImpossible)
            return false;
        double sum = 0;
        for (uint32_t i = 0; i < n_; ++i)
            sum += std::exp(at(i) - top_);
        log_sum_ = std::log(sum);
        return true;
    }
    double log2_share(uint32_t i) const { return (at(i) - top_ - log_sum_) / std::log(2.0); }

  private:
    double at(uint32_t i) const {
        if (dtype_ == LK_F32)
            return double{static_cast<const float *>(data_)[i]};
        const uint16_t pattern = static_cast<const uint16_t *>(data_)[i];
        return double{dtype_ == LK_F16 ? half_to_float(pattern)
                                       : bits_to_float(static_cast<uint32_t>(pattern) << 16)};
    }

    const void *data_;
    lk_dtype dtype_;
    uint32_t n_;
    double top_ = 0;
    double log_sum_ = 0;
};

lk_status no_softmax(const char *name, uint32_t row) {
    return fail(LK_E_DATA, "%s: row %u has a NaN or an infinity", name, row);
}

}  // namespace

lk_status divergence(const Logits &logits, double *bits) {
    double sum = 0;
    for (uint32_t r = 0; r < logits.n_rows; ++r) {
        Row exact(logits.exact, r, logits.n_vocabulary);
        Row other(logits.other, r, logits.n_vocabulary);
        if (!exact.normalise())
            return no_softmax("exact", r);
        if (!other.normalise())
            return no_softmax("other", r);
        for (uint32_t i = 0; i < logits.n_vocabulary; ++i) {
            const double p = exact.log2_share(i);
            if (p == kImpossible)
                continue;
            const double q = other.log2_share(i);
            if (q == kImpossible)
                return fail(LK_E_DATA, "other: row %u has minus infinity for token %u, exact not",
                            r, i);
            sum += std::exp2(p) * (p - q);
        }
    }
    *bits = sum;
    return LK_OK;
}

}  // namespace lk
