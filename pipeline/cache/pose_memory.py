"""The camera head's memory in one step: one token per keyframe, for each layer, which later frames attend to.

The tokens lie in a `KVCachePool` of their own, with pages of one token. A stream's `StreamWindow` says which of them a
frame sees, as for the tokens of the blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ..config import StreamConfig
from .kv_pool import KVCachePool
from .stream_cache import StreamState, planned
from .window import CacheLayout, StepPlan


def pose_layout(stream: StreamConfig) -> CacheLayout:
    """The layout of a stream's pose memory, which holds the scale frames and all keyframes of the epoch.

    Without epochs, it keeps the last `history_frames` keyframes, or `window` if that is more.
    """
    per_step = stream.frames_per_step
    kept = stream.epoch_frames - 1 if stream.epoch_frames else max(stream.history_frames, stream.window)
    return CacheLayout(
        frame_tokens=1,
        front_pages=per_step - per_step // stream.keyframe_interval,
        window_frames=max(kept, per_step),
        pinned_pages=stream.scale_frames,
        scale_frames=stream.scale_frames,
        keyframe_interval=stream.keyframe_interval,
        history_frames=0,
        entry_tokens=1,
        frames_per_step=per_step,
    )


@dataclass(frozen=True, slots=True, eq=False)
class PoseTables:
    """Which slots each of a step's F frames writes and sees, in arrays that kernels read on the device.

    Attributes:
        times: float64 [F], number of frames committed to the stream before each frame.
        slots: int64 [F], the slot of each frame's own token.
        seen: int64 [F, S], the slots that each frame sees, its own included. Unused entries repeat its own slot.
        bias: float32 [F, S], 0 for slots that are seen, -inf for unused entries.
    """

    times: Tensor
    slots: Tensor
    seen: Tensor
    bias: Tensor

    @classmethod
    def empty(cls, frames: int, width: int, device: torch.device) -> Self:
        """Make tables for F frames, each of which sees up to S = `width` slots; their contents are arbitrary."""
        return cls(
            torch.empty(frames, dtype=torch.float64, device=device),
            torch.empty(frames, dtype=torch.int64, device=device),
            torch.empty(frames, width, dtype=torch.int64, device=device),
            torch.empty(frames, width, device=device),
        )

    def copy_(self, other: "PoseTables") -> None:
        """Start a copy from tables of the same shape, without waiting until it is done."""
        for target, source in zip(self._all, other._all, strict=True):
            target.copy_(source, non_blocking=True)

    def to(self, device: torch.device) -> "PoseTables":
        """Start a copy to a device and return it, without waiting until it is done."""
        return PoseTables(*(table.to(device, non_blocking=True) for table in self._all))

    def pinned(self) -> "PoseTables":
        """A copy in page-locked host memory."""
        return PoseTables(*(table.pin_memory() for table in self._all))

    @property
    def _all(self) -> tuple[Tensor, ...]:
        return self.times, self.slots, self.seen, self.bias


class PoseStep:
    """One step of the pose memories of several streams; `commit` makes it take effect.

    If the step fails, its streams must be reset.

    Args:
        states: the streams' memories, all of one pool.
        frames: for each stream, its number of frames in this step, or its plan.

    Raises:
        ValueError: a stream cannot have so many frames in this step.
    """

    def __init__(self, states: Sequence[StreamState], frames: Sequence[int | StepPlan]) -> None:
        self.pool = states[0].pool
        self._states = tuple(states)
        self._plans = tuple(planned(state, count) for state, count in zip(states, frames, strict=True))
        self._frames = [
            (state.span.start, frame) for state, plan in zip(states, self._plans, strict=True) for frame in plan.frames
        ]

    @property
    def capacity(self) -> int:
        """The largest number of slots that a frame of these streams can ever see."""
        return max(state.window.layout.slots for state in self._states)

    def tables(self, width: int | None = None) -> PoseTables:
        """Make the tables, on the host.

        Args:
            width: S, the number of slots per frame; None for as many as are needed.
        """
        sights = [
            np.concatenate([np.arange(base + start, base + stop) for start, stop in frame.visible])
            for base, frame in self._frames
        ]
        own = np.array([base + frame.slot for base, frame in self._frames])
        most = max(map(len, sights)) if width is None else width
        seen = np.repeat(own[:, None], most, axis=1)
        bias = np.full((len(sights), most), -np.inf, np.float32)
        for row, sight in enumerate(sights):
            seen[row, : len(sight)] = sight
            bias[row, : len(sight)] = 0
        times = torch.tensor([float(frame.number) for _, frame in self._frames], dtype=torch.float64)
        return PoseTables(times, torch.from_numpy(own), torch.from_numpy(seen), torch.from_numpy(bias))

    def memory(self) -> "PooledPoses":
        """The memory for a step that is not captured, on the pool's device."""
        return PooledPoses(self.pool, self.tables().to(self.pool.shape.device))

    def commit(self) -> None:
        """Make the step take effect."""
        for state, plan in zip(self._states, self._plans, strict=True):
            state.window = plan.after


class PooledPoses:
    """The pose memories of a step's frames; implements `model.camera_head.PoseMemory`.

    Args:
        pool: holds the streams' tokens.
        tables: the step's tables, on the pool's device.
    """

    def __init__(self, pool: KVCachePool, tables: PoseTables) -> None:
        self.times = tables.times
        self._pool = pool
        self._tables = tables

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `PoseMemory.attend`."""
        tables = self._tables
        keys, values = self._pool.layer(layer).unbind(0)
        keys.index_copy_(0, tables.slots, key[:, 0])
        values.index_copy_(0, tables.slots, value[:, 0])
        scale = query.shape[-1] ** -0.5
        scores = torch.einsum("fhd,fshd->fhs", query[:, 0] * scale, keys[tables.seen]) + tables.bias[:, None]
        return torch.einsum("fhs,fshd->fhd", scores.softmax(-1), values[tables.seen])[:, None]
