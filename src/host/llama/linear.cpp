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
constexpr std::size_t kPanelsAtOnce = 4;      // that are unpacked for a pass over the rows
constexpr std::size_t kTileColumns = 64;      // inputs that are transposed at once
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

Linear::Linear(const Tensor &weight, std::vector<float> bias, bool unpacked)
    : weight_(weight),
      n_out_(static_cast<std::size_t>(weight.shape.at(0))),
      n_in_(static_cast<std::size_t>(weight.shape.at(1))),
      bias_(std::move(bias)) {
    if (!unpacked)
        return;
    panels_.resize(n_panels() * n_in_ * kPanel);
    for (std::size_t p = 0; p < n_panels(); ++p)
        unpack(p, panels_.data() + p * n_in_ * kPanel);
}

std::size_t Linear::n_panels() const { return (n_out_ + kPanel - 1) / kPanel; }

// Writes [n_in][kPanel], transposed in tiles that stay in the cache.
void Linear::unpack(std::size_t panel, float *out) const {
    float rows[kPanel][kTileColumns] = {};
    const std::size_t first = panel * kPanel;
    const std::size_t count = std::min(kPanel, n_out_ - first);
    for (std::size_t i = 0; i < n_in_; i += kTileColumns) {
        const std::size_t n = std::min(kTileColumns, n_in_ - i);
        for (std::size_t r = 0; r < count; ++r)
            to_floats(weight_, (first + r) * n_in_ + i, n, rows[r]);
        for (std::size_t c = 0; c < n; ++c)
            for (std::size_t r = 0; r < kPanel; ++r)
                out[(i + c) * kPanel + r] = rows[r][c];
    }
}

// At most kBlockRows rows of x times one panel.
void Linear::apply_panel(std::size_t panel, const float *weights, const float *x,
                         std::size_t n_rows, float *y) const {
    static const Sweep sweep_rows = pick_sweep();
    float sums[kBlockRows * kPanel];
    sweep_rows(x, n_rows, n_in_, weights, sums);
    const std::size_t first = panel * kPanel;
    const std::size_t count = std::min(kPanel, n_out_ - first);
    for (std::size_t r = 0; r < n_rows; ++r) {
        for (std::size_t c = 0; c < count; ++c) {
            const float bias = bias_.empty() ? 0.0f : bias_[first + c];
            y[r * n_out_ + first + c] = sums[r * kPanel + c] + bias;
        }
    }
}

// Threads share the rows, or the panels where the rows are few.
void Linear::apply_unpacked(const float *x, std::size_t n_rows, float *y, Workers &workers) const {
    const std::size_t n_blocks = (n_rows + kBlockRows - 1) / kBlockRows;
    const std::size_t n_parts = n_rows * n_in_ * n_out_ < kSmallWork ? 1
                                : n_blocks >= workers.n_threads()    ? 1
                                                                     : workers.n_threads();
    workers.each(n_blocks * n_parts, [&](std::size_t i) {
        const std::size_t first = i / n_parts * kBlockRows, part = i % n_parts;
        const std::size_t count = std::min(kBlockRows, n_rows - first);
        for (std::size_t p = part * n_panels() / n_parts; p < (part + 1) * n_panels() / n_parts;
             ++p)
            apply_panel(p, panels_.data() + p * n_in_ * kPanel, x + first * n_in_, count,
                        y + first * n_out_);
    });
}

void Linear::apply(const float *x, std::size_t n_rows, float *y, Workers &workers) const {
    if (!panels_.empty()) {
        apply_unpacked(x, n_rows, y, workers);
        return;
    }
    // Each panel is unpacked once, for all rows; a block of rows stays in the cache for a few
    // panels.
    const std::size_t panel_floats = n_in_ * kPanel;
    const std::size_t n_parts = std::min<std::size_t>(n_panels(), workers.n_threads());
    std::vector<float> unpacked(n_parts * kPanelsAtOnce * panel_floats);
    workers.each(n_parts, [&](std::size_t part) {
        float *weights = unpacked.data() + part * kPanelsAtOnce * panel_floats;
        const std::size_t last = (part + 1) * n_panels() / n_parts;
        for (std::size_t p = part * n_panels() / n_parts; p < last; p += kPanelsAtOnce) {
            const std::size_t n = std::min(kPanelsAtOnce, last - p);
            for (std::size_t i = 0; i < n; ++i)
                unpack(p + i, weights + i * panel_floats);
            for (std::size_t row = 0; row < n_rows; row += kBlockRows)
                for (std::size_t i = 0; i < n; ++i)
                    apply_panel(p + i, weights + i * panel_floats, x + row * n_in_,
                                std::min(kBlockRows, n_rows - row), y + row * n_out_);
        }
    });
}

}  // namespace llama
