// Minimum, maximum and sums of each channel, at the speed of memory.
//
// SPDX-License-Identifier: Apache-2.0
#include "stats/sums.h"
#include "format/fp16.h"

namespace lk {

namespace {

// Registers of 128 bits, which every CPU of ours has.
using I16x8 = int16_t __attribute__((vector_size(16)));
using U16x8 = uint16_t __attribute__((vector_size(16)));
using U32x4 = uint32_t __attribute__((vector_size(16)));
using I32x4 = int32_t __attribute__((vector_size(16)));
using F32x4 = float __attribute__((vector_size(16)));
using F64x2 = double __attribute__((vector_size(16)));

constexpr uint32_t kLanes = 8;
constexpr uint32_t kBlockTokens = 32;  // 16 KiB at head_dim 256: read often, from the first cache

static_assert(LK_STRIP_CHANNELS % kLanes == 0, "a row is whole vectors");

// Four magnitudes of FP16 to FP32, exact. A subnormal is built with the exponent of the smallest
// normal number, whose value is then taken away again.
inline F32x4 widen(U32x4 magnitude) {
    const auto subnormal = reinterpret_cast<U32x4>(magnitude < 0x400u);
    const U32x4 bits = (magnitude << 13) + (112u << 23) + (subnormal & (1u << 23));
    const U32x4 surplus = subnormal & (113u << 23);
    return reinterpret_cast<F32x4>(bits) - reinterpret_cast<F32x4>(surplus);
}

struct Accumulator {
    I16x8 low, high;
    F64x2 sum[4], magnitude[4];
};

inline void add_four(F32x4 values, F64x2 *low_pair, F64x2 *high_pair) {
    *low_pair += F64x2{static_cast<double>(values[0]), static_cast<double>(values[1])};
    *high_pair += F64x2{static_cast<double>(values[2]), static_cast<double>(values[3])};
}

inline void add_vector(U16x8 halfs, Accumulator *to) {
    const U16x8 magnitude = halfs & static_cast<uint16_t>(0x7FFF);
    const U16x8 sign = halfs & static_cast<uint16_t>(0x8000);
    const I16x8 order =
        reinterpret_cast<I16x8>(halfs) ^
        reinterpret_cast<I16x8>(reinterpret_cast<U16x8>(reinterpret_cast<I16x8>(halfs) >> 15) &
                                static_cast<uint16_t>(0x7FFF));
    to->low = order < to->low ? order : to->low;
    to->high = order > to->high ? order : to->high;
    const U16x8 zero = {};
    const U16x8 parts[2] = {__builtin_shufflevector(magnitude, zero, 0, 8, 1, 9, 2, 10, 3, 11),
                            __builtin_shufflevector(magnitude, zero, 4, 12, 5, 13, 6, 14, 7, 15)};
    const U16x8 signs[2] = {__builtin_shufflevector(zero, sign, 0, 8, 1, 9, 2, 10, 3, 11),
                            __builtin_shufflevector(zero, sign, 4, 12, 5, 13, 6, 14, 7, 15)};
    for (int i = 0; i < 2; ++i) {
        const F32x4 size = widen(reinterpret_cast<U32x4>(parts[i]));
        const auto value = reinterpret_cast<F32x4>(reinterpret_cast<U32x4>(size) |
                                                   reinterpret_cast<U32x4>(signs[i]));
        add_four(value, &to->sum[2 * i], &to->sum[2 * i + 1]);
        add_four(size, &to->magnitude[2 * i], &to->magnitude[2 * i + 1]);
    }
}

Accumulator load(const ChannelSums *sums) {
    Accumulator a;
    for (uint32_t i = 0; i < kLanes; ++i) {
        a.low[i] = sums[i].low;
        a.high[i] = sums[i].high;
        a.sum[i / 2][i % 2] = sums[i].sum;
        a.magnitude[i / 2][i % 2] = sums[i].magnitude;
    }
    return a;
}

void store(const Accumulator &a, ChannelSums *sums) {
    for (uint32_t i = 0; i < kLanes; ++i)
        sums[i] = {a.low[i], a.high[i], a.sum[i / 2][i % 2], a.magnitude[i / 2][i % 2]};
}

void add_block(const uint16_t *rows, uint32_t n_tokens, uint32_t head_dim, ChannelSums *sums) {
    for (uint32_t c = 0; c < head_dim; c += kLanes) {
        Accumulator a = load(sums + c);
        for (uint32_t t = 0; t < n_tokens; ++t) {
            U16x8 halfs;
            std::memcpy(&halfs, rows + t * head_dim + c, sizeof halfs);
            add_vector(halfs, &a);
        }
        store(a, sums + c);
    }
}

bool is_finite(const ChannelSums &sums) {
    return sums.high <= kHalfMax && sums.low >= -1 - static_cast<int32_t>(kHalfMax);
}

// [n_heads][head_dim] of these samples alone. LK_E_NOMEM, LK_E_DATA.
lk_status sum_channels(const Samples &samples, const char *what, uint32_t layer,
                       Array<ChannelSums> *out) {
    const uint64_t n = static_cast<uint64_t>(samples.n_heads) * samples.head_dim;
    if (!out->resize(n))
        return fail(LK_E_NOMEM, "no memory for the sums of %llu channels",
                    static_cast<unsigned long long>(n));
    for (ChannelSums &sums : *out)
        sums = kEmptyChannel;
    alignas(64) uint16_t rows[kBlockTokens * LK_MAX_HEAD_DIM];
    for (uint32_t first = 0; first < samples.n_tokens; first += kBlockTokens) {
        const uint32_t left = samples.n_tokens - first;
        const uint32_t n_tokens = left < kBlockTokens ? left : kBlockTokens;
        for (uint32_t h = 0; h < samples.n_heads; ++h) {
            for (uint32_t t = 0; t < n_tokens; ++t)
                read_vector(samples, first + t, h, rows + t * samples.head_dim);
            add_block(rows, n_tokens, samples.head_dim,
                      out->data() + static_cast<uint64_t>(h) * samples.head_dim);
        }
    }
    for (const ChannelSums &sums : *out)
        if (!is_finite(sums))
            return find_fault(samples, what, layer);
    return LK_OK;
}

float value_of_order(int16_t order) {
    const auto bits = static_cast<uint16_t>(order);
    return half_to_float(order < 0 ? static_cast<uint16_t>(bits ^ 0x7FFFu) : bits) + 0.0f;
}

lk_status no_memory_for_sums(uint32_t layer) {
    return fail(LK_E_NOMEM, "no memory for the statistics of layer %u", layer);
}

}  // namespace

float channel_low(const ChannelSums &sums) { return value_of_order(sums.low); }
float channel_high(const ChannelSums &sums) { return value_of_order(sums.high); }
float channel_range(const ChannelSums &sums) { return channel_high(sums) - channel_low(sums); }
float channel_mean(const ChannelSums &sums, uint64_t n) {
    return static_cast<float>(sums.sum / static_cast<double>(n));
}

lk_status add_keys(Calibrator *calibrator, uint32_t layer, const Samples &keys) {
    Array<ChannelSums> fresh(*calibrator->allocator);
    const lk_status status = sum_channels(keys, "K", layer, &fresh);
    if (status != LK_OK)
        return status;
    LayerSamples *own = samples_of(calibrator, layer);
    if (!own)
        return no_memory_for_sums(layer);
    own->n_keys += keys.n_tokens;
    if (own->keys.empty()) {
        own->keys = static_cast<Array<ChannelSums> &&>(fresh);
        return LK_OK;
    }
    for (size_t i = 0; i < fresh.size(); ++i) {
        ChannelSums &to = own->keys[i];
        to.low = fresh[i].low < to.low ? fresh[i].low : to.low;
        to.high = fresh[i].high > to.high ? fresh[i].high : to.high;
        to.sum += fresh[i].sum;
        to.magnitude += fresh[i].magnitude;
    }
    return LK_OK;
}

lk_status add_queries(Calibrator *calibrator, uint32_t layer, const Samples &queries) {
    Array<ChannelSums> fresh(*calibrator->allocator);
    const lk_status status = sum_channels(queries, "Q", layer, &fresh);
    if (status != LK_OK)
        return status;
    LayerSamples *own = samples_of(calibrator, layer);
    const lk_layer &shape = calibrator->geometry[layer];
    if (!own || !own->queries.resize(static_cast<size_t>(shape.n_kv_heads) * shape.head_dim))
        return no_memory_for_sums(layer);
    own->n_queries += queries.n_tokens;
    const uint32_t group = shape.n_query_heads / shape.n_kv_heads;
    for (uint32_t h = 0; h < shape.n_query_heads; ++h)
        for (uint32_t c = 0; c < shape.head_dim; ++c)
            own->queries[static_cast<size_t>(h / group) * shape.head_dim + c] +=
                fresh[static_cast<size_t>(h) * shape.head_dim + c].magnitude;
    return LK_OK;
}

}  // namespace lk
