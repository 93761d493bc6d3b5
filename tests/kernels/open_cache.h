// A backend's cache as tests of single calls open it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_KERNELS_OPEN_CACHE_H
#define LK_TESTS_KERNELS_OPEN_CACHE_H

#include "harness.h"

#include "base/status.h"  // before cmocka, which has a macro of the name fail()

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <utility>

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint32_t bits() {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<uint32_t>(state_ >> 32);
    }

  private:
    uint64_t state_;
};

// A backend's cache of layers of one kind.
class OpenCache {
  public:
    OpenCache(const Device &device, std::vector<lk::PageFormat> formats,
              const lk::EntryFormats &entries, const lk::LayerView &layer, uint32_t n_layers)
        : device_(device),
          formats_(std::move(formats)),
          entry_formats_(size_t{n_layers} * layer.n_kv_heads, entries),
          layers_(n_layers, layer) {
        for (uint32_t l = 0; l < n_layers; ++l)
            first_entries_.push_back(l * layer.n_kv_heads);
        layout_.formats = formats_.data();
        layout_.n_formats = static_cast<uint32_t>(formats_.size());
        layout_.layers = layers_.data();
        layout_.first_entries = first_entries_.data();
        layout_.n_layers = n_layers;
        layout_.n_entries = n_layers * layer.n_kv_heads;
        layout_.entry_formats = entry_formats_.data();
        layout_.page_tokens = formats_[0].layout.page_tokens;
        layout_.max_sequences = 8;
        layout_.max_step_tokens = 4096;
        layout_.max_blocks = layout_.max_step_blocks = 128;
        for (const lk::PageFormat &format : formats_)
            if (format.ranking == lk::Ranking::kQueryRange)
                layout_.n_ranked_channels = uint64_t{layout_.n_entries} * layer.head_dim;
        if (device.backend->cache_open(layout_, &cache_) != LK_OK ||
            cache_->set_queue(device.memory->queue()) != LK_OK)
            fail_msg("%s", lk::last_sentence());
    }
    ~OpenCache() {
        device_.backend->cache_close(cache_);
        device_.memory->clear();
    }
    OpenCache(const OpenCache &) = delete;
    OpenCache &operator=(const OpenCache &) = delete;

    lk::CacheDevice *operator->() { return cache_; }
    const lk::CacheLayout &layout() const { return layout_; }
    const lk::PageFormat &page_format(size_t i) const { return formats_[i]; }

  private:
    Device device_;
    std::vector<lk::PageFormat> formats_;
    std::vector<lk::EntryFormats> entry_formats_;
    std::vector<lk::LayerView> layers_;
    std::vector<uint32_t> first_entries_;
    lk::CacheLayout layout_{};
    lk::CacheDevice *cache_ = nullptr;
};

inline void expect_ok(lk_status status) {
    if (status)
        fail_msg("%s: %s", lk_status_name(status), lk::last_sentence());
}

struct PlacedPage {
    uint64_t payload = 0, metadata = 0;
};

inline PlacedPage place(const Device &device, const lk::PageLayout &layout) {
    const uint64_t metadata = lk::metadata_bytes(layout);
    return {device.memory->output(lk::payload_bytes(layout)),
            metadata ? device.memory->output(metadata) : 0};
}

#endif
