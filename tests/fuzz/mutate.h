// Mutations that know the structure of an input: numbers, elements and keys of JSON, chunks and
// records of a snapshot. Sizes, counts and hashes are made to fit where readers compare them first,
// so that what comes after is reached.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_FUZZ_MUTATE_H
#define LK_TESTS_FUZZ_MUTATE_H

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

// libFuzzer's own mutation, and that of a target.
extern "C" size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size,
                                          unsigned seed);

namespace mutate {

using Random = std::mt19937;

inline uint32_t below(Random *random, size_t n) {
    return static_cast<uint32_t>((*random)() % (n ? n : 1));
}

// One number, element or key of the text becomes another, or comes again, or goes.
void json(std::string *text, Random *random);

// The geometry's hash in a plan becomes that of its layers, if it has any.
void fit_geometry_hash(std::string *plan);

// A count, a length, a reference, a chunk, or the plan of a snapshot becomes another; then the
// numbers of chunks, the counts of the header and all hashes fit.
void snapshot(std::vector<uint8_t> *bytes, Random *random);

// Puts the result where libFuzzer wants it.
template <class Bytes>
size_t give(const Bytes &from, uint8_t *data, size_t max_size) {
    const size_t n = from.size() < max_size ? from.size() : max_size;
    for (size_t i = 0; i < n; ++i)
        data[i] = static_cast<uint8_t>(from[i]);
    return n;
}

}  // namespace mutate

#endif
