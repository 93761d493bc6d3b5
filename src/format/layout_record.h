// A page's layout as files have it: in the header of a page file and in the formats of a snapshot.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_LAYOUT_RECORD_H
#define LK_FORMAT_LAYOUT_RECORD_H

#include "format/layout.h"

#include <cstring>

namespace lk {

struct LayoutRecord {
    uint8_t side;
    uint8_t axis;
    uint8_t metadata;
    uint8_t permutes;
    uint16_t head_dim;
    uint16_t page_tokens;
    uint16_t group;
    uint16_t n_shared;
    uint16_t strips[kPlaneCount];
};
static_assert(sizeof(LayoutRecord) == 24, "the tables of docs/FORMAT.md");

// Do the enumerations name something? layout_error() has the rest.
inline bool names_layout(const LayoutRecord &r) {
    return r.side <= 1 && r.axis >= 1 && r.axis <= 2 && is_parameter_format(r.metadata) &&
           r.permutes <= 1;
}

inline PageLayout layout_of(const LayoutRecord &r) {
    PageLayout layout;
    layout.side = static_cast<Side>(r.side);
    layout.axis = static_cast<Axis>(r.axis);
    layout.metadata = static_cast<Metadata>(r.metadata);
    layout.permutes = r.permutes;
    layout.head_dim = r.head_dim;
    layout.page_tokens = r.page_tokens;
    layout.group = r.group;
    layout.n_shared = r.n_shared;
    std::memcpy(layout.strips, r.strips, sizeof layout.strips);
    return layout;
}

inline LayoutRecord record_of(const PageLayout &layout) {
    LayoutRecord r = {};
    r.side = static_cast<uint8_t>(layout.side);
    r.axis = static_cast<uint8_t>(layout.axis);
    r.metadata = static_cast<uint8_t>(layout.metadata);
    r.permutes = layout.permutes;
    r.head_dim = layout.head_dim;
    r.page_tokens = layout.page_tokens;
    r.group = layout.group;
    r.n_shared = layout.n_shared;
    std::memcpy(r.strips, layout.strips, sizeof r.strips);
    return r;
}

}  // namespace lk

#endif
