// SPDX-License-Identifier: Apache-2.0
#include "core/context/process.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace lk {

namespace {

constexpr int32_t kPageMark = 1;
constexpr int kNoAdvice = -1;

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// A page that a child process finds cleared; null where the kernel has none. Emulators accept any
// advice and ignore it, so one that accepts advice that does not exist is not believed.
void *map_page() {
#ifdef MADV_WIPEONFORK
    void *page =
        mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return nullptr;
    if (madvise(page, page_bytes(), kNoAdvice) && !madvise(page, page_bytes(), MADV_WIPEONFORK))
        return page;
    (void)munmap(page, page_bytes());
#endif
    return nullptr;
}

}  // namespace

Process::Process() : page_(map_page()), mark_(page_ ? new (page_) Mark(0) : &own_) {
    mark_->store(own_mark());
}

Process::~Process() {
    if (page_)
        (void)munmap(page_, page_bytes());
}

int32_t Process::own_mark() const { return page_ ? kPageMark : static_cast<int32_t>(getpid()); }

}  // namespace lk
