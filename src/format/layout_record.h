// A page's layout as files have it: the header of a page file and the formats of a snapshot are
// records with the same names for it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_LAYOUT_RECORD_H
#define LK_FORMAT_LAYOUT_RECORD_H

#include "format/layout.h"

#include <cstring>

namespace lk {

// Do the enumerations name something? layout_error() has the rest.
template <class Record>
bool names_layout(const Record &r) {
    return r.side <= 1 && r.axis >= 1 && r.axis <= 2 && is_parameter_format(r.metadata) &&
           r.permutes <= 1;
}

template <class Record>
PageLayout layout_of(const Record &r) {
    PageLayout layout;
    layout.side = static_cast<Side>(r.side);
    layout.axis = static_cast<Axis>(r.axis);
    layout.metadata = static_cast<Metadata>(r.metadata);
    layout.permutes = r.permutes;
    layout.head_dim = r.head_dim;
    layout.page_tokens = r.page_tokens;
    layout.group = r.group;
    layout.n_shared = r.n_shared;
    static_assert(sizeof layout.strips == sizeof r.strips, "one count a plane");
    std::memcpy(layout.strips, r.strips, sizeof layout.strips);
    return layout;
}

}  // namespace lk

#endif
