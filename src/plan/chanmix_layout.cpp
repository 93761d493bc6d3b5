// The keys of a plan's head in ChanMix's own byte order, and codes to and from it.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "format/chanmix_bytes.h"
#include "plan/plan.h"

namespace lk {

namespace {

constexpr uint32_t kMaxChanmixDim = sizeof lk_chanmix_layout::byte;

// Channels of a head by width, each ascending.
class ByWidth {
  public:
    ByWidth(const Plan &plan, uint32_t layer, uint32_t head) {
        const uint32_t head_dim = plan.layers[layer].geometry.head_dim;
        const uint8_t *classes = plan.channel_bits(layer, head);
        for (uint32_t c = 0; c < head_dim; ++c) {
            const uint32_t bits = channel_width(classes ? classes[c] : plan.key(layer, head).bits,
                                                plan.layers[layer].rung);
            channels_[bits][n_[bits]++] = static_cast<uint8_t>(c);
        }
    }
    uint32_t count(uint32_t bits) const { return n_[bits]; }
    uint8_t channel(uint32_t bits, uint32_t i) const { return channels_[bits][i]; }

  private:
    uint8_t channels_[17][kMaxChanmixDim];
    uint32_t n_[17] = {};
};

void place(const ByWidth &from, uint32_t bits, uint32_t i, uint32_t *n, lk_chanmix_layout *out) {
    out->channel[*n] = from.channel(bits, i);
    out->bits[*n] = static_cast<uint8_t>(bits);
    ++*n;
}

// Wide channels, each outlier before its partner, then the others: half bytes close inside a head.
void order_channels(const ByWidth &from, lk_chanmix_layout *out) {
    uint32_t n = 0;
    for (const uint32_t bits : {8u, 4u})
        for (uint32_t i = 0; i < from.count(bits); ++i)
            place(from, bits, i, &n, out);
    const bool pairs = from.count(3) == from.count(1);
    for (uint32_t i = 0; i < from.count(3); ++i) {
        place(from, 3, i, &n, out);
        if (pairs)
            place(from, 1, i, &n, out);
    }
    for (uint32_t i = 0; i < from.count(2); ++i)
        place(from, 2, i, &n, out);
    for (uint32_t i = 0; !pairs && i < from.count(1); ++i)
        place(from, 1, i, &n, out);
}

lk_status check_place(const lk_chanmix_layout &layout, uint32_t i) {
    const uint32_t bits = layout.bits[i];
    if (layout.channel[i] >= layout.head_dim)
        return fail(LK_E_ARGUMENT, "layout.channel[%u] is %u, must be below head_dim %u", i,
                    layout.channel[i], layout.head_dim);
    if (bits < 1 || layout.shift[i] + bits > 8)
        return fail(LK_E_ARGUMENT, "layout.bits[%u] is %u at shift %u, must lie in a byte", i, bits,
                    layout.shift[i]);
    if (layout.byte[i] >= layout.token_bytes)
        return fail(LK_E_ARGUMENT, "layout.byte[%u] is %u, must be below token_bytes %u", i,
                    layout.byte[i], layout.token_bytes);
    return LK_OK;
}

lk_status import_layout(const lk_chanmix_layout *layout, lk_chanmix_layout *own) {
    lk_status status = import_struct(own, sizeof *own, sizeof *own, layout, "layout");
    if (status != LK_OK)
        return status;
    if (!own->head_dim || own->head_dim > kMaxChanmixDim)
        return fail(LK_E_ARGUMENT, "layout.head_dim is %u, must be from 1 to %u", own->head_dim,
                    kMaxChanmixDim);
    bool seen[kMaxChanmixDim] = {};
    uint8_t taken[256] = {};  // bits of each byte
    for (uint32_t i = 0; i < own->head_dim; ++i) {
        status = check_place(*own, i);
        if (status != LK_OK)
            return status;
        if (seen[own->channel[i]])
            return fail(LK_E_ARGUMENT,
                        "layout.channel[%u] is %u, which is there before: no permutation", i,
                        own->channel[i]);
        const uint32_t bits = ((1u << own->bits[i]) - 1) << own->shift[i];
        if (taken[own->byte[i]] & bits)
            return fail(LK_E_ARGUMENT, "layout.byte[%u] is %u, whose bits have another code", i,
                        own->byte[i]);
        seen[own->channel[i]] = true;
        taken[own->byte[i]] = static_cast<uint8_t>(taken[own->byte[i]] | bits);
    }
    return LK_OK;
}

}  // namespace

lk_status chanmix_layout(const Plan &plan, uint32_t layer, uint32_t head, lk_chanmix_layout *out) {
    *out = {};
    out->size = sizeof *out;
    out->head_dim = plan.layers[layer].geometry.head_dim;
    if (out->head_dim > kMaxChanmixDim)
        return fail(LK_E_ARGUMENT, "layer %u has head_dim %u, ChanMix's bytes hold %u channels",
                    layer, out->head_dim, kMaxChanmixDim);
    const ByWidth channels(plan, layer, head);
    if (plan.key(layer, head).boost_channels || channels.count(16))
        return fail(LK_E_ARGUMENT, "layer %u, KV head %u has %s, which ChanMix's bytes do not hold",
                    layer, head,
                    channels.count(16) ? "channels at 16 bits" : "channels that pages boost");
    order_channels(channels, out);
    out->token_bytes = chanmix_places(out->bits, out->head_dim, out->byte, out->shift);
    if (!out->token_bytes)
        return fail(
            LK_E_ARGUMENT,
            "layer %u, KV head %u has %u channels of 3 bits and %u of 1 bit, which close no "
            "bytes",
            layer, head, channels.count(3), channels.count(1));
    return LK_OK;
}

}  // namespace lk

extern "C" lk_status lk_chanmix_pack(const lk_chanmix_layout *layout, const uint8_t *codes,
                                     uint32_t n_tokens, uint8_t *bytes) {
    lk_chanmix_layout own = {};
    const lk_status status = lk::import_layout(layout, &own);
    if (status != LK_OK)
        return status;
    if (!codes || !bytes)
        return lk::fail(LK_E_ARGUMENT, "%s is NULL", codes ? "bytes" : "codes");
    for (uint32_t t = 0; t < n_tokens; ++t) {
        const uint8_t *from = codes + uint64_t{t} * own.head_dim;
        for (uint32_t i = 0; i < own.head_dim; ++i)
            if (from[own.channel[i]] >> own.bits[i])
                return lk::fail(LK_E_ARGUMENT,
                                "the code of token %u, channel %u is %u, beyond %u bits", t,
                                own.channel[i], from[own.channel[i]], own.bits[i]);
    }
    std::memset(bytes, 0, uint64_t{n_tokens} * own.token_bytes);
    for (uint32_t t = 0; t < n_tokens; ++t) {
        const uint8_t *from = codes + uint64_t{t} * own.head_dim;
        uint8_t *to = bytes + uint64_t{t} * own.token_bytes;
        for (uint32_t i = 0; i < own.head_dim; ++i)
            to[own.byte[i]] =
                static_cast<uint8_t>(to[own.byte[i]] | from[own.channel[i]] << own.shift[i]);
    }
    return LK_OK;
}

extern "C" lk_status lk_chanmix_unpack(const lk_chanmix_layout *layout, const uint8_t *bytes,
                                       uint32_t n_tokens, uint8_t *codes) {
    lk_chanmix_layout own = {};
    const lk_status status = lk::import_layout(layout, &own);
    if (status != LK_OK)
        return status;
    if (!codes || !bytes)
        return lk::fail(LK_E_ARGUMENT, "%s is NULL", bytes ? "codes" : "bytes");
    for (uint32_t t = 0; t < n_tokens; ++t) {
        const uint8_t *from = bytes + uint64_t{t} * own.token_bytes;
        uint8_t *to = codes + uint64_t{t} * own.head_dim;
        for (uint32_t i = 0; i < own.head_dim; ++i)
            to[own.channel[i]] = static_cast<uint8_t>((from[own.byte[i]] >> own.shift[i]) &
                                                      ((1u << own.bits[i]) - 1));
    }
    return LK_OK;
}
