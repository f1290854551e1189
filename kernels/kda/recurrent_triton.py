"""The Triton kernel of `fused_recurrent_kda`, in a separate file so that importing the wrapper does not need triton."""

# Triton's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import torch
import triton
import triton.language as tl

from .checks import KdaShape, dense_rows
from .gate import log_decay, unit_rows
from .options import KdaOptions, KdaTensors

# One warp holds a [BLOCK_K, BLOCK_V] tile of the state in registers. A tile of 1,024 floats takes 32 registers per
# thread, sums over K cross lanes but not warps, and one sequence with 16 heads of 128 x 128 is processed by 256
# programs. A row of 8 floats is one sector of memory, the smallest amount that is read without waste.
TILE, MIN_BLOCK_V = 1024, 8


def launch_recurrent(
    shape: KdaShape, tensors: KdaTensors, options: KdaOptions, written: torch.Tensor | None, o: torch.Tensor
) -> None:
    """Launch the kernel, which writes the output to `o` [B, T, HV, V] and the final states to `written`, if not None.

    Arguments must have been checked. The initial states and `written` may be the same tensor; rows of both are dense.
    """
    rows = [dense_rows(x) for x in tensors[:5]]
    block_k, block_v = block_sizes(shape.K, shape.V)
    programs = shape.N * shape.HV * triton.cdiv(shape.V, block_v)
    if programs == 0:
        return
    read = tensors.initial_state
    recurrent_kernel[(programs,)](
        *rows, tensors.A_log, tensors.dt_bias, o, read, written, tensors.cu_seqlens, tensors.state_indices,
        tensors.written_indices,
        shape.T, shape.scale, options.lower_bound,
        *(x.stride(1) for x in rows), _slot_stride(read), _slot_stride(written),
        shape.H, shape.HV, shape.K, shape.V, block_k, block_v,
        options.use_gate_in_kernel, options.use_qk_l2norm_in_kernel, options.beta_factor, options.state_v_first,
        num_warps=1,
    )  # fmt: skip


def block_sizes(K: int, V: int) -> tuple[int, int]:
    """Sizes of a program's tile of the state: all of K, and as much of V as fits."""
    block_k = triton.next_power_of_2(K)
    return block_k, min(triton.next_power_of_2(V), max(TILE // block_k, MIN_BLOCK_V))


def _slot_stride(states: torch.Tensor | None) -> int:
    return 0 if states is None else states.stride(0)


@triton.jit(do_not_specialize=["T"])
def recurrent_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, A_log_ptr, dt_bias_ptr, o_ptr,
    read_ptr, written_ptr, cu_seqlens_ptr, read_slots_ptr, written_slots_ptr,
    T, scale, lower_bound,
    stride_qt, stride_kt, stride_vt, stride_gt, stride_betat, stride_read, stride_written,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    USE_GATE: tl.constexpr, USE_L2NORM: tl.constexpr, BETA_FACTOR: tl.constexpr, STATE_V_FIRST: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    blocks_v: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    n, h = pid // (blocks_v * HV), pid // blocks_v % HV
    offs_k = tl.arange(0, BLOCK_K)
    offs_v = pid % blocks_v * BLOCK_V + tl.arange(0, BLOCK_V)
    mask_k, mask_v = offs_k < K, offs_v < V
    mask_s = mask_k[:, None] & mask_v[None, :]
    if STATE_V_FIRST:
        offs_s = h * K * V + offs_v[None, :] * K + offs_k[:, None]
    else:
        offs_s = h * K * V + offs_k[:, None] * V + offs_v[None, :]

    first, end = n * T, n * T + T
    if cu_seqlens_ptr is not None:
        first, end = tl.load(cu_seqlens_ptr + n).to(tl.int64), tl.load(cu_seqlens_ptr + n + 1).to(tl.int64)
    read, written = n, n
    if read_slots_ptr is not None:
        read = tl.load(read_slots_ptr + n).to(tl.int64)
    if written_slots_ptr is not None:
        written = tl.load(written_slots_ptr + n).to(tl.int64)

    S = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if read_ptr is not None:
        S += tl.load(read_ptr + read * stride_read + offs_s, mask=mask_s & (read >= 0), other=0.0).to(tl.float32)

    # A padding sequence (read < 0) gets zeros; its tokens are not read.
    last = tl.where(read < 0, first, end)
    q_ptrs = q_ptr + (h // (HV // H)) * K + offs_k
    k_ptrs = k_ptr + (h // (HV // H)) * K + offs_k
    g_ptrs = g_ptr + h * K + offs_k
    v_ptrs = v_ptr + h * V + offs_v
    o_ptrs = o_ptr + h * V + offs_v
    for t in range(last, end):
        tl.store(o_ptrs + t * (HV * V), tl.zeros([BLOCK_V], tl.float32), mask=mask_v)

    # Token t + 1 is loaded before token t is processed, so that loading overlaps with computing.
    some = first < last
    q_next = tl.load(q_ptrs + first * stride_qt, mask=mask_k & some, other=0.0)
    k_next = tl.load(k_ptrs + first * stride_kt, mask=mask_k & some, other=0.0)
    v_next = tl.load(v_ptrs + first * stride_vt, mask=mask_v & some, other=0.0)
    g_next = tl.load(g_ptrs + first * stride_gt, mask=mask_k & some, other=0.0)
    beta_next = tl.load(beta_ptr + first * stride_betat + h, mask=some, other=0.0)
    for t in range(first, last):
        q, k, g = q_next.to(tl.float32), k_next.to(tl.float32), g_next.to(tl.float32)
        v, beta = v_next.to(tl.float32), beta_next.to(tl.float32)
        some = t + 1 < last
        q_next = tl.load(q_ptrs + (t + 1) * stride_qt, mask=mask_k & some, other=0.0)
        k_next = tl.load(k_ptrs + (t + 1) * stride_kt, mask=mask_k & some, other=0.0)
        v_next = tl.load(v_ptrs + (t + 1) * stride_vt, mask=mask_v & some, other=0.0)
        g_next = tl.load(g_ptrs + (t + 1) * stride_gt, mask=mask_k & some, other=0.0)
        beta_next = tl.load(beta_ptr + (t + 1) * stride_betat + h, mask=some, other=0.0)

        if USE_L2NORM:
            q, k = unit_rows(q[None, :]).reshape([BLOCK_K]), unit_rows(k[None, :]).reshape([BLOCK_K])
        if USE_GATE:
            g = log_decay(g[None, :], A_log_ptr, dt_bias_ptr, lower_bound, h, offs_k, mask_k, K).reshape([BLOCK_K])
        if BETA_FACTOR > 0:
            beta = BETA_FACTOR * tl.sigmoid(beta)
        S *= tl.exp(g)[:, None]
        error = beta * (v - tl.sum(k[:, None] * S, 0))
        S += k[:, None] * error[None, :]
        o = scale * tl.sum(q[:, None] * S, 0)
        tl.store(o_ptrs + t * (HV * V), o, mask=mask_v)

    if written_ptr is not None:
        keep = written >= 0
        if written_slots_ptr is not None:
            keep &= read >= 0
        tl.store(written_ptr + written * stride_written + offs_s, S, mask=mask_s & keep)
