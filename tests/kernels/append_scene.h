// A step in which tokens are appended: its tensors, and the bytes that they have to become.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_KERNELS_APPEND_SCENE_H
#define LK_TESTS_KERNELS_APPEND_SCENE_H

#include <algorithm>
#include <cstring>
#include <optional>

#include "open_cache.h"

constexpr uint32_t kAppendLayers = 2;

// The shape of its pages. Entries have 16-bit pages, or packed ones where they are packed on
// append.
struct AppendShape {
    uint32_t n_heads;
    uint32_t head_dim;
    std::vector<lk::PageFormat> formats;
    lk::EntryFormats entry;
    // Packed formats of the layers where blocks have others; attention's kernels are made for
    // these.
    std::optional<lk::EntryFormats> layer_entry = std::nullopt;

    uint32_t page_tokens() const { return formats[entry.recent_key].layout.page_tokens; }
};

// An input tensor of any dtype and its values at FP16.
struct Tensor {
    lk_dtype dtype;
    uint32_t n_heads;
    uint32_t head_dim;
    Strides strides;
    std::vector<uint8_t> bytes;
    std::vector<uint16_t> values;  // [tokens][heads][channels]
    uint64_t n_saturated = 0;

    size_t row(size_t token, size_t head) const { return (token * n_heads + head) * head_dim; }
    size_t width() const { return dtype == LK_F32 ? 4 : 2; }
    void set(uint32_t token, uint32_t head, uint32_t channel, uint32_t bits) {
        std::memcpy(bytes.data() + (strides.at(token, head) + channel) * width(), &bits, width());
    }
    lk::TensorView place(const Device &device) const {
        const uint64_t address = device.memory->input(bytes.data(), bytes.size());
        return {reinterpret_cast<void *>(address + strides.offset * width()), dtype,
                static_cast<int64_t>(strides.token), static_cast<int64_t>(strides.head)};
    }
};

// What keys are stored less and divided by, each [n_heads * head_dim] or empty, and the channels of
// a block that is rotated then, or 0.
struct KeyParameters {
    std::vector<float> centers;
    std::vector<float> scales;
    std::vector<float> inverses;
    uint32_t rotation = 0;

    // Keys of a head, whose channels begin at first_channel, before they are rounded.
    void change(size_t first_channel, std::vector<float> *keys) const {
        for (size_t c = 0; c < keys->size(); ++c) {
            float &k = (*keys)[c];
            if (!centers.empty())
                k -= centers[first_channel + c];
            if (rotation)
                k = std::min(std::max(k, -0x1p31f), 0x1p31f);
            if (!inverses.empty())
                k *= inverses[first_channel + c];
        }
        if (rotation)
            lk::rotate_blocks(keys->data(), static_cast<uint32_t>(keys->size()), rotation);
    }
    static const float *array(const std::vector<float> &numbers) {
        return numbers.empty() ? nullptr : numbers.data();
    }
};

// Half of the values are ordinary, half any finite bits; NaN lies between the heads.
Tensor make_tensor(const AppendShape &shape, lk_dtype dtype, uint32_t spread, uint32_t n_tokens,
                   const KeyParameters &numbers, Random *random);

// Sequences of a step in which tokens are appended: in 16-bit blocks, and in blocks that are packed
// on append.
struct NewTokens {
    uint64_t n_history;
    uint32_t n_new;
    uint32_t first_new;
    std::vector<lk::Block> blocks;
    std::vector<const lk::Block *> pointers;
};

class AppendScene {
  public:
    // lengths: the history and the new tokens of each sequence.
    AppendScene(const Device &device, AppendShape shape,
                std::vector<std::pair<uint32_t, uint32_t>> lengths, const KeyParameters &numbers);
    ~AppendScene();
    AppendScene(const AppendScene &) = delete;
    AppendScene &operator=(const AppendScene &) = delete;

    uint32_t n_tokens() const { return n_tokens_; }
    bool has_staging() const { return has_long_ || device_.is_host; }

    void append(uint32_t layer, const Tensor &k, const Tensor &v);
    // The blocks hold the tensor, and nothing else has changed. was_refused: blocks that are packed
    // on append have not changed either.
    void check_blocks(uint32_t layer, const Tensor &tensor, bool is_value,
                      bool was_refused = false) const;
    // The staging area holds the tensor of the last append.
    void check_staging(const Tensor &tensor, bool is_value) const;
    lk::DataReport report();

  private:
    void add_blocks(NewTokens *sequence);
    void open_blocks(NewTokens *sequence);
    void begin();
    void check_page(const NewTokens &sequence, const lk::Block &block, uint32_t layer,
                    uint32_t head, const Tensor &tensor, bool is_value) const;
    void check_packed(const NewTokens &sequence, const lk::Block &block, uint32_t layer,
                      uint32_t head, const Tensor &tensor, bool is_value, bool was_refused) const;
    void expect_bytes(uint64_t address, const std::vector<uint8_t> &expected) const;

    Device device_;
    AppendShape shape_;
    OpenCache cache_;
    std::vector<NewTokens> sequences_;
    std::vector<std::vector<lk::PageEntry>> entries_;
    std::vector<lk::BatchSequence> batch_;
    lk::Staging staging_{};
    uint32_t n_tokens_ = 0;
    bool has_long_ = false;
};

#endif
