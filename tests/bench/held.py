# SPDX-License-Identifier: Apache-2.0
"""What the codes of a cache stand for, out of its snapshot: for plans that statement.py does not state."""

import pathlib
import sys

import numpy as np
import torch

import binding

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / 'second_opinion'))

from snapshot import Snapshot  # noqa: E402


def what_a_snapshot_holds(cache: binding.Cache, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v [heads, tokens, head_dim] as float32, with those of the cache's one sequence replaced. Keys of a plan
    with centers lie without them, the later ones as a cache would hold them, too."""
    snapshot = Snapshot(bytes(cache.snapshot()), has_hashes=False)
    centers = [np.array(given if given else [0] * k.shape[2], np.float32) for given in snapshot.plan.centers]
    held_k = (k.float().cpu().numpy() - np.array(centers)[:, None]).astype(np.float16).astype(np.float32)
    held_v = v.float().cpu().numpy()
    for block in snapshot.sequences[0].blocks:
        for head, pages in enumerate(block.pages):
            for held, page in zip((held_k, held_v), pages):
                held[head, block.positions] = page.by_channel(page.values)[:block.n_tokens]
    held_k += np.array(centers)[:, None]
    return torch.from_numpy(held_k).to(k.device), torch.from_numpy(held_v).to(v.device)
