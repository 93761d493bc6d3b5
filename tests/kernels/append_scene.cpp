// SPDX-License-Identifier: Apache-2.0
#include "append_scene.h"

#include "format/codec.h"

using namespace lk;

// Half of the values are ordinary, half any finite bits; NaN lies between the heads.
Tensor make_tensor(const AppendShape &shape, lk_dtype dtype, uint32_t spread, uint32_t n_tokens,
                   const KeyParameters &numbers, Random *random) {
    Case c;
    c.spread = spread;
    Tensor tensor = {dtype,
                     shape.n_heads,
                     shape.head_dim,
                     strides_of(c, n_tokens, shape.n_heads, shape.head_dim),
                     {},
                     {}};
    tensor.bytes.assign(tensor.strides.end * tensor.width(), 0xFF);
    std::vector<float> row(shape.head_dim);
    for (uint32_t t = 0; t < n_tokens; ++t)
        for (uint32_t h = 0; h < shape.n_heads; ++h) {
            // One number of any bits makes all of its rotated block saturate.
            const bool is_ordinary = numbers.rotation && random->bits() % 4;
            for (uint32_t channel = 0; channel < shape.head_dim; ++channel) {
                uint32_t bits;
                bool saturated = false;
                float f;
                do {
                    bits = random->bits() | (is_ordinary ? 1u : 0u);
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
                row[channel] = f;
            }
            numbers.change(size_t{h} * shape.head_dim, &row);
            for (const float f : row) {
                bool saturated = false;
                tensor.values.push_back(float_to_half(f, &saturated));
                tensor.n_saturated += saturated;
            }
        }
    return tensor;
}

AppendScene::AppendScene(const Device &device, AppendShape shape,
                         std::vector<std::pair<uint32_t, uint32_t>> lengths,
                         const KeyParameters &numbers)
    : device_(device),
      shape_(std::move(shape)),
      cache_(device, shape_.formats, shape_.layer_entry.value_or(shape_.entry),
             {shape_.n_heads, shape_.n_heads, shape_.head_dim, 0, 0, 1, 0, nullptr,
              KeyParameters::array(numbers.centers), KeyParameters::array(numbers.scales),
              KeyParameters::array(numbers.inverses), 0, shape_.head_dim, false, numbers.rotation},
             kAppendLayers) {
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

AppendScene::~AppendScene() {
    for (NewTokens &sequence : sequences_)
        for (Block &block : sequence.blocks)
            cache_->block_destroy(&block);
}

void AppendScene::append(uint32_t layer, const Tensor &k, const Tensor &v) {
    Staging staging = {nullptr, nullptr, n_tokens_};
    if (has_staging()) {
        const size_t bytes = size_t{n_tokens_} * shape_.n_heads * shape_.head_dim * 2;
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

void AppendScene::check_blocks(uint32_t layer, const Tensor &tensor, bool is_value,
                               bool was_refused) const {
    for (const NewTokens &sequence : sequences_)
        for (const Block &block : sequence.blocks)
            for (uint32_t head = 0; head < shape_.n_heads; ++head) {
                if (block.is_packed_on_append)
                    check_packed(sequence, block, layer, head, tensor, is_value, was_refused);
                else if (!was_refused)
                    check_page(sequence, block, layer, head, tensor, is_value);
            }
}

void AppendScene::check_staging(const Tensor &tensor, bool is_value) const {
    if (!has_staging())
        return;
    std::vector<uint16_t> staged(tensor.values.size());
    const uint16_t *address = is_value ? staging_.v : staging_.k;
    device_.memory->read(reinterpret_cast<uint64_t>(address), staged.data(), staged.size() * 2);
    for (uint32_t t = 0; t < n_tokens_; ++t)
        for (uint32_t h = 0; h < shape_.n_heads; ++h)
            for (uint32_t c = 0; c < shape_.head_dim; ++c)
                assert_int_equal(
                    staged[(size_t{h} * n_tokens_ + t) * shape_.head_dim + c],
                    tensor.values[(size_t{t} * shape_.n_heads + h) * shape_.head_dim + c]);
}

DataReport AppendScene::report() {
    DataReport found{};
    assert_true(device_.memory->intact());
    cache_->report(&found);
    return found;
}

void AppendScene::add_blocks(NewTokens *sequence) {
    const uint64_t end = sequence->n_history + sequence->n_new;
    for (uint64_t first = 0; first < end; first += shape_.page_tokens()) {
        Block block{};
        block.first_token = first;
        block.capacity_tokens = shape_.page_tokens();
        block.n_entries = kAppendLayers * shape_.n_heads;
        block.is_packed_on_append = sequence->n_new > LK_DRAFT_TOKENS &&
                                    first >= sequence->n_history &&
                                    first + shape_.page_tokens() <= end;
        sequence->blocks.push_back(block);
    }
}

void AppendScene::open_blocks(NewTokens *sequence) {
    for (Block &block : sequence->blocks) {
        entries_.emplace_back(block.n_entries);
        for (PageEntry &entry : entries_.back()) {
            entry.key_format =
                block.is_packed_on_append ? shape_.entry.packed_key : shape_.entry.recent_key;
            entry.value_format =
                block.is_packed_on_append ? shape_.entry.packed_value : shape_.entry.recent_value;
            const PlacedPage keys = place(device_, cache_.page_format(entry.key_format).layout);
            const PlacedPage values = place(device_, cache_.page_format(entry.value_format).layout);
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

void AppendScene::begin() {
    for (const NewTokens &sequence : sequences_) {
        const bool in_blocks = sequence.n_new <= LK_DRAFT_TOKENS;
        const auto n_blocks = static_cast<uint32_t>(sequence.blocks.size());
        const auto n_attended =
            in_blocks ? n_blocks
                      : static_cast<uint32_t>((sequence.n_history + shape_.page_tokens() - 1) /
                                              shape_.page_tokens());
        batch_.push_back({sequence.pointers.data(), n_blocks, n_attended, batch_.size() + 1,
                          sequence.n_history, sequence.n_new, sequence.first_new, in_blocks,
                          nullptr});
    }
    expect_ok(cache_->begin({batch_.data(), static_cast<uint32_t>(batch_.size()), n_tokens_}));
}

void AppendScene::check_page(const NewTokens &sequence, const Block &block, uint32_t layer,
                             uint32_t head, const Tensor &tensor, bool is_value) const {
    const PageEntry &entry = block.entries[layer * shape_.n_heads + head];
    const PageLayout &layout =
        cache_.page_format(is_value ? entry.value_format : entry.key_format).layout;
    std::vector<uint8_t> payload(payload_bytes(layout));
    device_.memory->read(is_value ? entry.value_payload : entry.key_payload, payload.data(),
                         payload.size());
    for (uint32_t t = 0; t < shape_.page_tokens(); ++t) {
        const uint64_t token = block.first_token + t;
        const bool is_new =
            token >= sequence.n_history && token < sequence.n_history + sequence.n_new;
        for (uint32_t c = 0; c < shape_.head_dim; ++c) {
            uint32_t expected = kPoison << 8 | kPoison;
            if (is_new)
                expected = tensor.values[((sequence.first_new + token - sequence.n_history) *
                                              shape_.n_heads +
                                          head) *
                                             shape_.head_dim +
                                         c];
            assert_int_equal(read_code(layout, payload.data(), c, t), expected);
        }
    }
}

// Both sides of a page come from the written-out codec.
void AppendScene::check_packed(const NewTokens &sequence, const Block &block, uint32_t layer,
                               uint32_t head, const Tensor &tensor, bool is_value,
                               bool was_refused) const {
    const PageEntry &entry = block.entries[layer * shape_.n_heads + head];
    const PageFormat &format = cache_.page_format(is_value ? entry.value_format : entry.key_format);
    const PageLayout &layout = format.layout;
    std::vector<uint8_t> payload(payload_bytes(layout), kPoison);
    std::vector<uint8_t> metadata(metadata_bytes(layout), kPoison);
    if (!was_refused && format.ranking != Ranking::kQueryRange) {
        const size_t token = sequence.first_new + block.first_token - sequence.n_history;
        const PageValues values = {tensor.values.data() + tensor.row(token, head),
                                   size_t{shape_.n_heads} * shape_.head_dim};
        std::vector<uint8_t> own(permutation_bytes(layout.head_dim));
        if (format.ranking == Ranking::kKey)
            rank_by_key(values, layout.head_dim, layout.page_tokens, format.n_ranked, own.data());
        pack_page(layout, format.ranges, values,
                  format.ranking == Ranking::kNone ? format.permutation : own.data(),
                  payload.data(), metadata.empty() ? nullptr : metadata.data());
    }
    expect_bytes(is_value ? entry.value_payload : entry.key_payload, payload);
    expect_bytes(is_value ? entry.value_metadata : entry.key_metadata, metadata);
}

void AppendScene::expect_bytes(uint64_t address, const std::vector<uint8_t> &expected) const {
    std::vector<uint8_t> found(expected.size());
    if (!found.empty())
        device_.memory->read(address, found.data(), found.size());
    assert_true(found == expected);
}
