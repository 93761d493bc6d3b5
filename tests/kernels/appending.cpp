// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "open_cache.h"
#include "packing.h"

using namespace lk;

namespace {

constexpr uint32_t kHeads = 3, kDim = 48, kPageTokens = 32, kLayers = 2;
enum : uint16_t { kAppendKeys, kAppendValues, kPackedKeys, kPackedValues };
constexpr EntryFormats kAppendEntries = {kAppendKeys, kPackedKeys, kAppendValues, kPackedValues,
                                         kPackedKeys};

std::vector<PageFormat> append_formats() {
    Case c;
    c.head_dim = kDim;
    c.page_tokens = kPageTokens;
    c.key_bits = c.value_bits = 4;
    return {{raw_layout(Side::kKey, kDim, kPageTokens), nullptr, Ranking::kNone, 0},
            {raw_layout(Side::kValue, kDim, kPageTokens), nullptr, Ranking::kNone, 0},
            {packed_shape(c, Side::kKey), nullptr, Ranking::kNone, 0},
            {packed_shape(c, Side::kValue), nullptr, Ranking::kNone, 0}};
}

// An input tensor of any dtype and its values at FP16.
struct Tensor {
    lk_dtype dtype;
    Strides strides;
    std::vector<uint8_t> bytes;
    std::vector<uint16_t> values;  // [tokens][heads][channels]
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

// What keys are stored less and divided by, each [kHeads * kDim] or empty.
struct KeyParameters {
    std::vector<float> centers;
    std::vector<float> scales;
    std::vector<float> inverses;

    float stored(float k, size_t channel) const {
        if (!centers.empty())
            k -= centers[channel];
        return inverses.empty() ? k : k * inverses[channel];
    }
    static const float *array(const std::vector<float> &numbers) {
        return numbers.empty() ? nullptr : numbers.data();
    }
};

// Half of the values are ordinary, half any finite bits; NaN lies between the heads.
Tensor make_tensor(lk_dtype dtype, uint32_t spread, uint32_t n_tokens, const KeyParameters &numbers,
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
                f = numbers.stored(f, h * kDim + channel);
                tensor.values.push_back(float_to_half(f, &saturated));
                tensor.n_saturated += saturated;
            }
    return tensor;
}

// Sequences of a step in which tokens are appended, with 16-bit rows and one that is written
// packed.
struct NewTokens {
    uint64_t n_history;
    uint32_t n_new;
    uint32_t first_new;
    std::vector<Block> blocks;
    std::vector<const Block *> pointers;
};

class AppendScene {
  public:
    AppendScene(const Device &device, std::vector<std::pair<uint32_t, uint32_t>> lengths,
                const KeyParameters &numbers)
        : device_(device),
          cache_(device, append_formats(), kAppendEntries,
                 {kHeads, kHeads, kDim, 0, 0, 1, 0, nullptr, KeyParameters::array(numbers.centers),
                  KeyParameters::array(numbers.scales), KeyParameters::array(numbers.inverses)},
                 kLayers) {
        for (const auto &[n_history, n_new] : lengths) {
            sequences_.push_back({n_history, n_new, n_tokens_, {}, {}});
            n_tokens_ += n_new;
            has_long_ = has_long_ || n_new > LK_DRAFT_TOKENS;
        }
        for (NewTokens &sequence : sequences_)
            add_blocks(&sequence);
        for (NewTokens &sequence : sequences_)
            open_blocks(&sequence);
        begin();
    }
    ~AppendScene() {
        for (NewTokens &sequence : sequences_)
            for (Block &block : sequence.blocks)
                cache_->block_destroy(&block);
    }
    AppendScene(const AppendScene &) = delete;
    AppendScene &operator=(const AppendScene &) = delete;

    uint32_t n_tokens() const { return n_tokens_; }
    bool has_staging() const { return has_long_ || device_.is_host; }

    void append(uint32_t layer, const Tensor &k, const Tensor &v) {
        Staging staging = {nullptr, nullptr, n_tokens_};
        if (has_staging()) {
            const size_t bytes = size_t{n_tokens_} * kHeads * kDim * 2;
            staging.k = reinterpret_cast<uint16_t *>(device_.memory->output(bytes));
            staging.v = reinterpret_cast<uint16_t *>(device_.memory->output(bytes));
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
    void check_blocks(uint32_t layer, const Tensor &tensor, bool is_value) const {
        for (const NewTokens &sequence : sequences_)
            for (const Block &block : sequence.blocks)
                for (uint32_t head = 0; head < kHeads; ++head)
                    check_page(sequence, block, layer, head, tensor, is_value);
    }
    // The staging area holds the tensor of the last append.
    void check_staging(const Tensor &tensor, bool is_value) const {
        if (!has_staging())
            return;
        std::vector<uint16_t> staged(tensor.values.size());
        const uint16_t *address = is_value ? staging_.v : staging_.k;
        device_.memory->read(reinterpret_cast<uint64_t>(address), staged.data(), staged.size() * 2);
        for (uint32_t t = 0; t < n_tokens_; ++t)
            for (uint32_t h = 0; h < kHeads; ++h)
                for (uint32_t c = 0; c < kDim; ++c)
                    assert_int_equal(staged[(size_t{h} * n_tokens_ + t) * kDim + c],
                                     tensor.values[(size_t{t} * kHeads + h) * kDim + c]);
    }
    DataReport report() {
        DataReport found{};
        assert_true(device_.memory->intact());
        cache_->report(&found);
        return found;
    }

  private:
    void add_blocks(NewTokens *sequence) {
        const uint64_t end = sequence->n_history + sequence->n_new;
        for (uint64_t first = 0; first < end; first += kPageTokens) {
            Block block{};
            block.first_token = first;
            block.capacity_tokens = kPageTokens;
            block.n_entries = kLayers * kHeads;
            block.is_packed_on_append = sequence->n_new > LK_DRAFT_TOKENS &&
                                        first >= sequence->n_history && first + kPageTokens <= end;
            sequence->blocks.push_back(block);
        }
    }
    void open_blocks(NewTokens *sequence) {
        for (Block &block : sequence->blocks) {
            entries_.emplace_back(block.n_entries);
            for (PageEntry &entry : entries_.back()) {
                entry.key_format = block.is_packed_on_append ? kPackedKeys : kAppendKeys;
                entry.value_format = block.is_packed_on_append ? kPackedValues : kAppendValues;
                const PlacedPage keys = place(device_, cache_.page_format(entry.key_format).layout);
                const PlacedPage values =
                    place(device_, cache_.page_format(entry.value_format).layout);
                entry.key_payload = keys.payload;
                entry.key_metadata = keys.metadata;
                entry.value_payload = values.payload;
                entry.value_metadata = values.metadata;
            }
            block.entries = entries_.back().data();
            expect_ok(cache_->block_create(&block));
            expect_ok(cache_->entries_changed(&block));
            sequence->pointers.push_back(&block);
        }
    }
    void begin() {
        for (const NewTokens &sequence : sequences_) {
            const bool in_blocks = sequence.n_new <= LK_DRAFT_TOKENS;
            const auto n_blocks = static_cast<uint32_t>(sequence.blocks.size());
            const auto n_attended =
                in_blocks
                    ? n_blocks
                    : static_cast<uint32_t>((sequence.n_history + kPageTokens - 1) / kPageTokens);
            batch_.push_back({sequence.pointers.data(), n_blocks, n_attended, batch_.size() + 1,
                              sequence.n_history, sequence.n_new, sequence.first_new, in_blocks,
                              nullptr});
        }
        expect_ok(cache_->begin({batch_.data(), static_cast<uint32_t>(batch_.size()), n_tokens_}));
    }
    void check_page(const NewTokens &sequence, const Block &block, uint32_t layer, uint32_t head,
                    const Tensor &tensor, bool is_value) const {
        const PageEntry &entry = block.entries[layer * kHeads + head];
        const PageLayout &layout =
            cache_.page_format(is_value ? entry.value_format : entry.key_format).layout;
        std::vector<uint8_t> payload(payload_bytes(layout));
        device_.memory->read(is_value ? entry.value_payload : entry.key_payload, payload.data(),
                             payload.size());
        if (block.is_packed_on_append) {
            for (const uint8_t byte : payload)
                assert_int_equal(byte, kPoison);
            return;
        }
        for (uint32_t t = 0; t < kPageTokens; ++t) {
            const uint64_t token = block.first_token + t;
            const bool is_new =
                token >= sequence.n_history && token < sequence.n_history + sequence.n_new;
            for (uint32_t c = 0; c < kDim; ++c) {
                uint32_t expected = kPoison << 8 | kPoison;
                if (is_new)
                    expected =
                        tensor.values[((sequence.first_new + token - sequence.n_history) * kHeads +
                                       head) *
                                          kDim +
                                      c];
                assert_int_equal(read_code(layout, payload.data(), c, t), expected);
            }
        }
    }

    Device device_;
    OpenCache cache_;
    std::vector<NewTokens> sequences_;
    std::vector<std::vector<PageEntry>> entries_;
    std::vector<BatchSequence> batch_;
    Staging staging_{};
    uint32_t n_tokens_ = 0;
    bool has_long_ = false;
};

constexpr lk_dtype kDtypes[] = {LK_F16, LK_BF16, LK_F32};

// Centers of all magnitudes that keys have, up to the largest, and zeros.
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

// Key scales from the least that is allowed to the largest.
std::vector<float> make_scales(Random *random) {
    std::vector<float> scales = {1e-4f, 1e4f, 1.0f};
    while (scales.size() < kHeads * kDim)
        scales.push_back(std::exp2(static_cast<float>(random->bits() >> 8) * 0x1.9p-20f - 13));
    return scales;
}

// has_long: a sequence of the step is longer than drafts are.
void check_append(lk_dtype dtype, bool has_long, uint32_t spread, const KeyParameters &numbers,
                  const Device &device) {
    std::vector<std::pair<uint32_t, uint32_t>> lengths = {{20, 40}, {0, 1}, {31, 2}, {64, 64}};
    if (has_long)
        lengths[1] = {10, 2090};
    AppendScene scene(device, lengths, numbers);
    Random random(11 + dtype);
    uint64_t n_saturated = 0;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
        const Tensor k = make_tensor(dtype, spread, scene.n_tokens(), numbers, &random);
        const Tensor v = make_tensor(dtype, spread, scene.n_tokens(), {}, &random);
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

void check_append_fault(lk_dtype dtype, const KeyParameters &numbers, const Device &device) {
    const uint32_t infinity = dtype == LK_F32 ? 0x7F800000 : dtype == LK_F16 ? 0x7C00 : 0x7F80;
    const uint32_t nan = dtype == LK_F32 ? 0xFFC00001 : dtype == LK_F16 ? 0x7C01 : 0xFF81;
    AppendScene scene(device, {{3, 5}, {40, 50}}, numbers);
    Random random(13);
    Tensor k = make_tensor(dtype, 0, scene.n_tokens(), numbers, &random);
    Tensor v = make_tensor(dtype, 0, scene.n_tokens(), {}, &random);
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
    KeyParameters all = {make_centers(&random), make_scales(&random), {}};
    for (const float scale : all.scales)
        all.inverses.push_back(1.0f / scale);
    const KeyParameters centers = {all.centers, {}, {}};
    const KeyParameters scales = {{}, all.scales, all.inverses};
    for (const lk_dtype dtype : kDtypes)
        for (const KeyParameters &numbers : {centers, scales, all}) {
            for (const bool has_long : {false, true})
                for (const uint32_t spread : {0u, 1u})
                    check_append(dtype, has_long, spread, numbers, device);
            check_append_fault(dtype, numbers, device);
        }
}
