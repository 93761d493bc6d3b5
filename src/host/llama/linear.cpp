// SPDX-License-Identifier: Apache-2.0
#include "linear.h"

#include <algorithm>
#include <cstring>
#include <utility>

// The project forbids contraction where bits are defined; here a fused multiply-add is half the
// time.
#if defined(__clang__)
#pragma clang fp contract(fast)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

namespace llama {
namespace {

constexpr std::size_t kPanel = 32;            // outputs that a tile computes side by side
constexpr std::size_t kBlockRows = 96;        // rows that a thread takes at once
constexpr std::size_t kSmallWork = 1u << 22;  // multiply-adds below which threads cost more

typedef float Float4 __attribute__((vector_size(16)));
typedef float Float8 __attribute__((vector_size(32)));
typedef float Float16 __attribute__((vector_size(64)));

// kRows rows of x times one panel. The accumulators stay in registers.
template <typename Vector, std::size_t kRows>
inline __attribute__((always_inline)) void tile(const float *x, std::size_t n_in,
                                                const float *panel, float *sums) {
    constexpr std::size_t kLanes = sizeof(Vector) / sizeof(float);
    constexpr std::size_t kVectors = kPanel / kLanes;
    Vector acc[kRows][kVectors] = {};
    for (std::size_t i = 0; i < n_in; ++i) {
        Vector w[kVectors];
        std::memcpy(w, panel + i * kPanel, sizeof w);
        for (std::size_t r = 0; r < kRows; ++r) {
            const float value = x[r * n_in + i];
            for (std::size_t c = 0; c < kVectors; ++c)
                acc[r][c] += w[c] * value;
        }
    }
    std::memcpy(sums, acc, sizeof acc);
}

// All rows times one panel: full tiles, then single rows.
template <typename Vector, std::size_t kRows>
inline __attribute__((always_inline)) void sweep(const float *x, std::size_t n_rows,
                                                 std::size_t n_in, const float *panel,
                                                 float *sums) {
    std::size_t row = 0;
    for (; row + kRows <= n_rows; row += kRows) {
        tile<Vector, kRows>(x + row * n_in, n_in, panel, sums + row * kPanel);
    }
    for (; row < n_rows; ++row)
        tile<Vector, 1>(x + row * n_in, n_in, panel, sums + row * kPanel);
}

using Sweep = void (*)(const float *, std::size_t, std::size_t, const float *, float *);

#if defined(__x86_64__)
void sweep_any(const float *x, std::size_t n_rows, std::size_t n_in, const float *panel,
               float *sums) {
    sweep<Float4, 1>(x, n_rows, n_in, panel, sums);
}

__attribute__((target("avx2,fma"))) void sweep_avx2(const float *x, std::size_t n_rows,
                                                    std::size_t n_in, const float *panel,
                                                    float *sums) {
    sweep<Float8, 3>(x, n_rows, n_in, panel, sums);
}

__attribute__((target("avx512f"))) void sweep_avx512(const float *x, std::size_t n_rows,
                                                     std::size_t n_in, const float *panel,
                                                     float *sums) {
    sweep<Float16, 12>(x, n_rows, n_in, panel, sums);
}

Sweep pick_sweep() {
    if (__builtin_cpu_supports("avx512f"))
        return sweep_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return sweep_avx2;
    return sweep_any;
}
#else
void sweep_wide(const float *x, std::size_t n_rows, std::size_t n_in, const float *panel,
                float *sums) {
    sweep<Float4, 2>(x, n_rows, n_in, panel, sums);
}

Sweep pick_sweep() { return sweep_wide; }
#endif

}  // namespace

Linear::Linear(std::size_t n_out, std::size_t n_in, const std::vector<float> &weight,
               std::vector<float> bias)
    : n_out_(n_out), n_in_(n_in), bias_(std::move(bias)) {
    const std::size_t n_panels = (n_out + kPanel - 1) / kPanel;
    panels_.resize(n_panels * n_in * kPanel);
    for (std::size_t o = 0; o < n_out; ++o) {
        float *column = panels_.data() + (o / kPanel) * n_in * kPanel + o % kPanel;
        for (std::size_t i = 0; i < n_in; ++i)
            column[i * kPanel] = weight[o * n_in + i];
    }
}

void Linear::apply_rows(const float *x, std::size_t n_rows, float *y, std::size_t first_panel,
                        std::size_t last_panel) const {
    static const Sweep sweep_rows = pick_sweep();
    float sums[kBlockRows * kPanel];
    for (std::size_t p = first_panel; p < last_panel; ++p) {
        sweep_rows(x, n_rows, n_in_, panels_.data() + p * n_in_ * kPanel, sums);
        const std::size_t first = p * kPanel;
        const std::size_t count = std::min(kPanel, n_out_ - first);
        for (std::size_t r = 0; r < n_rows; ++r) {
            for (std::size_t c = 0; c < count; ++c) {
                const float bias = bias_.empty() ? 0.0f : bias_[first + c];
                y[r * n_out_ + first + c] = sums[r * kPanel + c] + bias;
            }
        }
    }
}

void Linear::apply(const float *x, std::size_t n_rows, float *y, Workers &workers) const {
    const std::size_t n_panels = (n_out_ + kPanel - 1) / kPanel;
    const std::size_t n_blocks = (n_rows + kBlockRows - 1) / kBlockRows;
    const std::size_t n_parts = n_rows * n_in_ * n_out_ < kSmallWork ? 1
                                : n_blocks >= workers.n_threads()    ? 1
                                                                     : workers.n_threads();
    const auto block = [&](std::size_t b, std::size_t part) {
        const std::size_t first = b * kBlockRows;
        const std::size_t count = std::min(kBlockRows, n_rows - first);
        apply_rows(x + first * n_in_, count, y + first * n_out_, part * n_panels / n_parts,
                   (part + 1) * n_panels / n_parts);
    };
    workers.each(n_blocks * n_parts, [&](std::size_t i) { block(i / n_parts, i % n_parts); });
}

}  // namespace llama
