// Readers of hostile text and files leave by an exception of their own, within one function of the
// API, and show what they refuse.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BASE_REFUSED_H
#define LK_BASE_REFUSED_H

#include "base/status.h"

#include <string>

namespace lk {

// The sentence is stored already.
struct Refused {
    lk_status status;
};

inline void expect(lk_status status) {
    if (status != LK_OK)
        throw Refused{status};
}

// Part of a hostile text that a sentence may show.
inline std::string shown(const std::string &text) {
    std::string out = text.substr(0, 40);
    for (char &c : out)
        if (c < 0x20 || c == 0x7f)
            c = '?';
    return text.size() > 40 ? out + "..." : out;
}

}  // namespace lk

#endif
