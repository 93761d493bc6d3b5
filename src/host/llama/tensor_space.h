// Where the tensors that a step hands to the library are: in the host's memory, or on a device to
// which they are copied.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_TENSOR_SPACE_H
#define LLAMA_TENSOR_SPACE_H

#include <lowkey/base.h>

#include <cstdint>

namespace llama {

// What a tensor is to a step. A space keeps one tensor of each role at a time.
enum class Role { kQuery, kKey, kValue, kOutput, kLse };
constexpr int kRoles = 5;

struct Extent {
    std::uint32_t n_tokens, n_heads, head_dim;
    std::uint64_t count() const { return std::uint64_t{n_tokens} * n_heads * head_dim; }
};

// Its queue orders the steps and the copies.
class TensorSpace {
  public:
    virtual ~TensorSpace() = default;
    virtual const lk_queue *queue() const = 0;  // null on the CPU
    // The tensor of data [n_tokens][n_heads][head_dim], which stays until the role's next one.
    virtual lk_tensor input(Role role, float *data, const Extent &extent) = 0;
    // The same for a tensor that the library writes; collect() waits and fills data.
    virtual lk_tensor output(Role role, float *data, const Extent &extent) = 0;
    virtual void collect() = 0;
};

// The host's memory as it is.
class HostSpace : public TensorSpace {
  public:
    const lk_queue *queue() const override { return nullptr; }
    lk_tensor input(Role role, float *data, const Extent &extent) override;
    lk_tensor output(Role role, float *data, const Extent &extent) override;
    void collect() override {}
};

// A tensor of floats without gaps; data is a pointer of `memory`.
lk_tensor float_tensor(lk_memory_kind memory, float *data, const Extent &extent);

}  // namespace llama

#endif
