// Attention over latents: the pages of a workgroup's split, stage by stage.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_LATENT_PAGES_GLSL
#define LK_SHADERS_PREFILL_LATENT_PAGES_GLSL

#include "shaders/prefill/latent_keys.glsl"

// The includer's: what shared memory has of a page, which is there after a barrier, and a stage.
void place_page(Side keys);
void attend_stage(Mask mask, Side keys, Stage stage);

// Parts of a page, each with its share of the stages.
void attend_parts(Mask mask, EntryView page, uint begin_part, uint end_part) {
    const Side keys = find_side(mask, page, false);
    place_page(keys);
    barrier();
    // A page that is hidden as a whole may have no bytes any more.
    const uint n_stages =
        page.n_tokens > page.n_hidden ? (page.n_tokens + kStageTokens - 1u) / kStageTokens : 0u;
    const uint begin = max(page.n_hidden / kStageTokens, n_stages * begin_part / kPageParts);
    const uint end = n_stages * end_part / kPageParts;
    for (uint stage = begin; stage < end; ++stage) {
        const uint first = stage * kStageTokens;
        attend_stage(mask, keys,
                     Stage(page.first_token + first, first / LK_TILE_TOKENS,
                           min(kStageTokens, page.n_tokens - first)));
    }
}

void attend_pages(Mask mask) {
    for (uint page = mask.page_begin / kPageParts; page * kPageParts < mask.page_end; ++page) {
        const uint first = page * kPageParts;
        attend_parts(mask, view_page(mask, page), max(mask.page_begin, first) - first,
                     min(mask.page_end - first, kPageParts));
    }
}

#endif
