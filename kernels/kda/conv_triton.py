"""The Triton kernel of `short_convolution`, in a separate file so that importing the wrapper does not need triton."""

# Triton's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import torch
import triton
import triton.language as tl

from .checks import dense_rows
from .chunk_index import locate

BLOCK_T, BLOCK_D = 16, 128


def launch_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    states: tuple[torch.Tensor | None, torch.Tensor | None],
    indices: tuple[torch.Tensor | None, torch.Tensor | None],
    cu_seqlens: torch.Tensor | None,
    y: torch.Tensor,
    N: int,
) -> None:
    """Write y [B, T, D] and each sequence's last inputs, given checked x [B, T, D] and weight [D, 1, 4] of any strides.

    `states` [N or slots, 3, D] and `indices` [N] are pairs: those to read and those to write. Both states may be the
    same tensor; the rows of the one to write must be dense.
    """
    x = dense_rows(x)
    _, T, D = x.shape
    if N == 0:
        return
    read, written = states
    read = None if read is None else _dense(read)
    if cu_seqlens is None and T == 0:
        cu_seqlens = torch.zeros(N + 1, dtype=torch.int32, device=x.device)
    blocks = N * triton.cdiv(T, BLOCK_T) if cu_seqlens is None else T // BLOCK_T + N
    convolution_kernel[(blocks * triton.cdiv(D, BLOCK_D),)](
        x, weight, read, written, *indices, cu_seqlens, y,
        T, N, x.stride(1), weight.stride(0), weight.stride(2), _slot_stride(read), _slot_stride(written),
        D, BLOCK_T, BLOCK_D,
        num_warps=4,
    )  # fmt: skip


def _dense(states: torch.Tensor) -> torch.Tensor:
    return states if states.stride()[1:] == (states.shape[2], 1) else states.contiguous()


def _slot_stride(states: torch.Tensor | None) -> int:
    return 0 if states is None else states.stride(0)


@triton.jit
def write_state(
    x_ptr, states_ptr, written_ptr, slots_ptr, n, length, live, stride_xt, stride_written, offs_d, D: tl.constexpr
):  # fmt: skip
    """Write the last three inputs of sequence n, given pointers to the sequence's first token and to its state."""
    # All rows are loaded before any is stored, because a short sequence shifts its own rows.
    offs_r = tl.arange(0, 4)  # rows of the state; the fourth is unused
    source = length - 3 + offs_r
    mask = (offs_r < 3)[:, None] & (offs_d < D)[None, :]
    seen = mask & ((source >= 0) & live)[:, None]
    rows = tl.load(x_ptr + (source.to(tl.int64) * stride_xt)[:, None] + offs_d[None, :], seen, 0.0)
    if states_ptr is not None:
        kept = mask & ((source < 0) & live)[:, None]
        past = tl.load(states_ptr + ((source + 3) * D)[:, None] + offs_d[None, :], kept, 0.0)
        rows = tl.where(kept, past.to(rows.dtype), rows)
    written, keep = n.to(tl.int64), n >= 0
    if slots_ptr is not None:
        written = tl.load(slots_ptr + n).to(tl.int64)
        keep = live & (written >= 0)
    tl.debug_barrier()  # from here on, every thread of the program has read the state
    tl.store(written_ptr + written * stride_written + (offs_r * D)[:, None] + offs_d[None, :], rows, mask & keep)


@triton.jit(do_not_specialize=["T", "N"])
def convolution_kernel(
    x_ptr, weight_ptr, states_ptr, written_ptr, read_slots_ptr, written_slots_ptr, cu_seqlens_ptr, y_ptr,
    T, N, stride_xt, stride_wd, stride_wt, stride_states, stride_written,
    D: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program processes BLOCK_T tokens of one sequence, for BLOCK_D channels. The program with a sequence's first
    tokens also writes the sequence's state. No other program reads that state, because a block has at least as many
    tokens as the state."""
    pid = tl.program_id(0)
    blocks_d: tl.constexpr = (D + BLOCK_D - 1) // BLOCK_D
    n, block, first, length = locate(pid // blocks_d, cu_seqlens_ptr, T, N, BLOCK_T)
    if (block > 0) & (block * BLOCK_T >= length):
        return
    start = first + block * BLOCK_T  # offsets from here on are small
    offs_t = tl.arange(0, BLOCK_T)
    offs_d = pid % blocks_d * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_t, mask_d = offs_t < length - block * BLOCK_T, offs_d < D
    x_ptr += start * stride_xt
    y_ptr += start * D
    read = n.to(tl.int64)
    if read_slots_ptr is not None:
        read = tl.load(read_slots_ptr + n).to(tl.int64)
    live = read >= 0  # padding gets zeros
    if states_ptr is not None:
        states_ptr += read * stride_states

    y = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for tap in tl.static_range(4):
        source = offs_t + (tap - 3)
        past = (block == 0) & (source < 0)
        seen = (mask_t & ~past & live)[:, None] & mask_d[None, :]
        x = tl.load(x_ptr + (source * stride_xt)[:, None] + offs_d[None, :], seen, 0.0).to(tl.float32)
        if states_ptr is not None:
            kept = (mask_t & past & live)[:, None] & mask_d[None, :]
            x += tl.load(states_ptr + ((source + 3) * D)[:, None] + offs_d[None, :], kept, 0.0).to(tl.float32)
        y += tl.load(weight_ptr + offs_d * stride_wd + tap * stride_wt, mask_d, 0.0).to(tl.float32)[None, :] * x
    y *= tl.sigmoid(y)
    tl.store(y_ptr + (offs_t * D)[:, None] + offs_d[None, :], y, mask_t[:, None] & mask_d[None, :])

    if written_ptr is not None:  # noqa: SIM102  # a compile-time condition, the other is not
        if block == 0:
            write_state(
                x_ptr, states_ptr, written_ptr, written_slots_ptr, n, length, live, stride_xt, stride_written, offs_d, D
            )
