// The floating-point mode of a thread: how operations round and whether subnormal numbers are kept.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BASE_FLOAT_MODE_H
#define LK_BASE_FLOAT_MODE_H

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace lk {

// While it lives, the thread computes as a new process does: to the nearest, ties to even, with
// subnormal numbers and without traps. docs/FORMAT.md is written for this mode. The end of the
// scope brings back the mode of the host and its record of exceptions.
class FloatMode {
  public:
    FloatMode() : before_(read()) { set(); }
    ~FloatMode() {
        __asm__ volatile("" ::: "memory");
        if (!is_default(before_))
            write(before_);
    }
    FloatMode(const FloatMode &) = delete;
    FloatMode &operator=(const FloatMode &) = delete;

    // The mode of a scope once more, after code that may have left another one.
    static void set() {
        const Word now = read();
        if (!is_default(now))
            write(default_of(now));
        // Nothing is computed before the mode is set.
        __asm__ volatile("" ::: "memory");
    }

  private:
#if defined(__SSE2__)
    using Word = uint32_t;
    static constexpr Word kFlags = 0x3F;      // exceptions that occurred
    static constexpr Word kDefault = 0x1F80;  // all of them masked
    static Word read() { return _mm_getcsr(); }
    static void write(Word word) { _mm_setcsr(word); }
    static bool is_default(Word word) { return (word & ~kFlags) == kDefault; }
    static Word default_of(Word word) { return kDefault | (word & kFlags); }
#elif defined(__aarch64__)
    using Word = uint64_t;
    static Word read() {
        Word word;
        __asm__ volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void write(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
    static bool is_default(Word word) { return word == 0; }
    static Word default_of(Word) { return 0; }
#else
    using Word = int;
    static Word read() { return std::fegetround(); }
    static void write(Word word) { std::fesetround(word); }
    static bool is_default(Word word) { return word == FE_TONEAREST; }
    static Word default_of(Word) { return FE_TONEAREST; }
#endif

    const Word before_;
};

}  // namespace lk

#endif
