// What a cache should answer: sequences as plain lists of tokens, each with the numbers that
// attention reads. Written from the headers and docs/FORMAT.md; of the library it uses the codec,
// which says what a packed page holds, and the plan's resolution to shapes.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_STATEFUL_MODEL_H
#define LK_TESTS_STATEFUL_MODEL_H

#include <lowkey/lowkey.h>

#include <string>
#include <vector>

#include "plan/plan.h"

namespace stateful {

// One token of one (layer, KV head): FP16 as it came, and as attention reads it now.
struct Token {
    std::vector<uint16_t> key_bits;
    std::vector<uint16_t> value_bits;
    std::vector<float> key;  // without the center
    std::vector<float> value;
    std::vector<uint64_t> query_sum;  // of |Q|, in units of 2^-24
    // The originals that lk_chunks_retain() keeps; empty without it.
    std::vector<uint16_t> key_original;
    std::vector<uint16_t> value_original;
};

// One (layer, KV head) of a page, keys or values. Empty at 16 bits.
struct StoredPage {
    lk::PageLayout layout;
    std::vector<uint8_t> payload;
    std::vector<uint8_t> metadata;
    std::vector<uint32_t> channels;  // of the slots
};

// Pack as the codec does. permutation: null without an order; query_stats: where these rank them.
StoredPage packed_page(const lk::PageLayout &layout, const lk::RangeRule &ranges,
                       const std::vector<uint16_t> &input, const uint8_t *permutation);
StoredPage packed_key(const lk::KeyFormat &rule, const std::vector<uint16_t> &input,
                      const uint64_t *query_stats);

// A page of the tokens after the sinks. A packed page has left the recent tokens, also where a
// layer's rung keeps it at 16 bits.
struct Page {
    bool is_packed = false;
    lk_chunk_class chunk_class = LK_CHUNK_NONE;
    std::vector<StoredPage> keys;  // [entry]
    std::vector<StoredPage> values;
};

struct Sequence {
    uint64_t length = 0;
    std::vector<std::vector<Token>> heads;  // [entry][token]
    std::vector<Page> pages;
    // These are for plans with chunks.
    lk_defer deferral = LK_DEFER_OFF;
    bool is_assigned = false;
    bool is_retained = false;     // its next first assignment keeps originals
    std::vector<uint32_t> order;  // by place: the chunk that lies there
    uint32_t n_listed = 0;        // of chunks that have classes, pending ones too
    uint64_t pending_tokens = 0;  // of a context that is still to come; 0 = none is
    uint64_t laid_length = 0;     // that pages and order are of
};

// How a cache keeps a sequence's pages after the sinks, where the headers leave that to it.
struct KeptPage {
    bool is_packed;  // in full
    lk_chunk_class chunk_class;
    std::vector<bool> is_absent;         // [entry]
    std::vector<lk::PageLayout> shapes;  // [2 entry] keys, [2 entry + 1] values
};

// Has a query a number that attention does not take? Its rows are NaN.
bool is_spoiled(const float *query, uint32_t head_dim);

// New tokens of a sequence in a step.
struct Fresh {
    std::vector<std::vector<Token>> heads;  // [entry][token]
    std::vector<int32_t> parent;            // empty = a chain
    std::vector<uint32_t> reach;            // of a chain with spans: as BatchSequence has it
    bool reach_is_windowed = false;         // in layers with a window alone
    uint32_t n = 0;
};

class Model {
  public:
    // The plan is resolved; it and the layers outlive the model.
    Model(const lk::Plan &plan, const std::vector<lk_layer> &layers);

    uint32_t n_entries() const { return static_cast<uint32_t>(entries_.size()); }
    uint32_t first_entry(uint32_t layer) const { return first_entries_[layer]; }
    uint32_t head_dim(uint32_t entry) const { return layers_[entries_[entry].layer].head_dim; }
    bool ranks_by_queries() const;
    Sequence empty() const;

    // Round as an append does. value: not read of a latent layer.
    Token token(uint32_t entry, const float *key, const float *value) const;
    // Note the queries of a token: [group_size][head_dim] of the entry's KV head.
    void add_queries(uint32_t entry, const float *queries, Token *token) const;

    // A step begins with what the sequence has.
    void begin(Sequence *sequence) const;
    // These of its new tokens are kept, each the parent of the next.
    void commit(Sequence *sequence, const Fresh &fresh, const std::vector<uint32_t> &kept) const;
    void truncate(Sequence *sequence, uint64_t length) const;
    // What a layer packs from now on is at this rung of its ladder, and what it has packed goes
    // there.
    void set_rung(uint32_t layer, uint32_t bits);
    uint32_t rung(uint32_t layer) const { return rungs_[layer]; }
    void shrink(Sequence *sequence, uint32_t layer) const;
    // Put all layers at the rungs of a new cache.
    void reset_rungs();
    Sequence fork(const Sequence &from, uint64_t length) const;

    // Chunks of a plan that has them (model_chunks.cpp). Whole ones of a length.
    uint32_t n_chunks(uint64_t length) const;
    // The first page that leaves the recent window packed as the plan has it.
    uint64_t first_to_pack(const Sequence &sequence) const;
    bool is_due(uint64_t page, uint64_t length) const;
    // Keep originals of the pages that are at 16 bits; forget them.
    void retain(Sequence *sequence, uint32_t n_chunks) const;
    void forget(Sequence *sequence) const;
    // What the tokens are once their pages are kept so, in this order; empty, or what no plan says.
    std::string keep(Sequence *sequence, const std::vector<KeptPage> &pages,
                     const std::vector<uint32_t> &order) const;
    uint64_t page_end(uint64_t page) const;
    // The score of each chunk: the mean over layers without a window, and the heads of each, of the
    // softmax of new token t's logits over the chunks' tokens.
    std::vector<double> chunk_scores(const Sequence &sequence, const Fresh &fresh, uint32_t t,
                                     const std::vector<std::vector<float>> &queries,
                                     uint32_t n_chunks) const;

    // Attention of new token t with a query of the layer's query head, in double precision.
    // out [channels of values].
    void attend(const Sequence &sequence, const Fresh &fresh, uint32_t t, uint32_t layer,
                uint32_t query_head, const float *query, std::vector<double> *out) const;

  private:
    struct Entry {
        uint32_t layer;
        uint32_t head;
        lk::KeyFormat key;
        lk::ValueFormat value;
        const float *centers;  // null without
        const float *scales;   // likewise
        uint32_t rotation;     // channels of a block of keys, 0 without
    };
    void resolve(Entry *entry) const;
    void pack(Sequence *sequence, uint64_t page) const;
    void pack_keys(uint32_t entry, Sequence *sequence, uint64_t page) const;
    void pack_values(uint32_t entry, Sequence *sequence, uint64_t page) const;
    StoredPage make_page(uint32_t entry, lk_chunk_class chunk_class, bool is_value,
                         const std::vector<uint16_t> &input) const;
    bool has_shape(uint32_t entry, lk_chunk_class chunk_class, bool is_value,
                   const lk::PageLayout &layout) const;
    void cut_chunks(Sequence *sequence) const;
    struct Before;
    bool keep_page(uint32_t entry, bool is_value, const KeptPage &kept, const Before &before,
                   const std::vector<uint64_t> &own, Sequence *sequence, uint64_t page) const;
    std::vector<uint16_t> dequantize(uint32_t entry, bool is_value, const Before &before,
                                     const std::vector<uint64_t> &own, Sequence *sequence) const;
    double logit(const lk_layer &layer, uint32_t entry, const float *query,
                 const Token &token) const;
    // Positions of a page's tokens, as they lie.
    std::vector<uint64_t> positions(const std::vector<uint32_t> &order, uint64_t length,
                                    uint64_t page) const;
    // Tokens at these positions get what the half holds.
    void show(const StoredPage &stored, bool is_value, const std::vector<uint64_t> &positions,
              std::vector<Token> *tokens) const;

    const lk::Plan &plan_;
    const std::vector<lk_layer> &layers_;
    std::vector<uint32_t> first_entries_;
    std::vector<Entry> entries_;
    std::vector<uint32_t> rungs_;  // [layers]
};

}  // namespace stateful

#endif
