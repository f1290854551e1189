"""The Triton kernel that writes states to rows of a pool. PyTorch's masked writes would synchronise to count rows."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import torch
import triton
import triton.language as tl

BLOCK = 1024


def launch_scatter(states: torch.Tensor, final: torch.Tensor, read: torch.Tensor, written: torch.Tensor) -> None:
    """Launch states[written[n]] = final[n] for all n where neither read[n] nor written[n] is negative.

    Rows of `states` and `final` must be dense.
    """
    final = final.contiguous()
    row = final[0].numel() if len(final) else 0
    if row:
        grid = (len(final) * triton.cdiv(row, BLOCK),)
        scatter_kernel[grid](states, final, read, written, states.stride(0), row, BLOCK)


@triton.jit
def scatter_kernel(states_ptr, final_ptr, read_ptr, written_ptr, stride_states, ROW: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    blocks: tl.constexpr = (ROW + BLOCK - 1) // BLOCK
    n = pid // blocks
    offs = pid % blocks * BLOCK + tl.arange(0, BLOCK)
    written = tl.load(written_ptr + n).to(tl.int64)
    keep = (tl.load(read_ptr + n) >= 0) & (written >= 0)
    values = tl.load(final_ptr + n * ROW + offs, mask=(offs < ROW) & keep)
    tl.store(states_ptr + written * stride_states + offs, values, mask=(offs < ROW) & keep)
