// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/loader.h"

#include <dlfcn.h>

#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

constexpr const char *kLibrary = "libvulkan.so.1";

}  // namespace

Loader::~Loader() {
    if (library_)
        dlclose(library_);
}

lk_status Loader::open() {
    library_ = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (!library_)
        return fail(LK_E_UNSUPPORTED, "no Vulkan here: the loader %s was not found", kLibrary);
    get_ = reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library_, "vkGetInstanceProcAddr"));
    if (!get_)
        return fail(LK_E_UNSUPPORTED, "the loader %s has no vkGetInstanceProcAddr", kLibrary);
    return LK_OK;
}

}  // namespace vulkan
}  // namespace lk
