// The backend's packing against the written-out codec: the same bytes, every one.
//
// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <algorithm>
#include <cmath>
#include <cstring>

#include "harness.h"

using namespace lk;

namespace {

uint64_t g_state;
uint32_t random_bits() {
    g_state = g_state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(g_state >> 33);
}

// Kinds of pages: ordinary, any finite bits, constant with both zeros, subnormal, huge.
uint16_t make_value(uint32_t kind, uint32_t channel) {
    const uint32_t r = random_bits();
    bool saturated = false;
    switch (kind) {
        case 0:
            return float_to_half((static_cast<float>(r & 0xFFFF) / 32768.0f - 1) *
                                     static_cast<float>(1 + channel % 5),
                                 &saturated);
        case 1: return static_cast<uint16_t>((r & 0x7C00) == 0x7C00 ? r & 0x83FF : r & 0xFFFF);
        case 2: return static_cast<uint16_t>(r & 1 ? 0x8000 : 0);
        case 3: return static_cast<uint16_t>(r & 0x8007);
        default: return static_cast<uint16_t>((r & 0x8000) | 0x7BFF);
    }
}

std::vector<Case> shapes() {
    std::vector<Case> all;
    for (const uint32_t page_tokens : {32u, 64u, 128u})
        for (const uint32_t bits : {1u, 2u, 3u, 4u, 8u, 16u})
            for (const uint32_t f8 : {0u, 1u})
                for (const uint32_t head_dim : {32u, 80u, 128u, 256u})
                    for (const uint32_t variant : {0u, 1u, 2u, 3u, 4u}) {
                        if (page_tokens < 64 && (bits == 1 || bits == 3))
                            continue;
                        Case c;
                        c.page_tokens = page_tokens;
                        c.key_bits = c.value_bits = bits;
                        c.f8 = f8;
                        c.head_dim = head_dim;
                        c.key_group = variant == 1 ? 16 : variant == 2 ? 32 : 0;
                        c.value_group = variant == 1 ? 16 : variant == 2 ? 48 : 0;
                        c.boosted = variant == 2 ? 16 : 0;
                        c.n_shared = variant == 3 ? 5 : 0;
                        c.per_token_keys = variant == 4;
                        all.push_back(c);
                    }
    return all;
}

struct Half {
    std::vector<uint8_t> payload, metadata;
    explicit Half(const HalfShape &shape)
        : payload(payload_bytes(shape), 0xEE), metadata(metadata_bytes(shape), 0xEE) {}
    uint64_t payload_address() const { return reinterpret_cast<uint64_t>(payload.data()); }
    uint64_t metadata_address() const {
        return metadata.empty() ? 0 : reinterpret_cast<uint64_t>(metadata.data());
    }
};

void check_half(Backend *backend, const HalfClass &target, const std::vector<uint16_t> &values,
                const std::vector<uint64_t> &sums) {
    const HalfShape &shape = target.shape;
    Half expected(shape), staged(shape), moved(shape);
    std::vector<uint8_t> own(shape.head_dim);
    const HalfValues input = {values.data(), shape.head_dim};
    if (target.ranking == Ranking::kKey)
        rank_by_key(input, shape.head_dim, shape.page_tokens, target.n_ranked, own.data());
    if (target.ranking == Ranking::kQueryRange)
        rank_by_query_range(input, shape.head_dim, shape.page_tokens, sums.data(), target.n_ranked,
                            own.data());
    pack_half(shape, input, target.ranking == Ranking::kNone ? target.permutation : own.data(),
              expected.payload.data(),
              expected.metadata.empty() ? nullptr : expected.metadata.data());
    const HalfClass raw = {raw_shape(shape.side, shape.head_dim, shape.page_tokens), nullptr,
                           Ranking::kNone, 0};
    Half source(raw.shape), reopened(raw.shape);
    pack_half(raw.shape, input, nullptr, source.payload.data(), nullptr);
    const PackItem items[] = {{&target, staged.payload_address(), staged.metadata_address(),
                               nullptr, 0, values.data(), sums.data()},
                              {&target, moved.payload_address(), moved.metadata_address(), &raw,
                               source.payload_address(), nullptr, sums.data()}};
    assert_int_equal(backend->pack(items, 2), LK_OK);
    assert_true(staged.payload == expected.payload && staged.metadata == expected.metadata);
    assert_true(moved.payload == expected.payload && moved.metadata == expected.metadata);
    const uint32_t n = shape.page_tokens - 5;
    const ReopenItem reopen = {&target, moved.payload_address(),    moved.metadata_address(),
                               &raw,    reopened.payload_address(), n};
    assert_int_equal(backend->reopen(&reopen, 1), LK_OK);
    std::vector<uint16_t> rounded(values.size());
    unpack_half(shape, expected.payload.data(), expected.metadata.data(), target.permutation, n,
                rounded.data(), shape.head_dim);
    for (uint32_t t = 0; t < n; ++t)
        for (uint32_t c = 0; c < shape.head_dim; ++c)
            assert_int_equal(read_code(raw.shape, reopened.payload.data(), c, t),
                             rounded[t * shape.head_dim + c]);
}

void packing_equals_codec(void **) {
    Backend *backend = open_backend(0, 2);
    g_state = 7;
    for (const Case &c : shapes())
        for (uint32_t kind = 0; kind < 5; ++kind) {
            std::vector<uint16_t> values(c.page_tokens * c.head_dim);
            for (size_t i = 0; i < values.size(); ++i)
                values[i] = make_value(kind, static_cast<uint32_t>(i % c.head_dim));
            std::vector<uint64_t> sums(c.head_dim);
            for (uint64_t &sum : sums)
                sum = random_bits();
            std::vector<uint8_t> permutation(c.head_dim);
            for (uint32_t i = 0; i < c.head_dim; ++i)
                permutation[i] = static_cast<uint8_t>(c.head_dim - 1 - i);
            for (const Side side : {Side::kKey, Side::kValue}) {
                HalfClass target = {packed_shape(c, side), nullptr, Ranking::kNone, 0};
                assert_null(shape_error(target.shape));
                if (c.n_shared && side == Side::kKey)
                    target.permutation = permutation.data();
                if (target.shape.permutes) {
                    target.ranking = kind % 2 ? Ranking::kKey : Ranking::kQueryRange;
                    target.n_ranked =
                        static_cast<uint16_t>(target.shape.strips[kPlane4] * 16 - kind);
                }
                check_half(backend, target, values, sums);
            }
        }
    close_backend(backend);
}

void convert_rounds_and_counts(void **) {
    Backend *backend = open_backend(0, 3);
    constexpr uint32_t kTokens = 50, kHeads = 3, kDim = 48;
    std::vector<float> k(kTokens * kHeads * kDim), v(k.size());
    g_state = 11;
    for (float *values : {k.data(), v.data()})
        for (size_t i = 0; i < k.size(); ++i)
            do
                values[i] = bits_to_float(random_bits() << 1 | (random_bits() & 1u));
            while (!float_is_finite(values[i]));
    std::vector<uint16_t> keys(k.size()), staged_values(k.size());
    ConvertArgs args = {{k.data(), LK_F32, kHeads * kDim, kDim},
                        {v.data(), LK_F32, kHeads * kDim, kDim},
                        kHeads,
                        kDim,
                        {keys.data(), staged_values.data(), kTokens}};
    ConvertResult result;
    assert_int_equal(backend->convert(args, &result), LK_OK);
    assert_true(result.is_finite);
    uint64_t n_saturated = 0;
    for (uint32_t t = 0; t < kTokens; ++t)
        for (uint32_t h = 0; h < kHeads; ++h)
            for (uint32_t c = 0; c < kDim; ++c)
                for (const bool is_value : {false, true}) {
                    bool saturated = false;
                    const float f = (is_value ? v : k)[(t * kHeads + h) * kDim + c];
                    assert_int_equal(
                        (is_value ? staged_values : keys)[(h * kTokens + t) * kDim + c],
                        float_to_half(f, &saturated));
                    n_saturated += saturated;
                }
    assert_int_equal(result.n_saturated, n_saturated);
    v[(31 * kHeads + 1) * kDim + 7] = NAN;
    k[(31 * kHeads + 2) * kDim] = INFINITY;
    k[49 * kHeads * kDim] = INFINITY;
    assert_int_equal(backend->convert(args, &result), LK_OK);
    assert_false(result.is_finite);
    assert_int_equal(result.bad_token, 31);
    assert_int_equal(result.bad_head, 1);
    assert_int_equal(result.bad_is_value, 1);
    close_backend(backend);
}

void query_sums_are_exact(void **) {
    Backend *backend = open_backend(0, 1);
    const float q[] = {1.0f, -2.0f, 0x1p-24f, -0.0f, 65504.0f, 1e9f};
    std::vector<float> tensor(2 * 32, 0.0f);
    std::copy(q, q + 6, tensor.begin());
    std::copy(q, q + 6, tensor.begin() + 32);
    std::vector<uint64_t> sums(32, 5);
    const QuerySumArgs args = {{tensor.data(), LK_F32, 64, 32}, 0, 2, 32, 0, 1, sums.data()};
    assert_int_equal(backend->sum_queries(&args, 1), LK_OK);
    const uint64_t expected[] = {2ull << 24, 4ull << 24,           2,
                                 0,          2 * (65504ull << 24), 2 * (65504ull << 24)};
    for (int i = 0; i < 6; ++i)
        assert_int_equal(sums[static_cast<size_t>(i)], expected[i] + 5);
    assert_int_equal(sums[6], 5);
    close_backend(backend);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(packing_equals_codec),
        cmocka_unit_test(convert_rounds_and_counts),
        cmocka_unit_test(query_sums_are_exact),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
