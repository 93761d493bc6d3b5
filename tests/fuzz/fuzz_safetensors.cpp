// Safetensors files from untrusted bytes, through the reader that hosts use: no crash and no cost
// beyond the bound; what is accepted lies in the file, and its floats can be read. Bytes without a
// length of their own are tried as a header too.
//
// SPDX-License-Identifier: Apache-2.0
#include "llama/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "cost/cost.h"
#include "mutate.h"

namespace {

void require(bool condition) {
    if (!condition)
        std::abort();
}

constexpr uint64_t kFreeNs = 10000000;  // of the file system

void check(const std::string &bytes) {
    const int file = memfd_create("safetensors", 0);
    require(file >= 0 &&
            write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    cost_begin();
    try {
        const llama::SafetensorsFile read(path);
        cost_expect("a safetensors file", bytes.size(), 0, kFreeNs);
        for (const llama::Tensor &tensor : read.tensors()) {
            require(tensor.n_bytes <= bytes.size());
            if (tensor.dtype == "F16" || tensor.dtype == "BF16" || tensor.dtype == "F32" ||
                tensor.dtype == "F64")
                require(llama::to_floats(tensor).size() == tensor.n_elements);
        }
    } catch (const llama::Error &) {
        cost_expect("a refusal", bytes.size(), 0, kFreeNs);
    }
    close(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const std::string bytes(reinterpret_cast<const char *>(data), size);
    check(bytes);
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i)
        length[static_cast<size_t>(i)] = static_cast<char>(static_cast<uint64_t>(size) >> (8 * i));
    check(length + bytes + std::string(64, '\1'));
    return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size,
                                          unsigned seed) {
    mutate::Random random(seed);
    if (mutate::below(&random, 4) == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    std::string text(data, data + size);
    mutate::json(&text, &random);
    return mutate::give(text, data, max_size);
}
