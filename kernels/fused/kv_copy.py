"""Copies of tokens within a KV cache, from a list on the device: they move an evicted frame's special tokens."""

import torch
from torch import Tensor

from ..backend import runs_triton
from .checks import expect


def copy_slots(kv_cache: Tensor, copies: Tensor) -> None:
    """Copy runs of tokens from slots to other slots, keys and values alike.

    Args:
        kv_cache: keys and values [2, T, H, D], contiguous, any dtype; mutated.
        copies: int64 [M, 3] on the device: source slot, target slot, tokens; 0 tokens is no copy. No slot may be read
            by one copy and written by another, nor written twice. Tokens whose source or target is outside [0, T) are
            skipped.

    Raises:
        ValueError: an argument is empty or has the wrong shape, dtype, layout or device.
    """
    if kv_cache.dim() != 4 or copies.dim() != 2:
        raise ValueError(f"expected [2, T, H, D] and [M, 3], got {list(kv_cache.shape)} and {list(copies.shape)}")
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
