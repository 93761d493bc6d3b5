// Statistics from untrusted bytes: no crash and no cost beyond the bound; what is accepted can be
// written, read again and written to the same bytes, and makes a plan or says why not.
//
// SPDX-License-Identifier: Apache-2.0
#include <lowkey/calibrate.h>

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

std::vector<uint8_t> write(const lk_calibrator *calibrator) {
    size_t needed = 0;
    require(lk_calibrator_to_bytes(calibrator, nullptr, 0, &needed) == LK_OK);
    std::vector<uint8_t> bytes(needed);
    require(lk_calibrator_to_bytes(calibrator, bytes.data(), bytes.size(), &needed) == LK_OK);
    require(needed == bytes.size());
    return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lk_calibrator *calibrator = nullptr;
    cost_begin();
    const lk_status status = lk_calibrator_from_bytes(data, size, &calibrator);
    cost_expect("statistics", size, 0, 0);
    require((status == LK_OK) == (calibrator != nullptr));
    if (status != LK_OK)
        return 0;
    const std::vector<uint8_t> once = write(calibrator);
    lk_calibrator *again = nullptr;
    require(lk_calibrator_from_bytes(once.data(), once.size(), &again) == LK_OK);
    require(write(again) == once);
    lk_plan *plan = nullptr;
    if (lk_calibrator_chanmix(calibrator, nullptr, &plan) == LK_OK)
        require(lk_plan_validate(plan, nullptr) == LK_OK);
    lk_plan_destroy(&plan);
    lk_calibrator_destroy(&again);
    lk_calibrator_destroy(&calibrator);
    return 0;
}

// The header changes; its length is made to fit.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size,
                                          unsigned seed) {
    mutate::Random random(seed);
    uint64_t length = 0;
    if (size >= sizeof length)
        std::memcpy(&length, data, sizeof length);
    if (size < sizeof length || length > size - sizeof length || mutate::below(&random, 4) == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    std::string header(data + sizeof length, data + sizeof length + length);
    mutate::json(&header, &random);
    const std::string rest(data + sizeof length + length, data + size);
    length = header.size();
    std::string all(sizeof length, '\0');
    std::memcpy(&all[0], &length, sizeof length);
    return mutate::give(all + header + rest, data, max_size);
}
