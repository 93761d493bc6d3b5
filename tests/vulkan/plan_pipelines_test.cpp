// The pipelines of whole plans of `auto`, as caches of them make these. A stand-in that compiles at
// once is made in place of each; on a device without cooperative matrices the rules are those of
// one that has them, too.
//
// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/cache_pipelines.h"
#include "base/status.h"
#include "faults.h"
#include "plan_layouts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <set>
#include <vector>

namespace {

using lk::vulkan::AttendPipelines;
using lk::vulkan::CachePipelines;
using lk::vulkan::DecodeRules;
using lk::vulkan::Traits;

constexpr uint32_t kLayers = 32;
constexpr uint32_t kMostOfDecode = 12;  // kernels and merges
constexpr uint32_t kFixed = 2;          // append and pack; rotated keys have rotate_queries too
constexpr uint32_t kOfSlots = 3;

const uint32_t kStandInWords[] = {
#include "scale.inc"  // generated
};

VkShaderModule stand_in() {
    VkShaderModuleCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
    info.codeSize = sizeof kStandInWords;
    info.pCode = kStandInWords;
    VkShaderModule module = VK_NULL_HANDLE;
    assert_int_equal(
        test_device()->vk.CreateShaderModule(test_device()->device, &info, nullptr, &module),
        VK_SUCCESS);
    return module;
}

void expect_ok(lk_status status) {
    if (status)
        fail_msg("%s", lk::last_sentence());
}

// The test's device, as lowkey takes it over.
class Counted {
  public:
    Counted() : device(lk::default_allocator()), module_(stand_in()) {
        lk_context_desc desc{};
        lk_vulkan_desc vulkan{};
        test_describe(&desc, &vulkan);
        vulkan.get_instance_proc_addr =
            reinterpret_cast<lk_vulkan_function>(faulty_get_instance_proc_addr);
        expect_ok(device.open(desc, vulkan));
        vulkan_faults faults{};
        faults.stand_in = module_;
        faults_set(&faults);
    }
    ~Counted() {
        faults_set(nullptr);
        test_device()->vk.DestroyShaderModule(test_device()->device, module_, nullptr);
    }
    Counted(const Counted &) = delete;
    Counted &operator=(const Counted &) = delete;

    lk::vulkan::Device device;

  private:
    VkShaderModule module_;
};

Traits with_matrices(Traits traits) {
    traits.cooperative_matrix = traits.matrix_uses = traits.float16 = traits.subgroup = true;
    traits.subgroup_size = traits.min_subgroup_size = traits.max_subgroup_size = 32;
    traits.subgroup_size_control = false;
    return traits;
}

// Those of the layer's forms, in all variants.
void insert_attend(const DecodeRules &rules, const CachePipelines &pipelines, uint32_t layer,
                   uint32_t columns, std::set<VkPipeline> *found) {
    for (uint32_t variant = 0; variant < rules.n_variants(layer, columns); ++variant)
        for (uint32_t form = 0; form < rules.n_forms(layer); ++form)
            found->insert(pipelines.attend(layer, columns, form, variant));
    found->insert(pipelines.decode(layer, columns).merge);
}

// All of decode, in steps of one new token and of more.
std::set<VkPipeline> decode_pipelines(const DecodeRules &rules, CachePipelines *pipelines) {
    for (uint32_t l = 0; l < kLayers; ++l)
        for (const uint32_t n_columns : {1u, UINT32_MAX}) {
            const uint32_t columns = rules.takes(l) ? rules.tile_columns(l, n_columns) : 0;
            for (uint32_t form = 0; columns && form < rules.n_forms(l); ++form)
                for (uint32_t variant = 0; variant < rules.n_variants(l, columns); ++variant)
                    assert_true(pipelines->want_decode(l, columns, form, variant));
        }
    expect_ok(pipelines->make_wanted());
    std::set<VkPipeline> found;
    for (uint32_t l = 0; l < kLayers; ++l)
        for (const uint32_t n_columns : {1u, UINT32_MAX})
            if (rules.takes(l))
                insert_attend(rules, *pipelines, l, rules.tile_columns(l, n_columns), &found);
    assert_false(found.count(VK_NULL_HANDLE));
    return found;
}

// Of decode, in steps of one new token.
std::set<VkPipeline> first_pipelines(const DecodeRules &rules, const CachePipelines &pipelines) {
    std::set<VkPipeline> found;
    for (uint32_t l = 0; l < kLayers; ++l)
        if (rules.takes(l))
            insert_attend(rules, pipelines, l, rules.tile_columns(l, 1), &found);
    assert_false(found.count(VK_NULL_HANDLE));
    return found;
}

// A cache that opens makes the kernels that append and pack, that decode one new token, and, on a
// device with matrices, those of long steps, and the one that packs their pages where these fit;
// decode's others come when they are wanted, once. rotation: of the keys of all layers.
void count(const Counted &counted, const Traits &traits, const char *kernels, uint32_t rotation) {
    for (const NamedPlan &plan : auto_plans(kLayers)) {
        const PlanLayout unrotated(plan);
        assert_null(unrotated.failure());
        lk::CacheLayout layout = unrotated.layout();
        std::vector<lk::LayerView> layers(layout.layers, layout.layers + layout.n_layers);
        for (lk::LayerView &layer : layers)
            layer.key_rotation = rotation;
        layout.layers = layers.data();
        const uint32_t n_before = faults_pipelines().made;
        lk::vulkan::Pipelines made(lk::default_allocator(), counted.device);
        expect_ok(made.open(nullptr, 0));
        DecodeRules rules(lk::default_allocator(), traits);
        assert_true(rules.open(layout));
        CachePipelines pipelines(lk::default_allocator());
        expect_ok(pipelines.open(layout, rules, traits, &made));
        const uint32_t n_of_open = faults_pipelines().made - n_before;
        const size_t n_first = first_pipelines(rules, pipelines).size();
        const size_t n_decode = decode_pipelines(rules, &pipelines).size();
        const uint32_t n_made = faults_pipelines().made - n_before;
        print_message("%s, %s: %u pipelines when it opens, %zu of decode\n", plan.name.c_str(),
                      kernels, n_of_open, n_decode);
        assert_true(layout.max_step_tokens > lk::kDraftTokens);
        const bool has_slots = lk::vulkan::has_slot_pipelines(traits, layers[0]);
        // One for all layers, which have one head dim, where the device's shared memory holds a
        // page.
        const bool has_append_pages = pipelines.append_pages(0) != VK_NULL_HANDLE;
        const size_t n_others =
            kFixed + (has_slots ? kOfSlots : 0) + (has_append_pages ? 1 : 0) + (rotation ? 1 : 0);
        assert_int_equal(n_of_open, n_first + n_others);
        assert_int_equal(n_made, n_decode + n_others);
        assert_true(n_decode <= kMostOfDecode);
        assert_int_equal(decode_pipelines(rules, &pipelines).size(), n_decode);
        assert_int_equal(faults_pipelines().made - n_before, n_made);
    }
}

void auto_plans_need_few_pipelines(void **) {
    const Counted counted;
    for (const uint32_t rotation : {0u, 128u}) {
        count(counted, with_matrices(counted.device.traits()), "with matrices", rotation);
        count(counted, counted.device.traits(), "as the device is", rotation);
    }
    assert_int_equal(faults_pipelines().live, 0);
}

}  // namespace

int main() {
    test_device();
    const CMUnitTest tests[] = {cmocka_unit_test(auto_plans_need_few_pipelines)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
