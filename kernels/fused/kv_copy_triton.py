"""The Triton kernel of `copy_slots`, in a separate file so that importing the wrapper does not need triton."""

# Triton's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 8  # number of programs that share a copy's tokens: at least one for each of the usual 6 special tokens
BLOCK = 4096  # number of bytes of a token's keys or values that a program copies at once


def launch_copy_slots(kv_cache: Tensor, copies: Tensor) -> None:
    """Launch `copies`, which must have been checked. The kernel copies bytes, so the dtype does not matter."""
    rows = kv_cache.view(torch.uint8).flatten(2)  # [2, T, bytes per token]
    _, T, row = rows.shape
    copy_slots_kernel[(len(copies) * 2 * LANES,)](
        rows, copies, T, rows.stride(0), row, LANES, min(BLOCK, triton.next_power_of_2(row)), num_warps=4
    )


@triton.jit(do_not_specialize=["T"])
def copy_slots_kernel(
    kv_cache_ptr, copies_ptr, T, stride_values, ROW: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr
):
    pid = tl.program_id(0)
    lane, part, m = pid % LANES, pid // LANES % 2, pid // LANES // 2
    source = tl.load(copies_ptr + m * 3)
    target = tl.load(copies_ptr + m * 3 + 1)
    tokens = tl.load(copies_ptr + m * 3 + 2)
    kv_cache_ptr += part.to(tl.int64) * stride_values
    for t in range(lane, tokens, LANES):
        source_slot, target_slot = source + t, target + t
        keep = (source_slot >= 0) & (source_slot < T) & (target_slot >= 0) & (target_slot < T)
        for first in tl.static_range(0, ROW, BLOCK):
            offs = first + tl.arange(0, BLOCK)
            mask = (offs < ROW) & keep
            x = tl.load(kv_cache_ptr + source_slot * ROW + offs, mask=mask)
            tl.store(kv_cache_ptr + target_slot * ROW + offs, x, mask=mask)
