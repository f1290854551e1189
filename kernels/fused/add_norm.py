"""The residual sum, fused with the layer norm that follows it, so that x is read and written once instead of twice."""

import torch
from torch import Tensor
from torch.nn import functional

from ..backend import runs_triton
from .checks import FLOAT32, FLOATS, expect, expect_view


def add_norm(x: Tensor, branch: Tensor, gamma: Tensor, weight: Tensor, bias: Tensor, out: Tensor, eps: float) -> None:
    """x += gamma * branch, then out = LayerNorm(x), all computed in float32.

    Args:
        x: the residual stream, float32 [N, C] or [F, P, C]; mutated. Each frame must be dense; the stride between
            frames is free.
        branch: bfloat16, float16 or float32, contiguous, with x's shape.
        gamma: float32 [C], the branch's LayerScale.
        weight, bias: float32 [C], the norm's parameters.
        out: bfloat16, float16 or float32, with x's shape; fully written. The stride between frames is free.
        eps: added to the variance.

    Raises:
        ValueError: an argument is empty or has the wrong shape, dtype, layout or device.
    """
    _run(x, (branch, gamma), (weight, bias, out), eps)


def add(x: Tensor, branch: Tensor, gamma: Tensor) -> None:
    """x += gamma * branch: `add_norm` without the norm."""
    _run(x, (branch, gamma), None, 0.0)


def norm(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, eps: float) -> None:
    """out = LayerNorm(x): `add_norm` without the branch. x is unchanged."""
    _run(x, None, (weight, bias, out), eps)


def add_norm_reference(
    x: Tensor, branch: tuple[Tensor, Tensor] | None, norm: tuple[Tensor, Tensor, Tensor] | None, eps: float
) -> None:
    """`add_norm`, `add` and `norm` in plain PyTorch: `branch` is (branch, gamma), `norm` is (weight, bias, out)."""
    if branch is not None:
        x.copy_(torch.addcmul(x, branch[0].to(x.dtype), branch[1]))
    if norm is not None:
        norm[2].copy_(functional.layer_norm(x, x.shape[-1:], norm[0], norm[1], eps))


def _run(
    x: Tensor, branch: tuple[Tensor, Tensor] | None, norm: tuple[Tensor, Tensor, Tensor] | None, eps: float
) -> None:
    _check(x, branch, norm)
    if not runs_triton(x.device):
        add_norm_reference(x, branch, norm, eps)
        return

    from .add_norm_triton import launch_add_norm

    launch_add_norm(x, branch, norm, eps)


def _check(x: Tensor, branch: tuple[Tensor, Tensor] | None, norm: tuple[Tensor, Tensor, Tensor] | None) -> None:
    if x.dim() not in (2, 3):
        raise ValueError(f"x: expected [N, C] or [F, P, C], got {list(x.shape)}")
    C = x.shape[-1]
    _expect_rows("x", x, x, FLOAT32)
    if branch is not None:
        expect("branch", branch[0], tuple(x.shape), FLOATS, x)
        expect("gamma", branch[1], (C,), FLOAT32, x)
    if norm is not None:
        expect("weight", norm[0], (C,), FLOAT32, x)
        expect("bias", norm[1], (C,), FLOAT32, x)
        _expect_rows("out", norm[2], x, FLOATS)


def _expect_rows(name: str, tensor: Tensor, x: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    expect_view(name, tensor, tuple(x.shape), dtypes, x)
    if tensor.stride()[-2:] != (x.shape[-1], 1):
        raise ValueError(f"{name}: expected dense rows of {x.shape[-1]}, got strides {list(tensor.stride())}")
