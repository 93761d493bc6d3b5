// Attention of many columns by a tensor core: a lane's sums of two matrices of columns.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_MATRIX_LANES_GLSL
#define LK_SHADERS_PREFILL_MATRIX_LANES_GLSL

#include "shaders/lanes.glsl"
#include "shaders/decode/matrix.glsl"

// The lane's two rows i of both matrices.
vec4 pair_row(SumMatrix first, SumMatrix second, uint i) {
    return vec4(first[2u * i], first[2u * i + 1u], second[2u * i], second[2u * i + 1u]);
}
vec4 exchange_columns(vec4 x, uint distance) {
    return vec4(exchange(x.xy, distance), exchange(x.zw, distance));
}
// Over the lanes of a column.
vec4 column_max(vec4 x) {
    x = max(x, exchange_columns(x, 4u));
    x = max(x, exchange_columns(x, 8u));
    return max(x, exchange_columns(x, 16u));
}
vec4 column_total(vec4 x) {
    x += exchange_columns(x, 4u);
    x += exchange_columns(x, 8u);
    return x + exchange_columns(x, 16u);
}

#endif
