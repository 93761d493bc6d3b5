// What some plans do to a context beyond packing the pages that are due.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_SERVING_H
#define CLI_SERVING_H

#include <cstdint>

#include "llama/session.h"

namespace cli {

struct Serving {
    // Chunks get classes for each question, by quota within so many bits per value; 0 = none.
    // The last 128 tokens and what does not fill a page before them stay at 16 bits.
    double chunk_bits = 0;
    bool descends = false;  // ladders go down after a context, rung by rung to their last one,
    // or until the pages fit in what so many tokens take at the last rungs; 0 = to the last one.
    std::uint64_t reserve_tokens = 0;
};

// Exact bytes of a context, of ladders at their last rungs where they descend. Throws llama::Error
// where the lowest classes are above chunk_bits.
lk_plan_size served_size(const lk_plan *plan, const Serving &serving, std::uint64_t n_tokens);

// Of the pages with a class, when all chunks are of the lowest one.
double least_chunk_bits(const lk_plan *plan, std::uint64_t n_tokens);

// Before a context: chunks wait for their classes at 16 bits.
void hold_context(llama::Session &session, const Serving &serving);

// After it. A cache that went down stays there: it is of one context.
void descend(llama::Session &session, const Serving &serving);

// The chunks of what the sequence holds get classes by the attention that the question pays them
// while all is at 16 bits. The sequence stays as long as it is.
void classify_chunks(llama::Session &session, const Serving &serving,
                     const llama::Tokens &question);

}  // namespace cli

#endif
