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
    uint64_t payload_address = 0, metadata_address = 0;
    explicit Half(const HalfShape &shape)
        : payload(payload_bytes(shape), 0xEE), metadata(metadata_bytes(shape), 0xEE) {}
    void place(Machine *machine) {
        payload_address = machine->place(payload.data(), payload.size());
        metadata_address = metadata.empty() ? 0 : machine->place(metadata.data(), metadata.size());
    }
    void fetch(Machine *machine) {
        machine->fetch(payload.data(), payload.size(), payload_address);
        if (metadata_address)
            machine->fetch(metadata.data(), metadata.size(), metadata_address);
    }
};

LayerView layer_of(uint32_t n_kv_heads, uint32_t head_dim) {
    return {n_kv_heads, n_kv_heads, head_dim, 0, 0, 1, 0, nullptr};
}

void check_half(Machine *machine, const HalfClass &target, std::vector<uint16_t> values,
                std::vector<uint64_t> sums) {
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
    const OpenCache cache(*machine, {target, raw}, layer_of(1, shape.head_dim), shape.page_tokens,
                          1, 1);
    for (Half *half : {&staged, &moved, &source, &reopened})
        half->place(machine);
    const uint16_t *placed = machine->place(&values);
    const uint64_t *placed_sums = machine->place(&sums);
    const HalfClass *packs = cache.half_class(0);
    const HalfClass *opens = cache.half_class(1);
    const PackItem items[] = {
        {packs, staged.payload_address, staged.metadata_address, nullptr, 0, placed, placed_sums},
        {packs, moved.payload_address, moved.metadata_address, opens, source.payload_address,
         nullptr, placed_sums}};
    assert_int_equal(cache->pack(items, 2), LK_OK);
    const uint32_t n = shape.page_tokens - 5;
    const ReopenItem reopen = {packs, moved.payload_address,    moved.metadata_address,
                               opens, reopened.payload_address, n};
    assert_int_equal(cache->reopen(&reopen, 1), LK_OK);
    for (Half *half : {&staged, &moved, &reopened})
        half->fetch(machine);
    machine->release();
    assert_true(staged.payload == expected.payload && staged.metadata == expected.metadata);
    assert_true(moved.payload == expected.payload && moved.metadata == expected.metadata);
    std::vector<uint16_t> rounded(values.size());
    unpack_half(shape, expected.payload.data(), expected.metadata.data(), target.permutation, n,
                rounded.data(), shape.head_dim);
    for (uint32_t t = 0; t < n; ++t)
        for (uint32_t c = 0; c < shape.head_dim; ++c)
            assert_int_equal(read_code(raw.shape, reopened.payload.data(), c, t),
                             rounded[t * shape.head_dim + c]);
}

void packing_equals_codec(void **) {
    const MachinePtr machine = open_cpu(0, 2);
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
                check_half(machine.get(), target, values, sums);
            }
        }
}

// A step of two sequences: one whose new tokens begin inside a sink row, and one that has a row
// which is packed from the staging area. Their keys and values as random as floats come.
struct AppendScene {
    static constexpr uint32_t kTokens = 76, kHeads = 3, kDim = 48, kSinks = 16, kPage = 32;
    static constexpr uint32_t kFirst[2] = {0, 26}, kNew[2] = {26, 50}, kHistory[2] = {5, 16};
    static constexpr int64_t kTokenStride = int64_t{kHeads} * kDim;

    AppendScene() : k(kTokens * kHeads * kDim), v(k.size()), keys(k.size()), values(k.size()) {
        g_state = 11;
        for (std::vector<float> *tensor : {&k, &v})
            for (float &value : *tensor)
                do
                    value = bits_to_float(random_bits() << 1 | (random_bits() & 1u));
                while (!float_is_finite(value));
        for (Rows &sequence : rows)
            for (const uint32_t tokens : {kSinks, kPage, kPage})
                add_row(&sequence, tokens);
        rows[1].rows[1].is_direct = 1;
    }
    void add_row(Rows *sequence, uint32_t tokens) {
        std::vector<PageEntry> entries(OpenCache::kFirstEntry + kHeads);
        for (uint32_t head = 0; head < kHeads; ++head) {
            const auto key = static_cast<uint16_t>(tokens == kSinks ? 0 : 2);
            entries[OpenCache::kFirstEntry + head].key_class = key;
            entries[OpenCache::kFirstEntry + head].value_class = static_cast<uint16_t>(key + 1);
        }
        sequence->add(tokens, entries);
    }
    void place(Machine *machine) {
        halves.clear();
        for (Rows &sequence : rows)
            for (std::vector<PageEntry> &entries : sequence.entries)
                for (uint32_t head = 0; head < kHeads; ++head) {
                    PageEntry &entry = entries[OpenCache::kFirstEntry + head];
                    entry.key_payload = place_half(machine, entry.key_class);
                    entry.value_payload = place_half(machine, entry.value_class);
                }
    }
    uint64_t place_half(Machine *machine, uint16_t half_class) {
        halves.push_back(std::make_unique<Half>(classes[half_class].shape));
        halves.back()->place(machine);
        return halves.back()->payload_address;
    }
    const Half &half(uint32_t s, size_t row, uint32_t head, bool is_value) const {
        return *halves[((s * 3 + row) * kHeads + head) * 2 + is_value];
    }
    float value(bool is_value, uint32_t token, uint32_t head, uint32_t channel) const {
        return (is_value ? v : k)[(token * kHeads + head) * kDim + channel];
    }

    const std::vector<HalfClass> classes = {
        {raw_shape(Side::kKey, kDim, kSinks), nullptr, Ranking::kNone, 0},
        {raw_shape(Side::kValue, kDim, kSinks), nullptr, Ranking::kNone, 0},
        {raw_shape(Side::kKey, kDim, kPage), nullptr, Ranking::kNone, 0},
        {raw_shape(Side::kValue, kDim, kPage), nullptr, Ranking::kNone, 0}};
    std::vector<float> k, v;
    std::vector<uint16_t> keys, values;
    Rows rows[2];
    std::vector<std::unique_ptr<Half>> halves;
};
constexpr uint32_t AppendScene::kFirst[2], AppendScene::kNew[2], AppendScene::kHistory[2];

// Append the scene on a fresh cache; staged tokens and halves come back.
DataReport run_append(Machine *machine, AppendScene *scene) {
    using S = AppendScene;
    const OpenCache cache(*machine, scene->classes, layer_of(S::kHeads, S::kDim), S::kPage, 2,
                          S::kTokens);
    scene->place(machine);
    BatchSequence batch[2];
    for (uint32_t s = 0; s < 2; ++s) {
        scene->rows[s].open(cache);
        batch[s] = {scene->rows[s].pointers.data(),
                    3,
                    3,
                    7 + s,
                    S::kHistory[s],
                    S::kNew[s],
                    S::kFirst[s],
                    0,
                    nullptr};
    }
    assert_int_equal(cache->begin({batch, 2, S::kTokens}), LK_OK);
    AppendArgs args = {};
    args.layer = cache.layer();
    args.first_entry = OpenCache::kFirstEntry;
    args.k = {machine->place(&scene->k), LK_F32, S::kTokenStride, S::kDim};
    args.v = {machine->place(&scene->v), LK_F32, S::kTokenStride, S::kDim};
    args.staging = {machine->place(&scene->keys), machine->place(&scene->values), S::kTokens};
    assert_int_equal(cache->append(args), LK_OK);
    machine->fetch(scene->keys.data(), scene->keys.size() * sizeof(uint16_t),
                   reinterpret_cast<uint64_t>(args.staging.keys));
    machine->fetch(scene->values.data(), scene->values.size() * sizeof(uint16_t),
                   reinterpret_cast<uint64_t>(args.staging.values));
    for (const std::unique_ptr<Half> &half : scene->halves)
        half->fetch(machine);
    DataReport report;
    cache->report(&report);
    for (Rows &rows : scene->rows)
        rows.close(cache);
    machine->release();
    return report;
}

void append_rounds_counts_and_stores(void **) {
    using S = AppendScene;
    const MachinePtr machine = open_cpu(0, 3);
    AppendScene scene;
    const DataReport report = run_append(machine.get(), &scene);
    uint64_t n_saturated = 0;
    for (uint32_t s = 0; s < 2; ++s)
        for (uint32_t t = 0; t < S::kNew[s]; ++t) {
            const uint64_t position = S::kHistory[s] + t;
            const size_t r = position < S::kSinks ? 0 : 1 + (position - S::kSinks) / S::kPage;
            const PageRow &row = scene.rows[s].rows[r];
            const auto in_row = static_cast<uint32_t>(position - row.first_token);
            for (uint32_t h = 0; h < S::kHeads; ++h)
                for (uint32_t c = 0; c < S::kDim; ++c)
                    for (const bool is_value : {false, true}) {
                        bool saturated = false;
                        const uint32_t token = S::kFirst[s] + t;
                        const uint16_t expected =
                            float_to_half(scene.value(is_value, token, h, c), &saturated);
                        n_saturated += saturated;
                        const uint16_t *staged = (is_value ? scene.values : scene.keys).data();
                        assert_int_equal(staged[(h * S::kTokens + token) * S::kDim + c], expected);
                        const Half &half = scene.half(s, r, h, is_value);
                        const HalfShape &shape =
                            scene.classes[(r ? 2u : 0u) + (is_value ? 1u : 0u)].shape;
                        assert_int_equal(read_code(shape, half.payload.data(), c, in_row),
                                         row.is_direct ? 0xEEEE : expected);
                    }
        }
    assert_false(report.has_fault);
    assert_int_equal(report.n_saturated, n_saturated);
}

void append_reports_the_first_fault(void **) {
    using S = AppendScene;
    const MachinePtr machine = open_cpu(0, 3);
    AppendScene scene;
    scene.v[(31 * S::kHeads + 1) * S::kDim + 7] = NAN;
    scene.k[(31 * S::kHeads + 2) * S::kDim] = INFINITY;
    scene.k[49 * S::kHeads * S::kDim] = INFINITY;
    DataReport report = run_append(machine.get(), &scene);
    assert_true(report.has_fault);
    assert_int_equal(report.sequence, 8);
    assert_int_equal(report.token, 5);
    assert_int_equal(report.kv_head, 1);
    assert_int_equal(report.is_value, 1);
    scene.k[25 * S::kHeads * S::kDim + S::kDim - 1] = -INFINITY;
    report = run_append(machine.get(), &scene);
    assert_int_equal(report.sequence, 7);
    assert_int_equal(report.token, 25);
    assert_int_equal(report.kv_head, 0);
    assert_int_equal(report.is_value, 0);
}

void query_sums_are_exact(void **) {
    const MachinePtr machine = open_cpu(0, 1);
    const HalfClass raw = {raw_shape(Side::kKey, 32, 32), nullptr, Ranking::kNone, 0};
    const OpenCache cache(*machine, {raw}, layer_of(1, 32), 32, 1, 1);
    const float q[] = {1.0f, -2.0f, 0x1p-24f, -0.0f, 65504.0f, 1e9f};
    std::vector<float> tensor(2 * 32, 0.0f);
    std::copy(q, q + 6, tensor.begin());
    std::copy(q, q + 6, tensor.begin() + 32);
    std::vector<uint64_t> sums(32, 5);
    const QuerySumArgs args = {{tensor.data(), LK_F32, 64, 32}, 0, 2, 32, 0, 1, sums.data()};
    assert_int_equal(cache->sum_queries(&args, 1), LK_OK);
    const uint64_t expected[] = {2ull << 24, 4ull << 24,           2,
                                 0,          2 * (65504ull << 24), 2 * (65504ull << 24)};
    for (int i = 0; i < 6; ++i)
        assert_int_equal(sums[static_cast<size_t>(i)], expected[i] + 5);
    assert_int_equal(sums[6], 5);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(packing_equals_codec),
        cmocka_unit_test(append_rounds_counts_and_stores),
        cmocka_unit_test(append_reports_the_first_fault),
        cmocka_unit_test(query_sums_are_exact),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
