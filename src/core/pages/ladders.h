// Ladders: which rung a layer is at, and bringing its pages down to it.
//
// A layer's rung is what its next pages are packed at. Pages above it are shrunk a batch at a time,
// the oldest first, so for a while a layer has pages of several rungs. What is shared is shrunk
// once, for all that have it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_PAGES_LADDERS_H
#define LK_CORE_PAGES_LADDERS_H

#include "core/pages/formats.h"

namespace lk {

constexpr uint32_t kShrinkBatch = 512;  // pages that shrink when the budget is short

// Fill Formats::shrink_steps, whose `to` are there.
void fill_shrink_steps(Formats *formats);
// Width of a layer's rung.
uint32_t rung_bits(const lk_cache *cache, uint32_t layer);
// Let a layer's next pages, and in time all others, be of a lower rung of its ladder.
void set_rung(lk_cache *cache, uint32_t layer, uint32_t rung);
// Search a layer, or all of them, from the first block on.
void unsettle(lk_cache *cache, uint32_t layer);
void unsettle_layers(lk_cache *cache);
// Go on to bring pages of a layer down to its rung; *n_done is raised by how many went a step,
// n_pages or a block of heads more. LK_E_BUDGET, LK_E_DEVICE, LK_E_NOMEM.
lk_status settle_layer(lk_cache *cache, uint32_t layer, uint32_t n_pages, uint32_t *n_done);
// The same for the layers that are on the way to their rung; when there is none, the layer whose
// step costs least goes a rung down. 0 are done when the ladders have ended.
lk_status shrink_pages(lk_cache *cache, uint32_t n_pages, uint32_t *n_done);

}  // namespace lk

#endif
