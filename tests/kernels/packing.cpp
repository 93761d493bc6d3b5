// SPDX-License-Identifier: Apache-2.0
#include "packing.h"

#include "base/status.h"  // before cmocka, which has a macro of the name fail()

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <algorithm>
#include <cstring>
#include <utility>

using namespace lk;

namespace {

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint32_t bits() {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<uint32_t>(state_ >> 32);
    }

  private:
    uint64_t state_;
};

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

// A backend's cache of layers of one kind.
class OpenCache {
  public:
    OpenCache(const Device &device, std::vector<HalfClass> classes, const EntryClasses &entries,
              const LayerView &layer, uint32_t n_layers)
        : device_(device),
          classes_(std::move(classes)),
          entry_classes_(size_t{n_layers} * layer.n_kv_heads, entries),
          layers_(n_layers, layer) {
        for (uint32_t l = 0; l < n_layers; ++l)
            first_entries_.push_back(l * layer.n_kv_heads);
        layout_.classes = classes_.data();
        layout_.n_classes = static_cast<uint32_t>(classes_.size());
        layout_.layers = layers_.data();
        layout_.first_entries = first_entries_.data();
        layout_.n_layers = n_layers;
        layout_.n_entries = n_layers * layer.n_kv_heads;
        layout_.entry_classes = entry_classes_.data();
        layout_.page_tokens = classes_[0].shape.page_tokens;
        layout_.max_sequences = 8;
        layout_.max_step_tokens = 1024;
        layout_.max_rows = layout_.max_step_rows = 128;
        if (device.backend->cache_open(layout_, &cache_) != LK_OK ||
            cache_->set_queue(device.memory->queue()) != LK_OK)
            fail_msg("%s", last_sentence());
    }
    ~OpenCache() {
        device_.backend->cache_close(cache_);
        device_.memory->clear();
    }
    OpenCache(const OpenCache &) = delete;
    OpenCache &operator=(const OpenCache &) = delete;

    CacheDevice *operator->() { return cache_; }
    const CacheLayout &layout() const { return layout_; }
    const HalfClass &half_class(size_t i) const { return classes_[i]; }

  private:
    Device device_;
    std::vector<HalfClass> classes_;
    std::vector<EntryClasses> entry_classes_;
    std::vector<LayerView> layers_;
    std::vector<uint32_t> first_entries_;
    CacheLayout layout_{};
    CacheDevice *cache_ = nullptr;
};

void expect_ok(lk_status status) {
    if (status)
        fail_msg("%s: %s", lk_status_name(status), last_sentence());
}

struct Half {
    std::vector<uint8_t> payload, metadata;
    explicit Half(const HalfShape &shape)
        : payload(payload_bytes(shape)), metadata(metadata_bytes(shape)) {}
};
struct PlacedHalf {
    uint64_t payload = 0, metadata = 0;
};

PlacedHalf place(const Device &device, const HalfShape &shape) {
    const uint64_t metadata = metadata_bytes(shape);
    return {device.memory->output(payload_bytes(shape)),
            metadata ? device.memory->output(metadata) : 0};
}

// One page of values, its packed bytes, and where a backend is to put them.
struct Page {
    size_t target, raw;  // classes
    std::vector<uint16_t> values;
    std::vector<uint64_t> sums;
    Half expected;
    PlacedHalf staged, moved, reopened;
};

Page make_page(const OpenCache &cache, size_t target, size_t raw, uint32_t kind, Random *random) {
    const HalfClass &to = cache.half_class(target);
    const HalfShape &shape = to.shape;
    Page page = {target, raw, {}, {}, Half(shape), {}, {}, {}};
    for (uint32_t i = 0; i < uint32_t{shape.page_tokens} * shape.head_dim; ++i)
        page.values.push_back(make_value(random, kind, i % shape.head_dim));
    for (uint32_t c = 0; c < shape.head_dim; ++c)
        page.sums.push_back(random->bits());
    const HalfValues input = {page.values.data(), shape.head_dim};
    std::vector<uint8_t> own(shape.head_dim);
    if (to.ranking == Ranking::kKey)
        rank_by_key(input, shape.head_dim, shape.page_tokens, to.n_ranked, own.data());
    if (to.ranking == Ranking::kQueryRange)
        rank_by_query_range(input, shape.head_dim, shape.page_tokens, page.sums.data(), to.n_ranked,
                            own.data());
    pack_half(shape, to.one_bit, input, to.ranking == Ranking::kNone ? to.permutation : own.data(),
              page.expected.payload.data(),
              page.expected.metadata.empty() ? nullptr : page.expected.metadata.data());
    return page;
}

// Both sources of a page.
void queue_page(const OpenCache &cache, const Device &device, Page *page,
                std::vector<PackItem> *items) {
    const HalfClass &target = cache.half_class(page->target);
    const HalfClass &raw = cache.half_class(page->raw);
    Half source(raw.shape);
    pack_half(raw.shape, OneBit::kRange, {page->values.data(), raw.shape.head_dim}, nullptr,
              source.payload.data(), nullptr);
    page->staged = place(device, target.shape);
    page->moved = place(device, target.shape);
    page->reopened = place(device, raw.shape);
    const uint64_t staged = device.memory->input(page->values.data(), page->values.size() * 2);
    items->push_back({&target, page->staged.payload, page->staged.metadata, nullptr, 0,
                      reinterpret_cast<const uint16_t *>(staged), page->sums.data()});
    items->push_back({&target, page->moved.payload, page->moved.metadata, &raw,
                      device.memory->input(source.payload.data(), source.payload.size()), nullptr,
                      page->sums.data()});
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

uint32_t reopened_tokens(const HalfShape &shape) { return shape.page_tokens - 5u; }

void check_reopened(const OpenCache &cache, const Device &device, const Page &page, const Case &c) {
    const HalfClass &from = cache.half_class(page.target);
    const HalfShape &raw = cache.half_class(page.raw).shape;
    std::vector<uint16_t> rounded(page.values.size());
    const uint32_t n = reopened_tokens(from.shape);
    unpack_half(from.shape, page.expected.payload.data(), page.expected.metadata.data(),
                from.permutation, n, rounded.data(), raw.head_dim);
    std::vector<uint8_t> payload(payload_bytes(raw));
    device.memory->read(page.reopened.payload, payload.data(), payload.size());
    for (uint32_t t = 0; t < n; ++t)
        for (uint32_t channel = 0; channel < raw.head_dim; ++channel)
            if (read_code(raw, payload.data(), channel, t) != rounded[t * raw.head_dim + channel])
                fail_msg("reopened token %u channel %u is %04x, not %04x\n  %s", t, channel,
                         read_code(raw, payload.data(), channel, t),
                         rounded[t * raw.head_dim + channel], describe(c).c_str());
}

// Strips of every width in turn, the narrowest first.
HalfShape mixed_shape(Case c, Side side) {
    c.key_bits = c.value_bits = 4;
    HalfShape shape = packed_shape(c, side);
    uint32_t n_left = shape.strips[kPlane4];
    shape.strips[kPlane4] = 0;
    for (uint32_t turn = 0; n_left; ++turn) {
        const uint32_t plane = kPlane1 - turn % kPlaneCount;
        if (c.page_tokens < 64 && (plane == kPlane1 || plane == kPlane3))
            continue;
        ++shape.strips[plane];
        --n_left;
    }
    return shape;
}

// Keys, keys ranked by queries where the backend does that, values, both of all widths under a
// fixed permutation, both at 16 bits, and keys and values whose 1-bit codes stand for the range.
enum : uint16_t {
    kKeys,
    kQueryKeys,
    kValues,
    kMixedKeys,
    kMixedValues,
    kRawKeys,
    kRawValues,
    kRangeKeys,
    kRangeValues,
};
std::vector<HalfClass> packing_classes(const Case &c, const uint8_t *permutation, bool is_host) {
    HalfClass keys = {packed_shape(c, Side::kKey), nullptr, Ranking::kNone, 0};
    if (keys.shape.n_shared)
        keys.permutation = permutation;
    if (keys.shape.permutes) {
        keys.ranking = Ranking::kKey;
        keys.n_ranked = static_cast<uint16_t>(keys.shape.strips[kPlane4] * 16 - 3);
    }
    HalfClass by_queries = keys;
    if (keys.shape.permutes && is_host)
        by_queries.ranking = Ranking::kQueryRange;
    HalfClass values = {packed_shape(c, Side::kValue), nullptr, Ranking::kNone, 0};
    HalfClass range_keys = keys;
    HalfClass range_values = values;
    range_keys.one_bit = range_values.one_bit = OneBit::kRange;
    return {keys,
            by_queries,
            values,
            {mixed_shape(c, Side::kKey), permutation, Ranking::kNone, 0},
            {mixed_shape(c, Side::kValue), permutation, Ranking::kNone, 0},
            {raw_shape(Side::kKey, c.head_dim, c.page_tokens), nullptr, Ranking::kNone, 0},
            {raw_shape(Side::kValue, c.head_dim, c.page_tokens), nullptr, Ranking::kNone, 0},
            range_keys,
            range_values};
}

bool has_one_bit(const HalfShape &shape) { return shape.n_shared || shape.strips[kPlane1]; }

}  // namespace

void check_packing(const Case &c, const Device &device) {
    std::vector<uint8_t> permutation(c.head_dim);
    for (uint32_t i = 0; i < c.head_dim; ++i)
        permutation[i] = static_cast<uint8_t>(c.head_dim - 1 - i);
    OpenCache cache(device, packing_classes(c, permutation.data(), device.is_host),
                    {kRawKeys, kKeys, kRawValues, kValues},
                    {1, 1, c.head_dim, 0, 0, 1, 0, nullptr, nullptr}, 1);
    Random random(7);
    std::vector<Page> pages;
    for (uint32_t kind = 0; kind < kKinds; ++kind)
        for (const uint16_t target :
             {kKeys, kQueryKeys, kValues, kMixedKeys, kMixedValues, kRangeKeys, kRangeValues}) {
            const HalfShape &shape = cache.half_class(target).shape;
            if (target >= kRangeKeys && !has_one_bit(shape))
                continue;
            assert_null(shape_error(shape));
            const size_t raw = shape.side == Side::kValue ? kRawValues : kRawKeys;
            pages.push_back(make_page(cache, target, raw, kind, &random));
        }
    std::vector<PackItem> items;
    for (Page &page : pages)
        queue_page(cache, device, &page, &items);
    expect_ok(cache->pack(items.data(), static_cast<uint32_t>(items.size())));
    std::vector<ReopenItem> reopens;
    for (const Page &page : pages)
        reopens.push_back({&cache.half_class(page.target), page.moved.payload, page.moved.metadata,
                           &cache.half_class(page.raw), page.reopened.payload,
                           reopened_tokens(cache.half_class(page.target).shape)});
    expect_ok(cache->reopen(reopens.data(), static_cast<uint32_t>(reopens.size())));
    assert_true(device.memory->intact());
    for (const Page &page : pages) {
        expect_bytes(device, page.staged.payload, page.expected.payload, "staged payload", c);
        expect_bytes(device, page.staged.metadata, page.expected.metadata, "staged metadata", c);
        expect_bytes(device, page.moved.payload, page.expected.payload, "moved payload", c);
        expect_bytes(device, page.moved.metadata, page.expected.metadata, "moved metadata", c);
        check_reopened(cache, device, page, c);
    }
}

namespace {

// A payload of random bytes that shrinks step by step: n strips of 8 bits, then what stays.
struct Shrinking {
    uint32_t n_strips, page_tokens, tail_bytes;
    std::vector<uint8_t> bytes;  // as they are to be
    uint64_t place;
    bool is_in_place() const { return !tail_bytes; }
};

void shrink_expected(Shrinking *half, uint32_t bits) {
    const uint64_t wide = strip_bytes(half->page_tokens, 2 * bits);
    std::vector<uint8_t> out;
    std::vector<uint32_t> words(wide / 4);
    for (uint32_t s = 0; s < half->n_strips; ++s) {
        std::memcpy(words.data(), half->bytes.data() + s * wide, wide);
        shrink_strip(words.data(), half->page_tokens, bits);
        const auto *narrow = reinterpret_cast<const uint8_t *>(words.data());
        out.insert(out.end(), narrow, narrow + wide / 2);
    }
    out.insert(out.end(), half->bytes.end() - half->tail_bytes, half->bytes.end());
    half->bytes = out;
}

std::vector<Shrinking> make_shrinkings(const Device &device, Random *random) {
    std::vector<Shrinking> all;
    for (const uint32_t page_tokens : {32u, 64u, 128u})
        for (const uint32_t n_strips : {0u, 1u, 2u, 3u, 5u, 8u, 16u})
            for (const uint32_t tail_bytes : {0u, 16u, 1552u, 24576u}) {
                if (!n_strips && !tail_bytes)
                    continue;
                Shrinking half = {n_strips, page_tokens, tail_bytes, {}, 0};
                const size_t n = n_strips * strip_bytes(page_tokens, 8) + tail_bytes;
                for (size_t i = 0; i < n; ++i)
                    half.bytes.push_back(static_cast<uint8_t>(random->bits()));
                half.place = device.memory->output(n);
                all.push_back(half);
            }
    return all;
}

}  // namespace

void check_shrinking(const Device &device) {
    OpenCache cache(device, packing_classes({}, nullptr, device.is_host),
                    {kRawKeys, kKeys, kRawValues, kValues},
                    {1, 1, 64, 0, 0, 1, 0, nullptr, nullptr}, 1);
    Random random(23);
    std::vector<Shrinking> halves = make_shrinkings(device, &random);
    std::vector<ShrinkItem> items;
    for (const Shrinking &half : halves)
        items.push_back({device.memory->input(half.bytes.data(), half.bytes.size()), half.place, 0,
                         2, half.page_tokens, static_cast<uint32_t>(half.bytes.size())});
    expect_ok(cache->shrink(items.data(), static_cast<uint32_t>(items.size())));
    for (const uint32_t bits : {8u, 4u, 2u}) {
        items.clear();
        for (Shrinking &half : halves) {
            if (bits < 8)
                shrink_expected(&half, bits);
            const uint64_t from = half.place;
            if (!half.is_in_place())
                half.place = device.memory->output(half.bytes.size());
            if (bits < 8)
                items.push_back(
                    {from, half.place, half.n_strips, bits, half.page_tokens, half.tail_bytes});
            else if (!half.is_in_place())
                items.push_back({from, half.place, 0, 2, half.page_tokens,
                                 static_cast<uint32_t>(half.bytes.size())});
        }
        expect_ok(cache->shrink(items.data(), static_cast<uint32_t>(items.size())));
        assert_true(device.memory->intact());
        for (const Shrinking &half : halves) {
            Case c;
            c.page_tokens = half.page_tokens;
            c.head_dim = half.n_strips * 16;
            expect_bytes(device, half.place, half.bytes, "shrunk payload", c);
        }
    }
}

namespace {

// A raw half, and the values of its tokens as they are to be.
struct Moving {
    size_t half_class;
    std::vector<uint16_t> values;
    uint64_t place;
};

Moving make_moving(OpenCache &cache, const Device &device, size_t half_class, Random *random) {
    const HalfShape &shape = cache.half_class(half_class).shape;
    Moving half = {half_class, {}, device.memory->output(payload_bytes(shape))};
    for (uint32_t i = 0; i < uint32_t{shape.page_tokens} * shape.head_dim; ++i)
        half.values.push_back(static_cast<uint16_t>(random->bits()));
    std::vector<uint8_t> bytes(payload_bytes(shape));
    pack_half(shape, OneBit::kRange, {half.values.data(), shape.head_dim}, nullptr, bytes.data(),
              nullptr);
    const ShrinkItem copy = {device.memory->input(bytes.data(), bytes.size()),
                             half.place,
                             0,
                             2,
                             shape.page_tokens,
                             static_cast<uint32_t>(bytes.size())};
    expect_ok(cache->shrink(&copy, 1));
    return half;
}

MoveItem move_expected(const OpenCache &cache, const Moving &from, uint32_t first_source,
                       uint32_t first_target, uint64_t mask, Moving *to) {
    const HalfClass &source = cache.half_class(from.half_class);
    const HalfClass &target = cache.half_class(to->half_class);
    const uint32_t head_dim = source.shape.head_dim;
    uint32_t place = first_target;
    for (uint32_t i = 0; i < 64; ++i)
        if (mask >> i & 1) {
            const auto token = from.values.begin() + (first_source + i) * head_dim;
            std::copy(token, token + head_dim, to->values.begin() + place++ * head_dim);
        }
    return {&source, from.place, &target, to->place, first_source, first_target, mask};
}

}  // namespace

void check_moving(const Device &device) {
    std::vector<HalfClass> classes;
    for (const uint32_t head_dim : {32u, 80u, 256u})
        for (const Side side : {Side::kKey, Side::kValue})
            for (const uint32_t tokens : {128u, 32u})
                classes.push_back({raw_shape(side, head_dim, tokens), nullptr, Ranking::kNone, 0});
    OpenCache cache(device, classes, {0, 0, 2, 2}, {1, 1, 32, 0, 0, 1, 0, nullptr, nullptr}, 1);
    Random random(31);
    std::vector<Moving> halves;
    for (size_t c = 0; c < classes.size(); ++c)
        halves.push_back(make_moving(cache, device, c, &random));
    std::vector<MoveItem> items;
    for (size_t c = 0; c < classes.size(); c += 2) {
        Moving &large = halves[c], &small = halves[c + 1];
        items.push_back(move_expected(cache, large, 64, 60, 0x80000000F0F30111u, &large));
        items.push_back(move_expected(cache, small, 5, 4, 0x7, &small));
    }
    expect_ok(cache->move(items.data(), static_cast<uint32_t>(items.size())));
    items.clear();
    for (size_t c = 0; c < classes.size(); c += 2)
        items.push_back(move_expected(cache, halves[c], 3, 20, 0x1081, &halves[c + 1]));
    expect_ok(cache->move(items.data(), static_cast<uint32_t>(items.size())));
    assert_true(device.memory->intact());
    for (const Moving &half : halves) {
        const HalfShape &shape = cache.half_class(half.half_class).shape;
        std::vector<uint8_t> expected(payload_bytes(shape));
        pack_half(shape, OneBit::kRange, {half.values.data(), shape.head_dim}, nullptr,
                  expected.data(), nullptr);
        Case c;
        c.head_dim = shape.head_dim;
        c.page_tokens = shape.page_tokens;
        expect_bytes(device, half.place, expected, "moved tokens", c);
    }
}

namespace {

constexpr uint32_t kHeads = 3, kDim = 48, kPageTokens = 32, kLayers = 2;
enum : uint16_t { kAppendKeys, kAppendValues, kPackedKeys, kPackedValues };
constexpr EntryClasses kAppendEntries = {kAppendKeys, kPackedKeys, kAppendValues, kPackedValues};

std::vector<HalfClass> append_classes() {
    Case c;
    c.head_dim = kDim;
    c.page_tokens = kPageTokens;
    c.key_bits = c.value_bits = 4;
    return {{raw_shape(Side::kKey, kDim, kPageTokens), nullptr, Ranking::kNone, 0},
            {raw_shape(Side::kValue, kDim, kPageTokens), nullptr, Ranking::kNone, 0},
            {packed_shape(c, Side::kKey), nullptr, Ranking::kNone, 0},
            {packed_shape(c, Side::kValue), nullptr, Ranking::kNone, 0}};
}

// An input tensor of any dtype and its values at FP16.
struct Tensor {
    lk_dtype dtype;
    Strides strides;
    std::vector<uint8_t> bytes;
    std::vector<uint16_t> halves;  // [tokens][heads][channels]
    uint64_t n_saturated = 0;

    size_t width() const { return dtype == LK_F32 ? 4 : 2; }
    void set(uint32_t token, uint32_t head, uint32_t channel, uint32_t bits) {
        std::memcpy(bytes.data() + (strides.at(token, head) + channel) * width(), &bits, width());
    }
    TensorView place(const Device &device) const {
        const uint64_t address = device.memory->input(bytes.data(), bytes.size());
        return {reinterpret_cast<void *>(address + strides.offset * width()), dtype,
                static_cast<int64_t>(strides.token), static_cast<int64_t>(strides.head)};
    }
};

// Half of the values are ordinary, half any finite bits; NaN lies between the heads. centers: of
// the keys, or null.
Tensor make_tensor(lk_dtype dtype, uint32_t spread, uint32_t n_tokens, const float *centers,
                   Random *random) {
    Case c;
    c.spread = spread;
    Tensor tensor = {dtype, strides_of(c, n_tokens, kHeads, kDim), {}, {}};
    tensor.bytes.assign(tensor.strides.end * tensor.width(), 0xFF);
    for (uint32_t t = 0; t < n_tokens; ++t)
        for (uint32_t h = 0; h < kHeads; ++h)
            for (uint32_t channel = 0; channel < kDim; ++channel) {
                uint32_t bits;
                float f;
                bool saturated = false;
                do {
                    bits = random->bits();
                    if (bits & 1)
                        bits = float_to_bits(static_cast<float>(bits >> 8) * 0x1p-22f - 2);
                    if (dtype == LK_F16)
                        bits =
                            bits & 1 ? bits >> 16 : float_to_half(bits_to_float(bits), &saturated);
                    if (dtype == LK_BF16)
                        bits >>= 16;
                    f = dtype == LK_F16    ? half_to_float(static_cast<uint16_t>(bits))
                        : dtype == LK_BF16 ? bits_to_float(bits << 16)
                                           : bits_to_float(bits);
                } while (!float_is_finite(f));
                tensor.set(t, h, channel, bits);
                saturated = false;
                if (centers)
                    f -= centers[h * kDim + channel];
                tensor.halves.push_back(float_to_half(f, &saturated));
                tensor.n_saturated += saturated;
            }
    return tensor;
}

// Sequences of a step in which tokens are appended, with 16-bit rows and one that is written
// packed.
struct Part {
    uint64_t n_history;
    uint32_t n_new;
    uint32_t first_new;
    std::vector<PageRow> rows;
    std::vector<const PageRow *> pointers;
};

class AppendScene {
  public:
    AppendScene(const Device &device, std::vector<std::pair<uint32_t, uint32_t>> lengths,
                const float *centers)
        : device_(device),
          cache_(device, append_classes(), kAppendEntries,
                 {kHeads, kHeads, kDim, 0, 0, 1, 0, nullptr, centers}, kLayers) {
        for (const auto &[n_history, n_new] : lengths) {
            parts_.push_back({n_history, n_new, n_tokens_, {}, {}});
            n_tokens_ += n_new;
            has_long_ = has_long_ || n_new > LK_DRAFT_TOKENS;
        }
        for (Part &part : parts_)
            add_rows(&part);
        for (Part &part : parts_)
            open_rows(&part);
        begin();
    }
    ~AppendScene() {
        for (Part &part : parts_)
            for (PageRow &row : part.rows)
                cache_->row_destroy(&row);
    }
    AppendScene(const AppendScene &) = delete;
    AppendScene &operator=(const AppendScene &) = delete;

    uint32_t n_tokens() const { return n_tokens_; }
    bool has_staging() const { return has_long_ || device_.is_host; }

    void append(uint32_t layer, const Tensor &k, const Tensor &v) {
        Staging staging = {nullptr, nullptr, n_tokens_};
        if (has_staging()) {
            const size_t bytes = size_t{n_tokens_} * kHeads * kDim * 2;
            staging.keys = reinterpret_cast<uint16_t *>(device_.memory->output(bytes));
            staging.values = reinterpret_cast<uint16_t *>(device_.memory->output(bytes));
        }
        const AppendArgs args = {cache_.layout().layers[layer],
                                 layer,
                                 cache_.layout().first_entries[layer],
                                 k.place(device_),
                                 v.place(device_),
                                 staging};
        expect_ok(cache_->append(args));
        staging_ = staging;
    }
    void check_rows(uint32_t layer, const Tensor &tensor, bool is_value) const {
        for (const Part &part : parts_)
            for (const PageRow &row : part.rows)
                for (uint32_t head = 0; head < kHeads; ++head)
                    check_half(part, row, layer, head, tensor, is_value);
    }
    // Of the last append.
    void check_staging(const Tensor &tensor, bool is_value) const {
        if (!has_staging())
            return;
        std::vector<uint16_t> staged(tensor.halves.size());
        const uint16_t *address = is_value ? staging_.values : staging_.keys;
        device_.memory->read(reinterpret_cast<uint64_t>(address), staged.data(), staged.size() * 2);
        for (uint32_t t = 0; t < n_tokens_; ++t)
            for (uint32_t h = 0; h < kHeads; ++h)
                for (uint32_t c = 0; c < kDim; ++c)
                    assert_int_equal(staged[(size_t{h} * n_tokens_ + t) * kDim + c],
                                     tensor.halves[(size_t{t} * kHeads + h) * kDim + c]);
    }
    DataReport report() {
        DataReport found{};
        assert_true(device_.memory->intact());
        cache_->report(&found);
        return found;
    }

  private:
    void add_rows(Part *part) {
        const uint64_t end = part->n_history + part->n_new;
        for (uint64_t first = 0; first < end; first += kPageTokens) {
            PageRow row{};
            row.first_token = first;
            row.capacity_tokens = kPageTokens;
            row.n_entries = kLayers * kHeads;
            row.is_direct = part->n_new > LK_DRAFT_TOKENS && first >= part->n_history &&
                            first + kPageTokens <= end;
            part->rows.push_back(row);
        }
    }
    void open_rows(Part *part) {
        for (PageRow &row : part->rows) {
            entries_.emplace_back(row.n_entries);
            for (PageEntry &entry : entries_.back()) {
                entry.key_class = row.is_direct ? kPackedKeys : kAppendKeys;
                entry.value_class = row.is_direct ? kPackedValues : kAppendValues;
                const PlacedHalf keys = place(device_, cache_.half_class(entry.key_class).shape);
                const PlacedHalf values =
                    place(device_, cache_.half_class(entry.value_class).shape);
                entry.key_payload = keys.payload;
                entry.key_metadata = keys.metadata;
                entry.value_payload = values.payload;
                entry.value_metadata = values.metadata;
            }
            row.entries = entries_.back().data();
            expect_ok(cache_->row_create(&row));
            expect_ok(cache_->entries_changed(&row));
            part->pointers.push_back(&row);
        }
    }
    void begin() {
        for (const Part &part : parts_) {
            const bool in_rows = part.n_new <= LK_DRAFT_TOKENS;
            const auto n_rows = static_cast<uint32_t>(part.rows.size());
            const auto n_attended =
                in_rows ? n_rows
                        : static_cast<uint32_t>((part.n_history + kPageTokens - 1) / kPageTokens);
            batch_.push_back({part.pointers.data(), n_rows, n_attended, batch_.size() + 1,
                              part.n_history, part.n_new, part.first_new, in_rows, nullptr});
        }
        expect_ok(cache_->begin({batch_.data(), static_cast<uint32_t>(batch_.size()), n_tokens_}));
    }
    void check_half(const Part &part, const PageRow &row, uint32_t layer, uint32_t head,
                    const Tensor &tensor, bool is_value) const {
        const PageEntry &entry = row.entries[layer * kHeads + head];
        const HalfShape &shape =
            cache_.half_class(is_value ? entry.value_class : entry.key_class).shape;
        std::vector<uint8_t> payload(payload_bytes(shape));
        device_.memory->read(is_value ? entry.value_payload : entry.key_payload, payload.data(),
                             payload.size());
        if (row.is_direct) {
            for (const uint8_t byte : payload)
                assert_int_equal(byte, kPoison);
            return;
        }
        for (uint32_t t = 0; t < kPageTokens; ++t) {
            const uint64_t token = row.first_token + t;
            const bool is_new = token >= part.n_history && token < part.n_history + part.n_new;
            for (uint32_t c = 0; c < kDim; ++c) {
                uint32_t expected = kPoison << 8 | kPoison;
                if (is_new)
                    expected =
                        tensor.halves[((part.first_new + token - part.n_history) * kHeads + head) *
                                          kDim +
                                      c];
                assert_int_equal(read_code(shape, payload.data(), c, t), expected);
            }
        }
    }

    Device device_;
    OpenCache cache_;
    std::vector<Part> parts_;
    std::vector<std::vector<PageEntry>> entries_;
    std::vector<BatchSequence> batch_;
    Staging staging_{};
    uint32_t n_tokens_ = 0;
    bool has_long_ = false;
};

constexpr lk_dtype kDtypes[] = {LK_F16, LK_BF16, LK_F32};

// Of all magnitudes that keys have, up to the largest, and zeros.
std::vector<float> make_centers(Random *random) {
    std::vector<float> centers;
    for (uint32_t i = 0; i < kHeads * kDim; ++i) {
        const uint32_t bits = random->bits();
        const float any = bits_to_float(0x33800000u + bits % 0x13FFF000u);  // 2^-24 .. 65536
        centers.push_back(i % 7 == 0 ? 0.0f
                                     : std::min(any, 65504.0f) * (bits >> 31 ? -1.0f : 1.0f));
    }
    return centers;
}

// has_long: a sequence of the step is longer than drafts are. centers: of the keys, or null.
void check_append(lk_dtype dtype, bool has_long, uint32_t spread, const float *centers,
                  const Device &device) {
    std::vector<std::pair<uint32_t, uint32_t>> lengths = {{20, 40}, {0, 1}, {31, 2}, {64, 64}};
    if (has_long)
        lengths[1] = {10, 2090};
    AppendScene scene(device, lengths, centers);
    Random random(11 + dtype);
    uint64_t n_saturated = 0;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
        const Tensor k = make_tensor(dtype, spread, scene.n_tokens(), centers, &random);
        const Tensor v = make_tensor(dtype, spread, scene.n_tokens(), nullptr, &random);
        scene.append(layer, k, v);
        scene.check_rows(layer, k, false);
        scene.check_rows(layer, v, true);
        scene.check_staging(k, false);
        scene.check_staging(v, true);
        n_saturated += k.n_saturated + v.n_saturated;
    }
    const DataReport found = scene.report();
    assert_false(found.has_fault);
    assert_false(found.is_wrong_shape);
    assert_int_equal(found.n_saturated, n_saturated);
}

void check_append_fault(lk_dtype dtype, const float *centers, const Device &device) {
    const uint32_t infinity = dtype == LK_F32 ? 0x7F800000 : dtype == LK_F16 ? 0x7C00 : 0x7F80;
    const uint32_t nan = dtype == LK_F32 ? 0xFFC00001 : dtype == LK_F16 ? 0x7C01 : 0xFF81;
    AppendScene scene(device, {{3, 5}, {40, 50}}, centers);
    Random random(13);
    Tensor k = make_tensor(dtype, 0, scene.n_tokens(), centers, &random);
    Tensor v = make_tensor(dtype, 0, scene.n_tokens(), nullptr, &random);
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
                check_append(dtype, has_long, spread, nullptr, device);
}

void check_append_faults(const Device &device) {
    for (const lk_dtype dtype : kDtypes)
        check_append_fault(dtype, nullptr, device);
}

void check_centered_appending(const Device &device) {
    Random random(17);
    const std::vector<float> centers = make_centers(&random);
    for (const lk_dtype dtype : kDtypes) {
        for (const bool has_long : {false, true})
            for (const uint32_t spread : {0u, 1u})
                check_append(dtype, has_long, spread, centers.data(), device);
        check_append_fault(dtype, centers.data(), device);
    }
}

void check_query_sums(const Device &device) {
    OpenCache cache(device, append_classes(), kAppendEntries,
                    {2, 1, 32, 0, 0, 1, 0, nullptr, nullptr}, 1);
    const float q[] = {1.0f, -2.0f, 0x1p-24f, -0.0f, 65504.0f, 1e9f};
    std::vector<float> tensor(2 * 32, 0.0f);
    std::copy(q, q + 6, tensor.begin());
    std::copy(q, q + 6, tensor.begin() + 32);
    std::vector<uint64_t> sums(32, 5);
    const QuerySumArgs args = {{tensor.data(), LK_F32, 64, 32}, 0, 2, 32, 0, 1, sums.data()};
    expect_ok(cache->sum_queries(&args, 1));
    const uint64_t expected[] = {2ull << 24, 4ull << 24,           2,
                                 0,          2 * (65504ull << 24), 2 * (65504ull << 24)};
    for (size_t i = 0; i < 6; ++i)
        assert_int_equal(sums[i], expected[i] + 5);
    assert_int_equal(sums[6], 5);
}
