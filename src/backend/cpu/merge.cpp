// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/merge.h"

#include <cmath>

#include "backend/cpu/element.h"

namespace lk {
namespace cpu {

namespace {

void merge_row(const MergeView &view, uint64_t token, uint64_t head, double *weights) {
    double top = -HUGE_VAL;
    for (uint32_t i = 0; i < view.n_splits; ++i) {
        weights[i] =
            static_cast<double>(load_element(tensor_row(view.lses[i], token, head), LK_F32, 0));
        top = weights[i] > top ? weights[i] : top;
    }
    double sum = 0;
    for (uint32_t i = 0; i < view.n_splits; ++i) {
        weights[i] = weights[i] == -HUGE_VAL ? 0 : std::exp(weights[i] - top);
        sum += weights[i];
    }
    uint8_t *out = tensor_row(view.out, token, head);
    for (uint32_t c = 0; c < view.head_dim; ++c) {
        double value = 0;
        for (uint32_t i = 0; i < view.n_splits; ++i)
            if (weights[i] != 0)
                value += weights[i] *
                         static_cast<double>(load_element(tensor_row(view.parts[i], token, head),
                                                          view.parts[i].dtype, c));
        store_element(out, view.out.dtype, c, static_cast<float>(sum == 0 ? 0 : value / sum));
    }
    if (view.lse.data)
        store_element(tensor_row(view.lse, token, head), LK_F32, 0,
                      static_cast<float>(sum == 0 ? top : top + std::log(sum)));
}

}  // namespace

void merge(const MergeView &view) {
    double weights[kMergeSplits];
    for (uint64_t token = 0; token < view.n_tokens; ++token)
        for (uint64_t head = 0; head < view.n_heads; ++head)
            merge_row(view, token, head, weights);
}

}  // namespace cpu
}  // namespace lk
