// Statistics from untrusted bytes: no crash; what is accepted can be written, read again and
// written to the same bytes, and makes a plan or says why not.
//
// SPDX-License-Identifier: Apache-2.0
#include <lowkey/calibrate.h>

#include <cstdlib>
#include <vector>

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
    if (lk_calibrator_from_bytes(data, size, &calibrator) != LK_OK) {
        require(!calibrator);
        return 0;
    }
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
