// Where the bytes of a case lie while a backend works on them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_KERNELS_MEMORY_H
#define LK_TESTS_KERNELS_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "backend/backend.h"

constexpr uint8_t kPoison = 0xEE;       // what an output holds before it is written
constexpr uint8_t kGuard = 0xA5;        // what lies around it
constexpr size_t kGuardBytes = 64;      // on either side
constexpr size_t kBlockAlignment = 64;  // as slots are

// The case at work, for sentences of failures that end a program.
std::string &current_case();

class Memory {
  public:
    Memory() = default;
    virtual ~Memory() = default;
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    // An input of n bytes. 0 bytes have address 0.
    virtual uint64_t input(const void *bytes, size_t n) = 0;
    // An output of n bytes of poison between guard zones.
    virtual uint64_t output(size_t n) = 0;
    // Waits for the work on queue().
    virtual void read(uint64_t address, void *to, size_t n) = 0;
    // Is all as it was put there, outputs aside? Waits for the work on queue().
    virtual bool intact() = 0;
    // Poison the outputs again.
    virtual void poison() = 0;
    virtual void clear() = 0;
    // The queue of the work on this memory; null on the CPU.
    virtual const lk_queue *queue() const { return nullptr; }
};

// Inputs are allocations of their own, so that a sanitizer finds reads after their end.
class HostMemory final : public Memory {
  public:
    uint64_t input(const void *bytes, size_t n) override;
    uint64_t output(size_t n) override;
    void read(uint64_t address, void *to, size_t n) override;
    bool intact() override;
    void poison() override;
    void clear() override;

  private:
    struct Input {
        std::vector<uint8_t> bytes, original;
    };
    std::list<Input> inputs_;
    std::list<std::vector<uint8_t>> outputs_;  // with their guard zones
};

// Where blocks lie in one KV tile of device memory, guard zones around each, and what all but the
// outputs should hold.
class GuardedArena {
  public:
    struct Block {
        size_t offset;
        size_t n_bytes;
    };
    explicit GuardedArena(size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

    // A block of n bytes; *zone is what is to be filled with kGuard first. Ends the program when
    // there is none.
    Block input(const void *bytes, size_t n, Block *zone);
    Block output(size_t n, Block *zone);
    const std::vector<Block> &outputs() const { return outputs_; }
    size_t used_bytes() const { return expected_.size(); }
    // found [used_bytes()]
    bool intact(const uint8_t *found) const;
    void clear();

  private:
    Block reserve(size_t n, Block *zone);

    const size_t capacity_bytes_;
    std::vector<uint8_t> expected_;
    std::vector<Block> outputs_;  // ascending
};

// A backend and the memory that its tests use.
struct Device {
    lk::Backend *backend = nullptr;
    Memory *memory = nullptr;
    bool is_host = true;  // always fills the staging area
};

#endif
