// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/attend.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/element.h"
#include "backend/cpu/page_view.h"
#include "base/status.h"
#include "format/rotation.h"

namespace lk {
namespace cpu {

namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr uint32_t kTreeTokens = 64;
// Work items that keep many threads busy; more would only cost merges.
constexpr uint32_t kWantedItems = 32;
constexpr uint32_t kBlocksPerSplit = 8;

// Blocks [0, n) of the sequence hold visible keys.
uint32_t used_blocks(const BatchSequence &sequence) {
    const uint64_t tokens = sequence.n_history + (sequence.new_in_blocks ? sequence.n_new : 0);
    uint32_t n = sequence.n_attended;
    while (n && sequence.blocks[n - 1]->first_token >= tokens)
        --n;
    return n;
}

// Walks the keys of a work tile. Views of formats are kept while the format stays the same.
struct Walk {
    const AttendCall *args;
    const BatchSequence *sequence;
    uint32_t kv_head;
    uint32_t block;
    uint32_t end_block;
    uint32_t n_used;
    uint32_t token;         // in the block, or among the staged
    uint64_t first_wanted;  // position of the first key in the window of any query
    uint64_t end_wanted;
    uint32_t sink_tokens;
    ViewCache *key_views;
    ViewCache *value_views;
};

PageBytes page_bytes(const PageFormat &format, uint64_t payload, uint64_t metadata,
                     ViewCache *views) {
    PageBytes bytes;
    bytes.view = views->get(format.layout);
    bytes.payload = reinterpret_cast<const uint8_t *>(payload);
    bytes.metadata = reinterpret_cast<const uint8_t *>(metadata);
    bytes.channels = format.layout.permutes && !format.layout.is_raw()
                         ? bytes.metadata + permutation_offset_bytes(format.layout)
                         : format.permutation;
    return bytes;
}

bool wanted(const Walk &walk, uint64_t first, uint64_t n) {
    return first < walk.end_wanted && (first + n > walk.first_wanted || first < walk.sink_tokens);
}

bool next_staged(Walk *walk, KvTile *kv_tile) {
    const BatchSequence &sequence = *walk->sequence;
    const LayerView &layer = walk->args->layer;
    const Staging &staging = walk->args->staging;
    const uint32_t rest = sequence.n_new - walk->token;
    const uint64_t from =
        static_cast<uint64_t>(walk->kv_head) * staging.n_tokens + sequence.first_new + walk->token;
    *kv_tile = {};
    kv_tile->key.payload = reinterpret_cast<const uint8_t *>(staging.k + from * layer.head_dim);
    if (!layer.is_latent)
        kv_tile->value.payload =
            reinterpret_cast<const uint8_t *>(staging.v + from * layer.value_dim);
    kv_tile->n_tokens = rest < kKvTileTokens ? rest : kKvTileTokens;
    kv_tile->n_linear = kv_tile->n_tokens;
    kv_tile->position = sequence.n_history + walk->token;
    walk->token += kv_tile->n_tokens;
    return true;
}

// The tokens of a block from walk->token on.
void fill_kv_tile(Walk *walk, const Block &block, uint32_t n_tokens, KvTile *kv_tile) {
    const BatchSequence &sequence = *walk->sequence;
    const PageEntry &entry = block.entries[walk->args->first_entry + walk->kv_head];
    kv_tile->key = page_bytes(walk->args->classes[entry.key_format], entry.key_payload,
                              entry.key_metadata, walk->key_views);
    kv_tile->value = {};
    if (!walk->args->layer.is_latent)
        kv_tile->value = page_bytes(walk->args->classes[entry.value_format], entry.value_payload,
                                    entry.value_metadata, walk->value_views);
    kv_tile->first_token = walk->token;
    kv_tile->n_tokens = n_tokens;
    kv_tile->position = block.first_token + walk->token;
    kv_tile->n_linear = n_tokens;
    kv_tile->tree_first = 0;
    if (sequence.parent && kv_tile->position + n_tokens > sequence.n_history) {
        const bool begins = kv_tile->position < sequence.n_history;
        kv_tile->n_linear =
            begins ? static_cast<uint32_t>(sequence.n_history - kv_tile->position) : 0;
        kv_tile->tree_first =
            begins ? 0 : static_cast<uint32_t>(kv_tile->position - sequence.n_history);
    }
}

bool next_kv_tile(void *state, KvTile *kv_tile) {
    auto *walk = static_cast<Walk *>(state);
    const BatchSequence &sequence = *walk->sequence;
    const uint64_t tokens = sequence.n_history + (sequence.new_in_blocks ? sequence.n_new : 0);
    for (; walk->block < walk->end_block; ++walk->block, walk->token = 0) {
        if (walk->block == walk->n_used)
            return !sequence.new_in_blocks && walk->token < sequence.n_new &&
                   next_staged(walk, kv_tile);
        const Block &block = *sequence.blocks[walk->block];
        const uint64_t visible = tokens - block.first_token;
        const auto n = static_cast<uint32_t>(
            visible < block.capacity_tokens ? visible : block.capacity_tokens);
        while (walk->token < n) {
            const uint32_t count =
                n - walk->token < kKvTileTokens ? n - walk->token : kKvTileTokens;
            const bool take =
                wanted(*walk, block.first_token + walk->token, count) ||
                (sequence.parent && block.first_token + walk->token + count > sequence.n_history);
            if (take)
                fill_kv_tile(walk, block, count, kv_tile);
            walk->token += count;
            if (take)
                return true;
        }
    }
    return false;
}

// Query tokens of a work tile.
struct Queries {
    QueryToken tokens[kTileRows];
    uint64_t tree_positions[kTreeTokens];
};

void fill_tree(const BatchSequence &sequence, uint64_t *positions, uint64_t *ancestors) {
    for (uint32_t i = 0; i < sequence.n_new; ++i) {
        const int32_t parent = sequence.parent[i];
        positions[i] = parent < 0 ? sequence.n_history : positions[parent] + 1;
        ancestors[i] = (parent < 0 ? 0 : ancestors[parent]) | (1ull << i);
    }
}

void fill_queries(const LayerView &layer, const BatchSequence &sequence, const WorkItem &item,
                  Queries *queries) {
    const uint32_t *reach = layer_reach(layer, sequence);
    uint64_t ancestors[kTreeTokens];
    if (sequence.parent)
        fill_tree(sequence, queries->tree_positions, ancestors);
    for (uint32_t j = 0; j < item.n_queries; ++j) {
        const uint32_t i = item.first_query + j;
        const uint64_t position =
            sequence.parent ? queries->tree_positions[i] : sequence.n_history + i;
        queries->tokens[j] = {position, sequence.parent ? ancestors[i] : 0,
                              reach ? sequence.n_history + reach[i] : position};
    }
}

uint64_t kernel_floats(const LayerView &layer) {
    return LK_CPU_SCRATCH_FLOATS(static_cast<uint64_t>(std::max(layer.head_dim, layer.value_dim)));
}
// FP32 of a thread: scratch, q, result and starts of its work tile.
uint64_t thread_floats(const LayerView &layer) {
    return round_up(kernel_floats(layer) +
                        uint64_t{kTileRows} * (uint64_t{layer.head_dim} + layer.value_dim + 3),
                    16);
}
uint64_t partial_floats(uint32_t n_rows, uint32_t value_dim) {
    return round_up(static_cast<uint64_t>(n_rows) * (value_dim + 2ull), 16);
}

class Call {
  public:
    Call(const Kernels &kernels, const AttendCall &args, AttendScratch *scratch)
        : kernels_(kernels),
          args_(args),
          scratch_(*scratch),
          group_(args.layer.n_query_heads / args.layer.n_kv_heads),
          decode_rows_(args.layer.is_latent ? 0 : kDecodeRows),
          n_parts_(static_cast<uint32_t>(
              ceil_div(group_, args.layer.is_latent ? kTileRows : kDecodeRows))),
          part_heads_(static_cast<uint32_t>(ceil_div(group_, n_parts_))) {}

    bool plan() {
        scratch_.items.clear();
        uint64_t partial = 0;
        uint32_t n_base = 0;
        for (uint32_t s = 0; s < args_.n_sequences; ++s)
            n_base +=
                args_.layer.n_kv_heads * n_parts_ *
                static_cast<uint32_t>(ceil_div(args_.sequences[s].n_new, queries_per_tile(s)));
        for (uint32_t s = 0; s < args_.n_sequences; ++s)
            for (uint32_t part = 0; part < args_.layer.n_kv_heads * n_parts_; ++part)
                // The last queries see most keys: they come first, so that threads end together.
                for (uint32_t end = args_.sequences[s].n_new; end;) {
                    const uint32_t rest = end % queries_per_tile(s);
                    const uint32_t n = rest ? rest : queries_per_tile(s);
                    if (!plan_splits(part_item(s, part, end - n, n), n_base, &partial))
                        return false;
                    end -= n;
                }
        return scratch_.partials.reserve(partial);
    }
    uint32_t n_items() const { return static_cast<uint32_t>(scratch_.items.size()); }

    void run(uint32_t index, uint32_t thread) {
        const WorkItem &item = scratch_.items[index];
        const BatchSequence &sequence = args_.sequences[item.sequence];
        const LayerView &layer = args_.layer;
        Queries queries;
        fill_queries(layer, sequence, item, &queries);
        WorkTile work = {};
        work.n_queries = item.n_queries;
        work.group_size = item.n_heads;
        work.head_dim = layer.head_dim;
        work.value_dim = layer.value_dim;
        work.is_latent = layer.is_latent;
        work.n_rows = item.n_queries * item.n_heads;
        work.queries = queries.tokens;
        work.tree_positions = queries.tree_positions;
        set_bounds(&work);
        work.scratch = scratch_.threads.data() + thread * thread_floats(layer);
        float *q = work.scratch + kernel_floats(layer);
        float *result = q + uint64_t{kTileRows} * layer.head_dim;
        work.q = q;
        work.cap = static_cast<float>(static_cast<double>(layer.soft_cap) * kLog2E);
        bool is_beyond[kTileRows];
        load_queries(item, q, is_beyond);
        if (const float *centers = head_numbers(layer, layer.key_centers, item.kv_head)) {
            float *starts = result + uint64_t{kTileRows} * (layer.value_dim + 2ull);
            dot_centers(work, centers, starts);
            work.starts = starts;
        }
        if (const float *scales = head_numbers(layer, layer.key_scales, item.kv_head))
            scale_queries(work, scales, q);
        if (layer.key_rotation)
            rotate_blocks(q, work.n_rows * layer.head_dim, layer.key_rotation);
        work.output = item.n_splits > 1 ? scratch_.partials.data() + item.partial : result;
        work.row_max = work.output + static_cast<uint64_t>(work.n_rows) * layer.value_dim;
        work.row_sum = work.row_max + work.n_rows;
        walk_keys(item, sequence, &work);
        for (uint32_t r = 0; r < work.n_rows; ++r)
            if (is_beyond[r])
                work.row_sum[r] = __builtin_nanf("");  // stays NaN through merges
        if (item.n_splits == 1)
            finish(item, work.output);
    }

    // Merge the splits of a work tile; item `index` is the first of them.
    void merge(uint32_t index) {
        const WorkItem &first = scratch_.items[index];
        if (first.n_splits == 1 || first.split)
            return;
        const uint32_t n_rows = first.n_queries * first.n_heads;
        const uint64_t outputs = static_cast<uint64_t>(n_rows) * args_.layer.value_dim;
        float *into = scratch_.partials.data() + first.partial;
        for (uint32_t i = 1; i < first.n_splits; ++i) {
            const float *from = scratch_.partials.data() + scratch_.items[index + i].partial;
            for (uint32_t r = 0; r < n_rows; ++r)
                merge_row(into, from, outputs, n_rows, r);
        }
        finish(first, into);
    }

  private:
    uint32_t queries_per_tile(uint32_t s) const {
        const uint32_t n_new = args_.sequences[s].n_new;
        return n_new * part_heads_ <= decode_rows_ ? n_new : kTileRows / part_heads_;
    }

    // A KV head's query heads are cut into parts of about equal size, which a work tile has rows
    // for.
    WorkItem part_item(uint32_t s, uint32_t part, uint32_t first_query, uint32_t n_queries) const {
        const uint32_t kv_head = part / n_parts_;
        const uint32_t first = group_ * (part % n_parts_) / n_parts_;
        const uint32_t end = group_ * (part % n_parts_ + 1) / n_parts_;
        WorkItem item = {};
        item.sequence = s;
        item.kv_head = kv_head;
        item.first_head = kv_head * group_ + first;
        item.n_heads = end - first;
        item.first_query = first_query;
        item.n_queries = n_queries;
        return item;
    }

    bool plan_splits(WorkItem item, uint32_t n_base, uint64_t *partial) {
        const BatchSequence &sequence = args_.sequences[item.sequence];
        const uint32_t n_rows = used_blocks(sequence) + (sequence.new_in_blocks ? 0 : 1);
        const auto wish = static_cast<uint32_t>(ceil_div(kWantedItems, n_base));
        const auto most = static_cast<uint32_t>(ceil_div(n_rows, kBlocksPerSplit));
        const uint32_t n_splits = wish < most ? wish : most;
        item.n_splits = n_splits;
        for (uint32_t i = 0; i < n_splits; ++i) {
            item.split = i;
            item.first_block = static_cast<uint32_t>(static_cast<uint64_t>(n_rows) * i / n_splits);
            item.end_block =
                static_cast<uint32_t>(static_cast<uint64_t>(n_rows) * (i + 1) / n_splits);
            item.partial = *partial;
            if (!scratch_.items.push(item))
                return false;
            if (n_splits > 1)
                *partial += partial_floats(item.n_queries * item.n_heads, args_.layer.value_dim);
        }
        return true;
    }

    void set_bounds(WorkTile *work) const {
        work->window_tokens = args_.layer.window_tokens;
        work->window_sink_tokens = args_.layer.window_sink_tokens;
        work->first_position = work->queries[0].position;
        work->last_position = work->queries[0].reach;
        for (uint32_t j = 1; j < work->n_queries; ++j) {
            const QueryToken &query = work->queries[j];
            work->first_position = std::min(work->first_position, query.position);
            work->last_position = std::max(work->last_position, query.reach);
        }
    }

    // A query beyond its layer's limit counts as zeros, which kernels can compute with.
    void load_queries(const WorkItem &item, float *q, bool *is_beyond) const {
        const LayerView &layer = args_.layer;
        const double scale = layer.soft_cap > 0 ? static_cast<double>(layer.scale) /
                                                      static_cast<double>(layer.soft_cap)
                                                : static_cast<double>(layer.scale) * kLog2E;
        const auto factor = static_cast<float>(scale);
        for (uint32_t j = 0; j < item.n_queries; ++j)
            for (uint32_t h = 0; h < item.n_heads; ++h) {
                const uint8_t *row = tensor_row(args_.q, token_of(item, j), item.first_head + h);
                *is_beyond = is_beyond_limit(layer, row, args_.q.dtype);
                for (uint32_t c = 0; c < layer.head_dim; ++c)
                    *q++ = *is_beyond ? 0 : load_element(row, args_.q.dtype, c) * factor;
                ++is_beyond;
            }
    }

    // q . c of each row of q.
    static void dot_centers(const WorkTile &work, const float *centers, float *starts) {
        for (uint32_t r = 0; r < work.n_rows; ++r) {
            const float *q = work.q + uint64_t{r} * work.head_dim;
            double dot = 0;
            for (uint32_t c = 0; c < work.head_dim; ++c)
                dot += static_cast<double>(q[c]) * static_cast<double>(centers[c]);
            starts[r] = static_cast<float>(dot);
        }
    }

    // q times the key scales, for keys that were divided by them.
    static void scale_queries(const WorkTile &work, const float *scales, float *q) {
        for (uint32_t r = 0; r < work.n_rows; ++r)
            for (uint32_t c = 0; c < work.head_dim; ++c)
                *q++ *= scales[c];
    }

    void walk_keys(const WorkItem &item, const BatchSequence &sequence, WorkTile *work) const {
        ViewCache key_views;
        ViewCache value_views;
        const uint64_t window = args_.layer.window_tokens;
        Walk walk = {&args_,
                     &sequence,
                     item.kv_head,
                     item.first_block,
                     item.end_block,
                     used_blocks(sequence),
                     0,
                     0,
                     work->last_position + 1,
                     args_.layer.window_sink_tokens,
                     &key_views,
                     &value_views};
        if (window && work->first_position + 1 > window)
            walk.first_wanted = work->first_position + 1 - window;
        work->keys = {next_kv_tile, &walk};
        (work->n_rows <= decode_rows_ ? kernels_.attend_decode : kernels_.attend_tile)(*work);
    }

    uint64_t token_of(const WorkItem &item, uint32_t query) const {
        return static_cast<uint64_t>(args_.sequences[item.sequence].first_new) + item.first_query +
               query;
    }

    void merge_row(float *into, const float *from, uint64_t outputs, uint32_t n_rows,
                   uint32_t r) const {
        const uint32_t value_dim = args_.layer.value_dim;
        float *row_max = into + outputs + r;
        const float other = from[outputs + r];
        const float highest = other > *row_max ? other : *row_max;
        const float keep = std::exp2(*row_max - highest);
        const float take = std::exp2(other - highest);
        *row_max = highest;
        row_max[n_rows] = row_max[n_rows] * keep + from[outputs + n_rows + r] * take;
        for (uint64_t i = static_cast<uint64_t>(r) * value_dim; i < (r + 1ull) * value_dim; ++i)
            into[i] = into[i] * keep + from[i] * take;
    }

    // Sinks, normalization and the caller's dtype.
    void finish(const WorkItem &item, const float *result) const {
        const uint32_t n_rows = item.n_queries * item.n_heads;
        const float *maxima = result + static_cast<uint64_t>(n_rows) * args_.layer.value_dim;
        for (uint32_t r = 0; r < n_rows; ++r)
            finish_row(item, r, result + static_cast<uint64_t>(r) * args_.layer.value_dim,
                       static_cast<double>(maxima[r]), static_cast<double>(maxima[n_rows + r]));
    }
    void finish_row(const WorkItem &item, uint32_t r, const float *output, double row_max,
                    double row_sum) const {
        const uint32_t head = item.first_head + r % item.n_heads;
        const uint64_t token = token_of(item, r / item.n_heads);
        double factor = 1;  // a sink far above every logit makes the sum overflow otherwise
        if (args_.layer.sink_logits) {
            const double sink = static_cast<double>(args_.layer.sink_logits[head]) * kLog2E;
            const double highest = sink > row_max ? sink : row_max;
            factor = std::exp2(row_max - highest);
            row_sum = row_sum * factor + std::exp2(sink - highest);
            row_max = highest;
        }
        const auto scale = static_cast<float>(factor / row_sum);
        uint8_t *row = tensor_row(args_.out, token, head);
        for (uint32_t c = 0; c < args_.layer.value_dim; ++c)
            store_element(row, args_.out.dtype, c, output[c] * scale);
        if (args_.lse)
            args_.lse[static_cast<int64_t>(token) * args_.lse_token_stride +
                      static_cast<int64_t>(head) * args_.lse_head_stride] =
                static_cast<float>((row_max + std::log2(row_sum)) / kLog2E);
    }

    const Kernels &kernels_;
    const AttendCall &args_;
    AttendScratch &scratch_;
    const uint32_t group_;        // query heads of a KV head
    const uint32_t decode_rows_;  // rows of a work tile on the decode path, at most
    const uint32_t n_parts_;      // that they are cut into
    const uint32_t part_heads_;   // of a part, at most
};

}  // namespace

lk_status fast_attend(const Kernels &kernels, const AttendCall &args, ThreadPool *pool,
                      AttendScratch *scratch) {
    Call call(kernels, args, scratch);
    const uint64_t floats = thread_floats(args.layer) * pool->size();
    if (!scratch->threads.reserve(floats) || !call.plan())
        return fail(LK_E_NOMEM, "no memory for the attention scratch of %u threads", pool->size());
    LK_TRY(pool->parallel_for(call.n_items(),
                              [&](uint32_t index, uint32_t thread) { call.run(index, thread); }));
    for (uint32_t i = 0; i < call.n_items(); ++i)
        call.merge(i);
    return LK_OK;
}

}  // namespace cpu
}  // namespace lk
