// llama.cpp's memory on lowkey: the cells of llama_kv_cache say which tokens a sequence has, and a
// lowkey cache holds their keys and values.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_KV_H
#define LOWKEY_KV_H

#include <llama-memory.h>

#include <map>
#include <memory>
#include <vector>

#include "lowkey-cells.h"
#include "lowkey-device.h"
#include "lowkey-graph.h"
#include "lowkey-model.h"
#include "lowkey-store.h"

struct lowkey_vulkan_bytes;

namespace lowkey {

class KvCache final : public llama_memory_i {
  public:
    KvCache(const llama_model &model, const llama_memory_params &params,
            const llama_cparams &cparams, const Settings &settings);

    llama_memory_context_ptr init_batch(llama_batch_allocr &balloc, uint32_t n_ubatch,
                                        bool embd_all) override;
    llama_memory_context_ptr init_full() override;
    llama_memory_context_ptr init_update(llama_context *context, bool optimize) override;
    bool get_can_shift() const override { return false; }
    void clear(bool data) override;
    bool seq_rm(llama_seq_id sequence, llama_pos p0, llama_pos p1) override;
    void seq_cp(llama_seq_id from, llama_seq_id to, llama_pos p0, llama_pos p1) override;
    void seq_keep(llama_seq_id sequence) override;
    void seq_add(llama_seq_id sequence, llama_pos p0, llama_pos p1, llama_pos shift) override;
    void seq_div(llama_seq_id sequence, llama_pos p0, llama_pos p1, int divisor) override;
    // llama.cpp's programs cut a sequence back to n tokens where n minus the window is above this
    // position; so can lowkey.
    llama_pos seq_pos_min(llama_seq_id sequence) const override;
    llama_pos seq_pos_max(llama_seq_id sequence) const override;
    std::map<ggml_backend_buffer_type_t, size_t> memory_breakdown() const override;
    void state_write(llama_io_write_i &io, llama_seq_id sequence,
                     llama_state_seq_flags flags) const override;
    void state_read(llama_io_read_i &io, llama_seq_id sequence,
                    llama_state_seq_flags flags) override;

    // Opens the step of a batch. False, with a sentence in the log, if that fails or if something
    // failed before.
    bool begin(const llama_ubatch &ubatch);
    // After its graph; false, with a sentence in the log, if the step failed.
    bool finish();

    // Notes what the graph states of a layer, and makes the cache after the last one.
    Node *describe(int il, bool is_causal, const ggml_tensor *sinks, float scale);
    Store &store() { return store_; }
    // Vulkan: makes the buffers of a node's tensors known to the store. n_destroyed: those that
    // ggml has destroyed so far.
    void use_buffers(const lowkey_vulkan_bytes *tensors, uint64_t n_destroyed);
    const Device &device() const { return device_; }

  private:
    bool report();
    bool fits(const llama_ubatch &ubatch);
    bool remove_range(llama_seq_id sequence, llama_pos p0, llama_pos p1);
    void check_recurrent(const Run &run) const;
    void check_copy(llama_seq_id from, llama_seq_id to, uint64_t n_tokens) const;
    void write_store(llama_io_write_i &io, llama_seq_id sequence) const;
    void read_store(llama_io_read_i &io, llama_seq_id sequence);

    const bool is_dry_;           // the model has no memory: only sizes are wanted
    const uint32_t n_cells_;      // tokens of the context
    const llama_pos n_windowed_;  // the model's window; 0 = none
    const std::vector<uint32_t> index_;
    const Device device_;
    mutable Store store_;  // saving a state ends a step first
    const std::unique_ptr<Cells> cells_;
    llama_memory_recurrent *const recurrent_;  // of cells_; nullptr = no layer is recurrent
    std::vector<Node> nodes_;                  // [layers][is_causal]
    uint64_t n_destroyed_ = 0;
};

}  // namespace lowkey

#endif
