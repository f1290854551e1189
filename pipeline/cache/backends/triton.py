"""The Triton backend: one kernel reads the visible ranges of slots, for all frames of a step."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from retinad.kernels.attention import attend_ranges

from ...errors import ModelError
from ..attention_backend import KeysValues, LayerAttention
from ..kv_pool import KVCachePool
from ..page_table import VisibleRanges
from ..window import padded

CAPABILITY = (8, 0)
"""The oldest supported compute capability: the first whose devices can multiply bfloat16 matrices."""


class TritonBackend:
    """Calls the kernel once per layer, for the frames of any number of streams. Handles a wrapped history ring."""

    whole_pages = False

    def plan(self, pool: KVCachePool, visible: Sequence[VisibleRanges]) -> LayerAttention:
        """See `AttentionBackend`. All frames must have the same number of tokens, and none beside the slots."""
        frame_tokens = visible[0].page_tokens
        if any(group.beside for group in visible):
            raise ValueError(f"expected tokens in slots alone, got {visible}")
        if any(group.page_tokens != frame_tokens or group.rows % frame_tokens for group in visible):
            raise ValueError(f"expected whole frames of {frame_tokens} tokens, got {visible}")
        rows = [padded(group.ranges) for group in visible for _ in range(group.rows // frame_tokens)]

        @cache  # shared by all layers; made only when the first layer runs, since fused steps read their own tables
        def ranges() -> Tensor:
            return torch.tensor(rows, dtype=torch.int64).to(pool.shape.device, non_blocking=True)

        def attend(layer: int, query: Tensor, beside: KeysValues | None = None) -> Tensor:
            assert beside is None, "refused above"
            frames = query.view(len(rows), frame_tokens, *query.shape[1:])
            return attend_ranges(frames, pool.layer(layer), ranges()).flatten(0, 1)

        return attend


def check_device(device: torch.device) -> None:
    """Check that the kernel supports a CUDA device.

    Raises:
        ModelError: the kernel does not support the device; the message says why.
    """
    if (obstacle := device_obstacle(device)) is not None:
        raise ModelError(f"{obstacle}: set attention = 'dense'")


def device_obstacle(device: torch.device) -> str | None:
    """The reason why the kernel does not support a CUDA device, or None if it does."""
    if torch.cuda.get_device_capability(device) < CAPABILITY:
        return f"triton requires a device of capability {CAPABILITY[0]}.{CAPABILITY[1]} or newer"
    return None
