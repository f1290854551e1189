"""The Triton kernel of `add_norm`, in a separate file so that importing the wrapper does not need triton."""

# Triton's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # elements per program, or one row where that is longer
WARP_ELEMENTS = 256  # 8 per thread


def launch_add_norm(
    x: Tensor, branch: tuple[Tensor, Tensor] | None, norm: tuple[Tensor, Tensor, Tensor] | None, eps: float
) -> None:
    """Launch the kernel for x += gamma * branch and out = LayerNorm(x). Arguments must have been checked."""
    C = x.shape[-1]
    N, P = x.numel() // C, x.shape[-2]
    block_c = triton.next_power_of_2(C)
    block_n = max(1, BLOCK // block_c)
    delta, gamma = branch or (None, None)
    weight, bias, out = norm or (None, None, None)
    add_norm_kernel[(triton.cdiv(N, block_n),)](
        x, delta, gamma, weight, bias, out,
        N, P, _frame_stride(x), 0 if out is None else _frame_stride(out), eps, C, block_n, block_c,
        num_warps=min(16, max(1, block_n * block_c // WARP_ELEMENTS)),
    )  # fmt: skip


def _frame_stride(rows: Tensor) -> int:
    return rows.stride(0) if rows.dim() == 3 else 0


@triton.jit(do_not_specialize=["N", "P"])
def add_norm_kernel(
    x_ptr, branch_ptr, gamma_ptr, weight_ptr, bias_ptr, out_ptr,
    N, P, stride_xf, stride_of, eps,
    C: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    offs_c = tl.arange(0, BLOCK_C)[None, :]
    known = offs_c < C
    mask = (n < N) & known  # [BLOCK_N, BLOCK_C]
    f, p = n // P, n % P
    x_ptrs = x_ptr + f * stride_xf + p * C + offs_c
    x = tl.load(x_ptrs, mask=mask, other=0.0)
    if branch_ptr is not None:
        branch = tl.load(branch_ptr + n * C + offs_c, mask=mask, other=0.0).to(tl.float32)
        x += branch * tl.load(gamma_ptr + offs_c, mask=known, other=0.0)
        tl.store(x_ptrs, x, mask=mask)
    if out_ptr is not None:
        centred = tl.where(mask, x - tl.sum(x, 1, keep_dims=True) / C, 0.0)
        variance = tl.sum(centred * centred, 1, keep_dims=True) / C
        weight = tl.load(weight_ptr + offs_c, mask=known, other=0.0)
        bias = tl.load(bias_ptr + offs_c, mask=known, other=0.0)
        y = centred * (1.0 / tl.sqrt(variance + eps)) * weight + bias
        tl.store(out_ptr + f * stride_of + p * C + offs_c, y.to(out_ptr.dtype.element_ty), mask=mask)
