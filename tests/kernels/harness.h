// One case of attention: pages, queries and a geometry, made from the case's own seed; run on a
// backend, and compared with the double-precision reference.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_KERNELS_HARNESS_H
#define LK_TESTS_KERNELS_HARNESS_H

#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "format/codec.h"

// Half a unit of 32767 for each of a page's tokens.
constexpr double kBlockBound = LK_MAX_PAGE_TOKENS * 0.5 / 32767;

struct Case {
    uint32_t head_dim = 64;
    uint32_t group = 4;
    uint32_t n_kv_heads = 2;
    uint32_t key_bits = 16;
    uint32_t value_bits = 16;
    uint32_t boosted = 0;      // 4-bit slots of a 2-bit key page under its own permutation
    uint32_t n_shared = 0;     // (3,1) pairs
    uint32_t key_group = 0;    // tokens, 0 = page
    uint32_t value_group = 0;  // channels, 0 = head_dim
    uint32_t per_token_keys = 0;
    uint32_t f8 = 0;
    uint32_t page_tokens = 128;
    uint32_t sink_tokens = 32;
    uint32_t packed_pages = 2;
    uint32_t tail_tokens = 5;
    uint32_t n_new = 1;
    uint32_t new_in_rows = 1;
    uint32_t window = 0;
    uint32_t window_sinks = 0;
    float soft_cap = 0;
    uint32_t sinks = 0;
    uint32_t tree = 0;
    lk_dtype dtype = LK_F32;
    uint32_t n_sequences = 1;
};
std::string describe(const Case &c);

// Memory of an exact size with guard zones that are checked.
class Guarded {
  public:
    explicit Guarded(size_t bytes);
    uint8_t *data() { return bytes_.data() + kZone; }
    bool intact() const;

  private:
    static constexpr size_t kZone = 64;
    std::vector<uint8_t> bytes_;
};

struct Outputs {
    std::vector<float> out;  // [tokens][heads][head_dim]
    std::vector<float> lse;
    bool operator==(const Outputs &other) const;
};

class Scene {
  public:
    explicit Scene(const Case &c);
    Scene(const Scene &) = delete;
    Scene &operator=(const Scene &) = delete;
    // Returns false, with a message, when a guard zone was written.
    bool run(lk::Backend *backend, Outputs *outputs, std::string *message);
    // Empty, or what differs beyond the bound.
    std::string compare(const Outputs &fast, const Outputs &reference) const;

  private:
    struct Sequence {
        std::vector<lk::PageRow> rows;
        std::vector<std::vector<lk::PageEntry>> entries;
        std::vector<const lk::PageRow *> pointers;
        std::vector<int32_t> parent;
        uint64_t n_history = 0;
    };
    void make_classes();
    void make_sequence(uint32_t index);
    void add_row(Sequence *sequence, uint32_t tokens, bool packed, bool is_sink, uint32_t used);
    void make_tensors();
    uint64_t keep(std::vector<uint8_t> bytes);
    float random_normal();
    uint16_t random_half(double scale);
    uint64_t next();

    Case case_;
    uint64_t state_;
    std::vector<lk::HalfClass> classes_;
    std::vector<uint8_t> permutation_;
    std::vector<std::vector<uint8_t>> memory_;
    std::vector<Sequence> sequences_;
    std::vector<lk::AttendSequence> views_;
    std::vector<uint8_t> q_;
    std::vector<float> sinks_;
    std::vector<uint16_t> staged_keys_, staged_values_;
    uint32_t n_tokens_ = 0;
    float q_max_ = 0, key_range_ = 0, value_range_ = 0, key_max_ = 0, value_max_ = 0;
};

lk::Backend *open_backend(uint32_t cpu_mask, uint32_t n_threads);
void close_backend(lk::Backend *backend);
lk::HalfShape packed_shape(const Case &c, lk::Side side);

#endif
