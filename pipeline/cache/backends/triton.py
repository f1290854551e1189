"""The Triton backend: one kernel reads the visible ranges of slots, for all frames of a step."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from retinad.kernels.attention import attend_ranges

from ...errors import ModelError
from ..attention_backend import KeysValues, LayerAttention
from ..kv_pool import KVCachePool
from ..page_table import VisibleRanges
from ..window import Range, padded

CAPABILITY = (8, 0)
"""The oldest supported compute capability: the first whose devices can multiply bfloat16 matrices."""


class TritonBackend:
    """Calls the kernel once per layer, for the frames of any number of streams. Handles a wrapped history ring."""

    whole_pages = False

    def plan(self, pool: KVCachePool, visible: Sequence[VisibleRanges]) -> LayerAttention:
        """See `AttentionBackend`. All frames must have the same number of tokens, unless some see others beside."""
        if any(group.beside for group in visible):
            return _plan_beside(pool, visible)
        frame_tokens = visible[0].page_tokens
        if any(group.page_tokens != frame_tokens or group.rows % frame_tokens for group in visible):
            raise ValueError(f"expected whole frames of {frame_tokens} tokens, got {visible}")
        rows = [padded(group.ranges) for group in visible for _ in range(group.rows // frame_tokens)]
        ranges = _Ranges(rows, pool)

        def attend(layer: int, query: Tensor, beside: KeysValues | None = None) -> Tensor:
            assert beside is None, "planned for tokens in slots alone"
            frames = query.view(len(rows), frame_tokens, *query.shape[1:])
            return attend_ranges(frames, pool.layer(layer), ranges.tensor).flatten(0, 1)

        return attend


class _Ranges:
    # Made only when the first layer runs, since fused steps read their own tables; shared by all layers.
    def __init__(self, rows: Sequence[Sequence[Range]], pool: KVCachePool) -> None:
        self._rows, self._device = rows, pool.shape.device

    @cached_property
    def tensor(self) -> Tensor:
        return torch.tensor(self._rows, dtype=torch.int64).to(self._device, non_blocking=True)


def _plan_beside(pool: KVCachePool, visible: Sequence[VisibleRanges]) -> LayerAttention:
    # One call for each kind of group: those with as many queries that see as many tokens beside the slots.
    kinds: dict[tuple[int, int], list[int]] = {}
    for number, group in enumerate(visible):
        kinds.setdefault((group.rows, group.beside), []).append(number)
    ranges = {kind: _Ranges([padded(visible[n].ranges) for n in groups], pool) for kind, groups in kinds.items()}
    rows, own = [group.rows for group in visible], [group.beside for group in visible]

    def attend(layer: int, query: Tensor, beside: KeysValues | None = None) -> Tensor:
        assert beside is not None, "planned for tokens beside the slots"
        cache = pool.layer(layer)
        if len(kinds) == 1:  # the usual row: nothing is copied
            whole = [tokens.view(len(visible), -1, *tokens.shape[1:]) for tokens in (query, *beside)]
            (only,) = ranges.values()
            return attend_ranges(whole[0], cache, only.tensor, beside=(whole[1], whole[2])).flatten(0, 1)
        parts = [
            tokens.split_with_sizes(sizes) for tokens, sizes in ((query, rows), (beside[0], own), (beside[1], own))
        ]
        outputs: list[Tensor] = [query] * len(visible)
        for kind, groups in kinds.items():
            chosen = [torch.stack([part[n] for n in groups]) for part in parts]
            found = attend_ranges(chosen[0], cache, ranges[kind].tensor, beside=(chosen[1], chosen[2]))
            for number, output in zip(groups, found, strict=True):
                outputs[number] = output
        return torch.cat(outputs)

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
