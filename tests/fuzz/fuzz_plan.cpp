// Plan JSON from untrusted bytes: no crash and no cost beyond the bound; what is accepted can be
// written, read again and written to the same bytes.
//
// SPDX-License-Identifier: Apache-2.0
#include <lowkey/plan.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cost/cost.h"
#include "mutate.h"

namespace {

void require(bool condition) {
    if (!condition)
        std::abort();
}

std::vector<char> write(const lk_plan *plan) {
    size_t needed = 0;
    require(lk_plan_to_json(plan, nullptr, 0, &needed) == LK_OK);
    std::vector<char> text(needed);
    require(lk_plan_to_json(plan, text.data(), text.size(), &needed) == LK_OK);
    require(needed == text.size() && std::strlen(text.data()) + 1 == needed);
    return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lk_plan *plan = nullptr;
    cost_begin();
    const lk_status status = lk_plan_from_json(reinterpret_cast<const char *>(data), size, &plan);
    cost_expect("a plan", size, 0, 0);
    require((status == LK_OK) == (plan != nullptr));
    if (status != LK_OK)
        return 0;
    const std::vector<char> once = write(plan);
    lk_plan *again = nullptr;
    require(lk_plan_from_json(once.data(), once.size() - 1, &again) == LK_OK);
    require(write(again) == once);
    cost_begin();
    const lk_status valid = lk_plan_validate(plan, nullptr);
    cost_expect("the validation of a plan", size, 0, 0);
    lk_plan_size bytes;
    require(lk_plan_size_init(&bytes, sizeof bytes) == LK_OK);
    if (once.size() < 4096 && valid == LK_OK)
        (void)lk_plan_bytes(plan, 4096, 1, 1, &bytes);
    lk_plan_destroy(&again);
    lk_plan_destroy(&plan);
    return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size,
                                          unsigned seed) {
    mutate::Random random(seed);
    if (mutate::below(&random, 4) == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    std::string text(data, data + size);
    mutate::json(&text, &random);
    mutate::fit_geometry_hash(&text);
    return mutate::give(text, data, max_size);
}
