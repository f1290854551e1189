"""The Triton backend: what each frame sees as ranges of places, read by one kernel for all frames of a step."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from retinad.kernels.attention import attend_ranges

from ...errors import ModelError
from ..kv_pool import KVCachePool
from ..page_table import VisibleRanges
from ..step import Attend
from ..window import padded

CAPABILITY = (8, 0)
"""Of the oldest devices that it runs on: bfloat16 products."""


class TritonBackend:
    """Frames of any number of streams in one call a layer; a history that goes round in its places is no matter."""

    whole_pages = False

    def plan(self, pool: KVCachePool, sights: Sequence[VisibleRanges]) -> Attend:
        """See `Backend`. All sights are of frames of one size."""
        frame_tokens = sights[0].page_tokens
        if any(sight.page_tokens != frame_tokens or sight.rows % frame_tokens for sight in sights):
            raise ValueError(f"expected whole frames of {frame_tokens} tokens, got {sights}")
        rows = [padded(sight.ranges) for sight in sights for _ in range(sight.rows // frame_tokens)]

        @cache  # for all layers, and not before the first: fused steps read tables of their own
        def ranges() -> Tensor:
            return torch.tensor(rows, dtype=torch.int64).to(pool.shape.device, non_blocking=True)

        def attend(layer: int, query: Tensor) -> Tensor:
            frames = query.view(len(rows), frame_tokens, *query.shape[1:])
            return attend_ranges(frames, pool.layer(layer), ranges()).flatten(0, 1)

        return attend


def check_device(device: torch.device) -> None:
    """Check that the kernel can run on a CUDA device.

    Raises:
        ModelError: it cannot; the message says why.
    """
    if (obstacle := device_obstacle(device)) is not None:
        raise ModelError(f"{obstacle}: set attention = 'dense'")


def device_obstacle(device: torch.device) -> str | None:
    """Why the kernel cannot run on a CUDA device, or None if it can."""
    if torch.cuda.get_device_capability(device) < CAPABILITY:
        return f"triton is used on devices of capability {CAPABILITY[0]}.{CAPABILITY[1]} or newer"
    return None
