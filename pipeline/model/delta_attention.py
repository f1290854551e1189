"""The Kimi Delta Attention layer (arXiv 2510.26692): a stream's whole past in one matrix per head, of constant size.

Dimension letters: T tokens, C channels, H query/key heads, HV value heads, K and V widths of a key and a value,
N sequences of a call, D = 2 H K + HV V channels of the short convolution.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from retinad.kernels.backend import runs_triton
from retinad.kernels.kda import chunk_kda, fused_recurrent_kda
from retinad.kernels.kda.conv import KEPT, WIDTH, short_convolution
from retinad.kernels.kda.gated_norm import gated_rms_norm

from .merged_weights import MergedWeights

FEW_TOKENS = 64
"""Tokens a sequence up to which one pass token by token is the faster kernel."""

BOUND_KEY = "lower_bound"
"""Where a bounded gate is stored with the weights; softplus weights have no such key, as the public ones."""


@dataclass(frozen=True, slots=True)
class DeltaAttentionConfig:
    """Shape and options of one layer. `lower_bound` None is the softplus gate, else the bounded one, in [-5, 0)."""

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
        return self.heads * self.head_dim

    @property
    def value_channels(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def mixed_channels(self) -> int:
        """D: queries, keys and values side by side, as the convolution sees them."""
        return 2 * self.key_channels + self.value_channels

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of what a layer keeps of one stream, with weights of `dtype`."""
        recurrent = self.value_heads * self.head_dim * self.value_dim * torch.float32.itemsize
        return recurrent + (KEPT * self.mixed_channels * dtype.itemsize if self.short_convolution else 0)

    @property
    def cuts(self) -> tuple[int, int]:
        """Where, among D channels, keys begin and where values begin."""
        return self.key_channels, 2 * self.key_channels


def streaming_config(channels: int, heads: int) -> DeltaAttentionConfig:
    """The layer of a global block: as many heads, as wide, as attention in its place has.

    Raises:
        ValueError: channels are no multiple of heads.
    """
    if channels % heads:
        raise ValueError(f"channels are a multiple of heads, got {channels} and {heads}")
    width = channels // heads
    return DeltaAttentionConfig(channels, heads, width, value_heads=heads, value_dim=width)


@dataclass(frozen=True, slots=True)
class DeltaAttentionState:
    """What one layer keeps of its streams, one row a stream; the rows of a call, or a pool of slots.

    recurrent: [N, HV, K, V] float32. convolution: [N, 3, D], the last raw inputs of q, k and v, oldest first, in the
    layer's dtype; None without a short convolution.
    """

    recurrent: Tensor
    convolution: Tensor | None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What there is of the two."""
        return (self.recurrent,) if self.convolution is None else (self.recurrent, self.convolution)

    def clone(self) -> "DeltaAttentionState":
        """A copy that shares nothing: a snapshot."""
        return DeltaAttentionState(
            self.recurrent.clone(), None if self.convolution is None else self.convolution.clone()
        )

    def reset(self, slots: Tensor) -> None:
        """Make the streams of `slots` [n] (no -1 among them) new ones: their rows become zeros, in place."""
        self.recurrent.index_fill_(0, slots.long(), 0)
        if self.convolution is not None:
            self.convolution.index_fill_(0, slots.long(), 0)


def new_state(config: DeltaAttentionConfig, rows: int, dtype: torch.dtype, device: torch.device) -> DeltaAttentionState:
    """States of `rows` new streams, zeros, for a layer whose weights are of `dtype`."""
    recurrent = torch.zeros(rows, config.value_heads, config.head_dim, config.value_dim, device=device)
    if not config.short_convolution:
        return DeltaAttentionState(recurrent, None)
    return DeltaAttentionState(recurrent, torch.zeros(rows, KEPT, config.mixed_channels, dtype=dtype, device=device))


@dataclass(frozen=True, slots=True)
class Sequences:
    """How the tokens of a call are cut, and where the state of each sequence lives.

    cu_seqlens: [N+1] cuts of a batch of 1, or None: every row of the batch is a sequence. cu_seqlens_cpu: the same on
    the CPU, which lets the kernel be chosen by the longest sequence without waiting for the device. slots: [N] rows of
    a pool, -1 for padding. written_slots: [N] rows to write instead, -1 to leave memory as it is.
    """

    cu_seqlens: Tensor | None = None
    cu_seqlens_cpu: Tensor | None = None
    slots: Tensor | None = None
    written_slots: Tensor | None = None

    def longest(self, tokens: int) -> int:
        """Tokens of the longest of these sequences in a row of `tokens`; an upper bound if that is on the device."""
        cuts = self.cu_seqlens_cpu
        if cuts is None and self.cu_seqlens is not None and self.cu_seqlens.device.type == "cpu":
            cuts = self.cu_seqlens
        return tokens if cuts is None or len(cuts) < 2 else int(cuts.diff().max())


WHOLE = Sequences()


class GatedRMSNorm(nn.Module):
    """RMS norm over the last dimension times the sigmoid of a gate, in float32. Parameter: `weight` [V]."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self._eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, gate: Tensor, bias: Tensor | None = None) -> Tensor:
        """x and gate [B, T, HV, V], bias [HV * V] of the gate; gives [B, T, HV, V] in x's dtype."""
        return gated_rms_norm(x, gate, self.weight, self._eps, bias)


@dataclass(frozen=True, slots=True)
class _Projected:
    # What the layer makes of its input: mixed [B, T, D], decay [B, T, HV * K], beta [B, T, HV], gate [B, T, HV * V]
    # and what is still to be added to it. Slices of wider tensors.
    mixed: Tensor
    decay: Tensor
    beta: Tensor
    gate: Tensor
    gate_bias: Tensor | None


class KimiDeltaAttention(nn.Module):
    """The layer, with the public weights' names: `{q,k,v}_proj`, `{q,k,v}_conv1d`, `f_proj.{0,1}`, `b_proj`, `A_log`,
    `dt_bias`, `g_proj.{0,1}`, `o_norm`, `o_proj`. For inference: it computes no gradients.

    Weights of a bounded gate carry `lower_bound` in their state dict; loading weights into a layer whose config says
    otherwise raises ValueError, because the other gate's numbers would be wrong without any error.
    """

    def __init__(self, config: DeltaAttentionConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        C, keys, values = config.channels, config.key_channels, config.value_channels
        self.q_proj = nn.Linear(C, keys, bias=False, dtype=dtype)
        self.k_proj = nn.Linear(C, keys, bias=False, dtype=dtype)
        self.v_proj = nn.Linear(C, values, bias=False, dtype=dtype)
        if config.short_convolution:
            self.q_conv1d, self.k_conv1d, self.v_conv1d = (
                nn.Conv1d(width, width, WIDTH, groups=width, bias=False, dtype=dtype) for width in (keys, keys, values)
            )
        self.f_proj = nn.Sequential(
            nn.Linear(C, config.value_dim, bias=False, dtype=dtype),
            nn.Linear(config.value_dim, config.value_heads * config.head_dim, bias=False, dtype=dtype),
        )
        self.b_proj = nn.Linear(C, config.value_heads, bias=False, dtype=dtype)
        # As the public layer begins, 1 to 16, but drawn by no generator: that imports half of torch on the meta device.
        rates = [math.log(1 + 15 * (head + 0.5) / config.value_heads) for head in range(config.value_heads)]
        self.A_log = nn.Parameter(torch.tensor(rates))
        self.dt_bias = nn.Parameter(torch.zeros(config.value_heads * config.head_dim))
        self.g_proj = nn.Sequential(
            nn.Linear(C, config.value_dim, bias=False, dtype=dtype), nn.Linear(config.value_dim, values, dtype=dtype)
        )
        self.o_norm = GatedRMSNorm(config.value_dim, config.norm_eps)
        self.o_proj = nn.Linear(values, C, bias=False, dtype=dtype)
        self._input_weights, self._gate_weights, self._taps = MergedWeights(), MergedWeights(), MergedWeights()

    def new_state(self, rows: int) -> DeltaAttentionState:
        """States of `rows` new streams, zeros, on the layer's device."""
        return new_state(self.config, rows, self.q_proj.weight.dtype, self.q_proj.weight.device)

    @torch.no_grad()
    def forward(
        self,
        tokens: Tensor,
        state: DeltaAttentionState | None = None,
        sequences: Sequences = WHOLE,
        *,
        read_only: bool = False,
    ) -> tuple[Tensor, DeltaAttentionState | None]:
        """Outputs [B, T, C], in the weights' dtype, for tokens [B, T, C], and the state after them.

        `state` has a row a sequence (None: new streams) and is left alone; a new one is returned. With
        `sequences.slots` it is a pool instead, whose written rows are changed in place, and which is returned. With
        `read_only` memory is read, nothing is written, and `state` itself is returned: a frame that is no keyframe.

        Raises ValueError naming the argument that does not fit, the shape expected and the shape got.
        """
        if tokens.dim() != 3 or tokens.shape[2] != self.config.channels:
            raise ValueError(f"tokens: expected shape [B, T, {self.config.channels}], got {list(tokens.shape)}")
        if sequences.slots is not None and state is None:
            raise ValueError("state: expected a pool with sequences.slots, got None")
        if read_only or sequences.slots is None:
            sequences = Sequences(sequences.cu_seqlens, sequences.cu_seqlens_cpu, sequences.slots)
        tokens = tokens.to(self.q_proj.weight.dtype)
        projected = self._project_together(tokens) if runs_triton(tokens.device) else self._project(tokens)
        mixed, convolution = self._mix(projected.mixed, state, sequences, read_only)
        attended, recurrent = self._attend(mixed, projected, state, sequences, read_only)
        gate = _heads(projected.gate, self.config.value_dim)
        out: Tensor = self.o_proj(self.o_norm(attended, gate, projected.gate_bias).flatten(2))
        if read_only or sequences.slots is not None:
            return out, state
        assert recurrent is not None
        return out, DeltaAttentionState(recurrent, convolution)

    def _project(self, tokens: Tensor) -> _Projected:
        # Queries, keys and values lie side by side in one buffer, so that one convolution serves all three.
        rows = tokens.flatten(0, 1)
        mixed = tokens.new_empty(*tokens.shape[:2], self.config.mixed_channels)
        parts = mixed.flatten(0, 1).tensor_split(self.config.cuts, dim=1)
        for part, projection in zip(parts, (self.q_proj, self.k_proj, self.v_proj), strict=True):
            torch.mm(rows, projection.weight.t(), out=part)
        return _Projected(mixed, self.f_proj(tokens), self.b_proj(tokens), self.g_proj(tokens), None)

    def _project_together(self, tokens: Tensor) -> _Projected:
        # The same in two products where keys are as wide as values, else in three.
        config, low = self.config, self.config.value_dim
        (f_first, f_second), (g_first, g_second) = _linears(self.f_proj), _linears(self.g_proj)
        layers = (self.q_proj, self.k_proj, self.v_proj, f_first, g_first, self.b_proj)
        wide = functional.linear(tokens, self._input_weights.rows(layers))
        ends = tuple(accumulate((config.mixed_channels, low, low, config.value_heads)))
        mixed, f, g, beta, _ = wide.tensor_split(ends, dim=2)
        if config.head_dim != config.value_dim:
            decay, gate = functional.linear(f, f_second.weight), functional.linear(g, g_second.weight)
            return _Projected(mixed, decay, beta, gate, g_second.bias)
        both = wide[:, :, ends[0] : ends[2]].flatten(0, 1).view(-1, 2, low).transpose(0, 1)
        weights = self._gate_weights.rows((f_second, g_second))[: 2 * config.value_channels]
        decay, gate = torch.bmm(both, weights.view(2, -1, low).mT).view(2, *tokens.shape[:2], -1)
        return _Projected(mixed, decay, beta, gate, g_second.bias)

    def _mix(
        self, mixed: Tensor, state: DeltaAttentionState | None, sequences: Sequences, read_only: bool
    ) -> tuple[Tensor, Tensor | None]:
        if not self.config.short_convolution:
            return functional.silu(mixed), None
        layers, in_pool = (self.q_conv1d, self.k_conv1d, self.v_conv1d), sequences.slots is not None
        return short_convolution(
            mixed,
            self._taps.taps(layers) if runs_triton(mixed.device) else torch.cat([layer.weight for layer in layers]),
            initial_state=None if state is None else state.convolution,
            output_final_state=not read_only,
            cu_seqlens=sequences.cu_seqlens,
            state_indices=sequences.slots,
            final_state_indices=sequences.written_slots,
            inplace_final_state=in_pool and not read_only,
        )

    def _attend(
        self,
        mixed: Tensor,
        projected: _Projected,
        state: DeltaAttentionState | None,
        sequences: Sequences,
        read_only: bool,
    ) -> tuple[Tensor, Tensor | None]:
        config = self.config
        q, k, v = mixed.tensor_split(config.cuts, dim=-1)
        attend = chunk_kda if sequences.longest(mixed.shape[1]) > FEW_TOKENS else fused_recurrent_kda
        return attend(
            q=_heads(q, config.head_dim),
            k=_heads(k, config.head_dim),
            v=_heads(v, config.value_dim),
            g=_heads(projected.decay, config.head_dim),
            beta=projected.beta,
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            lower_bound=config.lower_bound,
            use_gate_in_kernel=True,
            use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            allow_neg_eigval=config.allow_neg_eigval,
            cu_seqlens=sequences.cu_seqlens,
            cu_seqlens_cpu=sequences.cu_seqlens_cpu,
            initial_state=None if state is None else state.recurrent,
            output_final_state=not read_only,
            state_indices=sequences.slots,
            final_state_indices=sequences.written_slots,
            inplace_final_state=sequences.slots is not None and not read_only,
        )

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.config.lower_bound is not None:
            destination[prefix + BOUND_KEY] = torch.tensor(self.config.lower_bound, dtype=torch.float64, device="cpu")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        stored = state_dict.pop(prefix + BOUND_KEY, None)
        _check_gate(prefix, None if stored is None else float(stored), self.config.lower_bound)
        # Public weights store A_log as [1, 1, HV, 1].
        for name in ("A_log", "dt_bias"):
            if prefix + name in state_dict:
                state_dict[prefix + name] = state_dict[prefix + name].flatten()
        super()._load_from_state_dict(state_dict, prefix, *args)


def _heads(x: Tensor, width: int) -> Tensor:
    return x.view(*x.shape[:-1], x.shape[-1] // width, width)


def _linears(pair: nn.Sequential) -> tuple[nn.Linear, nn.Linear]:
    first, second = pair
    assert isinstance(first, nn.Linear), "made so"
    assert isinstance(second, nn.Linear), "made so"
    return first, second


def _check_gate(prefix: str, stored: float | None, expected: float | None) -> None:
    if stored == expected:
        return
    forms = ["softplus" if bound is None else f"lower_bound {bound}" for bound in (expected, stored)]
    raise ValueError(f"{prefix}{BOUND_KEY}: the config expects the {forms[0]} gate, the weights have {forms[1]}")
