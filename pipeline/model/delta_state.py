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
        channels: C, the number of channels.
        heads, head_dim: H and K, the number and the width of query and key heads.
        value_heads, value_dim: HV and V, the number and the width of value heads.
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
        """H K, the number of query channels, which is also the number of key channels."""
        return self.heads * self.head_dim

    @property
    def value_channels(self) -> int:
        """HV V, the number of value channels."""
        return self.value_heads * self.value_dim

    @property
    def mixed_channels(self) -> int:
        """D, the number of channels of the convolution: queries, keys and values side by side."""
        return 2 * self.key_channels + self.value_channels

    @property
    def cuts(self) -> tuple[int, int]:
        """The indices of the first key channel and of the first value channel among the D channels."""
        return self.key_channels, 2 * self.key_channels

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Size in bytes of one stream's state in a layer whose weights are in `dtype`."""
        recurrent = self.value_heads * self.head_dim * self.value_dim * torch.float32.itemsize
        return recurrent + (KEPT * self.mixed_channels * dtype.itemsize if self.short_convolution else 0)


def streaming_config(channels: int, heads: int) -> DeltaAttentionConfig:
    """The config of a global block's layer, with as many heads, of the same width, as the attention that it replaces.

    Raises:
        ValueError: `channels` is not a multiple of `heads`.
    """
    if channels % heads:
        raise ValueError(f"channels must be a multiple of heads, got {channels} and {heads}")
    width = channels // heads
    return DeltaAttentionConfig(channels, heads, width, value_heads=heads, value_dim=width)


@dataclass(frozen=True, slots=True)
class DeltaAttentionState:
    """The state of one layer, with one row per stream: either the rows for one call, or all rows of a pool.

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
        """A snapshot: a copy that shares no memory with this state."""
        return DeltaAttentionState(
            self.recurrent.clone(), None if self.convolution is None else self.convolution.clone()
        )

    def reset(self, rows: Tensor) -> None:
        """Zero the state's rows with the numbers `rows` [n], in place. No number may be -1."""
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
        cu_seqlens: [N + 1] token offsets at which a batch of 1 is cut; None if each row of the batch is a sequence.
        cu_seqlens_cpu: the same offsets on the CPU, so that the kernel is selected by the longest sequence without
            waiting for the device.
        rows: [N] numbers of the pool rows to read, -1 for padding; None if the state is not a pool.
        written_rows: [N] numbers of the pool rows to write, -1 to write nothing; None to write the rows in `rows`.
    """

    cu_seqlens: Tensor | None = None
    cu_seqlens_cpu: Tensor | None = None
    rows: Tensor | None = None
    written_rows: Tensor | None = None

    def longest(self, tokens: int) -> int:
        """Number of tokens in the longest sequence. If the offsets are only on the device: `tokens`, an upper bound."""
        cuts = self.cu_seqlens_cpu
        if cuts is None and self.cu_seqlens is not None and self.cu_seqlens.device.type == "cpu":
            cuts = self.cu_seqlens
        return tokens if cuts is None or len(cuts) < 2 else int(cuts.diff().max())


WHOLE = Sequences()
"""Each row of the batch is one sequence."""
