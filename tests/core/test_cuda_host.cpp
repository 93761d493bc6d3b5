// The host side of the CUDA backend on a fake runtime: the same steps as on the CPU give the same
// bits, captured and replayed too, and what kernels find is reported once and for the right step.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <lowkey/lowkey.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/cache.h"
#include "cuda_states.h"
#include "fake_runtime.h"
#include "suite.h"

namespace {

constexpr uint32_t kLayers = 4;
constexpr uint32_t kSequences = 3;
constexpr uint32_t kMaxTokens = 300;
struct Heads {
    uint32_t n_query;
    uint32_t n_kv;
    uint32_t head_dim;
};
constexpr Heads kHeads[kLayers] = {{4, 2, 64}, {6, 2, 32}, {4, 1, 96}, {2, 1, kMissingHeadDim}};
constexpr float kSinkLogits[6] = {.1f, .2f, .3f, -.1f, .5f, .7f};

#define assert_ok(call) assert_int_equal(call, LK_OK)

const char *sentence() {
    static char text[320];
    lk_last_error(text, sizeof text, nullptr);
    return text;
}

// Memory that the device has, and here the CPU too.
class Buffer {
  public:
    explicit Buffer(size_t n) { cudaMalloc(reinterpret_cast<void **>(&data_), n * sizeof(float)); }
    ~Buffer() { cudaFree(data_); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    float *data() const { return data_; }

  private:
    float *data_ = nullptr;
};

struct LayerBuffers {
    explicit LayerBuffers(const Heads &heads)
        : k(kMaxTokens * heads.n_kv * heads.head_dim),
          v(kMaxTokens * heads.n_kv * heads.head_dim),
          q(kMaxTokens * heads.n_query * heads.head_dim),
          cpu_out(kMaxTokens * heads.n_query * heads.head_dim),
          device_out(kMaxTokens * heads.n_query * heads.head_dim) {}
    Buffer k;
    Buffer v;
    Buffer q;
    Buffer cpu_out;
    Buffer device_out;
};

// Four unlike layers: boosted keys; fixed classes and sink logits; FP8, a window with odd seeds; a
// head dim that decode has no kernel for. Seeds 2 and 3 of four have shorter pages, which decode
// takes without FP8 at head dim 64. One more seed has all layers at 16 bits.
constexpr uint32_t kExactSeed = 100;
struct Model {
    Model(uint32_t seed, bool ranks_by_queries);
    ~Model() { lk_plan_destroy(&plan); }

    lk_layer layers[kLayers];
    lk_geometry geometry;
    lk_plan *plan;
};

Model::Model(uint32_t seed, bool ranks_by_queries) {
    for (uint32_t l = 0; l < kLayers; ++l) {
        assert_ok(lk_layer_init(&layers[l], sizeof layers[l]));
        layers[l].n_query_heads = kHeads[l].n_query;
        layers[l].n_kv_heads = kHeads[l].n_kv;
        layers[l].head_dim = kHeads[l].head_dim;
    }
    layers[1].sink_logits = kSinkLogits;
    layers[2].window_tokens = seed % 2 ? 50 : 0;
    layers[2].window_sink_tokens = seed % 2 ? 4 : 0;
    assert_ok(lk_geometry_init(&geometry, sizeof geometry));
    geometry.n_layers = kLayers;
    geometry.layers = layers;
    assert_ok(lk_plan_preset(seed == kExactSeed ? "fp16" : "kivi2", &geometry, &plan));
    assert_ok(lk_plan_set_pages(plan, seed % 4 < 2 ? 128 : seed % 4 == 2 ? 64 : 32));
    assert_ok(lk_plan_set_recent(plan, seed % 2 ? 16 : 48, 32));
    if (seed == kExactSeed)
        return;
    lk_key_rule boosted;
    assert_ok(lk_key_rule_init(&boosted, sizeof boosted));
    boosted.bits = 2;
    boosted.boost_channels = 16;
    boosted.boost_bits = 4;
    boosted.boost_ranking = ranks_by_queries ? LK_RANKING_QUERY_RANGE : LK_RANKING_KEY;
    assert_ok(lk_plan_set_key(plan, 0, LK_ALL, &boosted));
    uint8_t bits[32];
    for (uint32_t c = 0; c < sizeof bits; ++c)
        bits[c] = c % 2 ? 4 : 2;
    lk_key_rule fixed;
    assert_ok(lk_key_rule_init(&fixed, sizeof fixed));
    fixed.bits = 2;
    fixed.channel_bits = bits;
    assert_ok(lk_plan_set_key(plan, 1, LK_ALL, &fixed));
    assert_ok(lk_plan_set_metadata(plan, 2, LK_METADATA_F8));
    const uint8_t rungs[] = {16, 8, 4, 2};
    assert_ok(lk_plan_set_ladder(plan, 0, rungs + 2, 2, 4));
    assert_ok(lk_plan_set_ladder(plan, 1, rungs, 4, 16));
}

using Ids = std::vector<lk_sequence>;
using Counts = std::vector<uint32_t>;

// Two caches of one plan: 0 is on the CPU, 1 on the fake device.
class Pair {
  public:
    explicit Pair(uint32_t seed) : Pair(seed, seed % 2 != 0) {}
    Pair(uint32_t seed, bool ranks_by_queries);
    ~Pair();

    uint32_t below(uint32_t n) {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<uint32_t>(state_ >> 33) % n;
    }
    void renew(uint32_t place);
    void truncate(uint32_t place);
    // A sequence gives way to a fork of another, or of its own.
    void fork(uint32_t from, uint32_t place);
    // Inputs of n tokens, once the device is done with the ones before.
    void fill(uint32_t n);
    // The key of the last of n tokens in a layer becomes infinite.
    void spoil(uint32_t n, uint32_t layer);
    lk_status begin(int side, const Ids &of, const Counts &counts, const int32_t *parent = nullptr);
    lk_status run_layers(int side);
    void compare(uint32_t n);
    void step(const Ids &of, const Counts &counts);
    // The same with spans, after which the next step has none.
    void step_with_spans(const Ids &of, const Counts &counts);
    // A step of the device's cache alone.
    lk_status run_step(uint32_t n, int spoiled_layer, bool commits);

    lk_cache *caches[2];
    lk_queue queue;
    Ids ids = Ids(kSequences);

  private:
    lk_tensor tensor(int side, const Buffer &buffer, uint32_t n_heads, uint32_t head_dim) const;

    uint64_t state_;
    lk_context *contexts_[2];
    std::vector<std::unique_ptr<LayerBuffers>> buffers_;
    std::vector<uint32_t> spans_;  // of the next begin of both sides
    uint32_t span_flags_ = 0;
};

Pair::Pair(uint32_t seed, bool ranks_by_queries) : state_(seed) {
    Model model(seed, ranks_by_queries);
    for (int side = 0; side < 2; ++side) {
        lk_context_desc desc;
        assert_ok(lk_context_desc_init(&desc, sizeof desc));
        desc.backend = side ? LK_BACKEND_CUDA : LK_BACKEND_CPU;
        desc.cpu_mask = side ? 0 : LK_CPU_REFERENCE_ONLY;
        assert_ok(lk_context_open(&desc, LK_ABI_VERSION, &contexts_[side]));
        lk_cache_desc cache;
        assert_ok(lk_cache_desc_init(&cache, sizeof cache));
        cache.max_sequences = kSequences + 1;
        cache.max_step_tokens = kMaxTokens;
        cache.budget_bytes = 64u << 20;
        cache.slab_bytes = 1u << 20;
        assert_ok(
            lk_cache_create(contexts_[side], &model.geometry, model.plan, &cache, &caches[side]));
        for (lk_sequence &id : ids)
            assert_ok(lk_sequence_add(caches[side], &id));
    }
    for (const Heads &heads : kHeads)
        buffers_.push_back(std::make_unique<LayerBuffers>(heads));
    assert_ok(lk_queue_init(&queue, sizeof queue));
    queue.kind = LK_QUEUE_CUDA_STREAM;
    const lk_cache &device = *caches[1];
    fake_use(device.formats.table.data(), static_cast<uint32_t>(device.formats.table.size()),
             static_cast<uint32_t>(device.formats.entries.size()));
}

Pair::~Pair() {
    for (int side = 0; side < 2; ++side) {
        lk_cache_destroy(&caches[side]);
        assert_ok(lk_context_close(&contexts_[side]));
    }
}

void Pair::renew(uint32_t place) {
    for (lk_cache *cache : caches)
        assert_ok(lk_sequence_remove(cache, ids[place]));
    for (lk_cache *cache : caches)
        assert_ok(lk_sequence_add(cache, &ids[place]));
}

void Pair::fork(uint32_t from, uint32_t place) {
    uint64_t length;
    assert_ok(lk_sequence_length(caches[0], ids[from], &length));
    const uint64_t n_tokens = below(2) ? length : below(static_cast<uint32_t>(length) + 1);
    lk_sequence child = 0;
    const lk_status status = lk_sequence_fork(caches[0], ids[from], n_tokens, &child);
    assert_int_equal(lk_sequence_fork(caches[1], ids[from], n_tokens, &child), status);
    assert_true(status == LK_OK || status == LK_E_UNSUPPORTED);  // a window has left the tokens
    if (status)
        return;
    for (lk_cache *cache : caches)
        assert_ok(lk_sequence_remove(cache, ids[place]));
    ids[place] = child;
}

void Pair::truncate(uint32_t place) {
    uint64_t length;
    assert_ok(lk_sequence_length(caches[0], ids[place], &length));
    const uint64_t most = length < kMaxTokens / 2 ? length : kMaxTokens / 2;
    const uint64_t kept = length - below(static_cast<uint32_t>(most) + 1);
    const lk_status status = lk_sequence_truncate(caches[0], ids[place], kept);
    assert_int_equal(lk_sequence_truncate(caches[1], ids[place], kept), status);
    assert_true(status == LK_OK || status == LK_E_UNSUPPORTED);
}

void Pair::fill(uint32_t n) {
    fake_finish();
    for (uint32_t l = 0; l < kLayers; ++l) {
        const LayerBuffers &to = *buffers_[l];
        const auto random = [&](const Buffer &buffer, uint32_t n_heads) {
            for (uint32_t i = 0; i < n * n_heads * kHeads[l].head_dim; ++i)
                buffer.data()[i] = (static_cast<float>(below(4001)) - 2000) / 700;
        };
        random(to.k, kHeads[l].n_kv);
        random(to.v, kHeads[l].n_kv);
        random(to.q, kHeads[l].n_query);
    }
}

void Pair::spoil(uint32_t n, uint32_t layer) {
    buffers_[layer]->k.data()[n * kHeads[layer].n_kv * kHeads[layer].head_dim - 3] = INFINITY;
}

lk_status Pair::begin(int side, const Ids &of, const Counts &counts, const int32_t *parent) {
    const auto n = static_cast<uint32_t>(of.size());
    const lk_queue *own = side ? &queue : nullptr;
    return spans_.empty()
               ? lk_step_begin(caches[side], own, n, of.data(), counts.data(), parent)
               : lk_step_begin_spans(caches[side], own, n, of.data(), counts.data(), spans_.data(),
                                     static_cast<uint32_t>(spans_.size() / 3), span_flags_);
}

lk_tensor Pair::tensor(int side, const Buffer &buffer, uint32_t n_heads, uint32_t head_dim) const {
    lk_tensor made;
    assert_ok(lk_tensor_init(&made, sizeof made));
    made.dtype = LK_F32;
    made.memory = side ? LK_MEMORY_CUDA : LK_MEMORY_HOST;
    made.data = buffer.data();
    made.token_stride = n_heads * head_dim;
    made.head_stride = head_dim;
    return made;
}

lk_status Pair::run_layers(int side) {
    for (uint32_t l = 0; l < kLayers; ++l) {
        const LayerBuffers &at = *buffers_[l];
        const Heads &heads = kHeads[l];
        const lk_tensor k = tensor(side, at.k, heads.n_kv, heads.head_dim);
        const lk_tensor v = tensor(side, at.v, heads.n_kv, heads.head_dim);
        const lk_tensor q = tensor(side, at.q, heads.n_query, heads.head_dim);
        const lk_tensor out =
            tensor(side, side ? at.device_out : at.cpu_out, heads.n_query, heads.head_dim);
        lk_status status = lk_append(caches[side], l, &k, &v);
        if (!status)
            status = lk_attend(caches[side], l, &q, &out, nullptr);
        if (status)
            return status;
    }
    return LK_OK;
}

void Pair::compare(uint32_t n) {
    fake_finish();
    for (uint32_t l = 0; l < kLayers; ++l)
        assert_memory_equal(buffers_[l]->device_out.data(), buffers_[l]->cpu_out.data(),
                            n * kHeads[l].n_query * kHeads[l].head_dim * sizeof(float));
}

void Pair::step(const Ids &of, const Counts &counts) {
    uint32_t n = 0;
    for (const uint32_t count : counts)
        n += count;
    fill(n);
    for (int side = 0; side < 2; ++side) {
        assert_ok(begin(side, of, counts));
        assert_ok(run_layers(side));
    }
    compare(n);
    for (lk_cache *cache : caches)
        assert_ok(lk_step_commit(cache, nullptr));
}

void Pair::step_with_spans(const Ids &of, const Counts &counts) {
    for (uint32_t s = 0; s < of.size(); ++s)
        for (uint32_t end = below(5); end < counts[s];) {
            const uint32_t first = end;
            end = std::min(first + 1 + below(40), counts[s]);
            spans_.insert(spans_.end(), {s, first, end});
            end += below(3);
        }
    span_flags_ = below(2) ? LK_SPANS_WINDOWED : 0;
    step(of, counts);
    spans_.clear();
}

lk_status Pair::run_step(uint32_t n, int spoiled_layer, bool commits) {
    lk_status status = begin(1, {ids[0]}, {n});
    if (status)
        return status;
    fill(n);
    if (spoiled_layer >= 0)
        spoil(n, static_cast<uint32_t>(spoiled_layer));
    status = run_layers(1);
    if (!status && commits)
        status = lk_step_commit(caches[1], nullptr);
    if (status || !commits)
        assert_ok(lk_step_discard(caches[1]));
    return status;
}

// Decode, drafts, trees, chunks and long prompts of ragged batches.
void random_step(Pair *pair) {
    const bool is_tree = pair->below(4) == 0;
    Ids of;
    Counts counts;
    std::vector<int32_t> parent;
    std::vector<uint32_t> n_kept;
    std::vector<uint32_t> kept;
    uint32_t n = 0;
    const uint32_t first = pair->below(kSequences);
    for (uint32_t s = 0; s <= first; ++s) {
        const uint32_t kind = pair->below(8);
        const uint32_t most = is_tree ? 64 : kind < 5 ? 3 : kind < 7 ? 40 : 35;
        counts.push_back(1 + pair->below(most) + (!is_tree && kind == 7 ? 64 : 0));
        of.push_back(pair->ids[(first + s) % kSequences]);
        for (uint32_t i = 0; i < counts.back(); ++i)
            parent.push_back(static_cast<int32_t>(pair->below(i + 1)) - 1);
        const size_t root = kept.size();
        for (int32_t i = static_cast<int32_t>(pair->below(counts.back() + 1)) - 1; i >= 0;
             i = parent[n + static_cast<uint32_t>(i)])
            kept.insert(kept.begin() + static_cast<ptrdiff_t>(root), static_cast<uint32_t>(i));
        n_kept.push_back(static_cast<uint32_t>(kept.size() - root));
        n += counts.back();
    }
    pair->fill(n);
    for (int side = 0; side < 2; ++side) {
        assert_ok(pair->begin(side, of, counts, is_tree ? parent.data() : nullptr));
        assert_ok(pair->run_layers(side));
    }
    pair->compare(n);
    const bool discards = pair->below(6) == 0;
    kept.push_back(0);  // where nothing is kept
    for (lk_cache *cache : pair->caches)
        assert_ok(discards  ? lk_step_discard(cache)
                  : is_tree ? lk_step_commit_tokens(cache, n_kept.data(), kept.data())
                            : lk_step_commit(cache, nullptr));
}

void test_same_as_cpu(void **) {
    const FakeCounts before = fake_counts();
    for (uint32_t seed = 0; seed < 4; ++seed) {
        Pair pair(seed);
        for (uint32_t i = 0; i < 60; ++i) {
            random_step(&pair);
            pair.queue.handle = reinterpret_cast<void *>(uintptr_t{pair.below(2)});
            if (pair.below(6) == 0)
                pair.truncate(pair.below(kSequences));
            if (pair.below(20) == 0)
                pair.renew(pair.below(kSequences));
            if (pair.below(8) == 0)
                pair.fork(pair.below(kSequences), pair.below(kSequences));
            const uint32_t bits = i == 20 ? 8 : i == 30 ? 4 : i == 45 ? 2 : 0;
            for (lk_cache *cache : pair.caches)
                if (bits)
                    assert_ok(lk_cache_shrink(cache, LK_ALL, bits));
        }
    }
    const FakeCounts after = fake_counts();
    assert_true(after.n_decodes > before.n_decodes && after.n_tiles > before.n_tiles);
    assert_true(after.n_packs > before.n_packs && after.n_dequantized > before.n_dequantized);
    assert_true(after.n_appended_pages > before.n_appended_pages);
    assert_true(after.n_moves > before.n_moves && after.n_shrinks > before.n_shrinks);
    assert_true(after.n_query_stats > before.n_query_stats &&
                after.n_sums_added > before.n_sums_added);
}

// Kernels find the queries that score chunks, the context's blocks and the memory of the scores.
void test_attention_scores(void **) {
    Pair pair(9);
    const FakeCounts before = fake_counts();
    pair.step({pair.ids[0]}, {90});
    pair.step({pair.ids[1]}, {30});
    lk_chunk_attention request;
    assert_ok(lk_chunk_attention_init(&request, sizeof request));
    request.n_query_tokens = 4;
    request.chunk_tokens = 24;
    request.n_chunks = 3;
    for (lk_cache *cache : pair.caches)
        assert_ok(lk_chunks_score_attention(cache, pair.ids[0], &request));
    pair.step({pair.ids[1], pair.ids[0]}, {3, 6});
    assert_true(fake_counts().n_chunk_attentions > before.n_chunk_attentions);
    float scores[2][3];
    for (int side = 0; side < 2; ++side)
        assert_ok(lk_chunks_attention_scores(pair.caches[side], pair.ids[0], 3, scores[side]));
    assert_memory_equal(scores[0], scores[1], sizeof scores[0]);
    const float sum = scores[0][0] + scores[0][1] + scores[0][2];
    assert_true(sum > 0.999f && sum < 1.001f);
}

// Decode takes few columns of head dims and pages that it has kernels for; tiles take the rest.
void test_who_attends(void **) {
    struct {
        uint32_t seed;
        uint32_t n_new;
        uint32_t n_decodes;  // of the layers, whose groups are of 2, 3, 4 and 2 heads
    } const cases[] = {{0, 1, 3},  {0, 16, 3}, {0, 17, 2}, {0, 22, 1}, {0, 33, 0},
                       {0, 65, 0}, {2, 1, 1},  {2, 22, 1}, {3, 1, 1}};
    for (const auto &at : cases) {
        Pair pair(at.seed);
        pair.step({pair.ids[1]}, {250});
        const FakeCounts before = fake_counts();
        pair.step({pair.ids[0], pair.ids[1]}, {1, at.n_new});
        const FakeCounts after = fake_counts();
        assert_int_equal(after.n_decodes, before.n_decodes + at.n_decodes);
        assert_int_equal(after.n_tiles, before.n_tiles + kLayers - at.n_decodes);
        assert_int_equal(after.n_long_steps, before.n_long_steps);
    }
}

// Steps of more new tokens than drafts have, of layers at 16 bits and head dims with kernels.
void test_long_steps(void **) {
    Pair pair(kExactSeed);
    const FakeCounts before = fake_counts();
    pair.step({pair.ids[0]}, {LK_DRAFT_TOKENS});
    assert_int_equal(fake_counts().n_long_steps, before.n_long_steps);
    const FakeCounts middle = fake_counts();
    pair.step({pair.ids[0], pair.ids[1]}, {LK_DRAFT_TOKENS + 1, 3});
    assert_int_equal(fake_counts().n_long_steps, before.n_long_steps + kLayers - 1);
    assert_int_equal(fake_counts().n_tiles, middle.n_tiles + 1);
}

// Steps with spans run on the kernels of long steps, short ones too, and no graph holds them.
void test_spans(void **) {
    for (uint32_t seed = 0; seed < 4; ++seed) {
        Pair pair(seed);
        for (uint32_t i = 0; i < 20; ++i) {
            const Ids of = {pair.ids[pair.below(2)], pair.ids[2]};
            const Counts counts = {1 + pair.below(pair.below(3) ? 40 : 120), 1 + pair.below(5)};
            if (pair.below(3))
                pair.step_with_spans(of, counts);
            else
                pair.step(of, counts);
            if (pair.below(4) == 0)
                pair.truncate(2);
        }
        const uint32_t n = 4;
        const uint32_t spans[] = {0, 1, 3};
        pair.fill(n);
        assert_ok(
            lk_step_begin_spans(pair.caches[1], &pair.queue, 1, &pair.ids[0], &n, spans, 1, 0));
        fake_capture(true);
        assert_int_equal(pair.run_layers(1), LK_E_UNSUPPORTED);
        fake_capture(false);
        assert_non_null(std::strstr(sentence(), "has spans, which no graph holds"));
        assert_int_equal(lk_step_replay(pair.caches[1]), LK_E_UNSUPPORTED);
        assert_ok(lk_step_discard(pair.caches[1]));
    }
}

// Between replays a sequence of the batch is another one, one grows, is cut and starts anew, and
// steps are dropped.
void check_replays(uint32_t seed) {
    Pair pair(seed);
    for (uint32_t i = 0; i < 120; ++i) {
        const Ids of = {pair.ids[0], pair.ids[1 + pair.below(2)]};
        pair.fill(4);
        for (int side = 0; side < 2; ++side)
            assert_ok(pair.begin(side, of, {1, 3}));
        assert_ok(pair.run_layers(0));
        if (i) {
            assert_ok(lk_step_replay(pair.caches[1]));
        } else {
            fake_capture(true);
            assert_ok(pair.run_layers(1));
            fake_capture(false);
        }
        fake_replay();
        const bool discards = pair.below(7) == 0;
        for (lk_cache *cache : pair.caches)
            assert_ok(discards ? lk_step_discard(cache) : lk_step_commit(cache, nullptr));
        pair.compare(4);
        if (pair.below(5) == 0)
            pair.step({pair.ids[2]}, {1 + pair.below(100)});
        if (pair.below(12) == 0)
            pair.truncate(1);
        if (pair.below(12) == 0)
            pair.renew(1 + pair.below(2));
    }
    assert_ok(pair.begin(1, {pair.ids[0]}, {2}));
    fake_replay();
    fake_finish();
    assert_int_equal(lk_cache_poll(pair.caches[1]), LK_E_DATA);
    assert_ok(lk_step_discard(pair.caches[1]));
    assert_ok(pair.run_step(2, -1, true));
}

void test_replay(void **) {
    for (uint32_t seed = 0; seed < 4; ++seed)
        check_replays(seed);
}

// Sums of |Q| are one more copy, of the list that says what the step before adds to.
void test_steady_step(void **) {
    for (const uint32_t ranks : {0u, 1u}) {
        Pair pair(0, ranks != 0);
        assert_ok(pair.run_step(100, -1, true));
        assert_ok(pair.run_step(1, -1, true));
        const FakeCounts before = fake_counts();
        for (uint32_t i = 0; i < 8; ++i)
            assert_ok(pair.run_step(1, -1, true));
        const FakeCounts after = fake_counts();
        assert_int_equal(after.n_allocations, before.n_allocations);
        assert_int_equal(after.n_copies, before.n_copies + 8 * (1 + ranks));
        assert_true(after.copied_bytes < before.copied_bytes + 8 * 512);
        assert_int_equal(after.n_query_stats, before.n_query_stats + 8 * ranks);
        assert_int_equal(after.n_sums_added, before.n_sums_added + 8 * ranks);
    }
}

// A fault is reported once, by the step that has it or by the begin of a later one, and not at all
// when its step was discarded.
void test_faults(void **) {
    Pair pair(0);
    for (uint32_t i = 0; i < 60; ++i) {
        const int layer = i % 2 ? static_cast<int>(pair.below(kLayers)) : -1;
        uint32_t n_told = pair.run_step(1 + pair.below(3), layer, true) != LK_OK;
        fake_finish();
        n_told += pair.run_step(1, -1, true) != LK_OK;
        assert_int_equal(n_told, i % 2);
        fake_finish();
        assert_ok(lk_cache_poll(pair.caches[1]));
    }
    for (uint32_t i = 0; i < 20; ++i) {
        (void)pair.run_step(2, 1, false);
        fake_finish();
        assert_ok(lk_cache_poll(pair.caches[1]));
        assert_ok(pair.run_step(1, -1, true));
    }
}

void test_fault_names_its_token(void **) {
    Pair pair(0);
    for (int side = 0; side < 2; ++side)
        assert_ok(pair.begin(side, {pair.ids[1], pair.ids[2]}, {3, 4}));
    pair.fill(7);
    pair.spoil(6, 0);
    assert_int_equal(pair.run_layers(0), LK_E_DATA);
    char said[320];
    std::strcpy(said, sentence());
    (void)pair.run_layers(1);
    fake_finish();
    assert_int_equal(lk_cache_poll(pair.caches[1]), LK_E_DATA);
    assert_string_equal(sentence(), said);
    for (lk_cache *cache : pair.caches)
        assert_ok(lk_step_discard(cache));
}

void test_refusals(void **) {
    Pair pair(0);
    const uint32_t n = 1;
    lk_cache *cache = pair.caches[1];
    assert_int_equal(lk_step_begin(cache, nullptr, 1, pair.ids.data(), &n, nullptr), LK_E_ARGUMENT);
    pair.queue.kind = LK_QUEUE_VULKAN_SUBMIT;
    assert_int_equal(pair.begin(1, {pair.ids[0]}, {1}), LK_E_UNSUPPORTED);
    pair.queue.kind = LK_QUEUE_CUDA_STREAM;
    pair.queue.handle = reinterpret_cast<void *>(kForeignStream);
    assert_int_equal(pair.begin(1, {pair.ids[0]}, {1}), LK_E_ARGUMENT);
    pair.queue.handle = nullptr;
    fake_capture(true);
    assert_int_equal(pair.begin(1, {pair.ids[0]}, {1}), LK_E_STATE);
    fake_capture(false);
    const lk::Backend &backend = *cache->context->backend;
    const Buffer buffer(64);
    float host[4] = {};
    lk_tensor tensor{};
    void *data = nullptr;
    tensor.data = buffer.data();
    assert_ok(backend.resolve_tensor(tensor, 256, "k", &data));
    assert_ptr_equal(data, tensor.data);
    assert_int_equal(backend.resolve_tensor(tensor, 257, "k", &data), LK_E_ARGUMENT);
    tensor.data = host;
    assert_int_equal(backend.resolve_tensor(tensor, sizeof host, "k", &data), LK_E_ARGUMENT);
    assert_string_equal(sentence(), "k.data is host memory and the tensor says CUDA memory");
    lk_capability capability;
    assert_ok(lk_capability_init(&capability, sizeof capability));
    capability.head_dim = kMissingHeadDim;  // tiles have every head dim
    capability.group_size = 1;
    capability.key_bits = capability.value_bits = 2;
    capability.page_tokens = 128;
    capability.memory = LK_MEMORY_CUDA;
    capability.dtype = LK_F16;
    assert_ok(lk_context_supports(cache->context, &capability));
    capability.queue = LK_QUEUE_VULKAN_SUBMIT;
    assert_int_equal(lk_context_supports(cache->context, &capability), LK_E_UNSUPPORTED);
    capability.queue = LK_QUEUE_CUDA_STREAM;
    assert_ok(lk_context_supports(cache->context, &capability));
    capability.memory = LK_MEMORY_HOST;
    assert_int_equal(lk_context_supports(cache->context, &capability), LK_E_UNSUPPORTED);
    pair.step({pair.ids[0]}, {70});
}

// Without a driver, and with one that has no device: the CPU stays, and CUDA says why it cannot be.
void test_no_driver(void **) {
    lk_context_desc desc;
    assert_ok(lk_context_desc_init(&desc, sizeof desc));
    desc.backend = LK_BACKEND_CUDA;
    lk_device_info info;
    assert_ok(lk_device_info_init(&info, sizeof info));
    uint32_t n_devices = 0;
    assert_ok(lk_device_count(&n_devices));
    assert_ok(lk_device_get(1, &info));
    assert_int_equal(info.backend, LK_BACKEND_CUDA);
    for (const cudaError_t error : {cudaErrorInsufficientDriver, cudaErrorNoDevice}) {
        fake_count_error(error);
        uint32_t n_others = 0;
        assert_ok(lk_device_count(&n_others));
        assert_int_equal(n_others, n_devices - 1);
        lk_context *context = nullptr;
        assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &context), LK_E_UNSUPPORTED);
        assert_null(context);
        const std::string expected =
            std::string("no CUDA device can be used here: ") + cudaGetErrorString(error);
        assert_string_equal(sentence(), expected.c_str());
        desc.backend = LK_BACKEND_CPU;
        assert_ok(lk_context_open(&desc, LK_ABI_VERSION, &context));
        assert_ok(lk_context_close(&context));
        desc.backend = LK_BACKEND_CUDA;
    }
    fake_count_error(cudaSuccess);
    assert_ok(lk_device_get(1, &info));
    assert_int_equal(info.backend, LK_BACKEND_CUDA);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_cpu),  cmocka_unit_test(test_attention_scores),
        cmocka_unit_test(test_who_attends),  cmocka_unit_test(test_long_steps),
        cmocka_unit_test(test_replay),       cmocka_unit_test(test_steady_step),
        cmocka_unit_test(test_faults),       cmocka_unit_test(test_fault_names_its_token),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_no_driver),
        cmocka_unit_test(test_spans),        cmocka_unit_test(test_states),
        cmocka_unit_test(test_state_copies),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
