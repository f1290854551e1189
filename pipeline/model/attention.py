"""How tokens are mixed: within a frame or across the frames of a stream, by attention or by a scan of the stream."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from .delta_attention import KimiDeltaAttention
from .rope import Rotation

EPS = 1e-5


class Mixer(Protocol):
    """Mixes tokens [F, P, C] by a block's mixing layer; gives [F, P, C] in the dtype of that layer's weights."""

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor: ...


class Attend(Protocol):
    """Mixes the values of tokens by their queries and keys."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Queries and keys float32 or `value`'s dtype, all [F, P, H, D]; gives [F, P, H, D] in `value`'s dtype."""


class MemoryStep(Protocol):
    """One step of some streams' memory. Layers are counted among their kind: attention, or `kda`."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store keys and values [F, P, H, D] of a layer."""

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """Attention of queries [F, P, H, D] to what their streams remember, this step included."""

    def scan(self, layer: int, attention: KimiDeltaAttention, tokens: Tensor) -> Tensor:
        """Tokens [F, P, C] through a `kda` layer, from its streams' states on; gives the same shape."""


def mix_within_frame(layer: nn.Module, tokens: Tensor) -> Tensor:
    """Each frame alone, without positions."""
    out: Tensor = layer(tokens, attend_frame)
    return out


def attend_frame(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each frame by itself: softmax(q k^T / sqrt(D)) v."""
    query, key, value = (tensor.to(value.dtype).transpose(1, 2) for tensor in (query, key, value))
    return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class FrameMixer:
    """Each frame alone, with positions within the frame."""

    rotation: Rotation

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor:
        out: Tensor = layer(tokens, self._attend)
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_frame(self.rotation.apply(query), self.rotation.apply(key), value)


@dataclass(frozen=True, slots=True)
class GlobalMixer:
    """Each frame with what its stream remembers. Keys go into the memory normalised and rotated.

    Attributes:
        rotation: positions in time and within the frame.
        memory: one step of the streams' memory.
        index: number of the block among those that attend.
    """

    rotation: Rotation
    memory: MemoryStep
    index: int

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor:
        out: Tensor = layer(tokens, self._attend)
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.memory.append(self.index, self.rotation.apply(key).to(value.dtype), value)
        return self.memory.attend(self.index, self.rotation.apply(query).to(value.dtype))


@dataclass(frozen=True, slots=True)
class DeltaMixer:
    """Each frame after all that its stream has had, by Kimi Delta Attention; it knows no positions.

    Attributes:
        memory: one step of the streams' memory.
        index: number of the block among those with this mixer.
    """

    memory: MemoryStep
    index: int

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor:
        assert isinstance(layer, KimiDeltaAttention), "the block was made with this mixer"
        return self.memory.scan(self.index, layer, tokens)


class Attention(nn.Module):
    """Projections around attention. Parameters: `qkv`, `proj`, and with `qk_norm` also `q_norm`, `k_norm`.

    Args:
        channels: C.
        heads: H.
        qk_norm: whether queries and keys are layer-normalised over D, in float32.
        dtype: number format of the projections.
    """

    def __init__(self, channels: int, heads: int, *, qk_norm: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self._heads = heads
        head_dim = channels // heads
        self.qkv = nn.Linear(channels, 3 * channels, dtype=dtype)
        self.q_norm = nn.LayerNorm(head_dim, eps=EPS) if qk_norm else None
        self.k_norm = nn.LayerNorm(head_dim, eps=EPS) if qk_norm else None
        self.proj = nn.Linear(channels, channels, dtype=dtype)

    def forward(self, tokens: Tensor, attend: Attend) -> Tensor:
        """Attention over tokens [F, P, C] in any float dtype; gives [F, P, C] in the projections' dtype."""
        query, key, value = self.packed(tokens).unbind(2)  # [F, P, H, D] each
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query.float()), self.k_norm(key.float())
        mixed = attend(query, key, value).flatten(-2)
        out: Tensor = self.proj(mixed)
        return out

    def packed(self, tokens: Tensor) -> Tensor:
        """Queries, keys and values of tokens [F, P, C], neither normalised nor rotated: [F, P, 3, H, D]."""
        packed: Tensor = self.qkv(tokens.to(self.qkv.weight.dtype))
        return packed.view(*packed.shape[:-1], 3, self._heads, -1)
