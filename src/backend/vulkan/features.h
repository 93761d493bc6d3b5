// Features of a device: offered, switched on when it was made, used.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_FEATURES_H
#define LK_BACKEND_VULKAN_FEATURES_H

#include "backend/vulkan/functions.h"
#include "base/memory.h"

namespace lk {
namespace vulkan {

// Names of extensions that a device can be made with.
class Extensions {
  public:
    explicit Extensions(const Allocator &allocator) : names_(allocator) {}
    lk_status query(const Functions &functions, VkPhysicalDevice device);
    lk_status assign(const char *const *names, uint32_t n);
    bool has(const char *name) const;

  private:
    struct Name {
        char text[VK_MAX_EXTENSION_NAME_SIZE];
    };
    Array<Name> names_;
};

// Features that this backend knows of. The first three are required.
struct Features {
    bool device_address;
    bool storage_8bit;
    bool storage_16bit;
    bool timeline;
    bool float16;
    bool integer_dot;
    bool memory_model;
    bool memory_model_device_scope;
    bool subgroup_size_control;
    bool cooperative_matrix;
    bool matrix_uses;
};

// VK_KHR_cooperative_matrix, which headers before 1.3.255 do not have.
constexpr const char *kMatrixUses = "VK_KHR_cooperative_matrix";
constexpr auto kMatrixUseFeatures = static_cast<VkStructureType>(1000506000);
struct MatrixUseFeatures {
    VkStructureType sType;
    void *pNext;
    VkBool32 cooperativeMatrix;
    VkBool32 cooperativeMatrixRobustBufferAccess;
};

// Their structs, chained after `head` as far as the device knows them.
class FeatureChain {
  public:
    FeatureChain(uint32_t api_version, const Extensions &extensions);
    FeatureChain(const FeatureChain &) = delete;
    FeatureChain &operator=(const FeatureChain &) = delete;

    VkPhysicalDeviceFeatures2 *head() { return &head_; }
    Features features() const;
    void set(const Features &features);

  private:
    VkPhysicalDeviceFeatures2 head_{};
    VkPhysicalDevice16BitStorageFeatures storage_16bit_{};
    VkPhysicalDevice8BitStorageFeatures storage_8bit_{};
    VkPhysicalDeviceBufferDeviceAddressFeatures device_address_{};
    VkPhysicalDeviceTimelineSemaphoreFeatures timeline_{};
    VkPhysicalDeviceShaderFloat16Int8Features float16_{};
    VkPhysicalDeviceVulkanMemoryModelFeatures memory_model_{};
    VkPhysicalDeviceShaderIntegerDotProductFeatures integer_dot_{};
    VkPhysicalDeviceSubgroupSizeControlFeatures size_control_{};
    VkPhysicalDeviceCooperativeMatrixFeaturesNV cooperative_matrix_{};
    MatrixUseFeatures matrix_uses_{};
};

// The features in a host's chain from VkPhysicalDeviceFeatures2 on.
Features features_of_chain(const void *chain);

// Extensions of which `features` need the name when a device of this version is made; returns how
// many of names [kMaxExtensions] were set.
constexpr uint32_t kMaxExtensions = 11;
uint32_t extension_names(uint32_t api_version, const Features &features, const char **names);

// Properties on which shaders and launches depend. A flag is set when it may be used.
struct Traits {
    char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
    uint32_t api_version;
    uint32_t vendor_id;
    uint32_t device_id;
    uint8_t pipeline_cache_id[VK_UUID_SIZE];
    bool is_unified;  // device memory is the host's
    bool timeline;
    bool float16;
    bool subgroup;  // basic, vote, arithmetic, ballot and shuffle operations in compute
    bool integer_dot;
    bool cooperative_matrix;  // of the shape and registers of a packed tile
    bool matrix_uses;         // the same by VK_KHR_cooperative_matrix, B by columns
    bool subgroup_size_control;
    bool rounds_float32;  // shaderRoundingModeRTEFloat32
    uint32_t subgroup_size;
    uint32_t min_subgroup_size;
    uint32_t max_subgroup_size;
    uint32_t max_workgroup_size;
    uint32_t max_shared_bytes;     // of a workgroup
    uint32_t max_workgroup_count;  // in x
    uint32_t n_cores;              // workgroups that run at once, or a guess
    uint64_t max_allocation_bytes;
};
// mask: LK_VULKAN_NO_* bits.
Traits query_traits(const Functions &functions, VkPhysicalDevice device, uint32_t api_version,
                    const Extensions &extensions, const Features &features, uint32_t mask);

// LK_E_UNSUPPORTED names all that is required and missing; `whose` begins the sentence.
lk_status check_required(const char *whose, const Features &features, const Traits &traits);
// The same of the extensions that required features need the name of in this version.
lk_status check_extensions(const char *whose, uint32_t api_version, const Extensions &extensions);

}  // namespace vulkan
}  // namespace lk

#endif
