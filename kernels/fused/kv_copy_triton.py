"""The Triton kernel of `evict`, in a file of its own so that importing the wrapper needs no triton."""

# Triton's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 8  # programs that share a move's tokens: one each of the 6 special tokens that are usually kept
BLOCK = 4096  # bytes of a token's keys or values that a program copies at a time


def launch_evict(memory: Tensor, moves: Tensor) -> None:
    """Copy what checked `moves` say, as bytes."""
    rows = memory.view(torch.uint8).flatten(2)  # [2, T, bytes of a token]
    _, T, row = rows.shape
    evict_kernel[(len(moves) * 2 * LANES,)](
        rows, moves, T, rows.stride(0), row, LANES, min(BLOCK, triton.next_power_of_2(row)), num_warps=4
    )


@triton.jit(do_not_specialize=["T"])
def evict_kernel(memory_ptr, moves_ptr, T, stride_values, ROW: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lane, part, m = pid % LANES, pid // LANES % 2, pid // LANES // 2
    source = tl.load(moves_ptr + m * 3)
    target = tl.load(moves_ptr + m * 3 + 1)
    tokens = tl.load(moves_ptr + m * 3 + 2)
    memory_ptr += part.to(tl.int64) * stride_values
    for t in range(lane, tokens, LANES):
        place, new_place = source + t, target + t
        keep = (place >= 0) & (place < T) & (new_place >= 0) & (new_place < T)
        for first in tl.static_range(0, ROW, BLOCK):
            offs = first + tl.arange(0, BLOCK)
            mask = (offs < ROW) & keep
            x = tl.load(memory_ptr + place * ROW + offs, mask=mask)
            tl.store(memory_ptr + new_place * ROW + offs, x, mask=mask)
