"""Triton device functions for a chunk that is divided into blocks of 16 tokens: masks, rows and diagonals of blocks."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl

SUB = tl.constexpr(16)  # number of tokens per block: the smallest side of a tl.dot


@triton.jit
def row_of(C: tl.constexpr):
    return tl.arange(0, C)[:, None]


@triton.jit
def column_of(C: tl.constexpr):
    return tl.arange(0, C)[None, :]


@triton.jit
def half_mask(r, c, h: tl.constexpr):
    """Mask of the entries [i, j] with i in the upper half and j in the lower half of the same block of 2 h tokens."""
    return (r // (2 * h) == c // (2 * h)) & ((r // h) % 2 == 1) & ((c // h) % 2 == 0)


@triton.jit
def last_row(x, ROWS: tl.constexpr):
    """The last row of each block: [B, ROWS, BLOCK_K] -> [B, BLOCK_K]."""
    return tl.sum(tl.where(tl.arange(0, ROWS)[None, :, None] == ROWS - 1, x, 0.0), 1)


@triton.jit
def block_rows(x):
    """The rows of x [BLOCKS, BLOCK_S], as four vectors [BLOCK_S]; vectors of missing blocks are ones."""
    BLOCK_S: tl.constexpr = x.shape[1]
    one = tl.full([BLOCK_S], 1.0, tl.float32)
    if x.shape[0] == 4:
        even, odd = tl.split(tl.trans(tl.reshape(x, [2, 2, BLOCK_S]), (2, 0, 1)))  # blocks 0 and 2, 1 and 3
        x0, x2 = tl.split(even)
        x1, x3 = tl.split(odd)
    elif x.shape[0] == 2:
        x0, x1 = tl.split(tl.trans(x))
        x2, x3 = one, one
    else:
        x0, x1, x2, x3 = tl.reshape(x, [BLOCK_S]), one, one, one
    return x0, x1, x2, x3


@triton.jit
def block_diagonal(x, C: tl.constexpr, BLOCKS: tl.constexpr):
    """The block-diagonal matrix of the given blocks: [BLOCKS, 16, 16] -> [C, C]."""
    wide = tl.broadcast_to(x[:, :, None, :], [BLOCKS, SUB, BLOCKS, SUB])
    return tl.where(row_of(C) // SUB == column_of(C) // SUB, tl.reshape(wide, [C, C]), 0.0)


@triton.jit
def diagonal_blocks(x):
    """The diagonal blocks of a matrix given in rows of blocks: [BLOCKS, 16, C] -> [BLOCKS, 16, 16]."""
    BLOCKS: tl.constexpr = x.shape[0]
    x = tl.reshape(x, [BLOCKS, SUB, BLOCKS, SUB])
    inside = (row_of(BLOCKS) == column_of(BLOCKS))[:, None, :, None]
    return tl.sum(tl.where(inside, x, 0.0), 2)
