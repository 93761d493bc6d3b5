// The node of a layer's attention in ggml's graph.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_GRAPH_H
#define LOWKEY_GRAPH_H

#include <cstdint>

struct lowkey_cuda;
struct lowkey_vulkan;

namespace lowkey {

class KvCache;

// The user data of one layer's node.
struct Node {
    KvCache *cache;
    uint32_t layer;  // of lowkey
    bool is_causal;  // a node whose attention is not fails, and with it the batch
};

// Gives a backend the calls that compute nodes there.
void set_node_calls(lowkey_cuda &calls);
void set_node_calls(lowkey_vulkan &calls);

}  // namespace lowkey

#endif
