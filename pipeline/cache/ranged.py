"""The Triton backend: what each frame sees as ranges of places, read by one kernel for all frames of a step."""

import importlib.util
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from retinad.kernels.attention import attend_ranges

from ..errors import ModelError
from .ledger import padded
from .page_table import Sight
from .pool import Pool, PoolShape
from .step import Attend

HEAD_DIMS = (64, 128)
DTYPES = (torch.float16, torch.bfloat16)
CAPABILITY = (8, 0)
"""Of the oldest devices that it runs on: bfloat16 products."""


class RangedBackend:
    """Frames of any number of streams in one call a layer; a history that goes round in its places is no matter."""

    whole_pages = False

    def plan(self, pool: Pool, sights: Sequence[Sight]) -> Attend:
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


def check_ranged(shape: PoolShape, dtype: torch.dtype) -> None:
    """Check that the kernel can run.

    Args:
        shape: of the pool that it will read.
        dtype: of the queries.

    Raises:
        ModelError: it cannot; the message says why.
    """
    if (obstacle := find_obstacle(shape, dtype)) is not None:
        raise ModelError(f"{obstacle}: set attention = 'dense'")


def find_obstacle(shape: PoolShape, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot run, or None if it can; see `check_ranged`."""
    if shape.device.type != "cuda":
        return f"triton runs on CUDA, not on {shape.device}"
    if dtype not in DTYPES:
        return f"triton attends in float16 or bfloat16, not in {str(dtype).removeprefix('torch.')}"
    if shape.head_dim not in HEAD_DIMS:
        return f"triton is used with heads of {HEAD_DIMS} channels, not {shape.head_dim}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (it comes with retinad[gpu])"
    if torch.cuda.get_device_capability(shape.device) < CAPABILITY:
        return f"triton is used on devices of capability {CAPABILITY[0]}.{CAPABILITY[1]} or newer"
    return None
