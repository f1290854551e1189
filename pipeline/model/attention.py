"""Token mixing: within a frame or across the frames of a stream, by attention or by a recurrent scan."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from .delta_attention import KimiDeltaAttention
from .rope import Rotation

EPS = 1e-5


class Mixer(Protocol):
    """Applies a block's mixing layer to tokens [F, P, C]; returns [F, P, C] in the dtype of the layer's weights."""

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor: ...


class AttentionFunction(Protocol):
    """Computes attention from the queries, keys and values of tokens."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute attention. The arguments and the result are [F, P, H, D].

        Queries and keys are float32 or have `value`'s dtype; the result has `value`'s dtype.
        """


class CacheStep(Protocol):
    """One step of the caches of a batch of streams. Attention layers and `kda` layers are numbered separately."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store a layer's keys and values [F, P, H, D]."""

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """Attend with queries [F, P, H, D] to the visible tokens of their streams, including those of this step."""

    def attend_rows(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend with queries [F, A, H, D] of each frame's row, see `cache.row_plan`.

        `key` and `value` [F, A - P, H, D] are those of the row's slots, which are not stored.
        """

    def attend_slots(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend with the X tokens of each slot [F, W, X, H, D] to the slot's frame and to themselves."""

    def scan(self, layer: int, attention: KimiDeltaAttention, tokens: Tensor) -> Tensor:
        """Run a `kda` layer over tokens [F, P, C], starting from the streams' states; returns the same shape."""


def mix_within_frame(layer: nn.Module, tokens: Tensor) -> Tensor:
    """Attention within each frame, without positions; a `Mixer`."""
    out: Tensor = layer(tokens, attend_frame)
    return out


def attend_frame(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v within each frame; an `AttentionFunction`."""
    query, key, value = (tensor.to(value.dtype).transpose(1, 2) for tensor in (query, key, value))
    return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class FrameMixer:
    """Attention within each frame, with the rotary positions of the tokens in the frame."""

    rotation: Rotation

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor:
        out: Tensor = layer(tokens, self._attend)
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_frame(self.rotation.apply(query), self.rotation.apply(key), value)


@dataclass(frozen=True, slots=True)
class GlobalMixer:
    """Attention of each frame to the visible tokens of its stream. Keys are cached after normalisation and rotation.

    Attributes:
        rotation: positions in time and within the frame.
        step: the step of the streams' caches.
        index: index of the block among the global blocks with attention.
    """

    rotation: Rotation
    step: CacheStep
    index: int

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor:
        out: Tensor = layer(tokens, self._attend)
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.step.append(self.index, self.rotation.apply(key).to(value.dtype), value)
        return self.step.attend(self.index, self.rotation.apply(query).to(value.dtype))


@dataclass(frozen=True, slots=True)
class DeltaMixer:
    """Kimi Delta Attention of each frame to all earlier frames of its stream, without positions.

    Attributes:
        step: the step of the streams' caches.
        index: index of the block among the global blocks with this mixer.
    """

    step: CacheStep
    index: int

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor:
        assert isinstance(layer, KimiDeltaAttention), "the block was built with this mixer"
        return self.step.scan(self.index, layer, tokens)


class Pool(Protocol):
    """Averages the tokens of each sequence: takes [..., P, C], returns [..., 1, C]."""

    def __call__(self, tokens: Tensor, /) -> Tensor: ...


def mean_token(tokens: Tensor) -> Tensor:
    """The mean over P of tokens [..., P, C]; a `Pool`."""
    return tokens.mean(-2, keepdim=True)


class Attention(nn.Module):
    """The projections before and after attention.

    Parameters: `qkv`, `proj`, with `qk_norm` also `q_norm` and `k_norm`, and with `gate` also `gate_proj`.

    Args:
        channels: C, the number of channels.
        heads: H, the number of heads.
        qk_norm: whether queries and keys are layer-normalised over D, in float32.
        dtype: number format of the projections.
        gate: whether each head's output is multiplied by a number from 0 to 1, sigmoid(gate_proj(mean token)), which is
            the same for all tokens of a sequence (the head gates of HorizonStream, arXiv 2605.23889).
    """

    def __init__(self, channels: int, heads: int, *, qk_norm: bool, dtype: torch.dtype, gate: bool = False) -> None:
        super().__init__()
        self._heads = heads
        head_dim = channels // heads
        self.qkv = nn.Linear(channels, 3 * channels, dtype=dtype)
        self.q_norm = nn.LayerNorm(head_dim, eps=EPS) if qk_norm else None
        self.k_norm = nn.LayerNorm(head_dim, eps=EPS) if qk_norm else None
        self.gate_proj = nn.Linear(channels, heads, dtype=dtype) if gate else None
        self.proj = nn.Linear(channels, channels, dtype=dtype)

    def forward(self, tokens: Tensor, attend: AttentionFunction, pool: Pool = mean_token) -> Tensor:
        """Attention over tokens [..., P, C] in any float dtype; returns [..., P, C] in the projections' dtype.

        `pool` averages the tokens of the sequences that share a gate.
        """
        query, key, value = self.packed(tokens).unbind(-3)  # [..., P, H, D] each
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query.float()), self.k_norm(key.float())
        mixed = attend(query, key, value)
        if self.gate_proj is not None:
            mixed = mixed * self.gate_proj(pool(tokens).to(self.gate_proj.weight.dtype)).sigmoid()[..., None]
        out: Tensor = self.proj(mixed.flatten(-2))
        return out

    def packed(self, tokens: Tensor) -> Tensor:
        """Queries, keys and values of tokens [..., P, C], before normalisation and rotation: [..., P, 3, H, D]."""
        packed: Tensor = self.qkv(tokens.to(self.qkv.weight.dtype))
        return packed.view(*packed.shape[:-1], 3, self._heads, -1)
