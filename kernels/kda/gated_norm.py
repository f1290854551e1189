"""The gated norm after delta attention: the RMS norm of each head's output times the sigmoid of a gate, in one pass."""

import torch
from torch import Tensor
from torch.nn import functional

from ..backend import runs_triton
from .checks import KERNEL_DTYPES, check_devices


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, bias: Tensor | None = None) -> Tensor:
    """y = x / sqrt(mean(x^2) + eps) * weight * sigmoid(gate + bias) over the last dimension, all in fp32.

    Args:
        x: [B, T, HV, V], bf16, fp16 or fp32.
        gate: [B, T, HV, V], bf16, fp16 or fp32; slices of a fused projection are read in place.
        weight: [V].
        eps: added to the mean square.
        bias: [HV * V], added to the gate; None means zeros.

    Returns:
        [B, T, HV, V] in x's dtype, contiguous.

    Raises:
        ValueError: an argument is invalid. The message names it, what was expected and what was passed.
    """
    _check(x, gate, weight, bias)
    if not runs_triton(x.device):
        return gated_rms_norm_reference(x, gate, weight, eps, bias)

    from .gated_norm_triton import launch_gated_norm

    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch_gated_norm(x, gate, weight, eps, bias, y)
    return y


def gated_rms_norm_reference(x: Tensor, gate: Tensor, weight: Tensor, eps: float, bias: Tensor | None = None) -> Tensor:
    """`gated_rms_norm` in plain PyTorch."""
    normed = functional.rms_norm(x.float(), weight.shape, weight.float(), eps)
    gate = gate.float() if bias is None else gate.float() + bias.float().view(gate.shape[2:])
    return (normed * gate.sigmoid()).to(x.dtype)


def _check(x: Tensor, gate: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if x.dim() != 4:
        raise ValueError(f"x: expected shape [B, T, HV, V], got {list(x.shape)}")
    for name, tensor, shape in (
        ("gate", gate, tuple(x.shape)),
        ("weight", weight, (x.shape[3],)),
        ("bias", bias, (x.shape[2] * x.shape[3],)),
    ):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name}: expected shape {list(shape)}, got {list(tensor.shape)}")
    for name, tensor in (("x", x), ("gate", gate)):
        if tensor.dtype not in KERNEL_DTYPES:
            raise ValueError(f"{name}: expected one of {sorted(map(str, KERNEL_DTYPES))}, got {tensor.dtype}")
    check_devices(x.device, gate=gate, weight=weight, bias=bias)
