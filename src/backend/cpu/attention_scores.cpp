// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/attention_scores.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/element.h"
#include "base/status.h"
#include "format/codec.h"
#include "format/rotation.h"

namespace lk {
namespace cpu {

namespace {

constexpr float kLog2EFloat = 1.44269504f;
constexpr uint32_t kSpanChunks = 16;  // of a span, which a thread takes at once
constexpr uint32_t kColumns = 2;      // computed next to each other
constexpr uint32_t kNoPage = UINT32_MAX;
constexpr uint32_t kLaneValues = 2 * LK_TILE_WORDS;  // of a tile
constexpr uint32_t kTileValues = kLaneValues * LK_LANES;

// The tokens of a tile under one column.
using Lanes = float __attribute__((vector_size(LK_TILE_TOKENS * sizeof(float))));

// The weight of some tokens in a column: row_sum * exp2(row_max).
struct Partial {
    float row_max;
    float row_sum;
};
constexpr Partial kNothing = {-HUGE_VALF, 0};

void join(const Partial &other, Partial *partial) {
    if (other.row_max == -HUGE_VALF)
        return;
    const float row_max = std::max(partial->row_max, other.row_max);
    partial->row_sum = partial->row_sum * std::exp2(partial->row_max - row_max) +
                       other.row_sum * std::exp2(other.row_max - row_max);
    partial->row_max = row_max;
}

// A thread's memory.
struct Scratch {
    float *queries;    // [head_dim][kAttentionScoreColumns]
    float *starts;     // [kAttentionScoreColumns] of dot products
    float *keys;       // [tile][head_dim][LK_TILE_TOKENS] of one page
    uint16_t *values;  // [tokens][head_dim] of a packed page
};

uint64_t thread_floats(uint32_t head_dim) {
    return (kAttentionScoreColumns + 3ull * LK_MAX_PAGE_TOKENS / 2) * head_dim +
           kAttentionScoreColumns;
}

Scratch cut_scratch(float *memory, uint32_t head_dim) {
    Scratch scratch;
    scratch.keys = memory;
    scratch.queries = scratch.keys + uint64_t{LK_MAX_PAGE_TOKENS} * head_dim;
    scratch.starts = scratch.queries + uint64_t{kAttentionScoreColumns} * head_dim;
    scratch.values = reinterpret_cast<uint16_t *>(scratch.starts + kAttentionScoreColumns);
    return scratch;
}

class ChunkScores {
  public:
    ChunkScores(const AttendCall &args, const ChunkAttention &request)
        : args_(args),
          request_(request),
          sequence_(args.sequences[request.sequence]),
          group_(args.layer.n_query_heads / args.layer.n_kv_heads),
          n_columns_(request.n_queries * group_),
          n_tiles_(attention_score_tiles(args.layer, request.n_queries)) {}

    uint32_t n_work_tiles() const { return n_tiles_ * args_.layer.n_kv_heads; }
    uint32_t n_spans() const {
        return static_cast<uint32_t>(ceil_div(request_.n_chunks, kSpanChunks));
    }

    // Partials of a span of chunks for the columns of a work tile, which is at `index` of its
    // batch.
    void add_span(uint32_t work_tile, uint32_t index, uint32_t span, const Scratch &scratch) const {
        load_queries(work_tile, scratch);
        const uint32_t end = std::min(request_.n_chunks, (span + 1) * kSpanChunks);
        uint32_t page = kNoPage;  // whose keys the scratch has
        for (uint32_t chunk = span * kSpanChunks; chunk < end; ++chunk)
            add_chunk(work_tile, chunk, &page, scratch, partials(index, chunk));
    }

    void total_column(uint32_t index, uint32_t column) const {
        Partial total = kNothing;
        for (uint32_t chunk = 0; chunk < request_.n_chunks; ++chunk)
            join(partials(index, chunk)[column], &total);
        partials(index, request_.n_chunks)[column] = total;
    }

    // Add to a chunk's score the weights of the columns of a batch of work tiles.
    void add_scores(uint32_t first_tile, uint32_t n, uint32_t chunk) const {
        double score = 0;
        for (uint32_t index = 0; index < n; ++index) {
            const Partial *own = partials(index, chunk);
            const Partial *total = partials(index, request_.n_chunks);
            for (uint32_t c = 0; c < columns_of(first_tile + index); ++c)
                score += double{own[c].row_sum} *
                         std::exp2(double{own[c].row_max} - double{total[c].row_max}) /
                         double{total[c].row_sum};
        }
        float *out = reinterpret_cast<float *>(request_.scores) + chunk;
        const double before = request_.is_first && !first_tile ? 0 : double{*out};
        *out = static_cast<float>(before + score * double{request_.weight});
    }

    uint32_t columns_of(uint32_t work_tile) const {
        return std::min(kAttentionScoreColumns,
                        n_columns_ - work_tile % n_tiles_ * kAttentionScoreColumns);
    }

  private:
    Partial *partials(uint32_t index, uint32_t chunk) const {
        return reinterpret_cast<Partial *>(request_.partials +
                                           index * attention_score_tile_bytes(request_.n_chunks)) +
               uint64_t{chunk} * kAttentionScoreColumns;
    }

    // Products with them are logits times log2(e); under a soft-cap they are logit / cap.
    void load_queries(uint32_t work_tile, const Scratch &scratch) const {
        const LayerView &layer = args_.layer;
        const float factor =
            layer.soft_cap > 0 ? layer.scale / layer.soft_cap : layer.scale * kLog2EFloat;
        const uint32_t kv_head = work_tile / n_tiles_;
        const float *scales = head_numbers(layer, layer.key_scales, kv_head);
        const float *centers =
            layer.soft_cap > 0 ? head_numbers(layer, layer.key_centers, kv_head) : nullptr;
        const uint32_t first = work_tile % n_tiles_ * kAttentionScoreColumns;
        std::fill(scratch.queries, scratch.starts + kAttentionScoreColumns, 0.0f);
        for (uint32_t i = 0; i < columns_of(work_tile); ++i) {
            const uint32_t token = request_.first_query + (first + i) / group_;
            const uint8_t *row =
                tensor_row(args_.q, token, kv_head * group_ + (first + i) % group_);
            if (is_beyond_limit(layer, row, args_.q.dtype)) {
                scratch.starts[i] = __builtin_nanf("");
                continue;
            }
            double start = 0;
            float values[LK_MAX_HEAD_DIM];
            for (uint32_t c = 0; c < layer.head_dim; ++c) {
                const float q = load_element(row, args_.q.dtype, c) * factor;
                values[c] = scales ? q * scales[c] : q;
                start += centers ? double{q} * double{centers[c]} : 0;
            }
            if (layer.key_rotation)
                rotate_blocks(values, layer.head_dim, layer.key_rotation);
            for (uint32_t c = 0; c < layer.head_dim; ++c)
                scratch.queries[c * kAttentionScoreColumns + i] = values[c];
            scratch.starts[i] = static_cast<float>(start);
        }
    }

    void add_chunk(uint32_t work_tile, uint32_t chunk, uint32_t *page, const Scratch &scratch,
                   Partial *partials) const {
        const uint64_t page_tokens = sequence_.blocks[request_.first_block]->capacity_tokens;
        const uint64_t begin = uint64_t{chunk} * request_.chunk_tokens;
        const uint64_t end = begin + request_.chunk_tokens;
        std::fill(partials, partials + kAttentionScoreColumns, kNothing);
        for (uint64_t tile = begin / LK_TILE_TOKENS; tile * LK_TILE_TOKENS < end; ++tile) {
            const uint64_t first = tile * LK_TILE_TOKENS;
            const auto wanted = static_cast<uint32_t>(first / page_tokens);
            if (*page != wanted)
                read_keys(work_tile / n_tiles_, wanted, scratch);
            *page = wanted;
            const uint32_t low = static_cast<uint32_t>(std::max(begin, first) - first);
            const uint32_t high =
                static_cast<uint32_t>(std::min<uint64_t>(end - first, LK_TILE_TOKENS));
            const float *keys = scratch.keys + first % page_tokens * args_.layer.head_dim;
            for (uint32_t c = 0; c < columns_of(work_tile); c += kColumns)
                add_tile(keys, scratch, c, low, high, &partials[c]);
        }
    }

    // Tokens [low, high) of a tile under kColumns columns: as many sums at once as hide the
    // latency of additions.
    void add_tile(const float *keys, const Scratch &scratch, uint32_t column, uint32_t low,
                  uint32_t high, Partial *partials) const {
        Lanes logits[kColumns];
        for (uint32_t i = 0; i < kColumns; ++i)
            logits[i] = Lanes{} + scratch.starts[column + i];
        for (uint32_t c = 0; c < args_.layer.head_dim; ++c) {
            const float *queries = scratch.queries + c * kAttentionScoreColumns + column;
            Lanes key;
            std::memcpy(&key, keys + c * LK_TILE_TOKENS, sizeof key);
            for (uint32_t i = 0; i < kColumns; ++i)
                logits[i] += queries[i] * key;
        }
        for (uint32_t i = 0; i < kColumns; ++i)
            add_logits(&logits[i], low, high, &partials[i]);
    }

    void add_logits(Lanes *logits, uint32_t low, uint32_t high, Partial *partial) const {
        float own[LK_TILE_TOKENS];
        std::memcpy(own, logits, sizeof own);
        const float cap = args_.layer.soft_cap * kLog2EFloat;
        float top = -HUGE_VALF;
        for (uint32_t t = low; t < high; ++t) {
            own[t] = cap > 0 ? cap * std::tanh(own[t]) : own[t];
            top = own[t] > top ? own[t] : top;
        }
        float sum = 0;
        for (uint32_t t = low; t < high; ++t)
            sum += std::exp2(own[t] - top);
        join({top, sum}, partial);
    }

    void read_keys(uint32_t kv_head, uint32_t page, const Scratch &scratch) const {
        const Block &block = *sequence_.blocks[request_.first_block + page];
        const PageEntry &entry = block.entries[args_.first_entry + kv_head];
        const PageFormat &format = args_.classes[entry.key_format];
        const auto *payload = reinterpret_cast<const uint8_t *>(entry.key_payload);
        if (format.layout.is_raw())
            read_raw(format.layout, payload, context_tokens(page), scratch.keys);
        else
            read_packed(format, payload, reinterpret_cast<const uint8_t *>(entry.key_metadata),
                        scratch);
    }

    // Of the context; a page may have no tokens after them yet.
    uint32_t context_tokens(uint32_t page) const {
        const uint64_t page_tokens = sequence_.blocks[request_.first_block]->capacity_tokens;
        const uint64_t rest =
            uint64_t{request_.n_chunks} * request_.chunk_tokens - page * page_tokens;
        return static_cast<uint32_t>(std::min(rest, page_tokens));
    }

    static void read_raw(const PageLayout &layout, const uint8_t *payload, uint32_t n_tokens,
                         float *keys) {
        const uint32_t strip_values = LK_STRIP_CHANNELS * layout.page_tokens;
        for (uint32_t i = 0; i < layout.head_dim / LK_STRIP_CHANNELS * n_tokens; ++i) {
            const uint32_t strip = i / n_tokens;
            const uint32_t token = i % n_tokens;
            const uint32_t tile = token / LK_TILE_TOKENS;
            const uint8_t *from =
                payload + sizeof(uint16_t) * (strip * strip_values + tile * kTileValues);
            float *out = keys + (uint64_t{tile} * layout.head_dim + strip * LK_STRIP_CHANNELS) *
                                    LK_TILE_TOKENS;
            for (uint32_t k = 0; k < LK_STRIP_CHANNELS; ++k) {
                const uint32_t at = LK_TILE_LANE(token, k) * kLaneValues +
                                    2 * LK_TILE_REGISTER(token, k) + LK_TILE_HALF(k);
                uint16_t half;
                std::memcpy(&half, from + at * sizeof half, sizeof half);
                out[k * LK_TILE_TOKENS + token % LK_TILE_TOKENS] = half_to_float(half);
            }
        }
    }

    static void read_packed(const PageFormat &format, const uint8_t *payload,
                            const uint8_t *metadata, const Scratch &scratch) {
        const uint32_t head_dim = format.layout.head_dim;
        unpack_page(format.layout, payload, metadata, format.permutation, format.layout.page_tokens,
                    scratch.values, head_dim);
        for (uint32_t t = 0; t < format.layout.page_tokens; ++t)
            for (uint32_t c = 0; c < head_dim; ++c)
                scratch.keys[(uint64_t{t / LK_TILE_TOKENS} * head_dim + c) * LK_TILE_TOKENS +
                             t % LK_TILE_TOKENS] =
                    half_to_float(scratch.values[uint64_t{t} * head_dim + c]);
    }

    const AttendCall &args_;
    const ChunkAttention &request_;
    const BatchSequence &sequence_;
    const uint32_t group_;
    const uint32_t n_columns_;  // of a KV head
    const uint32_t n_tiles_;
};

}  // namespace

lk_status score_attention(const AttendCall &args, const ChunkAttention &request, ThreadPool *pool,
                          AttendScratch *scratch) {
    const uint64_t floats = round_up(thread_floats(args.layer.head_dim), 16);
    if (!scratch->threads.reserve(floats * pool->size()))
        return fail(LK_E_NOMEM, "no memory for the attention scores of chunks with %u threads",
                    pool->size());
    const ChunkScores chunk_scores(args, request);
    const uint32_t n_spans = chunk_scores.n_spans();
    for (uint32_t first = 0; first < chunk_scores.n_work_tiles(); first += request.max_tiles) {
        const uint32_t n = std::min(request.max_tiles, chunk_scores.n_work_tiles() - first);
        auto add_span = [&](uint32_t i, uint32_t thread) {
            const Scratch own =
                cut_scratch(scratch->threads.data() + thread * floats, args.layer.head_dim);
            chunk_scores.add_span(first + i / n_spans, i / n_spans, i % n_spans, own);
        };
        auto total = [&](uint32_t i, uint32_t) {
            const uint32_t column = i % kAttentionScoreColumns;
            if (column < chunk_scores.columns_of(first + i / kAttentionScoreColumns))
                chunk_scores.total_column(i / kAttentionScoreColumns, column);
        };
        LK_TRY(pool->parallel_for(n * n_spans, add_span));
        LK_TRY(pool->parallel_for(n * kAttentionScoreColumns, total));
        for (uint32_t chunk = 0; chunk < request.n_chunks; ++chunk)
            chunk_scores.add_scores(first, n, chunk);
    }
    return LK_OK;
}

}  // namespace cpu
}  // namespace lk
