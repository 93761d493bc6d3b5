// SPDX-License-Identifier: Apache-2.0
#include "packing.h"

#include <algorithm>
#include <cstring>

#include "open_cache.h"

using namespace lk;

namespace {

// Kinds of pages: ordinary, any finite bits, constant with both zeros, subnormal, huge.
constexpr uint32_t kKinds = 5;
uint16_t make_value(Random *random, uint32_t kind, uint32_t channel) {
    const uint32_t r = random->bits();
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

struct Half {
    std::vector<uint8_t> payload, metadata;
    explicit Half(const PageLayout &layout)
        : payload(payload_bytes(layout)), metadata(metadata_bytes(layout)) {}
};

LayerView layer_of(uint32_t head_dim) {
    LayerView layer = {1, 1, head_dim, 0, 0, 1, 0, nullptr, nullptr};
    layer.value_dim = head_dim;
    return layer;
}

// One page of values, its packed bytes, and where a backend is to put them.
struct Page {
    size_t target, raw;  // classes
    std::vector<uint16_t> values;
    std::vector<uint64_t> sums;
    Half expected;
    PlacedPage staged, moved, dequantized;
};

Page make_page(const OpenCache &cache, size_t target, size_t raw, uint32_t kind, Random *random) {
    const PageFormat &to = cache.page_format(target);
    const PageLayout &layout = to.layout;
    Page page = {target, raw, {}, {}, Half(layout), {}, {}, {}};
    for (uint32_t i = 0; i < uint32_t{layout.page_tokens} * layout.head_dim; ++i)
        page.values.push_back(make_value(random, kind, i % layout.head_dim));
    for (uint32_t c = 0; c < layout.head_dim; ++c)
        page.sums.push_back(uint64_t{random->bits()} << c % 37);
    const PageValues input = {page.values.data(), layout.head_dim};
    std::vector<uint8_t> own(permutation_bytes(layout.head_dim));
    if (to.ranking == Ranking::kKey)
        rank_by_key(input, layout.head_dim, layout.page_tokens, to.n_ranked, own.data());
    if (to.ranking == Ranking::kQueryRange)
        rank_by_query_range(input, layout.head_dim, layout.page_tokens, page.sums.data(),
                            to.n_ranked, own.data());
    pack_page(layout, to.ranges, input, to.ranking == Ranking::kNone ? to.permutation : own.data(),
              page.expected.payload.data(),
              page.expected.metadata.empty() ? nullptr : page.expected.metadata.data());
    return page;
}

// Both sources of a page.
void queue_page(const OpenCache &cache, const Device &device, Page *page,
                std::vector<PackItem> *items) {
    const PageFormat &target = cache.page_format(page->target);
    const PageFormat &raw = cache.page_format(page->raw);
    Half source(raw.layout);
    pack_page(raw.layout, {OneBit::kRange, 1}, {page->values.data(), raw.layout.head_dim}, nullptr,
              source.payload.data(), nullptr);
    page->staged = place(device, target.layout);
    page->moved = place(device, target.layout);
    page->dequantized = place(device, raw.layout);
    const uint64_t staged = device.memory->input(page->values.data(), page->values.size() * 2);
    const uint64_t sums = device.memory->input(page->sums.data(), page->sums.size() * 8);
    items->push_back({&target, page->staged.payload, page->staged.metadata, nullptr, staged, sums});
    items->push_back({&target, page->moved.payload, page->moved.metadata, &raw,
                      device.memory->input(source.payload.data(), source.payload.size()), sums});
}

void expect_bytes(const Device &device, uint64_t address, const std::vector<uint8_t> &expected,
                  const char *what, const Case &c) {
    std::vector<uint8_t> found(expected.size());
    if (!found.empty())
        device.memory->read(address, found.data(), found.size());
    for (size_t i = 0; i < found.size(); ++i)
        if (found[i] != expected[i])
            fail_msg("%s: byte %zu is %02x, not %02x\n  %s", what, i, found[i], expected[i],
                     describe(c).c_str());
}

uint32_t dequantized_tokens(const PageLayout &layout) { return layout.page_tokens - 5u; }

void check_dequantized(const OpenCache &cache, const Device &device, const Page &page,
                       const Case &c) {
    const PageFormat &from = cache.page_format(page.target);
    const PageLayout &raw = cache.page_format(page.raw).layout;
    std::vector<uint16_t> rounded(page.values.size());
    const uint32_t n = dequantized_tokens(from.layout);
    unpack_page(from.layout, page.expected.payload.data(), page.expected.metadata.data(),
                from.permutation, n, rounded.data(), raw.head_dim);
    std::vector<uint8_t> payload(payload_bytes(raw));
    device.memory->read(page.dequantized.payload, payload.data(), payload.size());
    for (uint32_t channel = 0; channel < raw.head_dim; ++channel) {
        const StoredChannel stored(raw, payload.data(), nullptr, channel);
        for (uint32_t t = 0; t < n; ++t)
            if (stored.code(t) != rounded[t * raw.head_dim + channel])
                fail_msg("dequantized token %u channel %u is %04x, not %04x\n  %s", t, channel,
                         stored.code(t), rounded[t * raw.head_dim + channel], describe(c).c_str());
    }
}

// Strips of every width in turn, the narrowest first.
PageLayout mixed_shape(Case c, Side side) {
    c.key_bits = c.value_bits = 4;
    PageLayout layout = packed_shape(c, side);
    uint32_t n_left = layout.strips[kPlane4];
    layout.strips[kPlane4] = 0;
    for (uint32_t turn = 0; n_left; ++turn) {
        const uint32_t plane = kPlane1 - turn % kPlaneCount;
        if (c.page_tokens < 64 && (plane == kPlane1 || plane == kPlane3))
            continue;
        ++layout.strips[plane];
        --n_left;
    }
    return layout;
}

}  // namespace

std::vector<PageFormat> packing_formats(const Case &c, const uint8_t *permutation) {
    PageFormat keys = {packed_shape(c, Side::kKey), nullptr, Ranking::kNone, 0};
    if (keys.layout.n_shared)
        keys.permutation = permutation;
    if (keys.layout.permutes) {
        keys.ranking = Ranking::kKey;
        keys.n_ranked = static_cast<uint16_t>(keys.layout.strips[kPlane4] * 16 - 3);
    }
    PageFormat by_queries = keys;
    if (keys.layout.permutes)
        by_queries.ranking = Ranking::kQueryRange;
    PageFormat values = {packed_shape(c, Side::kValue), nullptr, Ranking::kNone, 0};
    PageFormat range_keys = keys;
    PageFormat range_values = values;
    range_keys.ranges.one_bit = range_values.ranges.one_bit = OneBit::kRange;
    PageFormat clipped_keys = keys;
    PageFormat clipped_values = values;
    clipped_keys.ranges.clip = 0.7f;
    clipped_values.ranges.clip = 0.55f;
    const RangeRule mixed = {OneBit::kDeviation, 0.3f};
    return {keys,
            by_queries,
            values,
            {mixed_shape(c, Side::kKey), permutation, Ranking::kNone, 0, mixed},
            {mixed_shape(c, Side::kValue), permutation, Ranking::kNone, 0, mixed},
            {raw_layout(Side::kKey, c.head_dim, c.page_tokens), nullptr, Ranking::kNone, 0},
            {raw_layout(Side::kValue, c.head_dim, c.page_tokens), nullptr, Ranking::kNone, 0},
            range_keys,
            range_values,
            clipped_keys,
            clipped_values};
}

namespace {

// Does what sets a class apart from the others of its side make a difference to its bytes?
bool differs(uint16_t target, const PageLayout &layout) {
    if (target == kRangeKeys || target == kRangeValues)
        return layout.n_shared || layout.strips[kPlane1];
    return layout.strips[kPlane2] || (target != kClippedKeys && target != kClippedValues);
}

}  // namespace

void check_packing(const Case &c, const Device &device) {
    std::vector<uint8_t> permutation(permutation_bytes(c.head_dim));
    for (uint32_t i = 0; i < c.head_dim; ++i)
        store_channel(permutation.data(), c.head_dim, i, c.head_dim - 1 - i);
    OpenCache cache(device, packing_formats(c, permutation.data()),
                    {kRawKeys, kKeys, kRawValues, kValues, kKeys}, layer_of(c.head_dim), 1);
    Random random(7);
    std::vector<Page> pages;
    for (uint32_t kind = 0; kind < kKinds; ++kind)
        for (const uint16_t target : {kKeys, kQueryKeys, kValues, kMixedKeys, kMixedValues,
                                      kRangeKeys, kRangeValues, kClippedKeys, kClippedValues}) {
            const PageLayout &layout = cache.page_format(target).layout;
            if (!differs(target, layout))
                continue;
            assert_null(layout_error(layout));
            const size_t raw = layout.side == Side::kValue ? kRawValues : kRawKeys;
            pages.push_back(make_page(cache, target, raw, kind, &random));
        }
    std::vector<PackItem> items;
    for (Page &page : pages)
        queue_page(cache, device, &page, &items);
    expect_ok(cache->pack(items.data(), static_cast<uint32_t>(items.size())));
    std::vector<DequantizeItem> dequantize_items;
    for (const Page &page : pages)
        dequantize_items.push_back({&cache.page_format(page.target), page.moved.payload,
                                    page.moved.metadata, &cache.page_format(page.raw),
                                    page.dequantized.payload,
                                    dequantized_tokens(cache.page_format(page.target).layout)});
    expect_ok(
        cache->dequantize(dequantize_items.data(), static_cast<uint32_t>(dequantize_items.size())));
    assert_true(device.memory->intact());
    for (const Page &page : pages) {
        expect_bytes(device, page.staged.payload, page.expected.payload, "staged payload", c);
        expect_bytes(device, page.staged.metadata, page.expected.metadata, "staged metadata", c);
        expect_bytes(device, page.moved.payload, page.expected.payload, "moved payload", c);
        expect_bytes(device, page.moved.metadata, page.expected.metadata, "moved metadata", c);
        check_dequantized(cache, device, page, c);
    }
}

namespace {

// A run of payloads of random bytes that shrink step by step: n strips of 8 bits, then what stays.
struct Shrinking {
    uint32_t n_strips, page_tokens, tail_bytes, n_pages;
    uint32_t n_bytes;            // of a half
    uint32_t stride_bytes;       // from a half to the next
    std::vector<uint8_t> bytes;  // of all, as they are to be, with what lies between them
    uint64_t address;
    bool is_in_place() const { return !tail_bytes; }
    ShrinkItem item(uint64_t source, uint32_t bits) const {
        const auto narrow = [](uint32_t number) { return static_cast<uint16_t>(number); };
        return {source,
                address,
                stride_bytes,
                tail_bytes,
                narrow(n_pages),
                narrow(bits < 8 ? n_strips : 0),
                narrow(bits < 8 ? bits : 2),
                narrow(page_tokens)};
    }
};

void shrink_expected(Shrinking *run, uint32_t bits) {
    const uint64_t wide = strip_bytes(run->page_tokens, 2 * bits);
    std::vector<uint32_t> words(wide / 4);
    for (uint32_t h = 0; h < run->n_pages; ++h) {
        uint8_t *const page = run->bytes.data() + h * run->stride_bytes;
        for (uint32_t s = 0; s < run->n_strips; ++s) {
            std::memcpy(words.data(), page + s * wide, wide);
            shrink_strip(words.data(), run->page_tokens, bits);
            std::memcpy(page + s * wide / 2, words.data(), wide / 2);
        }
        std::memmove(page + run->n_strips * wide / 2, page + run->n_strips * wide, run->tail_bytes);
    }
    run->n_bytes -= static_cast<uint32_t>(run->n_strips * wide / 2);
}

std::vector<Shrinking> make_shrinkings(const Device &device, Random *random) {
    std::vector<Shrinking> all;
    for (const uint32_t page_tokens : {32u, 64u, 128u})
        for (const uint32_t n_strips : {0u, 1u, 2u, 3u, 5u, 8u, 16u})
            for (const uint32_t tail_bytes : {0u, 16u, 1552u, 24576u}) {
                if (!n_strips && !tail_bytes)
                    continue;
                const auto i = static_cast<uint32_t>(all.size());
                Shrinking run = {n_strips, page_tokens, tail_bytes, 1, 0, 0, {}, 0};
                run.n_bytes =
                    static_cast<uint32_t>(n_strips * strip_bytes(page_tokens, 8)) + tail_bytes;
                run.n_pages = 1 + i % (run.n_bytes > 16384 ? 3 : kRunPages);
                run.stride_bytes = run.n_bytes + i % 3 * LK_SLOT_ALIGN;
                run.bytes.resize(size_t{run.n_pages} * run.stride_bytes);
                for (uint8_t &byte : run.bytes)
                    byte = static_cast<uint8_t>(random->bits());
                run.address = device.memory->output(run.bytes.size());
                all.push_back(run);
            }
    return all;
}

// Bytes between pages stay unchanged where pages shrink in place.
void expect_run(const Device &device, const Shrinking &run) {
    Case c;
    c.page_tokens = run.page_tokens;
    c.head_dim = run.n_strips * 16;
    for (uint32_t h = 0; h < run.n_pages; ++h) {
        const uint32_t first = h * run.stride_bytes;
        const auto from = run.bytes.begin() + first;
        expect_bytes(device, run.address + first,
                     {from, from + (run.is_in_place() ? run.stride_bytes : run.n_bytes)},
                     "shrunk payload", c);
    }
}

}  // namespace

void check_shrinking(const Device &device) {
    OpenCache cache(device, packing_formats({}, nullptr),
                    {kRawKeys, kKeys, kRawValues, kValues, kKeys}, layer_of(64), 1);
    Random random(23);
    std::vector<Shrinking> runs = make_shrinkings(device, &random);
    std::vector<ShrinkItem> items;
    for (const Shrinking &run : runs)
        items.push_back(copy_item(device.memory->input(run.bytes.data(), run.bytes.size()),
                                  run.address, run.bytes.size()));
    expect_ok(cache->shrink(items.data(), static_cast<uint32_t>(items.size())));
    for (const uint32_t bits : {8u, 4u, 2u}) {
        items.clear();
        for (Shrinking &run : runs) {
            const uint64_t from = run.address;
            if (!run.is_in_place())
                run.address = device.memory->output(run.bytes.size());
            if (bits < 8 || !run.is_in_place())
                items.push_back(run.item(from, bits));
            if (bits < 8)
                shrink_expected(&run, bits);
            else if (!run.is_in_place())
                items.back().tail_bytes = run.n_bytes;
        }
        expect_ok(cache->shrink(items.data(), static_cast<uint32_t>(items.size())));
        assert_true(device.memory->intact());
        for (const Shrinking &run : runs)
            expect_run(device, run);
    }
}

namespace {

// A raw half, and the values of its tokens as they are to be.
struct Moving {
    size_t page_format;
    std::vector<uint16_t> values;
    uint64_t address;
};

Moving make_moving(OpenCache &cache, const Device &device, size_t page_format, Random *random) {
    const PageLayout &layout = cache.page_format(page_format).layout;
    Moving page = {page_format, {}, device.memory->output(payload_bytes(layout))};
    for (uint32_t i = 0; i < uint32_t{layout.page_tokens} * layout.head_dim; ++i)
        page.values.push_back(static_cast<uint16_t>(random->bits()));
    std::vector<uint8_t> bytes(payload_bytes(layout));
    pack_page(layout, {OneBit::kRange, 1}, {page.values.data(), layout.head_dim}, nullptr,
              bytes.data(), nullptr);
    const ShrinkItem copy =
        copy_item(device.memory->input(bytes.data(), bytes.size()), page.address, bytes.size());
    expect_ok(cache->shrink(&copy, 1));
    return page;
}

MoveItem move_expected(const OpenCache &cache, const Moving &from, uint32_t first_source,
                       uint32_t first_target, uint64_t mask, Moving *to) {
    const PageFormat &source = cache.page_format(from.page_format);
    const PageFormat &target = cache.page_format(to->page_format);
    const uint32_t head_dim = source.layout.head_dim;
    uint32_t address = first_target;
    for (uint32_t i = 0; i < 64; ++i)
        if (mask >> i & 1) {
            const auto token = from.values.begin() + (first_source + i) * head_dim;
            std::copy(token, token + head_dim, to->values.begin() + address++ * head_dim);
        }
    return {&source, from.address, &target, to->address, first_source, first_target, mask};
}

}  // namespace

void check_moving(const Device &device) {
    std::vector<PageFormat> formats;
    for (const uint32_t head_dim : {32u, 80u, 256u})
        for (const Side side : {Side::kKey, Side::kValue})
            for (const uint32_t tokens : {128u, 32u})
                formats.push_back({raw_layout(side, head_dim, tokens), nullptr, Ranking::kNone, 0});
    OpenCache cache(device, formats, {0, 0, 2, 2, 0}, layer_of(32), 1);
    Random random(31);
    std::vector<Moving> pages;
    for (size_t c = 0; c < formats.size(); ++c)
        pages.push_back(make_moving(cache, device, c, &random));
    std::vector<MoveItem> items;
    for (size_t c = 0; c < formats.size(); c += 2) {
        Moving &large = pages[c], &small = pages[c + 1];
        items.push_back(move_expected(cache, large, 64, 60, 0x80000000F0F30111u, &large));
        items.push_back(move_expected(cache, small, 5, 4, 0x7, &small));
    }
    expect_ok(cache->move(items.data(), static_cast<uint32_t>(items.size())));
    items.clear();
    for (size_t c = 0; c < formats.size(); c += 2)
        items.push_back(move_expected(cache, pages[c], 3, 20, 0x1081, &pages[c + 1]));
    expect_ok(cache->move(items.data(), static_cast<uint32_t>(items.size())));
    assert_true(device.memory->intact());
    for (const Moving &page : pages) {
        const PageLayout &layout = cache.page_format(page.page_format).layout;
        std::vector<uint8_t> expected(payload_bytes(layout));
        pack_page(layout, {OneBit::kRange, 1}, {page.values.data(), layout.head_dim}, nullptr,
                  expected.data(), nullptr);
        Case c;
        c.head_dim = layout.head_dim;
        c.page_tokens = layout.page_tokens;
        expect_bytes(device, page.address, expected, "moved tokens", c);
    }
}
