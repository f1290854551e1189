"""The Triton kernels of `short_convolution`, in a file of their own so that importing the wrapper needs no triton."""

# Triton's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import torch
import triton
import triton.language as tl

BLOCK_T, BLOCK_D = 16, 128


def launch_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    states: torch.Tensor | None,
    state_indices: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    y: torch.Tensor,
    N: int,
) -> None:
    """Write y [B, T, D] for checked x [B, T, D], weight [D, 1, 4] and states [N or slots, 3, D]."""
    x, weight = _rows(x), weight.contiguous()
    B, T, D = x.shape
    if B * T == 0:
        return
    states = states if states is None else _dense(states)
    grid = (triton.cdiv(B * T, BLOCK_T) * triton.cdiv(D, BLOCK_D),)
    convolution_kernel[grid](
        x, weight, states, state_indices, cu_seqlens, y,
        B * T, T, N, x.stride(1), 0 if states is None else states.stride(0), D, BLOCK_T, BLOCK_D,
        num_warps=4,
    )  # fmt: skip


def launch_state_update(
    x: torch.Tensor,
    states: torch.Tensor | None,
    written: torch.Tensor,
    indices: tuple[torch.Tensor | None, torch.Tensor | None],
    cu_seqlens: torch.Tensor | None,
    N: int,
) -> None:
    """Write the last three inputs of each sequence to `written` [N or slots, 3, D], which may be `states`."""
    x = _rows(x)
    _, T, D = x.shape
    if N == 0:
        return
    states = states if states is None else _dense(states)
    grid = (N * triton.cdiv(D, BLOCK_D),)
    state_update_kernel[grid](
        x, states, written, *indices, cu_seqlens,
        T, x.stride(1), 0 if states is None else states.stride(0), written.stride(0), D, BLOCK_D,
        num_warps=1,
    )  # fmt: skip


def _rows(x: torch.Tensor) -> torch.Tensor:
    even = x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
    return x if x.stride(2) == 1 and even else x.contiguous()


def _dense(states: torch.Tensor) -> torch.Tensor:
    return states if states.stride()[1:] == (states.shape[2], 1) else states.contiguous()


@triton.jit
def sequence_of(t, cu_seqlens_ptr, N):
    # The sequence that token t [BLOCK_T] belongs to: the last one that starts at or before it. Halving the range
    # takes log2 N loads, and skips empty sequences.
    low = t * 0
    high = low + N
    while tl.max(high - low, 0) > 1:
        middle = (low + high) // 2
        starts_before = tl.load(cu_seqlens_ptr + middle).to(tl.int64) <= t
        low = tl.where(starts_before, middle, low)
        high = tl.where(starts_before, high, middle)
    return low


@triton.jit(do_not_specialize=["tokens", "T", "N"])
def convolution_kernel(
    x_ptr, weight_ptr, states_ptr, slots_ptr, cu_seqlens_ptr, y_ptr,
    tokens, T, N, stride_xt, stride_states,
    D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    blocks_d: tl.constexpr = (D + BLOCK_D - 1) // BLOCK_D
    offs_t = pid // blocks_d * BLOCK_T + tl.arange(0, BLOCK_T)
    offs_d = pid % blocks_d * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_t, mask_d = offs_t < tokens, offs_d < D
    t = tl.minimum(offs_t, tokens - 1)

    if cu_seqlens_ptr is None:
        n = t // T
        first = n * T
    else:
        n = sequence_of(t, cu_seqlens_ptr, N)
        first = tl.load(cu_seqlens_ptr + n).to(tl.int64)
    slot = n
    if slots_ptr is not None:
        slot = tl.load(slots_ptr + n).to(tl.int64)
    live = mask_t & (slot >= 0)  # padding gets zeros

    y = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for tap in tl.static_range(4):
        source = offs_t + (tap - 3)
        seen = live & (source >= first)
        x = tl.load(x_ptr + source[:, None] * stride_xt + offs_d[None, :], seen[:, None] & mask_d[None, :], 0.0)
        x = x.to(tl.float32)
        if states_ptr is not None:
            kept = live & (source < first)
            row = slot * stride_states + (source - first + 3) * D
            past = tl.load(states_ptr + row[:, None] + offs_d[None, :], kept[:, None] & mask_d[None, :], 0.0)
            x += past.to(tl.float32)
        y += tl.load(weight_ptr + offs_d * 4 + tap, mask_d, 0.0).to(tl.float32)[None, :] * x
    y *= tl.sigmoid(y)
    tl.store(y_ptr + offs_t[:, None] * D + offs_d[None, :], y, mask_t[:, None] & mask_d[None, :])


@triton.jit(do_not_specialize=["T"])
def state_update_kernel(
    x_ptr, states_ptr, written_ptr, read_slots_ptr, written_slots_ptr, cu_seqlens_ptr,
    T, stride_xt, stride_states, stride_written,
    D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    blocks_d: tl.constexpr = (D + BLOCK_D - 1) // BLOCK_D
    n = pid // blocks_d
    offs_d = pid % blocks_d * BLOCK_D + tl.arange(0, BLOCK_D)
    offs_r = tl.arange(0, 4)  # rows of the state, the fourth unused
    mask_d = offs_d < D

    first, end = n * T, n * T + T
    if cu_seqlens_ptr is not None:
        first, end = tl.load(cu_seqlens_ptr + n).to(tl.int64), tl.load(cu_seqlens_ptr + n + 1).to(tl.int64)
    read, written = n, n
    if read_slots_ptr is not None:
        read = tl.load(read_slots_ptr + n).to(tl.int64)
    if written_slots_ptr is not None:
        written = tl.load(written_slots_ptr + n).to(tl.int64)

    # All rows are loaded before any is stored, so that a short sequence can move its own rows up.
    source = end - 3 + offs_r
    mask = (offs_r < 3)[:, None] & mask_d[None, :]
    seen = mask & (source >= first)[:, None] & (read >= 0)
    rows = tl.load(x_ptr + source[:, None] * stride_xt + offs_d[None, :], seen, 0.0)
    if states_ptr is not None:
        kept = mask & (source < first)[:, None] & (read >= 0)
        row = read * stride_states + (source - first + 3) * D
        past = tl.load(states_ptr + row[:, None] + offs_d[None, :], kept, 0.0)
        rows = tl.where(kept, past.to(rows.dtype), rows)
    keep = written >= 0
    if written_slots_ptr is not None:
        keep &= read >= 0
    tl.debug_barrier()
    tl.store(written_ptr + written * stride_written + (offs_r * D)[:, None] + offs_d[None, :], rows, mask & keep)
