// Decode attention by teams of warps: a kernel serves all wide heads.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/decode/instances.h"
#include "cuda/decode/launch_method.cuh"

namespace lk {
namespace cuda {

// It has a name for the reason that `instance` has one.
namespace teams {

constexpr int kStrips = kTeamChannels / 16;
template <DecodeKind kKind>
using Team = WarpTeam<kStrips, kKind>;

template <class Method, DecodeKind kKind>
cudaError_t launch(const DecodeArgs &args, cudaStream_t stream) {
    return launch_method<Method, decode_warps(kMostTeamChannels, Method::kColumns, kKind)>(args,
                                                                                           stream);
}

}  // namespace teams

cudaError_t launch_teams(const DecodeArgs &args, cudaStream_t stream) {
    using namespace teams;
    if (args.kind == kDecodeF8By32)
        return launch<ByF16<kStrips, 1, kDecodeF8By32, Team<kDecodeF8By32>>, kDecodeF8By32>(args,
                                                                                            stream);
    if (args.kind == kDecodeF8Wide)
        return launch<BySplitK<kStrips, kDecodeF8Wide, Team<kDecodeF8Wide>>, kDecodeF8Wide>(args,
                                                                                            stream);
    if (args.kind == kDecodeF8)
        return launch<BySplitK<kStrips, kDecodeF8, Team<kDecodeF8>>, kDecodeF8>(args, stream);
    if (args.kind == kDecodeF16)
        return launch<BySplitK<kStrips, kDecodeF16, Team<kDecodeF16>>, kDecodeF16>(args, stream);
    if (args.kind == kDecodeF8Plain && args.tile_columns == 8)
        return launch<ByF16<kStrips, 1, kDecodeF8Plain, Team<kDecodeF8Plain>>, kDecodeF8Plain>(
            args, stream);
    // Reads FP16 parameters, too.
    if (args.tile_columns == 4)
        return launch<ByBytes<kStrips, kDecodeF8Plain, Team<kDecodeF8Plain>>, kDecodeF8Plain>(
            args, stream);
    return launch<ByF16<kStrips, 1, kDecodePlain, Team<kDecodePlain>>, kDecodePlain>(args, stream);
}

}  // namespace cuda
}  // namespace lk
