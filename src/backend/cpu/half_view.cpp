// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/half_view.h"

#include <cstring>

namespace lk {
namespace cpu {

namespace {

static_assert(sizeof(HalfShape) == 24, "shapes are compared as bytes, so they have no padding");

HalfKind half_kind(const HalfShape &shape) {
    if (shape.is_raw())
        return HalfKind::kRaw;
    const bool plain = !shape.strips[kPlane16] && !shape.strips[kPlane3];
    // A word of 2-bit codes holds 32 tokens.
    const bool whole_words = shape.group >= 32 || !shape.strips[kPlane2];
    const bool keys = shape.side == Side::kKey && shape.axis == Axis::kChannel && whole_words &&
                      !shape.strips[kPlane1];
    const bool values = shape.side == Side::kValue && shape.axis == Axis::kToken;
    return plain && (keys || values) ? HalfKind::kPacked : HalfKind::kOther;
}

uint32_t first_shared_slot(const HalfShape &shape) {
    uint32_t strips = 0;
    for (uint32_t p = 0; p < kPlane2; ++p)
        strips += shape.strips[p];
    return strips * LK_STRIP_CHANNELS;
}

HalfView make_view(const HalfShape &shape) {
    HalfView view = {};
    view.kind = half_kind(shape);
    view.is_value = shape.side == Side::kValue;
    view.is_per_token = shape.axis == Axis::kToken;
    view.is_f8 = shape.metadata == Metadata::kF8;
    view.head_dim = shape.head_dim;
    view.page_tokens = shape.page_tokens;
    view.n_strips = shape.head_dim / LK_STRIP_CHANNELS;
    view.group = shape.group;
    view.n_groups = n_groups(shape);
    view.minima_offset_bytes = static_cast<uint32_t>(minima_offset_bytes(shape));
    view.shared_first = first_shared_slot(shape);
    view.n_shared = shape.n_shared;
    view.payload_bytes = static_cast<uint32_t>(payload_bytes(shape));
    view.metadata_bytes = static_cast<uint32_t>(metadata_bytes(shape));
    for (uint32_t s = 0; s < view.n_strips; ++s) {
        const StripPlace at = strip_at(shape, s);
        view.strips[s] = {static_cast<uint32_t>(at.offset_bytes),
                          static_cast<uint32_t>(at.high_offset_bytes), kPlaneBits[at.plane]};
    }
    return view;
}

}  // namespace

const HalfView *ViewCache::get(const HalfShape &shape) {
    Pair &pair = shape.is_raw() ? raw_ : packed_;
    for (uint32_t i = 0; i < 2; ++i)
        if (std::memcmp(&pair.slots[i].shape, &shape, sizeof shape) == 0) {
            pair.last = i;
            return &pair.slots[i].view;
        }
    pair.last ^= 1;
    pair.slots[pair.last].shape = shape;
    pair.slots[pair.last].view = make_view(shape);
    return &pair.slots[pair.last].view;
}

}  // namespace cpu
}  // namespace lk
