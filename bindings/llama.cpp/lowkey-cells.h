// The cells of llama.cpp, which say where each token of a sequence stands, without tensors of keys
// and values.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_CELLS_H
#define LOWKEY_CELLS_H

#include <llama-kv-cache.h>

#include <memory>
#include <vector>

struct llama_cparams;
struct llama_model;
class llama_memory_recurrent;

namespace lowkey {

class KvCache;

// What the hooks know a batch, or a reservation, of lowkey by.
class KvContext {
  public:
    explicit KvContext(KvCache *cache) : cache_(cache) {}
    virtual ~KvContext() = default;
    KvCache *cache() const { return cache_; }

  private:
    KvCache *cache_;
};

// The graphs of models with sliding windows, and of those with recurrent layers, read other classes
// of llama.cpp's contexts than those of other models, hence three implementations.
class Cells {
  public:
    virtual ~Cells() = default;

    virtual llama_memory_i &memory() = 0;
    // The states of a hybrid model's recurrent layers, which are part of memory(); nullptr = none.
    virtual llama_memory_recurrent *recurrent() { return nullptr; }
    const llama_kv_cells &read() { return all().front()->get_cells(0); }
    llama_memory_context_ptr failed() const;
    virtual llama_memory_context_ptr full(KvCache *owner) = 0;
    // The context of these micro-batches; nullptr if the cells are full.
    virtual llama_memory_context_ptr batch(KvCache *owner, std::vector<llama_ubatch> ubatches) = 0;
    // Occupies cells. False if too few are free.
    bool place(const llama_ubatch &ubatch);

  protected:
    // Caches with the same cells, at least one.
    virtual std::vector<llama_kv_cache *> all() = 0;
};

std::unique_ptr<Cells> make_cells(const llama_model &model, const llama_cparams &cparams);

}  // namespace lowkey

#endif
