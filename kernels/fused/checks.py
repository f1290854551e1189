"""Argument checks that the wrappers of this package share.

Dimension letters of the package: F frames, P tokens per frame, N = F P tokens, C channels, H heads, D channels per
head, T slots in a KV cache (one slot holds one token's keys and values), M copies.
"""

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
FLOAT32 = (torch.float32,)


def expect(name: str, tensor: Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...], like: Tensor) -> None:
    """Check a contiguous argument.

    Args:
        name: the argument's name, for the message.
        tensor: the argument.
        shape: the shape that the argument must have.
        dtypes: the dtypes that the argument may have.
        like: a tensor on the device where the argument must be.

    Raises:
        ValueError: the argument does not meet these conditions, or is empty.
    """
    expect_view(name, tensor, shape, dtypes, like)
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name}: expected a contiguous tensor, got shape {list(tensor.shape)} with strides {list(tensor.stride())}"
        )


def expect_view(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...], like: Tensor
) -> None:
    """Check an argument whose strides are checked elsewhere; see `expect`."""
    if tensor.shape != shape or not tensor.numel():
        raise ValueError(f"{name}: expected a non-empty tensor {list(shape)}, got {list(tensor.shape)}")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name}: expected {' or '.join(map(str, dtypes))}, got {tensor.dtype}")
    if tensor.device != like.device:
        raise ValueError(f"{name}: expected a tensor on {like.device}, got one on {tensor.device}")
