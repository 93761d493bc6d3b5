// A half's shape as files have it: the header of a page file and the classes of a snapshot are
// records with the same names for it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_SHAPE_RECORD_H
#define LK_FORMAT_SHAPE_RECORD_H

#include "format/layout.h"

#include <cstring>

namespace lk {

// Do the enumerations name something? shape_error() has the rest.
template <class Record>
bool names_shape(const Record &r) {
    return r.side <= 1 && r.axis >= 1 && r.axis <= 2 && r.metadata >= 1 && r.metadata <= 2 &&
           r.permutes <= 1;
}

template <class Record>
HalfShape shape_of(const Record &r) {
    HalfShape shape;
    shape.side = static_cast<Side>(r.side);
    shape.axis = static_cast<Axis>(r.axis);
    shape.metadata = static_cast<Metadata>(r.metadata);
    shape.permutes = r.permutes;
    shape.head_dim = r.head_dim;
    shape.page_tokens = r.page_tokens;
    shape.group = r.group;
    shape.n_shared = r.n_shared;
    static_assert(sizeof shape.strips == sizeof r.strips, "one count a plane");
    std::memcpy(shape.strips, r.strips, sizeof shape.strips);
    return shape;
}

}  // namespace lk

#endif
