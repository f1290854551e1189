"""Layout of the workspace through which intra_kernel passes chunks to the scans.

A record, for one chunk of one value head, holds end to end: the decay exp(G_C) [BLOCK_K] in float32 (which takes the
space of DECAY * BLOCK_K elements), then w, scale exp(G) q and exp(G_C - G) k [C, BLOCK_K], the attention matrix [C, C]
and u^T [PAD_V, C] in the inputs' dtype.
Columns past K and rows past the sequence's end are zeros, so the scans need no masks.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl

DECAY_ELEMENTS = 2  # of 16 bits per float32
DECAY = tl.constexpr(DECAY_ELEMENTS)


def elements(chunk_size: int, block_k: int, pad_v: int) -> int:
    """Size of a record in elements of the inputs' dtype."""
    return DECAY_ELEMENTS * block_k + chunk_size * (3 * block_k + chunk_size + pad_v)


@triton.jit
def record_size(C: tl.constexpr, BLOCK_K: tl.constexpr, PAD_V: tl.constexpr):
    size: tl.constexpr = DECAY * BLOCK_K + C * (3 * BLOCK_K + C + PAD_V)
    return size


@triton.jit
def decay_of(record_ptr, offs_k):
    return tl.load(record_ptr.to(tl.pointer_type(tl.float32), bitcast=True) + offs_k)
