"""Copies tokens within a KV cache, as listed in a tensor on the device. Keeps an evicted frame's special tokens."""

import torch
from torch import Tensor

from ..backend import runs_triton
from .checks import expect


def copy_slots(kv_cache: Tensor, copies: Tensor) -> None:
    """Copy the keys and values of runs of consecutive tokens to other slots.

    Args:
        kv_cache: keys and values [2, T, H, D], contiguous, any dtype; mutated.
        copies: int64 [M, 3] on the device: first source slot, first target slot, number of tokens; with 0 tokens,
            nothing is copied. A slot that one copy reads must not be written by another copy, and no slot may be
            written twice. Tokens whose source or target slot is outside [0, T) are skipped.

    Raises:
        ValueError: an argument is empty or has the wrong shape, dtype, layout or device.
    """
    if kv_cache.dim() != 4 or copies.dim() != 2:
        raise ValueError(
            "kv_cache, copies: expected shapes [2, T, H, D] and [M, 3], "
            f"got {list(kv_cache.shape)} and {list(copies.shape)}"
        )
    expect("kv_cache", kv_cache, (2, *kv_cache.shape[1:]), (kv_cache.dtype,), kv_cache)
    expect("copies", copies, (copies.shape[0], 3), (torch.int64,), kv_cache)
    if not runs_triton(kv_cache.device):
        copy_slots_reference(kv_cache, copies)
        return

    from .kv_copy_triton import launch_copy_slots

    launch_copy_slots(kv_cache, copies)


def copy_slots_reference(kv_cache: Tensor, copies: Tensor) -> None:
    """`copy_slots` in plain PyTorch, token by token; reads `copies` on the host."""
    slots = range(kv_cache.shape[1])
    for source, target, tokens in copies.tolist():
        for t in range(tokens):
            if source + t in slots and target + t in slots:
                kv_cache[:, target + t] = kv_cache[:, source + t]
