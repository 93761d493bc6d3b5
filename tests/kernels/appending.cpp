// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "append_scene.h"
#include "packing.h"

using namespace lk;

namespace {

constexpr uint32_t kHeads = 3, kDim = 48, kPageTokens = 32;

AppendShape append_shape(uint32_t head_dim = kDim) {
    Case c;
    c.head_dim = head_dim;
    c.page_tokens = kPageTokens;
    c.key_bits = c.value_bits = 4;
    return {kHeads,
            head_dim,
            {{raw_layout(Side::kKey, head_dim, kPageTokens), nullptr, Ranking::kNone, 0},
             {raw_layout(Side::kValue, head_dim, kPageTokens), nullptr, Ranking::kNone, 0},
             {packed_shape(c, Side::kKey), nullptr, Ranking::kNone, 0},
             {packed_shape(c, Side::kValue), nullptr, Ranking::kNone, 0}},
            {0, 2, 1, 3, 2}};
}

constexpr lk_dtype kDtypes[] = {LK_F16, LK_BF16, LK_F32};

// Centers of all magnitudes that keys have, up to the largest, and zeros.
std::vector<float> make_centers(uint32_t head_dim, Random *random) {
    std::vector<float> centers;
    for (uint32_t i = 0; i < kHeads * head_dim; ++i) {
        const uint32_t bits = random->bits();
        const float any = bits_to_float(0x33800000u + bits % 0x13FFF000u);  // 2^-24 .. 65536
        centers.push_back(i % 7 == 0 ? 0.0f
                                     : std::min(any, 65504.0f) * (bits >> 31 ? -1.0f : 1.0f));
    }
    return centers;
}

// Key scales from the least that is allowed to the largest.
std::vector<float> make_scales(uint32_t head_dim, Random *random) {
    std::vector<float> scales = {1e-4f, 1e4f, 1.0f};
    while (scales.size() < kHeads * head_dim)
        scales.push_back(std::exp2(static_cast<float>(random->bits() >> 8) * 0x1.9p-20f - 13));
    return scales;
}

// Centers and scales of all kinds together.
KeyParameters make_parameters(uint32_t head_dim, Random *random) {
    KeyParameters all = {make_centers(head_dim, random), make_scales(head_dim, random), {}};
    for (const float scale : all.scales)
        all.inverses.push_back(1.0f / scale);
    return all;
}

// has_long: a sequence of the step is longer than drafts are.
void check_append(lk_dtype dtype, bool has_long, uint32_t spread, const KeyParameters &numbers,
                  const Device &device, uint32_t head_dim = kDim) {
    const AppendShape shape = append_shape(head_dim);
    std::vector<std::pair<uint32_t, uint32_t>> lengths = {{20, 40}, {0, 1}, {31, 2}, {64, 64}};
    if (has_long)
        lengths[1] = {10, head_dim == kDim ? 2090 : 300};
    AppendScene scene(device, shape, lengths, numbers);
    Random random(11 + dtype);
    uint64_t n_saturated = 0;
    for (uint32_t layer = 0; layer < kAppendLayers; ++layer) {
        const Tensor k = make_tensor(shape, dtype, spread, scene.n_tokens(), numbers, &random);
        const Tensor v = make_tensor(shape, dtype, spread, scene.n_tokens(), {}, &random);
        scene.append(layer, k, v);
        scene.check_blocks(layer, k, false);
        scene.check_blocks(layer, v, true);
        scene.check_staging(k, false);
        scene.check_staging(v, true);
        n_saturated += k.n_saturated + v.n_saturated;
    }
    const DataReport found = scene.report();
    assert_false(found.has_fault);
    assert_false(found.is_wrong_shape);
    assert_int_equal(found.n_saturated, n_saturated);
}

// Blocks of 16 to 512 channels, alone and with what comes before a rotation.
void check_rotated_appending(Random *random, const Device &device) {
    uint32_t turn = 0;
    for (const uint32_t head_dim : {64u, 80u, 96u, 128u, 256u, 512u})
        for (const bool has_long : {false, true})
            for (const bool is_alone : {false, true}) {
                KeyParameters numbers;
                if (!is_alone)
                    numbers = make_parameters(head_dim, random);
                numbers.rotation = rotation_channels(head_dim);
                check_append(kDtypes[turn % 3], has_long, turn / 3 % 2, numbers, device, head_dim);
                ++turn;
            }
}

void check_append_fault(lk_dtype dtype, const KeyParameters &numbers, const Device &device) {
    const uint32_t infinity = dtype == LK_F32 ? 0x7F800000 : dtype == LK_F16 ? 0x7C00 : 0x7F80;
    const uint32_t nan = dtype == LK_F32 ? 0xFFC00001 : dtype == LK_F16 ? 0x7C01 : 0xFF81;
    AppendScene scene(device, append_shape(), {{3, 5}, {40, 50}}, numbers);
    Random random(13);
    Tensor k = make_tensor(append_shape(), dtype, 0, scene.n_tokens(), numbers, &random);
    Tensor v = make_tensor(append_shape(), dtype, 0, scene.n_tokens(), {}, &random);
    v.set(31, 1, 7, nan);
    k.set(31, 2, 0, infinity);
    k.set(49, 0, 47, infinity);
    scene.append(0, k, v);
    k.set(3, 0, 0, nan);
    scene.append(1, k, v);
    const DataReport found = scene.report();
    assert_true(found.has_fault);
    assert_int_equal(found.layer, 0);
    assert_int_equal(found.sequence, 2);
    assert_int_equal(found.token, 31 - 5);
    assert_int_equal(found.kv_head, 1);
    assert_true(found.is_value);
}

}  // namespace

void check_appending(const Device &device) {
    for (const lk_dtype dtype : kDtypes)
        for (const bool has_long : {false, true})
            for (const uint32_t spread : {0u, 1u})
                check_append(dtype, has_long, spread, {}, device);
}

void check_append_faults(const Device &device) {
    for (const lk_dtype dtype : kDtypes)
        check_append_fault(dtype, {}, device);
}

void check_changed_appending(const Device &device) {
    Random random(17);
    const KeyParameters all = make_parameters(kDim, &random);
    const KeyParameters centers = {all.centers, {}, {}};
    const KeyParameters scales = {{}, all.scales, all.inverses};
    const KeyParameters rotation = {{}, {}, {}, rotation_channels(kDim)};
    for (const lk_dtype dtype : kDtypes)
        for (const KeyParameters &numbers : {centers, scales, all, rotation}) {
            for (const bool has_long : {false, true})
                for (const uint32_t spread : {0u, 1u})
                    check_append(dtype, has_long, spread, numbers, device);
            check_append_fault(dtype, numbers, device);
        }
    check_rotated_appending(&random, device);
}
