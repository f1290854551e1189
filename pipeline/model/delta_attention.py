"""The Kimi Delta Attention layer (arXiv 2510.26692), which keeps a stream's past in one fixed-size matrix per head.

Dimension letters: B is the batch size, T the number of tokens per batch row, C the number of channels, H the number of
query and key heads, HV the number of value heads, K the width of a query or key, V the width of a value, N the number
of sequences per call, and D = 2 H K + HV V the number of channels of the short convolution.
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
from retinad.kernels.kda.conv import WIDTH, short_convolution
from retinad.kernels.kda.gated_norm import gated_rms_norm

from .delta_state import WHOLE, DeltaAttentionConfig, DeltaAttentionState, Sequences, new_state
from .merged_weights import MergedWeights

FEW_TOKENS = 64
"""Largest number of tokens per sequence for which the recurrent kernel, which goes token by token, is faster than
the chunked kernel."""

BOUND_KEY = "lower_bound"
"""State dict key of a bounded gate. Weights of a softplus gate, such as the public weights, do not have this key."""


class GatedRMSNorm(nn.Module):
    """RMS norm over the last dimension, times the sigmoid of a gate, in float32. Parameter: `weight` [V]."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self._eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, gate: Tensor, bias: Tensor | None = None) -> Tensor:
        """Normalise x [B, T, HV, V] and gate it by `gate` [B, T, HV, V], to which `bias` [HV * V] is added first.

        Returns:
            [B, T, HV, V] in x's dtype.
        """
        return gated_rms_norm(x, gate, self.weight, self._eps, bias)


@dataclass(frozen=True, slots=True)
class _Projected:
    # Projections of the layer's input: mixed [B, T, D], decay [B, T, HV * K], beta [B, T, HV] and gate [B, T, HV * V],
    # to which gate_bias has not been added yet. They may be slices of wider tensors.
    mixed: Tensor
    decay: Tensor
    beta: Tensor
    gate: Tensor
    gate_bias: Tensor | None


class KimiDeltaAttention(nn.Module):
    """Kimi Delta Attention for inference; it computes no gradients.

    Parameters have the names of the public weights: `{q,k,v}_proj`, `{q,k,v}_conv1d`, `f_proj.{0,1}`, `b_proj`,
    `A_log`, `dt_bias`, `g_proj.{0,1}`, `o_norm`, `o_proj`.

    The state dict of a layer with a bounded gate holds `lower_bound`. Loading weights of the other kind of gate raises
    ValueError, since the results would be silently wrong.

    Args:
        config: shape and options.
        dtype: number format of the projections and convolutions.
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
        # The public layer's range, 1 to 16, but evenly spaced: to draw on the meta device would import half of torch.
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
        """The state of `rows` new streams, all zeros, on the layer's device."""
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
        """Run the layer over tokens [B, T, C].

        Args:
            tokens: in any float dtype.
            state: None for new streams; otherwise a state with one row per sequence, which is not changed. With
                `sequences.rows` the state is a pool, whose written rows are updated in place.
            sequences: how the tokens are cut into sequences.
            read_only: whether the state is only read, as for a frame that is not a keyframe.

        Returns:
            outputs [B, T, C] in the weights' dtype, and the state after the tokens: a new one, or `state` itself if it
            is a pool or only read.

        Raises:
            ValueError: an argument has the wrong shape or is missing; the message names the argument, what was expected
                and what was passed.
        """
        if tokens.dim() != 3 or tokens.shape[2] != self.config.channels:
            raise ValueError(f"tokens: expected shape [B, T, {self.config.channels}], got {list(tokens.shape)}")
        if sequences.rows is not None and state is None:
            raise ValueError("state: expected a pool, since sequences.rows is set, got None")
        if read_only or sequences.rows is None:
            sequences = Sequences(sequences.cu_seqlens, sequences.cu_seqlens_cpu, sequences.rows)
        tokens = tokens.to(self.q_proj.weight.dtype)
        projected = self._project_together(tokens) if runs_triton(tokens.device) else self._project(tokens)
        mixed, convolution = self._mix(projected.mixed, state, sequences, read_only)
        attended, recurrent = self._attend(mixed, projected, state, sequences, read_only)
        gate = _heads(projected.gate, self.config.value_dim)
        out: Tensor = self.o_proj(self.o_norm(attended, gate, projected.gate_bias).flatten(2))
        if read_only or sequences.rows is not None:
            return out, state
        assert recurrent is not None
        return out, DeltaAttentionState(recurrent, convolution)

    def _project(self, tokens: Tensor) -> _Projected:
        # Queries, keys and values are side by side in one buffer, so that one convolution serves all three.
        rows = tokens.flatten(0, 1)
        mixed = tokens.new_empty(*tokens.shape[:2], self.config.mixed_channels)
        parts = mixed.flatten(0, 1).tensor_split(self.config.cuts, dim=1)
        for part, projection in zip(parts, (self.q_proj, self.k_proj, self.v_proj), strict=True):
            torch.mm(rows, projection.weight.t(), out=part)
        return _Projected(mixed, self.f_proj(tokens), self.b_proj(tokens), self.g_proj(tokens), None)

    def _project_together(self, tokens: Tensor) -> _Projected:
        # The same as `_project` in two matrix products if keys are as wide as values, else in three.
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
        layers, in_pool = (self.q_conv1d, self.k_conv1d, self.v_conv1d), sequences.rows is not None
        return short_convolution(
            mixed,
            self._taps.taps(layers) if runs_triton(mixed.device) else torch.cat([layer.weight for layer in layers]),
            initial_state=None if state is None else state.convolution,
            output_final_state=not read_only,
            cu_seqlens=sequences.cu_seqlens,
            state_indices=sequences.rows,
            final_state_indices=sequences.written_rows,
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
            state_indices=sequences.rows,
            final_state_indices=sequences.written_rows,
            inplace_final_state=sequences.rows is not None and not read_only,
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
    assert isinstance(first, nn.Linear), "built by the layer"
    assert isinstance(second, nn.Linear), "built by the layer"
    return first, second


def _check_gate(prefix: str, stored: float | None, expected: float | None) -> None:
    if stored == expected:
        return
    forms = ["softplus" if bound is None else f"lower_bound {bound}" for bound in (expected, stored)]
    raise ValueError(f"{prefix}{BOUND_KEY}: the config expects the {forms[0]} gate, but the weights have {forms[1]}")
