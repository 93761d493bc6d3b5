// Retrieval scores: how much of a head's attention passes the A-shape mask, without ever holding
// the matrix. Queries come in blocks of rows, keys in blocks of columns; each row keeps its
// largest logit, the sum of its weights and the sum of those that the mask lets through.
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "format/fp16.h"
#include "stats/logits.h"
#include "stats/probe.h"

namespace lk {

namespace {

constexpr uint32_t kRows = 8;

// The A-shape mask.
bool passes(const lk_probe &probe, uint32_t i, uint32_t j) {
    return j >= probe.sink_tokens && i - j >= probe.local_tokens;
}

// Keys of one head in blocks, zeros after the last token.
bool transpose_keys(const Samples &keys, uint32_t head, Array<float> *out) {
    float values[LK_MAX_HEAD_DIM];
    out->clear();
    if (!out->resize(block_elements(keys.n_tokens, keys.head_dim)))
        return false;
    for (uint32_t t = 0; t < keys.n_tokens; ++t) {
        read_floats(keys, t, head, values);
        put_key(values, t, keys.head_dim, out->data());
    }
    return true;
}

struct OnlineSoftmax {
    float row_max;
    double row_sum;
    double passed;
};

void add_columns(const LogitRule &rule, const lk_probe &probe, uint32_t i, uint32_t first,
                 const float *logits, OnlineSoftmax *row) {
    for (uint32_t k = 0; k < kColumns && first + k <= i; ++k) {
        const uint32_t j = first + k;
        if (!rule.is_visible(i, j))
            continue;
        const float logit = rule.logit(logits[k]);
        if (logit > row->row_max) {
            const double shrink = std::exp(double{row->row_max} - double{logit});
            row->row_sum *= shrink;
            row->passed *= shrink;
            row->row_max = logit;
        }
        const double weight = double{std::exp(logit - row->row_max)};
        row->row_sum += weight;
        row->passed += passes(probe, i, j) ? weight : 0;
    }
}

// Sum of masked attention of the query rows from `begin` on.
double masked_attention(const LogitRule &rule, const lk_probe &probe, const Samples &queries,
                        uint32_t head, uint32_t begin, const float *keys) {
    const uint32_t head_dim = queries.head_dim;
    const float *sink_logits = rule.sink_logits();
    float rows[kRows][LK_MAX_HEAD_DIM];
    float logits[kColumns];
    double total = 0;
    for (uint32_t first = begin; first < queries.n_tokens; first += kRows) {
        const uint32_t left = queries.n_tokens - first;
        const uint32_t n = left < kRows ? left : kRows;
        OnlineSoftmax state[kRows];
        for (uint32_t r = 0; r < n; ++r) {
            read_floats(queries, first + r, head, rows[r]);
            // A learned sink joins the softmax without a column.
            state[r] = sink_logits ? OnlineSoftmax{sink_logits[head], 1, 0}
                                   : OnlineSoftmax{-INFINITY, 0, 0};
        }
        for (uint32_t j = 0; j < first + n; j += kColumns)
            for (uint32_t r = 0; r < n; ++r) {
                multiply(rows[r], keys + static_cast<uint64_t>(j) * head_dim, head_dim, logits);
                add_columns(rule, probe, first + r, j, logits, &state[r]);
            }
        for (uint32_t r = 0; r < n; ++r)
            total += state[r].passed / state[r].row_sum;
    }
    return total;
}

}  // namespace

lk_status add_probe(Calibrator *calibrator, uint32_t layer, const lk_probe &probe,
                    const Samples &queries, const Samples &keys) {
    lk_status status = find_fault(queries, "Q", layer);
    if (status == LK_OK)
        status = find_fault(keys, "K", layer);
    if (status != LK_OK)
        return status;
    const lk_layer &shape = calibrator->geometry[layer];
    const LogitRule rule(shape);
    const uint32_t begin = probe.prefix_tokens + probe.period_tokens;
    const uint32_t group = shape.n_query_heads / shape.n_kv_heads;
    Array<double> fresh(*calibrator->allocator);
    Array<float> transposed(*calibrator->allocator);
    LayerSamples *own = samples_of(calibrator, layer);
    if (!own || !fresh.resize(shape.n_query_heads) || !own->retrieval.resize(shape.n_query_heads))
        return fail(LK_E_NOMEM, "no memory for the retrieval scores of layer %u", layer);
    for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
        if (!transpose_keys(keys, h, &transposed))
            return fail(LK_E_NOMEM, "no memory for %u keys of a probe", keys.n_tokens);
        for (uint32_t q = h * group; q < (h + 1) * group; ++q)
            fresh[q] = masked_attention(rule, probe, queries, q, begin, transposed.data());
    }
    for (uint32_t q = 0; q < shape.n_query_heads; ++q)
        if (!std::isfinite(fresh[q]))
            return fail(LK_E_DATA, "attention of layer %u, query head %u is not finite", layer, q);
    own->n_probe_queries += keys.n_tokens - begin;
    for (uint32_t q = 0; q < shape.n_query_heads; ++q)
        own->retrieval[q] += fresh[q];
    return LK_OK;
}

}  // namespace lk
