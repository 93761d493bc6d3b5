// A device without cooperative matrices as one that has them. A program that links this before the
// library runs the emulated kernels (shaders/decode/matrix.glsl in this folder) where those of
// matrices would run.
//
// SPDX-License-Identifier: Apache-2.0
#include "matrices.h"

#include "backend/vulkan/matrix_probe.h"

namespace lk {
namespace vulkan {

lk_status probe_matrices(Device *device, Pipelines *) {
    Traits &traits = const_cast<Traits &>(device->traits());
    traits.cooperative_matrix = traits.matrix_uses = true;
    traits.subgroup_size_control =
        false;  // a workgroup may be more subgroups than such a size allows
    traits.max_shared_bytes -= kEmulationBytes;
    return LK_OK;
}

}  // namespace vulkan
}  // namespace lk
