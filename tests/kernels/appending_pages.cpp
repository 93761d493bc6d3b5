// SPDX-License-Identifier: Apache-2.0
#include "append_scene.h"
#include "packing.h"

using namespace lk;

namespace {

constexpr uint32_t kHeads = 2;
constexpr lk_dtype kDtypes[] = {LK_F16, LK_BF16, LK_F32};

// Packed formats of an entry.
struct PackedPair {
    uint16_t key;
    uint16_t value;
};
constexpr PackedPair kPairs[] = {{kKeys, kValues},
                                 {kMixedKeys, kMixedValues},
                                 {kClippedKeys, kRangeValues},
                                 {kQueryKeys, kClippedValues},
                                 {kRangeKeys, kRawValues},
                                 {kRawKeys, kValues},
                                 {kRawKeys, kRawValues}};

bool is_raw(const std::vector<PageFormat> &formats, const PackedPair &pair) {
    return formats[pair.key].layout.is_raw() && formats[pair.value].layout.is_raw();
}

// Layers of pairs that are all packed, or all at 16 bits, have the formats of the first: a device's
// compiler takes most of the time for kernels of attention, which does not run here.
AppendShape shape_of(const Case &c, const uint8_t *permutation, const PackedPair &pair) {
    const std::vector<PageFormat> formats = packing_formats(c, permutation);
    const PackedPair &of_layer =
        is_raw(formats, pair) == is_raw(formats, kPairs[0]) ? kPairs[0] : pair;
    return {kHeads,
            c.head_dim,
            formats,
            {kRawKeys, pair.key, kRawValues, pair.value, pair.key},
            lk::EntryFormats{kRawKeys, of_layer.key, kRawValues, of_layer.value, of_layer.key}};
}

// New tokens that begin in a block of earlier ones and end in a block, that fill blocks exactly,
// that are a draft's, and that leave half a block.
std::vector<std::pair<uint32_t, uint32_t>> lengths_of(uint32_t page_tokens) {
    const uint32_t half = page_tokens / 2;
    return {{half, half + 2 * page_tokens + 5},
            {0, 4 * page_tokens},
            {3, 7},
            {page_tokens, 2 * page_tokens + half}};
}

// spread: also chooses rotated keys.
void check_pair(const Case &c, const PackedPair &pair, lk_dtype dtype, uint32_t spread,
                const Device &device) {
    KeyParameters numbers;
    numbers.rotation = spread ? rotation_channels(c.head_dim) : 0;
    std::vector<uint8_t> permutation(permutation_bytes(c.head_dim));
    for (uint32_t i = 0; i < c.head_dim; ++i)
        store_channel(permutation.data(), c.head_dim, i, c.head_dim - 1 - i);
    const AppendShape shape = shape_of(c, permutation.data(), pair);
    AppendScene scene(device, shape, lengths_of(c.page_tokens), numbers);
    Random random(19 + spread);
    const Tensor k = make_tensor(shape, dtype, spread, scene.n_tokens(), numbers, &random);
    const Tensor v = make_tensor(shape, dtype, spread, scene.n_tokens(), {}, &random);
    scene.append(1, k, v);
    scene.check_blocks(1, k, false);
    scene.check_blocks(1, v, true);
    // Attention of layers at 16 bits reads the tensors on CUDA.
    if (device.is_host || !is_raw(shape.formats, pair)) {
        scene.check_staging(k, false);
        scene.check_staging(v, true);
    }
    const DataReport found = scene.report();
    assert_false(found.has_fault);
    assert_int_equal(found.n_saturated, k.n_saturated + v.n_saturated);
}

}  // namespace

void check_append_pages(const Case &c, uint32_t turn, const Device &device) {
    for (const PackedPair &pair : kPairs) {
        check_pair(c, pair, kDtypes[turn % 3], turn / 3 % 2, device);
        ++turn;
    }
}

void check_append_page_faults(const Device &device) {
    Case c;
    c.key_bits = c.value_bits = 4;
    for (const lk_dtype dtype : kDtypes) {
        const uint32_t infinity = dtype == LK_F32 ? 0x7F800000 : dtype == LK_F16 ? 0x7C00 : 0x7F80;
        const AppendShape shape = shape_of(c, nullptr, kPairs[0]);
        AppendScene scene(device, shape, {{3, 5}, {40, 600}}, {});
        Random random(23);
        Tensor k = make_tensor(shape, dtype, 0, scene.n_tokens(), {}, &random);
        Tensor v = make_tensor(shape, dtype, 0, scene.n_tokens(), {}, &random);
        // In blocks that are packed on append, and in one that is not.
        const uint32_t bad[] = {400, 300, 604};
        for (const uint32_t token : bad) {
            v.set(token, 1, 7, infinity);
            v.values[v.row(token, 1) + 7] = 0;
        }
        scene.append(0, k, v);
        const DataReport found = scene.report();
        assert_true(found.has_fault);
        assert_int_equal(found.sequence, 2);
        assert_int_equal(found.token, 300 - 5);
        assert_int_equal(found.kv_head, 1);
        assert_true(found.is_value);
        scene.check_blocks(0, k, false, device.is_host);
        scene.check_blocks(0, v, true, device.is_host);
    }
}
