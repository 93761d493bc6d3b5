// Sums of |Q| and arithmetic on them against whole numbers.
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "format/fp16.h"
#include "open_cache.h"
#include "packing.h"

using namespace lk;

namespace {

constexpr uint32_t kHeads = 4;  // KV heads, of three query heads
constexpr uint32_t kGroup = 3;
constexpr uint32_t kTokens = 70;
constexpr uint32_t kFirstHead = 1;
constexpr uint32_t kSumHeads = 2;

std::vector<PageFormat> sum_formats(uint32_t head_dim) {
    PageLayout packed = raw_layout(Side::kKey, head_dim, 32);
    packed.strips[kPlane16] = 0;
    packed.strips[kPlane4] = 1;
    packed.strips[kPlane2] = static_cast<uint16_t>(head_dim / 16 - 1);
    packed.group = 32;
    packed.metadata = Metadata::kF16;
    packed.permutes = true;
    return {{raw_layout(Side::kKey, head_dim, 32), nullptr, Ranking::kNone, 0},
            {raw_layout(Side::kValue, head_dim, 32), nullptr, Ranking::kNone, 0},
            {packed, nullptr, Ranking::kQueryRange, 16}};
}

// 0 to 1.
float random_share(Random *random) { return static_cast<float>(random->bits() >> 8) * 0x1p-24f; }

// Ordinary numbers, and some that are subnormal, negative zero, beyond FP16 or not finite.
std::vector<float> make_queries(uint32_t head_dim) {
    const float special[] = {0x1p-24f, -0x1p-25f, -0.0f, 65504.0f, 1e9f, -INFINITY, NAN, 0x1p-130f};
    Random random(23);
    std::vector<float> q;
    for (uint32_t i = 0; i < kTokens * kHeads * kGroup * head_dim; ++i)
        q.push_back(i % 17 ? 4.0f * random_share(&random) - 2.0f : special[i / 17 % 8]);
    return q;
}

// |q| in units of 2^-24.
uint64_t magnitude(float q) {
    bool saturated;
    const uint16_t half = float_to_half(q, &saturated) & 0x7FFFu;
    return static_cast<uint64_t>(std::ldexp(double{half_to_float(half)}, 24));
}

// Of a layer: scales of keys or none, and a rotation or 0.
struct SumLayer {
    uint32_t head_dim;
    std::vector<float> scales, inverses;
    uint32_t rotation;

    LayerView view() const {
        LayerView layer = {kHeads * kGroup, kHeads, head_dim, 0, 0, 1, 0, nullptr, nullptr};
        layer.value_dim = head_dim;
        if (!scales.empty()) {
            layer.key_scales = scales.data();
            layer.key_inverses = inverses.data();
        }
        layer.key_rotation = rotation;
        return layer;
    }
};

// |q| of [kTokens][kHeads][kGroup][head_dim] as stored keys meet it.
std::vector<uint64_t> magnitudes(std::vector<float> q, const SumLayer &layer) {
    for (size_t i = 0; i < q.size(); ++i) {
        if (layer.rotation)
            q[i] = std::isnan(q[i]) ? 0x1p31f : std::fmin(std::fmax(q[i], -0x1p31f), 0x1p31f);
        if (!layer.scales.empty())
            q[i] *= layer.scales[i / layer.head_dim / kGroup % kHeads * layer.head_dim +
                                 i % layer.head_dim];
    }
    if (layer.rotation)
        rotate_blocks(q.data(), static_cast<uint32_t>(q.size()), layer.rotation);
    std::vector<uint64_t> found;
    for (const float f : q)
        found.push_back(magnitude(f));
    return found;
}

uint64_t expected_sum(const std::vector<uint64_t> &of_queries, uint32_t head_dim, uint32_t first,
                      uint32_t end, uint32_t kv_head, uint32_t c) {
    uint64_t sum = 0;
    for (uint32_t t = first; t < end; ++t)
        for (uint32_t h = 0; h < kGroup; ++h)
            sum += of_queries[((t * kHeads + kv_head) * kGroup + h) * head_dim + c];
    return sum;
}

// A copy of device memory, by arithmetic.
std::vector<uint64_t> read_sums(OpenCache *cache, const Device &device, uint64_t address,
                                uint32_t n) {
    const uint64_t copy = device.memory->output(n * sizeof(uint64_t));
    const StatItem item = {copy, address, 1, 0, n, kStatReplaces};
    expect_ok((*cache)->add_stats(&item, 1));
    std::vector<uint64_t> found(n);
    device.memory->read(copy, found.data(), n * sizeof(uint64_t));
    return found;
}

void check_runs(const SumLayer &layer, const Device &device) {
    const uint32_t head_dim = layer.head_dim;
    const uint32_t row_sums = kHeads * head_dim;  // from a sum to the next
    const std::vector<float> q = make_queries(head_dim);
    const std::vector<uint64_t> of_queries = magnitudes(q, layer);
    OpenCache cache(device, sum_formats(head_dim), {0, 2, 1, 1, kNoFormat}, layer.view(), 1);
    BatchSequence sequence{};
    sequence.id = 1;
    sequence.n_new = kTokens;
    expect_ok(cache->begin({&sequence, 1, kTokens, kTokens * row_sums * sizeof(uint64_t)}));
    const uint64_t at = device.memory->input(q.data(), q.size() * sizeof(float));
    const TensorView view = {reinterpret_cast<void *>(at), LK_F32, kHeads * kGroup * head_dim,
                             head_dim};
    for (const uint32_t per : {1u, 3u, kTokens}) {
        const QueryStatRun run = {head_dim * sizeof(uint64_t),
                                  row_sums * sizeof(uint64_t),
                                  2,
                                  kTokens - 2,
                                  per,
                                  kFirstHead,
                                  kSumHeads};
        expect_ok(cache->sum_queries({cache.layout().layers[0], 0, view, &run, 1}));
        const uint32_t n_sums = n_query_stats(run);
        assert_int_equal(n_sums, (kTokens - 2 + per - 1) / per);
        for (uint32_t i = 0; i < n_sums; ++i) {
            const uint32_t end = 2 + (i + 1) * per;
            // What lies between the sums of two rows is not written.
            const std::vector<uint64_t> found = read_sums(
                &cache, device, cache->query_stats() + (i * row_sums + head_dim) * sizeof(uint64_t),
                kSumHeads * head_dim);
            for (uint32_t c = 0; c < kSumHeads * head_dim; ++c)
                assert_int_equal(found[c], expected_sum(of_queries, head_dim, 2 + i * per,
                                                        end < kTokens ? end : kTokens,
                                                        kFirstHead + c / head_dim, c % head_dim));
        }
    }
}

// Host arithmetic on the same numbers, in place.
void add_on_host(std::vector<uint64_t> *numbers, uint32_t target, uint32_t source, uint64_t mask,
                 uint32_t stride, uint32_t n, uint32_t flags) {
    for (uint32_t c = 0; c < n; ++c) {
        uint64_t sum = flags & kStatReplaces ? 0 : (*numbers)[target + c];
        for (uint32_t i = 0; i < 64; ++i) {
            if (!(mask >> i & 1))
                continue;
            sum += (*numbers)[source + i * stride + c];
            if (flags & kStatClears)
                (*numbers)[source + i * stride + c] = 0;
        }
        (*numbers)[target + c] = sum;
    }
}

}  // namespace

void check_query_sums(const Device &device) {
    Random random(5);
    for (const uint32_t head_dim : {48u, 128u}) {
        SumLayer scaled = {head_dim, {}, {}, 0};
        for (uint32_t i = 0; i < kHeads * head_dim; ++i) {
            scaled.scales.push_back(0.01f + 2.0f * random_share(&random));
            scaled.inverses.push_back(1.0f / scaled.scales.back());
        }
        SumLayer rotated = scaled;
        rotated.rotation = rotation_channels(head_dim);
        check_runs({head_dim, {}, {}, 0}, device);
        check_runs({head_dim, {}, {}, rotated.rotation}, device);
        check_runs(scaled, device);
        check_runs(rotated, device);
    }
}

void check_sum_items(const Device &device) {
    // More items than one launch takes: what follows goes on in the next.
    constexpr uint32_t kRows = 72, kWide = 304, kChain = 4200;
    struct Step {
        uint32_t target, source;  // rows
        uint64_t mask;
        uint32_t n;
        uint32_t flags;
    };
    std::vector<Step> steps = {
        {0, 1, 0xB, kWide, 0},
        {1, 9, 0x5, kWide, kStatFollows | kStatClears},
        {20, 8, uint64_t{1} << 63 | 1, kWide, kStatReplaces},
        {21, 7, 0, 32, kStatReplaces},
        {22, 22, 1, 48, 0},
        {23, 0, 0, 16, 0},
    };
    for (uint32_t i = 0; i < kChain; ++i)
        steps.push_back({24, 25, 3, 16, i ? uint32_t{kStatFollows} : 0u});
    OpenCache cache(device, sum_formats(48), {0, 2, 1, 1, kNoFormat},
                    SumLayer{48, {}, {}, 0}.view(), 1);
    Random random(7);
    std::vector<uint64_t> numbers;
    for (uint32_t i = 0; i < kRows * kWide; ++i)
        numbers.push_back(uint64_t{random.bits()} << 32 ^ random.bits());
    const uint64_t source = device.memory->input(numbers.data(), numbers.size() * 8);
    const uint64_t area = device.memory->output(numbers.size() * 8);
    const StatItem fill = {area, source, 1, 0, kRows * kWide, kStatReplaces};
    expect_ok(cache->add_stats(&fill, 1));
    std::vector<StatItem> items;
    for (const Step &step : steps) {
        items.push_back({area + step.target * kWide * 8, area + step.source * kWide * 8, step.mask,
                         kWide * 8, step.n, step.flags});
        add_on_host(&numbers, step.target * kWide, step.source * kWide, step.mask, kWide, step.n,
                    step.flags);
    }
    expect_ok(cache->add_stats(items.data(), static_cast<uint32_t>(items.size())));
    std::vector<uint64_t> found(numbers.size());
    device.memory->read(area, found.data(), found.size() * 8);
    for (size_t i = 0; i < found.size(); ++i)
        if (found[i] != numbers[i])
            fail_msg("number %zu of row %zu is %llx, not %llx", i % kWide, i / kWide,
                     static_cast<unsigned long long>(found[i]),
                     static_cast<unsigned long long>(numbers[i]));
}
