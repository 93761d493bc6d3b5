// Where a random test takes its choices from: a seed, or the bytes of a fuzzer.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_STATEFUL_CHOICES_H
#define LK_TESTS_STATEFUL_CHOICES_H

#include <cstddef>
#include <cstdint>

namespace stateful {

class Choices {
  public:
    explicit Choices(uint64_t seed) : state_(seed * 2 + 1) {}
    Choices(const uint8_t *bytes, size_t n) : bytes_(bytes), left_(n) {}

    // 0 .. n-1.
    uint32_t below(uint32_t n) { return n < 2 ? 0 : static_cast<uint32_t>(next() % n); }
    bool one_in(uint32_t n) { return below(n) == 0; }
    // Has a fuzzer's input bytes left? Without them every choice is 0.
    bool has_more() const { return !bytes_ || left_; }
    uint64_t next() {
        if (!bytes_)
            return mixed();
        uint32_t value = 0;
        for (int i = 0; i < 2 && left_; ++i, --left_)
            value = value << 8 | *bytes_++;
        return value;
    }

  private:
    uint64_t mixed() {
        state_ += 0x9E3779B97F4A7C15u;
        uint64_t x = state_;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        return x ^ (x >> 31);
    }

    uint64_t state_ = 0;
    const uint8_t *bytes_ = nullptr;
    size_t left_ = 0;
};

}  // namespace stateful

#endif
