// One case of attention: pages, queries and a geometry, made from the case's own seed; run on a
// backend, and compared with the double-precision reference.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_KERNELS_HARNESS_H
#define LK_TESTS_KERNELS_HARNESS_H

#include <cstdint>
#include <memory>
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

// A backend and the memory that it works on. The CPU's is the tests' own; a backend with memory of
// its own overrides all of it.
class Machine {
  public:
    explicit Machine(lk::Backend *opened) : backend(opened) {}
    virtual ~Machine();
    Machine(const Machine &) = delete;
    Machine &operator=(const Machine &) = delete;

    // The address of n bytes for the backend, until release().
    virtual uint64_t place(void *bytes, size_t n);
    // Wait for the backend's work and bring what was placed back.
    virtual void fetch(void *bytes, size_t n, uint64_t address);
    virtual void release() {}
    virtual const lk_queue *queue() const { return nullptr; }

    template <class T>
    T *place(std::vector<T> *values) {
        return reinterpret_cast<T *>(place(values->data(), values->size() * sizeof(T)));
    }

    lk::Backend *const backend;
};
using MachinePtr = std::unique_ptr<Machine>;
MachinePtr open_cpu(uint32_t cpu_mask, uint32_t n_threads);

// Memory of an exact size with guard zones that are checked.
class Guarded {
  public:
    explicit Guarded(size_t bytes);
    const uint8_t *data() const { return bytes_.data() + kZone; }
    bool intact() const;
    void *place(Machine *machine);
    void fetch(Machine *machine);

  private:
    static constexpr size_t kZone = 64;
    std::vector<uint8_t> bytes_;
    uint64_t address_ = 0;
};

// A cache of one layer on a machine.
class OpenCache {
  public:
    // Entries of a row before the layer's, which are not touched.
    static constexpr uint32_t kFirstEntry = 1;

    OpenCache(const Machine &machine, const std::vector<lk::HalfClass> &classes,
              const lk::LayerView &layer, uint32_t page_tokens, uint32_t max_sequences,
              uint32_t max_step_tokens);
    ~OpenCache();
    OpenCache(const OpenCache &) = delete;
    OpenCache &operator=(const OpenCache &) = delete;
    lk::CacheDevice *operator->() const { return device_; }
    const lk::HalfClass *half_class(size_t i) const { return &classes_[i]; }
    const lk::LayerView &layer() const { return layer_; }

  private:
    lk::Backend *backend_;
    const std::vector<lk::HalfClass> classes_;
    const lk::LayerView layer_;
    const uint32_t first_entry_ = kFirstEntry;
    lk::CacheDevice *device_ = nullptr;
};

// The rows of a sequence; entries[i] are those of row i.
struct Rows {
    std::vector<lk::PageRow> rows;
    std::vector<std::vector<lk::PageEntry>> entries;
    std::vector<const lk::PageRow *> pointers;

    uint64_t end_token() const;
    void add(uint32_t capacity_tokens, std::vector<lk::PageEntry> of_row);
    // Point at the entries and make the rows known to a cache.
    void open(const OpenCache &cache);
    void close(const OpenCache &cache);
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
    // Returns false, with a message, when a call failed or a guard zone was written.
    bool run(Machine *machine, Outputs *outputs, std::string *message);
    // Empty, or what differs beyond the bound.
    std::string compare(const Outputs &fast, const Outputs &reference) const;

  private:
    struct Sequence {
        Rows rows;  // whose addresses count the buffers of memory_, from 1
        std::vector<int32_t> parent;
        uint64_t n_history = 0;
        uint32_t first_new = 0;
    };
    void make_classes();
    void make_sequence(uint32_t index);
    void add_row(Sequence *sequence, uint32_t tokens, bool packed, bool is_sink, uint32_t used);
    void make_tensors();
    lk::LayerView layer() const;
    std::vector<Rows> place_rows(Machine *machine);
    lk::AttendArgs place_inputs(Machine *machine, const lk::LayerView &layer);
    void read_outputs(const Guarded &out, const Guarded &lse, Outputs *outputs) const;
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
    std::vector<uint8_t> q_;
    std::vector<float> sinks_;
    std::vector<uint16_t> staged_keys_, staged_values_;
    uint32_t n_tokens_ = 0;
    float q_max_ = 0, key_range_ = 0, value_range_ = 0, key_max_ = 0, value_max_ = 0;
};

lk::HalfShape packed_shape(const Case &c, lk::Side side);

#endif
