"""The shape of a Kimi Delta Attention layer, the state that it keeps per stream, and how a call is cut into sequences.

Dimension letters are those of `delta_attention`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from retinad.kernels.kda.conv import KEPT


@dataclass(frozen=True, slots=True)
class DeltaAttentionConfig:
    """Shape and options of one layer.

    Attributes:
        channels: C.
        heads, head_dim: H and K, of queries and keys.
        value_heads, value_dim: HV and V, of values.
        lower_bound: None for the softplus gate, else the bound of the bounded gate, in [-5, 0).
        allow_neg_eigval: whether beta is in (0, 2) instead of (0, 1).
        short_convolution: whether queries, keys and values go through a causal convolution.
        norm_eps: epsilon of the output norm.
    """

    channels: int
    heads: int
    head_dim: int
    value_heads: int
    value_dim: int
    lower_bound: float | None = None
    allow_neg_eigval: bool = False
    short_convolution: bool = True
    norm_eps: float = 1e-5

    @property
    def key_channels(self) -> int:
        """H K."""
        return self.heads * self.head_dim

    @property
    def value_channels(self) -> int:
        """HV V."""
        return self.value_heads * self.value_dim

    @property
    def mixed_channels(self) -> int:
        """D: queries, keys and values side by side, the channels of the convolution."""
        return 2 * self.key_channels + self.value_channels

    @property
    def cuts(self) -> tuple[int, int]:
        """The first key channel and the first value channel among the D channels."""
        return self.key_channels, 2 * self.key_channels

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of a layer's state of one stream, with weights of `dtype`."""
        recurrent = self.value_heads * self.head_dim * self.value_dim * torch.float32.itemsize
        return recurrent + (KEPT * self.mixed_channels * dtype.itemsize if self.short_convolution else 0)


def streaming_config(channels: int, heads: int) -> DeltaAttentionConfig:
    """The layer of a global block: as many heads of the same width as attention has in its place.

    Raises:
        ValueError: `channels` is not a multiple of `heads`.
    """
    if channels % heads:
        raise ValueError(f"channels must be a multiple of heads, got {channels} and {heads}")
    width = channels // heads
    return DeltaAttentionConfig(channels, heads, width, value_heads=heads, value_dim=width)


@dataclass(frozen=True, slots=True)
class DeltaAttentionState:
    """The state of one layer, one row per stream: the rows of a call, or all rows of a pool.

    Attributes:
        recurrent: [N, HV, K, V] float32.
        convolution: [N, 3, D] in the layer's dtype, the last raw inputs of q, k and v, oldest first; None without a
            short convolution.
    """

    recurrent: Tensor
    convolution: Tensor | None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """`recurrent`, and `convolution` if there is one."""
        return (self.recurrent,) if self.convolution is None else (self.recurrent, self.convolution)

    def clone(self) -> "DeltaAttentionState":
        """A copy that shares no memory: a snapshot."""
        return DeltaAttentionState(
            self.recurrent.clone(), None if self.convolution is None else self.convolution.clone()
        )

    def reset(self, rows: Tensor) -> None:
        """Zero the state in `rows` [n], in place; none of them may be -1."""
        self.recurrent.index_fill_(0, rows.long(), 0)
        if self.convolution is not None:
            self.convolution.index_fill_(0, rows.long(), 0)


def new_state(config: DeltaAttentionConfig, rows: int, dtype: torch.dtype, device: torch.device) -> DeltaAttentionState:
    """The state of `rows` new streams, all zeros, for a layer whose weights are in `dtype`."""
    recurrent = torch.zeros(rows, config.value_heads, config.head_dim, config.value_dim, device=device)
    if not config.short_convolution:
        return DeltaAttentionState(recurrent, None)
    return DeltaAttentionState(recurrent, torch.zeros(rows, KEPT, config.mixed_channels, dtype=dtype, device=device))


@dataclass(frozen=True, slots=True)
class Sequences:
    """How the tokens of a call are cut into sequences, and which rows of a pool hold their state.

    Attributes:
        cu_seqlens: [N + 1] cuts of a batch of 1; None if each row of the batch is a sequence.
        cu_seqlens_cpu: the same on the CPU, so that the kernel is selected by the longest sequence without waiting for
            the device.
        rows: [N] pool rows that are read, -1 for padding; None if the state is not a pool.
        written_rows: [N] pool rows that are written, -1 to write nothing; None for `rows`.
    """

    cu_seqlens: Tensor | None = None
    cu_seqlens_cpu: Tensor | None = None
    rows: Tensor | None = None
    written_rows: Tensor | None = None

    def longest(self, tokens: int) -> int:
        """Tokens of the longest sequence; `tokens`, an upper bound, if the cuts are known on the device only."""
        cuts = self.cu_seqlens_cpu
        if cuts is None and self.cu_seqlens is not None and self.cu_seqlens.device.type == "cpu":
            cuts = self.cu_seqlens
        return tokens if cuts is None or len(cuts) < 2 else int(cuts.diff().max())


WHOLE = Sequences()
"""Each row of the batch is one sequence."""
