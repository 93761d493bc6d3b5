// Divergences of a cost run from untrusted bytes: no crash and no cost beyond the bound; what is
// accepted is written to the same bytes, and gives costs where nothing is missing.
//
// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL
#include <lowkey/calibrate.h>
#include <xxhash.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "cost/cost.h"
#include "mutate.h"

namespace {

constexpr size_t kHashBytes = 8;

void require(bool condition) {
    if (!condition)
        std::abort();
}

lk_layer make_layer() {
    lk_layer layer;
    require(lk_layer_init(&layer, sizeof layer) == LK_OK);
    layer.n_query_heads = 2;
    layer.n_kv_heads = 1;
    layer.head_dim = 64;
    return layer;
}

lk_cost_run *make_run(const lk_geometry &geometry) {
    lk_cost_options options;
    require(lk_cost_options_init(&options, sizeof options) == LK_OK);
    options.n_kinds = 2;
    options.n_documents = 1;
    lk_cost_run *run = nullptr;
    require(lk_cost_run_create(&geometry, &options, &run) == LK_OK);
    return run;
}

void use(const lk_cost_run *run, const lk_geometry &geometry, const std::vector<uint8_t> &bytes) {
    std::vector<uint8_t> again(bytes.size());
    size_t needed = 0;
    require(lk_cost_run_to_bytes(run, again.data(), again.size(), &needed) == LK_OK);
    require(needed == bytes.size() && again == bytes);
    uint32_t n_measured = 0, n_trials = 0;
    require(lk_cost_run_get_counts(run, &n_measured, &n_trials) == LK_OK);
    lk_calibrator *calibrator = nullptr;
    require(lk_calibrator_create(&geometry, &calibrator) == LK_OK);
    const lk_status status = lk_cost_run_finish(run, calibrator);
    require(status == (n_measured == n_trials ? LK_OK : LK_E_STATE));
    lk_calibrator_destroy(&calibrator);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const lk_layer layer = make_layer();
    lk_geometry geometry;
    require(lk_geometry_init(&geometry, sizeof geometry) == LK_OK);
    geometry.n_layers = 1;
    geometry.layers = &layer;
    lk_cost_run *run = make_run(geometry);
    // As they are, and with a hash that fits.
    std::vector<uint8_t> bytes(data, data + size);
    for (int pass = 0; pass < 2; ++pass) {
        cost_begin();
        const lk_status status = lk_cost_run_resume(run, bytes.data() ? bytes.data() : data, size);
        cost_expect("divergences", size, 0, 0);
        if (status == LK_OK) {
            use(run, geometry, bytes);
            break;
        }
        if (size < kHashBytes)
            break;
        const uint64_t hash = XXH3_64bits(bytes.data(), size - kHashBytes);
        std::memcpy(bytes.data() + size - kHashBytes, &hash, sizeof hash);
    }
    lk_cost_run_destroy(&run);
    return 0;
}
