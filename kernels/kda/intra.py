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

from .gate import floor_log_decay, log_decay, unit_rows
from .locate import locate

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
def sum_blocks(total, inside):
    """Row b of the result sums the rows j of total [BLOCKS, BLOCK_K] with inside[b, j]."""
    return tl.sum(tl.where(inside[:, :, None], total[None, :, :], 0.0), 1)


@triton.jit
def transposed_dot(a, b, PRECISION: tl.constexpr):
    """[B, M, BLOCK_K], [B, N, BLOCK_K] -> [B, M, N]"""
    return tl.dot(a, tl.trans(b, (0, 2, 1)), input_precision=PRECISION)


@triton.jit
def sub_block_products(
    q, k, g, prefix, total, BLOCKS: tl.constexpr, BLOCK_K: tl.constexpr, BOUNDED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Decayed <k_i, k_j> for i > j and <q_i, k_j> for i >= j within blocks of 16; q, k, g, prefix
    [BLOCKS, 16, BLOCK_K] float32. Returns two [BLOCKS, 16, 16] float32 tiles."""
    r, c = row_of(SUB)[None, :, :], column_of(SUB)[None, :, :]
    if BOUNDED:
        centred = prefix - 0.5 * total[:, None, :]
        after, before = tl.exp(centred), tl.exp(-centred)
        columns = (k * before).to(DOT)
        kk = transposed_dot((k * after).to(DOT), columns, PRECISION)
        qk = transposed_dot((q * after).to(DOT), columns, PRECISION)
        return tl.where(r > c, kk, 0.0), tl.where(r >= c, qk, 0.0)

    kk = tl.zeros([BLOCKS, SUB, SUB], tl.float32)
    qk = tl.where(r == c, tl.sum(q * k, 2)[:, :, None], 0.0)
    for level in tl.static_range(4):
        h: tl.constexpr = 1 << level
        segment = tl.reshape(g, [BLOCKS * SUB // h, h, BLOCK_K])
        inclusive = tl.cumsum(segment, 1)
        upper = (tl.arange(0, BLOCKS * SUB // h) % 2 == 1)[:, None, None]
        toward = tl.where(upper, inclusive, last_row(inclusive, h)[:, None, :] - inclusive)
        factor = tl.reshape(tl.exp(toward), [BLOCKS, SUB, BLOCK_K])
        kf = (k * factor).to(DOT)
        mask = half_mask(r, c, h)
        kk = tl.where(mask, transposed_dot(kf, kf, PRECISION), kk)
        qk = tl.where(mask, transposed_dot((q * factor).to(DOT), kf, PRECISION), qk)
    return kk, qk


@triton.jit
def block_diagonal(x, C: tl.constexpr, BLOCKS: tl.constexpr):
    """[BLOCKS, 16, 16] -> [C, C]"""
    wide = tl.broadcast_to(x[:, :, None, :], [BLOCKS, SUB, BLOCKS, SUB])
    return tl.where(row_of(C) // SUB == column_of(C) // SUB, tl.reshape(wide, [C, C]), 0.0)


@triton.jit
def inverse_step(X, A, mask, PRECISION: tl.constexpr):
    """From the inverses of the halves on X's diagonal to the inverse of the whole blocks."""
    lower = tl.dot(X, tl.where(mask, A, 0.0), input_precision=PRECISION)
    return X - tl.dot(lower, X, input_precision=PRECISION)


@triton.jit(do_not_specialize=["T", "N"])
def intra_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, A_log_ptr, dt_bias_ptr, cu_seqlens_ptr, tiles_ptr, decay_ptr,
    T, N, scale, lower_bound,
    stride_qt, stride_kt, stride_vt, stride_gt, stride_bt,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    PAD_V: tl.constexpr, C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    USE_GATE: tl.constexpr, USE_L2NORM: tl.constexpr, BETA_FACTOR: tl.constexpr, BOUNDED: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, INVERSE_PRECISION: tl.constexpr,
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
    if BETA_FACTOR > 0:
        beta = tl.where(mask_c, BETA_FACTOR * tl.sigmoid(beta), 0.0)
    if USE_L2NORM:
        q, k = unit_rows(q), unit_rows(k)
    q *= scale

    q, k = tl.reshape(q, [BLOCKS, SUB, BLOCK_K]), tl.reshape(k, [BLOCKS, SUB, BLOCK_K])
    g = tl.reshape(g, [BLOCKS, SUB, BLOCK_K])
    prefix = tl.cumsum(g, 1)  # inclusive, from the sub-block's start
    total = last_row(prefix, SUB)  # [BLOCKS, BLOCK_K]
    suffix = total[:, None, :] - prefix  # exclusive, to the sub-block's end

    kk_block, qk_block = sub_block_products(
        q, k, g, prefix, total, BLOCKS, BLOCK_K, BOUNDED, DOT, PRECISION
    )  # [BLOCKS, 16, 16]
    A = tl.zeros([C, C], tl.float32)
    qk = block_diagonal(qk_block, C, BLOCKS)
    for level in tl.static_range(LEVELS):
        h: tl.constexpr = 1 << level
        b, j = row_of(BLOCKS), column_of(BLOCKS)
        upper = (b // h) % 2 == 1
        between = sum_blocks(total, (b // h == j // h) & tl.where(upper, j < b, j > b))  # to the middle of 2 h blocks
        factor = tl.exp(tl.where(upper[:, :, None], prefix, suffix) + between[:, None, :])
        kf = tl.reshape((k * factor).to(DOT), [C, BLOCK_K])
        qf = tl.reshape((q * factor).to(DOT), [C, BLOCK_K])
        half = half_mask(row_of(C), column_of(C), h * SUB)
        A = tl.where(half, tl.dot(kf, tl.trans(kf), input_precision=PRECISION), A)
        qk = tl.where(half, tl.dot(qf, tl.trans(kf), input_precision=PRECISION), qk)

    r, c = row_of(SUB)[None, :, :], column_of(SUB)[None, :, :]
    kk_block *= tl.reshape(beta, [BLOCKS, SUB])[:, :, None]
    A *= beta[:, None]
    X_block = tl.where(r == c, 1.0, tl.where(half_mask(r, c, 1), -kk_block, 0.0))
    for level in tl.static_range(1, 4):
        X_block = inverse_step(X_block, kk_block, half_mask(r, c, 1 << level), INVERSE_PRECISION)
    X = block_diagonal(X_block, C, BLOCKS)
    for level in tl.static_range(LEVELS):
        X = inverse_step(X, A, half_mask(row_of(C), column_of(C), SUB << level), INVERSE_PRECISION)
    X = X.to(DOT)

    # The tiles of one chunk lie together: w, q, k [C, BLOCK_K], attention [C, C], u^T [PAD_V, C].
    tile: tl.constexpr = C * BLOCK_K
    tiles_ptr += pid.to(tl.int64) * (3 * tile + C * C + PAD_V * C)
    element = tiles_ptr.dtype.element_ty
    offs_tile = offs_c[:, None] * BLOCK_K + offs_k[None, :]
    r, c = row_of(BLOCKS), column_of(BLOCKS)
    from_start = tl.exp(prefix + sum_blocks(total, c < r)[:, None, :])  # exp(G)
    to_end = tl.exp(suffix + sum_blocks(total, c > r)[:, None, :])  # exp(G_C - G)
    tl.store(tiles_ptr + tile + offs_tile, tl.reshape(q * from_start, [C, BLOCK_K]).to(element))
    tl.store(tiles_ptr + 2 * tile + offs_tile, tl.reshape(k * to_end, [C, BLOCK_K]).to(element))
    tl.store(decay_ptr + pid.to(tl.int64) * BLOCK_K + offs_k, tl.exp(tl.sum(total, 0)))
    offs_a = offs_c[:, None] * C + offs_c[None, :]
    tl.store(tiles_ptr + 3 * tile + offs_a, qk.to(element))
    kb = (tl.reshape(k * from_start, [C, BLOCK_K]) * beta[:, None]).to(DOT)
    tl.store(tiles_ptr + offs_tile, tl.dot(X, kb, input_precision=PRECISION).to(element))
    for block in tl.static_range(PAD_V // BLOCK_V):
        offs_v = block * BLOCK_V + tl.arange(0, BLOCK_V)
        v_ptrs = v_ptr + t[:, None] * stride_vt + hv * V + offs_v[None, :]
        v = tl.load(v_ptrs, mask=mask_c[:, None] & (offs_v[None, :] < V), other=0.0).to(tl.float32)
        u = tl.dot(X, (v * beta[:, None]).to(DOT), input_precision=PRECISION)  # [C, BLOCK_V]
        tl.store(tiles_ptr + 3 * tile + C * C + offs_c[:, None] + offs_v[None, :] * C, u.to(element))
