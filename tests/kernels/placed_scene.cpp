// Scenes in the memory of a backend.
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "harness.h"

using namespace lk;

PlacedScene::PlacedScene(const Scene &scene, const Device &device)
    : scene_(scene), device_(device) {
    place_blocks();
    if (!open_cache())
        fault_ = last_sentence();
    stage_tensors();
}

PlacedScene::~PlacedScene() {
    if (cache_) {
        for (std::vector<Block> &blocks : blocks_)
            for (Block &block : blocks)
                cache_->block_destroy(&block);
        device_.backend->cache_close(cache_);
    }
    device_.memory->clear();
}

// Does a cache free the block's pages? It does once no new token attends to them, in a layer whose
// sinks of the window are in sink blocks.
static bool is_hidden(const Case &c, const SceneSequence &sequence, const SceneBlock &block) {
    return c.window && c.window_sinks <= c.sink_tokens && block.first_token >= c.sink_tokens &&
           block.first_token + block.n_tokens + c.window <= sequence.n_history + 1;
}

void PlacedScene::place_blocks() {
    Memory *memory = device_.memory;
    const uint32_t n_entries = scene_.parameters().n_kv_heads + first_entry_;
    const auto place = [memory](const std::vector<uint8_t> &bytes) {
        return memory->input(bytes.data(), bytes.size());
    };
    for (const SceneSequence &sequence : scene_.sequences()) {
        blocks_.emplace_back();
        for (const SceneBlock &block : sequence.blocks) {
            entries_.emplace_back(n_entries);
            for (uint32_t head = 0; head < scene_.parameters().n_kv_heads; ++head) {
                const ScenePage &keys = block.pages[2 * head];
                const ScenePage &values = block.pages[2 * head + 1];
                PageEntry &entry = entries_.back()[first_entry_ + head];
                entry = {0, 0, 0, 0, keys.page_format, values.page_format, 1};
                if (!is_hidden(scene_.parameters(), sequence, block))
                    entry = {place(keys.payload),
                             place(keys.metadata),
                             place(values.payload),
                             place(values.metadata),
                             keys.page_format,
                             values.page_format,
                             0};
            }
            Block placed{};
            placed.first_token = block.first_token;
            placed.capacity_tokens = block.n_tokens;
            placed.n_entries = n_entries;
            blocks_.back().push_back(placed);
        }
    }
    size_t next = 0;
    for (std::vector<Block> &blocks : blocks_) {
        pointers_.emplace_back();
        for (Block &block : blocks) {
            block.entries = entries_[next++].data();
            pointers_.back().push_back(&block);
        }
    }
}

bool PlacedScene::has_half_raw() const {
    for (const std::vector<PageEntry> &entries : entries_)
        for (const PageEntry &entry : entries)
            if (scene_.formats()[entry.key_format].layout.is_raw() !=
                scene_.formats()[entry.value_format].layout.is_raw())
                return true;
    return false;
}

void PlacedScene::describe_cache() {
    const Case &c = scene_.parameters();
    layer_ = {scene_.n_query_heads(),
              c.n_kv_heads,
              c.head_dim,
              c.window,
              c.window ? c.window_sinks : 0,
              1.0f / std::sqrt(static_cast<float>(c.head_dim)),
              c.soft_cap,
              c.sinks ? scene_.sink_logits().data() : nullptr,
              c.centers ? scene_.key_centers().data() : nullptr,
              c.scales ? scene_.key_scales().data() : nullptr,
              nullptr,  // nothing is appended
              Scene::query_limit(c),
              c.output_dim(),
              c.latent != 0,
              c.key_rotation()};
    layout_.formats = scene_.formats().data();
    layout_.n_formats = static_cast<uint32_t>(scene_.formats().size());
    layout_.layers = &layer_;
    layout_.first_entries = &first_entry_;
    layout_.n_layers = 1;
    layout_.n_entries = c.n_kv_heads + first_entry_;
    entry_formats_.assign(layout_.n_entries, scene_.entry_formats());
    layout_.entry_formats = entry_formats_.data();
    layer_formats_ = {scene_.packed_formats().data(),
                      static_cast<uint32_t>(scene_.packed_formats().size()), 0, has_half_raw()};
    layout_.layer_formats = &layer_formats_;
    layout_.page_tokens = c.page_tokens;
    layout_.sink_tokens = c.sink_tokens;
    layout_.max_sequences = c.n_sequences;
    layout_.max_step_tokens = scene_.n_tokens();
    layout_.max_blocks = layout_.max_step_blocks = entries_.size();
}

bool PlacedScene::open_cache() {
    const Case &c = scene_.parameters();
    describe_cache();
    if (device_.backend->cache_open(layout_, &cache_) != LK_OK ||
        cache_->set_queue(device_.memory->queue()) != LK_OK)
        return false;
    for (std::vector<Block> &blocks : blocks_)
        for (Block &block : blocks)
            if (cache_->block_create(&block) != LK_OK || cache_->entries_changed(&block) != LK_OK)
                return false;
    for (size_t i = 0; i < scene_.sequences().size(); ++i) {
        const SceneSequence &sequence = scene_.sequences()[i];
        const auto n_blocks = static_cast<uint32_t>(pointers_[i].size());
        batch_.push_back({pointers_[i].data(), n_blocks, n_blocks, i + 1, sequence.n_history,
                          sequence.n_new, sequence.first_new, sequence.is_draft() ? 1 : 0,
                          sequence.parent.empty() ? nullptr : sequence.parent.data(),
                          sequence.reach.empty() ? nullptr : sequence.reach.data(),
                          c.windowed_spans != 0});
    }
    return cache_->begin({batch_.data(), layout_.max_sequences, scene_.n_tokens()}) == LK_OK;
}

void PlacedScene::stage_tensors() {
    const Case &c = scene_.parameters();
    Memory *memory = device_.memory;
    const size_t width = c.dtype == LK_F32 ? 4 : 2;
    const auto view = [&](uint64_t address, const Strides &strides) {
        return TensorView{reinterpret_cast<void *>(address + strides.offset * width), c.dtype,
                          static_cast<int64_t>(strides.token), static_cast<int64_t>(strides.head)};
    };
    out_strides_ = strides_of(c, scene_.n_tokens(), scene_.n_query_heads(), c.output_dim());
    lse_strides_ = strides_of(c, scene_.n_tokens(), scene_.n_query_heads(), 1);
    args_.layer = layer_;
    args_.first_entry = first_entry_;
    args_.q = view(memory->input(scene_.q().data(), scene_.q().size()),
                   strides_of(c, scene_.n_tokens(), scene_.n_query_heads(), c.head_dim));
    out_address_ = memory->output(out_strides_.end * width);
    args_.out = view(out_address_, out_strides_);
    if (c.has_lse) {
        lse_address_ = memory->output(lse_strides_.end * sizeof(float));
        args_.lse = reinterpret_cast<float *>(lse_address_) + lse_strides_.offset;
        args_.lse_token_stride = static_cast<int64_t>(lse_strides_.token);
        args_.lse_head_stride = static_cast<int64_t>(lse_strides_.head);
    }
    const auto staged = [memory](const std::vector<uint16_t> &values) {
        return reinterpret_cast<uint16_t *>(memory->input(values.data(), values.size() * 2));
    };
    args_.staging = {staged(scene_.staged_keys()), staged(scene_.staged_values()),
                     scene_.n_tokens()};
}

bool PlacedScene::attend(std::string *message) {
    if (fault_.empty() && cache_->attend(args_) == LK_OK)
        return true;
    *message = fault_.empty() ? last_sentence() : fault_;
    return false;
}

// False when an element between those of the tensor was written.
bool PlacedScene::read_tensor(uint64_t address, const Strides &strides, uint32_t n_channels,
                              lk_dtype dtype, std::vector<float> *out) {
    const size_t width = dtype == LK_F32 ? 4 : 2;
    std::vector<uint8_t> bytes(strides.end * width);
    device_.memory->read(address, bytes.data(), bytes.size());
    out->reserve(size_t{scene_.n_tokens()} * scene_.n_query_heads() * n_channels);
    size_t next = 0;  // the first position not yet read
    bool is_intact = true;
    const auto skip_to = [&](size_t end) {
        for (; next < end * width; ++next)
            is_intact = is_intact && bytes[next] == kPoison;
    };
    for (uint32_t t = 0; t < scene_.n_tokens(); ++t)
        for (uint32_t h = 0; h < scene_.n_query_heads(); ++h) {
            skip_to(strides.at(t, h));
            for (uint32_t c = 0; c < n_channels; ++c, next += width) {
                uint32_t bits = 0;
                std::memcpy(&bits, bytes.data() + next, width);
                out->push_back(dtype == LK_F16    ? half_to_float(static_cast<uint16_t>(bits))
                               : dtype == LK_BF16 ? bits_to_float(bits << 16)
                                                  : bits_to_float(bits));
            }
        }
    return is_intact;
}

bool PlacedScene::run(Outputs *outputs, std::string *message) {
    const Case &c = scene_.parameters();
    *outputs = {};
    device_.memory->poison();
    if (!attend(message))
        return false;
    const bool is_intact =
        device_.memory->intact() &&
        read_tensor(out_address_, out_strides_, c.output_dim(), c.dtype, &outputs->out) &&
        (!c.has_lse || read_tensor(lse_address_, lse_strides_, 1, LK_F32, &outputs->lse));
    if (!is_intact)
        *message = "something besides the outputs was written";
    return is_intact;
}

HostDevice::HostDevice(uint32_t cpu_mask, uint32_t n_threads) {
    lk_context_desc desc = {};
    desc.backend = LK_BACKEND_CPU;
    desc.cpu_mask = cpu_mask;
    desc.n_threads = n_threads;
    if (backend_open(desc, default_allocator(), &backend_) != LK_OK)
        backend_ = nullptr;
}
HostDevice::~HostDevice() { backend_close(default_allocator(), backend_); }

bool run_scene(const Scene &scene, const Device &device, Outputs *outputs, std::string *message) {
    PlacedScene placed(scene, device);
    return placed.run(outputs, message);
}
