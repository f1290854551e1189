"""The Triton kernel of `gated_rms_norm`, in a separate file so that importing the wrapper does not need triton."""

# Triton's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl
from torch import Tensor

from .checks import dense_rows
from .gate import sigmoid

BLOCK = 4096  # elements per program, or one row where that is longer


def launch_gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, bias: Tensor | None, y: Tensor) -> None:
    """Write y, given checked arguments of `gated_rms_norm`."""
    x, gate, weight = dense_rows(x), dense_rows(gate), weight.contiguous()
    B, T, HV, V = x.shape
    rows = B * T * HV
    if rows * V == 0:
        return
    block_v = triton.next_power_of_2(V)
    block_n = max(1, BLOCK // block_v)
    gated_norm_kernel[(triton.cdiv(rows, block_n),)](
        x, gate, weight, bias, y, rows, x.stride(1), gate.stride(1), eps, HV, V, block_n, block_v, num_warps=8
    )


@triton.jit(do_not_specialize=["rows"])
def gated_norm_kernel(
    x_ptr, gate_ptr, weight_ptr, bias_ptr, y_ptr, rows, stride_xt, stride_gt, eps,
    HV: tl.constexpr, V: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N))[:, None]  # each n is one head of one token
    offs_v = tl.arange(0, BLOCK_V)[None, :]
    known = offs_v < V
    mask = (n < rows) & known  # [BLOCK_N, BLOCK_V]
    t, offs = n // HV, n % HV * V + offs_v
    x = tl.load(x_ptr + t * stride_xt + offs, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + t * stride_gt + offs, mask=mask, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        gate += tl.load(bias_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_v, mask=known, other=0.0).to(tl.float32)
    normed = x * (1.0 / tl.sqrt(tl.sum(x * x, 1, keep_dims=True) / V + eps)) * weight
    y = normed * sigmoid(gate)
    tl.store(y_ptr + n * V + offs_v, y.to(y_ptr.dtype.element_ty), mask=mask)
