"""Kimi Delta Attention for many tokens: checks, allocates and launches the chunked kernels."""

import torch

from .backend import runs_triton
from .checks import KdaShape, check_inputs
from .reference import chunk_kda_reference


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
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The recurrence of arXiv 2510.26692 (eq. 1) in its chunked form (section 3); meant for more than 64 tokens or so.

    q, k [B, T, H, K]; v [B, T, HV, V]; g [B, T, HV, K] log decay <= 0, or the raw gate with `use_gate_in_kernel` (A_log
    [HV], dt_bias [HV*K], lower_bound); beta [B, T, HV]; bf16, fp16 or fp32, q, k and v alike. Sums, states and the
    triangular inverse are fp32. Value head h reads query/key head h // (HV / H). With `cu_seqlens` [N+1] (int32 or
    int64) B is 1 and N sequences lie end to end. Slices of a fused projection are read in place. initial_state
    [N, HV, K, V], or [N, HV, V, K] with `state_v_first`; None is zeros. `safe_gate` and `cu_seqlens_cpu` change no
    value; with `cu_seqlens_cpu`, or without `cu_seqlens`, nothing waits for the device, and cu_seqlens's values are
    checked only where they can be read without waiting.

    `split` cuts long sequences into pieces that run at the same time (context_parallel.py): None chooses by shape,
    True takes the plan even where it expects no gain, False never does.

    Returns o [B, T, HV, V] in v's dtype, and the final states, fp32 in the layout of initial_state, or None unless
    `output_final_state`. Nothing is mutated and nothing returned shares memory with an argument.
    Raises ValueError naming the argument, the shape expected and the shape got. Without CUDA (and outside Triton's
    interpreter) it computes the same in PyTorch.
    """
    shape = check_inputs(
        q, k, v, g, beta, scale=scale, initial_state=initial_state, use_gate_in_kernel=use_gate_in_kernel,
        A_log=A_log, dt_bias=dt_bias, lower_bound=lower_bound, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval, state_v_first=state_v_first, cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu, chunk_size=chunk_size,
    )  # fmt: skip
    if not (q.dtype == k.dtype == v.dtype):
        raise ValueError(f"q, k, v: expected one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if not runs_triton(q.device):
        return chunk_kda_reference(
            q, k, v, g, beta, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, use_gate_in_kernel=use_gate_in_kernel, A_log=A_log,
            dt_bias=dt_bias, lower_bound=lower_bound, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
            allow_neg_eigval=allow_neg_eigval, state_v_first=state_v_first, cu_seqlens=cu_seqlens,
            chunk_size=chunk_size,
        )  # fmt: skip
    final_state = None
    if output_final_state:
        final_state = torch.empty(shape.state(state_v_first), dtype=torch.float32, device=q.device)
    o = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if shape.T == 0 or shape.N == 0:
        _keep_state(initial_state, final_state)
        return o, final_state

    from .chunk_triton import ChunkCall, launch_chunk

    call = ChunkCall(
        shape=shape, tokens=(q, k, v, g, beta), A_log=A_log, dt_bias=dt_bias, lower_bound=lower_bound,
        use_gate=use_gate_in_kernel, use_l2norm=use_qk_l2norm_in_kernel,
        beta_factor=(2 if allow_neg_eigval else 1) if use_beta_sigmoid_in_kernel else 0,
        initial_state=None if initial_state is None else initial_state.float().contiguous(),
        state_v_first=state_v_first, cu_seqlens=cu_seqlens, longest=_longest(shape, cu_seqlens, cu_seqlens_cpu),
        chunk_size=chunk_size, split=split,
    )  # fmt: skip
    launch_chunk(call, o, final_state)
    return o, final_state


def _keep_state(initial_state: torch.Tensor | None, final_state: torch.Tensor | None) -> None:
    if final_state is None:
        return
    if initial_state is None:
        final_state.zero_()
    else:
        final_state.copy_(initial_state)


def _longest(shape: KdaShape, cu_seqlens: torch.Tensor | None, cu_seqlens_cpu: torch.Tensor | None) -> int:
    # Only a plan rests on it: where the lengths are on the device alone, sequences count as equally long.
    if cu_seqlens is None or shape.N == 1:
        return shape.T
    if cu_seqlens_cpu is None:
        return -(-shape.T // shape.N)
    return int(cu_seqlens_cpu.diff().max())
