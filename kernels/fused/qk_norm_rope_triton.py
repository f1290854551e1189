"""The Triton kernel of `qk_norm_rope`, in a separate file so that importing the wrapper does not need triton."""

# Triton's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl
from torch import Tensor

from .qk_norm_rope_types import FLOAT8, FLOAT8_MAX, Append, HeadNorm, RotaryTables

# Number of elements of one token's queries per warp. Of 128 to 1024, 512 is the fastest, or as fast as the fastest, at
# 1 and at 8 frames on an H200.
WARP_ELEMENTS = 512


def launch_qk_norm_rope(
    packed: Tensor, norm: HeadNorm | None, tables: RotaryTables | None, query: Tensor | None, append: Append | None
) -> None:
    """Launch one program per token, which processes all heads of the token. Arguments must have been checked."""
    F, P, _, H, D = packed.shape
    weights = (None,) * 4 if norm is None else (norm.query_weight, norm.query_bias, norm.key_weight, norm.key_bias)
    cos, sin, pairs = (None, None, True) if tables is None else (tables.cos, tables.sin, tables.pairs)
    kv_cache, slots = (None, None) if append is None else (append.kv_cache, append.slots)
    block_h, block_d = triton.next_power_of_2(H), triton.next_power_of_2(D)
    qk_norm_rope_kernel[(F * P,)](
        packed, *weights, cos, sin, query, kv_cache, slots,
        P, *((0, 0) if kv_cache is None else (kv_cache.shape[1], kv_cache.stride(0))),
        0 if cos is None or len(cos) == 1 else P * (D // 2),
        0.0 if norm is None else norm.eps, FLOAT8_MAX if _is_float8(kv_cache) else 0.0,
        H, D, pairs, block_h, block_d, triton.next_power_of_2(H * D),
        num_warps=min(8, max(1, block_h * block_d // WARP_ELEMENTS)),
    )  # fmt: skip


def _is_float8(kv_cache: Tensor | None) -> bool:
    return kv_cache is not None and kv_cache.dtype == FLOAT8


@triton.jit
def pair_offsets(D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Offset of each pair's first element in the halves layout. The second element is D / 4 further."""
    i = tl.arange(0, BLOCK_D // 2)[None, :]
    return i + i // (D // 4) * (D // 4)


@triton.jit
def load_pairs(ptr, h, H, D: tl.constexpr, PAIRS: tl.constexpr, BLOCK_D: tl.constexpr):
    # Loads both elements of every pair of the heads h [BLOCK_H, 1], as two float32 [BLOCK_H, BLOCK_D / 2]. Elements
    # past the ends are 0.
    if PAIRS:
        offs_d = tl.arange(0, BLOCK_D)[None, :]
        x = tl.load(ptr + h * D + offs_d, mask=(h < H) & (offs_d < D), other=0.0).to(tl.float32)
        a, b = tl.split(x.reshape(x.shape[0], BLOCK_D // 2, 2))
    else:
        ptrs = ptr + h * D + pair_offsets(D, BLOCK_D)
        mask = (h < H) & (tl.arange(0, BLOCK_D // 2)[None, :] < D // 2)
        a = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(ptrs + D // 4, mask=mask, other=0.0).to(tl.float32)
    return a, b


@triton.jit
def store_pairs(
    ptr, a, b, h, H, keep, LARGEST: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr, BLOCK_D: tl.constexpr
):
    a, b = fitting(a, ptr, LARGEST), fitting(b, ptr, LARGEST)
    if PAIRS:
        offs_d = tl.arange(0, BLOCK_D)[None, :]
        x = tl.join(a, b).reshape(a.shape[0], BLOCK_D)
        tl.store(ptr + h * D + offs_d, x, mask=(h < H) & (offs_d < D) & keep)
    else:
        ptrs = ptr + h * D + pair_offsets(D, BLOCK_D)
        mask = (h < H) & (tl.arange(0, BLOCK_D // 2)[None, :] < D // 2) & keep
        tl.store(ptrs, a, mask=mask)
        tl.store(ptrs + D // 4, b, mask=mask)


@triton.jit
def fitting(x, ptr, LARGEST: tl.constexpr):
    if LARGEST > 0:
        x = tl.clamp(x, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return x.to(ptr.dtype.element_ty)


@triton.jit
def norm_pairs(a, b, weight_ptr, bias_ptr, eps, D: tl.constexpr, PAIRS: tl.constexpr, BLOCK_D: tl.constexpr):
    one = tl.arange(0, 1)[:, None]
    weight_a, weight_b = load_pairs(weight_ptr, one, 1, D, PAIRS, BLOCK_D)
    bias_a, bias_b = load_pairs(bias_ptr, one, 1, D, PAIRS, BLOCK_D)
    known = tl.arange(0, BLOCK_D // 2)[None, :] < D // 2
    mean = tl.sum(a + b, 1, keep_dims=True) / D
    a, b = tl.where(known, a - mean, 0.0), tl.where(known, b - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(a * a + b * b, 1, keep_dims=True) / D + eps)
    return a * scale * weight_a + bias_a, b * scale * weight_b + bias_b


@triton.jit(do_not_specialize=["P", "T"])
def qk_norm_rope_kernel(
    packed_ptr, q_weight_ptr, q_bias_ptr, k_weight_ptr, k_bias_ptr, cos_ptr, sin_ptr,
    query_ptr, kv_cache_ptr, slots_ptr,
    P, T, stride_values, stride_table, eps, LARGEST: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_HD: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    f, p = n // P, n % P
    h = tl.arange(0, BLOCK_H)[:, None]
    q_ptr = packed_ptr + n * (3 * H * D)
    k_ptr = q_ptr + H * D
    q_a, q_b = load_pairs(q_ptr, h, H, D, PAIRS, BLOCK_D)  # [BLOCK_H, BLOCK_D / 2] each
    k_a, k_b = load_pairs(k_ptr, h, H, D, PAIRS, BLOCK_D)
    if q_weight_ptr is not None:
        q_a, q_b = norm_pairs(q_a, q_b, q_weight_ptr, q_bias_ptr, eps, D, PAIRS, BLOCK_D)
        k_a, k_b = norm_pairs(k_a, k_b, k_weight_ptr, k_bias_ptr, eps, D, PAIRS, BLOCK_D)
    if cos_ptr is not None:
        i = tl.arange(0, BLOCK_D // 2)[None, :]
        table = f * stride_table + p * (D // 2) + i
        cos = tl.load(cos_ptr + table, mask=i < D // 2, other=0.0)
        sin = tl.load(sin_ptr + table, mask=i < D // 2, other=0.0)
        q_a, q_b = q_a * cos - q_b * sin, q_b * cos + q_a * sin
        k_a, k_b = k_a * cos - k_b * sin, k_b * cos + k_a * sin
    if query_ptr is not None:
        store_pairs(query_ptr + n * (H * D), q_a, q_b, h, H, True, 0.0, D, PAIRS, BLOCK_D)
    else:
        store_pairs(q_ptr, q_a, q_b, h, H, True, 0.0, D, PAIRS, BLOCK_D)
    if kv_cache_ptr is not None:
        slot = tl.load(slots_ptr + f) + p
        keep = (slot >= 0) & (slot < T)
        row_ptr = kv_cache_ptr + slot * (H * D)
        store_pairs(row_ptr, k_a, k_b, h, H, keep, LARGEST, D, PAIRS, BLOCK_D)
        offs = tl.arange(0, BLOCK_HD)
        v = tl.load(k_ptr + H * D + offs, mask=offs < H * D)
        v_ptr = row_ptr + stride_values
        tl.store(v_ptr + offs, fitting(v, v_ptr, LARGEST), mask=(offs < H * D) & keep)
    else:
        store_pairs(k_ptr, k_a, k_b, h, H, True, 0.0, D, PAIRS, BLOCK_D)
