"""Pools of states: checks the indices of rows, and reads and writes rows in PyTorch.

A pool is a tensor [slots, ...]. Sequence n reads row state_indices[n]. In place, it writes row final_state_indices[n],
or by default the row that it read. In state_indices, -1 means padding: nothing is read, outputs are 0, and nothing is
written. In final_state_indices, -1 means that no state is written.
"""

import torch

from ..backend import runs_triton
from .checks import check_devices, check_indices


def check_writing(
    N: int,
    states: torch.Tensor | None,
    state_indices: torch.Tensor | None,
    final_state_indices: torch.Tensor | None,
    inplace: bool,
    dtype: torch.dtype,
) -> None:
    """Raise ValueError unless final states can be written as requested; in place, that needs `dtype` and dense rows."""
    if final_state_indices is not None:
        if not inplace or state_indices is None or states is None:
            raise ValueError("final_state_indices needs inplace_final_state=True and state_indices")
        check_indices("final_state_indices", final_state_indices, N, states.shape[0])
        check_devices(states.device, final_state_indices=final_state_indices)
    if not inplace:
        return
    if states is None:
        raise ValueError("inplace_final_state=True needs initial_state, where final states are written, got None")
    if states.dtype != dtype or not rows_are_dense(states):
        raise ValueError(
            f"initial_state: inplace_final_state=True needs dense rows, expected {dtype}, got {states.dtype} of "
            f"shape {list(states.shape)} with strides {list(states.stride())}"
        )


def rows_are_dense(states: torch.Tensor) -> bool:
    """Whether each row of the pool is contiguous; the stride between rows is free."""
    return states.shape[0] == 0 or states[0].is_contiguous()


def gather_states(states: torch.Tensor | None, indices: torch.Tensor | None) -> torch.Tensor | None:
    """The states [N, ...] of all sequences, with arbitrary rows for padding. Without indices, `states` itself."""
    if states is None or indices is None:
        return states
    return states.index_select(0, indices.long().clamp(min=0))


def clear_padding(
    o: torch.Tensor, final: torch.Tensor | None, indices: torch.Tensor | None, cu_seqlens: torch.Tensor | None
) -> None:
    """Set the outputs [B, T, ...] and final states [N, ...] of padding sequences to zero, in place.

    Does not synchronise with the device.
    """
    if indices is None:
        return
    padding = indices < 0
    if final is not None:
        final.masked_fill_(_like_rows(padding, final), 0)
    if cu_seqlens is None:
        o.masked_fill_(_like_rows(padding, o), 0)
    else:
        tokens = padding.repeat_interleave(cu_seqlens.diff(), output_size=o.shape[1])
        o[0].masked_fill_(_like_rows(tokens, o[0]), 0)


def scatter_states(
    states: torch.Tensor, final: torch.Tensor, read: torch.Tensor | None, written: torch.Tensor | None
) -> torch.Tensor:
    """Write final states [N, ...] to the pool `states` and return it. Does not synchronise with a CUDA device."""
    if read is None or written is None:
        return states.copy_(final)
    if runs_triton(states.device):
        from .state_pool_triton import launch_scatter

        launch_scatter(states, final, read, written)
    else:
        keep = (read >= 0) & (written >= 0)
        states[written.long()[keep]] = final[keep]
    return states


def _like_rows(mask: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return mask.view(-1, *(1,) * (rows.dim() - 1))
