"""The scan over a sequence's chunks: carries the state in registers and writes the output, in one launch.

All tiles are transposed, such as S^T [BLOCK_V, BLOCK_K], so that the left operand of each product is the result of the
previous product and stays in registers. The step from one chunk to the next is then a chain of tensor core instructions
without a round trip through shared memory.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl

from .chunk_index import first_slot, locate, sequence_tokens
from .workspace import DECAY, decay_of, record_size


@triton.jit
def chunk_update(
    S, record_ptr, offs_v, mask_u, C: tl.constexpr, BLOCK_K: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """S <- diag(exp G_C) S + (exp(G_C - G) k)^T (u - w S), transposed. Where mask_u is false, u is taken as 0.

    Returns S^T and the new values (u - w S)^T [BLOCK_V, C]."""
    offs_k, offs_c = tl.arange(0, BLOCK_K), tl.arange(0, C)
    offs_tile = offs_c[:, None] * BLOCK_K + offs_k[None, :]
    tiles_ptr = record_ptr + DECAY * BLOCK_K
    w = tl.load(tiles_ptr + offs_tile).to(DOT)  # [C, BLOCK_K]
    k = tl.load(tiles_ptr + 2 * C * BLOCK_K + offs_tile).to(DOT)
    u_ptrs = tiles_ptr + 3 * C * BLOCK_K + C * C + offs_v[:, None] * C + offs_c[None, :]
    u = tl.load(u_ptrs, mask=mask_u[:, None], other=0.0).to(tl.float32)  # [BLOCK_V, C]
    decay = decay_of(record_ptr, offs_k)
    values = u - tl.dot(S.to(DOT), tl.trans(w), input_precision=PRECISION)
    S = tl.dot(values.to(DOT), k, S * decay[None, :], input_precision=PRECISION)
    return S, values


@triton.jit(do_not_specialize=["T", "N", "piece_chunks"])
def scan_kernel(
    records_ptr, initial_ptr, pieces_ptr, cu_seqlens_ptr, o_ptr, final_ptr, read_slots_ptr, written_slots_ptr,
    T, N, piece_chunks, stride_initial, stride_final,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, PAD_V: tl.constexpr,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    STATE_V_FIRST: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program processes one piece of one sequence (the whole sequence if pieces_ptr is None), for one value head
    and BLOCK_V columns.

    A program reads and writes the same part of a state, so that a row of a pool can be updated in place."""
    BLOCKS_V: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    pid = tl.program_id(0)
    block, hv, slot = pid % BLOCKS_V, pid // BLOCKS_V % HV, pid // (BLOCKS_V * HV)
    if pieces_ptr is None:
        n, piece = slot, slot * 0
        first, length = sequence_tokens(n, cu_seqlens_ptr, T)
    else:
        n, piece, first, length = locate(slot, cu_seqlens_ptr, T, N, piece_chunks * C)
    chunks = (length + C - 1) // C
    start = piece * piece_chunks
    end = tl.minimum(start + piece_chunks, chunks)
    if (start >= chunks) & (piece > 0):
        return

    offs_k, offs_c = tl.arange(0, BLOCK_K), tl.arange(0, C)
    offs_v = block * BLOCK_V + tl.arange(0, BLOCK_V)
    mask_s = (offs_v < V)[:, None] & (offs_k < K)[None, :]
    if STATE_V_FIRST:
        offs_s = offs_v[:, None] * K + offs_k[None, :]
    else:
        offs_s = offs_k[None, :] * V + offs_v[:, None]
    offs_s += hv * (K * V)
    read = n.to(tl.int64)
    if read_slots_ptr is not None:
        read = tl.load(read_slots_ptr + n).to(tl.int64)
    live = read >= 0  # a padding sequence gets zeros; its tokens are not read
    S = tl.zeros([BLOCK_V, BLOCK_K], tl.float32)
    if pieces_ptr is not None:
        rows = (slot.to(tl.int64) * HV + hv) * (BLOCK_K + 2 * PAD_V) + BLOCK_K + PAD_V + offs_v
        S += tl.load(pieces_ptr + rows[:, None] * BLOCK_K + offs_k[None, :], mask=(offs_v < PAD_V)[:, None], other=0.0)
    elif initial_ptr is not None:
        S += tl.load(initial_ptr + read * stride_initial + offs_s, mask=mask_s & live, other=0.0).to(tl.float32)

    record = (first_slot(n, first, T, C, cu_seqlens_ptr is not None) + start).to(tl.int64) * HV + hv
    record_ptr = records_ptr + record * record_size(C, BLOCK_K, PAD_V)
    o_ptr += (first + start * C) * (HV * V) + hv * V
    offs_tile = offs_c[:, None] * BLOCK_K + offs_k[None, :]
    offs_a = offs_c[:, None] * C + offs_c[None, :]
    offs_o = offs_c[None, :] * (HV * V) + offs_v[:, None]
    last = tl.where(live, end, start)
    for chunk in range(start, last):
        tiles_ptr = record_ptr + DECAY * BLOCK_K
        q = tl.load(tiles_ptr + C * BLOCK_K + offs_tile).to(DOT)
        attention = tl.load(tiles_ptr + 3 * C * BLOCK_K + offs_a).to(DOT)
        o = tl.dot(S.to(DOT), tl.trans(q), input_precision=PRECISION)  # [BLOCK_V, C]
        S, values = chunk_update(S, record_ptr, offs_v, offs_v < V, C, BLOCK_K, DOT, PRECISION)
        o = tl.dot(values.to(DOT), tl.trans(attention), o, input_precision=PRECISION)
        mask_o = (offs_v < V)[:, None] & (offs_c < length - chunk * C)[None, :]
        tl.store(o_ptr + offs_o, o.to(o_ptr.dtype.element_ty), mask=mask_o)
        record_ptr += HV * record_size(C, BLOCK_K, PAD_V)
        o_ptr += C * HV * V
    for chunk in range(last, end):
        mask_o = (offs_v < V)[:, None] & (offs_c < length - chunk * C)[None, :]
        tl.store(o_ptr + offs_o, tl.zeros([BLOCK_V, C], o_ptr.dtype.element_ty), mask=mask_o)
        o_ptr += C * HV * V
    if final_ptr is not None:
        written, keep = n.to(tl.int64), end >= chunks
        if written_slots_ptr is not None:
            written = tl.load(written_slots_ptr + n).to(tl.int64)
            keep &= live & (written >= 0)
        S = tl.where(live, S, 0.0)
        tl.store(final_ptr + written * stride_final + offs_s, S, mask=mask_s & keep)
