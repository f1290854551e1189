"""The part of a chunk that needs no state: gate, norms, decay products, triangular inverse, and the tiles of the scan.

One program computes one chunk of one value head. Notation as in arXiv 2510.26692, section 3: G is the inclusive sum of
g inside the chunk, A the strictly lower part of beta_i <k_i exp(G_i - G_j), k_j>, X = (I + A)^-1. It writes

    w = X diag(beta) (exp(G) k),  u = X diag(beta) v,  scale exp(G) q,  exp(G_C - G) k,  scale tril(<q_i exp(G_i - G_j), k_j>)

How exp(G_i - G_j) stays exact for any gate: [i, j] blocks are halved again and again. A block whose rows i come after
the middle and whose columns j come before it is one product of exp(sum from the middle to i) and
exp(sum from j to the middle): both exponents are <= 0, so nothing overflows, and no exponent is a difference of long
sums. The same halving inverts I + A: the inverse of [[P, 0], [R, Q]] is [[P^-1, 0], [-Q^-1 R P^-1, Q^-1]].
Only where the gate is known to be >= -5 does one reference serve a whole block of 16 tokens (exponents within 40).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl

from .gate import floor_log_decay, log_decay, sigmoid
from .locate import locate

LOG2_E = tl.constexpr(1.4426950408889634)
SUB = tl.constexpr(16)  # tokens of a sub-block: the smallest side of a tl.dot


@triton.jit
def row_of(C: tl.constexpr):
    return tl.arange(0, C)[:, None]


@triton.jit
def column_of(C: tl.constexpr):
    return tl.arange(0, C)[None, :]


@triton.jit
def half_mask(r, c, h: tl.constexpr):
    """[i, j] entries with i in the upper and j in the lower half of one block of 2 h."""
    return (r // (2 * h) == c // (2 * h)) & ((r // h) % 2 == 1) & ((c // h) % 2 == 0)


@triton.jit
def last_row(x, ROWS: tl.constexpr):
    """[B, ROWS, BLOCK_K] -> [B, BLOCK_K]"""
    return tl.sum(tl.where(tl.arange(0, ROWS)[None, :, None] == ROWS - 1, x, 0.0), 1)


@triton.jit
def sum_blocks(total, low, high):
    """Row b of the result sums the rows j of total [BLOCKS, BLOCK_K] with low[b] <= j < high[b]."""
    result = tl.zeros_like(total)
    for j in tl.static_range(total.shape[0]):
        row = tl.sum(tl.where(row_of(total.shape[0]) == j, total, 0.0), 0)
        result = tl.where(((low <= j) & (j < high))[:, None], result + row[None, :], result)
    return result


@triton.jit
def block_dot(a, b, acc, PRECISION: tl.constexpr):
    """[BLOCKS, M, BLOCK_S], [BLOCKS, N, BLOCK_S] -> [BLOCKS, M, N]"""
    return tl.dot(a, tl.trans(b, (0, 2, 1)), acc, input_precision=PRECISION)


@triton.jit
def bounded_products(q, k, prefix, total, kk, qk, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """Add the decayed <k_i, k_j> and <q_i, k_j> within blocks of 16 tokens to kk and qk [BLOCKS, 16, 16], for gates
    >= -5; q, k, prefix [BLOCKS, 16, BLOCK_S] float32. Entries with i < j are undefined."""
    centred = prefix - 0.5 * total[:, None, :]
    after, before = tl.exp2(centred), tl.exp2(-centred)
    columns = (k * before).to(DOT)
    kk = block_dot((k * after).to(DOT), columns, kk, PRECISION)
    qk = block_dot((q * after).to(DOT), columns, qk, PRECISION)
    return kk, qk


@triton.jit
def halved_products(q, k, g, kk, qk, h: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """The same for any gate, of the entries whose row and column lie in the two halves of one block of 2 h <= 16."""
    BLOCKS: tl.constexpr = g.shape[0]
    BLOCK_S: tl.constexpr = g.shape[2]
    inclusive = tl.cumsum(tl.reshape(g, [BLOCKS * SUB // h, h, BLOCK_S]), 1)
    upper = (tl.arange(0, BLOCKS * SUB // h) % 2 == 1)[:, None, None]
    toward_middle = tl.where(upper, inclusive, last_row(inclusive, h)[:, None, :] - inclusive)
    factor = tl.reshape(tl.exp2(toward_middle), [BLOCKS, SUB, BLOCK_S])
    kf = (k * factor).to(DOT)
    mask = half_mask(row_of(SUB)[None, :, :], column_of(SUB)[None, :, :], h)
    kk = tl.where(mask, block_dot(kf, kf, kk, PRECISION), kk)
    qk = tl.where(mask, block_dot((q * factor).to(DOT), kf, qk, PRECISION), qk)
    return kk, qk


@triton.jit
def earlier_products(q_after, k_after, k_before, total, A, qk, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """The same of rows in a block and columns in any earlier block: A, qk [BLOCKS, 16, C]; q and k decayed from the
    row's block's start, k decayed to the column's block's end, [BLOCKS, 16, BLOCK_S]; total [BLOCKS, BLOCK_S]."""
    BLOCKS: tl.constexpr = total.shape[0]
    BLOCK_S: tl.constexpr = total.shape[1]
    b, j = row_of(BLOCKS), column_of(BLOCKS)
    between = tl.zeros([BLOCKS, BLOCKS, BLOCK_S], tl.float32)
    for i in tl.static_range(1, BLOCKS - 1):
        row = tl.sum(tl.where(b == i, total, 0.0), 0)
        between += tl.where(((j < i) & (i < b))[:, :, None], row[None, None, :], 0.0)
    factor = tl.where((j < b)[:, :, None], tl.exp2(between), 0.0)
    columns = (k_before[None, :, :, :] * factor[:, :, None, :]).to(DOT)
    columns = tl.reshape(columns, [BLOCKS, BLOCKS * SUB, BLOCK_S])
    A = block_dot(k_after.to(DOT), columns, A, PRECISION)
    qk = block_dot(q_after.to(DOT), columns, qk, PRECISION)
    return A, qk


@triton.jit
def block_diagonal(x, C: tl.constexpr, BLOCKS: tl.constexpr):
    """[BLOCKS, 16, 16] -> [C, C]"""
    wide = tl.broadcast_to(x[:, :, None, :], [BLOCKS, SUB, BLOCKS, SUB])
    return tl.where(row_of(C) // SUB == column_of(C) // SUB, tl.reshape(wide, [C, C]), 0.0)


@triton.jit
def high_low(x):
    """float32 as the sum of two bfloat16, to 2^-17 of x."""
    high = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return high.to(tl.bfloat16), (x - high).to(tl.bfloat16)


@triton.jit
def exact_dot(a, b, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """Product of float32 tiles to 16 bits or more: of bfloat16 high and low parts with SPLIT, else of float32."""
    if SPLIT:
        a_high, a_low = high_low(a)
        b_high, b_low = high_low(b)
        product = tl.dot(a_high, b_high, tl.dot(a_high, b_low, tl.dot(a_low, b_high)))
    else:
        product = tl.dot(a, b, input_precision=PRECISION)
    return product


@triton.jit
def sub_block_inverse(A, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """(I + A)^-1 of strictly lower A [BLOCKS, 16, 16], by halves: [[P, 0], [R, Q]] has the inverse
    [[P^-1, 0], [-Q^-1 R P^-1, Q^-1]]."""
    r, c = row_of(SUB)[None, :, :], column_of(SUB)[None, :, :]
    X = tl.where(r == c, 1.0, tl.where(half_mask(r, c, 1), -A, 0.0))
    for level in tl.static_range(1, 4):  # X holds the inverses of the blocks of 2^level; masking X A is masking A
        R = tl.where(half_mask(r, c, 1 << level), exact_dot(X, A, SPLIT, PRECISION), 0.0)
        X -= exact_dot(R, X, SPLIT, PRECISION)
    return X


@triton.jit
def block_inverse(N, BLOCKS: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """(I + N)^-1 of N [C, C] with zeros from the diagonal blocks on: I - N + N^2 - N^3, for N^BLOCKS = 0."""
    C: tl.constexpr = N.shape[0]
    P = tl.where(row_of(C) == column_of(C), 1.0, 0.0) - N
    if BLOCKS > 2:
        square = exact_dot(N, N, SPLIT, PRECISION)
        P += square - exact_dot(square, N, SPLIT, PRECISION)
    return P


@triton.jit
def solve(P, X, y, C: tl.constexpr, BLOCKS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """P blockdiag(X) y for P [C, C], X [BLOCKS, 16, 16] and y [C, BLOCK] of operand dtype, as [C, BLOCK] float32."""
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


@triton.jit
def inverse_length(x_ptrs, mask_c, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_S: tl.constexpr):
    """1 / |x| of rows of K elements at x_ptrs [C], as [C] float32."""
    squares = tl.zeros([x_ptrs.shape[0], BLOCK_S], tl.float32)
    for start in tl.static_range(0, BLOCK_K, BLOCK_S):
        offs_k = start + tl.arange(0, BLOCK_S)
        mask = mask_c[:, None] & (offs_k < K)[None, :]
        x = tl.load(x_ptrs[:, None] + offs_k[None, :], mask=mask, other=0.0).to(tl.float32)
        squares += x * x
    return tl.rsqrt(tl.sum(squares, 1) + 1e-6)


@triton.jit(do_not_specialize=["T", "N"])
def intra_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, A_log_ptr, dt_bias_ptr, cu_seqlens_ptr, tiles_ptr, decay_ptr,
    T, N, scale, lower_bound,
    stride_qt, stride_kt, stride_vt, stride_gt, stride_bt,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    PAD_V: tl.constexpr, C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_V: tl.constexpr,
    USE_GATE: tl.constexpr, USE_L2NORM: tl.constexpr, BETA_FACTOR: tl.constexpr, BOUNDED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = C // SUB
    pid = tl.program_id(0)
    hv = pid % HV
    n, chunk, first, length = locate(pid // HV, cu_seqlens_ptr, T, N, C)
    if chunk * C >= length:
        return

    # The tiles of one chunk lie together: w, q, k [C, BLOCK_K], attention [C, C], u^T [PAD_V, C].
    tile: tl.constexpr = C * BLOCK_K
    tiles_ptr += pid.to(tl.int64) * (3 * tile + C * C + PAD_V * C)
    decay_ptr += pid.to(tl.int64) * BLOCK_K
    element = tiles_ptr.dtype.element_ty
    offs_c = tl.arange(0, C)
    mask_c = offs_c < length - chunk * C
    t = first + chunk * C + offs_c
    q_ptrs = q_ptr + t * stride_qt + hv // (HV // H) * K
    k_ptrs = k_ptr + t * stride_kt + hv // (HV // H) * K
    g_ptrs = g_ptr + t * stride_gt + hv * K
    beta = tl.load(beta_ptr + t * stride_bt + hv, mask=mask_c, other=0.0).to(tl.float32)
    if BETA_FACTOR > 0:
        beta = tl.where(mask_c, BETA_FACTOR * sigmoid(beta), 0.0)
    if USE_L2NORM:
        q_factor = scale * inverse_length(q_ptrs, mask_c, K, BLOCK_K, BLOCK_S)
        k_factor = inverse_length(k_ptrs, mask_c, K, BLOCK_K, BLOCK_S)

    r, c = row_of(SUB)[None, :, :], column_of(SUB)[None, :, :]
    b = tl.arange(0, BLOCKS)
    kk_block = tl.zeros([BLOCKS, SUB, SUB], tl.float32)
    qk_block = tl.zeros([BLOCKS, SUB, SUB], tl.float32)
    A = tl.zeros([BLOCKS, SUB, C], tl.float32)
    qk = tl.zeros([BLOCKS, SUB, C], tl.float32)
    for start in range(0, BLOCK_K, BLOCK_S):  # a slice of the keys' columns
        offs_k = start + tl.arange(0, BLOCK_S)
        mask_k = offs_k < K
        mask = mask_c[:, None] & mask_k[None, :]
        q = tl.load(q_ptrs[:, None] + offs_k[None, :], mask=mask, other=0.0).to(tl.float32)  # [C, BLOCK_S]
        k = tl.load(k_ptrs[:, None] + offs_k[None, :], mask=mask, other=0.0).to(tl.float32)
        g = tl.load(g_ptrs[:, None] + offs_k[None, :], mask=mask, other=0.0).to(tl.float32)
        if USE_GATE:
            g = log_decay(g, A_log_ptr, dt_bias_ptr, lower_bound, hv, offs_k, mask_k, K)
            g = tl.where(mask, g, 0.0)
        if not BOUNDED:
            g = floor_log_decay(g)
        g *= LOG2_E  # exp2 is one instruction
        if USE_L2NORM:
            q *= q_factor[:, None]
            k *= k_factor[:, None]
        else:
            q *= scale

        q, k = tl.reshape(q, [BLOCKS, SUB, BLOCK_S]), tl.reshape(k, [BLOCKS, SUB, BLOCK_S])
        g = tl.reshape(g, [BLOCKS, SUB, BLOCK_S])
        prefix = tl.cumsum(g, 1)  # inclusive, from the sub-block's start
        total = last_row(prefix, SUB)  # [BLOCKS, BLOCK_S]
        suffix = total[:, None, :] - prefix  # exclusive, to the sub-block's end
        if BOUNDED:
            kk_block, qk_block = bounded_products(q, k, prefix, total, kk_block, qk_block, DOT, PRECISION)
        else:
            qk_block += tl.where(r == c, tl.sum(q * k, 2)[:, :, None], 0.0)
            for level in tl.static_range(4):
                kk_block, qk_block = halved_products(q, k, g, kk_block, qk_block, 1 << level, DOT, PRECISION)
        after, before = tl.exp2(prefix), tl.exp2(suffix)
        q_after, k_after, k_before = q * after, k * after, k * before
        if BLOCKS > 1:
            A, qk = earlier_products(q_after, k_after, k_before, total, A, qk, DOT, PRECISION)

        from_start = tl.exp2(sum_blocks(total, b * 0, b))[:, None, :]  # to the block's start
        to_end = tl.exp2(sum_blocks(total, b + 1, b * 0 + BLOCKS))[:, None, :]  # from the block's end
        offs_tile = offs_c[:, None] * BLOCK_K + offs_k[None, :]
        kb = tl.reshape(k_after * from_start, [C, BLOCK_S]) * beta[:, None]
        tl.store(tiles_ptr + offs_tile, kb.to(element))  # until w takes its place
        tl.store(tiles_ptr + tile + offs_tile, tl.reshape(q_after * from_start, [C, BLOCK_S]).to(element))
        tl.store(tiles_ptr + 2 * tile + offs_tile, tl.reshape(k_before * to_end, [C, BLOCK_S]).to(element))
        tl.store(decay_ptr + offs_k, tl.exp2(tl.sum(total, 0)))

    qk = tl.reshape(qk, [C, C]) + block_diagonal(tl.where(r >= c, qk_block, 0.0), C, BLOCKS)
    tl.store(tiles_ptr + 3 * tile + offs_c[:, None] * C + offs_c[None, :], qk.to(element))
    beta_rows = tl.reshape(beta, [BLOCKS, SUB])[:, :, None]
    X = sub_block_inverse(tl.where(r > c, kk_block, 0.0) * beta_rows, SPLIT, PRECISION)
    N = tl.reshape(exact_dot(X, A * beta_rows, SPLIT, PRECISION), [C, C])
    P = block_inverse(N, BLOCKS, SPLIT, PRECISION)
    for start in range(0, PAD_V, BLOCK_V):
        offs_v = start + tl.arange(0, BLOCK_V)
        v_ptrs = v_ptr + t[:, None] * stride_vt + hv * V + offs_v[None, :]
        v = tl.load(v_ptrs, mask=mask_c[:, None] & (offs_v < V)[None, :], other=0.0).to(tl.float32)
        u = solve(P, X, (v * beta[:, None]).to(DOT), C, BLOCKS, DOT, PRECISION)  # [C, BLOCK_V]
        tl.store(tiles_ptr + 3 * tile + C * C + offs_c[:, None] + offs_v[None, :] * C, u.to(element))
    tl.debug_barrier()  # every thread's part of kb is in place
    BLOCK_W: tl.constexpr = min(BLOCK_K, 64)
    for start in range(0, BLOCK_K, BLOCK_W):
        offs_tile = offs_c[:, None] * BLOCK_K + start + tl.arange(0, BLOCK_W)[None, :]
        w = solve(P, X, tl.load(tiles_ptr + offs_tile).to(DOT), C, BLOCKS, DOT, PRECISION)
        tl.debug_barrier()  # no thread still reads what w replaces
        tl.store(tiles_ptr + offs_tile, w.to(element))
