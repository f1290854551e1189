"""The checks that the wrappers of this package share.

Dimension letters of the package: F frames, P tokens of a frame, N = F P, C channels, H heads, D numbers of a head,
T places of a memory, M moves.
"""

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
FLOAT32 = (torch.float32,)


def expect(name: str, tensor: Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...], like: Tensor) -> None:
    """Check a contiguous argument.

    Args:
        name: of the argument, for the message.
        tensor: the argument.
        shape: which it must have.
        dtypes: one of which it must have.
        like: a tensor on the device where it must be.

    Raises:
        ValueError: it is another, or empty.
    """
    expect_view(name, tensor, shape, dtypes, like)
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {list(tensor.stride())}")


def expect_view(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...], like: Tensor
) -> None:
    """The same for an argument whose strides are checked elsewhere."""
    if tensor.shape != shape or not tensor.numel():
        raise ValueError(f"{name}: expected a tensor {list(shape)} that is not empty, got {list(tensor.shape)}")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name}: expected {' or '.join(map(str, dtypes))}, got {tensor.dtype}")
    if tensor.device != like.device:
        raise ValueError(f"{name}: expected a tensor on {like.device}, got one on {tensor.device}")
