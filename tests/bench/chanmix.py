# SPDX-License-Identifier: Apache-2.0
"""The bytes of ChanMix without its calibration."""

import lowkey
from binding import BY_CHANNEL, F8_GROUP

SINKS, WINDOW = 32, 128


def chanmix(name: str, geometry: lowkey.Geometry) -> lowkey.Plan:
    """A plan of BY_CHANNEL: a share of the heads at 4 bits, spread over the layers, the rest at 2 bits with some
    channels at 3 and as many at 1; ranges of 32 in FP8."""
    by_channel = BY_CHANNEL[name]
    n_heads = sum(layer.n_kv_heads for layer in geometry.layers)
    n_retrieval, head, layers = round(by_channel.retrieval_share * n_heads), 0, []
    for layer in geometry.layers:
        keys, values = [], []
        for _ in range(layer.n_kv_heads):
            retrieves = (head + 1) * n_retrieval // n_heads > head * n_retrieval // n_heads
            widths = () if retrieves else tuple(by_channel.widths(layer.head_dim))
            keys.append(lowkey.KeyRule(4 if retrieves else 2, group=F8_GROUP, channel_bits=widths))
            values.append(lowkey.ValueRule(4 if retrieves else 2, F8_GROUP))
            head += 1
        layers.append(lowkey.LayerRule(tuple(keys), tuple(values), 'f8'))
    spec = lowkey.PlanSpec(name, sink_tokens=SINKS, recent_tokens=WINDOW, layers=tuple(layers))
    return lowkey.Plan.build(geometry, spec)
