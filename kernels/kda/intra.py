"""The part of a chunk that is independent of the state: gate, norms, decay products, triangular inverse, scan tiles.

One program computes one chunk of one value head. The notation is that of arXiv 2510.26692, section 3: G is the
inclusive sum of g inside the chunk, A is the strictly lower part of beta_i <k_i exp(G_i - G_j), k_j>, and
X = (I + A)^-1. The program writes

    w = X diag(beta) (exp(G) k),  u = X diag(beta) v,
    scale exp(G) q,  exp(G_C - G) k,  scale tril(<q_i exp(G_i - G_j), k_j>)

exp(G_i - G_j) is computed exactly for any gate, because the chunk is cut into blocks of 16 tokens. For j in an earlier
block, it is the product of three factors: exp(sum from the start of i's block to i), exp(sum from j to the end of j's
block), and the decay over the whole blocks in between. Within a block, the same is done with the halves of 16, 8, 4 and
2 tokens. Every exponent is <= 0, so nothing can overflow, and none is a difference of long sums. If the gate is known
to be >= -5, the start of a block can be the reference for the whole block: exponents stay within 80, which bfloat16 and
float32 can represent. Other gates are inspected: for a slice of the columns of K in which each block decays by less
than 2^80, as in nearly all slices, blocks need not be halved.

The columns of K are processed 16 at a time, because each of the four warps then holds one block of tokens of a
[4, 16, 16] tile: sums over a block, its products and its inverse never leave the warp.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl

from .blocks import SUB, block_diagonal, block_rows, column_of, diagonal_blocks, half_mask, last_row, row_of
from .chunk_index import locate
from .gate import floor_log_decay, gate, gate_rate, sigmoid
from .inverse import block_inverse, exact_dot, solve, sub_block_inverse
from .workspace import DECAY, record_size

LOG2_E = tl.constexpr(1.4426950408889634)
MOST_DOUBLINGS = tl.constexpr(80.0)  # 2^80 leaves room in bfloat16's range for keys and sums
NEVER, WHERE_STEEP, ALWAYS = 0, 1, 2  # whether blocks are processed in halves; WHERE_STEEP: if they decay strongly


@triton.jit
def decayed_columns(k_inside, k_before, e1, e2, INSIDE: tl.constexpr):
    """Keys for the rows of each block b, as [BLOCKS (b), C (j), BLOCK_S]: k_j, decayed to the start of block b. They
    are 0 for j after block b. For j in block b, they are k_inside if INSIDE, else 0. e1 and e2 are the decay over the
    whole blocks 1 and 2."""
    BLOCKS: tl.constexpr = k_before.shape[0]
    BLOCK_S: tl.constexpr = k_before.shape[2]
    b, j = row_of(BLOCKS)[:, :, None], column_of(BLOCKS)[:, :, None]
    two_apart = tl.where(j == 0, e1[None, None, :], e2[None, None, :])
    between = tl.where(b - j == 3, (e1 * e2)[None, None, :], tl.where(b - j == 2, two_apart, 1.0))
    factor = tl.where(j < b, between, 0.0)
    columns = k_before[None, :, :, :] * factor[:, :, None, :]
    if INSIDE:
        columns = tl.where((b == j)[:, :, None, :], k_inside[None, :, :, :], columns)
    return tl.reshape(columns, [BLOCKS, BLOCKS * SUB, BLOCK_S])


@triton.jit
def block_dot(a, b, acc, PRECISION: tl.constexpr):
    """acc plus the products of blocks, a b^T: [BLOCKS, M, BLOCK_S], [BLOCKS, N, BLOCK_S] -> [BLOCKS, M, N]."""
    return tl.dot(a, tl.trans(b, (0, 2, 1)), acc, input_precision=PRECISION)


@triton.jit
def halved_products(q, k, g, kk, qk, h: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """Add the decayed <k_i, k_j> and <q_i, k_j>, with i in the upper half and j in the lower half of the same block of
    2 h <= 16 tokens, to kk and qk [BLOCKS, 16, 16], for any gate. q, k and g are float32 [BLOCKS, 16, BLOCK_S]."""
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
def block_products(q, k, g, kk, qk, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """Add all decayed <k_i, k_j> and <q_i, k_j> within blocks of 16 tokens to kk and qk, for any gate."""
    qk += tl.where(row_of(SUB)[None, :, :] == column_of(SUB)[None, :, :], tl.sum(q * k, 2)[:, :, None], 0.0)
    for level in tl.static_range(4):
        kk, qk = halved_products(q, k, g, kk, qk, 1 << level, DOT, PRECISION)
    return kk, qk


@triton.jit
def load_columns(ptr, stride, offs, rows, C: tl.constexpr, WIDTH: tl.constexpr):
    """Load the columns `offs` of the C rows that begin at `ptr`; zeros from row `rows` and from column WIDTH on."""
    offs_c = tl.arange(0, C)
    mask = (offs_c < rows)[:, None] & (offs < WIDTH)[None, :]
    return tl.load(ptr + (offs_c[:, None] * stride + offs[None, :]), mask=mask, other=0.0)


@triton.jit
def load_beta(beta_ptr, stride, rows, C: tl.constexpr, BETA_FACTOR: tl.constexpr):
    offs_c = tl.arange(0, C)
    beta = tl.load(beta_ptr + offs_c * stride, mask=offs_c < rows, other=0.0).to(tl.float32)
    if BETA_FACTOR > 0:
        beta = tl.where(offs_c < rows, BETA_FACTOR * sigmoid(beta), 0.0)
    return beta


@triton.jit
def inverse_length(ptr, stride, rows, C: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_S: tl.constexpr):
    """1 / |x| for each of the C rows x, of K elements, that begin at `ptr`; float32 [C]."""
    squares = tl.zeros([C, BLOCK_S], tl.float32)
    for start in tl.static_range(0, BLOCK_K, BLOCK_S):
        x = load_columns(ptr, stride, start + tl.arange(0, BLOCK_S), rows, C, K).to(tl.float32)
        squares += x * x
    return tl.rsqrt(tl.sum(squares, 1) + 1e-6)


@triton.jit(do_not_specialize=["T", "N"])
def intra_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, A_log_ptr, dt_bias_ptr, cu_seqlens_ptr, tiles_ptr,
    T, N, scale, lower_bound,
    stride_qt, stride_kt, stride_vt, stride_gt, stride_bt,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    PAD_V: tl.constexpr, C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_V: tl.constexpr,
    USE_GATE: tl.constexpr, USE_L2NORM: tl.constexpr, BETA_FACTOR: tl.constexpr, HALVES: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = C // SUB
    pid = tl.program_id(0)
    hv = pid % HV
    _n, chunk, first, length = locate(pid // HV, cu_seqlens_ptr, T, N, C)
    if chunk * C >= length:
        return

    tile: tl.constexpr = C * BLOCK_K
    tiles_ptr += pid.to(tl.int64) * record_size(C, BLOCK_K, PAD_V)
    decay_ptr = tiles_ptr.to(tl.pointer_type(tl.float32), bitcast=True)
    tiles_ptr += DECAY * BLOCK_K
    element = tiles_ptr.dtype.element_ty
    t = first + chunk * C
    rows = tl.minimum(length - chunk * C, C)  # offsets from here on are small, because they are within a chunk
    q_ptr += t * stride_qt + hv // (HV // H) * K
    k_ptr += t * stride_kt + hv // (HV // H) * K
    v_ptr += t * stride_vt + hv * V
    g_ptr += t * stride_gt + hv * K
    offs_c = tl.arange(0, C)
    mask_c = offs_c < rows

    # Throughout this kernel, the next slice is loaded before the current one is processed.
    offs_next = tl.arange(0, BLOCK_S)
    q_next = load_columns(q_ptr, stride_qt, offs_next, rows, C, K)
    k_next = load_columns(k_ptr, stride_kt, offs_next, rows, C, K)
    g_next = load_columns(g_ptr, stride_gt, offs_next, rows, C, K)
    beta_ptr += t * stride_bt + hv
    beta = load_beta(beta_ptr, stride_bt, rows, C, BETA_FACTOR)
    rate = gate_rate(A_log_ptr, hv)
    if USE_L2NORM:
        q_factor = inverse_length(q_ptr, stride_qt, rows, C, K, BLOCK_K, BLOCK_S)
        k_factor = inverse_length(k_ptr, stride_kt, rows, C, K, BLOCK_K, BLOCK_S)

    r, c = row_of(SUB)[None, :, :], column_of(SUB)[None, :, :]
    kk_block = tl.zeros([BLOCKS, SUB, SUB], tl.float32)
    qk_block = tl.zeros([BLOCKS, SUB, SUB], tl.float32)
    A = tl.zeros([BLOCKS, SUB, C], tl.float32)
    qk = tl.zeros([BLOCKS, SUB, C], tl.float32)
    for start in range(0, BLOCK_K, BLOCK_S):  # a slice of the keys' columns
        offs_k = start + tl.arange(0, BLOCK_S)
        q, k, g = q_next.to(tl.float32), k_next.to(tl.float32), g_next.to(tl.float32)  # [C, BLOCK_S]
        offs_next = offs_k + BLOCK_S
        q_next = load_columns(q_ptr, stride_qt, offs_next, rows, C, K)
        k_next = load_columns(k_ptr, stride_kt, offs_next, rows, C, K)
        g_next = load_columns(g_ptr, stride_gt, offs_next, rows, C, K)
        if USE_GATE:
            if dt_bias_ptr is not None:
                g += tl.load(dt_bias_ptr + hv * K + offs_k, mask=offs_k < K, other=0.0).to(tl.float32)[None, :]
            g = tl.where(mask_c[:, None] & (offs_k < K)[None, :], gate(g, rate, lower_bound), 0.0)
        if HALVES > 0:
            g = floor_log_decay(g)
        g *= LOG2_E  # exp2 is one instruction
        if USE_L2NORM:
            q *= q_factor[:, None]
            k *= k_factor[:, None]

        q, k = tl.reshape(q, [BLOCKS, SUB, BLOCK_S]), tl.reshape(k, [BLOCKS, SUB, BLOCK_S])
        g = tl.reshape(g, [BLOCKS, SUB, BLOCK_S])
        prefix = tl.cumsum(g, 1)  # inclusive, from the block's start
        total = last_row(prefix, SUB)  # [BLOCKS, BLOCK_S]
        after, before = tl.exp2(prefix), tl.exp2(total[:, None, :] - prefix)  # from the block's start; to its end
        q_after, k_after, k_before = q * after, k * after, k * before
        q_rows, k_rows = q_after.to(DOT), k_after.to(DOT)
        k_inside = k
        if HALVES == 0:
            k_inside = k * tl.exp2(-prefix)
        elif HALVES == 1:
            steep = tl.min(total) < -MOST_DOUBLINGS
            k_inside = tl.where(steep, 0.0, k) * tl.exp2(tl.where(steep, 0.0, -prefix))
            if steep:
                kk_block, qk_block = block_products(q, k, g, kk_block, qk_block, DOT, PRECISION)
        else:
            kk_block, qk_block = block_products(q, k, g, kk_block, qk_block, DOT, PRECISION)
        e0, e1, e2, e3 = block_rows(tl.exp2(total))
        b = tl.arange(0, BLOCKS)[:, None]
        from_start = tl.where(b == 0, 1.0, tl.where(b == 1, e0, tl.where(b == 2, e0 * e1, e0 * e1 * e2)))
        to_end = tl.where(b == 0, e1 * e2 * e3, tl.where(b == 1, e2 * e3, tl.where(b == 2, e3, 1.0)))
        offs_tile = offs_c[:, None] * BLOCK_K + offs_k[None, :]
        kb = tl.reshape(k_after * from_start[:, None, :], [C, BLOCK_S]) * beta[:, None]
        q_state = scale * tl.reshape(q_after * from_start[:, None, :], [C, BLOCK_S])
        k_state = tl.reshape(k_before * to_end[:, None, :], [C, BLOCK_S])
        tl.store(tiles_ptr + offs_tile, kb.to(element))  # kept there until w replaces it
        tl.store(tiles_ptr + tile + offs_tile, q_state.to(element))
        tl.store(tiles_ptr + 2 * tile + offs_tile, k_state.to(element))
        tl.store(decay_ptr + offs_k, e0 * e1 * e2 * e3)
        if HALVES < 2 or BLOCKS > 1:
            columns = decayed_columns(k_inside, k_before, e1, e2, HALVES < 2).to(DOT)
            A = block_dot(k_rows, columns, A, PRECISION)
            qk = block_dot(q_rows, columns, qk, PRECISION)

    offs_v = tl.arange(0, BLOCK_V)
    v_next = load_columns(v_ptr, stride_vt, offs_v, rows, C, V)
    beta = load_beta(beta_ptr, stride_bt, rows, C, BETA_FACTOR)  # loaded again, because the loop is short of registers
    tl.debug_barrier()  # from here on, every thread's part of kb is stored
    BLOCK_W: tl.constexpr = 64 if BLOCK_K > 64 else BLOCK_K
    offs_w = tl.arange(0, BLOCK_W)
    kb_next = load_columns(tiles_ptr, BLOCK_K, offs_w, rows, C, BLOCK_K)
    qk = tl.where(row_of(C) >= column_of(C), tl.reshape(qk, [C, C]), 0.0)
    if HALVES < 2:
        kk_block += diagonal_blocks(A)
    if HALVES > 0:
        qk += block_diagonal(qk_block, C, BLOCKS)
    tl.store(tiles_ptr + 3 * tile + offs_c[:, None] * C + offs_c[None, :], (scale * qk).to(element))
    beta_rows = tl.reshape(beta, [BLOCKS, SUB])[:, :, None]
    X = sub_block_inverse(tl.where(r > c, kk_block, 0.0) * beta_rows, SPLIT, PRECISION)
    A = tl.where(tl.arange(0, BLOCKS)[:, None, None] > column_of(C)[None, :, :] // SUB, A * beta_rows, 0.0)
    N = tl.reshape(exact_dot(X, A, tl.zeros_like(A), SPLIT, PRECISION), [C, C])
    P = block_inverse(N, BLOCKS, SPLIT, PRECISION)
    for start in range(0, BLOCK_K, BLOCK_W):
        kb = kb_next.to(DOT)
        kb_next = load_columns(tiles_ptr, BLOCK_K, start + BLOCK_W + offs_w, rows, C, BLOCK_K)
        w = solve(P, X, kb, C, BLOCKS, DOT, PRECISION)  # [C, BLOCK_W]
        tl.store(tiles_ptr + offs_c[:, None] * BLOCK_K + start + offs_w[None, :], w.to(element))
    u_ptr = tiles_ptr + 3 * tile + C * C
    for start in range(0, PAD_V, BLOCK_V):
        v = v_next.to(tl.float32)
        v_next = load_columns(v_ptr, stride_vt, start + BLOCK_V + offs_v, rows, C, V)
        u = solve(P, X, (v * beta[:, None]).to(DOT), C, BLOCKS, DOT, PRECISION)  # [C, BLOCK_V]
        tl.store(u_ptr + offs_c[:, None] + (start + offs_v)[None, :] * C, u.to(element))
