"""The Triton kernel of `attend_ranges`, for any device and cache dtype. It also recomputes NaN of the Hopper kernel.

The kernel is in a separate file so that importing the wrapper does not need triton.
"""

# Triton's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import math

import torch
import triton
import triton.language as tl

from .checks import AttentionShape

BLOCK_P, BLOCK_N, NUM_WARPS, NUM_STAGES = 64, 128, 4, 3


def launch_ranges(
    shape: AttentionShape,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    ranges: torch.Tensor,
    out: torch.Tensor,
    repair: bool = False,
    beside: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Write `out`, given checked arguments. With `repair`, only write blocks of `out` that hold non-finite values."""
    own_key, own_value = (query[:, :0], query[:, :0]) if beside is None else beside
    programs = triton.cdiv(shape.P, BLOCK_P) * shape.H * shape.S
    if programs == 0:
        return
    ranges_kernel[(programs,)](
        query, kv_cache, ranges, out, own_key, own_value,
        shape.D**-0.5 / math.log(2), shape.P, shape.R, own_key.shape[1],
        query.stride(0), query.stride(1), kv_cache.stride(0), out.stride(0), out.stride(1), own_key.stride(0),
        beside is not None, own_key.stride(1), shape.H, shape.D, BLOCK_P, BLOCK_N, dot_dtype(query), repair,
        num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip


def dot_dtype(query: torch.Tensor) -> tl.dtype:
    """Operand dtype of matrix products: the query's, but float32 in the interpreter, which has no bfloat16 products."""
    if query.device.type == "cpu":
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[query.dtype]


@triton.jit(do_not_specialize=["P", "R", "E"])
def ranges_kernel(
    query_ptr, kv_cache_ptr, ranges_ptr, out_ptr, own_key_ptr, own_value_ptr,
    scale, P, R, E,
    stride_qs, stride_qp, stride_values, stride_os, stride_op, stride_es,
    BESIDE: tl.constexpr, STRIDE_E: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, DOT: tl.constexpr, REPAIR: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    blocks_p = tl.cdiv(P, BLOCK_P)
    offs_p = pid % blocks_p * BLOCK_P + tl.arange(0, BLOCK_P)
    h, s = pid // blocks_p % H, pid // (blocks_p * H)
    offs_d = tl.arange(0, D)
    mask_p = offs_p[:, None] < P
    out_ptrs = out_ptr + s * stride_os + offs_p[:, None] * stride_op + h * D + offs_d[None, :]
    if REPAIR:
        written = tl.load(out_ptrs, mask=mask_p, other=0.0).to(tl.float32)
        if tl.max(tl.where(tl.abs(written) < float("inf"), 0, 1).reshape([BLOCK_P * D]), 0) == 0:
            return
    query_ptrs = query_ptr + s * stride_qs + offs_p[:, None] * stride_qp + h * D + offs_d[None, :]
    query = tl.load(query_ptrs, mask=mask_p, other=0.0).to(DOT)
    key_ptr = kv_cache_ptr + h * D
    value_ptr = key_ptr + stride_values

    row_max = tl.full([BLOCK_P], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_P], tl.float32)
    acc = tl.zeros([BLOCK_P, D], tl.float32)
    for r in range(R):
        first = tl.load(ranges_ptr + (s * R + r) * 2).to(tl.int64)
        stop = tl.load(ranges_ptr + (s * R + r) * 2 + 1).to(tl.int64)
        whole = first + tl.maximum(stop - first, 0) // BLOCK_N * BLOCK_N
        for n in range(first, whole, BLOCK_N):
            row_max, total, acc = attend_block(
                query, key_ptr, value_ptr, n, stop, row_max, total, acc, scale, H * D, D, BLOCK_N, DOT, False
            )
        if whole < stop:
            row_max, total, acc = attend_block(
                query, key_ptr, value_ptr, whole, stop, row_max, total, acc, scale, H * D, D, BLOCK_N, DOT, True
            )
    if BESIDE:
        own_key_ptr += s * stride_es + h * D
        own_value_ptr += s * stride_es + h * D
        for e in range(0, E, BLOCK_N):
            row_max, total, acc = attend_block(
                query, own_key_ptr, own_value_ptr, e, E, row_max, total, acc, scale, STRIDE_E, D, BLOCK_N, DOT, True
            )
    acc /= tl.where(total > 0, total, 1.0)[:, None]  # a frame without slots gets zeros
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask_p)


@triton.jit
def attend_block(
    query, key_ptr, value_ptr, n, stop, row_max, total, acc, scale,
    stride_n: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, DOT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    # Processes one block of slots. Slots from `stop` on are masked and not even loaded, because they may hold NaN.
    offs_n, offs_d = tl.arange(0, BLOCK_N), tl.arange(0, D)
    offs = offs_n[:, None] * stride_n + offs_d[None, :]
    if MASKED:
        mask_n = n + offs_n < stop
        key = tl.load(key_ptr + n * stride_n + offs, mask=mask_n[:, None], other=0.0)
        value = tl.load(value_ptr + n * stride_n + offs, mask=mask_n[:, None], other=0.0)
    else:
        key = tl.load(key_ptr + n * stride_n + offs)
        value = tl.load(value_ptr + n * stride_n + offs)
    score = tl.dot(query, key.to(DOT).T) * scale
    if MASKED:
        score = tl.where(mask_n[None, :], score, -float("inf"))
    new_max = tl.maximum(row_max, tl.max(score, 1))
    weight = tl.exp2(score - new_max[:, None])
    rescale = tl.exp2(row_max - new_max)
    total = total * rescale + tl.sum(weight, 1)
    acc = tl.dot(weight.to(DOT), value.to(DOT), acc * rescale[:, None])
    return new_max, total, acc
