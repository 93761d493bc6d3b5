// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/attend.h"

#include <cmath>

#include "backend/cpu/element.h"
#include "backend/cpu/half_view.h"
#include "base/status.h"

namespace lk {
namespace cpu {

namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr uint32_t kTreeTokens = 64;
// Units that keep many threads busy; more would only cost merges.
constexpr uint32_t kWantedUnits = 32;
constexpr uint32_t kRowsPerSplit = 8;

// Rows [0, n) of the sequence that hold visible keys.
uint32_t used_rows(const BatchSequence &sequence) {
    const uint64_t tokens = sequence.n_history + (sequence.new_in_blocks ? sequence.n_new : 0);
    uint32_t n = sequence.n_attended;
    while (n && sequence.blocks[n - 1]->first_token >= tokens)
        --n;
    return n;
}

// Walks the keys of a unit. Views of classes are kept while the class stays the same.
struct Walk {
    const AttendCall *args;
    const BatchSequence *sequence;
    uint32_t kv_head;
    uint32_t row;
    uint32_t end_row;
    uint32_t n_used;
    uint32_t token;         // in the row, or among the staged
    uint64_t first_wanted;  // position of the first key in the window of any query
    uint64_t end_wanted;
    uint32_t sink_tokens;
    ViewCache *key_views;
    ViewCache *value_views;
};

HalfBytes half_bytes(const PageFormat &half, uint64_t payload, uint64_t metadata,
                     ViewCache *views) {
    HalfBytes bytes;
    bytes.view = views->get(half.layout);
    bytes.payload = reinterpret_cast<const uint8_t *>(payload);
    bytes.metadata = reinterpret_cast<const uint8_t *>(metadata);
    bytes.channels = half.layout.permutes && !half.layout.is_raw()
                         ? bytes.metadata + permutation_offset_bytes(half.layout)
                         : half.permutation;
    return bytes;
}

bool wanted(const Walk &walk, uint64_t first, uint64_t n) {
    return first < walk.end_wanted && (first + n > walk.first_wanted || first < walk.sink_tokens);
}

bool next_staged(Walk *walk, KeyBlock *block) {
    const BatchSequence &sequence = *walk->sequence;
    const uint64_t head_dim = walk->args->layer.head_dim;
    const Staging &staging = walk->args->staging;
    const uint32_t rest = sequence.n_new - walk->token;
    const uint64_t from = (static_cast<uint64_t>(walk->kv_head) * staging.n_tokens +
                           sequence.first_new + walk->token) *
                          head_dim;
    *block = {};
    block->key.payload = reinterpret_cast<const uint8_t *>(staging.keys + from);
    block->value.payload = reinterpret_cast<const uint8_t *>(staging.values + from);
    block->n_tokens = rest < kBlockTokens ? rest : kBlockTokens;
    block->n_linear = block->n_tokens;
    block->position = sequence.n_history + walk->token;
    walk->token += block->n_tokens;
    return true;
}

// The tokens of a row from walk->token on.
void fill_block(Walk *walk, const Block &row, uint32_t n_tokens, KeyBlock *block) {
    const BatchSequence &sequence = *walk->sequence;
    const PageEntry &entry = row.entries[walk->args->first_entry + walk->kv_head];
    block->key = half_bytes(walk->args->classes[entry.key_format], entry.key_payload,
                            entry.key_metadata, walk->key_views);
    block->value = half_bytes(walk->args->classes[entry.value_format], entry.value_payload,
                              entry.value_metadata, walk->value_views);
    block->first_token = walk->token;
    block->n_tokens = n_tokens;
    block->position = row.first_token + walk->token;
    block->n_linear = n_tokens;
    block->tree_first = 0;
    if (sequence.parent && block->position + n_tokens > sequence.n_history) {
        const bool begins = block->position < sequence.n_history;
        block->n_linear = begins ? static_cast<uint32_t>(sequence.n_history - block->position) : 0;
        block->tree_first =
            begins ? 0 : static_cast<uint32_t>(block->position - sequence.n_history);
    }
}

bool next_block(void *state, KeyBlock *block) {
    auto *walk = static_cast<Walk *>(state);
    const BatchSequence &sequence = *walk->sequence;
    const uint64_t tokens = sequence.n_history + (sequence.new_in_blocks ? sequence.n_new : 0);
    for (; walk->row < walk->end_row; ++walk->row, walk->token = 0) {
        if (walk->row == walk->n_used)
            return !sequence.new_in_blocks && walk->token < sequence.n_new &&
                   next_staged(walk, block);
        const Block &row = *sequence.blocks[walk->row];
        const uint64_t visible = tokens - row.first_token;
        const auto n =
            static_cast<uint32_t>(visible < row.capacity_tokens ? visible : row.capacity_tokens);
        while (walk->token < n) {
            const uint32_t count = n - walk->token < kBlockTokens ? n - walk->token : kBlockTokens;
            const bool take =
                wanted(*walk, row.first_token + walk->token, count) ||
                (sequence.parent && row.first_token + walk->token + count > sequence.n_history);
            if (take)
                fill_block(walk, row, count, block);
            walk->token += count;
            if (take)
                return true;
        }
    }
    return false;
}

// Query tokens of a unit.
struct Queries {
    QueryToken tokens[kTileRows];
    uint64_t tree_positions[kTreeTokens];
};

void place_tree(const BatchSequence &sequence, uint64_t *positions, uint64_t *ancestors) {
    for (uint32_t i = 0; i < sequence.n_new; ++i) {
        const int32_t parent = sequence.parent[i];
        positions[i] = parent < 0 ? sequence.n_history : positions[parent] + 1;
        ancestors[i] = (parent < 0 ? 0 : ancestors[parent]) | (1ull << i);
    }
}

void place_queries(const BatchSequence &sequence, const UnitPlan &plan, Queries *queries) {
    uint64_t ancestors[kTreeTokens];
    if (sequence.parent)
        place_tree(sequence, queries->tree_positions, ancestors);
    for (uint32_t j = 0; j < plan.n_queries; ++j) {
        const uint32_t i = plan.first_query + j;
        queries->tokens[j] = sequence.parent ? QueryToken{queries->tree_positions[i], ancestors[i]}
                                             : QueryToken{sequence.n_history + i, 0};
    }
}

// FP32 of a thread: the unit's scratch, its q, its result and its starts.
uint64_t thread_floats(uint32_t head_dim) {
    return round_up(
        LK_CPU_SCRATCH_FLOATS(head_dim) + 2ull * kTileRows * head_dim + 3ull * kTileRows, 16);
}
uint64_t partial_floats(uint32_t n_rows, uint32_t head_dim) {
    return round_up(static_cast<uint64_t>(n_rows) * (head_dim + 2ull), 16);
}

class Call {
  public:
    Call(const Kernels &kernels, const AttendCall &args, AttendScratch *scratch)
        : kernels_(kernels),
          args_(args),
          scratch_(*scratch),
          group_(args.layer.n_query_heads / args.layer.n_kv_heads) {}

    bool plan() {
        scratch_.units.clear();
        uint64_t partial = 0;
        uint32_t n_base = 0;
        for (uint32_t s = 0; s < args_.n_sequences; ++s)
            n_base += args_.layer.n_kv_heads * static_cast<uint32_t>(ceil_div(
                                                   args_.sequences[s].n_new, queries_per_unit(s)));
        for (uint32_t s = 0; s < args_.n_sequences; ++s)
            for (uint32_t head = 0; head < args_.layer.n_kv_heads; ++head)
                // The last queries see most keys: they come first, so that threads end together.
                for (uint32_t end = args_.sequences[s].n_new; end;) {
                    const uint32_t rest = end % queries_per_unit(s);
                    const uint32_t n = rest ? rest : queries_per_unit(s);
                    if (!plan_splits(s, head, end - n, n, n_base, &partial))
                        return false;
                    end -= n;
                }
        return scratch_.partials.reserve(partial);
    }
    uint32_t n_units() const { return static_cast<uint32_t>(scratch_.units.size()); }

    void run(uint32_t index, uint32_t thread) {
        const UnitPlan &plan = scratch_.units[index];
        const BatchSequence &sequence = args_.sequences[plan.sequence];
        const uint32_t head_dim = args_.layer.head_dim;
        Queries queries;
        place_queries(sequence, plan, &queries);
        Unit unit = {};
        unit.n_queries = plan.n_queries;
        unit.group_size = group_;
        unit.head_dim = head_dim;
        unit.n_rows = plan.n_queries * group_;
        unit.queries = queries.tokens;
        unit.tree_positions = queries.tree_positions;
        set_bounds(&unit);
        unit.scratch = scratch_.threads.data() + thread * thread_floats(head_dim);
        float *q = unit.scratch + LK_CPU_SCRATCH_FLOATS(head_dim);
        unit.q = q;
        unit.cap = static_cast<float>(static_cast<double>(args_.layer.soft_cap) * kLog2E);
        load_queries(plan, q);
        if (const float *centers =
                head_numbers(args_.layer, args_.layer.key_centers, plan.kv_head)) {
            float *starts = q + 2ull * kTileRows * head_dim + 2ull * kTileRows;
            dot_centers(unit, centers, starts);
            unit.starts = starts;
        }
        if (const float *scales = head_numbers(args_.layer, args_.layer.key_scales, plan.kv_head))
            scale_queries(unit, scales, q);
        unit.output =
            plan.n_splits > 1 ? scratch_.partials.data() + plan.partial : q + kTileRows * head_dim;
        unit.top = unit.output + static_cast<uint64_t>(unit.n_rows) * head_dim;
        unit.sum = unit.top + unit.n_rows;
        walk_keys(plan, sequence, &unit);
        if (plan.n_splits == 1)
            finish(plan, unit.output);
    }

    // Merge the units that share rows with unit `index`, the first of them.
    void merge(uint32_t index) {
        const UnitPlan &first = scratch_.units[index];
        if (first.n_splits == 1 || first.split)
            return;
        const uint32_t n_rows = first.n_queries * group_;
        const uint64_t outputs = static_cast<uint64_t>(n_rows) * args_.layer.head_dim;
        float *into = scratch_.partials.data() + first.partial;
        for (uint32_t i = 1; i < first.n_splits; ++i) {
            const float *from = scratch_.partials.data() + scratch_.units[index + i].partial;
            for (uint32_t r = 0; r < n_rows; ++r)
                merge_row(into, from, outputs, n_rows, r);
        }
        finish(first, into);
    }

  private:
    uint32_t queries_per_unit(uint32_t s) const {
        const uint32_t n_new = args_.sequences[s].n_new;
        if (n_new * group_ <= kDecodeRows)
            return n_new;
        return group_ > kTileRows ? 1 : kTileRows / group_;
    }

    bool plan_splits(uint32_t s, uint32_t head, uint32_t first_query, uint32_t n_queries,
                     uint32_t n_base, uint64_t *partial) {
        const uint32_t n_rows =
            used_rows(args_.sequences[s]) + (args_.sequences[s].new_in_blocks ? 0 : 1);
        const auto wish = static_cast<uint32_t>(ceil_div(kWantedUnits, n_base));
        const auto most = static_cast<uint32_t>(ceil_div(n_rows, kRowsPerSplit));
        const uint32_t n_splits = wish < most ? wish : most;
        for (uint32_t i = 0; i < n_splits; ++i) {
            const auto first = static_cast<uint32_t>(static_cast<uint64_t>(n_rows) * i / n_splits);
            const auto end =
                static_cast<uint32_t>(static_cast<uint64_t>(n_rows) * (i + 1) / n_splits);
            if (!scratch_.units.push(
                    {s, head, first_query, n_queries, first, end, n_splits, i, *partial}))
                return false;
            if (n_splits > 1)
                *partial += partial_floats(n_queries * group_, args_.layer.head_dim);
        }
        return true;
    }

    void set_bounds(Unit *unit) const {
        unit->window_tokens = args_.layer.window_tokens;
        unit->window_sink_tokens = args_.layer.window_sink_tokens;
        unit->first_position = unit->last_position = unit->queries[0].position;
        for (uint32_t j = 1; j < unit->n_queries; ++j) {
            const uint64_t at = unit->queries[j].position;
            unit->first_position = at < unit->first_position ? at : unit->first_position;
            unit->last_position = at > unit->last_position ? at : unit->last_position;
        }
    }

    void load_queries(const UnitPlan &plan, float *q) const {
        const LayerView &layer = args_.layer;
        const double scale = layer.soft_cap > 0 ? static_cast<double>(layer.scale) /
                                                      static_cast<double>(layer.soft_cap)
                                                : static_cast<double>(layer.scale) * kLog2E;
        const auto factor = static_cast<float>(scale);
        for (uint32_t j = 0; j < plan.n_queries; ++j)
            for (uint32_t h = 0; h < group_; ++h) {
                const uint8_t *row =
                    tensor_row(args_.q, token_of(plan, j), plan.kv_head * group_ + h);
                for (uint32_t c = 0; c < layer.head_dim; ++c)
                    *q++ = load_element(row, args_.q.dtype, c) * factor;
            }
    }

    // q . c of each row, in the unit's q.
    static void dot_centers(const Unit &unit, const float *centers, float *starts) {
        for (uint32_t r = 0; r < unit.n_rows; ++r) {
            const float *q = unit.q + uint64_t{r} * unit.head_dim;
            double dot = 0;
            for (uint32_t c = 0; c < unit.head_dim; ++c)
                dot += static_cast<double>(q[c]) * static_cast<double>(centers[c]);
            starts[r] = static_cast<float>(dot);
        }
    }

    // The unit's q becomes what meets keys that were divided.
    static void scale_queries(const Unit &unit, const float *scales, float *q) {
        for (uint32_t r = 0; r < unit.n_rows; ++r)
            for (uint32_t c = 0; c < unit.head_dim; ++c)
                *q++ *= scales[c];
    }

    void walk_keys(const UnitPlan &plan, const BatchSequence &sequence, Unit *unit) const {
        ViewCache key_views;
        ViewCache value_views;
        const uint64_t window = args_.layer.window_tokens;
        Walk walk = {&args_,
                     &sequence,
                     plan.kv_head,
                     plan.first_row,
                     plan.end_row,
                     used_rows(sequence),
                     0,
                     0,
                     unit->last_position + 1,
                     args_.layer.window_sink_tokens,
                     &key_views,
                     &value_views};
        if (window && unit->first_position + 1 > window)
            walk.first_wanted = unit->first_position + 1 - window;
        unit->keys = {next_block, &walk};
        (unit->n_rows <= kDecodeRows ? kernels_.attend_decode : kernels_.attend_tile)(*unit);
    }

    uint64_t token_of(const UnitPlan &plan, uint32_t query) const {
        return static_cast<uint64_t>(args_.sequences[plan.sequence].first_new) + plan.first_query +
               query;
    }

    void merge_row(float *into, const float *from, uint64_t outputs, uint32_t n_rows,
                   uint32_t r) const {
        const uint32_t head_dim = args_.layer.head_dim;
        float *top = into + outputs + r;
        const float other = from[outputs + r];
        const float highest = other > *top ? other : *top;
        const float keep = std::exp2(*top - highest);
        const float take = std::exp2(other - highest);
        *top = highest;
        top[n_rows] = top[n_rows] * keep + from[outputs + n_rows + r] * take;
        for (uint64_t i = static_cast<uint64_t>(r) * head_dim; i < (r + 1ull) * head_dim; ++i)
            into[i] = into[i] * keep + from[i] * take;
    }

    // Sinks, normalization and the caller's dtype.
    void finish(const UnitPlan &plan, const float *result) const {
        const uint32_t n_rows = plan.n_queries * group_;
        const float *tops = result + static_cast<uint64_t>(n_rows) * args_.layer.head_dim;
        for (uint32_t r = 0; r < n_rows; ++r)
            finish_row(plan, r, result + static_cast<uint64_t>(r) * args_.layer.head_dim,
                       static_cast<double>(tops[r]), static_cast<double>(tops[n_rows + r]));
    }
    void finish_row(const UnitPlan &plan, uint32_t r, const float *output, double top,
                    double sum) const {
        const uint32_t head = plan.kv_head * group_ + r % group_;
        const uint64_t token = token_of(plan, r / group_);
        double factor = 1;  // a sink far above every logit makes the sum overflow otherwise
        if (args_.layer.sink_logits) {
            const double sink = static_cast<double>(args_.layer.sink_logits[head]) * kLog2E;
            const double highest = sink > top ? sink : top;
            factor = std::exp2(top - highest);
            sum = sum * factor + std::exp2(sink - highest);
            top = highest;
        }
        const auto scale = static_cast<float>(factor / sum);
        uint8_t *row = tensor_row(args_.out, token, head);
        for (uint32_t c = 0; c < args_.layer.head_dim; ++c)
            store_element(row, args_.out.dtype, c, output[c] * scale);
        if (args_.lse)
            args_.lse[static_cast<int64_t>(token) * args_.lse_token_stride +
                      static_cast<int64_t>(head) * args_.lse_head_stride] =
                static_cast<float>((top + std::log2(sum)) / kLog2E);
    }

    const Kernels &kernels_;
    const AttendCall &args_;
    AttendScratch &scratch_;
    const uint32_t group_;
};

}  // namespace

lk_status fast_attend(const Kernels &kernels, const AttendCall &args, ThreadPool *pool,
                      AttendScratch *scratch) {
    Call call(kernels, args, scratch);
    const uint64_t floats = thread_floats(args.layer.head_dim) * pool->size();
    if (!scratch->threads.reserve(floats) || !call.plan())
        return fail(LK_E_NOMEM, "no memory for the attention scratch of %u threads", pool->size());
    pool->parallel_for(call.n_units(),
                       [&](uint32_t unit, uint32_t thread) { call.run(unit, thread); });
    for (uint32_t i = 0; i < call.n_units(); ++i)
        call.merge(i);
    return LK_OK;
}

}  // namespace cpu
}  // namespace lk
