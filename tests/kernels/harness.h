// One case of attention: pages, queries and a geometry, made from the case's own seed; placed in
// the memory of a backend, run there, and compared with the double-precision reference.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_KERNELS_HARNESS_H
#define LK_TESTS_KERNELS_HARNESS_H

#include <cstdint>
#include <string>
#include <vector>

#include "format/codec.h"
#include "format/rotation.h"
#include "memory.h"

#include <lowkey/step.h>

struct Case {
    uint32_t head_dim = 64;
    uint32_t value_dim = 0;  // 0 = head_dim
    uint32_t latent = 0;     // values are channels of the keys
    uint32_t group = 4;
    uint32_t n_kv_heads = 2;
    uint32_t key_bits = 16;
    uint32_t value_bits = 16;
    uint32_t boosted = 0;    // 4-bit slots of a 2-bit key page under its own permutation
    uint32_t n_shared = 0;   // (3,1) pairs
    uint32_t ordered = 0;    // boosted slots under one permutation of all pages, with pairs too
    uint32_t stepped = 0;    // instead of boosted slots: a strip each at 16, 8 and 4 bits
    uint32_t ones = 0;       // the last strips of a 2-bit key page are 1 bit
    uint32_t wider = 0;      // every third packed page has keys and values of 4 bits, no pairs; 2:
                             // keys alone
    uint32_t key_group = 0;  // tokens, 0 = page
    uint32_t value_group = 0;  // channels, 0 = head_dim
    uint32_t per_token_keys = 0;
    uint32_t f8 = 0;
    uint32_t page_tokens = 128;
    uint32_t sink_tokens = 32;
    uint32_t packed_pages = 2;  // of the first sequence, one more in each other one
    uint32_t raw_between = 0;   // every second one of them is at 16 bits
    uint32_t mixed = 0;         // every third one has its keys at 4 bits and its values at 2, in
                                // groups of 64, and heads take turns with which; 2: pages may
                                // have formats besides, which none has
    uint32_t tail_tokens = 5;
    uint32_t n_new = 1;  // of the first sequence; in rows up to LK_DRAFT_TOKENS, else staged
    uint32_t window = 0;
    uint32_t window_sinks = 0;
    float soft_cap = 0;
    uint32_t sinks = 0;
    uint32_t centers = 0;  // the pages hold keys less their centers
    uint32_t scales = 0;   // and divided by their scales
    uint32_t rotated = 0;  // and then rotated
    uint32_t tree = 0;
    uint32_t spans = 0;           // new tokens that see each other both ways, up to so many
    uint32_t windowed_spans = 0;  // in layers with a window alone
    lk_dtype dtype = LK_F32;
    uint32_t n_sequences = 1;
    uint32_t spread = 0;  // tensors with odd strides that begin at an odd element
    uint32_t has_lse = 1;

    uint32_t output_dim() const { return value_dim ? value_dim : head_dim; }
    uint32_t key_rotation() const { return rotated ? lk::rotation_channels(head_dim) : 0; }
    // Channels of pages of a side.
    uint32_t page_dim(lk::Side side) const {
        return side == lk::Side::kKey ? head_dim : latent ? 0 : output_dim();
    }
};
std::string describe(const Case &c);
lk::PageLayout packed_shape(const Case &c, lk::Side side);

struct Outputs {
    std::vector<float> out;  // [tokens][heads][output_dim()]
    std::vector<float> lse;  // [tokens][heads], or empty
    bool operator==(const Outputs &other) const;
};

// Places of a tensor's elements, [tokens][heads][channels].
struct Strides {
    size_t offset;  // elements before the first
    size_t token;
    size_t head;
    size_t end;  // elements up to the end of the last
    size_t at(size_t token_index, size_t head_index) const {
        return offset + token_index * token + head_index * head;
    }
};
Strides strides_of(const Case &c, uint32_t n_tokens, uint32_t n_heads, uint32_t n_channels);

// A page and the sources of its values.
struct ScenePage {
    uint16_t page_format;
    std::vector<uint8_t> payload;
    std::vector<uint8_t> metadata;
    // [channels] the most that |minimum| + range of a channel come to, or |value| at 16 bits
    std::vector<float> reach;
};
struct SceneBlock {
    uint64_t first_token;
    uint32_t n_tokens;
    bool is_packed;                // a page's tokens that have left the recent ones
    std::vector<ScenePage> pages;  // [n_kv_heads][keys, values]
};
struct SceneSequence {
    std::vector<SceneBlock> blocks;
    std::vector<int32_t> parent;  // [n_new], or empty
    std::vector<uint32_t> reach;  // [n_new], or empty
    uint64_t n_history;
    uint32_t n_new;
    uint32_t first_new;
    bool is_draft() const { return n_new <= LK_DRAFT_TOKENS; }
};

enum class SceneValues {
    kSigned,
    kMagnitudes  // the absolute values of what is otherwise the same scene, at 16 bits
};

class Scene {
  public:
    explicit Scene(const Case &c, SceneValues values = SceneValues::kSigned);
    Scene(const Scene &) = delete;
    Scene &operator=(const Scene &) = delete;

    const Case &parameters() const { return case_; }
    uint32_t n_query_heads() const { return case_.group * case_.n_kv_heads; }
    uint32_t n_tokens() const { return n_tokens_; }
    const std::vector<SceneSequence> &sequences() const { return sequences_; }
    const std::vector<lk::PageFormat> &formats() const { return formats_; }
    lk::EntryFormats entry_formats() const;
    // All packed formats of the layer where there are several, as LayerFormats has them; or none.
    const std::vector<uint16_t> &packed_formats() const { return packed_formats_; }
    const std::vector<uint8_t> &q() const { return q_; }  // of the case's dtype and strides
    const std::vector<float> &q_values() const { return q_values_; }  // [tokens][heads][head_dim]
    // The same times the scales of keys and rotated, as they meet stored keys.
    const std::vector<float> &changed_q_values() const { return changed_q_values_; }
    const std::vector<float> &sink_logits() const { return sink_logits_; }
    const std::vector<float> &key_centers() const {
        return key_centers_;
    }                                                                     // [n_kv_heads][head_dim]
    const std::vector<float> &key_scales() const { return key_scales_; }  // likewise
    const std::vector<uint16_t> &staged_keys() const { return staged_keys_; }
    const std::vector<uint16_t> &staged_values() const { return staged_values_; }

    // Put NaNs, infinities and numbers above the limit of queries into some of them.
    void spoil_queries();
    // Rows of spoiled queries have to be NaN and become what is expected of them unspoiled, so that
    // all rows can be compared. Empty, or what is wrong.
    std::string restore_spoiled(const Outputs &expected, Outputs *outputs) const;
    static float query_limit(const Case &c);

    // Empty, or what of the CPU's integer arithmetic differs beyond its bound.
    std::string compare(const Outputs &fast, const Outputs &reference) const;

  private:
    Case other_pages() const;
    void make_formats();
    void make_sequence(uint32_t index);
    void add_spans(SceneSequence *sequence);
    void add_row(SceneSequence *sequence, uint32_t tokens, bool packed, uint32_t used);
    uint16_t key_format(uint32_t block, uint32_t head, uint32_t tokens, bool packed) const;
    ScenePage make_page(uint16_t page_format, uint32_t used);
    void measure_page(uint32_t used, ScenePage *page);
    void make_absolute(uint32_t used, ScenePage *page) const;
    ScenePage values_of_keys(uint32_t used, const ScenePage &keys) const;
    void make_queries();
    void change_queries();
    void make_staged();
    void store_query(size_t element, float f);
    float random_normal();
    uint16_t random_f16(double scale);
    uint64_t next();

    Case case_;
    SceneValues values_;
    bool derives_values_ = false;  // magnitudes of a latent layer, which are pages of their own
    uint64_t state_;
    std::vector<lk::PageFormat> formats_;
    std::vector<uint16_t> packed_formats_;
    std::vector<uint8_t> permutation_;
    std::vector<SceneSequence> sequences_;
    std::vector<uint8_t> q_;
    std::vector<float> q_values_, changed_q_values_;
    std::vector<bool> is_spoiled_;  // [tokens][heads]
    std::vector<float> sink_logits_;
    std::vector<float> key_centers_;
    std::vector<float> key_scales_;
    std::vector<uint16_t> staged_keys_, staged_values_;
    uint32_t n_tokens_ = 0;
    float q_max_ = 0, key_range_ = 0, value_range_ = 0, key_max_ = 0, value_max_ = 0;
    float center_max_ = 0;
};

// A scene in the memory of a device, with the device's tables for it. Memory is cleared with it.
class PlacedScene {
  public:
    PlacedScene(const Scene &scene, const Device &device);
    ~PlacedScene();
    PlacedScene(const PlacedScene &) = delete;
    PlacedScene &operator=(const PlacedScene &) = delete;

    // Queue the attention once. False, with a message, when that fails.
    bool attend(std::string *message);
    // Poison the outputs, attend and read; false also when bytes around the outputs were written.
    bool run(Outputs *outputs, std::string *message);

  private:
    void place_blocks();
    bool has_half_raw() const;
    void describe_cache();
    bool open_cache();
    void stage_tensors();
    bool read_tensor(uint64_t address, const Strides &strides, uint32_t n_channels, lk_dtype dtype,
                     std::vector<float> *out);

    const Scene &scene_;
    Device device_;
    lk::CacheDevice *cache_ = nullptr;
    std::string fault_;  // of opening
    lk::LayerView layer_{};
    const uint32_t first_entry_ = 1;  // the entry before is nobody's
    std::vector<lk::EntryFormats> entry_formats_;
    lk::LayerFormats layer_formats_{};
    lk::CacheLayout layout_{};
    std::vector<std::vector<lk::Block>> blocks_;  // by sequence
    std::vector<std::vector<const lk::Block *>> pointers_;
    std::vector<std::vector<lk::PageEntry>> entries_;
    std::vector<lk::BatchSequence> batch_;
    lk::AttendArgs args_{};
    uint64_t out_address_ = 0, lse_address_ = 0;
    Strides out_strides_{}, lse_strides_{};
};

// A CPU backend and its memory.
class HostDevice {
  public:
    HostDevice(uint32_t cpu_mask, uint32_t n_threads);
    ~HostDevice();
    HostDevice(const HostDevice &) = delete;
    HostDevice &operator=(const HostDevice &) = delete;
    Device device() { return {backend_, &memory_}; }

  private:
    HostMemory memory_;
    lk::Backend *backend_ = nullptr;
};

// The outputs of a scene on a device; false with a message.
bool run_scene(const Scene &scene, const Device &device, Outputs *outputs, std::string *message);

#endif
