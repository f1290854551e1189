"""Kimi Delta Attention for many tokens: checks the arguments, plans once per kind of call, launches."""

from collections.abc import Callable
from itertools import pairwise

import torch

from ..backend import runs_triton
from .checks import KdaShape, check_cuts, check_inputs
from .reference import chunk_kda_reference
from .state_pool import check_writing, clear_padding, gather_states, scatter_states

Result = tuple[torch.Tensor, torch.Tensor | None]


def chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    *,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    chunk_size: int = 64,
    split: bool | None = None,
    state_indices: torch.Tensor | None = None,
    final_state_indices: torch.Tensor | None = None,
    inplace_final_state: bool = False,
) -> Result:
    """The recurrence of arXiv 2510.26692 (eq. 1) in its chunked form (section 3); meant for more than 64 tokens or so.

    q, k [B, T, H, K]; v [B, T, HV, V]; g [B, T, HV, K] log decay <= 0, or the raw gate with `use_gate_in_kernel` (A_log
    [HV], dt_bias [HV*K], lower_bound); beta [B, T, HV]; bf16, fp16 or fp32, q, k and v alike. Sums, states and the
    triangular inverse are fp32. Value head h reads query/key head h // (HV / H). With `cu_seqlens` [N+1] (int32 or
    int64) B is 1 and N sequences lie end to end. Slices of a fused projection are read in place. initial_state
    [N, HV, K, V], or [N, HV, V, K] with `state_v_first`; None is zeros. `safe_gate` and `cu_seqlens_cpu` change no
    value. Nothing waits for the device: the values of `cu_seqlens` are checked where they can be read without waiting,
    from `cu_seqlens_cpu`, which also lets the kernels cut sequences by their true lengths.

    `split` cuts long sequences into pieces that run at the same time (context_parallel.py): None chooses by shape,
    True cuts as finely as allowed, False never does.

    `state_indices` [N], `final_state_indices` [N] and `inplace_final_state` mean what they mean to
    `fused_recurrent_kda`: rows of a pool, -1 for padding, whose outputs are 0, and a write only on demand.

    Returns o [B, T, HV, V] in v's dtype, and the final states, fp32 in the layout of initial_state (`initial_state`
    itself if in place, mutated), or None unless `output_final_state`. Nothing else is mutated, and nothing else that is
    returned shares memory with an argument or an earlier result.
    Raises ValueError naming the argument, the shape expected and the shape got. Without CUDA (and outside Triton's
    interpreter) it computes the same in PyTorch.
    """
    options = (
        scale, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel,
        allow_neg_eigval, lower_bound, state_v_first, chunk_size, split, inplace_final_state,
        final_state_indices is None,
    )  # fmt: skip
    written_indices = state_indices if final_state_indices is None else final_state_indices
    if not inplace_final_state:
        written_indices = None
    tensors = (q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens, state_indices, written_indices)
    kinds = [None if x is None else (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16) for x in tensors]
    longest = _longest(q.shape, cu_seqlens, cu_seqlens_cpu)
    key = (*kinds, *options, longest)
    known = _calls.get(key)
    if known is not None and (state_indices is None or state_indices.device.type != "cpu"):
        return known(tensors)
    shape = check_inputs(
        q, k, v, g, beta, scale=scale, initial_state=initial_state, use_gate_in_kernel=use_gate_in_kernel,
        A_log=A_log, dt_bias=dt_bias, lower_bound=lower_bound, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval, state_v_first=state_v_first, cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu, state_indices=state_indices, chunk_size=chunk_size,
    )  # fmt: skip
    check_writing(shape.N, initial_state, state_indices, final_state_indices, inplace_final_state, torch.float32)
    if not (q.dtype == k.dtype == v.dtype):
        raise ValueError(f"k, v: expected the dtype of q, {q.dtype}, got {k.dtype} and {v.dtype}")
    if not runs_triton(q.device):
        o, final = chunk_kda_reference(
            q, k, v, g, beta, scale=scale, initial_state=gather_states(initial_state, state_indices),
            output_final_state=output_final_state or inplace_final_state,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, use_gate_in_kernel=use_gate_in_kernel, A_log=A_log,
            dt_bias=dt_bias, lower_bound=lower_bound, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
            allow_neg_eigval=allow_neg_eigval, state_v_first=state_v_first, cu_seqlens=cu_seqlens,
            chunk_size=chunk_size,
        )  # fmt: skip
        clear_padding(o, final, state_indices, cu_seqlens)
        return o, _placed(final, initial_state, inplace_final_state, state_indices, written_indices)
    if shape.T == 0 or shape.N == 0:
        o, final = torch.empty(v.shape, dtype=v.dtype, device=v.device), None
        if output_final_state or inplace_final_state:
            final = _kept_states(shape, gather_states(initial_state, state_indices), state_v_first, q.device)
        clear_padding(o, final, state_indices, cu_seqlens)
        return o, _placed(final, initial_state, inplace_final_state, state_indices, written_indices)

    from .chunk_triton import Options, prepare

    call = prepare(
        shape, tensors, longest,
        Options(
            lower_bound=lower_bound, use_gate=use_gate_in_kernel, use_l2norm=use_qk_l2norm_in_kernel,
            beta_factor=(2 if allow_neg_eigval else 1) if use_beta_sigmoid_in_kernel else 0,
            state_v_first=state_v_first, chunk_size=chunk_size, output_final_state=output_final_state, split=split,
            inplace_final_state=inplace_final_state,
        ),
    )  # fmt: skip
    if len(_calls) >= MAX_CALLS:
        _calls.clear()
    _calls[key] = call
    return call(tensors)


# What checking and planning a call led to, by everything that both look at: shapes, strides, dtypes, devices, alignment
# and options, no values. An entry therefore cannot go stale; lengths are few in a service, and the table is bounded.
_calls: dict[tuple[object, ...], Callable[[tuple[torch.Tensor | None, ...]], Result]] = {}
MAX_CALLS = 1024


def _kept_states(
    shape: KdaShape, states: torch.Tensor | None, state_v_first: bool, device: torch.device
) -> torch.Tensor:
    # Of sequences without tokens.
    if states is None:
        return torch.zeros(shape.state(state_v_first), dtype=torch.float32, device=device)
    return states.to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def _placed(
    final: torch.Tensor | None,
    states: torch.Tensor | None,
    inplace: bool,
    read: torch.Tensor | None,
    written: torch.Tensor | None,
) -> torch.Tensor | None:
    if not inplace:
        return final
    assert final is not None
    assert states is not None
    return scatter_states(states, final, read, written)


def _longest(q_shape: torch.Size, cu_seqlens: torch.Tensor | None, cu_seqlens_cpu: torch.Tensor | None) -> int | None:
    # Tokens of the longest sequence, where the host knows them. The values are checked at every call; shapes that
    # check_inputs is to refuse are passed over.
    name, cuts = "cu_seqlens_cpu", cu_seqlens_cpu
    if cuts is None and cu_seqlens is not None and cu_seqlens.device.type == "cpu":
        name, cuts = "cu_seqlens", cu_seqlens
    if cuts is None or cu_seqlens is None or cuts.shape != cu_seqlens.shape or cuts.dim() != 1 or not cuts.numel():
        return None
    values = cuts.tolist()
    if len(q_shape) == 4:
        check_cuts(name, values, q_shape[1])
    return max((end - first for first, end in pairwise(values)), default=0)
