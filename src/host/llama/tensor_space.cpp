// SPDX-License-Identifier: Apache-2.0
#include "tensor_space.h"

#include "handles.h"

namespace llama {

lk_tensor HostSpace::input(Role, float *data, const Extent &extent) {
    return float_tensor(LK_MEMORY_HOST, data, extent);
}

lk_tensor HostSpace::output(Role, float *data, const Extent &extent) {
    return float_tensor(LK_MEMORY_HOST, data, extent);
}

lk_tensor float_tensor(lk_memory_kind memory, float *data, const Extent &extent) {
    lk_tensor tensor = initialised(lk_tensor_init);
    tensor.dtype = LK_F32;
    tensor.memory = memory;
    tensor.data = data;
    tensor.token_stride = std::int64_t{extent.n_heads} * extent.head_dim;
    tensor.head_stride = extent.head_dim;
    return tensor;
}

}  // namespace llama
