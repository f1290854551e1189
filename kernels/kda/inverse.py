"""The triangular inverse (I + A)^-1 of a chunk in float32.

It is computed by halves within blocks of 16 tokens, and by a series over these blocks for the whole chunk. Both methods
avoid powers of the whole A, which reach 1e18 if keys are equal; powers of blocks do not.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl

from .blocks import SUB, column_of, half_mask, row_of


@triton.jit
def high_low(x):
    """Split float32 x into two bfloat16 numbers whose sum is x to within 2^-17 of x."""
    high = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return high.to(tl.bfloat16), (x - high).to(tl.bfloat16)


@triton.jit
def exact_dot(a, b, acc, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """acc + a b of float32 tiles, to 16 bits or more. With SPLIT, from high and low bfloat16 parts, else in float32."""
    if SPLIT:
        a_high, a_low = high_low(a)
        b_high, b_low = high_low(b)
        acc = tl.dot(a_high, b_high, tl.dot(a_high, b_low, tl.dot(a_low, b_high, acc)))
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def sub_block_inverse(A, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """(I + A)^-1 of strictly lower triangular A [BLOCKS, 16, 16], computed by halves: the inverse of [[P, 0], [R, Q]]
    is [[P^-1, 0], [-Q^-1 R P^-1, Q^-1]]."""
    r, c = row_of(SUB)[None, :, :], column_of(SUB)[None, :, :]
    X = tl.where(r == c, 1.0, tl.where(half_mask(r, c, 1), -A, 0.0))
    for level in tl.static_range(1, 4):  # X has the inverses of blocks of 2^level tokens; masking X A equals masking A
        R = tl.where(half_mask(r, c, 1 << level), -exact_dot(X, A, tl.zeros_like(X), SPLIT, PRECISION), 0.0)
        X = exact_dot(R, X, X, SPLIT, PRECISION)
    return X


@triton.jit
def block_inverse(N, BLOCKS: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """(I + N)^-1 of N [C, C], which is zero in and above its diagonal blocks: I - N + N^2 - N^3, since N^BLOCKS = 0."""
    C: tl.constexpr = N.shape[0]
    P = tl.where(row_of(C) == column_of(C), 1.0, 0.0) - N
    if BLOCKS > 2:
        # Not computed as N (N - N^2): with N as the accumulator of -N N, Triton 3.6 for Hopper loses the product.
        square = exact_dot(N, N, tl.zeros_like(N), SPLIT, PRECISION)
        P += square - exact_dot(square, N, tl.zeros_like(N), SPLIT, PRECISION)
    return P


@triton.jit
def solve(P, X, y, C: tl.constexpr, BLOCKS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """P blockdiag(X) y, as float32 [C, BLOCK]; P [C, C], X [BLOCKS, 16, 16] and y [C, BLOCK] have the operand dtype."""
    y = tl.reshape(y, [BLOCKS, SUB, y.shape[1]])
    if DOT == tl.bfloat16:
        high, low = high_low(X)
        z = tl.dot(high, y, tl.dot(low, y))
    else:
        z = tl.dot(X, y.to(tl.float32), input_precision=PRECISION)
    z = tl.reshape(z, [C, y.shape[2]])
    if BLOCKS > 1:
        z = tl.dot(P.to(DOT), z.to(DOT), input_precision=PRECISION)
    return z
