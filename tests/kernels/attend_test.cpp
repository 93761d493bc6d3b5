// Attention on packed bytes against the reference, over a grid that covers every value of every
// axis and all pairs of values. --full takes more; --short takes short cases and every fifth common
// one, for a build whose sanitizers look at the memory of each path, not at its arithmetic.
//
// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <cstring>
#include <limits>
#include <memory>

#include "bound.h"
#include "grid.h"

namespace {

bool g_full = false;
bool g_short = false;
// Coprime to the numbers of values of all axes, so that all of them occur.
constexpr size_t kEvery = 5;

struct Path {
    const char *name;
    uint32_t mask;
};
const Path kPaths[] = {{"widest", 0},
                       {"no avx512", LK_CPU_NO_AVX512},
                       {"baseline", LK_CPU_NO_AVX512 | LK_CPU_NO_AVX2 | LK_CPU_NO_NEON}};

class Paths {
  public:
    Paths() : reference_(LK_CPU_REFERENCE_ONLY, 0) {
        for (const Path &path : kPaths)
            for (const uint32_t threads : {1u, 3u})
                fast_.push_back(std::make_unique<HostDevice>(path.mask, threads));
    }
    // How many paths failed.
    int check(const Case &c) {
        Scene scene(c);
        Outputs expected;
        std::string message;
        if (!run_scene(scene, reference_.device(), &expected, &message))
            return report(c, "reference", message);
        int failures = 0;
        std::vector<Outputs> clean(fast_.size());
        for (size_t i = 0; i < fast_.size(); i += 2) {
            message = "";
            if (run_scene(scene, fast_[i]->device(), &clean[i], &message) &&
                run_scene(scene, fast_[i + 1]->device(), &clean[i + 1], &message))
                message = !(clean[i] == clean[i + 1]) ? "1 and 3 threads differ"
                                                      : scene.compare(clean[i], expected);
            if (!message.empty())
                failures += report(c, kPaths[i / 2].name, message);
        }
        scene.spoil_queries();
        failures += check_spoiled(scene, "reference", reference_.device(), expected);
        for (size_t i = 0; i < fast_.size(); i += 2)
            failures += check_spoiled(scene, kPaths[i / 2].name, fast_[i + 1]->device(), clean[i]);
        return failures;
    }

  private:
    // A path answers NaN for spoiled queries, and to all others what it answers without these, bit
    // for bit.
    static int check_spoiled(const Scene &spoiled, const char *path, const Device &device,
                             const Outputs &clean) {
        Outputs found;
        std::string message;
        if (run_scene(spoiled, device, &found, &message))
            message = spoiled.restore_spoiled(clean, &found);
        if (message.empty() && !(found == clean))
            message = "a spoiled query changes the rows of others";
        return message.empty() ? 0 : report(spoiled.parameters(), path, message);
    }
    static int report(const Case &c, const char *path, const std::string &message) {
        print_error("%s: %s\n  %s\n", path, message.c_str(), describe(c).c_str());
        return 1;
    }
    HostDevice reference_;
    std::vector<std::unique_ptr<HostDevice>> fast_;
};

void attention_matches_reference(void **) {
    Paths paths;
    int failures = 0;
    size_t n = 0;
    for (uint64_t seed = 0; seed < (g_full ? 12u : 1u); ++seed)
        for (const Case &c : covering_cases(g_short ? Grid::kShort : Grid::kWhole, seed * 977)) {
            failures += paths.check(c);
            ++n;
            if (failures > 20)
                break;
        }
    print_message("%zu cases\n", n);
    assert_int_equal(failures, 0);
}

void check_shapes(const std::vector<Case> &cases) {
    Paths paths;
    int failures = 0;
    for (const Case &c : every_case(cases, g_short ? kEvery : 1))
        failures += paths.check(c);
    assert_int_equal(failures, 0);
}
void common_shapes_match_reference(void **) { check_shapes(common_cases()); }
void chanmix_shapes_match_reference(void **) { check_shapes(chanmix_cases()); }
void one_bit_values_match_reference(void **) { check_shapes(one_bit_cases()); }
void spans_match_reference(void **) { check_shapes(span_cases()); }
void rotated_keys_match_reference(void **) { check_shapes(rotated_cases()); }
void grouped_pages_match_reference(void **) { check_shapes(grouped_cases()); }
void ratios_match_reference(void **) { check_shapes(ratio_cases()); }
void wide_items_match_reference(void **) { check_shapes(every_case(wide_item_cases(), 3)); }
void plain_f8_pages_match_reference(void **) { check_shapes(every_case(plain_f8_cases(), 3)); }
void wide_heads_match_reference(void **) { check_shapes(wide_cases()); }
void value_dims_match_reference(void **) { check_shapes(value_dim_cases()); }
void latent_layers_match_reference(void **) { check_shapes(latent_cases()); }
void short_pages_match_reference(void **) { check_shapes(every_case(short_page_cases(), 3)); }

// The bound of tensor cores holds for arithmetic that is better than theirs, and finds what is
// wrong in one output, and what is wrong a little in all.
void tensor_core_bound_can_fail(void **) {
    HostDevice reference(LK_CPU_REFERENCE_ONLY, 0), fast(0, 1);
    size_t n = 0;
    std::vector<Case> cases = covering_cases(Grid::kShort, 7);
    for (const std::vector<Case> &more : {value_dim_cases(), latent_cases()})
        for (const Case &c : every_case(more, 9))
            cases.push_back(c);
    for (const Case &c : cases) {
        const Scene scene(c), absolute(c, SceneValues::kMagnitudes);
        Outputs expected, magnitudes, found;
        std::string message;
        assert_true(run_scene(scene, reference.device(), &expected, &message));
        assert_true(run_scene(absolute, reference.device(), &magnitudes, &message));
        assert_true(run_scene(scene, fast.device(), &found, &message));
        const TensorCoreBound bound(scene, expected, magnitudes);
        message = bound.compare(found);
        if (!message.empty())
            fail_msg("%s\n  %s", message.c_str(), describe(c).c_str());
        const size_t at = (n++ * 7919) % expected.out.size();
        Outputs wrong = expected;
        wrong.out[at] += static_cast<float>(1.1 * bound.output_bound(at));
        assert_false(bound.compare(wrong).empty());
        wrong.out[at] = std::numeric_limits<float>::quiet_NaN();
        assert_false(bound.compare(wrong).empty());
        wrong = expected;
        for (size_t i = 0; i < wrong.out.size(); ++i)
            wrong.out[i] += static_cast<float>((i % 2 ? 1.1 : -1.1) * bound.output_deviation(i));
        assert_false(bound.compare(wrong).empty());
        if (!c.has_lse)
            continue;
        wrong = expected;
        wrong.lse[at % wrong.lse.size()] +=
            static_cast<float>(1.1 * bound.lse_bound(at % wrong.lse.size()));
        assert_false(bound.compare(wrong).empty());
    }
    print_message("%zu cases\n", n);
}

}  // namespace

int main(int argc, char **argv) {
    g_full = argc > 1 && std::strcmp(argv[1], "--full") == 0;
    g_short = argc > 1 && std::strcmp(argv[1], "--short") == 0;
    const CMUnitTest tests[] = {
        cmocka_unit_test(common_shapes_match_reference),
        cmocka_unit_test(chanmix_shapes_match_reference),
        cmocka_unit_test(one_bit_values_match_reference),
        cmocka_unit_test(spans_match_reference),
        cmocka_unit_test(rotated_keys_match_reference),
        cmocka_unit_test(grouped_pages_match_reference),
        cmocka_unit_test(ratios_match_reference),
        cmocka_unit_test(wide_items_match_reference),
        cmocka_unit_test(plain_f8_pages_match_reference),
        cmocka_unit_test(wide_heads_match_reference),
        cmocka_unit_test(value_dims_match_reference),
        cmocka_unit_test(latent_layers_match_reference),
        cmocka_unit_test(short_pages_match_reference),
        cmocka_unit_test(attention_matches_reference),
        cmocka_unit_test(tensor_core_bound_can_fail),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
