// Decode: the KV tiles that a warp reads, and its ring of asynchronous copies.
//
// A warp goes through its KV tiles, each keys first, then values. Both pages are copied in chunks
// of whole strips; while one chunk is multiplied the next one is on its way. Ranges and minima come
// with the first chunk of their page, into memory of their own.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_RING_CUH
#define LK_CUDA_DECODE_RING_CUH

#include "cuda/decode/team.cuh"

namespace lk {
namespace cuda {

constexpr uint32_t kRawStrips = 8;  // strips of a chunk of a tile of a raw block

// Where the bytes of KV tile `index` of an item are: packed pages come first, since they take
// longest.
struct KvTileSource {
    BlockInfo block;
    Entry entry;
};
template <uint32_t kRowTiles>
__device__ __forceinline__ KvTileSource find_kv_tile(const DecodeArgs &args, const WorkItem &item,
                                                     uint32_t index) {
    uint32_t block = item.packed_begin + index;
    if (index >= item.packed_count) {
        block = (index - item.packed_count) / kRowTiles;
        block = block < item.raw_count[0] ? item.raw_begin[0] + block
                                          : item.raw_begin[1] + block - item.raw_count[0];
    }
    KvTileSource source;
    source.block = args.step.blocks[item.first_block + block];
    source.entry = reinterpret_cast<const Entry *>(
        source.block.entries)[args.layer.first_entry + item.kv_head];
    return source;
}

__device__ inline KvTile make_page(const DecodeArgs &args, const KvTileTemplate &common,
                                   const Entry &entry) {
    KvTile kv_tile = common.kv_tile;
    if (entry.key_format != common.key_format || entry.value_format != common.value_format) {
        fill_side(&kv_tile, args.step.formats[entry.key_format], 0);
        fill_side(&kv_tile, args.step.formats[entry.value_format], 1);
        // Factors of shared slots are among what was laid out.
        if (kv_tile.n_shared != common.kv_tile.n_shared ||
            (kv_tile.n_shared && kv_tile.end4 != common.kv_tile.end4))
            kv_tile.flags |= kHasOwnOrder;
    }
    kv_tile.side[0].metadata = entry.key_metadata;
    kv_tile.side[1].metadata = entry.value_metadata;
    return kv_tile;
}

__device__ inline KvTile make_tile(const DecodeArgs &args, const BlockInfo &block, uint32_t tile,
                                   uint32_t n_tokens) {
    const uint32_t tiles = block.capacity_tokens / 16;
    const bool is_there = tile < tiles && block.first_token + tile * 16 < n_tokens;
    const uint32_t bytes = is_there ? args.layer.head_dim / 16 * 512 : 0;
    KvTile kv_tile{};
    kv_tile.side[0] = {0, 0, bytes, kRawStrips * 512, 0};
    kv_tile.side[1] = {0, 0, bytes, kRawStrips * 512, 0};
    kv_tile.strip_stride = tiles * 512;
    kv_tile.is_raw = kRawTile;
    kv_tile.tile = static_cast<uint8_t>(tile);
    return kv_tile;
}

// The warp's KV tiles of an item from its own index `turn` on: every n_warps-th one is. Returns
// how many there are, at most kWarpKvTiles. A raw block counts as kRowTiles of them. The ring does
// not copy pages at 16 bits among packed ones where kSkipsRawPages is true.
template <uint32_t kRowTiles, bool kSkipsRawPages, class Team>
__device__ inline uint32_t find_kv_tiles(const DecodeArgs &args, const WorkItem &item,
                                         uint32_t n_tokens, uint32_t turn, KvTile *kv_tiles,
                                         const Team &team, uint32_t n_warps, uint32_t lane) {
    const uint32_t n_readers = team.readers(n_warps);
    const uint32_t n_raw = kRowTiles * (item.raw_count[0] + item.raw_count[1]);
    const uint32_t n_kv_tiles = n_raw + item.packed_count;
    const uint32_t first = team.reader() + turn * n_readers;
    const uint32_t n_mine =
        first < n_kv_tiles ? min((n_kv_tiles - first + n_readers - 1) / n_readers, kWarpKvTiles)
                           : 0;
    if (lane < n_mine) {
        const uint32_t index = first + lane * n_readers;
        const KvTileSource source = find_kv_tile<kRowTiles>(args, item, index);
        const uint32_t tile = (index - item.packed_count) % kRowTiles;
        const bool is_raw = index >= item.packed_count;
        KvTile kv_tile = is_raw ? make_tile(args, source.block, tile, n_tokens)
                                : make_page(args, args.templates[item.kv_head], source.entry);
        const uint32_t offset = is_raw ? tile * 512 : 0;
        kv_tile.side[0].payload = source.entry.key_payload + offset;
        kv_tile.side[1].payload = source.entry.value_payload + offset;
        kv_tile.first_token = source.block.first_token;
        if (kSkipsRawPages && !is_raw && kv_tile.value_bits == 16) {
            kv_tile.side[0].bytes = kv_tile.side[1].bytes = 0;
            kv_tile.is_raw = kRawPage;
        }
        team.take_part(&kv_tile);
        kv_tiles[lane] = kv_tile;
    }
    __syncwarp();
    return n_mine;
}

// The readers that have KV tiles of an item are the first ones; one at least.
template <uint32_t kRowTiles>
__device__ __forceinline__ uint32_t readers_with_kv_tiles(const WorkItem &item,
                                                          uint32_t n_readers) {
    const uint32_t n = kRowTiles * (item.raw_count[0] + item.raw_count[1]) + item.packed_count;
    return min(max(n, 1u), n_readers);
}

// n runs of 512 bytes, 16 of them by this lane.
__device__ __forceinline__ void copy_by_lanes(uint32_t to, uint64_t from, uint32_t stride,
                                              uint32_t n) {
#pragma unroll 1
    for (; n; --n, to += 512, from += stride)
        copy_async(to, reinterpret_cast<const void *>(from));
}

// Where a ring's copies arrive. Hopper copies whole runs with one instruction and counts bytes at a
// barrier in shared memory; before it, each lane copies 16 bytes at a time.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
class Arrivals {
  public:
    __device__ __forceinline__ Arrivals(uint32_t barriers, uint32_t lane)
        : barriers_(barriers), lane_(lane) {}
    static __device__ __forceinline__ void open(uint32_t barriers) {
        for (uint32_t i = 0; i < 2; ++i)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barriers + i * 8) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // Ordinary stores before it stay before copies after the next barrier.
    static __device__ __forceinline__ void fence() {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __device__ __forceinline__ void expect(uint32_t slot, uint32_t bytes) const {
        if (lane_ == 0)
            asm volatile(
                "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barriers_ + slot * 8),
                "r"(bytes)
                : "memory");
    }
    __device__ __forceinline__ void copy(uint32_t slot, uint32_t to, uint64_t from,
                                         uint32_t bytes) const {
        if (lane_ == 0 && bytes)
            start(slot, to, from, bytes);
    }
    // kCount parts, a lane each.
    template <uint32_t kCount, class PartOf>
    __device__ __forceinline__ void copy_parts(uint32_t slot, PartOf part_of) const {
        const MetadataPart part = part_of(lane_);
        if (lane_ < kCount && part.bytes)
            start(slot, part.to, part.from, part.bytes);
    }
    // Many short runs, which the copying unit would take one after the other: 512 bytes each, by
    // lanes.
    __device__ __forceinline__ void copy_runs(uint32_t to, uint64_t from, uint32_t stride,
                                              uint32_t n) const {
        copy_by_lanes(to + lane_ * 16, from + lane_ * 16, stride, n);
    }
    __device__ __forceinline__ void close() const { commit_copies(); }
    // Wait until the copies of a slot, in its use `use`, are there; kLater were issued after them.
    template <int kLater>
    __device__ __forceinline__ void wait(uint32_t slot, uint32_t use) const {
        asm volatile(
            "{\n.reg .pred there;\nagain:\n"
            "mbarrier.try_wait.parity.shared.b64 there, [%0], %1;\n@!there bra again;\n}" ::"r"(
                barriers_ + slot * 8),
            "r"(use & 1u)
            : "memory");
        wait_copies<kLater>();
        __syncwarp();
    }

    __device__ __forceinline__ uint32_t barriers() const { return barriers_; }
    __device__ __forceinline__ uint32_t lane() const { return lane_; }

  private:
    __device__ __forceinline__ void start(uint32_t slot, uint32_t to, uint64_t from,
                                          uint32_t bytes) const {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[%0],[%1],%2,[%3];" ::"r"(to),
            "l"(from), "r"(bytes), "r"(barriers_ + slot * 8)
            : "memory");
    }

    const uint32_t barriers_;
    const uint32_t lane_;
};
#else
class Arrivals {
  public:
    __device__ __forceinline__ Arrivals(uint32_t, uint32_t lane) : lane_(lane) {}
    __device__ __forceinline__ uint32_t barriers() const { return 0; }
    __device__ __forceinline__ uint32_t lane() const { return lane_; }
    static __device__ __forceinline__ void open(uint32_t) {}
    static __device__ __forceinline__ void fence() {}
    __device__ __forceinline__ void expect(uint32_t, uint32_t) const {}
    __device__ __forceinline__ void copy(uint32_t, uint32_t to, uint64_t from,
                                         uint32_t bytes) const {
        const char *source = reinterpret_cast<const char *>(from);
#pragma unroll 2
        for (uint32_t at = lane_ * 16; at < bytes; at += kWarp * 16)
            copy_async(to + at, source + at);
    }
    template <uint32_t kCount, class PartOf>
    __device__ __forceinline__ void copy_parts(uint32_t slot, PartOf part_of) const {
#pragma unroll 1
        for (uint32_t i = 0; i < kCount; ++i) {
            const MetadataPart part = part_of(i);
            copy(slot, part.to, part.from, part.bytes);
        }
    }
    __device__ __forceinline__ void copy_runs(uint32_t to, uint64_t from, uint32_t stride,
                                              uint32_t n) const {
        copy_by_lanes(to + lane_ * 16, from + lane_ * 16, stride, n);
    }
    __device__ __forceinline__ void close() const { commit_copies(); }
    template <int kLater>
    __device__ __forceinline__ void wait(uint32_t, uint32_t) const {
        wait_copies<kLater>();
        __syncwarp();
    }

  private:
    const uint32_t lane_;
};
#endif

// What a ring copies next.
struct RingState {
    uint32_t side_address;  // of a KvTileSide: the KV tile's, or 32 bytes after it
    uint32_t end;           // of the KV tiles
    uint32_t offset;        // of the next copy in its page
    uint32_t issued;        // chunks, twice, and one more where the side is that of values
};
// Where it copies to: shared.
struct RingPlaces {
    uint32_t memory;  // two slots of kChunkBytes, then the metadata of keys
    uint32_t value_metadata;
};
// How the metadata of a side, `bytes` in all, are copied: at once, or the parts of a team's member.
struct CopyMetadata {
    __device__ __forceinline__ void operator()(const Arrivals &arrivals, uint32_t slot, uint32_t to,
                                               uint32_t side_address, bool, uint32_t bytes) const {
        arrivals.copy(slot, to, load_shared_address(side_address + 8), bytes);
    }
};
template <class Team>
struct CopyPartsOfMetadata {
    const Team &team;

    __device__ __forceinline__ void operator()(const Arrivals &arrivals, uint32_t slot, uint32_t to,
                                               uint32_t side_address, bool is_values,
                                               uint32_t bytes) const {
        if (!bytes)
            return;
        const uint64_t from = load_shared_address(side_address + 8);
        arrivals.template copy_parts<Team::kMetadataParts>(slot, [&](uint32_t i) {
            return is_values ? team.value_metadata(side_address - 32, to, from, bytes, i)
                             : team.key_metadata(side_address, to, from, bytes, i);
        });
    }
};
// Start the next copy; everything is uniform in the warp.
template <class Copy>
__device__ __forceinline__ RingState issued_copy(RingState state, const RingPlaces &places,
                                                 const Arrivals &arrivals, const Copy &copy) {
    const uint32_t slot = state.issued >> 1 & 1u;
    const bool is_values = state.issued & 1u;
    // Tiles of 16-bit blocks may lie after the last token.
    if (!is_values)
#pragma unroll 1
        while (state.side_address < state.end && !load_shared1(state.side_address + 16))
            state.side_address += kKvTileBytes;
    state.issued += 2;
    if (state.side_address >= state.end) {
        // An empty turn, so that uses and slots go on in step.
        arrivals.expect(slot, 0);
        arrivals.close();
        return state;
    }
    const uint32_t to = places.memory + slot * kChunkBytes;
    const uint32_t sizes = load_shared1(state.side_address + 20);
    const uint32_t chunk = sizes & 0xFFFFu;
    const uint64_t payload = load_shared_address(state.side_address);
    const uint32_t total = load_shared1(state.side_address + 16);
    const uint32_t bytes = min(chunk, total - state.offset);
    const uint32_t position = state.side_address - (is_values ? 32 : 0) + 80;
    if (load_shared1(position + 8) & 0xFFu) {
        const uint32_t stride = load_shared1(position + 4);
        arrivals.copy_runs(to, payload + state.offset / 512 * stride, stride, bytes / 512);
        arrivals.expect(slot, 0);
    } else {
        const uint32_t metadata_bytes = state.offset ? 0 : sizes >> 16;
        arrivals.expect(slot, bytes + metadata_bytes);
        if (!state.offset)
            copy(arrivals, slot,
                 is_values ? places.value_metadata : places.memory + 2 * kChunkBytes,
                 state.side_address, is_values, metadata_bytes);
        arrivals.copy(slot, to, payload + state.offset, bytes);
    }
    arrivals.close();
    state.offset += bytes;
    if (state.offset == total) {
        state.offset = 0;
        state.side_address += is_values ? kKvTileBytes - 32 : 32;
        state.issued ^= 1u;
    }
    return state;
}
// The same out of line, for places that need its code more than once in a page.
static __device__ __noinline__ RingState issued_copy_apart(RingState state, RingPlaces places,
                                                           uint32_t barriers, uint32_t lane) {
    return issued_copy(state, places, Arrivals(barriers, lane), CopyMetadata{});
}

// Issues copies in the order in which chunks are used; everything is uniform in the warp.
template <class Team>
class Ring {
  public:
    // KV tiles: shared, the warp's. memory: shared, two slots of kChunkBytes, then the metadata of
    // keys, then of values, then what the warp makes of a page: queries in its order, parameters.
    __device__ __forceinline__ Ring(uint32_t kv_tiles, uint32_t memory, const DecodeArgs &args,
                                    const Arrivals &arrivals, const Team &team)
        : arrivals_(arrivals),
          team_(team),
          kv_tiles_(kv_tiles),
          places_{memory, memory + 2 * kChunkBytes + args.key_metadata_bytes},
          own_(places_.value_metadata + args.value_metadata_bytes),
          widened_(own_ + args.own_bytes -
                   decode_widened_bytes(args.key_metadata_bytes, args.value_metadata_bytes)) {}

    // Start the first n_kv_tiles KV tiles; all earlier ones are used up. A call of follow() comes
    // later, before the first wait(), so that the copies that all warps need first are not delayed.
    __device__ __forceinline__ void start(uint32_t n_kv_tiles) {
        state_.side_address = using_ = kv_tiles_;
        state_.end = kv_tiles_ + n_kv_tiles * kKvTileBytes;
        used_ = state_.issued >> 1;
        issue();
    }
    __device__ __forceinline__ void follow() { issue(); }

    __device__ __forceinline__ bool has_more() const { return using_ < state_.end; }
    __device__ __forceinline__ uint32_t kv_tile() const { return using_; }
    __device__ __forceinline__ bool is_empty() const { return !load_shared1(using_ + 16); }
    __device__ __forceinline__ void next_kv_tile() { using_ += kKvTileBytes; }

    // Wait for the chunk that is used next; returns its address.
    __device__ __forceinline__ uint32_t wait() const {
        const uint32_t slot = used_ & 1u;
        arrivals_.wait<1>(slot, used_ >> 1);
        return places_.memory + slot * kChunkBytes;
    }
    // Wait for the chunk after that one, too.
    __device__ __forceinline__ void wait_after() const {
        const uint32_t use = used_ + 1;
        arrivals_.wait<0>(use & 1u, use >> 1);
    }
    // The chunk is used up: copy another one over it.
    __device__ __forceinline__ void next() {
        __syncwarp();
        ++used_;
        issue();
    }
    // The same by code out of line, but for teams, whose copies need more than a ring's state.
    __device__ __forceinline__ void next_apart() {
        if constexpr (Team::kIsTeam) {
            next();
        } else {
            __syncwarp();
            ++used_;
            state_ = issued_copy_apart(state_, places_, arrivals_.barriers(), arrivals_.lane());
        }
    }
    __device__ __forceinline__ const Team &team() const { return team_; }
    // The sums of a team, by way of the chunk that is used up and not yet copied over.
    template <int kCount, class At>
    __device__ __forceinline__ void add_up(uint32_t lane, At at) const {
        static_assert(kCount * 128 <= kChunkBytes, "all of them fit");
        team_.template give<kCount>(places_.memory + (used_ & 1u) * kChunkBytes, lane, at);
        team_.meet();
        team_.template take_sums<kCount>(lane, at);
        Arrivals::fence();
        team_.meet();
    }
    __device__ __forceinline__ uint32_t key_metadata() const {
        return places_.memory + 2 * kChunkBytes;
    }
    __device__ __forceinline__ uint32_t value_metadata() const { return places_.value_metadata; }
    __device__ __forceinline__ uint32_t own_queries() const { return own_; }
    __device__ __forceinline__ uint32_t widened_keys() const { return widened_; }
    __device__ __forceinline__ uint32_t widened_values() const {
        return widened_ + 2 * (value_metadata() - key_metadata());
    }

  private:
    __device__ __forceinline__ void issue() {
        if constexpr (Team::kIsTeam)
            state_ = issued_copy(state_, places_, arrivals_, CopyPartsOfMetadata<Team>{team_});
        else
            state_ = issued_copy(state_, places_, arrivals_, CopyMetadata{});
    }

    const Arrivals arrivals_;
    const Team team_;
    const uint32_t kv_tiles_;
    const RingPlaces places_;
    const uint32_t own_;
    const uint32_t widened_;
    RingState state_ = {0, 0, 0, 0};
    uint32_t using_ = 0;  // the KV tile at use
    uint32_t used_ = 0;   // chunks
};

// The fields of a KV tile that its products need.
struct Keys {
    uint32_t permutation_offset;
    uint32_t minima_offset;
    uint32_t end16, end8, end4;
    uint32_t n_groups;
    uint32_t n_shared;
    bool has_own_order;
    bool is_f8;
    // Of a member's part of a page: are all channels of the page 16 bits, and see KvTile.
    bool is_raw_page;
    uint32_t plane2_strips;
    uint32_t outlier_strip;
};
struct Values {
    uint32_t minima_offset;
    uint32_t bits;
    uint32_t n_groups;
    uint32_t group_strips;
    bool is_f8;
};
struct Position {
    uint32_t first_token;  // of the block
    uint32_t tile;
    bool is_raw;
};
__device__ __forceinline__ Position read_position(uint32_t kv_tile) {
    const uint4 p = load_shared4(kv_tile + 80);
    return {p.x, p.z >> 8 & 0xFFu, (p.z & 0xFFu) != 0};
}
template <class Team>
__device__ __forceinline__ Keys read_keys(uint32_t kv_tile) {
    const uint4 s = load_shared4(kv_tile + 64);
    const auto own = [&](uint32_t offset) {
        return Team::kIsTeam ? load_shared_byte(kv_tile + offset) : 0;
    };
    return {s.y & 0xFFFFu,
            s.x & 0xFFFFu,
            s.y >> 16 & 0xFFu,
            s.y >> 24,
            s.z & 0xFFu,
            s.z >> 16 & 0xFFu,
            s.w >> 16,
            (s.z >> 8 & kHasOwnOrder) != 0,
            (s.z >> 8 & kHasF8Keys) != 0,
            (s.z >> 8 & kIsRawPage) != 0,
            own(kPlane2Offset),
            own(kPlane2Offset + 3)};
}
__device__ __forceinline__ Values read_values(uint32_t kv_tile) {
    const uint4 s = load_shared4(kv_tile + 64);
    return {s.x >> 16, s.w >> 8 & 0xFFu, s.z >> 24, s.w & 0xFFu, (s.z >> 8 & kHasF8Values) != 0};
}

}  // namespace cuda
}  // namespace lk

#endif
