// save-loop write PATH   save two caches over each other until somebody ends it
// save-loop check PATH   is the file there, and one of the two?
//
// SPDX-License-Identifier: Apache-2.0
#include <lowkey/lowkey.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr uint32_t kLayers = 2;
constexpr uint32_t kHeads = 4;
constexpr uint32_t kHeadDim = 128;
constexpr uint32_t kTokens[2] = {700, 1000};  // of the two caches' sequence

void require(bool condition) {
    if (condition)
        return;
    char sentence[512];
    lk_last_error(sentence, sizeof sentence, nullptr);
    std::fprintf(stderr, "%s\n", sentence);
    std::exit(1);
}

lk_tensor tensor(std::vector<float> *data) {
    lk_tensor made;
    require(lk_tensor_init(&made, sizeof made) == LK_OK);
    made.dtype = LK_F32;
    made.memory = LK_MEMORY_HOST;
    made.data = data->data();
    made.token_stride = int64_t{kHeads} * kHeadDim;
    made.head_stride = kHeadDim;
    return made;
}

void fill(lk_cache *cache, uint32_t n_tokens) {
    lk_sequence id = 0;
    require(lk_sequence_add(cache, &id) == LK_OK);
    std::vector<float> values(size_t{n_tokens} * kHeads * kHeadDim);
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(i * 2654435761u >> 8 & 0xffff) / 65536.0f;
    const lk_tensor both = tensor(&values);
    require(lk_step_begin(cache, nullptr, 1, &id, &n_tokens, nullptr) == LK_OK);
    for (uint32_t l = 0; l < kLayers; ++l)
        require(lk_append(cache, l, &both, &both) == LK_OK);
    require(lk_step_commit(cache, nullptr) == LK_OK);
}

lk_cache *open_cache(lk_context *context, uint32_t n_tokens) {
    lk_layer layers[kLayers];
    for (lk_layer &layer : layers) {
        require(lk_layer_init(&layer, sizeof layer) == LK_OK);
        layer.n_query_heads = layer.n_kv_heads = kHeads;
        layer.head_dim = kHeadDim;
    }
    lk_geometry geometry;
    require(lk_geometry_init(&geometry, sizeof geometry) == LK_OK);
    geometry.n_layers = kLayers;
    geometry.layers = layers;
    lk_plan *plan = nullptr;
    require(lk_plan_preset("int8", &geometry, &plan) == LK_OK);
    lk_cache_desc desc;
    require(lk_cache_desc_init(&desc, sizeof desc) == LK_OK);
    desc.max_step_tokens = n_tokens;
    desc.budget_bytes = 256u << 20;
    lk_cache *cache = nullptr;
    require(lk_cache_create(context, &geometry, plan, &desc, &cache) == LK_OK);
    lk_plan_destroy(&plan);
    fill(cache, n_tokens);
    return cache;
}

[[noreturn]] void write(const char *path) {
    lk_context *context = nullptr;
    require(lk_context_open(nullptr, LK_ABI_VERSION, &context) == LK_OK);
    lk_cache *caches[2] = {open_cache(context, kTokens[0]), open_cache(context, kTokens[1])};
    for (uint64_t i = 0;; ++i) {
        require(lk_snapshot_save_file(caches[i % 2], 0, nullptr, nullptr, path) == LK_OK);
        std::printf("%llu\n", static_cast<unsigned long long>(i));
        std::fflush(stdout);
    }
}

int check(const char *path) {
    lk_snapshot *snapshot = nullptr;
    require(lk_snapshot_open_file(path, &snapshot) == LK_OK);
    lk_snapshot_info info;
    require(lk_snapshot_info_init(&info, sizeof info) == LK_OK);
    require(lk_snapshot_get_info(snapshot, &info) == LK_OK);
    lk_snapshot_close(&snapshot);
    return info.n_tokens == kTokens[0] || info.n_tokens == kTokens[1] ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 3 && !std::strcmp(argv[1], "write"))
        write(argv[2]);
    return argc == 3 && !std::strcmp(argv[1], "check") ? check(argv[2]) : 2;
}
