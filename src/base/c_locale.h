// Numbers as text do not depend on the host's locale: while one of these lives, its thread reads
// and writes them as the C locale does. Nothing else of the thread or the process changes.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BASE_C_LOCALE_H
#define LK_BASE_C_LOCALE_H

#include <locale.h>

namespace lk {

class CLocale {
  public:
    CLocale() : own_(newlocale(LC_ALL_MASK, "C", nullptr)) {
        if (own_)
            before_ = uselocale(own_);
    }
    ~CLocale() {
        if (!own_)
            return;
        uselocale(before_);
        freelocale(own_);
    }
    CLocale(const CLocale &) = delete;
    CLocale &operator=(const CLocale &) = delete;

    // false: there was no memory for it, and the thread has the locale that it had.
    bool holds() const { return own_ != nullptr; }

  private:
    locale_t own_;
    locale_t before_ = nullptr;
};

}  // namespace lk

#endif
