// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/instance.h"

#include <cstdio>

#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

constexpr const char *kLayer = "VK_LAYER_KHRONOS_validation";
// The newest version that this backend knows; newer functions are taken from extensions.
constexpr uint32_t kNewest = VK_API_VERSION_1_2;
constexpr uint32_t kOldest = VK_API_VERSION_1_1;

template <class Function>
Function global(PFN_vkGetInstanceProcAddr get, VkInstance instance, const char *name) {
    return reinterpret_cast<Function>(get(instance, name));
}

lk_log_level level_of(VkDebugUtilsMessageSeverityFlagBitsEXT severity) {
    return severity >= VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT     ? LK_LOG_ERROR
           : severity >= VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT ? LK_LOG_WARNING
           : severity >= VK_DEBUG_UTILS_MESSAGE_SEVERITY_INFO_BIT_EXT    ? LK_LOG_INFO
                                                                         : LK_LOG_DEBUG;
}

VKAPI_ATTR VkBool32 VKAPI_CALL take_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                            VkDebugUtilsMessageTypeFlagsEXT,
                                            const VkDebugUtilsMessengerCallbackDataEXT *data,
                                            void *user) {
    const auto &to = *static_cast<const MessageLog *>(user);
    if (!to.log || level_of(severity) > to.level)
        return VK_FALSE;
    char line[2048];
    std::snprintf(line, sizeof line, "Vulkan: %s", data->pMessage);
    for (char *c = line; *c; ++c)
        *c = *c == '\n' ? ' ' : *c;
    to.log(to.user, level_of(severity), line);
    return VK_FALSE;
}

VkDebugUtilsMessengerCreateInfoEXT messenger_info(MessageLog *log) {
    VkDebugUtilsMessengerCreateInfoEXT info{};
    info.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT;
    info.messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT |
                           VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                           VK_DEBUG_UTILS_MESSAGE_SEVERITY_INFO_BIT_EXT;
    info.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT |
                       VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT;
    info.pfnUserCallback = take_message;
    info.pUserData = log;
    return info;
}

}  // namespace

Instance::~Instance() {
    if (!handle_)
        return;
    if (messenger_)
        global<PFN_vkDestroyDebugUtilsMessengerEXT>(loader_.get_instance_proc_addr(), handle_,
                                                    "vkDestroyDebugUtilsMessengerEXT")(
            handle_, messenger_, nullptr);
    if (functions_.DestroyInstance)
        functions_.DestroyInstance(handle_, nullptr);
}

void Instance::abandon() {
    handle_ = nullptr;
    loader_.abandon();
}

lk_status Instance::open(bool validates, const MessageLog &log) {
    log_ = log;
    lk_status status = loader_.open();
    if (status)
        return status;
    functions_.GetInstanceProcAddr = loader_.get_instance_proc_addr();
    status = create(validates);
    if (!status)
        status = load_instance_functions(handle_, &functions_);
    if (!status && validates)
        status = report_messages();
    return status ? status : enumerate();
}

lk_status Instance::create(bool validates) {
    const PFN_vkGetInstanceProcAddr get = loader_.get_instance_proc_addr();
    const auto version_of =
        global<PFN_vkEnumerateInstanceVersion>(get, nullptr, "vkEnumerateInstanceVersion");
    const auto create_instance = global<PFN_vkCreateInstance>(get, nullptr, "vkCreateInstance");
    uint32_t loader_version = VK_API_VERSION_1_0;
    if (version_of)
        version_of(&loader_version);
    if (loader_version < kOldest || !create_instance)
        return fail(LK_E_UNSUPPORTED, "the Vulkan loader is of version %u.%u, at least 1.1",
                    VK_API_VERSION_MAJOR(loader_version), VK_API_VERSION_MINOR(loader_version));
    api_version_ = loader_version < kNewest ? kOldest : kNewest;

    VkApplicationInfo application{};
    application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
    application.pEngineName = "lowkey";
    application.apiVersion = api_version_;
    const VkValidationFeatureEnableEXT enabled[] = {
        VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
    VkDebugUtilsMessengerCreateInfoEXT messenger = messenger_info(&log_);
    VkValidationFeaturesEXT features{};
    features.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT;
    features.pNext = &messenger;
    features.enabledValidationFeatureCount = 1;
    features.pEnabledValidationFeatures = enabled;
    const char *const extension = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
    VkInstanceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
    info.pApplicationInfo = &application;
    if (validates) {
        info.pNext = &features;
        info.enabledLayerCount = 1;
        info.ppEnabledLayerNames = &kLayer;
        info.enabledExtensionCount = 1;
        info.ppEnabledExtensionNames = &extension;
    }
    const VkResult result = create_instance(&info, nullptr, &handle_);
    if (result == VK_ERROR_LAYER_NOT_PRESENT)
        return fail(LK_E_UNSUPPORTED, "vulkan.validation is set and there is no %s", kLayer);
    if (result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY)
        return fail(LK_E_NOMEM, "no memory for an instance of Vulkan");
    return result == VK_SUCCESS
               ? LK_OK
               : fail(LK_E_UNSUPPORTED, "no Vulkan here: making an instance failed with error %d",
                      result);
}

lk_status Instance::report_messages() {
    const auto create_messenger = global<PFN_vkCreateDebugUtilsMessengerEXT>(
        loader_.get_instance_proc_addr(), handle_, "vkCreateDebugUtilsMessengerEXT");
    const VkDebugUtilsMessengerCreateInfoEXT info = messenger_info(&log_);
    const VkResult result = create_messenger(handle_, &info, nullptr, &messenger_);
    return result == VK_SUCCESS
               ? LK_OK
               : fail(LK_E_NOMEM, "listening to the validation layer failed with error %d", result);
}

lk_status Instance::enumerate() {
    uint32_t n = 0;
    VkResult result = functions_.EnumeratePhysicalDevices(handle_, &n, nullptr);
    if (!physical_devices_.resize(n))
        return fail(LK_E_NOMEM, "no memory for the list of %u devices", n);
    if (result == VK_SUCCESS && n)
        result = functions_.EnumeratePhysicalDevices(handle_, &n, physical_devices_.data());
    if (result < 0)
        return fail(LK_E_UNSUPPORTED, "no Vulkan here: listing its devices failed with error %d",
                    result);
    return LK_OK;
}

}  // namespace vulkan
}  // namespace lk
