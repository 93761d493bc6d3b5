// Attention of one layer on copies of its keys and values, and PM-KVQ's quantizer that makes them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_ATTENTION_H
#define LK_STATS_ATTENTION_H

#include "format/fp16.h"
#include "stats/logits.h"
#include "stats/samples.h"

namespace lk {

// FP16, nearest, as a float.
inline float half_nearest(float value) {
    bool saturated = false;
    return half_to_float(float_to_half(value, &saturated));
}
// The values of one token and head at `bits`, ranges in FP16.
void quantize_vector(const float *values, uint32_t head_dim, uint32_t bits, float *out);
// As read_vector(), but without rounding: gradients are small.
void read_exact(const Samples &samples, uint32_t token, uint32_t head, float *out);
// Attention weights of query i, [i + 1], over keys in blocks (put_key()).
void attend_query(const LogitRule &rule, const float *query, uint32_t query_head, uint32_t i,
                  uint32_t head_dim, const float *keys, float *weights);
// Sum of n values [head_dim] by their weights.
void weigh_values(const float *weights, uint32_t n, const float *values, uint32_t head_dim,
                  float *out);
double square_distance(const float *a, const float *b, uint32_t n);

}  // namespace lk

#endif
