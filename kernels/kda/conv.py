"""The causal depthwise convolution before delta attention. Its state is the last raw inputs of each sequence."""

import torch
import torch.nn.functional as F

from ..backend import runs_triton
from .checks import REFERENCE_DTYPES, check_devices, check_indices, count_sequences
from .state_pool import check_writing, clear_padding, gather_states, scatter_states

WIDTH = 4
KEPT = WIDTH - 1  # number of raw inputs in the state of a sequence


def short_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    state_indices: torch.Tensor | None = None,
    final_state_indices: torch.Tensor | None = None,
    inplace_final_state: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """SiLU of a causal depthwise convolution of width 4: y_t = silu(sum_j weight[:, 0, j] * x_(t-3+j)).

    x [B, T, D] (slices of a fused projection are read in place); weight [D, 1, 4], whose last tap is for the current
    token. Sums are fp32; y has x's dtype. With `cu_seqlens` [N+1], B is 1 and N sequences lie end to end. initial_state
    [N, 3, D] holds the last raw inputs of each sequence, oldest first; None means zeros. `state_indices` [N],
    `final_state_indices` [N], `inplace_final_state` and `output_final_state` work as in `fused_recurrent_kda`: the
    indices are rows of a pool [slots, 3, D], -1 means padding, and new states are written to the pool only if that is
    requested.

    Returns:
        y [B, T, D], and the new states in x's dtype, or None if no new states are requested. In place, the new states
        are `initial_state` itself, mutated.

    Raises:
        ValueError: an argument is invalid. The message names it, what was expected and what was passed.
    """
    N = _check(x, weight, initial_state, cu_seqlens, state_indices)
    check_writing(N, initial_state, state_indices, final_state_indices, inplace_final_state, x.dtype)
    written_indices = state_indices if final_state_indices is None else final_state_indices
    if not runs_triton(x.device):
        rows = gather_states(initial_state, state_indices)
        y, final = short_convolution_reference(x, weight, initial_state=rows, cu_seqlens=cu_seqlens)
        clear_padding(y, final, state_indices, cu_seqlens)
        if inplace_final_state and initial_state is not None:
            return y, scatter_states(initial_state, final, state_indices, written_indices)
        return y, final if output_final_state else None

    from .conv_triton import launch_convolution

    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    written = initial_state if inplace_final_state else None
    if output_final_state and not inplace_final_state:
        written = torch.empty((N, KEPT, x.shape[2]), dtype=x.dtype, device=x.device)
    indices = (state_indices, written_indices if inplace_final_state else None)
    launch_convolution(x, weight, (initial_state, written), indices, cu_seqlens, y, N)
    return y, written


def short_convolution_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    initial_state: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    compute_dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`short_convolution` in plain PyTorch: x [B, T, D], weight [D, 1, 4], initial_state [N, 3, D]; returns y, states.

    Sums are in `compute_dtype`; y and the states have x's dtype. Raises the same ValueErrors as `short_convolution`.
    """
    N = _check(x, weight, initial_state, cu_seqlens, None)
    past = x.new_zeros(N, KEPT, x.shape[2]) if initial_state is None else initial_state.to(x.dtype)
    cuts = [0, x.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    taps = weight[:, 0].to(compute_dtype)  # [D, 4]
    y, final = torch.empty_like(x), torch.empty_like(past)
    for n in range(len(cuts) - 1):
        rows = slice(None) if cu_seqlens is None else slice(n, n + 1)
        known = torch.cat([past[rows], x[:, cuts[n] : cuts[n + 1]]], dim=1)  # [B, 3 + tokens, D]
        final[rows] = known[:, known.shape[1] - KEPT :]
        if cuts[n + 1] > cuts[n]:
            windows = known.to(compute_dtype).unfold(1, WIDTH, 1)  # [B, tokens, D, 4]
            y[:, cuts[n] : cuts[n + 1]] = F.silu((windows * taps).sum(-1)).to(x.dtype)
    return y, final


def _check(
    x: torch.Tensor,
    weight: torch.Tensor,
    initial_state: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    state_indices: torch.Tensor | None,
) -> int:
    if x.dim() != 3 or x.dtype not in REFERENCE_DTYPES:
        raise ValueError(f"x: expected a floating tensor of shape [B, T, D], got {x.dtype} {list(x.shape)}")
    B, T, D = x.shape
    if weight.shape != (D, 1, WIDTH):
        raise ValueError(f"weight: expected shape [D, 1, {WIDTH}] = {[D, 1, WIDTH]}, got {list(weight.shape)}")
    N = count_sequences(B, T, cu_seqlens)
    check_devices(
        x.device, weight=weight, initial_state=initial_state, cu_seqlens=cu_seqlens, state_indices=state_indices
    )
    if initial_state is None:
        if state_indices is not None:
            raise ValueError("initial_state: expected a pool [slots, 3, D] with state_indices, got None")
        return N
    rows = N if state_indices is None else initial_state.shape[0]
    if initial_state.shape != (rows, KEPT, D):
        raise ValueError(f"initial_state: expected shape {[rows, KEPT, D]}, got {list(initial_state.shape)}")
    if state_indices is not None:
        check_indices("state_indices", state_indices, N, rows)
    return N
