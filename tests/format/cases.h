// The pages of the golden files: shapes and deterministic inputs.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_FORMAT_CASES_H
#define LK_TESTS_FORMAT_CASES_H

#include "format/codec.h"
#include "format/page.h"
#include "format/pagefile.h"

#include <vector>

namespace lk_test {

// Inputs are integers of this generator, scaled by powers of two: no float arithmetic, no libm.
struct Lcg {
    uint32_t state;
    uint32_t next() { return state = state * 1664525u + 1013904223u; }
};

enum class Input : uint8_t {
    kNormal,    // bell-shaped, channels differ in scale and offset, every 11th is an outlier
    kConstant,  // every group has one value
    kWild,      // any finite FP16 bit pattern
    kZeros,     // +0, -0 and the smallest subnormals
    kTies       // range 7.5 in every group, values on a quarter grid
};

struct Case {
    const char *name;
    lk::PageLayout layout;
    Input input;
    uint32_t seed;
    lk::Ranking ranking;  // with layout.permutes
    bool has_fixed;       // slot s holds channel (5 s + 3) % head_dim
    lk::RangeRule ranges = {lk::OneBit::kRange, 1};
};

const std::vector<Case> &cases();
const Case *find_case(const char *name);

// Channels that a ranked page boosts: those of its widest plane.
uint32_t n_ranked(const lk::PageLayout &layout);

// What a page is packed from, and what it is packed to.
struct Packed {
    lk::PageLayout layout;
    std::vector<uint16_t> values;       // [page_tokens][head_dim]
    std::vector<uint64_t> query_stats;  // [head_dim]
    std::vector<uint8_t> permutation;   // [head_dim] or empty
    std::vector<uint8_t> payload;
    std::vector<uint8_t> metadata;

    std::vector<uint8_t> file() const;
};

std::vector<uint16_t> make_input(const lk::PageLayout &layout, Input input, Lcg *lcg);
Packed pack_case(const Case &c, uint32_t seed);

std::vector<uint8_t> read_file(const char *path);

}  // namespace lk_test

#endif
