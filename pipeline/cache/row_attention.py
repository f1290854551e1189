"""The attention of one step's rows, see `row_plan`, and what it stores of them."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from .allocator import Span
from .attention_backend import AttentionBackend
from .kv_pool import KVCachePool
from .row_plan import row_groups, sees_last, slot_groups
from .window import StepPlan


class RowAttention:
    """Attention of the F frames of several streams. For each layer: `append`, then one of the two other methods, once.

    Args:
        pool: storage of the streams.
        backend: computes attention.
        streams: the streams' slots and plans.

    Raises:
        ValueError: the backend does not support the step.
    """

    def __init__(self, pool: KVCachePool, backend: AttentionBackend, streams: Sequence[tuple[Span, StepPlan]]) -> None:
        self._pool = pool
        self._rows = [group for stream in streams for group in row_groups(*stream)]
        self._attend_rows = backend.plan(pool, self._rows)
        self._attend_slots = backend.plan(pool, [group for stream in streams for group in slot_groups(*stream)])
        # For each frame: where it is stored; the step's index of its stream's last frame; and whether it sees that.
        self._starts = [span.start + frame.slot for span, plan in streams for frame in plan.frames]
        counts = [len(plan.frames) for _, plan in streams]
        self._last = [end - 1 for end, count in zip(accumulate(counts), counts, strict=True) for _ in range(count)]
        self._sees_last = [sees_last(plan, frame) for _, plan in streams for frame in plan.frames]
        self._given: tuple[Tensor, Tensor] | None = None

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Take the keys and values [F, P, H, D] of a layer's P tokens; those of the last frames are stored later."""
        self._given = key, value
        self._store(layer, [frame for frame, last in enumerate(self._last) if frame != last])

    def attend_rows(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute the attention of whole rows.

        Args:
            layer: index of the layer.
            query: queries [F, A, H, D], in the pool's dtype.
            key, value: keys and values [F, A - P, H, D] of the slots' tokens.

        Returns:
            [F, A, H, D].
        """
        keys, values = (torch.cat(pair, dim=1) for pair in zip(self._own, (key, value), strict=True))
        active = [group.rows for group in self._rows]
        out = self._attend_rows(layer, _first(query, active), (_first(keys, active), _first(values, active)))
        self._finish(layer)
        if all(rows == query.shape[1] for rows in active):
            return out.view(query.shape)
        whole = values.clone()
        for row, part in zip(whole, out.split_with_sizes(active), strict=True):
            row[: len(part)] = part
        return whole

    def attend_slots(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute the attention of each slot's tokens to the frame that it stands for, and to themselves.

        Args:
            layer: index of the layer.
            query, key, value: [F, W, X, H, D] of the slots' tokens, in the pool's dtype.

        Returns:
            [F, W, X, H, D].
        """
        beside = tuple(self._with_last(*pair) for pair in zip((key, value), self._own, strict=True))
        out = self._attend_slots(layer, query.flatten(0, 2), (beside[0], beside[1])).view(query.shape)
        self._finish(layer)
        return out

    @property
    def _own(self) -> tuple[Tensor, Tensor]:
        assert self._given is not None, "the layer's P tokens have been appended"
        return self._given

    def _with_last(self, slots: Tensor, frames: Tensor) -> Tensor:
        # The slots' tokens, with the P tokens of the last frame before those of each slot that stands for it.
        parts: list[Tensor] = []
        for row, last, sees in zip(slots, self._last, self._sees_last, strict=True):
            parts += [row[:-1].flatten(0, 1), *([frames[last]] if sees else []), row[-1]]
        return torch.cat(parts)

    def _finish(self, layer: int) -> None:
        self._store(layer, sorted(set(self._last)))
        self._given = None

    def _store(self, layer: int, frames: Sequence[int]) -> None:
        buffer = self._pool.layer(layer)
        for target, source in zip(buffer, self._own, strict=True):
            for frame in frames:
                target[self._starts[frame] : self._starts[frame] + source.shape[1]] = source[frame]


def _first(tokens: Tensor, counts: Sequence[int]) -> Tensor:
    # The first tokens of each frame [F, A, ...], as many as `counts` says, one after another.
    if all(count == tokens.shape[1] for count in counts):
        return tokens.flatten(0, 1)
    return torch.cat([row[:count] for row, count in zip(tokens, counts, strict=True)])
