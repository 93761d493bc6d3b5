// Cosines of embeddings in host memory.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CHUNKS_COSINE_H
#define LK_CHUNKS_COSINE_H

#include <lowkey/base.h>

namespace lk {

// lk_chunks_cosine() of tensors that were checked; n_chunks is at least 1.
lk_status score_cosine(const lk_tensor &embeddings, const lk_tensor &query, uint32_t n_chunks,
                       uint32_t n_channels, float *scores);

}  // namespace lk

#endif
