// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/page_view.h"

#include <cstring>
#include <type_traits>

namespace lk {
namespace cpu {

namespace {

static_assert(std::has_unique_object_representations_v<PageLayout>,
              "layouts are compared as bytes, so they have no padding");

// Shared channels of keys with ranges of tokens may be in groups other than their partners'.
PageKind page_kind(const PageLayout &layout) {
    if (layout.is_raw())
        return PageKind::kRaw;
    return layout.n_shared && layout.axis == Axis::kToken ? PageKind::kOther : PageKind::kPacked;
}

PageView make_view(const PageLayout &layout) {
    PageView view = {};
    view.kind = page_kind(layout);
    view.is_value = layout.side == Side::kValue;
    view.is_per_token = layout.axis == Axis::kToken;
    view.parameter_bytes = static_cast<uint8_t>(bytes_of_parameter(layout.metadata));
    view.head_dim = layout.head_dim;
    view.page_tokens = layout.page_tokens;
    view.n_strips = layout.head_dim / LK_STRIP_CHANNELS;
    view.group = layout.group;
    view.n_groups = n_groups(layout);
    view.minima_offset_bytes = static_cast<uint32_t>(minima_offset_bytes(layout));
    view.shared_first = strips_before(layout.strips, kPlane2) * LK_STRIP_CHANNELS;
    view.n_shared = layout.n_shared;
    view.payload_bytes = static_cast<uint32_t>(payload_bytes(layout));
    view.metadata_bytes = static_cast<uint32_t>(metadata_bytes(layout));
    for (uint32_t s = 0; s < view.n_strips; ++s) {
        const StripPosition at = find_strip(layout, s);
        view.strips[s] = {at.offset, at.high_offset, at.bits};
    }
    return view;
}

}  // namespace

const PageView *ViewCache::get(const PageLayout &layout) {
    Pair &pair = layout.is_raw() ? raw_ : packed_;
    for (uint32_t i = 0; i < 2; ++i)
        if (std::memcmp(&pair.views[i].layout, &layout, sizeof layout) == 0) {
            pair.last = i;
            return &pair.views[i].view;
        }
    pair.last ^= 1;
    pair.views[pair.last].layout = layout;
    pair.views[pair.last].view = make_view(layout);
    return &pair.views[pair.last].view;
}

}  // namespace cpu
}  // namespace lk
