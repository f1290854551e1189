"""The one layout of tokens that kernels read, so that slices of a fused projection need no copy."""

import torch


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` [B, T, ...], or a copy of it, so that a token's heads are dense and one stride leads from token to token over
    all rows of the batch, as in a slice of a fused projection."""
    dense = x.stride(-1) == 1 and (x.dim() == 3 or x.stride(2) == x.shape[3] or x.shape[2] == 1)
    even = x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
    return x if dense and even else x.contiguous()
