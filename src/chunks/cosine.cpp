// Cosines of embeddings in host memory: a memory-bound pass over the chunks' elements.
//
// SPDX-License-Identifier: Apache-2.0
#include "chunks/cosine.h"

#include <lowkey/chunks.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/float_mode.h"
#include "base/host_tensor.h"
#include "base/memory.h"
#include "base/status.h"
#include "format/fp16.h"

namespace lk {

namespace {

constexpr uint32_t kLanes = 16;
constexpr uint32_t kBlock = 256;  // elements that are made floats at once
// Between these a sum of squares has lost nothing to FP32's range.
constexpr double kLeastSquares = 0x1p-80;
constexpr double kMostSquares = 0x1p120;

// Independent sums, in as many registers as the compiler's target needs for them.
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

// Neither zero nor below the normal numbers, neither infinite nor NaN, all n of them.
bool are_normal(const uint16_t *halfs, uint32_t n) {
    uint16_t others = 0;
    for (uint32_t c = 0; c < n; ++c) {
        const auto above = static_cast<uint16_t>((halfs[c] & 0x7C00) - 0x0400);
        others |= static_cast<uint16_t>(above >= 0x7800);
    }
    return !others;
}

// half_to_float() of normal numbers: the exponent's bias is all that differs.
void read_normal(const uint16_t *halfs, uint32_t n, float *out) {
    for (uint32_t c = 0; c < n; ++c) {
        const auto spread = static_cast<int32_t>(static_cast<uint32_t>(halfs[c]) << 16) >> 3;
        out[c] = bits_to_float((static_cast<uint32_t>(spread) & 0x8FFFFFFFu) + (112u << 23));
    }
}

// half_to_float() of any, in masks instead of branches so that it makes vectors: what is below
// the normal numbers comes by a subtraction, infinity and NaN get FP32's exponent of theirs.
void read_any(const uint16_t *halfs, uint32_t n, float *out) {
    for (uint32_t c = 0; c < n; ++c) {
        const auto magnitude = static_cast<int32_t>(halfs[c] & 0x7FFF) << 13;
        const int32_t is_small = -(magnitude < (1 << 23));
        const int32_t is_wild = -(magnitude >= (31 << 23));
        const float small =
            bits_to_float(static_cast<uint32_t>(magnitude + (113 << 23))) - 0x1p-14f;
        const int32_t rebased = magnitude + (112 << 23) + (is_wild & (112 << 23));
        const auto small_bits = static_cast<int32_t>(float_to_bits(small));
        const int32_t bits = (small_bits & is_small) | (rebased & ~is_small);
        const uint32_t sign = static_cast<uint32_t>(halfs[c] & 0x8000) << 16;
        out[c] = bits_to_float(static_cast<uint32_t>(bits) | sign);
    }
}

// n elements of a row from `first` on, in place where they are floats.
const float *read_block(const void *row, lk_dtype dtype, uint32_t first, uint32_t n, float *block) {
    if (dtype == LK_F32)
        return static_cast<const float *>(row) + first;
    const auto *from = static_cast<const uint16_t *>(row) + first;
    if (dtype == LK_F16)
        (are_normal(from, n) ? read_normal : read_any)(from, n, block);
    else
        for (uint32_t c = 0; c < n; ++c)
            block[c] = bits_to_float(static_cast<uint32_t>(from[c]) << 16);
    return block;
}

struct Sums {
    double dot;
    double squares;
};

// Element i of a block goes to lane i % kLanes; lanes go to FP64 after each block, so rounding
// does not grow with the number of channels.
Sums sum_block(const float *x, const float *q, uint32_t n) {
    Lanes dot = {};
    Lanes squares = {};
    uint32_t c = 0;
    for (; c + kLanes <= n; c += kLanes) {
        Lanes a;
        Lanes b;
        std::memcpy(&a, x + c, sizeof a);
        std::memcpy(&b, q + c, sizeof b);
        dot += a * b;
        squares += a * a;
    }
    for (uint32_t lane = 0; c + lane < n; ++lane) {
        dot[lane] += x[c + lane] * q[c + lane];
        squares[lane] += x[c + lane] * x[c + lane];
    }
    Sums sums = {};
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
        sums.dot += double{dot[lane]};
        sums.squares += double{squares[lane]};
    }
    return sums;
}

// Elements of FP32's whole range: their squares are within FP64's.
Sums sum_wide(const float *x, const float *q, uint32_t n) {
    Sums sums = {};
    for (uint32_t c = 0; c < n; ++c) {
        sums.dot += double{x[c]} * double{q[c]};
        sums.squares += double{x[c]} * double{x[c]};
    }
    return sums;
}

template <Sums (*Sum)(const float *, const float *, uint32_t)>
Sums sum_row(const void *row, lk_dtype dtype, const float *query, uint32_t n_channels) {
    float block[kBlock];
    Sums sums = {};
    for (uint32_t first = 0; first < n_channels; first += kBlock) {
        const uint32_t n = std::min(kBlock, n_channels - first);
        const Sums part = Sum(read_block(row, dtype, first, n, block), query + first, n);
        sums.dot += part.dot;
        sums.squares += part.squares;
    }
    return sums;
}

// Both sums of an embedding; the sum of squares of one that has no direction is 0, or not finite.
Sums sums_of(const void *row, lk_dtype dtype, const float *query, uint32_t n_channels) {
    const Sums sums = sum_row<sum_block>(row, dtype, query, n_channels);
    return sums.squares >= kLeastSquares && sums.squares <= kMostSquares
               ? sums
               : sum_row<sum_wide>(row, dtype, query, n_channels);
}

bool has_direction(const Sums &sums) { return sums.squares > 0 && std::isfinite(sums.squares); }

const char *fault_of(const Sums &sums) {
    return sums.squares == 0 ? "is all zeros, which has no direction"
                             : "has an element that is not finite";
}

// The query as floats of length 1.
lk_status read_query(const lk_tensor &tensor, uint32_t n_channels, Array<float> *query) {
    if (!query->resize(n_channels))
        return fail(LK_E_NOMEM, "no memory for a query embedding of %u channels", n_channels);
    const void *row = host_row(tensor, 0, 0);
    const Sums sums = sum_row<sum_wide>(row, tensor.dtype, query->data(), n_channels);
    if (!has_direction(sums))
        return fail(LK_E_DATA, "the query's embedding %s", fault_of(sums));
    const double length = std::sqrt(sums.squares);
    float block[kBlock];
    for (uint32_t first = 0; first < n_channels; first += kBlock) {
        const uint32_t n = std::min(kBlock, n_channels - first);
        const float *x = read_block(row, tensor.dtype, first, n, block);
        for (uint32_t c = 0; c < n; ++c)
            (*query)[first + c] = static_cast<float>(double{x[c]} / length);
    }
    return LK_OK;
}

}  // namespace

lk_status score_cosine(const lk_tensor &embeddings, const lk_tensor &query, uint32_t n_chunks,
                       uint32_t n_channels, float *scores) {
    Array<float> unit;
    Array<float> own;
    LK_TRY(read_query(query, n_channels, &unit));
    if (!own.resize(n_chunks))
        return fail(LK_E_NOMEM, "no memory for the scores of %u chunks", n_chunks);
    for (uint32_t i = 0; i < n_chunks; ++i) {
        const Sums sums =
            sums_of(host_row(embeddings, i, 0), embeddings.dtype, unit.data(), n_channels);
        if (!has_direction(sums))
            return fail(LK_E_DATA, "the embedding of chunk %u %s", i, fault_of(sums));
        const double cosine = sums.dot / std::sqrt(sums.squares);
        own[i] = static_cast<float>(std::max(-1.0, std::min(1.0, cosine)));
    }
    std::copy(own.begin(), own.end(), scores);
    return LK_OK;
}

}  // namespace lk

extern "C" lk_status lk_chunks_cosine(const lk_tensor *embeddings, const lk_tensor *query,
                                      uint32_t n_chunks, uint32_t n_channels, float *scores) {
    const lk::FloatMode mode;
    if (!n_channels)
        return lk::fail(LK_E_ARGUMENT, "n_channels is 0");
    if (!n_chunks)
        return LK_OK;
    if (!scores)
        return lk::fail(LK_E_ARGUMENT, "scores is NULL");
    lk_tensor c;
    lk_tensor q;
    LK_TRY(lk::import_host_tensor(embeddings, "embeddings", n_chunks, 1, n_channels, &c));
    LK_TRY(lk::import_host_tensor(query, "query", 1, 1, n_channels, &q));
    return lk::score_cosine(c, q, n_chunks, n_channels, scores);
}
