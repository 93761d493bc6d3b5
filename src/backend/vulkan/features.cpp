// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/features.h"

#include <lowkey/vulkan.h>

#include <cstdio>
#include <cstring>

#include "base/status.h"
#include "format/format_const.h"

namespace lk {
namespace vulkan {

namespace {

constexpr VkSubgroupFeatureFlags kSubgroupOperations =
    VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_VOTE_BIT |
    VK_SUBGROUP_FEATURE_ARITHMETIC_BIT | VK_SUBGROUP_FEATURE_BALLOT_BIT |
    VK_SUBGROUP_FEATURE_SHUFFLE_BIT;

constexpr const char *kFloatControls = "VK_KHR_shader_float_controls";

// A feature that came with an extension and was later taken into a version.
struct Origin {
    bool Features::*feature;
    const char *extension;
    uint32_t core_version;
};
constexpr uint32_t kNever = ~0u;
constexpr Origin kOrigins[] = {
    {&Features::device_address, "VK_KHR_buffer_device_address", VK_API_VERSION_1_2},
    {&Features::storage_8bit, "VK_KHR_8bit_storage", VK_API_VERSION_1_2},
    {&Features::storage_16bit, "VK_KHR_16bit_storage", VK_API_VERSION_1_1},
    {&Features::timeline, "VK_KHR_timeline_semaphore", VK_API_VERSION_1_2},
    {&Features::float16, "VK_KHR_shader_float16_int8", VK_API_VERSION_1_2},
    {&Features::memory_model, "VK_KHR_vulkan_memory_model", VK_API_VERSION_1_2},
    {&Features::integer_dot, "VK_KHR_shader_integer_dot_product", VK_API_VERSION_1_3},
    {&Features::subgroup_size_control, "VK_EXT_subgroup_size_control", VK_API_VERSION_1_3},
    {&Features::cooperative_matrix, "VK_NV_cooperative_matrix", kNever},
    {&Features::matrix_uses, kMatrixUses, kNever},
};

template <class Struct, class Head>
void link(Head *head, Struct *member, VkStructureType type) {
    member->sType = type;
    member->pNext = head->pNext;
    head->pNext = member;
}

bool is_known(bool Features::*feature, uint32_t api_version, const Extensions &extensions) {
    for (const Origin &origin : kOrigins)
        if (origin.feature == feature)
            return api_version >= origin.core_version || extensions.has(origin.extension);
    return false;
}

// Properties of a device, as far as the device knows them.
struct Properties {
    Properties(const Functions &functions, VkPhysicalDevice device, uint32_t api_version,
               const Extensions &extensions);
    Properties(const Properties &) = delete;
    Properties &operator=(const Properties &) = delete;
    uint32_t n_cores() const;

    VkPhysicalDeviceProperties2 all{};
    VkPhysicalDeviceSubgroupProperties subgroups{};
    VkPhysicalDeviceMaintenance3Properties limits{};
    VkPhysicalDeviceFloatControlsProperties floats{};
    VkPhysicalDeviceSubgroupSizeControlProperties sizes{};
    VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nvidia{};
    VkPhysicalDeviceShaderCorePropertiesAMD amd{};
};

Properties::Properties(const Functions &functions, VkPhysicalDevice device, uint32_t api_version,
                       const Extensions &extensions) {
    all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    link(&all, &subgroups, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES);
    link(&all, &limits, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES);
    if (api_version >= VK_API_VERSION_1_2 || extensions.has(kFloatControls))
        link(&all, &floats, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES);
    if (is_known(&Features::subgroup_size_control, api_version, extensions))
        link(&all, &sizes, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES);
    if (extensions.has("VK_NV_shader_sm_builtins"))
        link(&all, &nvidia, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV);
    if (extensions.has("VK_AMD_shader_core_properties"))
        link(&all, &amd, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD);
    functions.GetPhysicalDeviceProperties2(device, &all);
}

// Multiprocessors, where a driver reports them; else a number of workgroups that keeps a device of
// its type busy.
uint32_t Properties::n_cores() const {
    const uint32_t reported = nvidia.shaderSMCount + amd.shaderEngineCount *
                                                         amd.shaderArraysPerEngineCount *
                                                         amd.computeUnitsPerShaderArray;
    const bool is_discrete = all.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    return reported ? reported : is_discrete ? 64 : 8;
}

}  // namespace

lk_status Extensions::query(const Functions &functions, VkPhysicalDevice device) {
    uint32_t n = 0;
    VkResult result = functions.EnumerateDeviceExtensionProperties(device, nullptr, &n, nullptr);
    Array<VkExtensionProperties> found;
    if (!found.resize(n) || !names_.resize(n))
        return fail(LK_E_NOMEM, "no memory for the names of %u extensions", n);
    if (result == VK_SUCCESS)
        result = functions.EnumerateDeviceExtensionProperties(device, nullptr, &n, found.data());
    if (result < 0)
        return fail(LK_E_DEVICE, "the driver does not list its extensions: error %d", result);
    for (uint32_t i = 0; i < n && i < names_.size(); ++i)
        std::memcpy(names_[i].text, found[i].extensionName, sizeof names_[i].text);
    return LK_OK;
}

lk_status Extensions::assign(const char *const *names, uint32_t n) {
    if (!names_.resize(n))
        return fail(LK_E_NOMEM, "no memory for the names of %u extensions", n);
    for (uint32_t i = 0; i < n; ++i)
        std::snprintf(names_[i].text, sizeof names_[i].text, "%s", names[i]);
    return LK_OK;
}

bool Extensions::has(const char *name) const {
    for (const Name &own : names_)
        if (!std::strcmp(own.text, name))
            return true;
    return false;
}

FeatureChain::FeatureChain(uint32_t api_version, const Extensions &extensions) {
    const auto knows = [&](bool Features::*feature) {
        return is_known(feature, api_version, extensions);
    };
    head_.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    if (knows(&Features::device_address))
        link(&head_, &device_address_,
             VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES);
    if (knows(&Features::storage_8bit))
        link(&head_, &storage_8bit_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES);
    if (knows(&Features::storage_16bit))
        link(&head_, &storage_16bit_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES);
    if (knows(&Features::timeline))
        link(&head_, &timeline_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES);
    if (knows(&Features::float16))
        link(&head_, &float16_, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES);
    if (knows(&Features::memory_model))
        link(&head_, &memory_model_,
             VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES);
    if (knows(&Features::integer_dot))
        link(&head_, &integer_dot_,
             VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES);
    if (knows(&Features::subgroup_size_control))
        link(&head_, &size_control_,
             VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES);
    if (knows(&Features::cooperative_matrix))
        link(&head_, &cooperative_matrix_,
             VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV);
    if (knows(&Features::matrix_uses))
        link(&head_, &matrix_uses_, kMatrixUseFeatures);
}

Features FeatureChain::features() const { return features_of_chain(&head_); }

void FeatureChain::set(const Features &features) {
    storage_16bit_.storageBuffer16BitAccess = features.storage_16bit;
    storage_16bit_.uniformAndStorageBuffer16BitAccess = VK_FALSE;
    storage_16bit_.storagePushConstant16 = VK_FALSE;
    storage_16bit_.storageInputOutput16 = VK_FALSE;
    storage_8bit_.storageBuffer8BitAccess = features.storage_8bit;
    storage_8bit_.uniformAndStorageBuffer8BitAccess = VK_FALSE;
    storage_8bit_.storagePushConstant8 = VK_FALSE;
    device_address_.bufferDeviceAddress = features.device_address;
    device_address_.bufferDeviceAddressCaptureReplay = VK_FALSE;
    device_address_.bufferDeviceAddressMultiDevice = VK_FALSE;
    timeline_.timelineSemaphore = features.timeline;
    float16_.shaderFloat16 = features.float16;
    float16_.shaderInt8 = VK_FALSE;
    memory_model_.vulkanMemoryModel = features.memory_model;
    memory_model_.vulkanMemoryModelDeviceScope = features.memory_model_device_scope;
    memory_model_.vulkanMemoryModelAvailabilityVisibilityChains = VK_FALSE;
    integer_dot_.shaderIntegerDotProduct = features.integer_dot;
    size_control_.subgroupSizeControl = features.subgroup_size_control;
    size_control_.computeFullSubgroups = VK_FALSE;
    cooperative_matrix_.cooperativeMatrix = features.cooperative_matrix;
    cooperative_matrix_.cooperativeMatrixRobustBufferAccess = VK_FALSE;
    matrix_uses_.cooperativeMatrix = features.matrix_uses;
    matrix_uses_.cooperativeMatrixRobustBufferAccess = VK_FALSE;
    head_.features = VkPhysicalDeviceFeatures{};
}

Features features_of_chain(const void *chain) {
    Features found{};
    for (const auto *next = static_cast<const VkBaseInStructure *>(chain); next;
         next = next->pNext) {
        const void *at = next;
        switch (next->sType) {
            case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES: {
                const auto *own = static_cast<const VkPhysicalDeviceVulkan11Features *>(at);
                found.storage_16bit |= own->storageBuffer16BitAccess != 0;
                break;
            }
            case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES: {
                const auto *own = static_cast<const VkPhysicalDeviceVulkan12Features *>(at);
                found.storage_8bit |= own->storageBuffer8BitAccess != 0;
                found.device_address |= own->bufferDeviceAddress != 0;
                found.timeline |= own->timelineSemaphore != 0;
                found.float16 |= own->shaderFloat16 != 0;
                found.memory_model |= own->vulkanMemoryModel != 0;
                found.memory_model_device_scope |= own->vulkanMemoryModelDeviceScope != 0;
                break;
            }
            case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES: {
                const auto *own = static_cast<const VkPhysicalDeviceVulkan13Features *>(at);
                found.integer_dot |= own->shaderIntegerDotProduct != 0;
                found.subgroup_size_control |= own->subgroupSizeControl != 0;
                break;
            }
            case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES: {
                const auto *own =
                    static_cast<const VkPhysicalDeviceVulkanMemoryModelFeatures *>(at);
                found.memory_model |= own->vulkanMemoryModel != 0;
                found.memory_model_device_scope |= own->vulkanMemoryModelDeviceScope != 0;
                break;
            }
#define LK_VULKAN_FEATURE(type, Struct, member, field)                                 \
    case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_##type:                                     \
        found.field |= static_cast<const VkPhysicalDevice##Struct *>(at)->member != 0; \
        break;
                LK_VULKAN_FEATURE(16BIT_STORAGE_FEATURES, 16BitStorageFeatures,
                                  storageBuffer16BitAccess, storage_16bit)
                LK_VULKAN_FEATURE(8BIT_STORAGE_FEATURES, 8BitStorageFeatures,
                                  storageBuffer8BitAccess, storage_8bit)
                LK_VULKAN_FEATURE(BUFFER_DEVICE_ADDRESS_FEATURES, BufferDeviceAddressFeatures,
                                  bufferDeviceAddress, device_address)
                LK_VULKAN_FEATURE(TIMELINE_SEMAPHORE_FEATURES, TimelineSemaphoreFeatures,
                                  timelineSemaphore, timeline)
                LK_VULKAN_FEATURE(SHADER_FLOAT16_INT8_FEATURES, ShaderFloat16Int8Features,
                                  shaderFloat16, float16)
                LK_VULKAN_FEATURE(SHADER_INTEGER_DOT_PRODUCT_FEATURES,
                                  ShaderIntegerDotProductFeatures, shaderIntegerDotProduct,
                                  integer_dot)
                LK_VULKAN_FEATURE(SUBGROUP_SIZE_CONTROL_FEATURES, SubgroupSizeControlFeatures,
                                  subgroupSizeControl, subgroup_size_control)
                LK_VULKAN_FEATURE(COOPERATIVE_MATRIX_FEATURES_NV, CooperativeMatrixFeaturesNV,
                                  cooperativeMatrix, cooperative_matrix)
#undef LK_VULKAN_FEATURE
            default:
                // Not of the enumeration where headers are older.
                if (next->sType == kMatrixUseFeatures)
                    found.matrix_uses |=
                        static_cast<const MatrixUseFeatures *>(at)->cooperativeMatrix != 0;
                break;
        }
    }
    return found;
}

uint32_t extension_names(uint32_t api_version, const Features &features, const char **names) {
    uint32_t n = 0;
    for (const Origin &origin : kOrigins)
        if (features.*origin.feature && api_version < origin.core_version)
            names[n++] = origin.extension;
    if (api_version < VK_API_VERSION_1_2)
        names[n++] = kFloatControls;
    return n;
}

namespace {

constexpr uint32_t kMaxMatrixShapes = 64;  // more are not looked at

// Does a subgroup multiply tiles of 16 x 16 in FP16 by 8 columns, and add in FP32?
bool has_tile_matrices(const Functions &functions, VkPhysicalDevice device) {
    if (!functions.GetPhysicalDeviceCooperativeMatrixPropertiesNV)
        return false;
    VkCooperativeMatrixPropertiesNV shapes[kMaxMatrixShapes] = {};
    for (VkCooperativeMatrixPropertiesNV &shape : shapes)
        shape.sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_NV;
    uint32_t n = kMaxMatrixShapes;
    if (functions.GetPhysicalDeviceCooperativeMatrixPropertiesNV(device, &n, shapes) < 0)
        return false;
    for (uint32_t i = 0; i < n; ++i) {
        const VkCooperativeMatrixPropertiesNV &s = shapes[i];
        if (s.MSize == 16 && s.NSize == 8 && s.KSize == 16 &&
            s.AType == VK_COMPONENT_TYPE_FLOAT16_NV && s.BType == VK_COMPONENT_TYPE_FLOAT16_NV &&
            s.CType == VK_COMPONENT_TYPE_FLOAT32_NV && s.DType == VK_COMPONENT_TYPE_FLOAT32_NV &&
            s.scope == VK_SCOPE_SUBGROUP_NV)
            return true;
    }
    return false;
}

}  // namespace

Traits query_traits(const Functions &functions, VkPhysicalDevice device, uint32_t api_version,
                    const Extensions &extensions, const Features &features, uint32_t mask) {
    const Properties properties(functions, device, api_version, extensions);
    const VkPhysicalDeviceProperties &own = properties.all.properties;
    const VkPhysicalDeviceSubgroupProperties &subgroups = properties.subgroups;
    Traits traits{};
    std::memcpy(traits.name, own.deviceName, sizeof traits.name);
    traits.api_version = api_version;
    traits.vendor_id = own.vendorID;
    traits.device_id = own.deviceID;
    std::memcpy(traits.pipeline_cache_id, own.pipelineCacheUUID, sizeof traits.pipeline_cache_id);
    traits.is_unified = own.deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU ||
                        own.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    traits.timeline = features.timeline && !(mask & LK_VULKAN_NO_TIMELINE);
    traits.float16 = features.float16 && !(mask & LK_VULKAN_NO_FLOAT16);
    traits.subgroup =
        (subgroups.supportedOperations & kSubgroupOperations) == kSubgroupOperations &&
        (subgroups.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) &&
        !(mask & LK_VULKAN_NO_SUBGROUP);
    traits.integer_dot = features.integer_dot && !(mask & LK_VULKAN_NO_INTEGER_DOT);
    traits.rounds_float32 = properties.floats.shaderRoundingModeRTEFloat32;
    const bool has_sizes =
        features.subgroup_size_control &&
        (properties.sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT);
    traits.subgroup_size_control = has_sizes;
    traits.subgroup_size = subgroups.subgroupSize;
    traits.min_subgroup_size =
        has_sizes ? properties.sizes.minSubgroupSize : subgroups.subgroupSize;
    traits.max_subgroup_size =
        has_sizes ? properties.sizes.maxSubgroupSize : subgroups.subgroupSize;
    traits.cooperative_matrix =
        features.cooperative_matrix && features.memory_model && traits.float16 && traits.subgroup &&
        traits.min_subgroup_size <= LK_LANES && traits.max_subgroup_size >= LK_LANES &&
        !(mask & LK_VULKAN_NO_COOPERATIVE_MATRIX) && has_tile_matrices(functions, device);
    traits.matrix_uses = features.matrix_uses && traits.cooperative_matrix;
    traits.max_workgroup_size = own.limits.maxComputeWorkGroupInvocations;
    traits.max_shared_bytes = own.limits.maxComputeSharedMemorySize;
    traits.max_workgroup_count = own.limits.maxComputeWorkGroupCount[0];
    traits.max_allocation_bytes = properties.limits.maxMemoryAllocationSize;
    traits.n_cores = properties.n_cores();
    return traits;
}

namespace {

// Names of what is missing, one after the other.
class Missing {
  public:
    void add(const char *name) {
        const size_t used = std::strlen(names_);
        std::snprintf(names_ + used, sizeof names_ - used, "%s%s", used ? ", " : "", name);
    }
    lk_status status(const char *whose) const {
        return *names_ ? fail(LK_E_UNSUPPORTED, "%s has no %s", whose, names_) : LK_OK;
    }

  private:
    char names_[192] = "";
};

}  // namespace

lk_status check_required(const char *whose, const Features &features, const Traits &traits) {
    Missing missing;
    if (!features.device_address)
        missing.add("bufferDeviceAddress");
    if (!features.storage_8bit)
        missing.add("storageBuffer8BitAccess");
    if (!features.storage_16bit)
        missing.add("storageBuffer16BitAccess");
    // With a memory model, atomics of the device's scope need it too.
    if (features.memory_model && !features.memory_model_device_scope)
        missing.add("vulkanMemoryModelDeviceScope");
    if (!traits.rounds_float32)
        missing.add("shaderRoundingModeRTEFloat32");
    return missing.status(whose);
}

lk_status check_extensions(const char *whose, uint32_t api_version, const Extensions &extensions) {
    Features required{};
    required.device_address = required.storage_8bit = required.storage_16bit = true;
    const char *names[kMaxExtensions];
    const uint32_t n = extension_names(api_version, required, names);
    Missing missing;
    for (uint32_t i = 0; i < n; ++i)
        if (!extensions.has(names[i]))
            missing.add(names[i]);
    return missing.status(whose);
}

}  // namespace vulkan
}  // namespace lk
