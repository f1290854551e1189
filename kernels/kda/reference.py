"""Kimi Delta Attention in plain PyTorch: the definition that the Triton kernels are tested against.

Per step t and value head (arXiv 2510.26692, eq. 1):
    S <- diag(exp g_t) S;   S <- S + beta_t k_t (v_t - k_t^T S)^T;   o_t = scale * q_t^T S.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .checks import REFERENCE_DTYPES, KdaShape, check_inputs, sequence_bounds
from .options import KdaOptions, KdaTensors

L2_EPS = 1e-6


def l2norm_reference(x: torch.Tensor) -> torch.Tensor:
    """x * rsqrt(sum x^2 + 1e-6) over the last dimension, in x's dtype."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def gate_reference(
    g: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
) -> torch.Tensor:
    """The log decay (natural, <= 0) that results from the raw gate, in g's dtype.

    g [..., HV, K]; A_log [HV], None means exp(A_log) = 1; dt_bias [HV*K], None means 0. Without `lower_bound`, the
    result is -exp(A_log) * softplus(g + dt_bias); with it, lower_bound * sigmoid(exp(A_log) * (g + dt_bias)).
    """
    if dt_bias is not None:
        g = g + dt_bias.to(g.dtype).view(g.shape[-2:])
    rate = g.new_ones(()) if A_log is None else A_log.to(g.dtype).exp()[:, None]
    if lower_bound is None:
        # This is softplus without torch's threshold, which causes an error of 2e-9 in float64.
        return -rate * torch.logaddexp(g, g.new_zeros(()))
    return lower_bound * torch.sigmoid(rate * g)


def beta_reference(beta: torch.Tensor, allow_neg_eigval: bool = False) -> torch.Tensor:
    """sigmoid(beta), or twice that with `allow_neg_eigval`, in beta's dtype."""
    return torch.sigmoid(beta) * (2 if allow_neg_eigval else 1)


def recurrent_kda_reference(
    tensors: KdaTensors, options: KdaOptions, compute_dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Kimi Delta Attention token by token.

    q, k [B, T, H, K]; v [B, T, HV, V]; g [B, T, HV, K] log decay; beta [B, T, HV]; initial_state [N, HV, K, V], or
    [N, HV, V, K] with `state_v_first`. Any floating-point dtype is accepted. With `cu_seqlens` [N+1], B is 1 and N
    sequences lie end to end. Value head h reads query/key head h // (HV / H). All arithmetic is in `compute_dtype`.
    Pools of states are not supported (no indices, nothing in place); `chunk_size` and `split` do not affect the result.
    Nothing is mutated, and no result shares memory with an argument.

    Returns:
        o [B, T, HV, V] in v's dtype, and the final state in `compute_dtype` (None unless `output_final_state`).

    Raises:
        ValueError: an argument is invalid, see `check_inputs`.
    """
    return _reference(_step, 1, tensors, options, compute_dtype)


def chunk_kda_reference(
    tensors: KdaTensors, options: KdaOptions, compute_dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Kimi Delta Attention in chunks (arXiv 2510.26692, section 3 and appendix C), one chunk after the other.

    Arguments, result and errors are those of `recurrent_kda_reference`, but the arithmetic is float32 by default, and
    `chunk_size` (16, 32 or 64) is the number of tokens that are processed at once. The result is finite for any gate:
    every exponent is a sum of log decays, so none is positive.
    """
    return _reference(_chunk, options.chunk_size, tensors, options, compute_dtype)


def _reference(
    advance: "_Advance", span: int, tensors: KdaTensors, options: KdaOptions, compute_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    shape = check_inputs(tensors, options, REFERENCE_DTYPES)
    tokens = _prepare(tensors, shape, compute_dtype)
    if options.use_gate_in_kernel:
        tokens = tokens.with_gate(tensors.A_log, tensors.dt_bias, options.lower_bound)
    if options.use_beta_sigmoid_in_kernel:
        tokens = tokens.with_sigmoid(options.allow_neg_eigval)
    if options.use_qk_l2norm_in_kernel:
        tokens = tokens.with_l2norm()
    states = _initial_states(shape, tensors, options.state_v_first, compute_dtype)
    o = _scan(advance, span, tokens, states, shape, tensors.cu_seqlens).to(tensors.v.dtype)
    return o, _final_states(states, options)


@dataclass(frozen=True, slots=True)
class _Tokens:
    q: torch.Tensor  # [B, HV, T, K]
    k: torch.Tensor  # [B, HV, T, K]
    v: torch.Tensor  # [B, HV, T, V]
    g: torch.Tensor  # [B, HV, T, K]
    beta: torch.Tensor  # [B, HV, T]

    def with_gate(self, A_log: torch.Tensor | None, dt_bias: torch.Tensor | None, bound: float | None) -> "_Tokens":
        g = gate_reference(self.g.transpose(1, 2), A_log, dt_bias, bound).transpose(1, 2)
        return _Tokens(self.q, self.k, self.v, g, self.beta)

    def with_sigmoid(self, allow_neg_eigval: bool) -> "_Tokens":
        return _Tokens(self.q, self.k, self.v, self.g, beta_reference(self.beta, allow_neg_eigval))

    def with_l2norm(self) -> "_Tokens":
        return _Tokens(l2norm_reference(self.q), l2norm_reference(self.k), self.v, self.g, self.beta)

    def at(self, t: slice) -> "_Tokens":
        return _Tokens(self.q[:, :, t], self.k[:, :, t], self.v[:, :, t], self.g[:, :, t], self.beta[:, :, t])


_Advance = Callable[[torch.Tensor, _Tokens], tuple[torch.Tensor, torch.Tensor]]


def _prepare(tensors: KdaTensors, shape: KdaShape, dtype: torch.dtype) -> _Tokens:
    q, k, v, g, beta = tensors[:5]
    q, k = (x.repeat_interleave(shape.group, dim=2) for x in (q, k))  # [B, T, HV, K]
    q, k, v, g, beta = (x.to(dtype).transpose(1, 2) for x in (q, k, v, g, beta))
    return _Tokens(q, k, v, g, beta)


def _initial_states(shape: KdaShape, tensors: KdaTensors, state_v_first: bool, dtype: torch.dtype) -> torch.Tensor:
    initial = tensors.initial_state
    if initial is None:
        return torch.zeros(shape.state(False), dtype=dtype, device=tensors.v.device)
    states = initial.transpose(-1, -2) if state_v_first else initial
    return states.to(dtype, copy=True, memory_format=torch.contiguous_format)  # [N, HV, K, V]


def _final_states(states: torch.Tensor, options: KdaOptions) -> torch.Tensor | None:
    if not options.output_final_state:
        return None
    return states.transpose(-1, -2).contiguous() if options.state_v_first else states


def _scan(
    advance: _Advance,
    span: int,
    tokens: _Tokens,
    states: torch.Tensor,
    shape: KdaShape,
    cu_seqlens: torch.Tensor | None,
) -> torch.Tensor:
    o = torch.empty_like(tokens.v)  # [B, HV, T, V]
    for n, (first, end) in enumerate(sequence_bounds(shape, cu_seqlens)):
        rows = slice(None) if cu_seqlens is None else slice(n, n + 1)
        for t in range(first, end, span):
            now = slice(t, min(t + span, end))
            o[:, :, now], states[rows] = advance(states[rows], tokens.at(now))
    return (shape.scale * o).transpose(1, 2).contiguous()


def _step(S: torch.Tensor, x: _Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    S = x.g.exp().transpose(-1, -2) * S  # x holds one token: S [B, HV, K, V], k [B, HV, 1, K]
    S = S + (x.beta[..., None] * x.k).transpose(-1, -2) @ (x.v - x.k @ S)
    return x.q @ S, S


def _chunk(S: torch.Tensor, x: _Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    C = x.g.shape[2]
    i = torch.arange(C, device=x.g.device)
    after = (i[:, None] > i[None, :])[..., None]  # token i is after token j
    # The log of the decay from j to i, [B, HV, C, C, K]. It is summed over the tokens in between, because a difference
    # of sums from the chunk's start would lose digits after strong decay.
    span = torch.where(after, x.g[:, :, :, None, :], 0.0).cumsum(2)
    decay = span.masked_fill(i[:, None, None] < i[None, :, None], float("-inf")).exp()
    from_start = x.g.cumsum(2).exp()  # [B, HV, C, K]

    qk = torch.einsum("bhik,bhjk,bhijk->bhij", x.q, x.k, decay)
    A = torch.einsum("bhi,bhik,bhjk,bhijk->bhij", x.beta, x.k, x.k, decay).tril(-1)
    eye = torch.eye(C, dtype=A.dtype, device=A.device)
    beta = x.beta[..., None]
    w = torch.linalg.solve_triangular(eye + A, beta * from_start * x.k, upper=False, unitriangular=True)
    u = torch.linalg.solve_triangular(eye + A, beta * x.v, upper=False, unitriangular=True)
    new_v = u - w @ S
    o = (x.q * from_start) @ S + qk @ new_v
    to_end = decay[:, :, -1]  # [B, HV, C, K]
    return o, from_start[:, :, -1, :, None] * S + (to_end * x.k).transpose(-1, -2) @ new_v
