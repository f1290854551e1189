"""Kimi Delta Attention for few tokens per sequence, in one kernel that reads and writes each state only once."""

import torch

from ..backend import runs_triton
from .checks import check_inputs
from .options import KdaOptions, KdaTensors
from .reference import recurrent_kda_reference
from .state_pool import check_writing, clear_padding, gather_states, rows_are_dense, scatter_states


def fused_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    *,
    cu_seqlens_cpu: torch.Tensor | None = None,
    safe_gate: bool = False,
    state_indices: torch.Tensor | None = None,
    final_state_indices: torch.Tensor | None = None,
    inplace_final_state: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Kimi Delta Attention (arXiv 2510.26692, eq. 1) in one launch, for up to about 64 tokens per sequence.

    q, k [B, T, H, K]; v [B, T, HV, V]; g [B, T, HV, K] log decay, or the raw gate with `use_gate_in_kernel` (A_log
    [HV], dt_bias [HV*K], lower_bound); beta [B, T, HV]. All are bf16, fp16 or fp32; sums and states are fp32. With
    `cu_seqlens` [N+1], B is 1 and N sequences lie end to end. Slices of a fused projection are read in place.
    `safe_gate` and `cu_seqlens_cpu` do not affect the result.

    initial_state: [N, HV, K, V], or [N, HV, V, K] with `state_v_first`; None means zeros. With `state_indices` [N],
    initial_state is a pool [slots, ...] with dense rows (the stride between rows is free), and sequence n starts from
    row state_indices[n]. The index -1 means padding: the sequence's outputs are 0, and nothing is written for it.

    Final states are written

    - nowhere by default: the pool is only read, as for frames that are not keyframes;
    - with `output_final_state`, to a new fp32 tensor with one row per sequence (zeros for padding);
    - with `inplace_final_state`, to `initial_state` (fp32, mutated), at the rows `final_state_indices` [N], or by
      default at the rows that were read. The index -1 means that the sequence writes no final state. Two sequences must
      not write the same row, and no sequence may write a row that another one reads.

    Returns:
        o [B, T, HV, V] in v's dtype, and the final states, or None if they are not written. In place, the final states
        are `initial_state` itself.

    Raises:
        ValueError: an argument is invalid. The message names it, what was expected and what was passed.

    Without CUDA (and outside Triton's interpreter), the same is computed in PyTorch.

    >>> tokens = torch.ones(1, 2, 1, 4)  # one sequence of two tokens, one head, K = V = 4
    >>> pool = torch.zeros(3, 1, 4, 4)
    >>> o, states = fused_recurrent_kda(
    ...     tokens, tokens / 2, tokens, torch.zeros(1, 2, 1, 4), torch.ones(1, 2, 1),
    ...     initial_state=pool, state_indices=torch.tensor([2]), inplace_final_state=True,
    ... )
    >>> states is pool, pool.sum((1, 2, 3)).tolist()
    (True, [0.0, 0.0, 8.0])
    """
    written_indices = None
    if inplace_final_state:
        written_indices = state_indices if final_state_indices is None else final_state_indices
    tensors = KdaTensors(
        q, k, v, g, beta, A_log, dt_bias, initial_state, cu_seqlens, state_indices, written_indices, cu_seqlens_cpu
    )
    options = KdaOptions(
        scale, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel,
        allow_neg_eigval, lower_bound, state_v_first, inplace_final_state,
    )  # fmt: skip
    shape = check_inputs(tensors, options)
    check_writing(shape.N, initial_state, state_indices, final_state_indices, inplace_final_state, torch.float32)
    if not runs_triton(q.device):
        return _by_reference(tensors, options)

    from .recurrent_triton import launch_recurrent

    if initial_state is not None and not rows_are_dense(initial_state):
        tensors = tensors._replace(initial_state=initial_state.contiguous())
    written = initial_state if inplace_final_state else None
    if output_final_state and not inplace_final_state:
        written = torch.empty(shape.state(state_v_first), dtype=torch.float32, device=q.device)
    o = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    launch_recurrent(shape, tensors, options, written, o)
    return o, written


def _by_reference(tensors: KdaTensors, options: KdaOptions) -> tuple[torch.Tensor, torch.Tensor | None]:
    states = gather_states(tensors.initial_state, tensors.state_indices)
    gathered = tensors._replace(initial_state=states, state_indices=None)
    o, final = recurrent_kda_reference(gathered, options._replace(output_final_state=True), torch.float32)
    assert final is not None
    clear_padding(o, final, tensors.state_indices, tensors.cu_seqlens)
    if options.inplace_final_state and tensors.initial_state is not None:
        return o, scatter_states(tensors.initial_state, final, tensors.state_indices, tensors.written_indices)
    return o, final if options.output_final_state else None
