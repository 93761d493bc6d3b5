// llama.cpp's memory on lowkey: the cells of llama_kv_cache say which tokens a sequence has, and a
// lowkey cache holds their keys and values.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_KV_H
#define LOWKEY_KV_H

#include <llama-kv-cache.h>

#include <map>
#include <memory>
#include <vector>

#include "lowkey-model.h"
#include "lowkey-store.h"

namespace lowkey {

class KvCache;

// The user data of one layer's node.
struct Node {
    KvCache *cache;
    uint32_t layer;  // of lowkey
    bool is_causal;  // a node whose attention is not fails, and with it the batch
};

// A llama_kv_cache whose filter leaves it without layers, so it allocates no tensors.
class KvCache final : public llama_kv_cache {
  public:
    KvCache(const llama_model &model, const llama_cparams &cparams, const Settings &settings);

    llama_memory_context_ptr init_batch(llama_batch_allocr &balloc, uint32_t n_ubatch,
                                        bool embd_all) override;
    llama_memory_context_ptr init_full() override;
    bool get_can_shift() const override { return false; }
    void clear(bool data) override;
    bool seq_rm(llama_seq_id sequence, llama_pos p0, llama_pos p1) override;
    void seq_cp(llama_seq_id from, llama_seq_id to, llama_pos p0, llama_pos p1) override;
    void seq_keep(llama_seq_id sequence) override;
    void seq_add(llama_seq_id sequence, llama_pos p0, llama_pos p1, llama_pos shift) override;
    void seq_div(llama_seq_id sequence, llama_pos p0, llama_pos p1, int divisor) override;
    std::map<ggml_backend_buffer_type_t, size_t> memory_breakdown() const override;
    void state_write(llama_io_write_i &io, llama_seq_id sequence,
                     llama_state_seq_flags flags) const override;
    void state_read(llama_io_read_i &io, llama_seq_id sequence,
                    llama_state_seq_flags flags) override;

    // Opens the step of a batch. False, with a sentence in the log, if that fails or if something
    // failed before.
    bool begin(const llama_ubatch &ubatch);
    // Closes it; false, with a sentence in the log, if it failed.
    bool end();

    // Notes what the graph states of a layer, and makes the cache after the last one.
    Node *describe(int il, bool is_causal, const ggml_tensor *sinks, float scale);
    Store &store() { return store_; }

  private:
    bool report();
    bool fits(const llama_ubatch &ubatch);
    bool remove_range(llama_seq_id sequence, llama_pos p0, llama_pos p1);

    const bool is_dry_;  // the model has no memory: only sizes are wanted
    const std::vector<uint32_t> index_;
    mutable Store store_;      // saving a state ends a step first
    std::vector<Node> nodes_;  // [layers][is_causal]
};

// The batches of one llama_decode().
class KvContext final : public llama_kv_cache_context {
  public:
    explicit KvContext(KvCache *cache) : llama_kv_cache_context(cache), cache_(cache) {}
    KvContext(KvCache *cache, slot_info_vec_t slots, std::vector<llama_ubatch> ubatches)
        : llama_kv_cache_context(cache, std::move(slots), std::move(ubatches)),
          cache_(cache),
          has_batch_(true) {}

    bool apply() override;
    KvCache *cache() const { return cache_; }

  private:
    KvCache *cache_;
    bool has_batch_ = false;
};

}  // namespace lowkey

#endif
