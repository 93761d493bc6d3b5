// SPDX-License-Identifier: Apache-2.0
#define LK_SIMD_WIDTH 8
#define LK_SIMD_TILE_VECTORS 2
#define LK_SIMD_SUMS 8

#include "backend/cpu/decode_tmpl.h"
#include "backend/cpu/pack_tmpl.h"
#include "backend/cpu/tile_tmpl.h"

namespace lk {
namespace cpu {

const Kernels kAvx2Kernels = {"avx2",          attend_tile,    attend_decode,
                              load_row,        round_row,      sum_magnitudes,
                              find_deviations, quantize_strip, dequantize_strip};

}  // namespace cpu
}  // namespace lk
