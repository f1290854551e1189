"""Kimi Delta Attention for few tokens a sequence: one kernel, each state read and written once, in a pool or alone."""

import torch

from ..backend import runs_triton
from .checks import check_inputs
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
    """The recurrence of arXiv 2510.26692 (eq. 1) in one launch; meant for up to 64 tokens or so a sequence.

    q, k [B, T, H, K]; v [B, T, HV, V]; g [B, T, HV, K] log decay, or the raw gate with `use_gate_in_kernel` (A_log
    [HV], dt_bias [HV*K], lower_bound); beta [B, T, HV], all bf16, fp16 or fp32; sums and states are fp32. With
    `cu_seqlens` [N+1] B is 1 and N sequences lie end to end. Slices of a fused projection are read in place.
    `safe_gate` and `cu_seqlens_cpu` change no value.

    initial_state: [N, HV, K, V], or [N, HV, V, K] with `state_v_first`; None is zeros. With `state_indices` [N] it is
    a pool [slots, ...] whose rows are dense (a row's stride is free): sequence n starts from row state_indices[n].
    -1 is padding: that sequence's outputs are 0 and nothing is written for it.

    Where the state goes:
    - by default nowhere: memory is read and stays as it is, which is how a frame that is no keyframe reads it;
    - `output_final_state`: a new fp32 tensor, one row a sequence (zeros for padding);
    - `inplace_final_state`: into `initial_state` (fp32, mutated), at `final_state_indices` [N] if given (-1 skips that
      sequence's write) and else where it came from. Two sequences must not write one row, nor one write what another
      reads.

    Returns o [B, T, HV, V] in v's dtype, and the new states, `initial_state` itself if in place, or None.
    Raises ValueError naming the argument, the shape expected and the shape got. Without CUDA (and outside Triton's
    interpreter) it computes the same in PyTorch.

    >>> tokens = torch.ones(1, 2, 1, 4)  # one sequence of two tokens, one head, K = V = 4
    >>> pool = torch.zeros(3, 1, 4, 4)
    >>> o, states = fused_recurrent_kda(
    ...     tokens, tokens / 2, tokens, torch.zeros(1, 2, 1, 4), torch.ones(1, 2, 1),
    ...     initial_state=pool, state_indices=torch.tensor([2]), inplace_final_state=True,
    ... )
    >>> states is pool, pool.sum((1, 2, 3)).tolist()
    (True, [0.0, 0.0, 8.0])
    """
    shape = check_inputs(
        q, k, v, g, beta, scale=scale, initial_state=initial_state, use_gate_in_kernel=use_gate_in_kernel,
        A_log=A_log, dt_bias=dt_bias, lower_bound=lower_bound, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval, state_v_first=state_v_first, cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu, state_indices=state_indices,
    )  # fmt: skip
    check_writing(shape.N, initial_state, state_indices, final_state_indices, inplace_final_state, torch.float32)
    written_indices = state_indices if final_state_indices is None else final_state_indices
    if not runs_triton(q.device):
        o, final = recurrent_kda_reference(
            q, k, v, g, beta, scale=scale, initial_state=gather_states(initial_state, state_indices),
            output_final_state=True, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
            use_gate_in_kernel=use_gate_in_kernel, A_log=A_log, dt_bias=dt_bias, lower_bound=lower_bound,
            use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel, allow_neg_eigval=allow_neg_eigval,
            state_v_first=state_v_first, cu_seqlens=cu_seqlens, compute_dtype=torch.float32,
        )  # fmt: skip
        assert final is not None
        clear_padding(o, final, state_indices, cu_seqlens)
        if inplace_final_state and initial_state is not None:
            return o, scatter_states(initial_state, final, state_indices, written_indices)
        return o, final if output_final_state else None

    from .recurrent_triton import launch_recurrent

    read, written = initial_state, initial_state if inplace_final_state else None
    if read is not None and not rows_are_dense(read):
        read = read.contiguous()
    if output_final_state and not inplace_final_state:
        written = torch.empty(shape.state(state_v_first), dtype=torch.float32, device=q.device)
    o = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    launch_recurrent(
        shape, (q, k, v, g, beta), (A_log, dt_bias, lower_bound), (read, written),
        (state_indices, written_indices if inplace_final_state else None), cu_seqlens, o,
        use_gate=use_gate_in_kernel, use_l2norm=use_qk_l2norm_in_kernel, state_v_first=state_v_first,
        beta_factor=(2 if allow_neg_eigval else 1) if use_beta_sigmoid_in_kernel else 0,
    )  # fmt: skip
    return o, written
