// SPDX-License-Identifier: Apache-2.0
#include "lowkey-cells.h"

#include <llama-arch.h>
#include <llama-batch.h>
#include <llama-cparams.h>
#include <llama-kv-cache-iswa.h>
#include <llama-memory-hybrid.h>
#include <llama-model.h>

#include <utility>

#include "lowkey-kv.h"

namespace lowkey {
namespace {

bool no_layer(int32_t) { return false; }

// A context of llama.cpp's class Base, whose batches open steps of lowkey.
template <typename Base>
class ContextOf final : public Base, public KvContext {
  public:
    template <typename... Arguments>
    ContextOf(KvCache *owner, bool has_batch, Arguments &&...arguments)
        : Base(std::forward<Arguments>(arguments)...), KvContext(owner), has_batch_(has_batch) {}

    bool apply() override {
        return (!has_batch_ || cache()->begin(this->get_ubatch())) && Base::apply();
    }

  private:
    const bool has_batch_;
};

class PlainCells final : public Cells {
  public:
    PlainCells(const llama_model &model, uint32_t n_cells, uint32_t n_sequences)
        : cache_(model, model.hparams, GGML_TYPE_F16, GGML_TYPE_F16, /*v_trans=*/false,
                 /*offload=*/false, /*unified=*/true, n_cells, n_sequences, /*n_pad=*/1,
                 /*n_swa=*/0, LLAMA_SWA_TYPE_NONE, /*mem_other=*/nullptr, no_layer, nullptr,
                 nullptr) {}

    llama_memory_i &memory() override { return cache_; }
    llama_memory_context_ptr full(KvCache *owner) override {
        return std::make_unique<ContextOf<llama_kv_cache_context>>(owner, false, &cache_);
    }
    llama_memory_context_ptr batch(KvCache *owner, std::vector<llama_ubatch> ubatches) override {
        auto slots = cache_.prepare(ubatches);
        if (slots.empty())
            return nullptr;
        return std::make_unique<ContextOf<llama_kv_cache_context>>(
            owner, true, &cache_, std::move(slots), std::move(ubatches));
    }

  private:
    std::vector<llama_kv_cache *> all() override { return {&cache_}; }

    llama_kv_cache cache_;
};

// llama.cpp keeps two caches here and drops the cells that windows have left from the second. Here
// both hold all cells: lowkey decides which tokens are there.
llama_hparams without_windows(llama_hparams hparams, uint32_t n_cells, uint32_t n_sequences) {
    hparams.swa_type = LLAMA_SWA_TYPE_NONE;
    hparams.n_swa = n_cells / n_sequences + 1;  // for each sequence so many cells are allocated
    return hparams;
}

class WindowedCells final : public Cells {
  public:
    WindowedCells(const llama_model &model, uint32_t n_cells, uint32_t n_sequences)
        : hparams_(without_windows(model.hparams, n_cells, n_sequences)),
          cache_(model, hparams_, GGML_TYPE_F16, GGML_TYPE_F16, /*v_trans=*/false,
                 /*offload=*/false, /*swa_full=*/false, /*unified=*/true, n_cells, n_sequences,
                 /*n_ubatch=*/0, /*n_pad=*/1, /*mem_other=*/nullptr, no_layer, nullptr, nullptr) {}

    llama_memory_i &memory() override { return cache_; }
    llama_memory_context_ptr full(KvCache *owner) override {
        return std::make_unique<ContextOf<llama_kv_cache_iswa_context>>(owner, false, &cache_);
    }
    llama_memory_context_ptr batch(KvCache *owner, std::vector<llama_ubatch> ubatches) override {
        auto slots = cache_.get_base()->prepare(ubatches);
        auto windowed_slots = cache_.get_swa()->prepare(ubatches);
        if (slots.empty() || windowed_slots.empty())
            return nullptr;
        return std::make_unique<ContextOf<llama_kv_cache_iswa_context>>(
            owner, true, &cache_, std::move(slots), std::move(windowed_slots), std::move(ubatches));
    }

  private:
    std::vector<llama_kv_cache *> all() override { return {cache_.get_base(), cache_.get_swa()}; }

    const llama_hparams hparams_;  // the caches keep a reference
    llama_kv_cache_iswa cache_;
};

// Cells of the attention layers, and llama.cpp's own states of the recurrent ones.
class HybridCells final : public Cells {
  public:
    HybridCells(const llama_model &model, const llama_cparams &cparams)
        : cache_(model, GGML_TYPE_F16, GGML_TYPE_F16, /*v_trans=*/false, cparams.n_ctx, /*n_pad=*/1,
                 /*n_swa=*/0, LLAMA_SWA_TYPE_NONE, GGML_TYPE_F32, GGML_TYPE_F32,
                 /*rs_size=*/cparams.n_seq_max, cparams.n_seq_max, cparams.n_rs_seq,
                 cparams.offload_kqv, /*unified=*/true, no_layer, nullptr) {}

    llama_memory_i &memory() override { return cache_; }
    llama_memory_recurrent *recurrent() override { return cache_.get_mem_recr(); }
    llama_memory_context_ptr full(KvCache *owner) override {
        return std::make_unique<ContextOf<llama_memory_hybrid_context>>(owner, false, &cache_);
    }
    llama_memory_context_ptr batch(KvCache *owner, std::vector<llama_ubatch> ubatches) override {
        if (!recurrent()->prepare(ubatches))
            return nullptr;
        auto slots = cache_.get_mem_attn()->prepare(ubatches);
        if (slots.empty())
            return nullptr;
        return std::make_unique<ContextOf<llama_memory_hybrid_context>>(
            owner, true, &cache_, std::move(slots), std::move(ubatches));
    }

  private:
    std::vector<llama_kv_cache *> all() override { return {cache_.get_mem_attn()}; }

    llama_memory_hybrid cache_;
};

}  // namespace

llama_memory_context_ptr Cells::failed() const {
    return std::make_unique<llama_kv_cache_context>(LLAMA_MEMORY_STATUS_FAILED_PREPARE);
}

bool Cells::place(const llama_ubatch &ubatch) {
    std::vector<llama_kv_cache::slot_info> slots;
    for (const llama_kv_cache *cache : all()) {
        slots.push_back(cache->find_slot(ubatch, false));
        if (slots.back().empty())
            return false;
    }
    size_t i = 0;
    for (llama_kv_cache *cache : all())
        cache->apply_ubatch(slots[i++], ubatch);
    return true;
}

std::unique_ptr<Cells> make_cells(const llama_model &model, const llama_cparams &cparams) {
    if (llm_arch_is_hybrid(model.arch))
        return std::make_unique<HybridCells>(model, cparams);
    if (model.hparams.swa_type == LLAMA_SWA_TYPE_NONE)
        return std::make_unique<PlainCells>(model, cparams.n_ctx, cparams.n_seq_max);
    return std::make_unique<WindowedCells>(model, cparams.n_ctx, cparams.n_seq_max);
}

}  // namespace lowkey
