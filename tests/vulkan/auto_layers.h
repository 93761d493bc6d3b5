// The layers of plans that `lowkey plan auto` made, whose heads have keys and values of many forms.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_VULKAN_AUTO_LAYERS_H
#define LK_TESTS_VULKAN_AUTO_LAYERS_H

#include <cstdint>
#include <vector>

namespace auto_layers {

// The keys and the values of a head.
struct Head {
    uint32_t key_group, n8, n4, n_shared;  // channels
    uint32_t value_bits, value_group;
};
using Layer = std::vector<Head>;

// Four layers that `lowkey plan auto` made, of 1.74, 2.76, 2.05 and 3.53 bits.
inline const std::vector<Layer> kAutoLayers = {
    {{128, 0, 0, 25, 1, 64},
     {128, 0, 0, 38, 1, 64},
     {128, 0, 0, 21, 1, 64},
     {128, 0, 0, 26, 1, 64},
     {128, 0, 0, 20, 1, 64},
     {128, 0, 0, 19, 1, 64},
     {64, 0, 32, 0, 1, 64},
     {128, 0, 16, 0, 1, 64}},
    {{64, 0, 16, 0, 1, 64},
     {64, 112, 16, 0, 4, 64},
     {32, 64, 64, 0, 4, 128},
     {64, 0, 16, 0, 1, 64},
     {128, 0, 16, 0, 1, 64},
     {128, 0, 16, 0, 1, 64},
     {128, 0, 0, 0, 1, 64},
     {128, 0, 0, 0, 1, 64}},
    {{128, 0, 0, 25, 2, 128},
     {128, 0, 0, 38, 1, 32},
     {128, 0, 0, 21, 1, 32},
     {128, 0, 0, 26, 1, 32},
     {128, 0, 16, 6, 1, 32},
     {128, 0, 16, 3, 2, 128},
     {32, 0, 48, 0, 2, 128},
     {128, 0, 16, 0, 1, 32}},
    {{64, 0, 80, 0, 2, 64},
     {32, 128, 0, 0, 4, 32},
     {64, 112, 16, 0, 4, 64},
     {64, 0, 96, 0, 2, 64},
     {32, 0, 32, 0, 2, 64},
     {64, 0, 32, 0, 2, 128},
     {64, 0, 32, 0, 2, 64},
     {64, 0, 16, 0, 2, 128}},
};

}  // namespace auto_layers

#endif
