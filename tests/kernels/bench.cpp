// Times attention of one layer, for docs/performance.md: bench [threads] [tokens].
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "harness.h"

namespace {

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

double median(std::vector<double> times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// Every measurement reads a large buffer first, so that pages come from memory.
std::vector<char> g_flush(256u << 20, 1);
volatile uint64_t g_sink;
void flush() {
    uint64_t sum = 0;
    for (size_t i = 0; i < g_flush.size(); i += 64)
        sum += static_cast<uint64_t>(g_flush[i]);
    g_sink = sum;
}

double copy_bandwidth() {
    std::vector<char> from(128u << 20, 1), to(128u << 20, 2);
    std::vector<double> times;
    for (int i = 0; i < 7; ++i) {
        const double start = seconds();
        std::memcpy(to.data(), from.data(), from.size());
        times.push_back(seconds() - start);
    }
    return static_cast<double>(from.size()) / median(times);
}

double page_bytes(const Case &c) {
    double bytes = 0;
    for (const lk::Side side : {lk::Side::kKey, lk::Side::kValue})
        bytes += static_cast<double>(lk::payload_bytes(packed_shape(c, side)) +
                                     lk::metadata_bytes(packed_shape(c, side)));
    return bytes * c.packed_pages * c.n_kv_heads;
}

double time_case(const Case &c, const Device &device, bool cold, int runs) {
    const Scene scene(c);
    PlacedScene placed(scene, device);
    std::string message;
    std::vector<double> times;
    for (int i = 0; i < runs; ++i) {
        if (cold)
            flush();
        const double start = seconds();
        placed.attend(&message);
        times.push_back(seconds() - start);
    }
    return median(times);
}

}  // namespace

int main(int argc, char **argv) {
    const auto threads = static_cast<uint32_t>(argc > 1 ? std::atoi(argv[1]) : 1);
    const auto tokens = static_cast<uint32_t>(argc > 2 ? std::atoi(argv[2]) : 8192);
    const auto mask = static_cast<uint32_t>(argc > 3 ? std::atoi(argv[3]) : 0);
    HostDevice host(mask, threads);
    std::printf("memcpy, one thread: %.1f GB/s\n", copy_bandwidth() * 1e-9);
    Case c;
    c.head_dim = 128;
    c.n_kv_heads = 8;
    c.sink_tokens = 0;
    c.tail_tokens = 0;
    c.packed_pages = tokens / 128;
    const struct {
        const char *name;
        uint32_t key_bits, value_bits, boosted, n_shared, group, f8;
    } rows[] = {{"fp16", 16, 16, 0, 0, 0, 0},      {"int8", 8, 8, 0, 0, 0, 0},
                {"kivi4", 4, 4, 0, 0, 0, 0},       {"kivi2", 2, 2, 0, 0, 0, 0},
                {"kitty-pro", 2, 2, 32, 0, 0, 0},  {"2 bits, 32", 2, 2, 0, 0, 32, 1},
                {"4 bits, 32", 4, 4, 0, 0, 32, 1}, {"chanmix", 2, 2, 0, 13, 32, 1}};
    for (const auto &row : rows) {
        c.key_bits = row.key_bits;
        c.value_bits = row.value_bits;
        c.boosted = row.boosted;
        c.n_shared = row.n_shared;
        c.key_group = c.value_group = row.group;
        c.f8 = row.f8;
        const double cold = time_case(c, host.device(), true, 15);
        const double warm = time_case(c, host.device(), false, 15);
        std::printf("decode %-10s cold %8.1f us %5.1f GB/s   warm %8.1f us\n", row.name, cold * 1e6,
                    page_bytes(c) / cold * 1e-9, warm * 1e6);
    }
    Case p;
    p.head_dim = 128;
    p.group = 2;
    p.n_kv_heads = 2;
    p.sink_tokens = 0;
    p.packed_pages = 0;
    p.tail_tokens = 0;
    p.n_new = 4096;
    const double prefill = time_case(p, host.device(), false, 3);
    std::printf("prefill 4096 x 4 heads %8.1f ms, %.1f GFLOP/s\n", prefill * 1e3,
                4096.0 * 4096 * 2 * 128 * 4 / prefill * 1e-9);
    return 0;
}
