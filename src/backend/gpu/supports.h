// Shapes of heads that no device backend has kernels for.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_SUPPORTS_H
#define LK_BACKEND_GPU_SUPPORTS_H

#include "backend/backend.h"
#include "base/status.h"

namespace lk {

// LK_E_UNSUPPORTED where values are not as wide as keys, or are channels of them.
inline lk_status check_values(const BackendTraits &traits, const lk_capability &capability) {
    if (capability.is_latent)
        return fail(LK_E_UNSUPPORTED, "%s has no kernels for latent layers: open a CPU context",
                    traits.name);
    if (capability.value_dim && capability.value_dim != capability.head_dim)
        return fail(LK_E_UNSUPPORTED,
                    "%s has no kernels for a value_dim of %u next to a head_dim of %u: open a CPU "
                    "context",
                    traits.name, capability.value_dim, capability.head_dim);
    return LK_OK;
}

}  // namespace lk

#endif
