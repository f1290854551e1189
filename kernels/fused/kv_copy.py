"""Moving a few tokens inside a memory, by a list on the device: how what is kept of an evicted frame joins the rest."""

import torch
from torch import Tensor

from ..backend import runs_triton
from .checks import expect


def evict(memory: Tensor, moves: Tensor) -> None:
    """Copy spans of tokens from place to place, keys and values alike.

    Args:
        memory: keys and values [2, T, H, D], contiguous, any dtype; mutated.
        moves: int64 [M, 3] on the device: source place, target place, tokens; 0 tokens is no move. No place may be
            read by one and written by another, nor written twice. A token with a place outside [0, T) is left out.

    Raises:
        ValueError: an argument has another shape, dtype, layout or device, or is empty.
    """
    if memory.dim() != 4 or moves.dim() != 2:
        raise ValueError(f"expected [2, T, H, D] and [M, 3], got {list(memory.shape)} and {list(moves.shape)}")
    expect("memory", memory, (2, *memory.shape[1:]), (memory.dtype,), memory)
    expect("moves", moves, (moves.shape[0], 3), (torch.int64,), memory)
    if not runs_triton(memory.device):
        evict_reference(memory, moves)
        return

    from .kv_copy_triton import launch_evict

    launch_evict(memory, moves)


def evict_reference(memory: Tensor, moves: Tensor) -> None:
    """The same in plain PyTorch, one token after another; it reads `moves` back."""
    places = range(memory.shape[1])
    for source, target, tokens in moves.tolist():
        for t in range(tokens):
            if source + t in places and target + t in places:
                memory[:, target + t] = memory[:, source + t]
