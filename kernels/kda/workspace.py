"""Layout of the workspace through which intra_kernel passes chunks to the scans.

There is one record for each chunk of each value head. It first holds the decay exp(G_C) [BLOCK_K] in float32, which
takes the space of DECAY * BLOCK_K elements. Then follow, without gaps and in the inputs' dtype: w, scale exp(G) q and
exp(G_C - G) k [C, BLOCK_K], the attention matrix [C, C] and u^T [PAD_V, C]. Columns past K and rows past the sequence's
end are zeros, so the scans need no masks.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl

DECAY_ELEMENTS = 2  # number of 16-bit elements per float32 number
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
