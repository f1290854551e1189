"""Small caches for tests: random tokens, steps over them, and a float64 oracle of the results."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from retinad.pipeline.cache.attention_backend import AttentionBackend
from retinad.pipeline.cache.backends.dense import DenseBackend
from retinad.pipeline.cache.backends.paged import PagedBackend
from retinad.pipeline.cache.kv_pool import KVCachePool, PoolShape
from retinad.pipeline.cache.step import Step
from retinad.pipeline.cache.stream_cache import StreamState
from retinad.pipeline.cache.window import CacheLayout, StreamWindow
from retinad.pipeline.config import StreamConfig

LAYERS, P, S, H, D = 2, 5, 3, 2, 8
TOLERANCE = 1e-6
"""Absolute, on outputs of about 1: float32 attention over at most 100 tokens against float64."""

BACKENDS: dict[str, AttentionBackend] = {"dense": DenseBackend(), "paged": PagedBackend()}


def new_pool(limit_bytes: int | None = None) -> KVCachePool:
    return KVCachePool(PoolShape(LAYERS, H, D, torch.float32, torch.device("cpu")), limit_bytes)


def new_state(stream: StreamConfig, pool: KVCachePool | None = None, frame_tokens: int = P) -> StreamState:
    return StreamState.allocate(pool or new_pool(), StreamWindow(CacheLayout.of(stream, frame_tokens, S)))


def poison(pool: KVCachePool, states: Sequence[StreamState]) -> None:
    """Write NaN to every slot of the pool that no later step of these streams may see."""
    for index in range(LAYERS):
        kept = [read(state, index) for state in states]
        pool.layer(index).fill_(math.nan)
        for state, parts in zip(states, kept, strict=True):
            for target, part in zip(state.kept(index), parts, strict=True):
                target.copy_(part)


def read(state: StreamState, index: int) -> list[Tensor]:
    """A copy of a layer's slots that later steps can see."""
    return [part.clone() for part in state.kept(index)]


def read_all(state: StreamState) -> Tensor:
    """A copy of all slots that later steps can see: [LAYERS, 2, n, H, D]."""
    nothing = state.layer(0)[:, :0]
    return torch.stack([torch.cat([nothing, *read(state, index)], dim=1) for index in range(state.pool.shape.layers)])


def write_all(state: StreamState, tokens: Tensor) -> None:
    """Write to a state what `read_all` returned for a state with an equal window."""
    for index, layer in enumerate(tokens):
        targets = state.kept(index)
        parts = layer.split_with_sizes([target.shape[1] for target in targets], dim=1)
        for target, part in zip(targets, parts, strict=True):
            target.copy_(part)


def tokens(seed: int, frames: int, frame_tokens: int = P) -> Tensor:
    """Random query, key and value of every layer: [LAYERS, 3, frames, frame_tokens, H, D]."""
    return torch.randn(LAYERS, 3, frames, frame_tokens, H, D, generator=torch.Generator().manual_seed(seed))


def run(states: list[StreamState], parts: list[Tensor], backend: AttentionBackend) -> Tensor:
    """One step: `parts[i]` of `tokens` into `states[i]`; outputs [LAYERS, frames, P, H, D]."""
    joined = torch.cat(parts, dim=2)
    outputs = []
    with Step(states, [part.shape[2] for part in parts], backend) as step:
        for layer in range(LAYERS):
            step.append(layer, joined[layer, 1], joined[layer, 2])
            outputs.append(step.attend(layer, joined[layer, 0]))
        step.commit()
    return torch.stack(outputs)


class Oracle:
    """Attention in float64 over lists of whole frames and of the special tokens of evicted frames."""

    def __init__(self, stream: StreamConfig) -> None:
        self.stream = stream
        self.scale: list[Tensor] = []
        self.window: list[Tensor] = []
        self.evicted: list[Tensor] = []
        self.later = 0

    def run(self, part: Tensor) -> Tensor:
        part = part.double()
        frames = [part[:, :, i] for i in range(part.shape[2])]  # [LAYERS, 3, P, H, D] each
        if self.scale or self.window:
            return torch.cat(
                [self._attend(part[:, :, i : i + 1], self._see([frames[i]])) for i in range(len(frames))], 1
            )
        return self._attend(part, self._see(frames))

    def _attend(self, part: Tensor, seen: list[Tensor]) -> Tensor:
        memory = torch.cat(seen, dim=2)
        scores = torch.einsum("lfphd,lnhd->lfhpn", part[:, 0], memory[:, 1]) / math.sqrt(D)
        return torch.einsum("lfhpn,lnhd->lfphd", scores.softmax(-1), memory[:, 2])

    def _see(self, frames: list[Tensor]) -> list[Tensor]:
        if not self.scale and not self.window:
            if self.stream.retention.include_scale_frames:
                self.scale = frames
            else:
                self._remember(frames)
            return frames
        keyframe = self.later % self.stream.keyframe_interval == 0
        self.later += 1
        if not keyframe:
            return self.scale + self.window + self._history() + frames
        self._remember(frames)
        return self.scale + self.window + self._history()

    def _remember(self, frames: list[Tensor]) -> None:
        everything = self.window + frames
        self.evicted += everything[: -self.stream.window]
        self.window = everything[-self.stream.window :]

    def _history(self) -> list[Tensor]:
        retention, most = self.stream.retention, self.stream.history_frames
        kept = 0 if not retention.cross_frame_special else 1 if retention.camera_only else S
        return [frame[:, :, :kept] for frame in (self.evicted[-most:] if most else [])]
