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

from .gate import floor_log_decay, log_decay, sigmoid, unit_rows
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
def transposed_dot(a, b, PRECISION: tl.constexpr):
    """[B, M, BLOCK_K], [B, N, BLOCK_K] -> [B, M, N]"""
    return tl.dot(a, tl.trans(b, (0, 2, 1)), input_precision=PRECISION)


@triton.jit
def sub_block_products(q, k, prefix, total, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """Decayed <k_i, k_j> for i > j and <q_i, k_j> for i >= j within blocks of 16, for gates >= -5; q, k, prefix
    [BLOCKS, 16, BLOCK_K] float32. Returns two [BLOCKS, 16, 16] float32 tiles."""
    r, c = row_of(SUB)[None, :, :], column_of(SUB)[None, :, :]
    centred = prefix - 0.5 * total[:, None, :]
    after, before = tl.exp2(centred), tl.exp2(-centred)
    columns = (k * before).to(DOT)
    kk = transposed_dot((k * after).to(DOT), columns, PRECISION)
    qk = transposed_dot((q * after).to(DOT), columns, PRECISION)
    return tl.where(r > c, kk, 0.0), tl.where(r >= c, qk, 0.0)


@triton.jit
def halved_products(q, k, g, kk, qk, h: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """Fill the entries of kk and qk whose row and column lie in the two halves of one block of 2 h <= 16 tokens, for
    any gate."""
    BLOCKS: tl.constexpr = g.shape[0]
    BLOCK_K: tl.constexpr = g.shape[2]
    inclusive = tl.cumsum(tl.reshape(g, [BLOCKS * SUB // h, h, BLOCK_K]), 1)
    upper = (tl.arange(0, BLOCKS * SUB // h) % 2 == 1)[:, None, None]
    toward_middle = tl.where(upper, inclusive, last_row(inclusive, h)[:, None, :] - inclusive)
    factor = tl.reshape(tl.exp2(toward_middle), [BLOCKS, SUB, BLOCK_K])
    kf = (k * factor).to(DOT)
    mask = half_mask(row_of(SUB)[None, :, :], column_of(SUB)[None, :, :], h)
    kk = tl.where(mask, transposed_dot(kf, kf, PRECISION), kk)
    qk = tl.where(mask, transposed_dot((q * factor).to(DOT), kf, PRECISION), qk)
    return kk, qk


@triton.jit
def block_products(q, k, prefix, suffix, total, A, qk, h: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """The same for halves of h sub-blocks: A, qk [C, C]; q, k, prefix, suffix [BLOCKS, 16, BLOCK_K]."""
    BLOCKS: tl.constexpr = q.shape[0]
    C: tl.constexpr = q.shape[0] * q.shape[1]
    BLOCK_K: tl.constexpr = q.shape[2]
    b = tl.arange(0, BLOCKS)
    middle = b // (2 * h) * (2 * h) + h
    upper = b >= middle
    between = sum_blocks(total, tl.where(upper, middle, b + 1), tl.where(upper, b, middle))
    factor = tl.exp2(tl.where(upper[:, None, None], prefix, suffix) + between[:, None, :])
    kf = tl.reshape((k * factor).to(DOT), [C, BLOCK_K])
    qf = tl.reshape((q * factor).to(DOT), [C, BLOCK_K])
    mask = half_mask(row_of(C), column_of(C), h * SUB)
    A = tl.where(mask, tl.dot(kf, tl.trans(kf), input_precision=PRECISION), A)
    qk = tl.where(mask, tl.dot(qf, tl.trans(kf), input_precision=PRECISION), qk)
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
def inverse_step(X, A, mask, SPLIT: tl.constexpr, PRECISION: tl.constexpr):
    """From the inverses of the halves on X's diagonal to the inverse of the whole blocks."""
    return X - exact_dot(exact_dot(X, tl.where(mask, A, 0.0), SPLIT, PRECISION), X, SPLIT, PRECISION)


@triton.jit(do_not_specialize=["T", "N"])
def intra_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, A_log_ptr, dt_bias_ptr, cu_seqlens_ptr, tiles_ptr, decay_ptr,
    T, N, scale, lower_bound,
    stride_qt, stride_kt, stride_vt, stride_gt, stride_bt,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    PAD_V: tl.constexpr, C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    USE_GATE: tl.constexpr, USE_L2NORM: tl.constexpr, BETA_FACTOR: tl.constexpr, BOUNDED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = C // SUB
    LEVELS: tl.constexpr = 2 if BLOCKS == 4 else BLOCKS - 1
    pid = tl.program_id(0)
    hv = pid % HV
    n, chunk, first, length = locate(pid // HV, cu_seqlens_ptr, T, N, C)
    if chunk * C >= length:
        return

    offs_k, offs_c = tl.arange(0, BLOCK_K), tl.arange(0, C)
    mask_k, mask_c = offs_k < K, offs_c < length - chunk * C
    mask = mask_c[:, None] & mask_k[None, :]
    t = first + chunk * C + offs_c
    offs_qk = hv // (HV // H) * K + offs_k
    q = tl.load(q_ptr + t[:, None] * stride_qt + offs_qk[None, :], mask=mask, other=0.0).to(tl.float32)  # [C, BLOCK_K]
    k = tl.load(k_ptr + t[:, None] * stride_kt + offs_qk[None, :], mask=mask, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + t[:, None] * stride_gt + hv * K + offs_k[None, :], mask=mask, other=0.0).to(tl.float32)
    beta = tl.load(beta_ptr + t * stride_bt + hv, mask=mask_c, other=0.0).to(tl.float32)
    if USE_GATE:
        g = log_decay(g, A_log_ptr, dt_bias_ptr, lower_bound, hv, offs_k, mask_k, K)
        g = tl.where(mask, g, 0.0)
    if not BOUNDED:
        g = floor_log_decay(g)
    g *= LOG2_E  # exp2 is one instruction
    if BETA_FACTOR > 0:
        beta = tl.where(mask_c, BETA_FACTOR * sigmoid(beta), 0.0)
    if USE_L2NORM:
        q, k = unit_rows(q), unit_rows(k)
    q *= scale

    q, k = tl.reshape(q, [BLOCKS, SUB, BLOCK_K]), tl.reshape(k, [BLOCKS, SUB, BLOCK_K])
    g = tl.reshape(g, [BLOCKS, SUB, BLOCK_K])
    prefix = tl.cumsum(g, 1)  # inclusive, from the sub-block's start
    total = last_row(prefix, SUB)  # [BLOCKS, BLOCK_K]
    suffix = total[:, None, :] - prefix  # exclusive, to the sub-block's end

    r, c = row_of(SUB)[None, :, :], column_of(SUB)[None, :, :]
    if BOUNDED:
        kk_block, qk_block = sub_block_products(q, k, prefix, total, DOT, PRECISION)  # [BLOCKS, 16, 16]
    else:
        kk_block = tl.zeros([BLOCKS, SUB, SUB], tl.float32)
        qk_block = tl.where(r == c, tl.sum(q * k, 2)[:, :, None], 0.0)
        for level in tl.static_range(4):
            kk_block, qk_block = halved_products(q, k, g, kk_block, qk_block, 1 << level, DOT, PRECISION)
    A = tl.zeros([C, C], tl.float32)
    qk = block_diagonal(qk_block, C, BLOCKS)
    for level in tl.static_range(LEVELS):
        A, qk = block_products(q, k, prefix, suffix, total, A, qk, 1 << level, DOT, PRECISION)

    # The tiles of one chunk lie together: w, q, k [C, BLOCK_K], attention [C, C], u^T [PAD_V, C].
    tile: tl.constexpr = C * BLOCK_K
    tiles_ptr += pid.to(tl.int64) * (3 * tile + C * C + PAD_V * C)
    element = tiles_ptr.dtype.element_ty
    offs_tile = offs_c[:, None] * BLOCK_K + offs_k[None, :]
    b = tl.arange(0, BLOCKS)
    from_start = tl.exp2(prefix + sum_blocks(total, b * 0, b)[:, None, :])  # exp(G)
    to_end = tl.exp2(suffix + sum_blocks(total, b + 1, b * 0 + BLOCKS)[:, None, :])  # exp(G_C - G)
    tl.store(tiles_ptr + tile + offs_tile, tl.reshape(q * from_start, [C, BLOCK_K]).to(element))
    tl.store(tiles_ptr + 2 * tile + offs_tile, tl.reshape(k * to_end, [C, BLOCK_K]).to(element))
    tl.store(decay_ptr + pid.to(tl.int64) * BLOCK_K + offs_k, tl.exp2(tl.sum(total, 0)))
    tl.store(tiles_ptr + 3 * tile + offs_c[:, None] * C + offs_c[None, :], qk.to(element))
    kb = (tl.reshape(k * from_start, [C, BLOCK_K]) * beta[:, None]).to(DOT)

    kk_block *= tl.reshape(beta, [BLOCKS, SUB])[:, :, None]
    A *= beta[:, None]
    X_block = tl.where(r == c, 1.0, tl.where(half_mask(r, c, 1), -kk_block, 0.0))
    for level in tl.static_range(1, 4):
        X_block = inverse_step(X_block, kk_block, half_mask(r, c, 1 << level), SPLIT, PRECISION)
    X = block_diagonal(X_block, C, BLOCKS)
    for level in tl.static_range(LEVELS):
        X = inverse_step(X, A, half_mask(row_of(C), column_of(C), SUB << level), SPLIT, PRECISION)
    X = X.to(DOT)

    tl.store(tiles_ptr + offs_tile, tl.dot(X, kb, input_precision=PRECISION).to(element))
    for block in tl.static_range(PAD_V // BLOCK_V):
        offs_v = block * BLOCK_V + tl.arange(0, BLOCK_V)
        v_ptrs = v_ptr + t[:, None] * stride_vt + hv * V + offs_v[None, :]
        v = tl.load(v_ptrs, mask=mask_c[:, None] & (offs_v[None, :] < V), other=0.0).to(tl.float32)
        u = tl.dot(X, (v * beta[:, None]).to(DOT), input_precision=PRECISION)  # [C, BLOCK_V]
        tl.store(tiles_ptr + 3 * tile + C * C + offs_c[:, None] + offs_v[None, :] * C, u.to(element))
