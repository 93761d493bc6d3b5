// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/append_push.h"

#include <algorithm>

#include "shaders/pack/limits.h"

namespace lk {
namespace vulkan {

namespace {

constexpr uint32_t kAppendRounds = 8;    // of tokens that a workgroup takes in a long step
constexpr uint32_t kAppendWorkers = 16;  // workgroups of a core, before they take more rounds

// Rows of FP16 at multiples of 16 bytes, near enough to each other for offsets of 32 bits in a
// page.
bool has_packable_rows(const PushTensor &tensor) {
    constexpr uint32_t kMostStride = 1 << 20;
    return tensor.dtype == LK_DTYPE_F16 && tensor.token_stride < kMostStride &&
           !(tensor.data & 15) && !(tensor.token_stride % 8) && !(tensor.head_stride % 8);
}

}  // namespace

uint32_t append_step(const LayerView &layer, uint32_t n_tokens, uint32_t n_cores) {
    const uint32_t at_once = append_threads(layer.is_latent) / (layer.head_dim / 8);
    const uint64_t n_rows = uint64_t{n_tokens} * layer.n_kv_heads * layer.n_stored_sides();
    const uint64_t n_groups = n_rows / at_once;
    const uint64_t rounds = n_groups / (uint64_t{kAppendWorkers} * n_cores);
    return at_once * static_cast<uint32_t>(std::clamp<uint64_t>(rounds, 1, kAppendRounds));
}

uint32_t n_append_groups(const AppendPush &push) {
    return static_cast<uint32_t>(ceil_div(push.n_tokens, push.token_step));
}

bool can_pack_rows(const AppendArgs &args, const AppendPush &push) {
    return !args.layer.key_centers && !args.layer.key_inverses && !args.layer.key_rotation &&
           has_packable_rows(push.k) && has_packable_rows(push.v);
}

PushTensor staged_tensor(Address area, const AppendArgs &args) {
    PushTensor tensor{};
    tensor.data = area;
    tensor.dtype = LK_DTYPE_F16;
    tensor.token_stride = args.layer.head_dim;
    tensor.head_stride = args.layer.head_dim * args.staging.n_tokens;
    return tensor;
}

}  // namespace vulkan
}  // namespace lk
