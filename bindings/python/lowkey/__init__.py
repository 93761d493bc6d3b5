# SPDX-License-Identifier: Apache-2.0
"""lowkey: a low-bit key/value cache for language models.

::

    import lowkey, numpy as np
    geometry = lowkey.Geometry.uniform(n_layers=2, n_query_heads=8, n_kv_heads=2, head_dim=64)
    with lowkey.Context() as context, lowkey.Cache(context, "kitty-pro", "64MiB", geometry=geometry) as cache:
        sequence = cache.add()
        with cache.step(sequence, n_tokens) as step:
            for layer in range(2):
                step.append(layer, k[layer], v[layer])     # [n_tokens, 2, 64]
                out = step.attend(layer, q[layer])         # [n_tokens, 8, 64]

The shared library is the file that the environment variable LOWKEY_LIBRARY names, else the one that the wheel contains,
else the ``liblowkey`` of the loader. ``python -m lowkey`` is the command ``lowkey``.
``lowkey.transformers`` puts the cache under models of Hugging Face transformers.
"""

from . import chunks
from ._library import build_info, version
from .arrays import Array, Tensor
from .cache import Cache, CacheStats, Pressure, Sequence, parse_bytes, state_bytes
from .calibrator import (
    COST_CLIPS,
    POSITION_SCALE,
    Auto,
    Calibrator,
    ChanMix,
    KeyScales,
    PmKvq,
    Probe,
    Rope,
    SampleCounts,
    ScaleSearch,
    key_scales,
    solve_widths,
)
from .context import Capability, Context, Device, Vulkan, devices, find_device
from .errors import (
    ArgumentError,
    BudgetError,
    BusyError,
    ClosedError,
    CorruptError,
    DataError,
    DeviceError,
    Error,
    FileError,
    InternalError,
    LibraryError,
    MismatchError,
    NotFoundError,
    OutOfMemoryError,
    StateError,
    UnsupportedError,
)
from .merging import merge
from .plan import (
    ALL,
    ChunkRule,
    Geometry,
    KeyRule,
    Layer,
    LayerRule,
    Plan,
    PlanSize,
    PlanSpec,
    ValueRule,
    Width,
    presets,
)
from .snapshot import SnapshotInfo, SnapshotSequence, inspect
from .step import StateMemory, Step

DRAFT_TOKENS = 64  #: new tokens of a sequence that a commit can drop, at most

__all__ = ['ALL', 'COST_CLIPS', 'DRAFT_TOKENS', 'POSITION_SCALE', 'ArgumentError', 'Array', 'Auto', 'BudgetError',
           'BusyError', 'Cache', 'CacheStats', 'Calibrator', 'Capability', 'ChanMix', 'ChunkRule', 'ClosedError',
           'Context', 'CorruptError', 'DataError', 'Device', 'DeviceError', 'Error', 'FileError', 'Geometry',
           'InternalError', 'KeyRule', 'KeyScales', 'Layer', 'LayerRule', 'LibraryError', 'MismatchError',
           'NotFoundError', 'OutOfMemoryError', 'Plan', 'PlanSize', 'PlanSpec', 'PmKvq', 'Pressure', 'Probe', 'Rope',
           'SampleCounts', 'ScaleSearch', 'Sequence', 'SnapshotInfo', 'SnapshotSequence', 'StateError', 'StateMemory',
           'Step', 'Tensor', 'UnsupportedError', 'ValueRule', 'Vulkan', 'Width', 'build_info', 'chunks', 'devices',
           'find_device', 'inspect', 'key_scales', 'merge', 'parse_bytes', 'presets', 'solve_widths',
           'state_bytes', 'version']
