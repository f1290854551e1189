"""Kimi Delta Attention for many tokens: checks arguments, plans each kind of call once, and launches the kernels."""

from collections.abc import Callable
from itertools import pairwise

import torch

from ..backend import runs_triton
from .checks import KdaShape, check_cuts, check_inputs
from .options import KdaOptions, KdaTensors
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
    """Kimi Delta Attention (arXiv 2510.26692, eq. 1) in chunks (section 3), for more than about 64 tokens.

    q, k [B, T, H, K]; v [B, T, HV, V]; g [B, T, HV, K] log decay <= 0, or the raw gate with `use_gate_in_kernel` (A_log
    [HV], dt_bias [HV*K], lower_bound); beta [B, T, HV]. Their dtypes are bf16, fp16 or fp32; q, k and v must have the
    same. Sums, states and the triangular inverse are fp32. Value head h reads query/key head h // (HV / H). With
    `cu_seqlens` [N+1] (int32 or int64), B is 1 and N sequences lie end to end. Slices of a fused projection are read in
    place. initial_state [N, HV, K, V], or [N, HV, V, K] with `state_v_first`; None means zeros. `safe_gate` and
    `cu_seqlens_cpu` do not affect the result. The call never synchronises with the device, so values of `cu_seqlens`
    are checked only if the host has them, as `cu_seqlens_cpu`. That also lets the kernels cut sequences by their true
    lengths.

    `split` says whether long sequences are cut into pieces that run in parallel (context_parallel.py): with None, that
    depends on the shapes; with True, they are cut as finely as allowed; with False, they are never cut.

    `state_indices` [N], `final_state_indices` [N] and `inplace_final_state` work as in `fused_recurrent_kda`: the
    indices are rows of a pool, -1 means padding with zero outputs, and final states are written to the pool only if
    that is requested.

    Returns:
        o [B, T, HV, V] in v's dtype, and the final states, or None if no final states are requested. They are fp32 and
        in the layout of initial_state; in place, they are `initial_state` itself, mutated. Nothing else is mutated, and
        no other result shares memory with an argument or an earlier result.

    Raises:
        ValueError: an argument is invalid. The message names it, what was expected and what was passed.

    Without CUDA (and outside Triton's interpreter), the same is computed in PyTorch.
    """
    written_indices = None
    if inplace_final_state:
        written_indices = state_indices if final_state_indices is None else final_state_indices
    tensors = KdaTensors(
        q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens, state_indices, written_indices, cu_seqlens_cpu
    )
    given_options = (  # in the order of KdaOptions; building that takes 0.5 us, which a known call saves
        scale, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel,
        allow_neg_eigval, lower_bound, state_v_first, inplace_final_state, chunk_size, split,
    )  # fmt: skip
    kinds = [None if x is None else (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16) for x in tensors[:-1]]
    longest = _longest(q.shape, cu_seqlens, cu_seqlens_cpu)
    key = (*kinds, *given_options, final_state_indices is None, longest)
    known = _calls.get(key)
    if known is not None and (state_indices is None or state_indices.device.type != "cpu"):
        return known(tensors)
    options = KdaOptions(*given_options)
    shape = check_inputs(tensors, options)
    check_writing(shape.N, initial_state, state_indices, final_state_indices, inplace_final_state, torch.float32)
    if not (q.dtype == k.dtype == v.dtype):
        raise ValueError(f"k, v: expected the dtype of q ({q.dtype}), got {k.dtype} and {v.dtype}")
    if not runs_triton(q.device):
        return _by_reference(tensors, options)
    if shape.T == 0 or shape.N == 0:
        return _without_tokens(shape, tensors, options)

    from .chunk_triton import prepare

    call = prepare(shape, tensors, longest, options)
    if len(_calls) >= MAX_CALLS:
        _calls.clear()
    _calls[key] = call
    return call(tensors)


# Planned calls. The key holds everything that checks and plans depend on: shapes, strides, dtypes, devices, alignment
# and options, but no values of tensors. So an entry is always valid. A service uses few different lengths, and the
# number of entries is limited.
_calls: dict[tuple[object, ...], Callable[[KdaTensors], Result]] = {}
MAX_CALLS = 1024


def _by_reference(tensors: KdaTensors, options: KdaOptions) -> Result:
    states = gather_states(tensors.initial_state, tensors.state_indices)
    gathered = tensors._replace(initial_state=states, state_indices=None)
    o, final = chunk_kda_reference(gathered, options._replace(output_final_state=options.has_final_state))
    return _written_back(tensors, options, o, final)


def _without_tokens(shape: KdaShape, tensors: KdaTensors, options: KdaOptions) -> Result:
    v, final = tensors.v, None
    if options.has_final_state:
        states = gather_states(tensors.initial_state, tensors.state_indices)
        if states is None:
            final = torch.zeros(shape.state(options.state_v_first), dtype=torch.float32, device=v.device)
        else:
            final = states.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    return _written_back(tensors, options, torch.empty(v.shape, dtype=v.dtype, device=v.device), final)


def _written_back(tensors: KdaTensors, options: KdaOptions, o: torch.Tensor, final: torch.Tensor | None) -> Result:
    clear_padding(o, final, tensors.state_indices, tensors.cu_seqlens)
    if not options.inplace_final_state:
        return o, final
    assert final is not None
    assert tensors.initial_state is not None
    return o, scatter_states(tensors.initial_state, final, tensors.state_indices, tensors.written_indices)


def _longest(q_shape: torch.Size, cu_seqlens: torch.Tensor | None, cu_seqlens_cpu: torch.Tensor | None) -> int | None:
    # Number of tokens in the longest sequence, if the host knows it. Values are checked at every call; invalid shapes
    # are left to check_inputs.
    name, cuts = "cu_seqlens_cpu", cu_seqlens_cpu
    if cuts is None and cu_seqlens is not None and cu_seqlens.device.type == "cpu":
        name, cuts = "cu_seqlens", cu_seqlens
    if cuts is None or cu_seqlens is None or cuts.shape != cu_seqlens.shape or cuts.dim() != 1 or not cuts.numel():
        return None
    values = cuts.tolist()
    if len(q_shape) == 4:
        check_cuts(name, values, q_shape[1])
    return max((end - first for first, end in pairwise(values)), default=0)
